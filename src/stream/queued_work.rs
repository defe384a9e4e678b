//! Work in the queue of a worker stream, and work that no stream runs.

use std::sync::{Arc, Condvar, Mutex};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::Instant;

use crate::error::{Error, Result, bail};
use crate::issue_order::{IssueTicket, TicketPosition};
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::wait::Wait;

/// Holds one task while it goes through a worker stream.
pub(crate) struct TaskCell<T> {
    pub(super) state: Mutex<TaskCellState<T>>,
    done: Condvar,
    /// The task of an `async` program that waits.
    waker: Mutex<Option<Waker>>,
}

#[derive(Default)]
pub(super) enum TaskCellState<T> {
    #[default]
    Empty,
    Queued(T, Option<IssueTicket<'static>>),
    Done(T, Result<()>),
}

impl<T> Default for TaskCell<T> {
    fn default() -> Self {
        TaskCell { state: Mutex::default(), done: Condvar::new(), waker: Mutex::default() }
    }
}

impl<T> TaskCell<T> {
    /// Waits for the task and takes it; `None` if it has not ended by `until`, or the interrupt
    /// hook ends the wait.
    pub(super) fn wait(&self, until: Instant) -> Option<(T, Result<()>)> {
        let take_done = |state: &mut TaskCellState<T>| match std::mem::take(state) {
            TaskCellState::Done(task, result) => Some((task, result)),
            other => {
                *state = other;
                None
            }
        };
        Wait::until(until).on(&self.state, &self.done, take_done).ok()
    }

    /// Tells what waits for the work that it is done.
    pub(super) fn tell(&self) {
        self.done.notify_all();
        // A waker that is stored later finds the work done.
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// The identity of the thread that runs some work.
#[derive(Clone, Copy)]
pub(super) struct WorkerThread {
    /// Absent for work that no stream runs.
    pub(super) id: Option<ThreadId>,
    pub(super) process: ProcessGuard,
}

impl WorkerThread {
    pub(super) fn check_process(&self) -> Result<()> {
        self.process.check("a worker stream")
    }

    /// Checks that this thread is another one.
    pub(super) fn check_is_other(&self) -> Result<()> {
        if self.id == Some(std::thread::current().id()) {
            bail!(
                InvalidArgument,
                "what runs on a worker stream cannot wait for that stream: it would wait for itself"
            );
        }
        Ok(())
    }
}

/// Checks that this thread is not in a run that the work at this position waits for.
pub(super) fn check_not_behind(position: Option<&TicketPosition>) -> Result<()> {
    if position.is_some_and(TicketPosition::is_behind_this_thread) {
        bail!(
            InvalidArgument,
            "a plugin cannot wait for work that was issued after its own run: that work begins when the run has ended"
        );
    }
    Ok(())
}

/// Work in the queue of a worker stream.
pub(super) struct QueuedWork<T> {
    pub(super) cell: Arc<TaskCell<T>>,
    pub(super) position: Option<TicketPosition>,
    pub(super) keep: fn(&mut T, Arc<TaskCell<T>>),
    pub(super) thread: WorkerThread,
}

impl<T> QueuedWork<T> {
    pub(super) fn is_done(&self) -> bool {
        // In a child that was forked, the work never ends; `check_wait` gives the error at once.
        !self.thread.process.is_current() || matches!(*lock(&self.cell.state), TaskCellState::Done(..))
    }

    /// The error that [`wait`](Self::wait) would return at once.
    pub(super) fn error(&self) -> Option<Error> {
        if let Err(forked) = self.thread.check_process() {
            return Some(forked);
        }
        match &*lock(&self.cell.state) {
            TaskCellState::Done(_, Err(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// Has the stream's thread wake a task when the work ends. Work that has ended before this
    /// returns need not wake it, so the caller asks once more.
    pub(super) fn wake_at_end(&self, waker: &Waker) {
        *lock(&self.cell.waker) = Some(waker.clone());
    }

    /// Waits for the work, at most until `until`. Gives the work back if it has not ended by then,
    /// or the interrupt hook ends the wait.
    pub(super) fn wait(self, until: Instant) -> Result<(T, Result<()>), Self> {
        let Some((mut task, result)) = self.cell.wait(until) else { return Err(self) };
        (self.keep)(&mut task, self.cell);
        Ok((task, result))
    }

    /// Checks that this thread may wait for the work.
    pub(super) fn check_wait(&self) -> Result<()> {
        self.thread.check_process()?;
        if self.is_done() {
            return Ok(());
        }
        self.thread.check_is_other()?;
        check_not_behind(self.position.as_ref())
    }
}
