//! Element types of arrays and tensors.

use std::borrow::Cow;

use distcollective::DataType;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The type of a tensor's elements.
#[derive(Clone, Debug)]
pub(super) struct Element {
    /// Its name in errors.
    pub name: Cow<'static, str>,
    pub byte_len: usize,
    /// The library's type, if it has this one. Else the elements move as bytes.
    data_type: Option<DataType>,
}

/// numpy's kind and size, DLPack's code, the name, and the library's type.
type Row = (&'static str, u8, &'static str, Option<DataType>);

const TYPES: [Row; 16] = [
    ("f4", 2, "float32", Some(DataType::Float32)),
    ("f2", 2, "float16", Some(DataType::Float16)),
    ("i8", 0, "int64", Some(DataType::Int64)),
    ("i4", 0, "int32", Some(DataType::Int32)),
    ("i1", 0, "int8", Some(DataType::Int8)),
    ("u1", 1, "uint8", Some(DataType::Uint8)),
    ("b1", 6, "bool", Some(DataType::Bool)),
    ("f8", 2, "float64", None),
    ("c8", 5, "complex64", None),
    ("c16", 5, "complex128", None),
    ("i2", 0, "int16", None),
    ("u2", 1, "uint16", None),
    ("u4", 1, "uint32", None),
    ("u8", 1, "uint64", None),
    ("c4", 5, "complex32", None),
    ("f16", 2, "longdouble", None),
];

/// Types for which numpy has no kind: the name in ml_dtypes and torch, and DLPack's code.
const EXTENSIONS: [(&str, u8, DataType); 3] = [
    ("bfloat16", 4, DataType::Bfloat16),
    ("float8_e4m3fn", 10, DataType::Float8E4M3),
    ("float8_e5m2", 12, DataType::Float8E5M2),
];

impl Element {
    fn of_extension(name: &'static str, data_type: DataType) -> Self {
        Element { name: name.into(), byte_len: data_type.byte_len(), data_type: Some(data_type) }
    }

    fn of_row(&(kind, _, name, data_type): &Row) -> Self {
        let byte_len = kind[1..].parse().unwrap_or_default();
        Element { name: name.into(), byte_len, data_type }
    }

    /// All types that have a name in torch, in some version of it.
    pub(super) fn all() -> impl Iterator<Item = Element> {
        let extensions = EXTENSIONS.iter().map(|&(name, _, data_type)| Element::of_extension(name, data_type));
        TYPES.iter().map(Element::of_row).chain(extensions)
    }

    /// The type of an array whose `__array_interface__` has this `typestr`. `name` gives the name
    /// of its dtype, which is needed for types that numpy itself does not have.
    pub(super) fn of_array(typestr: &str, name: impl FnOnce() -> PyResult<String>) -> PyResult<Self> {
        let (order, kind) = typestr.split_at_checked(1).unwrap_or_default();
        if order == ">" {
            let hint = "convert it with array.astype(array.dtype.newbyteorder(\"=\"))";
            return Err(PyTypeError::new_err(format!("its elements are big-endian ({typestr}); {hint}")));
        }
        if let Some(row) = TYPES.iter().find(|row| row.0 == kind) {
            return Ok(Element::of_row(row));
        }
        let name = name()?;
        if let Some((name, _, data_type)) = EXTENSIONS.iter().find(|(extension, ..)| *extension == name) {
            return Ok(Element::of_extension(name, *data_type));
        }
        // ml_dtypes' other types; a structure is named void.
        match kind.split_at_checked(1) {
            Some(("V" | "f", byte_len)) if !name.starts_with("void") => {
                let byte_len = byte_len.parse().map_err(|_| unsupported(&name))?;
                Ok(Element { name: name.into(), byte_len, data_type: None })
            }
            _ => Err(unsupported(&name)),
        }
    }

    /// The type with these fields in DLPack.
    pub(super) fn of_dlpack(code: u8, bits: u8, lanes: u16) -> PyResult<Self> {
        let byte_len = usize::from(bits) / 8;
        let extension = EXTENSIONS.iter().find(|extension| extension.1 == code);
        let extension = extension.map(|&(name, _, data_type)| Element::of_extension(name, data_type));
        let mut found = TYPES.iter().filter(|row| row.1 == code).map(Element::of_row).chain(extension);
        found
            .find(|element| lanes == 1 && bits.is_multiple_of(8) && element.byte_len == byte_len)
            .ok_or_else(|| unsupported(&format!("of DLPack's type code {code} with {bits} bits in {lanes} lanes")))
    }

    /// The element type of a type of the library.
    pub(super) fn of_data_type(data_type: DataType) -> Self {
        let found = Element::all().find(|element| element.data_type == Some(data_type));
        found.unwrap_or(Element { name: data_type.name().into(), byte_len: data_type.byte_len(), data_type: None })
    }

    /// The library's type, if it has this one.
    pub(super) fn known(&self) -> Option<DataType> {
        self.data_type
    }

    /// The library's type in which elements move: bytes if the library does not have their own.
    pub(super) fn transport(&self) -> DataType {
        self.data_type.unwrap_or(DataType::Uint8)
    }

    /// How many elements of the [transport](Self::transport) type an element is.
    pub(super) fn transport_count(&self) -> usize {
        self.byte_len / self.transport().byte_len()
    }

    /// Checks that the elements of an argument can be reduced.
    pub(super) fn check_reducible(&self, argument: &str) -> PyResult<()> {
        match self.data_type {
            Some(_) => Ok(()),
            None => Err(PyTypeError::new_err(format!(
                "{argument}: {} is not reduced: its elements move as bytes in operations that do not reduce; the types that are \
                 reduced are float32, float16, bfloat16, float8_e4m3fn, float8_e5m2, int64, int32, int8, uint8 and bool",
                self.name
            ))),
        }
    }

    /// Checks that an address is aligned.
    pub(super) fn check_aligned(&self, address: usize, strides: &[isize]) -> PyResult<()> {
        let align = self.transport().byte_len();
        if !address.is_multiple_of(align) || strides.iter().any(|stride| stride.unsigned_abs() % align != 0) {
            return Err(PyValueError::new_err(format!(
                "its memory is not aligned to its elements, {} of {align} bytes; give a copy of it",
                self.name
            )));
        }
        Ok(())
    }
}

fn unsupported(name: &str) -> PyErr {
    PyTypeError::new_err(format!("its elements are {name}, which this package does not move"))
}
