//! Ctrl-C: the library's waits run Python's signal handlers.

use std::cell::Cell;
use std::ops::ControlFlow;

use distcollective::interrupt::set_interrupt_hook;
use distcollective::{Error, ErrorKind};
use pyo3::prelude::*;

use super::errors::{exception, raise_after_call};

thread_local! {
    /// Whether a wait of this thread runs signal handlers now.
    static IN_HANDLER: Cell<bool> = const { Cell::new(false) };
}

/// Has every wait of the library run Python's signal handlers. Python runs them on its main thread
/// only; on other threads this does nothing.
pub(super) fn install(py: Python<'_>) -> PyResult<()> {
    // Without the interpreter, because this waits until no thread is inside the hook.
    let installed = py.detach(|| {
        set_interrupt_hook(|| match Python::try_attach(run_handlers) {
            Some(Err(raised)) => {
                raise_after_call(raised);
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

fn run_handlers(py: Python<'_>) -> PyResult<()> {
    IN_HANDLER.set(true);
    let ran = py.check_signals();
    IN_HANDLER.set(false);
    ran
}

/// Checks that no wait of this thread runs the calling code as a signal handler: that wait may hold
/// what the handler waits for.
pub(super) fn check_may_wait(py: Python<'_>) -> PyResult<()> {
    if !IN_HANDLER.get() {
        return Ok(());
    }
    let text =
        "a signal handler that runs inside a wait of this package cannot wait for work; let it set a flag instead";
    Err(exception(py, &Error::new(ErrorKind::InvalidArgument, text)))
}
