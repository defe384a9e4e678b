//! The memory that ranks share, and how much of it there can be.

use std::time::Instant;

use crate::error::Result;
use crate::util::wait::{Stopped, Wait};

pub(super) mod read_only;
#[cfg(not(loom))]
mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
mod shared_memory;
mod shared_values;
pub(super) mod world_memory;

pub(super) use shared_memory::{Shareable, SharedMemory};
pub(super) use shared_values::SharedValues;

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
/// interrupted it. `keep_going` is called before each step. Returns the first error of either.
fn in_pieces(
    len: usize,
    keep_going: &dyn Fn() -> Result<()>,
    step: impl Fn(usize, usize) -> rustix::io::Result<()>,
) -> Result<rustix::io::Result<()>> {
    for start in (0..len).step_by(PIECE_BYTES) {
        loop {
            keep_going()?;
            match step(start, PIECE_BYTES.min(len - start)) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    Ok(Ok(()))
}

/// Checks that a call that allocates shared memory goes on: its deadline is not over, and the
/// interrupt hook does not end it.
pub(super) fn check_allocation(deadline: Instant) -> Result<()> {
    check_time(deadline, "allocated")
}

/// [`check_allocation`] for a call that writes shared memory.
pub(super) fn check_writing(deadline: Instant) -> Result<()> {
    check_time(deadline, "written")
}

fn check_time(deadline: Instant, done: &str) -> Result<()> {
    let stopped = |stopped: Stopped| {
        let late = format_args!("shared memory was not {done} before the deadline");
        stopped.error(format_args!("while shared memory was {done}"), late)
    };
    Wait::until(deadline).step().map(drop).map_err(stopped)
}
