//! A lock with a deadline. The issue order lets the calls of one rank follow one another, so that
//! the lock is free, unless a callback of the library calls the library, or a thread that waits for
//! a message looks at the rank's calls for a moment.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::Instant;

use crate::cuda::gpu_wait;
use crate::error::Result;

/// Takes the lock at the beginning of a call.
///
/// # Errors
///
/// The lock was not free until the deadline; the interrupt hook ends the wait.
pub(crate) fn enter<T>(mutex: &Mutex<T>, deadline: Instant) -> Result<MutexGuard<'_, T>> {
    if let Some(guard) = (0..100).find_map(|_| try_enter(mutex)) {
        return Ok(guard);
    }
    let mut wait = gpu_wait(deadline);
    loop {
        if let Some(guard) = try_enter(mutex) {
            return Ok(guard);
        }
        // Rare, and never on the way to a peer: no need for more than looking again.
        wait.pause().map_err(|stopped| {
            let late = "another thread of this rank was in a call until the deadline";
            stopped.error("while another thread of this rank was in a call", late)
        })?;
    }
}

/// Takes the lock if it is free.
pub(crate) fn try_enter<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    match mutex.try_lock() {
        Ok(guard) => Some(guard),
        Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
        Err(TryLockError::WouldBlock) => None,
    }
}
