//! How the ranks of a communicator agree on a call, wait for each other and fail together.
//! docs/src/internals.md lists the invariants, which comments here cite by their numbers.

pub(super) mod abort_domain;
pub(super) mod access_guard;
mod asymmetric_fence;
mod call_log;
pub(super) mod call_logs;
pub(super) mod call_progress;
pub(super) mod call_protocol;
mod caller_threads;
pub(super) mod doorbell;
#[cfg(all(test, loom))]
pub(super) mod model;
mod prefetch;
mod processors;
pub(super) mod record;
mod report;
pub(super) mod ring;
pub(super) mod segment;
pub(super) mod slot;
mod stage_stores;
pub(super) mod waiter;
