//! Communicators for the sessions of ONNX Runtime.

use pyo3::prelude::*;

use super::communicator::Communicator;

/// A communicator that sessions can be made with, as long as this lives.
#[pyclass(frozen, module = "distcollective._core")]
pub(super) struct SessionCommunicator(distcollective_onnxruntime::SessionCommunicator);

#[pymethods]
impl SessionCommunicator {
    #[new]
    fn new(communicator: &Communicator) -> Self {
        SessionCommunicator(distcollective_onnxruntime::SessionCommunicator::new(communicator.library()))
    }

    /// The value of the session config entry `distcollective.communicator`.
    #[getter]
    fn value(&self) -> String {
        self.0.value()
    }
}
