//! Dictionaries of tensors. The source's tensors are sent from where they are.

use distcollective::comm::TransferType;
use distcollective::tensor::{MemorySpace, Shape};
use distcollective::tensor_dict::{BroadcastOptions, ElementType, OpaqueType, Tensor};
use distcollective::{Buffer, Communicator, DataType, Error, ErrorKind, TensorDict};
use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyDict};

use super::element::Element;
use super::errors::{call, exception};
use super::tensor::{self, Access};

/// A tensor of Python, by its name in the dictionary.
pub(super) type Entry<'py> = (String, Bound<'py, PyAny>);

/// What a rank gives: nothing if it is not the source.
#[derive(Default)]
pub(super) struct OwnTensors {
    pub(super) tensors: Vec<tensor::Tensor>,
    names: Vec<String>,
}

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
    /// What is wrong with the caller's arguments, which every rank is told.
    refusal: Option<String>,
}

/// The names of types that the library does not know, here and in files of safetensors.
const OPAQUE: [(&str, &str); 3] = [("int16", "I16"), ("uint16", "U16"), ("complex64", "C64")];

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

/// The tensors that this rank gives.
///
/// # Errors
///
/// The caller's arguments are refused, or a tensor of the source is.
pub(super) fn own_tensors(
    py: Python<'_>,
    communicator: &Communicator,
    entries: Option<Vec<Entry<'_>>>,
    options: &Options,
) -> PyResult<OwnTensors> {
    let refuse = |text: &str| exception(py, &Error::new(ErrorKind::InvalidArgument, text));
    if let Some(text) = &options.refusal {
        return Err(refuse(text));
    }
    let mut own = OwnTensors::default();
    if communicator.rank().0 != options.src {
        return Ok(own);
    }
    let entries = entries.ok_or_else(|| refuse("tensor_dict is None, and this rank is the source"))?;
    for (name, object) in entries {
        own.tensors.push(tensor::Tensor::of(&object, &name, Access::Read, communicator.space())?);
        own.names.push(name);
    }
    Ok(own)
}

/// Gives every rank the dictionary of the source. The source itself gets an empty list. What a rank
/// refuses is an error on every rank.
pub(super) fn broadcast(
    py: Python<'_>,
    communicator: &Communicator,
    own: PyResult<OwnTensors>,
    options: &Options,
) -> PyResult<Vec<Arrived>> {
    let is_source = communicator.rank().0 == options.src;
    let mut how = BroadcastOptions::new().src(options.src);
    if options.on_host {
        how = how.device(MemorySpace::Host);
    }
    // The tensors live longer than the dictionary.
    let borrowed = own.and_then(|own| {
        let dict = dict_of(&own, communicator.space()).map_err(|error| exception(py, &error))?;
        Ok((own, dict))
    });
    let (_own, mut dict, how, refusal) = match borrowed {
        Ok((own, dict)) => (own, dict, how, None),
        Err(raised) => {
            let refused = Error::new(ErrorKind::InvalidArgument, raised.value(py).to_string());
            (OwnTensors::default(), TensorDict::new(), how.refuse(refused), Some(raised))
        }
    };
    let broadcast = call(py, || communicator.broadcast_tensor_dict(&mut dict, &how));
    match (broadcast, refusal) {
        // An interrupt of the program's is no answer to the refusal.
        (Err(raised), Some(_)) if !raised.is_instance_of::<PyException>(py) => return Err(raised),
        // The program gets the exception as it was raised.
        (_, Some(refused)) => return Err(refused),
        (broadcast, None) => broadcast?,
    }
    if is_source {
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

/// The dictionary of these tensors, in their memory. The caller drops it before them.
fn dict_of(own: &OwnTensors, space: MemorySpace) -> Result<TensorDict, Error> {
    let mut dict = TensorDict::new();
    for (name, tensor) in own.names.iter().zip(&own.tensors) {
        // SAFETY: the caller's promise, and the library only reads the source's tensors.
        dict.insert(name, unsafe { borrow(tensor, space)? });
    }
    Ok(dict)
}

/// A tensor of the library in the memory of Python's.
///
/// # Safety
///
/// The tensor of the library is dropped before Python's, and nothing writes the memory until then.
unsafe fn borrow(tensor: &tensor::Tensor, space: MemorySpace) -> Result<Tensor, Error> {
    let (shape, Element { name, byte_len, transfer }) = (Shape::new(tensor.shape())?, tensor.element);
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
