//! The reductions, with TensorRT's names and numbers where TensorRT has them.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::error::{Error, Result, error};
use crate::numbered;

/// How elements are reduced. The numbers are those of TensorRT's `ReduceOperation`. Its `kNONE` (5)
/// is `None` of an `Option<ReduceOperation>` here. Reductions of bits are not TensorRT's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum ReduceOperation {
    /// The sum. Integers wrap. Of bool: or.
    Sum = 0,
    /// The product. Integers wrap. Of bool: and.
    Prod = 1,
    /// The maximum. A number is preferred to a NaN, and -0 is below +0. Of bool: or.
    Max = 2,
    /// The minimum. A number is preferred to a NaN, and -0 is below +0. Of bool: and.
    Min = 3,
    /// The sum divided by the number of ranks. Integers divide the wrapped sum and truncate. bool
    /// has none.
    Avg = 4,
    /// The and of bits: of integers and bool, on the host.
    Band = 101,
    /// The or of bits: of integers and bool, on the host.
    Bor = 102,
    /// The exclusive or of bits: of integers and bool, on the host.
    Bxor = 103,
}

numbered!(ReduceOperation or none, "a reduce operation":
    Sum "sum", Prod "prod", Max "max", Min "min", Avg "avg", Band "band", Bor "bor", Bxor "bxor");

impl ReduceOperation {
    /// TensorRT's number of "no reduction", for operations that do not reduce.
    pub const NONE_NUMBER: i32 = 5;

    /// Those that a layer of a network can have: TensorRT's.
    pub const LAYER_OPERATIONS: [ReduceOperation; 5] = match ReduceOperation::ALL.first_chunk() {
        Some(operations) => *operations,
        None => unreachable!(),
    };

    /// Whether it is of bits.
    pub const fn is_bitwise(self) -> bool {
        matches!(self, ReduceOperation::Band | ReduceOperation::Bor | ReduceOperation::Bxor)
    }

    /// Whether elements of the type have this reduction: bool has no average, and floats have none
    /// of bits.
    pub fn applies_to(self, data_type: DataType) -> bool {
        match self {
            ReduceOperation::Avg => data_type != DataType::Bool,
            _ => !self.is_bitwise() || !data_type.is_float(),
        }
    }
}

impl FromStr for ReduceOperation {
    type Err = Error;

    /// Reads a name in upper or lower case: one of this crate's, or one of torch's `ReduceOp`.
    /// `product` is [`Prod`](Self::Prod).
    ///
    /// # Errors
    ///
    /// - `Unsupported`: torch's `premul_sum`.
    /// - `InvalidArgument`: any other text.
    fn from_str(text: &str) -> Result<Self> {
        const ACCEPTED: &str = "they are sum, prod (or product), max, min, avg, band, bor, bxor";
        let name = text.to_ascii_lowercase();
        let name = if name == "product" { ReduceOperation::Prod.name() } else { &name };
        if let Some(reduce_op) = Self::with_name(name) {
            return Ok(reduce_op);
        }
        Err(match name {
            "premul_sum" => error!(Unsupported, "reduce operation {text:?} is not offered; {ACCEPTED}"),
            _ => error!(InvalidArgument, "{text:?} is not a reduce operation; {ACCEPTED}"),
        })
    }
}
