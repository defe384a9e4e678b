//! Threads of one rank take turns.

use std::sync::{Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use crate::error::{Error, error};

/// How often a thread looks whether another thread of its rank has finished its call.
const INTERVAL: Duration = Duration::from_micros(100);

/// Takes the rank's turn; `None` if another thread was inside a call until the deadline.
pub(super) fn take<T>(turn: &Mutex<T>, deadline: Instant) -> Option<MutexGuard<'_, T>> {
    loop {
        match turn.try_lock() {
            Ok(guard) => return Some(guard),
            Err(TryLockError::Poisoned(poisoned)) => return Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) if Instant::now() >= deadline => return None,
            // Rare, and never on the way to a peer: no need for more than looking again.
            Err(TryLockError::WouldBlock) => std::thread::sleep(INTERVAL),
        }
    }
}

/// The error of a thread whose turn did not come.
pub(super) fn missed() -> Error {
    error!(DeadlineExceeded, "another thread of this rank was in a call until the deadline")
}
