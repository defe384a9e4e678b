//! Element types of arrays and tensors.

use distcollective::comm::{MovedType, TransferType};
use distcollective::{DataType, ReduceOperation};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;

/// The type of a tensor's elements.
#[derive(Clone, Copy, Debug)]
pub(super) struct Element {
    /// Its name in errors, and in numpy, torch or ml_dtypes.
    pub name: &'static str,
    pub byte_len: usize,
    /// The library's type.
    pub transfer: TransferType,
}

/// numpy's kind and size, DLPack's code, the name, and the library's type.
type Row = (&'static str, u8, &'static str, TransferType);

const fn data(data_type: DataType) -> TransferType {
    TransferType::Data(data_type)
}

const fn moved(name: &str) -> TransferType {
    TransferType::Moved(MovedType::from_name(name).expect("a type of the library"))
}

const TYPES: [Row; 16] = [
    ("f4", 2, "float32", data(DataType::Float32)),
    ("f2", 2, "float16", data(DataType::Float16)),
    ("i8", 0, "int64", data(DataType::Int64)),
    ("i4", 0, "int32", data(DataType::Int32)),
    ("i1", 0, "int8", data(DataType::Int8)),
    ("u1", 1, "uint8", data(DataType::Uint8)),
    ("b1", 6, "bool", data(DataType::Bool)),
    ("f8", 2, "float64", data(DataType::Float64)),
    ("c8", 5, "complex64", moved("complex64")),
    ("c16", 5, "complex128", moved("complex128")),
    ("i2", 0, "int16", moved("int16")),
    ("u2", 1, "uint16", moved("uint16")),
    ("u4", 1, "uint32", data(DataType::Uint32)),
    ("u8", 1, "uint64", data(DataType::Uint64)),
    ("c4", 5, "complex32", moved("complex32")),
    ("f16", 2, "longdouble", moved("longdouble")),
];

/// DLPack has no code for the type, or less than a byte for an element.
const NOT_IN_DLPACK: u8 = u8::MAX;

/// Types for which numpy has no kind: the name in ml_dtypes and torch, DLPack's code, and the
/// library's type.
const EXTENSIONS: [(&str, u8, TransferType); 20] = [
    ("bfloat16", 4, data(DataType::Bfloat16)),
    ("float8_e4m3fn", 10, data(DataType::Float8E4M3)),
    ("float8_e5m2", 12, data(DataType::Float8E5M2)),
    ("float8_e3m4", 7, moved("float8_e3m4")),
    ("float8_e4m3", 8, moved("float8_e4m3_ieee")),
    ("float8_e4m3b11fnuz", 9, moved("float8_e4m3b11fnuz")),
    ("float8_e4m3fnuz", 11, moved("float8_e4m3fnuz")),
    ("float8_e5m2fnuz", 13, moved("float8_e5m2fnuz")),
    ("float8_e8m0fnu", 14, moved("float8_e8m0fnu")),
    ("complex32", NOT_IN_DLPACK, moved("complex32")),
    ("bcomplex32", NOT_IN_DLPACK, moved("bcomplex32")),
    ("int1", NOT_IN_DLPACK, moved("int1")),
    ("uint1", NOT_IN_DLPACK, moved("uint1")),
    ("int2", NOT_IN_DLPACK, moved("int2")),
    ("uint2", NOT_IN_DLPACK, moved("uint2")),
    ("int4", NOT_IN_DLPACK, moved("int4")),
    ("uint4", NOT_IN_DLPACK, moved("uint4")),
    ("float4_e2m1fn", NOT_IN_DLPACK, moved("float4_e2m1fn")),
    ("float6_e2m3fn", NOT_IN_DLPACK, moved("float6_e2m3fn")),
    ("float6_e3m2fn", NOT_IN_DLPACK, moved("float6_e3m2fn")),
];

impl Element {
    const fn new(name: &'static str, transfer: TransferType) -> Self {
        Element { name, byte_len: transfer.byte_len(), transfer }
    }

    fn of_row(&(_, _, name, transfer): &Row) -> Self {
        Element::new(name, transfer)
    }

    fn extensions() -> impl Iterator<Item = (u8, Element)> {
        EXTENSIONS.iter().map(|&(name, code, transfer)| (code, Element::new(name, transfer)))
    }

    /// All types that have a name in torch, in some version of it.
    pub(super) fn all() -> impl Iterator<Item = Element> {
        TYPES.iter().map(Element::of_row).chain(Element::extensions().map(|(_, element)| element))
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
        let found = Element::extensions().find(|(_, element)| element.name == name);
        found.map(|(_, element)| element).ok_or_else(|| unsupported(&name))
    }

    /// The type with these fields in DLPack.
    pub(super) fn of_dlpack(code: u8, bits: u8, lanes: u16) -> PyResult<Self> {
        let extensions = Element::extensions().filter(|(extension, _)| *extension == code);
        let rows = TYPES.iter().filter(|row| row.1 == code).map(Element::of_row);
        rows.chain(extensions.map(|(_, element)| element))
            .find(|element| lanes == 1 && element.byte_len * 8 == usize::from(bits))
            .ok_or_else(|| unsupported(&format!("of DLPack's type code {code} with {bits} bits in {lanes} lanes")))
    }

    /// Python's name of a type of the library.
    pub(super) fn name_of(data_type: DataType) -> &'static str {
        let found = Element::all().find(|element| element.transfer == TransferType::Data(data_type));
        found.map_or(data_type.name(), |element| element.name)
    }

    /// Checks that the elements of an argument have a reduction.
    pub(super) fn check_reducible(&self, argument: &str, reduce_op: ReduceOperation) -> PyResult<()> {
        match self.transfer {
            TransferType::Data(_) => Ok(()),
            TransferType::Moved(moved) if moved.has(reduce_op) => Ok(()),
            TransferType::Moved(moved) if moved.has(ReduceOperation::Sum) => Err(PyValueError::new_err(format!(
                "{argument}: {} has sums and averages, and no {reduce_op}",
                self.name
            ))),
            TransferType::Moved(_) => Err(PyTypeError::new_err(format!(
                "{argument}: {} is not reduced: its elements move as bytes in operations that do not reduce; the types that are \
                 reduced are {}",
                self.name,
                DataType::ALL.map(Element::name_of).join(", ")
            ))),
        }
    }

    /// Checks that an address is aligned.
    pub(super) fn check_aligned(&self, address: usize, strides: &[isize]) -> PyResult<()> {
        let align = match self.transfer {
            TransferType::Data(data_type) => data_type.byte_len(),
            TransferType::Moved(_) => 1,
        };
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
