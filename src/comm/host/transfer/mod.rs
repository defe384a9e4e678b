//! The three ways in which the elements of a collective go from rank to rank.

mod direct;
pub(super) mod inline;
mod staged;
