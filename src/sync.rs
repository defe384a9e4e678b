//! All atomics of the crate, and sleeping on one, so that a model checker can stand in for them.

use std::time::Duration;

pub(crate) use std::sync::atomic::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

use rustix::thread::futex;
use rustix::time::Timespec;

/// Sleeps while `word` is `expected`, until [`wake_all`], `timeout` or for no reason at all. The caller looks again.
pub(crate) fn sleep_on(word: &AtomicU32, expected: u32, timeout: Duration) {
    let timeout = Timespec {
        tv_sec: i64::try_from(timeout.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    // Every error (the word changed, the time is over, a signal came) means: look again.
    let _ = futex::wait(word, futex::Flags::empty(), expected, Some(&timeout));
}

/// Wakes all who sleep on `word`.
pub(crate) fn wake_all(word: &AtomicU32) {
    // The word is a live reference, so there is no error to have.
    let _ = futex::wake(word, futex::Flags::empty(), i32::MAX as u32);
}
