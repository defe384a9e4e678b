//! Dictionaries of tensors. The library owns the memory of a dictionary, so that a tensor is copied
//! once on each rank.

use distcollective::tensor::Shape;
use distcollective::tensor_dict::{BroadcastOptions, ElementType, OpaqueType, Tensor};
use distcollective::{Buffer, Communicator, Error, ErrorKind, TensorDict};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use super::element::Element;
use super::errors::{call, exception};
use super::tensor::{self, Access};

/// A tensor of Python, by its name in the dictionary and its shape.
pub(super) type Entry<'py> = (String, Bound<'py, PyAny>, Vec<usize>);

/// A tensor that has come: its name, the name of its element type, its shape, its bytes.
pub(super) type Arrived = (String, String, Vec<usize>, Py<PyByteArray>);

/// The names of types that the library does not know, here and in files of safetensors.
const OPAQUE: [(&str, &str); 6] = [
    ("float64", "F64"),
    ("int16", "I16"),
    ("uint16", "U16"),
    ("uint32", "U32"),
    ("uint64", "U64"),
    ("complex64", "C64"),
];

/// Gives every rank the dictionary of `src`. The source itself gets an empty list. What is wrong
/// with its tensors is an error on every rank.
pub(super) fn broadcast(
    py: Python<'_>,
    communicator: &Communicator,
    entries: Option<Vec<Entry<'_>>>,
    src: u32,
) -> PyResult<Vec<Arrived>> {
    let failed = |error| exception(py, &error);
    let is_source = communicator.rank().0 == src;
    let options = BroadcastOptions::new().src(src);
    let (mut dict, options, refusal) = match own_dict(py, entries, is_source) {
        Ok(dict) => (dict, options, None),
        Err(raised) => {
            let refused = Error::new(ErrorKind::InvalidArgument, raised.value(py).to_string());
            (TensorDict::new(), options.refuse(refused), Some(raised))
        }
    };
    let broadcast = call(py, || communicator.broadcast_tensor_dict(&mut dict, &options));
    // The program gets the exception as it was raised.
    refusal.map_or(broadcast, Err)?;
    let arrived = dict.iter().filter(|_| !is_source).map(|(name, tensor)| {
        let bytes = PyByteArray::new_with(py, tensor.byte_len(), |bytes| tensor.read(0, bytes).map_err(failed))?;
        Ok((name.to_owned(), type_name(tensor.element_type()), tensor.shape().as_slice().to_vec(), bytes.unbind()))
    });
    arrived.collect()
}

/// The dictionary that this rank gives: an empty one if it is not the source.
fn own_dict(py: Python<'_>, entries: Option<Vec<Entry<'_>>>, is_source: bool) -> PyResult<TensorDict> {
    let failed = |error| exception(py, &error);
    let mut dict = TensorDict::new();
    if !is_source {
        return Ok(dict);
    }
    let Some(entries) = entries else {
        let message = "tensor_dict is None, and this rank is the source";
        return Err(failed(Error::new(ErrorKind::InvalidArgument, message)));
    };
    for (name, object, shape) in entries {
        let tensor = tensor::Tensor::of(&object, &name, Access::Read)?;
        dict.insert(name, to_library(&tensor, &shape).map_err(failed)?);
    }
    Ok(dict)
}

/// A copy that the library owns.
fn to_library(tensor: &tensor::Tensor, shape: &[usize]) -> Result<Tensor, Error> {
    let Element { name, byte_len, .. } = &tensor.element;
    let (shape, bytes) = (Shape::new(shape)?, tensor.element_count() * byte_len);
    let is_known = tensor.element.known().is_some();
    let mut buffer = Buffer::zeroed(tensor.data_type(), if is_known { shape } else { Shape::new(&[bytes])? })?;
    // SAFETY: the tensor has so many bytes, and keeps them while it is borrowed.
    unsafe { buffer.copy_from(0, tensor.address(), bytes)? };
    if is_known {
        return Ok(buffer.into());
    }
    let name = OPAQUE.iter().find(|row| row.0 == name).map_or(&**name, |row| row.1);
    Tensor::opaque(OpaqueType::new(name, 8 * *byte_len as u32)?, shape, buffer)
}

/// Python's name of a type.
fn type_name(element_type: &ElementType) -> String {
    match element_type {
        ElementType::Known(data_type) => Element::of_data_type(*data_type).name.into_owned(),
        other => {
            let name = other.to_string();
            OPAQUE.iter().find(|row| row.1 == name).map_or(name, |row| row.0.to_owned())
        }
    }
}
