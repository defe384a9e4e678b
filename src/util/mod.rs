//! Functions that every module may use. They know nothing of collectives.

pub(crate) mod bytes;
pub(crate) mod callback;
pub(crate) mod descriptors;
pub(crate) mod fork;
pub(crate) mod free_memory;
pub(crate) mod interrupt;
pub(crate) mod log;
pub(crate) mod machine;
pub(crate) mod new_file;
pub(crate) mod poller;
pub(crate) mod settings;
pub(crate) mod signal_handlers;
pub(crate) mod text;
pub(crate) mod wait;

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::error::Error;

/// Locks a mutex, also after a panic in a thread that held it. For data that a panic cannot leave
/// half changed.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Adds to an error the system call that failed and the system's text: `no shared memory of 4096
/// bytes: fallocate: Cannot allocate memory (os error 12)`.
pub(crate) fn caused_by(error: Error, call: &str, cause: impl Into<io::Error>) -> Error {
    let cause = cause.into();
    error.followed_by(&format!(": {call}: {cause}")).with_source(cause)
}

/// The text of a panic.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// A number that no other thread of this process has; it is not 0.
pub(crate) fn thread_number() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = 1 + THREADS.fetch_add(1, Ordering::Relaxed));
    // The local is gone while the thread ends; such a thread makes no further call.
    NUMBER.try_with(|number| *number).unwrap_or(usize::MAX)
}

/// What the clock of [`Instant`] shows, which the processes of a machine share.
pub(crate) fn monotonic() -> Duration {
    Duration::try_from(clock_gettime(ClockId::Monotonic)).unwrap_or_default()
}

/// The deadline of a wait that begins now. A timeout that `Instant` cannot hold means a year.
pub(crate) fn deadline_after(timeout: Duration) -> Instant {
    const YEAR: Duration = Duration::from_secs(60 * 60 * 24 * 365);
    let now = Instant::now();
    now.checked_add(timeout).unwrap_or(now + YEAR)
}

/// A moment of the process, which [`number_of`] counts from.
fn epoch() -> Instant {
    static EPOCH: OnceLock<Instant> = OnceLock::new();
    *EPOCH.get_or_init(Instant::now)
}

/// A moment as a number for an atomic, which grows with it, and is not 0: in nanoseconds.
pub(crate) fn number_of(moment: Instant) -> u64 {
    u64::try_from(moment.saturating_duration_since(epoch()).as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// The moment that has a number.
pub(crate) fn moment_of(number: u64) -> Instant {
    epoch().checked_add(Duration::from_nanos(number)).unwrap_or_else(|| deadline_after(Duration::MAX))
}

/// [`deadline_after`] for each small call: a long timeout is counted in ticks of the kernel's
/// clock, which takes a fifth of the time. The deadline may be a few ticks early or late; one tick
/// is at most 10 ms.
pub(crate) fn rough_deadline_after(timeout: Duration) -> Instant {
    /// A shorter timeout is exact.
    const LONG: Duration = Duration::from_secs(10);
    /// A time on both clocks.
    static BEGIN: OnceLock<(Duration, Instant)> = OnceLock::new();
    if timeout < LONG {
        return deadline_after(timeout);
    }
    let ticked = || Duration::try_from(clock_gettime(ClockId::MonotonicCoarse)).unwrap_or_default();
    let (ticked_at_begin, begin) = BEGIN.get_or_init(|| {
        loop {
            let (before, now) = (ticked(), Instant::now());
            // This thread may have slept between the two.
            if ticked() == before {
                return (before, now);
            }
        }
    });
    let since_begin = ticked().saturating_sub(*ticked_at_begin).saturating_add(timeout);
    begin.checked_add(since_begin).unwrap_or_else(|| deadline_after(timeout))
}

#[test]
fn an_error_of_the_system_says_which_call_and_why_and_keeps_its_source() {
    use std::error::Error as _;
    let error = caused_by(crate::error::error!(System, "no memory"), "fallocate", rustix::io::Errno::NOMEM);
    assert_eq!(error.to_string(), "no memory: fallocate: Cannot allocate memory (os error 12)");
    assert_eq!(error.source().expect("a source").to_string(), "Cannot allocate memory (os error 12)");
}

#[test]
fn the_longest_timeout_is_a_year() {
    const ALMOST: Duration = Duration::from_secs(60 * 60 * 24 * 364);
    assert!(deadline_after(Duration::MAX) > Instant::now() + ALMOST);
    assert!(rough_deadline_after(Duration::MAX) > Instant::now() + ALMOST);
}

#[test]
fn a_rough_deadline_is_near_the_exact_one_and_exact_if_it_is_near() {
    for (seconds, most) in [(1, Duration::ZERO), (3600, Duration::from_secs(1)), (u64::MAX, Duration::ZERO)] {
        let timeout = Duration::from_secs(seconds);
        // The kernel's clock ticks meanwhile.
        for _ in 0..20_000 {
            let before = deadline_after(timeout);
            let rough = rough_deadline_after(timeout);
            let after = deadline_after(timeout);
            assert!(rough + most >= before && rough <= after + most, "{before:?} {rough:?} {after:?}");
        }
    }
}
