//! Calls that may never return, each on a thread of its own.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::check_interrupt;
use crate::error::{Result, bail, error};
use crate::util::slow_warning::SlowWarning;
use crate::util::{interrupt, lock};

/// A pointer, or a value that holds one, on its way to another thread.
pub(crate) struct Sent<T>(T);

// SAFETY: the caller of `new` has promised that the value may be used on another thread.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    /// # Safety
    ///
    /// Any thread may use and drop the value, and no thread uses it while the thread that takes it
    /// out does, unless the value itself allows that.
    pub(crate) unsafe fn new(value: T) -> Self {
        Sent(value)
    }

    /// The value. A method, so that a closure captures the whole and not the field.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// How many detached calls have not ended.
static DETACHED: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// Runs a call on a thread of its own, and does not wait for it.
pub(crate) fn detach(what: &'static str, call: impl FnOnce() + Send + 'static) {
    *lock(&DETACHED) += 1;
    let counted = move || {
        let _mask = interrupt::mask();
        call();
        leave();
    };
    if let Err(error) = std::thread::Builder::new().name("dcl-helper".to_owned()).spawn(counted) {
        leave();
        crate::util::log::event!(WARN, "no thread for {what}: {error}; it is left out");
    }
}

fn leave() {
    *lock(&DETACHED) -= 1;
    CHANGED.notify_all();
}

/// Waits, at most for `timeout`, until all detached calls have ended: before the process ends.
pub(crate) fn settle(timeout: Duration) {
    let waited = CHANGED.wait_timeout_while(lock(&DETACHED), timeout, |detached| *detached > 0);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

/// Runs a call on a thread of its own, and waits for it until the deadline, or until the interrupt
/// hook ends the wait. After that the thread goes on, and keeps what the call owns.
pub(crate) fn bounded<T: Send + 'static>(
    what: &str,
    deadline: Instant,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (done, result) = channel();
    std::thread::Builder::new()
        .name("dcl-helper".to_owned())
        .spawn(move || {
            let _mask = interrupt::mask();
            // After the deadline there is no receiver.
            let _ = done.send(call());
        })
        .map_err(|e| error!(System, "no thread for {what}").with_source(e))?;
    let mut slow = SlowWarning::new();
    loop {
        let next_look = interrupt::wake_by(slow.next_look(deadline));
        match result.recv_timeout(next_look.saturating_duration_since(Instant::now())) {
            Ok(value) => return Ok(value),
            Err(RecvTimeoutError::Timeout) if Instant::now() < deadline => {
                check_interrupt(format_args!("while {what} had not returned"))?;
                slow.look(|seconds| warning(what, seconds));
            }
            Err(RecvTimeoutError::Timeout) => bail!(DeadlineExceeded, "{what} has not returned by the deadline"),
            Err(RecvTimeoutError::Disconnected) => bail!(System, "{what} panicked"),
        }
    }
}

/// The text of a warning about a long wait.
pub(super) fn warning(what: &str, seconds: u64) -> String {
    format!(
        "{what} has not ended after {seconds} s; perhaps another rank has not come, of which CUDA and NCCL say nothing"
    )
}
