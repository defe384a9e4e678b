//! What a stream runs, and the steps that are the same on every stream.

use std::sync::Arc;
use std::time::Instant;

use super::queued_work::TaskCell;
use crate::cuda::CudaStream;
use crate::error::{Error, Result};
use crate::issue_order::IssueTicket;

/// Work for a stream. It owns or shares everything that it touches, so that leaking its handle is
/// sound.
pub(crate) trait Task: Send + Sized + 'static {
    /// Does the work, or enqueues it on a CUDA stream.
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()>;

    /// Adds to an error which work it is about.
    fn label(&self, error: Error) -> Error {
        error
    }

    /// The communicator of the task, and the deadline of the work.
    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        None
    }

    /// Drops what only the run needs, before the caller gets the task back.
    fn finish(&mut self) {}

    /// Keeps the cell for the next submit, in a task that is submitted many times.
    fn keep_cell(&mut self, _cell: Arc<TaskCell<Self>>) {}
}

/// A communicator, to a thread that waits for its work.
pub(crate) trait Watch: Send + Sync {
    /// Checks that the communicator still works.
    ///
    /// # Errors
    ///
    /// The error that ended it.
    fn check(&self) -> Result<()>;

    /// [`check`](Self::check) for each small call: it does not compare what the ranks have called.
    fn check_ended(&self) -> Result<()> {
        self.check()
    }

    /// After work has ended: checks that it was not aborted, and that the ranks called the same, if
    /// the backend does not know that from the work itself.
    ///
    /// # Errors
    ///
    /// The error that ended the communicator, or ranks made different calls.
    fn check_result(&self) -> Result<()> {
        Ok(())
    }

    /// Ends the communicator because of an error of this rank. Gives the error that this call and
    /// every later one returns.
    fn fail(&self, error: Error) -> Error;
}

/// Waits until it is a task's turn.
pub(super) fn wait_for_turn<T: Task>(task: &T, ticket: Option<&IssueTicket<'_>>) -> Result<()> {
    let Some(ticket) = ticket.filter(|ticket| !ticket.is_next()) else { return Ok(()) };
    let Some((watch, deadline)) = task.watch() else { return Ok(()) };
    let turn = ticket.wait(deadline, || watch.check(), |error| task.label(error));
    turn.map_err(|error| match watch.check() {
        // This rank leaves a collective out, so the communicator ends: its peers would wait until
        // their deadline.
        Ok(()) => watch.fail(error),
        Err(_) => task.label(error),
    })
}

/// Runs a task whose turn has come, and drops the ticket.
pub(super) fn run_in_turn<T: Task>(
    task: &mut T,
    ticket: Option<IssueTicket<'_>>,
    stream: Option<&Arc<CudaStream>>,
) -> Result<()> {
    match ticket {
        Some(ticket) => ticket.run(|| task.run(stream)),
        None => task.run(stream),
    }
}
