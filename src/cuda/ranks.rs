//! The ranks of this process that share a GPU, and what must not run while there are several.
//!
//! Some calls wait for all work of the process on a GPU, and hold back what its threads enqueue
//! there meanwhile: cuMemFree, cuMemFreeHost, cuModuleLoadData (seen with driver 580), and
//! ncclCommDestroy, which calls cudaFreeHost (commFree in `init.cc` of NCCL 2.30.7). If the work
//! waits for another rank, and that rank is a thread of the process, the call waits forever. So
//! what one of several ranks drops is kept until the others have gone.

use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Device;
use crate::util::lock;

/// How long a second rank waits for what runs because there was one.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The ranks of this process on one GPU.
#[derive(Default)]
pub(super) struct RanksOfGpu {
    state: Mutex<RanksState>,
    ended: Condvar,
}

#[derive(Default)]
struct RanksState {
    count: usize,
    waiting: Vec<Box<dyn FnOnce() + Send>>,
    /// Jobs that have begun and not ended.
    running: usize,
}

impl RanksOfGpu {
    pub(super) fn are_several(&self) -> bool {
        lock(&self.state).count > 1
    }
}

/// A rank of this process. It is there before the rank enqueues work.
pub(crate) struct RankOnGpu(Arc<Device>);

impl RankOnGpu {
    pub(crate) fn new(device: &Arc<Device>) -> Self {
        let ranks = &device.ranks;
        let is_busy = |state: &mut RanksState| state.count > 0 && state.running > 0;
        let waited = ranks.ended.wait_timeout_while(lock(&ranks.state), SETTLE_TIMEOUT, is_busy);
        waited.unwrap_or_else(PoisonError::into_inner).0.count += 1;
        RankOnGpu(Arc::clone(device))
    }
}

impl Drop for RankOnGpu {
    fn drop(&mut self) {
        if !self.0.is_here() {
            return;
        }
        let mut state = lock(&self.0.ranks.state);
        state.count -= 1;
        if state.count != 1 {
            return;
        }
        let jobs = std::mem::take(&mut state.waiting);
        state.running += jobs.len();
        drop(state);
        jobs.into_iter().for_each(|job| job());
        self.0.free_spare_memory();
    }
}

impl Device {
    /// Runs a job on the calling thread now, or on another one when there are not several ranks any
    /// more. The job drops its argument when it has ended, on whatever thread.
    pub(crate) fn when_alone(self: &Arc<Self>, job: impl FnOnce(Ended) + Send + 'static) {
        let ended = Ended(Arc::clone(self));
        let mut state = lock(&self.ranks.state);
        if state.count > 1 {
            return state.waiting.push(Box::new(|| job(ended)));
        }
        state.running += 1;
        drop(state);
        job(ended);
    }
}

/// Its drop says that a job has ended.
pub(crate) struct Ended(Arc<Device>);

impl Drop for Ended {
    fn drop(&mut self) {
        let ranks = &self.0.ranks;
        let mut state = lock(&ranks.state);
        state.running = state.running.saturating_sub(1);
        drop(state);
        ranks.ended.notify_all();
    }
}
