//! A lock with a deadline. The issue order lets the calls of one rank follow one another, so that
//! the lock is free, unless a callback of the library calls the library.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::cuda::check_interrupt;
use crate::error::{Result, bail};
use crate::util::interrupt;

/// How often a thread looks whether the lock is free.
const INTERVAL: Duration = Duration::from_micros(100);

/// [`take`] at the beginning of a call.
///
/// # Errors
///
/// The lock was not free until the deadline; the interrupt hook ends the wait.
pub(crate) fn enter<T>(mutex: &Mutex<T>, deadline: Instant) -> Result<MutexGuard<'_, T>> {
    loop {
        if let Some(guard) = take(mutex, interrupt::wake_by(deadline)) {
            return Ok(guard);
        }
        check_interrupt("while another thread of this rank was in a call")?;
        if Instant::now() >= deadline {
            bail!(DeadlineExceeded, "another thread of this rank was in a call until the deadline");
        }
    }
}

/// Takes the lock; `None` if it was not free until the deadline.
pub(crate) fn take<T>(mutex: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match mutex.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            // Rare, and never on the way to a peer: no need for more than looking again.
            Err(TryLockError::WouldBlock) => std::thread::sleep(INTERVAL),
        }
    }
}
