//! `distcollective._core`: what the Python package needs of the library. Its types and functions
//! are described in `distcollective/_core.pyi`, and users call `distcollective.distributed`.

mod communicator;
mod dlpack;
mod element;
mod environment;
mod errors;
mod interrupt;
mod strided;
mod tensor;
mod work;

use pyo3::prelude::*;

/// The module.
#[pymodule]
mod _core {
    #[pymodule_export]
    use super::communicator::Communicator;
    #[pymodule_export]
    use super::environment::{Environment, initialize};
    #[pymodule_export]
    use super::work::Work;
}
