//! Element types that the library moves and does not compute with.

use std::fmt;

use distcollective_elements::reduce_operation::ReduceOperation;

use crate::data_type::DataType;
use crate::util::text::is_same;

/// The types by name, with the bytes of an element.
const TYPES: [(&str, usize); 22] = [
    // C's `long double` with its padding.
    ("longdouble", 16),
    // Two floats: of 16, 32 and 64 bits, and two bfloat16.
    ("complex32", 4),
    ("complex64", 8),
    ("complex128", 16),
    ("bcomplex32", 4),
    ("int16", 2),
    ("uint16", 2),
    // Less than a byte, in a byte.
    ("int1", 1),
    ("uint1", 1),
    ("int2", 1),
    ("uint2", 1),
    ("int4", 1),
    ("uint4", 1),
    ("float4_e2m1fn", 1),
    ("float6_e2m3fn", 1),
    ("float6_e3m2fn", 1),
    ("float8_e3m4", 1),
    // With infinities, which DataType::Float8E4M3 does not have.
    ("float8_e4m3_ieee", 1),
    ("float8_e4m3b11fnuz", 1),
    ("float8_e4m3fnuz", 1),
    ("float8_e5m2fnuz", 1),
    ("float8_e8m0fnu", 1),
];

/// The number of the first type. Those of [`DataType`] are below.
const FIRST_NUMBER: u8 = 128;

/// An element type that the library moves and does not reduce, cast or convert: a name and a
/// width. It is for calls on raw addresses, in operations that do not reduce. Complex types have
/// sums and averages too: those of their two parts. Ranks compare the type, not only its width, as
/// they compare a [`DataType`].
///
/// The names are those of numpy and of ml_dtypes, except that ml_dtypes' `float8_e4m3` is
/// `float8_e4m3_ieee` here, because that is also the name of a [`DataType`].
///
/// ```
/// use distcollective::comm::MovedType;
///
/// let int16 = MovedType::from_name("int16").expect("a type");
/// assert_eq!((int16.name(), int16.byte_len()), ("int16", 2));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MovedType(u8);

impl MovedType {
    /// Every type.
    pub fn all() -> impl Iterator<Item = MovedType> + Clone {
        (0..TYPES.len() as u8).map(MovedType)
    }

    /// The type with a [`name`](Self::name).
    pub const fn from_name(name: &str) -> Option<Self> {
        let mut index = 0;
        while index < TYPES.len() {
            if is_same(TYPES[index].0, name) {
                return Some(MovedType(index as u8));
            }
            index += 1;
        }
        None
    }

    /// The name in text: `int16`, `complex64`.
    pub const fn name(self) -> &'static str {
        TYPES[self.0 as usize].0
    }

    /// The size of an element in bytes. Elements need no alignment, because they move as bytes,
    /// except where they are reduced.
    pub const fn byte_len(self) -> usize {
        TYPES[self.0 as usize].1
    }

    /// The type of the two parts of a complex number.
    fn part(self) -> Option<DataType> {
        match self.name() {
            "complex64" => Some(DataType::Float32),
            "complex128" => Some(DataType::Float64),
            "complex32" => Some(DataType::Float16),
            "bcomplex32" => Some(DataType::Bfloat16),
            _ => None,
        }
    }

    /// Whether the elements have this reduction.
    pub fn has(self, reduce_op: ReduceOperation) -> bool {
        self.part().is_some() && matches!(reduce_op, ReduceOperation::Sum | ReduceOperation::Avg)
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

    /// The type in which the elements move, or are reduced.
    pub(crate) fn carrier(self, reduce_op: Option<ReduceOperation>) -> DataType {
        match self {
            TransferType::Data(data_type) => data_type,
            TransferType::Moved(moved) => reduce_op.and_then(|_| moved.part()).unwrap_or(DataType::Uint8),
        }
    }

    /// How many elements of the [carrier](Self::carrier) an element is.
    pub(crate) fn carrier_count(self, reduce_op: Option<ReduceOperation>) -> usize {
        self.byte_len() / self.carrier(reduce_op).byte_len()
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
            TransferType::Moved(moved) => FIRST_NUMBER + moved.0,
        }
    }

    /// The type of a [byte](Self::number).
    pub(crate) fn from_number(number: u8) -> Option<Self> {
        match number.checked_sub(FIRST_NUMBER) {
            Some(index) => MovedType::all().nth(index.into()).map(TransferType::Moved),
            None => DataType::from_number(number.into()).ok().map(TransferType::Data),
        }
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
        let all: Vec<_> = data.chain(MovedType::all().map(TransferType::Moved)).collect();
        for transfer_type in &all {
            assert_eq!(TransferType::from_number(transfer_type.number()), Some(*transfer_type));
            assert_eq!(
                transfer_type.carrier_count(None) * transfer_type.carrier(None).byte_len(),
                transfer_type.byte_len()
            );
        }
        assert_eq!(all.iter().map(ToString::to_string).collect::<BTreeSet<_>>().len(), all.len());
        assert!(MovedType::all().all(|moved| MovedType::from_name(moved.name()) == Some(moved)));
        assert_eq!([127, 150, 255].map(TransferType::from_number), [None; 3]);
        assert_eq!(["float6", "int160", ""].map(MovedType::from_name), [None; 3]);
    }
}
