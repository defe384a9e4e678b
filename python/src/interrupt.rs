//! Ctrl-C: the library's waits run Python's signal handlers.

use std::cell::RefCell;
use std::ops::ControlFlow;

use distcollective::ErrorKind;
use distcollective::interrupt::set_interrupt_hook;
use pyo3::prelude::*;

use super::errors::exception;

thread_local! {
    /// What a signal handler raised in a wait of this thread.
    static RAISED: RefCell<Option<PyErr>> = const { RefCell::new(None) };
}

/// Has every wait of the library run Python's signal handlers. Python runs them on its main thread
/// only; on other threads this does nothing.
pub(super) fn install(py: Python<'_>) -> PyResult<()> {
    // Without the interpreter, because this waits until no thread is inside the hook.
    let installed = py.detach(|| {
        set_interrupt_hook(|| match Python::try_attach(|py| py.check_signals()) {
            Some(Err(raised)) => {
                RAISED.set(Some(raised));
                ControlFlow::Break(())
            }
            Some(Ok(())) | None => ControlFlow::Continue(()),
        })
    });
    match installed {
        // This process was forked from one that has the hook, and cannot have one itself.
        Err(error) if error.kind() == ErrorKind::Unsupported => Ok(()),
        installed => installed.map_err(|error| exception(py, &error)),
    }
}

/// Raises what a signal handler has raised in a wait of this thread, if no call has done so.
pub(super) fn check_raised() -> PyResult<()> {
    RAISED.take().map_or(Ok(()), Err)
}

/// Has the call of the library on this thread raise an exception, which is not an error of its own.
pub(super) fn raise_after_call(raised: PyErr) {
    RAISED.set(Some(raised));
}
