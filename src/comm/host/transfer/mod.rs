//! The four ways in which the elements of a collective move from rank to rank. Every rank finds the
//! same one (invariant 6).

mod copies;
mod direct;
mod elements;
pub(super) mod refusal;
pub(super) mod running_call;
mod staged;
mod staged_all_reduce;
