//! Releases what a GPU may still use, on a thread of the device, so that no drop waits for a GPU
//! that is busy or never answers.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::Device;
use crate::error::{Result, error};
use crate::util::{interrupt, lock, panic_message};

struct Release {
    what: &'static str,
    release: Box<dyn FnOnce() -> Result<()> + Send>,
}

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
    /// Adds a release. The thread makes it after the earlier ones, when all work is done that was
    /// enqueued before on streams that the library knows. It does so in RELAXED mode, so that it
    /// invalidates no capture.
    pub(super) fn push(
        &self,
        device: &Arc<Device>,
        what: &'static str,
        release: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        let mut jobs = lock(&self.jobs);
        if jobs.is_none() {
            let (sender, receiver) = channel::<Release>();
            let (device, pending) = (Arc::clone(device), Arc::clone(&self.pending));
            let thread = std::thread::Builder::new()
                .name("dcl-release".to_owned())
                .spawn(move || serve(&device, &receiver, &pending));
            match thread {
                Ok(_) => *jobs = Some(sender),
                Err(error) => {
                    std::mem::forget(release);
                    return crate::util::log::event!(
                        WARN,
                        "no thread to release a GPU's memory: {error}; the memory leaks"
                    );
                }
            }
        }
        if let Some(jobs) = &*jobs {
            *lock(&self.pending.count) += 1;
            // The thread receives as long as the process lives, so this does not fail.
            let _ = jobs.send(Release { what, release: Box::new(release) });
        }
    }

    /// Waits, at most for `timeout`, until all releases so far have ended.
    pub(super) fn settle(&self, timeout: Duration) {
        let count = lock(&self.pending.count);
        let waited = self.pending.changed.wait_timeout_while(count, timeout, |count| *count > 0);
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }
}

/// Makes releases. Those that have come meanwhile wait for the GPU together.
fn serve(device: &Arc<Device>, receiver: &Receiver<Release>, pending: &PendingCount) {
    let _mask = interrupt::mask();
    while let Ok(first) = receiver.recv() {
        let releases: Vec<Release> = std::iter::once(first).chain(receiver.try_iter()).collect();
        let count = releases.len();
        let entered = device.enter_relaxed();
        // Work that never ends uses its memory for ever.
        let finished = entered.as_ref().map_err(Clone::clone).and_then(|_| device.finish_enqueued());
        for Release { what, release } in releases {
            let released = match &finished {
                Ok(()) => catch_unwind(AssertUnwindSafe(release))
                    .unwrap_or_else(|panic| Err(error!(System, "a drop panicked: {}", panic_message(panic.as_ref())))),
                Err(error) => {
                    std::mem::forget(release);
                    Err(error.clone())
                }
            };
            if let Err(error) = released {
                crate::util::log::event!(WARN, "{what}: {error}; it is left behind");
            }
        }
        // What ends the process waits until the thread has come out of the driver.
        drop(entered);
        *lock(&pending.count) -= count;
        pending.changed.notify_all();
    }
}
