//! Dictionaries of tensors. The source's tensors are sent from where they are.

use distcollective::comm::TransferType;
use distcollective::tensor::{MemorySpace, Shape};
use distcollective::tensor_dict::{BroadcastOptions, ElementType, OpaqueType, Tensor};
use distcollective::{Buffer, Communicator, DataType, Error, TensorDict};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};

use super::element::Element;
use super::errors::{call, exception};
use super::tensor::{self, Access};

/// A tensor of Python, by its name in the dictionary and its shape.
pub(super) type Entry<'py> = (String, Bound<'py, PyAny>, Vec<usize>);

/// A tensor's name and shape.
pub(super) type Label = (String, Vec<usize>);

/// A tensor that has come: its name, the name of its element type, its shape, and its bytes, which
/// are a bytearray or a [`GpuBytes`].
pub(super) type Arrived = (String, String, Vec<usize>, Py<PyAny>);

/// How a dictionary is broadcast.
#[derive(FromPyObject)]
#[pyo3(from_item_all)]
pub(super) struct Options {
    src: u32,
    /// Whether what arrives is put into host memory, wherever the group's tensors are.
    on_host: bool,
}

/// The names of types that the library does not know, here and in files of safetensors.
const OPAQUE: [(&str, &str); 6] = [
    ("float64", "F64"),
    ("int16", "I16"),
    ("uint16", "U16"),
    ("uint32", "U32"),
    ("uint64", "U64"),
    ("complex64", "C64"),
];

/// Bytes in the memory of a GPU, for other libraries.
#[pyclass(frozen, module = "distcollective._core")]
pub(super) struct GpuBytes {
    buffer: Buffer,
}

#[pymethods]
impl GpuBytes {
    /// Version 3. The bytes are there, so that there is no stream to wait for.
    #[getter]
    fn __cuda_array_interface__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let interface = PyDict::new(py);
        interface.set_item("shape", (self.buffer.byte_len(),))?;
        interface.set_item("typestr", "|u1")?;
        interface.set_item("data", (self.buffer.as_ptr().expose_provenance(), false))?;
        interface.set_item("version", 3)?;
        Ok(interface)
    }
}

/// The tensors of a dictionary, and their names and shapes.
pub(super) fn tensors_of(entries: Vec<Entry<'_>>, space: MemorySpace) -> PyResult<(Vec<tensor::Tensor>, Vec<Label>)> {
    let tensors = entries.into_iter().map(|(name, object, shape)| {
        let tensor = tensor::Tensor::of(&object, &name, Access::Read, space)?;
        Ok((tensor, (name, shape)))
    });
    tensors.collect()
}

/// Gives every rank the dictionary of the source, which has these tensors, and the other ranks
/// none. The source itself gets an empty list.
pub(super) fn broadcast(
    py: Python<'_>,
    communicator: &Communicator,
    labels: &[Label],
    tensors: &[tensor::Tensor],
    Options { src, on_host }: Options,
) -> PyResult<Vec<Arrived>> {
    let failed = |error| exception(py, &error);
    let mut dict = TensorDict::new();
    for ((name, shape), tensor) in labels.iter().zip(tensors) {
        // SAFETY: the dictionary ends before the tensors, and the library only reads them.
        let borrowed = unsafe { borrow(tensor, shape, communicator.space()) };
        dict.insert(name, borrowed.map_err(failed)?);
    }
    let options = BroadcastOptions::new().src(src).offload_to_cpu(on_host);
    call(py, || communicator.broadcast_tensor_dict(&mut dict, &options))?;
    if communicator.rank().0 == src {
        return Ok(Vec::new());
    }
    let names: Vec<String> = dict.iter().map(|(name, _)| name.to_owned()).collect();
    let arrived = names.into_iter().filter_map(|name| {
        let tensor = dict.remove(&name)?;
        let (element_type, shape) = (type_name(tensor.element_type()), tensor.shape().as_slice().to_vec());
        Some(bytes_of(py, tensor).map(|bytes| (name, element_type, shape, bytes)))
    });
    arrived.collect()
}

fn bytes_of(py: Python<'_>, tensor: Tensor) -> PyResult<Py<PyAny>> {
    let failed = |error| exception(py, &error);
    if tensor.space() == MemorySpace::Host {
        let bytes = PyByteArray::new_with(py, tensor.byte_len(), |bytes| tensor.read(0, bytes).map_err(failed))?;
        return Ok(bytes.into_any().unbind());
    }
    Ok(Py::new(py, GpuBytes { buffer: tensor.into_buffer().map_err(failed)? })?.into_any())
}

/// A tensor of the library in the memory of Python's.
///
/// # Safety
///
/// The tensor of the library is dropped before Python's, and nothing writes the memory until then.
unsafe fn borrow(tensor: &tensor::Tensor, shape: &[usize], space: MemorySpace) -> Result<Tensor, Error> {
    let (shape, Element { name, byte_len, transfer }) = (Shape::new(shape)?, tensor.element);
    let (data_type, dims) = match transfer {
        TransferType::Data(data_type) => (data_type, shape),
        TransferType::Moved(_) => (DataType::Uint8, Shape::new(&[tensor.element_count() * byte_len])?),
    };
    // SAFETY: the caller's promise. The tensor has so many elements in the memory of the group.
    let buffer = unsafe { Buffer::from_raw_borrowed(space, tensor.address(), data_type, dims)? };
    if let TransferType::Data(_) = transfer {
        return Ok(buffer.into());
    }
    let name = OPAQUE.iter().find(|row| row.0 == name).map_or(name, |row| row.1);
    Tensor::opaque(OpaqueType::new(name, 8 * byte_len as u32)?, shape, buffer)
}

/// Python's name of a type.
fn type_name(element_type: &ElementType) -> String {
    match element_type {
        ElementType::Known(data_type) => Element::name_of(*data_type).to_owned(),
        other => {
            let name = other.to_string();
            OPAQUE.iter().find(|row| row.1 == name).map_or(name, |row| row.0.to_owned())
        }
    }
}
