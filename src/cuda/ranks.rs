//! The ranks of this process that use GPUs, and what must not run while there are several.
//!
//! Some calls wait for all work of the process on a GPU, and hold back what its threads enqueue
//! meanwhile: cuMemFree, cuMemFreeHost, cuModuleLoadData (seen with driver 580), and
//! ncclCommDestroy, which calls cudaFreeHost (commFree in `init.cc` of NCCL 2.30.7). If the work
//! waits for another rank, and that rank is a thread of the process, the call waits forever. So a
//! process of several ranks keeps what one rank drops until the others have gone.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::util::lock;

/// How long a new rank waits for what runs now that the earlier ones have gone.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

type Job = Box<dyn FnOnce() + Send>;

static RANKS: Mutex<Ranks> = Mutex::new(Ranks { count: 0, waiting: Vec::new(), running: 0 });
static ENDED: Condvar = Condvar::new();

struct Ranks {
    count: usize,
    waiting: Vec<Job>,
    /// Jobs that have begun and not ended.
    running: usize,
}

/// A rank of this process that uses a GPU. It is there before the rank enqueues work.
pub(crate) struct RankOfProcess(());

impl RankOfProcess {
    pub(crate) fn new() -> Self {
        let is_busy = |ranks: &mut Ranks| ranks.running > 0;
        let waited = ENDED.wait_timeout_while(lock(&RANKS), SETTLE_TIMEOUT, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.count += 1;
        RankOfProcess(())
    }

    /// Whether this process has several.
    pub(super) fn are_several() -> bool {
        lock(&RANKS).count > 1
    }

    /// Runs a job on the calling thread now, or on another one when there are not several ranks any
    /// more. The job calls its argument when it has ended, on whatever thread.
    pub(crate) fn when_alone(job: impl FnOnce(Ended) + Send + 'static) {
        let mut ranks = lock(&RANKS);
        if ranks.count > 1 {
            return ranks.waiting.push(Box::new(|| job(Ended(()))));
        }
        ranks.running += 1;
        drop(ranks);
        job(Ended(()));
    }
}

impl Drop for RankOfProcess {
    fn drop(&mut self) {
        let mut ranks = lock(&RANKS);
        ranks.count -= 1;
        if ranks.count != 1 {
            return;
        }
        let jobs = std::mem::take(&mut ranks.waiting);
        ranks.running += jobs.len();
        drop(ranks);
        jobs.into_iter().for_each(|job| job());
        super::device::free_spare_memory();
    }
}

/// Its drop says that a job has ended.
pub(crate) struct Ended(());

impl Drop for Ended {
    fn drop(&mut self) {
        lock(&RANKS).running -= 1;
        ENDED.notify_all();
    }
}
