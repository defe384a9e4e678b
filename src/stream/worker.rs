//! A worker stream: its thread, the queue of that thread, and the work in the queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Instant;

use super::task::{Task, run_in_turn, wait_for_turn};
use super::work::WorkState;
use crate::error::{Result, bail, error};
use crate::issue_order::{IssueTicket, Position, missed_turn};
use crate::util::fork::ProcessGuard;
use crate::util::{lock, panic_message};

/// Work that a worker stream has taken.
pub(super) struct QueuedWork<T> {
    cell: Arc<TaskCell<T>>,
    /// Its place in the issue order.
    position: Option<Position>,
    keep: fn(&mut T, Arc<TaskCell<T>>),
    thread: WorkerThread,
}

impl<T> QueuedWork<T> {
    pub(super) fn is_done(&self) -> bool {
        // In a child it will not be done any more, which is found out by waiting for it.
        !self.thread.process.is_current() || matches!(*lock(&self.cell.state), TaskCellState::Done(..))
    }

    pub(super) fn wait(self) -> (T, Result<()>) {
        let (mut operands, result) = self.cell.wait();
        (self.keep)(&mut operands, self.cell);
        (operands, result)
    }

    /// Whether this thread may wait for it.
    pub(super) fn check_wait(&self) -> Result<()> {
        if self.thread.process.is_current() && self.is_done() {
            return Ok(());
        }
        self.thread.check_wait()?;
        check_not_behind(self.position.as_ref())
    }
}

/// Checks that this thread is not in a run that work with this place waits for.
fn check_not_behind(position: Option<&Position>) -> Result<()> {
    if position.is_some_and(Position::is_behind_this_thread) {
        bail!(
            InvalidArgument,
            "a plugin cannot wait for work that was issued after its own run: that work begins when the run has ended"
        );
    }
    Ok(())
}

/// A place for one task on its way through a worker.
pub(crate) struct TaskCell<T> {
    state: Mutex<TaskCellState<T>>,
    done: Condvar,
}

enum TaskCellState<T> {
    Empty,
    Queued(T, Option<IssueTicket<'static>>),
    Done(T, Result<()>),
}

impl<T> Default for TaskCell<T> {
    fn default() -> Self {
        TaskCell { state: Mutex::new(TaskCellState::Empty), done: Condvar::new() }
    }
}

impl<T> TaskCell<T> {
    fn wait(&self) -> (T, Result<()>) {
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, TaskCellState::Empty) {
                TaskCellState::Done(operands, result) => return (operands, result),
                other => *state = other,
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

trait Runnable: Send + Sync {
    fn run(&self);
}

impl<T: Task> Runnable for TaskCell<T> {
    fn run(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), TaskCellState::Empty);
        let TaskCellState::Queued(mut task, ticket) = state else { return };
        let result = catch_unwind(AssertUnwindSafe(|| {
            wait_for_turn(&task, ticket.as_ref())?;
            // The time before, on the stream, counts too.
            if let Some((watch, deadline)) = task.watch()
                && Instant::now() >= deadline
            {
                return Err(watch.give_up(task.label(missed_turn())));
            }
            run_in_turn(&mut task, ticket, None)
        }))
        .unwrap_or_else(|panic| Err(error!(Plugin, "the work panicked: {}", panic_message(panic.as_ref()))));
        *lock(&self.state) = TaskCellState::Done(task, result);
        self.done.notify_all();
    }
}

/// A worker stream. Dropping it lets its thread end.
pub(super) struct Worker {
    queue: Arc<TaskQueue>,
    thread: WorkerThread,
}

impl Worker {
    /// Starts the thread.
    pub(super) fn start() -> Result<Self> {
        let queue = Arc::new(TaskQueue::default());
        let thread = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("dcl-stream".to_owned())
            .spawn(move || thread.run())
            .map_err(|e| error!(System, "no thread for a worker stream").with_source(e))?;
        let thread = WorkerThread { id: thread.thread().id(), process: ProcessGuard::current() };
        Ok(Worker { queue, thread })
    }

    /// Gives the thread a task, in `cell` if it has been on a worker before.
    pub(super) fn submit<T: Task>(&self, task: T, cell: Option<Arc<TaskCell<T>>>) -> WorkState<T> {
        if let Err(error) = self.thread.check_process() {
            return WorkState::Done(task, Err(error));
        }
        let cell = cell.unwrap_or_default();
        let order = task.order();
        if order.as_ref().is_some_and(|(order, _)| order.is_in_run()) {
            let error = error!(
                InvalidArgument,
                "a plugin cannot enqueue work on a worker stream for a communicator of its own run: the moment would decide \
                 about its place in the order; the plugin makes the call on its own thread"
            );
            return WorkState::Done(task, Err(error));
        }
        let hand_over = |ticket: Option<IssueTicket<'static>>| {
            let position = ticket.as_ref().and_then(IssueTicket::position);
            *lock(&cell.state) = TaskCellState::Queued(task, ticket);
            self.queue.push(Arc::clone(&cell) as Arc<dyn Runnable>, position.clone());
            position
        };
        let stream = Arc::as_ptr(&self.queue).addr();
        let position = match order {
            Some((order, extent)) => order.issue(extent, stream, |ticket| hand_over(Some(ticket))),
            None => hand_over(None),
        };
        WorkState::Queued(QueuedWork { cell, position, keep: T::keep_cell, thread: self.thread })
    }

    /// Blocks until everything enqueued so far is done.
    pub(super) fn wait_for_enqueued(&self) {
        self.queue.wait_for_enqueued();
    }

    /// Whether this thread may wait for the stream.
    pub(super) fn check_wait(&self) -> Result<()> {
        self.thread.check_wait()?;
        let positions = lock(&self.queue.state).positions.clone();
        positions.iter().try_for_each(|position| check_not_behind(position.as_ref()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In a child there is no thread to end, and it may have held the lock at the fork.
        if self.thread.process.is_current() {
            lock(&self.queue.state).closed = true;
            self.queue.changed.notify_all();
        }
    }
}

/// Which thread a worker stream is.
#[derive(Clone, Copy)]
struct WorkerThread {
    id: ThreadId,
    process: ProcessGuard,
}

impl WorkerThread {
    fn check_process(&self) -> Result<()> {
        self.process.check("a worker stream")
    }

    /// Whether this thread may wait for it.
    fn check_wait(&self) -> Result<()> {
        if self.id == std::thread::current().id() {
            bail!(
                InvalidArgument,
                "what runs on a worker stream cannot wait for that stream: it would wait for itself"
            );
        }
        self.check_process()
    }
}

#[derive(Default)]
struct TaskQueue {
    state: Mutex<TaskQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct TaskQueueState {
    tasks: VecDeque<Arc<dyn Runnable>>,
    /// The places in the issue order of all tasks that are not done.
    positions: VecDeque<Option<Position>>,
    /// How many tasks were enqueued, and how many of them are done.
    enqueued: u64,
    done: u64,
    closed: bool,
}

impl TaskQueue {
    fn push(&self, task: Arc<dyn Runnable>, position: Option<Position>) {
        let mut state = lock(&self.state);
        state.tasks.push_back(task);
        state.positions.push_back(position);
        state.enqueued += 1;
        self.changed.notify_all();
    }

    fn run(&self) {
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                // The task goes before it is counted as done, since its owner may want its cell again. It may be the last to
                // hold what a user made, whose drop may panic; the thread goes on.
                let _ = catch_unwind(AssertUnwindSafe(move || task.run()));
                state = lock(&self.state);
                state.positions.pop_front();
                state.done += 1;
                self.changed.notify_all();
            } else if state.closed {
                return;
            } else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
            }
        }
    }

    fn wait_for_enqueued(&self) {
        let mut state = lock(&self.state);
        let target = state.enqueued;
        while state.done < target {
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
