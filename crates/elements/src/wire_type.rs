//! The type in which elements of float32 travel between ranks.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::error::{Error, Result, error};

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

impl WireType {
    /// Every transport type, in the order of the numbers.
    pub const ALL: [WireType; 2] = [WireType::Float16, WireType::Bfloat16];

    /// The number of "no transport type": elements travel as they are.
    pub const NONE_NUMBER: i32 = 0;

    /// The element type.
    pub const fn data_type(self) -> DataType {
        match self {
            WireType::Float16 => DataType::Float16,
            WireType::Bfloat16 => DataType::Bfloat16,
        }
    }

    /// The name in text: `float16`.
    pub const fn name(self) -> &'static str {
        self.data_type().name()
    }

    /// The number in C: that of the element type.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The transport type with this number; 0 is none.
    ///
    /// # Errors
    ///
    /// A number that is not 0, 1 or 7.
    pub fn from_number(number: i32) -> Result<Option<Self>> {
        if number == Self::NONE_NUMBER {
            return Ok(None);
        }
        Self::ALL.into_iter().find(|wire| wire.number() == number).map(Some).ok_or_else(|| {
            error!(
                InvalidArgument,
                "{number} is not the number of a transport type; they are 1 (float16), 7 (bfloat16), and 0 for none"
            )
        })
    }
}

impl fmt::Display for WireType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for WireType {
    type Err = Error;

    /// Reads a name in upper or lower case.
    fn from_str(text: &str) -> Result<Self> {
        let name = text.to_ascii_lowercase();
        Self::ALL
            .into_iter()
            .find(|wire| wire.name() == name)
            .ok_or_else(|| error!(InvalidArgument, "{text:?} is not a transport type; they are float16, bfloat16"))
    }
}
