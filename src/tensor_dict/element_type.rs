//! The types of elements that a dictionary may hold.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::shape::Shape;

/// The most bits that an element of an opaque type may have.
const MAX_OPAQUE_BITS: u32 = 1024;

/// The type of the elements of a dictionary's tensor: one of the library's, or an opaque one.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum ElementType {
    /// A type of the library, which every collective takes.
    Known(DataType),
    /// Any other type, of which the library knows a name and a size. Only the broadcast of a
    /// dictionary takes it.
    Opaque(OpaqueType),
}

/// An element type that the library does not know: a name and a size.
///
/// ```
/// use distcollective::tensor_dict::OpaqueType;
///
/// let int16 = OpaqueType::new("I16", 16)?;
/// assert_eq!((int16.name(), int16.bit_len()), ("I16", 16));
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct OpaqueType {
    name: String,
    bit_len: u32,
}

impl OpaqueType {
    /// A type with this name, whose elements have `bit_len` bits. A safetensors file has the types
    /// that [`ElementType`] does not know by the names of that format: `I16`, `C64`, `F4`.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: the name is empty; an element has no bit, or more than 1024.
    pub fn new(name: impl Into<String>, bit_len: u32) -> Result<Self> {
        let opaque = OpaqueType { name: name.into(), bit_len };
        opaque.check()?;
        Ok(opaque)
    }

    /// The rules of [`new`](Self::new), for a type that a peer described.
    fn check(&self) -> Result<()> {
        if self.name.is_empty() {
            bail!(InvalidArgument, "an element type has an empty name");
        }
        if !(1..=MAX_OPAQUE_BITS).contains(&self.bit_len) {
            let OpaqueType { name, bit_len } = self;
            bail!(InvalidArgument, "element type {name} has {bit_len} bits; it may have 1 to {MAX_OPAQUE_BITS}");
        }
        Ok(())
    }

    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number of bits of an element.
    pub fn bit_len(&self) -> u32 {
        self.bit_len
    }
}

impl ElementType {
    /// The type of the library, if it is one.
    pub fn data_type(&self) -> Option<DataType> {
        match self {
            ElementType::Known(data_type) => Some(*data_type),
            ElementType::Opaque(_) => None,
        }
    }

    /// The number of bits of an element.
    pub fn bit_len(&self) -> u32 {
        match self {
            ElementType::Known(data_type) => 8 * data_type.byte_len() as u32,
            ElementType::Opaque(opaque) => opaque.bit_len,
        }
    }

    /// The number of bytes of a tensor of this type.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: memory cannot hold the tensor; its elements do not fill whole bytes;
    ///   the type breaks a rule of [`OpaqueType::new`].
    pub(super) fn byte_len(&self, shape: &Shape) -> Result<usize> {
        if let ElementType::Opaque(opaque) = self {
            opaque.check()?;
        }
        let bits = shape.element_count() as u128 * u128::from(self.bit_len());
        if !bits.is_multiple_of(8) {
            bail!(InvalidArgument, "{self} {shape} has {bits} bits, which are not whole bytes");
        }
        match isize::try_from(bits / 8) {
            Ok(byte_len) => Ok(byte_len as usize),
            Err(_) => bail!(InvalidArgument, "{self} {shape} is larger than memory can be"),
        }
    }
}

impl From<DataType> for ElementType {
    fn from(data_type: DataType) -> Self {
        ElementType::Known(data_type)
    }
}

impl From<OpaqueType> for ElementType {
    fn from(opaque: OpaqueType) -> Self {
        ElementType::Opaque(opaque)
    }
}

impl fmt::Display for ElementType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ElementType::Known(data_type) => data_type.fmt(f),
            ElementType::Opaque(opaque) => f.pad(&opaque.name),
        }
    }
}
