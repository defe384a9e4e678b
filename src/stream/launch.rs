//! Enqueueing on a CUDA stream.

use std::sync::Arc;

use super::launched_work::{Ending, LaunchedWork, unwatched};
use super::task::{Task, run_in_turn, wait_for_turn};
use super::work::WorkState;
use crate::cuda::CudaStream;
use crate::issue_order::IssueTicket;

/// Enqueues a task on a CUDA stream.
pub(super) fn launch<T: Task>(mut task: T, ticket: Option<IssueTicket<'_>>, stream: &Arc<CudaStream>) -> WorkState<T> {
    let watch = task.watch();
    // The wait may run the interrupt hook, which may change the current GPU.
    if let Err(error) = wait_for_turn(&task, ticket.as_ref()) {
        return WorkState::Done(task, Err(error));
    }
    let visit = match stream.visit() {
        Ok(visit) => visit,
        Err(error) => return WorkState::Done(task, Err(error)),
    };
    stream.expect(watch.as_ref().map_or_else(unwatched, |(_, deadline)| *deadline));
    // From here on NCCL keeps the order of enqueued collectives.
    let result = run_in_turn(&mut task, ticket, Some(stream));
    // The work was recorded into the caller's graph. It may run never or many times, and events
    // cannot be queried during a capture.
    if visit.is_capturing() {
        return WorkState::Done(task, result);
    }
    stream.sweep_if_many();
    // If the task itself failed, it has ended its communicator.
    match result {
        Ok(()) => {
            let end = stream.point();
            task.launched(&end, stream);
            let (task, stream, ending) = (Some(task), Arc::clone(stream), Ending { end, watch });
            WorkState::Launched(LaunchedWork { task, ending, stream, label: T::label })
        }
        Err(error) => {
            // Part of the work may have been enqueued.
            stream.drain();
            WorkState::Done(task, Err(error))
        }
    }
}
