//! Functions that every module may use. They know nothing of collectives.

pub(crate) mod callback;
pub(crate) mod descriptors;
pub(crate) mod fork;
pub(crate) mod interrupt;
pub(crate) mod log;
pub(crate) mod settings;
pub(crate) mod slow_warning;
pub(crate) mod text;

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Locks a mutex, also after a panic in a thread that held it. For data that a panic cannot leave
/// half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// The deadline of a wait that begins now. A timeout that `Instant` cannot hold means a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    let now = Instant::now();
    const FAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    now.checked_add(timeout).unwrap_or(now + FAR)
}

#[test]
fn the_longest_timeout_is_a_year() {
    assert!(deadline_after(Duration::MAX) > Instant::now() + Duration::from_secs(60 * 60 * 24 * 364));
}
