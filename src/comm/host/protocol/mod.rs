//! How the ranks of a communicator agree on a call, wait for each other and fail together.

pub(super) mod abort_domain;
pub(super) mod caller_threads;
#[cfg(all(test, loom))]
mod model;
pub(super) mod report;
pub(super) mod running_call;
pub(super) mod segment;
pub(super) mod waiter;
