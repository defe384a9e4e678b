//! What every module may use: it knows nothing of collectives.

pub(crate) mod descriptors;
pub(crate) mod fork;
pub(crate) mod log;
pub(crate) mod settings;
pub(crate) mod slow_warning;
pub(crate) mod text;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks a mutex whose data every panic leaves whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of a panic, as far as it has one.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// When a wait that begins now ends.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now.checked_add(timeout).unwrap_or(now + FAR)
}
