//! The memory that ranks share, and how much of it there can be.

use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use crate::error::{Error, Result};
use crate::util::wait::{Stopped, Wait};

#[cfg(not(loom))]
mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
mod shared_memory;
pub(super) mod world_memory;

pub(super) use shared_memory::{Shareable, SharedMemory};

/// How long shared memory is, and how much of its beginning is allocated at once. The rest is
/// allocated when it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedMemorySize {
    pub(crate) byte_len: usize,
    pub(crate) resident: usize,
}

impl SharedMemorySize {
    /// Memory that is allocated in full.
    pub(crate) fn fully_resident(byte_len: usize) -> Self {
        SharedMemorySize { byte_len, resident: byte_len }
    }
}

/// How much is allocated in one step. A signal that interrupts a step undoes it, so steps are
/// short.
const PIECE_BYTES: usize = 2 << 20;

/// Calls `step` with the start and the length of each piece of `len` bytes, again if a signal
/// interrupted it. `keep_going` is called before each step; `refused` makes the error of a step.
fn in_pieces(
    len: usize,
    keep_going: &dyn Fn() -> Result<()>,
    step: impl Fn(usize, usize) -> rustix::io::Result<()>,
    refused: impl FnOnce(rustix::io::Errno) -> Error,
) -> Result<()> {
    for start in (0..len).step_by(PIECE_BYTES) {
        loop {
            keep_going()?;
            match step(start, PIECE_BYTES.min(len - start)) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(refused(error)),
            }
        }
    }
    Ok(())
}

/// Checks that a call goes on in which shared memory is `done`, such as "allocated": its deadline
/// is not over, and the interrupt hook does not end it.
pub(super) fn check_time(deadline: Instant, done: &str) -> Result<()> {
    let stopped = |stopped: Stopped| {
        let late = format_args!("shared memory was not {done} before the deadline");
        stopped.error(format_args!("while shared memory was {done}"), late)
    };
    Wait::until(deadline).step().map(drop).map_err(stopped)
}

/// A value in shared memory, or a slice of values, whose place is checked once. The memory stays
/// mapped as long as this.
pub(crate) struct Shared<T: ?Sized> {
    value: NonNull<T>,
    _memory: Arc<SharedMemory>,
}

// SAFETY: it is a reference to a value that threads may share, and keeps it itself.
unsafe impl<T: ?Sized + Sync> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T: ?Sized + Sync> Sync for Shared<T> {}

impl<T: Shareable> Shared<T> {
    /// The value at an offset. Panics as [`slice`](Shared::slice).
    pub(crate) fn new(memory: &Arc<SharedMemory>, offset: usize) -> Self {
        Shared { value: NonNull::from(&memory.slice(offset, 1)[0]), _memory: Arc::clone(memory) }
    }
}

impl<T: Shareable> Shared<[T]> {
    /// `count` values at an offset.
    ///
    /// # Panics
    ///
    /// If they are not within the memory, or not aligned.
    pub(crate) fn slice(memory: &Arc<SharedMemory>, offset: usize, count: usize) -> Self {
        Shared { value: NonNull::from(memory.slice(offset, count)), _memory: Arc::clone(memory) }
    }
}

impl<T: ?Sized> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: the value was borrowed from the memory, which lives as long as this.
        unsafe { self.value.as_ref() }
    }
}

/// Bytes that one rank has written and none changes any more. A process unmaps them with its last
/// reference; they are freed when no rank has them mapped.
pub(crate) struct ReadOnlyBytes {
    memory: Arc<SharedMemory>,
    byte_len: usize,
}

impl ReadOnlyBytes {
    /// The first bytes of shared memory that no rank writes any more. The kernel refuses writes
    /// from now on.
    pub(crate) fn new(memory: Arc<SharedMemory>, byte_len: usize) -> Result<Self> {
        memory.protect()?;
        Ok(ReadOnlyBytes { memory, byte_len })
    }
}

impl AsRef<[u8]> for ReadOnlyBytes {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: the memory has these bytes (`bytes` checks it), is mapped as long as `self`
        // lives, and by the contract of `new` no rank writes it.
        unsafe { std::slice::from_raw_parts(self.memory.bytes(0, self.byte_len), self.byte_len) }
    }
}
