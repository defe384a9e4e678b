//! `distcollective._core`: what the Python package needs of the library. Its types and functions
//! are described in `distcollective/_core.pyi`, and users call `distcollective.distributed`.

mod addresses;
mod communicator;
mod cuda;
mod description;
mod dlpack;
mod element;
mod environment;
mod errors;
mod interrupt;
mod memory;
mod network;
mod onnxruntime;
mod strided;
mod tensor;
mod tensor_dict;
mod timeout;
mod work;

/// `RegisterCustomOps`, which ONNX Runtime calls.
pub use distcollective_onnxruntime::register_custom_ops;

use pyo3::exceptions::PyImportError;
use pyo3::ffi;
use pyo3::prelude::*;

/// Checks that the interpreter is the process's first. What this package keeps, such as classes,
/// belongs to one interpreter.
fn check_interpreter() -> PyResult<()> {
    // SAFETY: a thread that imports a module has an interpreter.
    match unsafe { ffi::PyInterpreterState_GetID(ffi::PyInterpreterState_Get()) } {
        0 => Ok(()),
        _ => Err(PyImportError::new_err("distcollective does not work in subinterpreters; import it in the first one")),
    }
}

/// The module.
#[pymodule]
mod _core {
    use pyo3::prelude::*;

    #[pymodule_init]
    fn initialize_module(_module: &Bound<'_, PyModule>) -> PyResult<()> {
        super::check_interpreter()
    }

    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::environment::{Environment, connect, from_mpi, in_process, initialize};
    #[pymodule_export]
    use super::network::{Context, Engine, Layer, LayerId, Network, TensorId};
    #[pymodule_export]
    use super::onnxruntime::SessionCommunicator;
    #[pymodule_export]
    use super::tensor_dict::GpuBytes;
    #[pymodule_export]
    use super::work::Work;
}
