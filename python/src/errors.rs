//! The library's errors as Python's exceptions, which `distcollective/errors.py` defines.

use distcollective::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

use super::interrupt;

/// The exception of an error of the library. If the interrupt hook ended a wait, this is the
/// exception that the program's signal handler raised.
pub(super) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if error.kind() == ErrorKind::Interrupted
        && let Some(raised) = interrupt::take_raised()
    {
        return raised;
    }
    match new_exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

fn new_exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    type Class = PyOnceLock<Py<PyType>>;
    static ERROR: Class = PyOnceLock::new();
    static TIMEOUT: Class = PyOnceLock::new();
    static ARGUMENT: Class = PyOnceLock::new();
    let (class, name) = match error.kind() {
        ErrorKind::DeadlineExceeded => (&TIMEOUT, "DeadlineError"),
        ErrorKind::InvalidArgument | ErrorKind::InvalidShape | ErrorKind::InvalidBuffer | ErrorKind::NotAMember => {
            (&ARGUMENT, "ArgumentError")
        }
        _ => (&ERROR, "Error"),
    };
    let exception = class.import(py, "distcollective.errors", name)?.call1((error.to_string(),))?;
    exception.setattr("kind", format!("{:?}", error.kind()))?;
    Ok(exception)
}
