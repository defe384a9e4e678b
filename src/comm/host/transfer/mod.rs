//! The four ways in which the elements of a collective move from rank to rank. Every rank finds the
//! same one (invariant 6).

mod direct;
mod eager;
mod elements;
mod inline;
pub(super) mod running_call;
mod staged;
