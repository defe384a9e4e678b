//! The four ways in which the elements of a collective move from rank to rank. Every rank finds the
//! same one (invariant 6).

mod direct;
pub(super) mod eager;
mod elements;
pub(super) mod inline;
mod staged;
