//! DLPack: how a library that is neither numpy nor torch gives its tensor.

use std::ffi::{CStr, c_void};

use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyCapsule, PyDict};

use super::cuda;
use super::description::{Description, Place};
use super::element::Element;
use super::strided::Strided;

/// `DLTensor`.
#[repr(C)]
struct DlTensor {
    data: *mut u8,
    device_type: i32,
    device_id: i32,
    dimension_count: i32,
    type_code: u8,
    type_bits: u8,
    type_lanes: u16,
    shape: *const i64,
    /// In elements; null if they lie one after the other.
    strides: *const i64,
    byte_offset: u64,
}

/// `DLManagedTensorVersioned`, which versions from 1.0 on give.
#[repr(C)]
struct DlManagedTensorVersioned {
    major: u32,
    minor: u32,
    manager: *mut c_void,
    deleter: Option<unsafe extern "C" fn(*mut DlManagedTensorVersioned)>,
    flags: u64,
    tensor: DlTensor,
}

const VERSIONED: &CStr = c"dltensor_versioned";
/// The name of a capsule with a `DLManagedTensor`, which begins with its `DLTensor`.
const UNVERSIONED: &CStr = c"dltensor";
const MAJOR_VERSION: u32 = 1;
const READ_ONLY: u64 = 1;
/// The memory is a copy, and what is written to it is lost.
const IS_COPIED: u64 = 2;

/// kDLCPU, and kDLCUDAHost: memory of the host that a GPU reaches too.
const HOST_DEVICES: [i32; 2] = [1, 3];

/// kDLCUDA.
const CUDA: i32 = 2;

/// Describes an object with the method `__dlpack__`. The capsule owns the tensor until it is freed.
pub(super) fn describe(object: &Bound<'_, PyAny>) -> PyResult<Description> {
    let py = object.py();
    let export = object.getattr(intern!(py, "__dlpack__"))?;
    // An object on a GPU makes its elements ready on the stream that it is told.
    let device: Option<(i32, i32)> =
        object.getattr_opt(intern!(py, "__dlpack_device__"))?.map(|device| device.call0()?.extract()).transpose()?;
    let stream = match device {
        Some((CUDA, ordinal)) => Some(cuda::current_stream(py, ordinal.try_into().unwrap_or_default())?),
        _ => None,
    };
    let given = PyDict::new(py);
    if let Some(stream) = stream {
        given.set_item("stream", cuda::for_dlpack(stream))?;
    }
    let newest = given.copy()?;
    newest.set_item("max_version", (MAJOR_VERSION, 0))?;
    // An older object does not know that argument.
    let capsule = match export.call((), Some(&newest)) {
        Err(error) if error.is_instance_of::<PyTypeError>(py) => export.call((), Some(&given))?,
        exported => exported?,
    };
    let capsule = capsule.cast_into::<PyCapsule>().map_err(PyErr::from)?;
    let (tensor, is_read_only) = if capsule.is_valid_checked(Some(VERSIONED)) {
        let pointer = capsule.pointer_checked(Some(VERSIONED))?.cast::<DlManagedTensorVersioned>();
        // SAFETY: a capsule of this name has this structure, and lives as long as this function.
        let managed = unsafe { pointer.as_ref() };
        if managed.major != MAJOR_VERSION {
            let version = managed.major;
            return Err(PyTypeError::new_err(format!("it is of DLPack's version {version}, which is not known here")));
        }
        (&managed.tensor, managed.flags & (READ_ONLY | IS_COPIED) != 0)
    } else {
        let pointer = capsule.pointer_checked(Some(UNVERSIONED))?.cast::<DlTensor>();
        // SAFETY: a capsule of this name begins with this structure, and lives as long as this
        // function.
        (unsafe { pointer.as_ref() }, false)
    };
    let place = match tensor.device_type {
        device_type if HOST_DEVICES.contains(&device_type) => Place::Host,
        CUDA => {
            let ordinal = u32::try_from(tensor.device_id).ok();
            Place::Gpu { ordinal, stream: Some(stream.unwrap_or_default()) }
        }
        device_type => {
            let device = format!("device {} of DLPack's type {device_type}", tensor.device_id);
            return Err(PyTypeError::new_err(format!("it is on {device}; give a copy in the host's memory")));
        }
    };
    let element = Element::of_dlpack(tensor.type_code, tensor.type_bits, tensor.type_lanes)?;
    let dimensions = usize::try_from(tensor.dimension_count).unwrap_or_default();
    let read = |numbers: *const i64| match dimensions {
        0 => &[],
        // SAFETY: DLPack has as many numbers as dimensions at these addresses.
        _ => unsafe { std::slice::from_raw_parts(numbers, dimensions) },
    };
    let shape: Vec<usize> = read(tensor.shape).iter().map(|&len| len as usize).collect();
    let strides: Option<Vec<isize>> = (!tensor.strides.is_null())
        .then(|| read(tensor.strides).iter().map(|&stride| stride as isize * element.byte_len as isize).collect());
    let strides = strides.filter(|strides| !Strided::is_contiguous(&shape, strides, element.byte_len));
    let address = tensor.data.wrapping_add(tensor.byte_offset as usize);
    let owner = capsule.into_any().unbind();
    Ok(Description { element, address, shape, strides, is_read_only, place, owner })
}
