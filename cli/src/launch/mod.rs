//! `distcollective launch`: starts a process for each rank.

mod bind;
mod output;
mod signals;

use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

use distcollective::Rank;
use distcollective::launch::{Job, Outcome};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use bind::Binding;
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
/// ranks.
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
    #[arg(long, value_name = "FOLDER")]
    log_dir: Option<PathBuf>,
    /// Bind ranks to CPUs: none; core, a CPU for each rank; share, an equal share of the CPUs for
    /// each rank; or a set for each rank, such as '0-3;4-7'
    #[arg(long, value_name = "CPUS", default_value = "none")]
    bind: Binding,
    /// If a rank fails, start all ranks again, at most so often
    #[arg(long, value_name = "COUNT", default_value_t = 0)]
    max_restarts: u32,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// The variable that says how often the ranks were started before.
const RESTART_COUNT: &str = "DCL_RESTART_COUNT";

/// The exit code if the launcher cannot run the job, as that of a shell that cannot run a program.
const CANNOT_RUN: u8 = 127;

pub fn run(arguments: &Arguments) -> ExitCode {
    launch(arguments).unwrap_or_else(|text| {
        eprintln!("error: {text}");
        ExitCode::from(CANNOT_RUN)
    })
}

fn launch(arguments: &Arguments) -> Result<ExitCode, String> {
    let mut job = Job::new(arguments.n).own_groups();
    let output = Output::new(job.control());
    let logs = arguments.log_dir.as_ref().map(|folder| output::log_files(folder, arguments.n)).transpose()?;
    job = job.output(
        output.stream(std::io::stdout(), Prefix::of(&std::io::stdout()), logs.clone()),
        output.stream(std::io::stderr(), Prefix::of(&std::io::stderr()), logs),
    );
    if let Some(rank) = arguments.stdin {
        job = job.stdin(rank);
    }
    if let Some(sets) = arguments.bind.sets(arguments.n)? {
        job = job.cpus(sets);
    }
    output.end_when_stdout_closes().map_err(|e| format!("standard output cannot be watched: {e}"))?;
    signals::pass_on(job.control()).map_err(|e| format!("signals cannot be caught: {e}"))?;
    let outcome = run_with_restarts(&job, arguments)?;
    if let Some(code) = output.exit_code() {
        return Ok(code);
    }
    match outcome {
        Outcome::Success => {}
        Outcome::Ended { .. } => eprintln!("error: {outcome}; the ranks were ended"),
        _ if arguments.n == 1 => eprintln!("error: {outcome}"),
        _ => eprintln!("error: {outcome}; the other ranks were ended"),
    }
    Ok(ExitCode::from(outcome.exit_code()))
}

/// Raises this process's limit of open files as far as it may, since each rank needs some. Returns
/// the limit before, which is that of the ranks.
fn raise_file_limit() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // An error is impossible: every process may raise its soft limit to its hard one.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: before.maximum, ..before });
    before
}

fn run_with_restarts(job: &Job, arguments: &Arguments) -> Result<Outcome, String> {
    let [program, rest @ ..] = arguments.program.as_slice() else { return Err("there is no program".to_owned()) };
    let files = raise_file_limit();
    let mut restarts = 0;
    loop {
        let command = |_: Rank| {
            let mut command = Command::new(program);
            command.args(rest).env(RESTART_COUNT, restarts.to_string());
            // SAFETY: between fork and exec the closure makes one system call. It neither allocates
            // nor takes a lock.
            unsafe { command.pre_exec(move || Ok(setrlimit(Resource::Nofile, files)?)) };
            command
        };
        let outcome = job.run(command).map_err(|e| e.to_string())?;
        let has_failed = matches!(outcome, Outcome::Failed { .. } | Outcome::Missed { .. });
        if !has_failed || restarts == arguments.max_restarts {
            return Ok(outcome);
        }
        restarts += 1;
        eprintln!("warning: {outcome}; all ranks start again, restart {restarts} of {}", arguments.max_restarts);
    }
}
