//! Calls that may never return, on threads of their own.

use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Instant;

use crate::error::{Result, bail, error};

/// A value that a helper thread may use although it is a pointer or holds one.
pub(crate) struct Sent<T>(pub(crate) T);

// SAFETY: handles of CUDA and NCCL may be used from any thread; whoever sends one sees to it that no two use it at once.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    /// The value. A method, so that a closure takes the whole and not the field.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// Runs a call on a thread of its own, and waits for nothing.
pub(crate) fn detach(what: &'static str, call: impl FnOnce() + Send + 'static) {
    if let Err(error) = std::thread::Builder::new().name("dcl-helper".to_owned()).spawn(call) {
        tracing::warn!("no thread for {what}: {error}; it is left out");
    }
}

/// Runs a call on a thread of its own and waits for it until the deadline. Afterwards the thread is left to itself, with all that
/// the call owns.
pub(crate) fn bounded<T: Send + 'static>(
    what: &str,
    deadline: Instant,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    let (done, result) = channel();
    std::thread::Builder::new()
        .name("dcl-helper".to_owned())
        .spawn(move || {
            // Nobody may be waiting any more.
            let _ = done.send(call());
        })
        .map_err(|e| error!(System, "no thread for {what}").with_source(e))?;
    match result.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        Ok(value) => Ok(value),
        Err(RecvTimeoutError::Timeout) => bail!(DeadlineExceeded, "{what} has not returned by the deadline"),
        Err(RecvTimeoutError::Disconnected) => bail!(System, "{what} panicked"),
    }
}
