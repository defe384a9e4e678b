//! The operations of an ElementWise layer, with TensorRT's names and numbers.

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::numbered;

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

numbered! {
    ElementWiseOperation, "an elementwise operation":
    Sum "sum",
    Prod "prod",
    Max "max",
    Min "min",
    Sub "sub",
    Div "div",
}

impl ElementWiseOperation {
    /// Whether elements of a type have the operation: bool has no difference and no quotient.
    pub const fn applies_to(self, data_type: DataType) -> bool {
        !matches!((self, data_type), (ElementWiseOperation::Sub | ElementWiseOperation::Div, DataType::Bool))
    }
}
