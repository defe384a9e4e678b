//! The operations of an ElementWise layer, with TensorRT's names and numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::error::{Error, Result, error};

/// How an ElementWise layer combines an element `a` of its first input with an element `b` of its
/// second one. The numbers are those of TensorRT's `ElementWiseOperation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum ElementWiseOperation {
    /// a + b. Integers wrap. Of bool: or.
    Sum = 0,
    /// a · b. Integers wrap. Of bool: and.
    Prod = 1,
    /// The larger one. A number is preferred to a NaN, and -0 is below +0. Of bool: or.
    Max = 2,
    /// The smaller one. A number is preferred to a NaN, and -0 is below +0. Of bool: and.
    Min = 3,
    /// a - b. Integers wrap. bool has none.
    Sub = 4,
    /// a / b. Integers truncate; a division by 0 gives 0, and the smallest integer divided by -1
    /// wraps. bool has none.
    Div = 5,
}

impl ElementWiseOperation {
    /// Every operation, in the order of the numbers.
    pub const ALL: [ElementWiseOperation; 6] = [
        ElementWiseOperation::Sum,
        ElementWiseOperation::Prod,
        ElementWiseOperation::Max,
        ElementWiseOperation::Min,
        ElementWiseOperation::Sub,
        ElementWiseOperation::Div,
    ];

    /// The name in text: `sum`.
    pub const fn name(self) -> &'static str {
        match self {
            ElementWiseOperation::Sum => "sum",
            ElementWiseOperation::Prod => "prod",
            ElementWiseOperation::Max => "max",
            ElementWiseOperation::Min => "min",
            ElementWiseOperation::Sub => "sub",
            ElementWiseOperation::Div => "div",
        }
    }

    /// TensorRT's number.
    pub const fn number(self) -> i32 {
        self as i32
    }

    /// The operation with TensorRT's number.
    ///
    /// # Errors
    ///
    /// A number that is not one of 0 to 5.
    pub fn from_number(number: i32) -> Result<Self> {
        Self::ALL.into_iter().find(|op| op.number() == number).ok_or_else(|| {
            error!(
                InvalidArgument,
                "{number} is not the number of an elementwise operation; they are 0 (sum) to 5 (div); a plugin layer \
                 can compute others"
            )
        })
    }

    /// Whether elements of a type have the operation: bool has no difference and no quotient.
    pub const fn applies_to(self, data_type: DataType) -> bool {
        !matches!((self, data_type), (ElementWiseOperation::Sub | ElementWiseOperation::Div, DataType::Bool))
    }
}

impl fmt::Display for ElementWiseOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for ElementWiseOperation {
    type Err = Error;

    /// Reads a name in upper or lower case.
    fn from_str(text: &str) -> Result<Self> {
        let name = text.to_ascii_lowercase();
        Self::ALL.into_iter().find(|op| op.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.iter().map(|op| op.name()).collect();
            error!(InvalidArgument, "{text:?} is not an elementwise operation; they are {}", names.join(", "))
        })
    }
}
