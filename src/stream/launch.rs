//! Work that is enqueued on a CUDA stream.

use std::sync::Arc;
use std::time::Instant;

use super::SYNCHRONIZE_TIMEOUT;
use super::task::{Task, Watch, run_in_turn, wait_for_turn};
use super::work::WorkState;
use crate::cuda::{CudaStream, Point};
use crate::error::{Error, ErrorKind, Result};
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
            let (work, stream) = (Some((task, end)), Arc::clone(stream));
            WorkState::Launched(LaunchedWork { work, stream, watch, label: T::label })
        }
        Err(error) => {
            // Part of the work may have been enqueued.
            stream.drain();
            WorkState::Done(task, Err(error))
        }
    }
}

/// The deadline of work without a communicator.
fn unwatched() -> Instant {
    Instant::now() + SYNCHRONIZE_TIMEOUT
}

/// Work that was enqueued on a CUDA stream. Dropping it leaves the task with the stream.
pub(super) struct LaunchedWork<T: Send + 'static> {
    /// `None` after the wait.
    work: Option<(T, Point)>,
    stream: Arc<CudaStream>,
    watch: Option<(Arc<dyn Watch>, Instant)>,
    label: fn(&T, Error) -> Error,
}

impl<T: Send + 'static> LaunchedWork<T> {
    pub(super) fn is_done(&self) -> bool {
        // If the query fails, or the work cannot end any more, `wait` returns the error at once.
        self.work.as_ref().is_none_or(|(_, end)| {
            end.is_done().unwrap_or(true)
                || self.watch.as_ref().is_some_and(|(watch, deadline)| {
                    watch.check().is_err() || Instant::now() >= end.deadline(*deadline)
                })
        })
    }

    /// Waits for the work, at most until `until`. Gives the work back if it has not ended by then,
    /// or the interrupt hook ends the wait.
    pub(super) fn wait(mut self, until: Instant) -> Result<(T, Result<()>), Self> {
        let waited = self.work.as_ref().map_or(Some(Ok(())), |(_, end)| self.wait_for(end, until));
        let Some(result) = waited else { return Err(self) };
        match self.work.take() {
            Some((task, _)) => {
                let result = result.map_err(|error| (self.label)(&task, error));
                Ok((task, result))
            }
            None => unreachable!("only `wait` and `drop` take the work, and each runs once"),
        }
    }

    /// `None` as in [`wait`](Self::wait).
    fn wait_for(&self, end: &Point, until: Instant) -> Option<Result<()>> {
        let own = self.watch.as_ref().map_or_else(unwatched, |(_, deadline)| *deadline);
        let deadline = end.deadline(own);
        let check = || self.watch.as_ref().map_or(Ok(()), |(watch, _)| watch.check());
        let error = match end.wait(until.min(deadline), check) {
            Ok(()) => return Some(Ok(())),
            Err(error) => error,
        };
        // If the communicator has ended too, that counts.
        let is_alive = || check().is_ok() && Instant::now() < deadline;
        match error.kind() {
            ErrorKind::Interrupted | ErrorKind::DeadlineExceeded if is_alive() => return None,
            _ => {}
        }
        Some(Err(match &self.watch {
            Some((watch, _)) => {
                let error = watch.fail(error);
                self.stream.drain();
                error
            }
            None => error,
        }))
    }
}

impl<T: Send + 'static> Drop for LaunchedWork<T> {
    fn drop(&mut self) {
        if let Some((task, end)) = self.work.take() {
            self.stream.keep(end, Box::new(task));
        }
    }
}
