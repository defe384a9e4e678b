//! Where an object of Python has its elements.

use distcollective::tensor::MemorySpace;
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};
use pyo3::{PyTypeInfo, intern};

use super::element::Element;
use super::strided::Strided;

/// Where an object of Python has its elements.
pub(super) struct Description {
    pub element: Element,
    pub address: *mut u8,
    pub shape: Vec<usize>,
    /// In bytes; `None` if the elements lie one after the other.
    pub strides: Option<Vec<isize>>,
    pub is_read_only: bool,
    pub place: Place,
    /// Keeps the memory alive.
    pub owner: Py<PyAny>,
}

/// In which memory a tensor is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    Host,
    /// On a GPU; `None` if the object does not say on which. Work on the CUDA stream makes the
    /// elements; without one they are there.
    Gpu {
        ordinal: Option<u32>,
        stream: Option<usize>,
    },
}

impl Place {
    /// The CUDA stream on which the elements are made.
    pub(super) fn stream(self) -> Option<usize> {
        match self {
            Place::Host => None,
            Place::Gpu { stream, .. } => stream,
        }
    }

    /// Checks that a tensor is in the memory of a group.
    pub(super) fn check(self, space: MemorySpace) -> PyResult<()> {
        let problem = match (self, space) {
            (Place::Host, MemorySpace::Host) | (Place::Gpu { ordinal: None, .. }, MemorySpace::Cuda(_)) => {
                return Ok(());
            }
            (Place::Gpu { ordinal: Some(ordinal), .. }, MemorySpace::Cuda(own)) if ordinal == own => return Ok(()),
            (Place::Host, _) => {
                format!(
                    "it is in host memory, and the group's tensors are in {space}; give a copy there, or use a group of gloo"
                )
            }
            (Place::Gpu { ordinal, .. }, _) => {
                let gpu = ordinal.map_or("a GPU".to_owned(), |ordinal| format!("GPU {ordinal}"));
                format!(
                    "it is on {gpu}, and the group's tensors are in {space}; give a copy there, such as tensor.cpu()"
                )
            }
        };
        Err(PyValueError::new_err(problem))
    }
}

/// Describes an array by its `__array_interface__`, or by `__cuda_array_interface__`, which has the
/// same fields.
pub(super) fn describe_array(array: &Bound<'_, PyAny>, interface: Bound<'_, PyAny>) -> PyResult<Description> {
    let py = array.py();
    let interface = interface.cast_into::<PyDict>().map_err(PyErr::from)?;
    let field = |name: &str| match interface.get_item(name)? {
        Some(value) if !value.is_none() => Ok(Some(value)),
        _ => Ok::<_, PyErr>(None),
    };
    let missing = |name: &str| PyTypeError::new_err(format!("its array interface has no {name} that is known here"));
    let typestr: String = field("typestr")?.ok_or_else(|| missing("typestr"))?.extract()?;
    let dtype_name = || match array.getattr_opt(intern!(py, "dtype"))? {
        Some(dtype) => dtype.getattr(intern!(py, "name"))?.extract(),
        None => Ok(format!("void, by {typestr:?}")),
    };
    let element = Element::of_array(&typestr, dtype_name)?;
    let data = field("data")?.filter(PyTuple::is_type_of).ok_or_else(|| missing("data"))?;
    let (address, is_read_only): (usize, bool) = data.extract()?;
    let shape: Vec<usize> = field("shape")?.ok_or_else(|| missing("shape"))?.extract()?;
    let strides: Option<Vec<isize>> = field("strides")?.map(|strides| strides.extract()).transpose()?;
    let strides = strides.filter(|strides| !Strided::is_contiguous(&shape, strides, element.byte_len));
    let address = std::ptr::with_exposed_provenance_mut(address);
    // An object may make its interface, and what that refers to, each time anew.
    let owner = (array, &interface).into_pyobject(py)?.into_any().unbind();
    Ok(Description { element, address, shape, strides, is_read_only, place: Place::Host, owner })
}
