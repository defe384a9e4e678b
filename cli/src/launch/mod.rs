//! `distcollective launch`: starts a process for each rank.

mod bind;
mod output;
mod signals;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::ValueHint;
use distcollective::{ErrorKind, Rank};
use distcollective_launch::{Job, Outcome};

use crate::output::{CLOSED, STYLES, tell, tell_error};
pub use bind::Binding;
pub use output::{Output, Prefix};

/// Starts N ranks of a program with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT set.
///
/// Each line that a rank writes gets the rank's number as prefix. Its standard input is empty,
/// unless --stdin names it.
///
/// If a rank fails, the launcher ends the others, and exits with the failed rank's code, or with
/// 128 plus the signal's number if a signal ended that rank.
///
/// If a rank exits with code 0 while others wait for it to initialize their environment, the
/// launcher ends them. Its exit code is then 1.
///
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM go to the ranks. They have 4 s to end; a second signal kills
/// them at once. The exit code is then 128 plus the signal's number. SIGUSR1 and SIGUSR2 go to the
/// ranks, and Ctrl-Z stops them. If the reader of standard output closes it, the launcher ends the
/// ranks; the exit code is 141.
///
/// The exit code is 1 if the ranks' output cannot be written, 2 if an option is wrong, and 127 if a
/// rank cannot be started.
///
/// Example: distcollective launch -n 4 -- sample_dist_collective --op all
#[derive(clap::Args)]
pub struct Arguments {
    /// The number of ranks
    #[arg(short, long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: u32,
    /// The rank that reads the launcher's standard input; without it, no rank does
    #[arg(long, value_name = "RANK")]
    stdin: Option<u32>,
    /// Also write each rank's output to a file in this folder: rank0.log, rank1.log, ...
    #[arg(long, value_name = "FOLDER", value_hint = ValueHint::DirPath)]
    log_dir: Option<PathBuf>,
    /// Bind ranks to CPUs: none; core, a CPU for each rank; share, an equal share of the CPUs for
    /// each rank; a set for each rank, such as '0-3;4-7'; or auto, which is share if there is a CPU
    /// for each rank and no other launcher started this one, and none otherwise
    #[arg(long, value_name = "CPUS", default_value = "auto")]
    bind: Binding,
    /// If a rank fails, start all ranks again, at most so often
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_restarts: u32,
    /// The program and its arguments. What follows the program's name is for the program, and so is
    /// all that follows --
    #[arg(required = true, trailing_var_arg = true, value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// The variable that says how often the ranks were started before.
pub const RESTART_COUNT: &str = "DCL_RESTART_COUNT";

/// Why there is no outcome.
enum Failure {
    /// The value of an option.
    Usage(String),
    /// The job, or the launcher itself.
    CannotRun(String),
    /// What ranks write.
    Output(String),
}

impl Failure {
    /// The exit code: that of clap, that of a shell that cannot run a program, and 1.
    fn exit_code(&self) -> u8 {
        match self {
            Failure::Usage(_) => 2,
            Failure::CannotRun(_) => 127,
            Failure::Output(_) => 1,
        }
    }
}

pub fn run(arguments: &Arguments) -> ExitCode {
    launch(arguments).unwrap_or_else(|failure| {
        let (Failure::Usage(text) | Failure::CannotRun(text) | Failure::Output(text)) = &failure;
        tell_error(text);
        ExitCode::from(failure.exit_code())
    })
}

fn launch(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let mut job = Job::new(arguments.n).own_groups();
    let output = Output::new(job.control());
    let logs = arguments.log_dir.as_ref().map(|folder| output::log_files(folder, arguments.n)).transpose();
    let logs = logs.map_err(Failure::Usage)?;
    job = job.output(
        output.stream(std::io::stdout(), Prefix::of(&std::io::stdout()), logs.clone()),
        output.stream(std::io::stderr(), Prefix::of(&std::io::stderr()), logs),
    );
    if let Some(rank) = arguments.stdin {
        job = job.stdin(rank);
    }
    if let Some(sets) = arguments.bind.sets(arguments.n).map_err(Failure::Usage)? {
        job = job.cpus(sets);
    }
    let cannot = |what: &'static str| move |e: std::io::Error| Failure::CannotRun(format!("{what}: {e}"));
    output.end_when_stdout_closes().map_err(cannot("standard output cannot be watched"))?;
    signals::pass_on(job.control()).map_err(cannot("signals cannot be caught"))?;
    let outcome = run_with_restarts(&job, arguments).map_err(|e| match e.kind() {
        // The command line gives what the job checks: ranks and CPUs.
        ErrorKind::InvalidArgument => Failure::Usage(e.to_string()),
        _ if output.has_failed() => Failure::Output(e.to_string()),
        _ => Failure::CannotRun(e.to_string()),
    })?;
    if output.is_closed() {
        return Ok(ExitCode::from(CLOSED));
    }
    match outcome {
        Outcome::Success => {}
        Outcome::Ended { .. } => tell_error(format!("{outcome}; the ranks were ended")),
        _ if arguments.n == 1 => tell_error(&outcome),
        _ => tell_error(format!("{outcome}; the other ranks were ended")),
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

fn run_with_restarts(job: &Job, arguments: &Arguments) -> distcollective::Result<Outcome> {
    let mut restarts = 0;
    loop {
        let command = |_: Rank| {
            // Clap has checked that there is a program.
            let mut command = Command::new(&arguments.program[0]);
            command.args(&arguments.program[1..]).env(RESTART_COUNT, restarts.to_string());
            command
        };
        let outcome = job.run(command)?;
        let has_failed = matches!(outcome, Outcome::Failed { .. } | Outcome::Missed { .. });
        if !has_failed || restarts == arguments.max_restarts {
            return Ok(outcome);
        }
        restarts += 1;
        let (style, all) = (STYLES.get_invalid(), arguments.max_restarts);
        tell(format_args!("{style}warning:{style:#} {outcome}; all ranks start again, restart {restarts} of {all}"));
    }
}
