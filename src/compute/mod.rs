//! Arithmetic and rearrangement of elements on the host, for collectives and for layers. These
//! results define what is right: other backends are compared with them. This module knows nothing
//! of ranks or networks.

mod cast;
mod copy;
mod element_wise;
mod float;
mod float_env;
mod gather;
mod operand;
mod reduce;
mod vector;

pub(crate) use cast::cast;
pub(crate) use copy::{copy, copy_past_cache};
pub(crate) use element_wise::element_wise;
pub(crate) use gather::{copy_rows, gather};
pub(crate) use reduce::{Stored, narrow, reduce, reduce_rounded, round};
