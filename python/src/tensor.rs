//! Arrays and tensors of Python as memory of the library.

use std::collections::HashMap;

use distcollective::comm::TransferType;
use distcollective::tensor::MemorySpace;
use pyo3::exceptions::{PyMemoryError, PyTypeError, PyValueError};
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyType};

use super::cuda;
use super::description::{Description, Place, describe_array};
use super::dlpack;
use super::element::Element;
use super::strided::Strided;

/// What a call does with a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Access {
    Read,
    Write,
}

/// A tensor during a call.
pub(super) struct Tensor {
    pub element: Element,
    element_count: usize,
    shape: Vec<usize>,
    address: *mut u8,
    copy: Option<Copy>,
    is_written: bool,
    stream: Option<usize>,
    /// Keeps the memory alive.
    owner: Py<PyAny>,
}

/// The elements of a strided tensor, one after the other.
struct Copy {
    original: Strided,
    /// Aligned to every element type.
    words: Vec<u128>,
}

// SAFETY: the addresses are of memory that the owner and the copy keep alive on any thread. Only
// threads with the interpreter read and write it here.
unsafe impl Send for Tensor {}
// SAFETY: a shared reference gives no way to the memory but its address.
unsafe impl Sync for Tensor {}

impl Tensor {
    /// The tensor of an argument with this name, in the memory of a group.
    ///
    /// # Errors
    ///
    /// The object is no tensor, or one that the call cannot use.
    pub(super) fn of(object: &Bound<'_, PyAny>, name: &str, access: Access, space: MemorySpace) -> PyResult<Self> {
        let tensor = describe(object, access).and_then(|description| {
            description.place.check(space)?;
            Tensor::new(description, access)
        });
        tensor.map_err(|error| {
            let py = object.py();
            let is_ours = error.is_instance_of::<PyTypeError>(py) || error.is_instance_of::<PyValueError>(py);
            match is_ours {
                true => PyErr::from_type(error.get_type(py), format!("{name}: {}", error.value(py))),
                false => error,
            }
        })
    }

    fn new(description: Description, access: Access) -> PyResult<Self> {
        let Description { element, address, shape, strides, is_read_only, place, owner } = description;
        if access == Access::Write && is_read_only {
            return Err(PyValueError::new_err("it is read-only, and this call writes it; give a writable copy"));
        }
        let (element_count, is_written) = (shape.iter().product(), access == Access::Write);
        if address.is_null() && element_count > 0 {
            return Err(PyValueError::new_err("its address is null, and it has elements"));
        }
        element.check_aligned(address.addr(), strides.as_deref().unwrap_or_default())?;
        let stream = place.stream();
        let tensor = Tensor { element, element_count, shape, address, copy: None, is_written, stream, owner };
        let Some(strides) = strides else { return Ok(tensor) };
        if place != Place::Host {
            let hint = "its elements do not lie one after the other, and it is on a GPU; give a contiguous copy";
            return Err(PyValueError::new_err(hint));
        }
        let original = Strided { address, shape: tensor.shape.clone(), strides, byte_len: element.byte_len };
        if access == Access::Write && original.overlaps() {
            let hint = "several of its indices are one element of memory, and this call writes it; give a copy";
            return Err(PyValueError::new_err(hint));
        }
        let byte_len = element_count * element.byte_len;
        // Indices of a tensor that is read may be one element, so that the copy is much longer.
        let (mut words, len) = (Vec::new(), byte_len.div_ceil(size_of::<u128>()));
        let reserved = words.try_reserve_exact(len);
        reserved.map_err(|_| PyMemoryError::new_err(format!("there is no memory for a copy of {byte_len} bytes")))?;
        words.resize(len, 0u128);
        let address = words.as_mut_ptr().cast::<u8>();
        // SAFETY: the words have at least so many bytes. The object describes its own memory, which
        // the owner keeps alive.
        unsafe { original.pack(std::slice::from_raw_parts_mut(address, byte_len)) };
        Ok(Tensor { address, copy: Some(Copy { original, words }), ..tensor })
    }

    /// The first element.
    pub(super) fn address(&self) -> *mut u8 {
        self.address
    }

    /// The type of the elements, as the library has it.
    pub(super) fn transfer_type(&self) -> TransferType {
        self.element.transfer
    }

    /// The CUDA stream on which the elements are made, if they are on a GPU and may not be there.
    pub(super) fn stream(&self) -> Option<usize> {
        self.stream
    }

    pub(super) fn is_written(&self) -> bool {
        self.is_written
    }

    /// Whether its elements do not lie one after the other.
    pub(super) fn is_strided(&self) -> bool {
        self.copy.is_some()
    }

    /// The elements in the tensor's own memory.
    pub(super) fn elements(&self) -> Strided {
        match &self.copy {
            Some(copy) => copy.original.clone(),
            None => {
                // As one element.
                let byte_len = self.element_count * self.element.byte_len;
                let shape = vec![usize::from(byte_len > 0)];
                Strided { address: self.address, shape, strides: vec![0], byte_len }
            }
        }
    }

    /// The whole tensor as a block: its address and its number of elements.
    pub(super) fn block(&self) -> (*mut u8, usize) {
        (self.address(), self.element_count())
    }

    /// How many elements it has.
    pub(super) fn element_count(&self) -> usize {
        self.element_count
    }

    /// The length of dimension 0; 1 if the tensor has no dimension.
    pub(super) fn first_len(&self) -> usize {
        self.shape.first().copied().unwrap_or(1)
    }

    /// The length of each dimension.
    pub(super) fn shape(&self) -> &[usize] {
        &self.shape
    }

    /// Whether a tensor of torch, whose address is kept, has got other memory since: by `resize_`,
    /// `share_memory_` and the like.
    pub(super) fn has_moved(&self, py: Python<'_>) -> PyResult<bool> {
        match self.owner.bind(py).getattr_opt(intern!(py, "data_ptr"))? {
            Some(data_ptr) if self.copy.is_none() => Ok(data_ptr.call0()?.extract::<usize>()? != self.address.addr()),
            _ => Ok(false),
        }
    }

    /// Copies what a call has written to a strided tensor's own memory.
    pub(super) fn write_back(&self) {
        let Some(Copy { original, words }) = self.copy.as_ref().filter(|_| self.is_written) else { return };
        let byte_len = self.element_count * self.element.byte_len;
        // SAFETY: the words have at least so many bytes. The owner keeps the tensor's memory alive,
        // and `new` has checked that it is writable.
        unsafe { original.unpack(std::slice::from_raw_parts(words.as_ptr().cast(), byte_len)) };
    }
}

fn describe(object: &Bound<'_, PyAny>, access: Access) -> PyResult<Description> {
    static TORCH: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static SCALAR: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    static MASKED: PyOnceLock<Py<PyType>> = PyOnceLock::new();
    let py = object.py();
    if let Some(class) = class_if_imported(py, &TORCH, "torch", "Tensor")?
        && object.is_instance(class)?
    {
        return describe_torch(object, access);
    }
    if let Some(class) = class_if_imported(py, &SCALAR, "numpy", "generic")?
        && object.is_instance(class)?
    {
        if access == Access::Write {
            return Err(PyTypeError::new_err("it is a scalar of numpy, which cannot be written; give an array"));
        }
        // The interface of a scalar is of memory that nothing keeps alive.
        let array = py.import(intern!(py, "numpy"))?.call_method1(intern!(py, "asarray"), (object,))?;
        return describe_array(&array, array.getattr(intern!(py, "__array_interface__"))?);
    }
    if let Some(class) = class_if_imported(py, &MASKED, "numpy.ma", "MaskedArray")?
        && object.is_instance(class)?
    {
        return Err(PyTypeError::new_err("it is a masked array, whose mask would not count; give array.filled()"));
    }
    if let Some(interface) = object.getattr_opt(intern!(py, "__array_interface__"))? {
        return describe_array(object, interface);
    }
    if let Some(interface) = object.getattr_opt(intern!(py, "__cuda_array_interface__"))? {
        return cuda::describe(object, interface);
    }
    if object.hasattr(intern!(py, "__dlpack__"))? {
        return dlpack::describe(object);
    }
    let class = object.get_type().fully_qualified_name()?;
    Err(PyTypeError::new_err(format!(
        "it is a {class}, not a tensor; give an array of numpy, a tensor of torch, or an object with \
         __array_interface__, __cuda_array_interface__ or __dlpack__"
    )))
}

/// A class of a module, if the program has imported that.
fn class_if_imported<'a, 'py>(
    py: Python<'py>,
    class: &'a PyOnceLock<Py<PyType>>,
    module: &str,
    name: &str,
) -> PyResult<Option<&'a Bound<'py, PyType>>> {
    static MODULES: PyOnceLock<Py<PyDict>> = PyOnceLock::new();
    if class.get(py).is_none() && !MODULES.import(py, "sys", "modules")?.contains(module)? {
        return Ok(None);
    }
    class.import(py, module, name).map(Some)
}

fn describe_torch(tensor: &Bound<'_, PyAny>, access: Access) -> PyResult<Description> {
    let py = tensor.py();
    let is = |name| tensor.getattr(name)?.is_truthy();
    let place = match is(intern!(py, "is_cpu"))? {
        true => Place::Host,
        false => cuda::place_of_torch(tensor)?,
    };
    let layout = tensor.getattr(intern!(py, "layout"))?.to_string();
    if layout != "torch.strided" {
        return Err(PyTypeError::new_err(format!("its layout is {layout}; give tensor.to_dense()")));
    }
    let element = torch_element(tensor)?;
    if access == Access::Write && is(intern!(py, "requires_grad"))? {
        let hint = "it requires grad, and autograd would not see what this call writes; give tensor.detach()";
        return Err(PyValueError::new_err(hint));
    }
    // A tensor of our own: the program may give its tensor another memory, by `set_` or `data`.
    let tensor = tensor.call_method0(intern!(py, "detach"))?;
    let call = |name| tensor.call_method0(name);
    if call(intern!(py, "is_conj"))?.is_truthy()? || call(intern!(py, "is_neg"))?.is_truthy()? {
        let hint =
            "its values are those of its memory, conjugated or negated; give tensor.resolve_conj().resolve_neg()";
        return Err(PyValueError::new_err(hint));
    }
    let address: usize = call(intern!(py, "data_ptr"))?.extract()?;
    let shape = tensor.getattr(intern!(py, "shape"))?.extract()?;
    let strides = if call(intern!(py, "is_contiguous"))?.is_truthy()? {
        None
    } else {
        let strides: Vec<isize> = call(intern!(py, "stride"))?.extract()?;
        Some(strides.into_iter().map(|stride| stride * element.byte_len as isize).collect())
    };
    let address = std::ptr::with_exposed_provenance_mut(address);
    Ok(Description { element, address, shape, strides, is_read_only: false, place, owner: tensor.unbind() })
}

/// The element type of a torch tensor, by the address of its dtype, of which there is one each.
fn torch_element(tensor: &Bound<'_, PyAny>) -> PyResult<Element> {
    static DTYPES: PyOnceLock<HashMap<usize, Element>> = PyOnceLock::new();
    let py = tensor.py();
    let dtype = tensor.getattr(intern!(py, "dtype"))?;
    let dtypes = DTYPES.get_or_try_init(py, || {
        let torch = py.import("torch")?;
        let of = |element: Element| Ok(torch.getattr_opt(element.name)?.map(|dtype| (dtype.as_ptr().addr(), element)));
        Element::all().filter_map(|element| of(element).transpose()).collect::<PyResult<_>>()
    })?;
    dtypes
        .get(&dtype.as_ptr().addr())
        .copied()
        .ok_or_else(|| PyTypeError::new_err(format!("its elements are {dtype}, which this package does not move")))
}
