//! Engines.

use distcollective::engine::IoMode;
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use super::Context;
use super::plugin::registry;
use crate::errors::call;

/// A network that is ready to run.
#[pyclass(frozen, module = "distcollective._core")]
pub(crate) struct Engine {
    engine: distcollective::Engine,
}

/// An input or output: its name, whether it is an input, the number of its type, its dimensions.
type IoTensor = (String, bool, i32, Vec<i64>);

impl Engine {
    pub(super) fn new(engine: distcollective::Engine) -> Self {
        Engine { engine }
    }
}

#[pymethods]
impl Engine {
    /// Reads plan bytes, with plugins: name, version, and a function that makes one from bytes.
    #[staticmethod]
    fn deserialize(py: Python<'_>, plan: &[u8], plugins: Vec<(String, String, Py<PyAny>)>) -> PyResult<Self> {
        call(py, || distcollective::Engine::deserialize_with(plan, &registry(plugins)?)).map(Engine::new)
    }

    fn serialize<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyBytes>> {
        call(py, || self.engine.serialize()).map(|plan| PyBytes::new(py, &plan))
    }

    /// The inputs, then the outputs.
    fn io_tensors(&self) -> Vec<IoTensor> {
        let describe = |io: &distcollective::engine::IoTensor| {
            (io.name.clone(), io.mode == IoMode::Input, io.data_type.number(), io.dims.as_slice().to_vec())
        };
        self.engine.io_tensors().iter().map(describe).collect()
    }

    /// The shapes of an input or output at min, opt and max of a profile.
    fn profile_shapes(&self, py: Python<'_>, name: &str, profile: usize) -> PyResult<Vec<Vec<usize>>> {
        let shapes = call(py, || self.engine.profile_shapes(name, profile))?;
        Ok(shapes.iter().map(|shape| shape.as_slice().to_vec()).collect())
    }

    fn profile_count(&self) -> usize {
        self.engine.optimization_profile_count()
    }

    fn fingerprint(&self) -> &str {
        self.engine.fingerprint()
    }

    fn warnings(&self) -> Vec<String> {
        self.engine.warnings().to_vec()
    }

    /// Layers, schedule and memory, as text or as JSON.
    fn inspect(&self, json: bool) -> String {
        let inspection = self.engine.inspect();
        if json { inspection.to_json().to_string() } else { inspection.to_string() }
    }

    fn create_context(&self, py: Python<'_>) -> PyResult<Context> {
        call(py, || self.engine.create_execution_context()).map(Context::new)
    }
}
