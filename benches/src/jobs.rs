//! What benchmarks run beside themselves: the processes of a job, a rank that is a thread, and
//! scripts in Python with torch.

use std::path::Path;
use std::process::Command;

use distcollective::{Communicator, Error, ErrorKind, Result};
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

/// Runs a script with a Python that has torch.
pub fn run_script<const N: usize>(python: &Path, script: &str, arguments: [String; N]) -> Result<()> {
    match Command::new(python).arg(script).args(arguments).status() {
        Ok(status) if status.success() => Ok(()),
        other => Err(Error::new(ErrorKind::System, format!("{} with torch: {other:?}", python.display()))),
    }
}

/// Numbers as an argument of a script: `1,2,3`.
pub fn list(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(",")
}

/// Measures the calls of one of two ranks. The other rank is a thread that makes the same call
/// again and again. `make` gets a rank's communicator, and gives what makes one call.
pub fn beside_peer<C: FnMut() -> Result<()>, T>(
    make: impl Fn(Communicator) -> Result<C> + Sync,
    measure: impl FnOnce(&mut C) -> Result<T>,
) -> Result<T> {
    let [own, other] = Communicator::builder()
        .in_process(2)?
        .try_into()
        .map_err(|_| Error::new(ErrorKind::System, "a communicator of two ranks has other ranks"))?;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let Ok(mut call) = make(other) else { return };
            // The last call is an error, because this thread's rank leaves.
            while call().is_ok() {}
        });
        measure(&mut make(own)?)
    })
}
