//! Communicators between processes.

use std::sync::Arc;
use std::time::Duration;

use super::{Communicator, DEFAULT_TIMEOUT, host};
use crate::error::{Result, bail};
use crate::handshake::Participant;
use crate::rank::Rank;
use crate::util::deadline_after;
use crate::util::settings::timeout_or;

/// The most ranks of a communicator on the host.
pub(super) const MAX_RANKS: u32 = 1024;

/// Makes a communicator between processes of one machine and one user, each with one rank or
/// several.
///
/// Processes find each other by the job's name. They must give the same one, and no other job of
/// the user may have it at the same time. Nothing is left in the file system, and nothing survives
/// a crash. If a process dies, the ranks that wait for it return an error at once. Rank 0's process
/// raises its soft limit of open files if the number of ranks needs that.
///
/// ```no_run
/// use distcollective::{Communicator, Rank, ReduceOperation};
///
/// let rank = std::env::var("RANK").unwrap().parse().unwrap();
/// let communicator = Communicator::builder().job("serve-1").world_size(4).rank(Rank(rank)).meet()?.remove(0);
/// communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "there is no communicator until `meet` is called"]
pub struct CommunicatorBuilder {
    job: String,
    world_size: u32,
    first_rank: Rank,
    local_ranks: u32,
    timeout: Option<Duration>,
}

impl Default for CommunicatorBuilder {
    fn default() -> Self {
        CommunicatorBuilder { job: String::new(), world_size: 1, first_rank: Rank(0), local_ranks: 1, timeout: None }
    }
}

impl CommunicatorBuilder {
    /// The job's name.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = name.into();
        self
    }

    /// The number of ranks in all processes together; 1 unless set.
    pub fn world_size(mut self, world_size: u32) -> Self {
        self.world_size = world_size;
        self
    }

    /// This process's rank, or the first of them; 0 unless set.
    pub fn rank(mut self, rank: Rank) -> Self {
        self.first_rank = rank;
        self
    }

    /// How many ranks this process has, from [`rank`](Self::rank) on; 1 unless set.
    pub fn local_ranks(mut self, count: u32) -> Self {
        self.local_ranks = count;
        self
    }

    /// How long to wait for the others, now and in each call; see [`Communicator::with_timeout`].
    /// Unless set, what `DCL_TIMEOUT` says, or 600 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Meets the other processes. Returns this process's ranks in order, each to be moved to its
    /// thread. Collective between processes.
    ///
    /// # Errors
    ///
    /// - Numbers that do not fit, or no name.
    /// - Another job of this user, or another user, has the same name.
    /// - Processes do not come before the deadline.
    /// - A process expects another number of ranks, or has a rank that is there already. Each
    ///   process that has come gets the error at once.
    /// - There are no descriptors or no memory.
    /// - This process's user is the overflow user (65534), and there are other processes.
    pub fn meet(self) -> Result<Vec<Communicator>> {
        if self.job.is_empty() {
            bail!(InvalidArgument, "a job has a name");
        }
        if self.world_size == 0 || self.world_size > MAX_RANKS {
            bail!(InvalidArgument, "world_size is {}; between processes it is 1 to {MAX_RANKS}", self.world_size);
        }
        let timeout = match self.timeout {
            Some(timeout) => timeout,
            None => timeout_or(DEFAULT_TIMEOUT)?,
        };
        let backends = host::between_processes(&self.participant(timeout))?;
        Ok(backends.into_iter().map(|backend| Communicator::new(Arc::new(backend), timeout)).collect())
    }

    fn participant(&self, timeout: Duration) -> Participant<'_> {
        Participant {
            job: &self.job,
            secret: None,
            world_size: self.world_size,
            first_rank: self.first_rank.0,
            rank_count: self.local_ranks,
            deadline: deadline_after(timeout),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn the_longest_timeout_is_no_shorter_than_the_default() {
        let deadline = Communicator::builder().participant(Duration::MAX).deadline;
        assert!(deadline > Instant::now() + 100 * DEFAULT_TIMEOUT);
    }
}
