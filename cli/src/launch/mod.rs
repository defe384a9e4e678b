//! `distcollective launch`: starts a process for each rank.

mod bind;
mod output;
mod signals;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use clap::ValueHint;
use distcollective::{Error, ErrorKind, Rank};
use distcollective_launch::{Job, Outcome};

use crate::output::{CLOSED, Ended, Failure, STYLES, tell, tell_error};
pub use bind::Binding;
pub use output::{Output, Prefix};

/// Starts N ranks of a program with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT set.
///
/// Each line that a rank writes gets the rank's number as prefix. Its standard input is empty,
/// unless --stdin names it.
///
/// The launcher ends the other ranks if a rank fails, or exits with code 0 while others wait for it
/// to initialize their environment, or if the reader of standard output closes it.
///
/// SIGHUP, SIGINT, SIGQUIT and SIGTERM go to the ranks. They have 4 s to end; a second signal kills
/// them at once. SIGUSR1 and SIGUSR2 go to the ranks, and Ctrl-Z stops them.
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
    /// Show lines without the ranks' numbers, each when it is whole
    #[arg(long)]
    no_prefix: bool,
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

/// What the help says of the exit codes.
pub const EXIT_STATUS: &str = "\
Exit status:
  0    all ranks exited with code 0
  1    a rank exited with code 0 while others waited for it, or the output cannot be written
  2    the command was called in a wrong way
  127  a rank cannot be started
  141  the reader of the output closed it
  else the code of the rank that failed, or 128 and the number of the signal that ended it or that
       the launcher received";

/// The variable that says how often the ranks were started before.
pub const RESTART_COUNT: &str = "DCL_RESTART_COUNT";

/// The exit code of a shell that cannot run a program.
const CANNOT_RUN: u8 = 127;

/// An error of a job. The command line gives what a job checks: ranks and CPUs.
pub fn job_failure(error: Error, exit_code: u8) -> Failure {
    if error.kind() == ErrorKind::InvalidArgument { Failure::usage(error) } else { Failure::new(exit_code, error) }
}

pub fn run(arguments: &Arguments) -> Ended {
    let mut job = Job::new(arguments.n).own_groups();
    let output = Output::new(job.control());
    let logs = arguments.log_dir.as_ref().map(|folder| output::log_files(folder, arguments.n)).transpose();
    let (logs, with_prefix) = (logs?, !arguments.no_prefix);
    job = job.output(
        output.stream(std::io::stdout(), Prefix::of(&std::io::stdout(), with_prefix), logs.clone()),
        output.stream(std::io::stderr(), Prefix::of(&std::io::stderr(), with_prefix), logs),
    );
    if let Some(rank) = arguments.stdin {
        job = job.stdin(rank);
    }
    if let Some(sets) = arguments.bind.sets(arguments.n).map_err(Failure::usage)? {
        job = job.cpus(sets);
    }
    let cannot = |what: &'static str| move |e: std::io::Error| Failure::new(CANNOT_RUN, format!("{what}: {e}"));
    output.end_when_stdout_closes().map_err(cannot("standard output cannot be watched"))?;
    signals::pass_on(job.control()).map_err(cannot("signals cannot be caught"))?;
    let failed = |error| job_failure(error, if output.has_failed() { 1 } else { CANNOT_RUN });
    let outcome = run_with_restarts(&job, arguments).map_err(failed)?;
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
