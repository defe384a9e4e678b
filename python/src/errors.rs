//! The library's errors as Python's exceptions, which `distcollective/errors.py` defines.

use std::cell::RefCell;
use std::error::Error as _;

use distcollective::{Error, ErrorKind};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyType;

thread_local! {
    /// What a signal handler raised in a wait of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Calls the library without the interpreter.
///
/// # Errors
///
/// The library's error as an exception; or what a signal handler of the program raised.
pub(super) fn call<R: Send>(py: Python<'_>, act: impl FnOnce() -> Result<R, Error> + Send) -> PyResult<R> {
    check_raised()?;
    py.detach(act).map_err(|error| exception(py, &error))
}

/// The exception of an error of the library. If a signal handler of the program raised an exception
/// in the call, it is that one, whatever the error is: the wait may have ended otherwise meanwhile.
pub(super) fn exception(py: Python<'_>, error: &Error) -> PyErr {
    if let Err(raised) = check_raised() {
        return raised;
    }
    match new_exception(py, error) {
        Ok(exception) => PyErr::from_value(exception),
        Err(failed) => failed,
    }
}

/// Raises what a signal handler has raised in a wait of this thread, if no call has done so.
pub(super) fn check_raised() -> PyResult<()> {
    RAISED.take().map_or(Ok(()), Err)
}

/// Whether [`check_raised`] would raise something.
pub(super) fn has_raised() -> bool {
    RAISED.with_borrow(Option::is_some)
}

/// Has the call of the library on this thread raise an exception, which is not an error of its own.
pub(super) fn raise_after_call(raised: PyErr) {
    RAISED.set(Some(raised));
}

/// Whether an exception is an error of the library of this kind.
pub(super) fn kind_is(py: Python<'_>, raised: &PyErr, kind: ErrorKind) -> bool {
    let found = raised.value(py).getattr("kind").and_then(|found| found.extract::<String>());
    found.is_ok_and(|found| found == format!("{kind:?}"))
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
    // Programs for torch look for the word.
    let hint = if error.kind() == ErrorKind::DeadlineExceeded { "; the timeout is over" } else { "" };
    let exception = class.import(py, "distcollective.errors", name)?.call1((format!("{error}{hint}"),))?;
    exception.setattr("kind", format!("{:?}", error.kind()))?;
    // What a plugin raised.
    if let Some(cause) = error.source().and_then(|source| source.downcast_ref::<PyErr>()) {
        exception.setattr("__cause__", cause.value(py))?;
    }
    Ok(exception)
}
