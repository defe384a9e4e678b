//! A benchmark that runs itself as the ranks of a job.

use std::process::{Command, ExitCode};

use distcollective::{Error, ErrorKind, Result};
use distcollective_launch::{Job, Outcome};

/// Runs this program as a job of so many processes, with its own arguments.
pub fn run_as_job(ranks: u32) -> Result<()> {
    let program = std::env::current_exe().map_err(|e| Error::new(ErrorKind::System, format!("this program: {e}")))?;
    let own: Vec<_> = std::env::args_os().skip(1).collect();
    let outcome = Job::new(ranks).run(|_| {
        let mut command = Command::new(&program);
        command.args(&own);
        command
    })?;
    match outcome {
        Outcome::Success => Ok(()),
        other => Err(Error::new(ErrorKind::System, format!("{ranks} processes: {other}"))),
    }
}

/// How the program ends; an error is printed.
pub fn exit_code(result: Result<()>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
