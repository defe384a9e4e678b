//! The memory that ranks share, and how much of it there can be.

pub(super) mod arena;
pub(super) mod broker;
pub(super) mod free_memory;
#[cfg(not(loom))]
pub(super) mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
pub(super) mod shared_memory;
