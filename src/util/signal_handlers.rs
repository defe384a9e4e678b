//! Keeping the program's signal handlers while a library is loaded or initialized that installs its
//! own, as UCX does.

use std::ptr::{null, null_mut};

/// The signals for which UCX and Open MPI install handlers.
const SIGNALS: [i32; 6] = [libc::SIGILL, libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGSEGV, libc::SIGHUP];

/// Makes a call, and leaves the program's signal handlers as they were before it.
pub(crate) fn keep<T>(call: impl FnOnce() -> T) -> T {
    // SAFETY: a structure of zeros is a value of it, and `sigaction` only reads and writes these.
    let mut handlers: [libc::sigaction; SIGNALS.len()] = unsafe { std::mem::zeroed() };
    for (signal, handler) in SIGNALS.into_iter().zip(&mut handlers) {
        // SAFETY: as above.
        unsafe { libc::sigaction(signal, null(), handler) };
    }
    let result = call();
    for (signal, handler) in SIGNALS.into_iter().zip(&handlers) {
        // SAFETY: as above.
        unsafe { libc::sigaction(signal, handler, null_mut()) };
    }
    result
}
