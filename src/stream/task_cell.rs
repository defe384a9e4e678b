//! Where a task is while it goes through a worker stream.

use std::sync::{Condvar, Mutex};
use std::task::Waker;
use std::time::Instant;

use crate::error::Result;
use crate::issue_order::IssueTicket;
use crate::util::lock;
use crate::util::wait::Wait;

/// Holds one task while it goes through a worker stream.
pub(crate) struct TaskCell<T> {
    pub(super) state: Mutex<TaskCellState<T>>,
    done: Condvar,
    /// The task of an `async` program that waits.
    pub(super) waker: Mutex<Option<Waker>>,
}

pub(super) enum TaskCellState<T> {
    Empty,
    Queued(T, Option<IssueTicket<'static>>),
    Done(T, Result<()>),
}

impl<T> Default for TaskCell<T> {
    fn default() -> Self {
        TaskCell { state: Mutex::new(TaskCellState::Empty), done: Condvar::new(), waker: Mutex::default() }
    }
}

impl<T> TaskCell<T> {
    /// Waits for the task and takes it; `None` if it has not ended by `until`, or the interrupt
    /// hook ends the wait.
    pub(super) fn wait(&self, until: Instant) -> Option<(T, Result<()>)> {
        let take_done = |state: &mut TaskCellState<T>| match std::mem::replace(state, TaskCellState::Empty) {
            TaskCellState::Done(task, result) => Some((task, result)),
            other => {
                *state = other;
                None
            }
        };
        Wait::until(until).on(&self.state, &self.done, take_done).ok()
    }
}

impl<T> TaskCell<T> {
    /// Tells what waits for the work that it is done.
    pub(super) fn tell(&self) {
        self.done.notify_all();
        // A waker that is stored later finds the work done.
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}
