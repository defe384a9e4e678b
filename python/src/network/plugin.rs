//! Plugins that a program writes in Python. `distcollective/tensorrt/_plugins.py` has the other
//! side.

use distcollective::network::{Plugin, PluginCall, PluginRegistry};
use distcollective::tensor::{MemorySpace, Shape, TensorView};
use distcollective::{DataType, Error, ErrorKind};
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyByteArray;

use crate::errors;
use crate::tensor::{Access, Tensor};

/// A plugin of Python.
#[derive(Debug)]
pub(super) struct PythonPlugin {
    type_name: String,
    version: String,
    /// An `_Adapter`, whose methods take and give numbers, lists and bytes.
    adapter: Py<PyAny>,
}

/// A tensor for Python: the number of its type, its shape, its elements.
type Described = (i32, Vec<usize>, Py<PyByteArray>);

impl PythonPlugin {
    pub(super) fn new(adapter: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(PythonPlugin {
            type_name: adapter.getattr("type_name")?.extract()?,
            version: adapter.getattr("version")?.extract()?,
            adapter: adapter.clone().unbind(),
        })
    }

    /// Calls Python.
    fn call<R>(&self, act: impl FnOnce(&Bound<'_, PyAny>) -> PyResult<R>) -> Result<R, Error> {
        attached(|py| act(self.adapter.bind(py)))
    }
}

/// Calls Python, and gives an exception as an error of the library.
fn attached<R>(act: impl FnOnce(Python<'_>) -> PyResult<R>) -> Result<R, Error> {
    let called = Python::try_attach(|py| act(py).map_err(|raised| failed(py, raised)));
    called.unwrap_or_else(|| Err(Error::new(ErrorKind::Plugin, "Python has ended")))
}

fn failed(py: Python<'_>, raised: PyErr) -> Error {
    if raised.is_instance_of::<PyException>(py) {
        // The communicator goes on after this one.
        let is_refused = errors::kind_is(py, &raised, ErrorKind::RunRefused);
        let kind = if is_refused { ErrorKind::RunRefused } else { ErrorKind::Plugin };
        return Error::new(kind, format!("the plugin raised {raised}")).with_source(raised);
    }
    // Ctrl-C, or the end of the program: it goes on behind this call.
    let error = Error::new(ErrorKind::Interrupted, format!("the plugin was interrupted by {raised}"));
    errors::raise_after_call(raised);
    error
}

impl Plugin for PythonPlugin {
    fn type_name(&self) -> &str {
        &self.type_name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>, Error> {
        let inputs: Vec<i32> = inputs.iter().map(|data_type| data_type.number()).collect();
        let outputs: Vec<i32> = self.call(|adapter| adapter.call_method1("output_types", (inputs,))?.extract())?;
        outputs.into_iter().map(DataType::from_number).collect()
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>, Error> {
        let inputs: Vec<&[usize]> = inputs.iter().map(Shape::as_slice).collect();
        let outputs: Vec<Vec<usize>> =
            self.call(|adapter| adapter.call_method1("output_shapes", (inputs,))?.extract())?;
        outputs.iter().map(|dims| Shape::new(dims)).collect()
    }

    /// The plugin gets copies: it may keep its arrays, and the library's memory goes on to others.
    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<(), Error> {
        self.call(|adapter| {
            let py = adapter.py();
            let inputs = call.inputs().map(|input| described(py, &input)).collect::<PyResult<Vec<Described>>>()?;
            let outputs: Vec<_> =
                call.outputs().map(|output| (output.data_type().number(), dims(output.shape()))).collect();
            let arrays: Vec<Bound<'_, PyAny>> = adapter.call_method1("enqueue", (inputs, outputs))?.extract()?;
            for (array, mut output) in arrays.iter().zip(call.outputs()) {
                let tensor = Tensor::of(array, "output", Access::Read, MemorySpace::Host)?;
                let (data_type, element_count) = (output.data_type(), output.element_count());
                if tensor.transfer_type() != data_type.into() || tensor.element_count() != element_count {
                    let text = format!("an output is not {element_count} elements of {data_type}");
                    return Err(PyValueError::new_err(text));
                }
                let byte_len = element_count * data_type.byte_len();
                // SAFETY: both have so many bytes, and the array is a memory of its own.
                unsafe { output.as_mut_ptr().copy_from_nonoverlapping(tensor.address(), byte_len) };
            }
            Ok(())
        })
    }

    fn serialize(&self) -> Result<Vec<u8>, Error> {
        self.call(|adapter| adapter.call_method0("serialize")?.extract())
    }
}

fn dims(shape: Option<Shape>) -> Vec<usize> {
    shape.unwrap_or_default().as_slice().to_vec()
}

/// A copy of a tensor for Python.
fn described(py: Python<'_>, tensor: &TensorView<'_>) -> PyResult<Described> {
    let byte_len = tensor.element_count() * tensor.data_type().byte_len();
    let bytes = PyByteArray::new_with(py, byte_len, |bytes| {
        // SAFETY: a view has so many bytes, which are apart from the new ones.
        unsafe { bytes.as_mut_ptr().copy_from_nonoverlapping(tensor.as_ptr(), byte_len) };
        Ok(())
    })?;
    Ok((tensor.data_type().number(), dims(tensor.shape()), bytes.unbind()))
}

/// A registry of plugins by their names and versions. Each has a function that makes an adapter
/// from bytes.
pub(super) fn registry(plugins: Vec<(String, String, Py<PyAny>)>) -> Result<PluginRegistry, Error> {
    let mut registry = PluginRegistry::new();
    for (name, version, create) in plugins {
        registry.register(&name, &version, move |bytes| {
            attached(|py| PythonPlugin::new(&create.bind(py).call1((bytes,))?))
        })?;
    }
    Ok(registry)
}
