//! The memory that ranks share, and how much of it there can be.

use std::time::Instant;

use crate::error::{Result, bail};

pub(super) mod arena;
pub(super) mod broker;
pub(super) mod free_memory;
#[cfg(not(loom))]
pub(super) mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
pub(super) mod shared_memory;

/// Checks that the deadline of a call that allocates shared memory is not over.
pub(super) fn check_allocation_deadline(deadline: Instant) -> Result<()> {
    if Instant::now() < deadline {
        return Ok(());
    }
    bail!(DeadlineExceeded, "shared memory was not allocated before the deadline");
}
