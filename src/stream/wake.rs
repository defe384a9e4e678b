//! Wakes tasks of `async` programs that wait for work on a GPU. Nothing there calls back in every
//! case, so a thread asks.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::task::Waker;

use crate::util::lock;
use crate::util::poller::Poller;
use crate::util::wait::POLL;

/// The task that waits. The thread takes the waker when the work has ended, and forgets work whose
/// slot is dropped.
pub(super) type WakeSlot = Arc<Mutex<Option<Waker>>>;

static WAKING: Poller = Poller::new("dcl-wake", POLL);

/// A slot whose waker is woken when `has_ended` is true, which then stays true.
///
/// # Errors
///
/// The operating system gives no thread.
pub(super) fn when(has_ended: impl Fn() -> bool + Send + 'static) -> io::Result<WakeSlot> {
    let slot = WakeSlot::default();
    let weak = Arc::downgrade(&slot);
    WAKING.add(move || {
        let Some(slot) = weak.upgrade() else { return false };
        // If the question panics, the task asks itself.
        let has_ended = catch_unwind(AssertUnwindSafe(&has_ended)).unwrap_or(true);
        if has_ended {
            let waker = lock(&slot).take();
            waker.into_iter().for_each(Waker::wake);
        }
        !has_ended
    })?;
    Ok(slot)
}
