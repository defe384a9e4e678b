//! Element types that the library moves and does not compute with.

use std::fmt;

use crate::data_type::DataType;

/// An element type that the library moves and does not reduce, cast or convert. It is for calls on
/// raw addresses, in operations that do not reduce: ranks compare the type, as they compare a
/// [`DataType`].
///
/// The names are those of numpy and of ml_dtypes.
///
/// ```
/// use distcollective::comm::MovedType;
///
/// let float64 = MovedType::from_name("float64").expect("a type");
/// assert_eq!((float64, float64.byte_len()), (MovedType::Float64, 8));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
#[non_exhaustive]
pub enum MovedType {
    /// IEEE 754 binary64.
    Float64 = 128,
    /// C's `long double` with its padding, 16 bytes.
    LongDouble,
    /// Two float16.
    Complex32,
    /// Two float32.
    Complex64,
    /// Two float64.
    Complex128,
    /// Two bfloat16.
    Bcomplex32,
    /// Signed 16-bit integer.
    Int16,
    /// Unsigned 16-bit integer.
    Uint16,
    /// Unsigned 32-bit integer.
    Uint32,
    /// Unsigned 64-bit integer.
    Uint64,
    /// Signed 1-bit integer in a byte.
    Int1,
    /// Unsigned 1-bit integer in a byte.
    Uint1,
    /// Signed 2-bit integer in a byte.
    Int2,
    /// Unsigned 2-bit integer in a byte.
    Uint2,
    /// Signed 4-bit integer in a byte.
    Int4,
    /// Unsigned 4-bit integer in a byte.
    Uint4,
    /// 4-bit float in a byte.
    Float4E2M1,
    /// 6-bit float in a byte, with 2 bits of exponent.
    Float6E2M3,
    /// 6-bit float in a byte, with 3 bits of exponent.
    Float6E3M2,
    /// 8-bit float with 3 bits of exponent.
    Float8E3M4,
    /// 8-bit float with 4 bits of exponent and with infinities: not
    /// [`DataType::Float8E4M3`].
    Float8E4M3Ieee,
    /// 8-bit float with 4 bits of exponent, biased by 11.
    Float8E4M3B11,
    /// 8-bit float with 4 bits of exponent, without negative zero.
    Float8E4M3Fnuz,
    /// 8-bit float with 5 bits of exponent, without negative zero.
    Float8E5M2Fnuz,
    /// 8-bit power of two: a scale.
    Float8E8M0,
}

impl MovedType {
    /// Every type.
    pub const ALL: [MovedType; 25] = [
        MovedType::Float64,
        MovedType::LongDouble,
        MovedType::Complex32,
        MovedType::Complex64,
        MovedType::Complex128,
        MovedType::Bcomplex32,
        MovedType::Int16,
        MovedType::Uint16,
        MovedType::Uint32,
        MovedType::Uint64,
        MovedType::Int1,
        MovedType::Uint1,
        MovedType::Int2,
        MovedType::Uint2,
        MovedType::Int4,
        MovedType::Uint4,
        MovedType::Float4E2M1,
        MovedType::Float6E2M3,
        MovedType::Float6E3M2,
        MovedType::Float8E3M4,
        MovedType::Float8E4M3Ieee,
        MovedType::Float8E4M3B11,
        MovedType::Float8E4M3Fnuz,
        MovedType::Float8E5M2Fnuz,
        MovedType::Float8E8M0,
    ];

    /// The name in text: `float64`, `complex64`. ml_dtypes' `float8_e4m3` is `float8_e4m3_ieee`
    /// here, because the name is also that of a [`DataType`].
    pub const fn name(self) -> &'static str {
        match self {
            MovedType::Float64 => "float64",
            MovedType::LongDouble => "longdouble",
            MovedType::Complex32 => "complex32",
            MovedType::Complex64 => "complex64",
            MovedType::Complex128 => "complex128",
            MovedType::Bcomplex32 => "bcomplex32",
            MovedType::Int16 => "int16",
            MovedType::Uint16 => "uint16",
            MovedType::Uint32 => "uint32",
            MovedType::Uint64 => "uint64",
            MovedType::Int1 => "int1",
            MovedType::Uint1 => "uint1",
            MovedType::Int2 => "int2",
            MovedType::Uint2 => "uint2",
            MovedType::Int4 => "int4",
            MovedType::Uint4 => "uint4",
            MovedType::Float4E2M1 => "float4_e2m1fn",
            MovedType::Float6E2M3 => "float6_e2m3fn",
            MovedType::Float6E3M2 => "float6_e3m2fn",
            MovedType::Float8E3M4 => "float8_e3m4",
            MovedType::Float8E4M3Ieee => "float8_e4m3_ieee",
            MovedType::Float8E4M3B11 => "float8_e4m3b11fnuz",
            MovedType::Float8E4M3Fnuz => "float8_e4m3fnuz",
            MovedType::Float8E5M2Fnuz => "float8_e5m2fnuz",
            MovedType::Float8E8M0 => "float8_e8m0fnu",
        }
    }

    /// The type with a [`name`](Self::name).
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|moved| moved.name() == name)
    }

    /// The size of an element in bytes. Elements need no alignment, because they move as bytes.
    pub const fn byte_len(self) -> usize {
        match self {
            MovedType::LongDouble | MovedType::Complex128 => 16,
            MovedType::Float64 | MovedType::Complex64 | MovedType::Uint64 => 8,
            MovedType::Complex32 | MovedType::Bcomplex32 | MovedType::Uint32 => 4,
            MovedType::Int16 | MovedType::Uint16 => 2,
            _ => 1,
        }
    }
}

impl fmt::Display for MovedType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// The element type of a call on raw addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TransferType {
    /// A type for every operation.
    Data(DataType),
    /// A type for operations that do not reduce.
    Moved(MovedType),
}

impl TransferType {
    /// The size of an element in bytes.
    pub const fn byte_len(self) -> usize {
        match self {
            TransferType::Data(data_type) => data_type.byte_len(),
            TransferType::Moved(moved) => moved.byte_len(),
        }
    }

    /// The type in which the elements move.
    pub(crate) fn carrier(self) -> DataType {
        match self {
            TransferType::Data(data_type) => data_type,
            TransferType::Moved(_) => DataType::Uint8,
        }
    }

    /// How many elements of the [carrier](Self::carrier) an element is.
    pub(crate) fn carrier_count(self) -> usize {
        self.byte_len() / self.carrier().byte_len()
    }

    /// The type that is only moved, if it is one.
    pub(crate) fn moved(self) -> Option<MovedType> {
        match self {
            TransferType::Data(_) => None,
            TransferType::Moved(moved) => Some(moved),
        }
    }

    /// The type as a byte, for memory that ranks share.
    pub(crate) fn number(self) -> u8 {
        match self {
            TransferType::Data(data_type) => data_type.number() as u8,
            TransferType::Moved(moved) => moved as u8,
        }
    }

    /// The type of a [byte](Self::number).
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        let moved = MovedType::ALL.into_iter().find(|moved| *moved as u8 == number).map(TransferType::Moved);
        moved.or_else(|| DataType::from_number(number.into()).ok().map(TransferType::Data))
    }
}

impl From<DataType> for TransferType {
    fn from(data_type: DataType) -> Self {
        TransferType::Data(data_type)
    }
}

impl From<MovedType> for TransferType {
    fn from(moved: MovedType) -> Self {
        TransferType::Moved(moved)
    }
}

impl fmt::Display for TransferType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TransferType::Data(data_type) => data_type.fmt(f),
            TransferType::Moved(moved) => moved.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn types_have_names_and_numbers_of_their_own() {
        let data = DataType::ALL.into_iter().map(TransferType::Data);
        let all: Vec<_> = data.chain(MovedType::ALL.into_iter().map(TransferType::Moved)).collect();
        for transfer_type in &all {
            assert_eq!(TransferType::from_number(transfer_type.number()), Some(*transfer_type));
            assert_eq!(transfer_type.carrier_count() * transfer_type.carrier().byte_len(), transfer_type.byte_len());
        }
        assert_eq!(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len(), all.len());
        assert!(MovedType::ALL.iter().all(|moved| MovedType::from_name(moved.name()) == Some(*moved)));
        assert_eq!(TransferType::from_number(127), None);
    }
}
