//! What a stream runs, and the steps that are the same on every stream.

use std::sync::Arc;
use std::time::Instant;

use super::worker::TaskCell;
use crate::cuda::{CudaStream, Event};
use crate::error::{Error, Result};
use crate::issue_order::{Extent, IssueOrder, IssueTicket};

/// Work for a stream. It owns everything it touches, so that leaking its handle is sound.
pub(crate) trait Task: Send + Sized + 'static {
    /// The issue order that it takes a place in, and for which communicators.
    fn order(&self) -> Option<(Arc<IssueOrder>, Extent)> {
        None
    }

    /// Does it, or enqueues it on a CUDA stream.
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()>;

    /// Learns after which event of a stream what it has enqueued is done.
    fn launched(&self, _event: &Event, _stream: &CudaStream) {}

    /// Says in an error of enqueued work what it was.
    fn label(&self, error: Error) -> Error {
        error
    }

    /// Who finds out that enqueued work will not be done, and when it has to be.
    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        None
    }

    /// Lets go of what only the run needed, before the task is handed back.
    fn finish(&mut self) {}

    /// Takes the cell back when the task is handed back, for a task that is enqueued again and again.
    fn keep_cell(&mut self, _cell: Arc<TaskCell<Self>>) {}
}

/// Who knows whether work that goes on elsewhere can still be done: a communicator.
pub(crate) trait Watch: Send + Sync {
    /// The error after which it cannot.
    fn check(&self) -> Result<()>;

    /// Gives up, because of an error of this rank's own, which every further call returns. Gives the error as calls return it.
    fn give_up(&self, error: Error) -> Error;
}

/// Waits until it is a task's turn. An error ends the communicator: a rank that leaves a collective
/// out would let its peers wait for nothing.
pub(super) fn wait_for_turn<T: Task>(task: &T, ticket: Option<&IssueTicket<'_>>) -> Result<()> {
    let (Some(ticket), Some((watch, deadline))) = (ticket, task.watch()) else { return Ok(()) };
    let turn = ticket.wait(deadline, || watch.check(), |error| task.label(error));
    turn.map_err(|error| match watch.check() {
        Ok(()) => watch.give_up(error),
        Err(_) => task.label(error),
    })
}

/// Runs a task whose turn has come, and gives its place back.
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
