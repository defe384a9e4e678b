//! Work that is enqueued on a CUDA stream.

use std::sync::Arc;
use std::time::Instant;

use super::SYNCHRONIZE_TIMEOUT;
use super::task::{Task, Watch, run_in_turn, wait_for_turn};
use super::work::WorkState;
use crate::cuda::{CudaStream, Event};
use crate::error::{Error, Result};
use crate::issue_order::IssueTicket;

/// Enqueues a task on a CUDA stream.
pub(super) fn launch<T: Task>(mut task: T, ticket: Option<IssueTicket<'_>>, stream: &Arc<CudaStream>) -> WorkState<T> {
    let watch = task.watch();
    let is_capturing = match stream.is_capturing() {
        Ok(is_capturing) => is_capturing,
        Err(error) => return WorkState::Done(task, Err(error)),
    };
    if let Err(error) = wait_for_turn(&task, ticket.as_ref()) {
        return WorkState::Done(task, Err(error));
    }
    // From here on NCCL keeps the order of what is enqueued.
    let result = run_in_turn(&mut task, ticket, Some(stream));
    // What is recorded is not done; it may never be, or a hundred times. A capture does not allow to ask for events either.
    if is_capturing {
        return WorkState::Done(task, result);
    }
    stream.sweep();
    // A task that fails has seen to its communicator by itself.
    let recorded = result.and_then(|()| {
        stream.record().map_err(|error| match &watch {
            Some((watch, _)) => watch.give_up(error),
            None => error,
        })
    });
    match recorded {
        Ok(event) => {
            task.launched(&event, stream);
            let (work, stream) = (Some((task, event)), Arc::clone(stream));
            WorkState::Launched(LaunchedWork { work, stream, watch, label: T::label })
        }
        Err(error) => {
            // A part of it may have been enqueued.
            stream.drain();
            WorkState::Done(task, Err(error))
        }
    }
}

/// Work that has been enqueued on a CUDA stream.
pub(super) struct LaunchedWork<T: Send + 'static> {
    /// Until it is waited for.
    work: Option<(T, Event)>,
    stream: Arc<CudaStream>,
    watch: Option<(Arc<dyn Watch>, Instant)>,
    label: fn(&T, Error) -> Error,
}

impl<T: Send + 'static> LaunchedWork<T> {
    pub(super) fn is_done(&self) -> bool {
        // What cannot be asked, or will not be done any more, is found out by waiting for it.
        self.work.as_ref().is_none_or(|(_, event)| event.is_done().unwrap_or(true))
            || self
                .watch
                .as_ref()
                .is_some_and(|(watch, deadline)| watch.check().is_err() || Instant::now() >= *deadline)
    }

    pub(super) fn wait(mut self) -> (T, Result<()>) {
        let result = self.work.as_ref().map_or(Ok(()), |(_, event)| self.wait_for(event));
        match self.work.take() {
            Some((task, _)) => {
                let result = result.map_err(|error| (self.label)(&task, error));
                (task, result)
            }
            None => unreachable!("work is taken when it is waited for, or dropped"),
        }
    }

    fn wait_for(&self, event: &Event) -> Result<()> {
        let Some((watch, deadline)) = &self.watch else {
            return event.wait(Instant::now() + SYNCHRONIZE_TIMEOUT, || Ok(()));
        };
        event.wait(*deadline, || watch.check()).map_err(|error| {
            let error = watch.give_up(error);
            self.stream.drain();
            error
        })
    }
}

impl<T: Send + 'static> Drop for LaunchedWork<T> {
    fn drop(&mut self) {
        if let Some((task, event)) = self.work.take() {
            self.stream.keep(event, Box::new(task));
        }
    }
}
