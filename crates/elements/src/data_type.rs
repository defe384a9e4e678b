//! Element types: their names, sizes and numbers.

use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, error};
use crate::numbered;

/// The type of a tensor's elements.
///
/// The numbers are those of TensorRT's `DataType` (`NvInferRuntimeBase.h`). A type that TensorRT
/// does not have has a number from 100 on. The C ABI uses the same numbers.
///
/// ```
/// # use distcollective_elements::data_type::DataType;
/// assert_eq!("bfloat16".parse::<DataType>()?, DataType::Bfloat16);
/// assert_eq!((DataType::Int64.byte_len(), DataType::Int64.number()), (8, 8));
/// # Ok::<(), distcollective_elements::error::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum DataType {
    /// IEEE 754 binary32.
    Float32 = 0,
    /// IEEE 754 binary16.
    Float16 = 1,
    /// Signed 8-bit integer.
    Int8 = 2,
    /// Signed 32-bit integer.
    Int32 = 3,
    /// One byte. Zero is false, every other value is true. A reduction writes 0 or 1.
    Bool = 4,
    /// Unsigned 8-bit integer.
    Uint8 = 5,
    /// 8-bit float with 4 bits of exponent: [`F8E4M3`](crate::element::F8E4M3), "FP8" in TensorRT.
    Float8E4M3 = 6,
    /// The upper half of a binary32.
    Bfloat16 = 7,
    /// Signed 64-bit integer.
    Int64 = 8,
    /// 8-bit float with 5 bits of exponent: [`F8E5M2`](crate::element::F8E5M2). Not a TensorRT
    /// type.
    Float8E5M2 = 100,
    /// IEEE 754 binary64. Not a layer's type.
    Float64 = 101,
    /// Unsigned 32-bit integer. Not a layer's type.
    Uint32 = 102,
    /// Unsigned 64-bit integer. Not a layer's type.
    Uint64 = 103,
}

numbered! {
    names DataType:
    Float32 "float32",
    Float16 "float16",
    Bfloat16 "bfloat16",
    Float8E4M3 "float8_e4m3",
    Float8E5M2 "float8_e5m2",
    Int64 "int64",
    Int32 "int32",
    Int8 "int8",
    Uint8 "uint8",
    Bool "bool",
    Float64 "float64",
    Uint32 "uint32",
    Uint64 "uint64",
}

impl DataType {
    /// The types that a tensor of a network can have: those of TensorRT, and float8_e5m2. Eager
    /// calls and messages take the others too.
    pub const LAYER_TYPES: [DataType; 10] = match DataType::ALL.first_chunk() {
        Some(types) => *types,
        None => unreachable!(),
    };

    /// Whether it is one of the [`LAYER_TYPES`](Self::LAYER_TYPES).
    pub const fn is_layer_type(self) -> bool {
        !matches!(self, DataType::Float64 | DataType::Uint32 | DataType::Uint64)
    }

    /// The size of an element in bytes. Buffers of this type are aligned to it.
    #[inline]
    pub const fn byte_len(self) -> usize {
        match self {
            DataType::Int64 | DataType::Float64 | DataType::Uint64 => 8,
            DataType::Float32 | DataType::Int32 | DataType::Uint32 => 4,
            DataType::Float16 | DataType::Bfloat16 => 2,
            DataType::Int8 | DataType::Uint8 | DataType::Bool | DataType::Float8E4M3 | DataType::Float8E5M2 => 1,
        }
    }

    /// Whether the type is a floating-point type.
    pub const fn is_float(self) -> bool {
        matches!(
            self,
            DataType::Float64
                | DataType::Float32
                | DataType::Float16
                | DataType::Bfloat16
                | DataType::Float8E4M3
                | DataType::Float8E5M2
        )
    }

    /// The type with a [`number`](Self::number).
    ///
    /// # Errors
    ///
    /// - No type has the number.
    /// - [`Unsupported`](crate::error::ErrorKind::Unsupported): TensorRT's `INT4` (9) and `FP4`
    ///   (10), of which an element is no whole byte, and `E8M0` (11), which holds scales.
    pub fn from_number(number: i32) -> Result<Self> {
        if let Some(data_type) = Self::with_number(number) {
            return Ok(data_type);
        }
        match number {
            9 => Err(refused("INT4")),
            10 => Err(refused("FP4")),
            11 => Err(refused("E8M0")),
            _ => Err(error!(InvalidArgument, "{number} is not the number of a data type; {}", accepted())),
        }
    }
}

fn accepted() -> String {
    let names: Vec<&str> = DataType::ALL.iter().map(|t| t.name()).collect();
    format!("the types are {} (float8 means float8_e4m3)", names.join(", "))
}

fn refused(name: &str) -> Error {
    error!(Unsupported, "data type {name} has no collective; {}", accepted())
}

impl FromStr for DataType {
    type Err = Error;

    /// Reads a name in upper or lower case. `float8` is `float8_e4m3`.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: TensorRT's `INT4`, `FP4` and `E8M0`.
    /// - `InvalidArgument`: any other text.
    fn from_str(text: &str) -> Result<Self> {
        let name = text.to_ascii_lowercase();
        if name == "float8" {
            return Ok(DataType::Float8E4M3);
        }
        if let Some(data_type) = Self::with_name(&name) {
            return Ok(data_type);
        }
        match name.as_str() {
            "int4" | "fp4" | "e8m0" => Err(refused(&text.to_ascii_uppercase())),
            _ => Err(error!(InvalidArgument, "{text:?} is not a data type; {}", accepted())),
        }
    }
}
