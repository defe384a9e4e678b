//! Letting go of what a GPU may still use: by a thread of the device's, one thing after the other, so that no drop waits for a GPU that
//! is busy or never answers.

use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use crate::util::lock;

type Job = Box<dyn FnOnce() + Send>;

/// The thread, once there is something to let go of, and how much there is.
#[derive(Default)]
pub(super) struct DeferredRelease {
    jobs: Mutex<Option<Sender<Job>>>,
    pending: Arc<Pending>,
}

#[derive(Default)]
struct Pending {
    count: Mutex<usize>,
    changed: Condvar,
}

impl DeferredRelease {
    /// Does it after what was given before, and waits for nothing.
    pub(super) fn push(&self, job: impl FnOnce() + Send + 'static) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = channel::<Job>();
            let pending = Arc::clone(&self.pending);
            let thread = std::thread::Builder::new().name("dcl-release".to_owned()).spawn(move || {
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
                        "no thread to let go of a GPU's memory: {error}; it is left behind"
                    );
                }
            }
        }
        if let Some(jobs) = &*jobs {
            *lock(&self.pending.count) += 1;
            // The thread lives as long as the process.
            let _ = jobs.send(Box::new(job));
        }
    }

    /// Waits a while until everything given so far has been let go of.
    pub(super) fn settle(&self, timeout: Duration) {
        let count = lock(&self.pending.count);
        let waited = self.pending.changed.wait_timeout_while(count, timeout, |count| *count > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}
