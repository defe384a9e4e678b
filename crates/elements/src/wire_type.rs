//! The type in which elements of float32 travel between ranks.

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::numbered;

/// The transport type of a collective on float32 tensors: its elements travel in half of the bytes.
/// It is an option of eager calls (`Communicator::with_wire_type`) and of layers
/// (`DistCollectiveLayer::set_wire_type`).
/// `all_reduce`, `reduce`, `reduce_scatter`, `broadcast` and `all_gather` have one. Input and
/// output stay float32.
///
/// # Meaning
///
/// - Each rank's contribution, the rank's own too, is rounded once to the transport type, to
///   nearest even. A NaN becomes the positive quiet NaN.
/// - Reductions accumulate the rounded contributions in float32 in rank order. The result is not
///   rounded again: `all_reduce` and `reduce` give float32 sums.
/// - `all_gather` and `broadcast` give the rounded elements on every rank: a rank's own block and
///   the root's output too, so that all ranks have the same bits. In place, the root's buffer
///   changes; a root whose output is another tensor keeps its input.
/// - All ranks have the same bits, on every backend, whatever the determinism.
/// - Among one rank nothing is rounded.
///
/// # Errors of the result
///
/// The sum of `x_r` differs from the exact sum by at most `(u + n 2^-23) Σ|x_r| + n t`, if no
/// partial sum exceeds float32:
///
/// | type | u | t | largest \|x\| |
/// |---|---|---|---|
/// | float16 | 2^-11 | 2^-25 | below 65520 |
/// | bfloat16 | 2^-8 | 2^-134 | below 3.396e38 |
///
/// A moved element differs by at most `u |x| + t`. A larger magnitude overflows to infinity. So
/// float16 is for values whose range is known, and bfloat16 has the range of float32.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum WireType {
    /// IEEE 754 half precision.
    Float16 = 1,
    /// The upper half of a float32.
    Bfloat16 = 7,
}

numbered!(WireType or none, "a transport type": Float16 "float16", Bfloat16 "bfloat16");
numbered!(text WireType, "a transport type");

impl WireType {
    /// The number of "no transport type": elements travel as they are.
    pub const NONE_NUMBER: i32 = 0;

    /// The element type.
    #[inline]
    pub const fn data_type(self) -> DataType {
        match self {
            WireType::Float16 => DataType::Float16,
            WireType::Bfloat16 => DataType::Bfloat16,
        }
    }
}
