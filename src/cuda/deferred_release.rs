//! Releases what a GPU may still use, on a thread of the device, so that no drop waits for a GPU
//! that is busy or never answers.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::util::{interrupt, lock};

type Release = Box<dyn FnOnce() + Send>;

/// The releases of one device. Its thread starts at the first one.
#[derive(Default)]
pub(super) struct DeferredRelease {
    jobs: Mutex<Option<Sender<Release>>>,
    pending: Arc<PendingCount>,
}

#[derive(Default)]
struct PendingCount {
    count: Mutex<usize>,
    changed: Condvar,
}

impl DeferredRelease {
    /// Adds a release. The thread makes it after the earlier ones.
    pub(super) fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = channel::<Release>();
            let pending = Arc::clone(&self.pending);
            let thread = std::thread::Builder::new().name("dcl-release".to_owned()).spawn(move || {
                let _mask = interrupt::mask();
                for job in receiver {
                    job();
                    *lock(&pending.count) -= 1;
                    pending.changed.notify_all();
                }
            });
            match thread {
                Ok(_) => *jobs = Some(sender),
                Err(error) => {
                    return crate::util::log::event!(
                        WARN,
                        "no thread to release a GPU's memory: {error}; the memory leaks"
                    );
                }
            }
        }
        if let Some(jobs) = &*jobs {
            *lock(&self.pending.count) += 1;
            // The thread receives as long as `self` exists, so this does not fail.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Waits, at most for `timeout`, until all releases so far have ended.
    pub(super) fn settle(&self, timeout: Duration) {
        let count = lock(&self.pending.count);
        let waited = self.pending.changed.wait_timeout_while(count, timeout, |count| *count > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
