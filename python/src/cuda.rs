//! Tensors on GPUs: where they are, and on which CUDA stream their elements are made.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyDict;

use super::description::{Description, Place, describe_array};

/// CUDA's default stream. `__cuda_array_interface__` and DLPack call it 1.
const DEFAULT_STREAM: usize = 0;
const DEFAULT_STREAM_OF_INTERFACES: usize = 1;

/// Where a torch tensor is that is not on the CPU.
pub(super) fn place_of_torch(tensor: &Bound<'_, PyAny>) -> PyResult<Place> {
    let py = tensor.py();
    let device = tensor.getattr(intern!(py, "device"))?;
    if !tensor.getattr(intern!(py, "is_cuda"))?.is_truthy()? {
        return Err(PyValueError::new_err(format!("it is on {device}; give tensor.cpu()")));
    }
    let ordinal: u32 = device.getattr(intern!(py, "index"))?.extract()?;
    Ok(Place::Gpu { ordinal: Some(ordinal), stream: Some(stream_of_torch(py, ordinal)?) })
}

/// torch's current stream of a GPU.
fn stream_of_torch(py: Python<'_>, ordinal: u32) -> PyResult<usize> {
    let cuda = py.import(intern!(py, "torch"))?.getattr(intern!(py, "cuda"))?;
    let stream = cuda.call_method1(intern!(py, "current_stream"), (ordinal,))?;
    stream.getattr(intern!(py, "cuda_stream"))?.extract()
}

/// The stream on which the program works with a GPU: torch's current one if the program has used
/// torch there, else CUDA's default stream.
pub(super) fn current_stream(py: Python<'_>, ordinal: u32) -> PyResult<usize> {
    let modules = py.import(intern!(py, "sys"))?.getattr(intern!(py, "modules"))?.cast_into::<PyDict>()?;
    if let Some(torch) = modules.get_item("torch")? {
        let is_used = torch.getattr(intern!(py, "cuda"))?.call_method0(intern!(py, "is_initialized"))?;
        if is_used.is_truthy()? {
            return stream_of_torch(py, ordinal);
        }
    }
    Ok(DEFAULT_STREAM)
}

/// A stream as `__dlpack__` takes it.
pub(super) fn for_dlpack(stream: usize) -> usize {
    if stream == DEFAULT_STREAM { DEFAULT_STREAM_OF_INTERFACES } else { stream }
}

/// Describes an object by its `__cuda_array_interface__`, version 3.
pub(super) fn describe(object: &Bound<'_, PyAny>, interface: Bound<'_, PyAny>) -> PyResult<Description> {
    let py = object.py();
    let fields = interface.clone().cast_into::<PyDict>().map_err(PyErr::from)?;
    let field = |name| Ok::<_, PyErr>(fields.get_item(name)?.filter(|value| !value.is_none()));
    if field(intern!(py, "mask"))?.is_some() {
        return Err(PyTypeError::new_err("it has a mask, which this package does not apply"));
    }
    let stream = match field(intern!(py, "stream"))?.map(|stream| stream.extract()).transpose()? {
        Some(0usize) => {
            return Err(PyValueError::new_err("the stream of its array interface is 0, which has no meaning"));
        }
        Some(DEFAULT_STREAM_OF_INTERFACES) => Some(DEFAULT_STREAM),
        stream => stream,
    };
    let description = describe_array(object, interface)?;
    Ok(Description { place: Place::Gpu { ordinal: None, stream }, ..description })
}
