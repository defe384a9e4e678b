//! Arithmetic and rearrangement of elements on the host, for `DistCollective`, `Cast` and
//! `Shuffle`. These results define what is right: other backends are compared with them. This
//! module knows nothing of ranks or networks.

mod cast;
mod copy;
mod float;
mod float_env;
mod operand;
mod reduce;
mod transpose;
mod vector;

pub(crate) use cast::cast;
pub(crate) use copy::{copy, copy_past_cache};
pub(crate) use reduce::{Stored, narrow, reduce, reduce_rounded, round};
pub(crate) use transpose::transpose;
