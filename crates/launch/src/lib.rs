//! Starting the ranks of a job as processes of this machine, and ending them.
//!
//! `distcollective launch` is a command line over [`Job`]. Programs that start their own ranks use
//! it directly:
//!
//! ```no_run
//! use std::process::Command;
//!
//! use distcollective_launch::Job;
//!
//! let outcome = Job::new(4).run(|rank| {
//!     let mut worker = Command::new("./worker");
//!     worker.arg("--shard").arg(rank.to_string());
//!     worker
//! })?;
//! assert!(outcome.is_success(), "{outcome}");
//! # Ok::<(), distcollective::Error>(())
//! ```

/// Builds an [`Error`](distcollective::Error) from a kind and a format string.
macro_rules! error {
    ($kind:ident, $($text:tt)*) => {
        distcollective::Error::new(distcollective::ErrorKind::$kind, format!($($text)*))
    };
}

mod control;
mod cpus;
mod descriptors;
mod events;
mod guard;
mod input;
mod outcome;
mod output;
mod processes;
mod rank_process;
mod reports;
mod run;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use control::JobControl;
use cpus::cpu_sets;
pub use cpus::{bind_thread, cpu_shares};
use distcollective::{Rank, Result};
pub use outcome::Outcome;
pub use output::RankOutput;
use output::SharedOutput;

/// A job: the ranks of one program on this machine, a process each.
///
/// A rank finds torchrun's variables (`RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`,
/// `MASTER_ADDR`, `MASTER_PORT`) and `DCL_JOB_ID`, which
/// [`Environment::from_env`](distcollective::Environment::from_env) reads. Its standard input is
/// empty. Its standard output and error are those of this process.
///
/// # When this process ends
///
/// No rank outlives this process, however it ends, and no process that a rank started does: a rank
/// has a parent death signal, and a second process, the guard, watches this one. The guard kills
/// the ranks, their process groups if they have their own, and every process that has the job in
/// its environment (`DCL_LAUNCH_JOBS`).
///
/// A process that a rank started escapes
/// - if its environment no longer has the variable, or cannot be read, and it is not in a process
///   group that is its rank's own (see [`own_groups`](Self::own_groups)), or
/// - if the guard is killed together with this process.
pub struct Job {
    world_size: u32,
    own_groups: bool,
    stdin: Option<Rank>,
    /// For standard output and standard error.
    outputs: Option<[SharedOutput; 2]>,
    cpus: Option<Vec<BTreeSet<usize>>>,
    control: JobControl,
}

impl Job {
    /// A job of this many ranks. Each needs up to 4 file descriptors of this process. If there are
    /// too few, [`run`](Self::run) raises the soft limit of open files; the ranks keep the old one.
    pub fn new(world_size: u32) -> Self {
        let control = JobControl { state: Arc::default() };
        Job { world_size, own_groups: false, stdin: None, outputs: None, cpus: None, control }
    }

    /// Gives each rank a process group of its own. Then a signal for a rank reaches its children
    /// too, and a terminal's signals (Ctrl-C, Ctrl-Z) reach this process only: it has to pass them
    /// on with [`control`](Self::control).
    #[must_use]
    pub fn own_groups(mut self) -> Self {
        self.own_groups = true;
        self
    }

    /// Gives this process's standard input to one rank. A terminal's input is copied to a pipe
    /// while the job runs.
    #[must_use]
    pub fn stdin(mut self, rank: impl Into<Rank>) -> Self {
        self.stdin = Some(rank.into());
        self
    }

    /// Takes what ranks write to standard output and to standard error. Threads call the two.
    #[must_use]
    pub fn output(mut self, stdout: impl RankOutput + 'static, stderr: impl RankOutput + 'static) -> Self {
        self.outputs = Some([Arc::new(Mutex::new(stdout)), Arc::new(Mutex::new(stderr))]);
        self
    }

    /// Binds each rank to a set of CPUs, by the kernel's numbers, in the order of the ranks.
    /// [`cpu_shares`] divides this process's CPUs.
    #[must_use]
    pub fn cpus(mut self, sets: impl Into<Vec<BTreeSet<usize>>>) -> Self {
        self.cpus = Some(sets.into());
        self
    }

    /// What other threads use to send signals to the ranks and to end the job.
    pub fn control(&self) -> JobControl {
        self.control.clone()
    }

    /// Starts the ranks and waits until all have ended. `command` gives the program of each rank,
    /// with its arguments and own variables; its standard streams are replaced.
    ///
    /// If a rank fails, the others get SIGTERM after 2 s and SIGKILL after 4 s. If a rank exits
    /// with code 0 while others wait for it to initialize their environment, they get SIGTERM at
    /// once. After every outcome but success, processes that ranks started are killed.
    ///
    /// After success they go on. What they write is still taken, until they write nothing for 1 s,
    /// and for 5 s at most.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: there is no rank, [`stdin`](Self::stdin) names a rank that there is
    ///   not, [`cpus`](Self::cpus) has not one set for each rank or names a CPU that processes of
    ///   this one cannot have, or the job runs already.
    /// - `System`: a rank cannot be started. The ranks that were started are killed. The same
    ///   happens if this process ignores SIGCHLD: the kernel then does not tell how a rank ends.
    /// - `System`: the [`output`](Self::output) failed or panicked. The ranks were ended.
    pub fn run(&self, command: impl FnMut(Rank) -> Command) -> Result<Outcome> {
        let Job { world_size, stdin, .. } = *self;
        if world_size == 0 {
            return Err(error!(InvalidArgument, "a job of 0 ranks; it has at least 1"));
        }
        if let Some(rank) = stdin.filter(|rank| rank.0 >= world_size) {
            return Err(error!(
                InvalidArgument,
                "standard input is for rank {rank}, and the job has ranks 0 to {}",
                world_size - 1
            ));
        }
        if let Some(sets) = self.cpus.as_ref().filter(|sets| sets.len() != world_size as usize) {
            return Err(error!(InvalidArgument, "there are {} sets of CPUs for {world_size} ranks", sets.len()));
        }
        let cpus = self.cpus.as_deref().map(cpu_sets).transpose()?;
        run::run(self, cpus.as_deref(), command)
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Job { world_size, control, .. } = self;
        f.debug_struct("Job").field("world_size", world_size).field("control", control).finish_non_exhaustive()
    }
}

/// Locks a mutex, also after a panic in a thread that held it: no panic leaves the data half
/// changed.
fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
