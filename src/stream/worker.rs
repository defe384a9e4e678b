//! A worker stream: its thread, the queue of that thread, and the work in the queue.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::Waker;
use std::thread::ThreadId;
use std::time::Instant;

use super::task::{Task, run_in_turn, wait_for_turn};
use super::work::WorkState;
use crate::error::{Error, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder, IssueTicket, MISSED_TURN, TicketPosition};
use crate::util::fork::ProcessGuard;
use crate::util::wait::Wait;
use crate::util::{interrupt, lock, panic_message};

/// A worker stream. Dropping it lets its thread end when the queue is empty.
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
        let thread = WorkerThread { id: Some(thread.thread().id()), process: ProcessGuard::current() };
        Ok(Worker { queue, thread })
    }

    /// Checks that this is the process that started the thread.
    pub(super) fn check_process(&self) -> Result<()> {
        self.thread.check_process()
    }

    /// Puts a task into the queue. The caller has checked the process.
    ///
    /// `cell` is the cell of an earlier submit, if there was one, so that a task that is submitted
    /// many times allocates once.
    pub(super) fn submit<T: Task>(
        &self,
        task: T,
        order: Option<(&Arc<IssueOrder>, Extent)>,
        cell: Option<Arc<TaskCell<T>>>,
    ) -> WorkState<T> {
        let cell = cell.unwrap_or_default();
        if order.as_ref().is_some_and(|(order, _)| order.is_in_run()) {
            let error = error!(
                InvalidArgument,
                "a plugin cannot enqueue work on a worker stream for a communicator of its own run: its position in the \
                 issue order would depend on timing; the plugin makes the call on its own thread"
            );
            return WorkState::Done(task, Err(error));
        }
        let enqueue = |ticket: Option<IssueTicket<'static>>| {
            let position = ticket.as_ref().and_then(IssueTicket::position);
            *lock(&cell.state) = TaskCellState::Queued(task, ticket);
            self.queue.push(Arc::clone(&cell) as Arc<dyn Runnable>, position.clone());
            position
        };
        let stream = Arc::as_ptr(&self.queue).addr();
        let position = match order {
            Some((order, extent)) => order.issue(extent, stream, |ticket| enqueue(Some(ticket))),
            None => enqueue(None),
        };
        WorkState::Queued(QueuedWork { cell, position, keep: T::keep_cell, thread: self.thread })
    }

    /// Blocks until everything that was enqueued so far has ended.
    ///
    /// # Errors
    ///
    /// The interrupt hook ends the wait.
    pub(super) fn wait_for_enqueued(&self) -> Result<()> {
        self.queue.wait_for_enqueued()
    }

    /// Checks that this thread may wait for everything in the queue.
    pub(super) fn check_wait(&self) -> Result<()> {
        self.thread.check_process()?;
        self.thread.check_is_other()?;
        // The lock of the order comes before that of the queue, so the positions are copied.
        let positions = lock(&self.queue.state).positions.clone();
        positions.iter().try_for_each(|position| check_not_behind(position.as_ref()))
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // In a child that was forked, the thread does not exist, and another thread may have held
        // the lock at the fork.
        if self.thread.process.is_current() {
            lock(&self.queue.state).closed = true;
            self.queue.changed.notify_all();
        }
    }
}

/// The identity of the thread that runs some work.
#[derive(Clone, Copy)]
struct WorkerThread {
    /// Absent for work that no stream runs.
    id: Option<ThreadId>,
    process: ProcessGuard,
}

impl WorkerThread {
    fn check_process(&self) -> Result<()> {
        self.process.check("a worker stream")
    }

    /// Checks that this thread is another one.
    fn check_is_other(&self) -> Result<()> {
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
fn check_not_behind(position: Option<&TicketPosition>) -> Result<()> {
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
    cell: Arc<TaskCell<T>>,
    position: Option<TicketPosition>,
    keep: fn(&mut T, Arc<TaskCell<T>>),
    thread: WorkerThread,
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

/// Holds one task while it goes through a worker stream.
pub(crate) struct TaskCell<T> {
    state: Mutex<TaskCellState<T>>,
    done: Condvar,
    /// The task of an `async` program that waits.
    waker: Mutex<Option<Waker>>,
}

enum TaskCellState<T> {
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
    /// Waits for the task and takes it; `None` as in [`QueuedWork::wait`].
    fn wait(&self, until: Instant) -> Option<(T, Result<()>)> {
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

/// Ends work that no stream runs.
pub(crate) struct WorkEnd<T>(Arc<TaskCell<T>>);

/// Work that no stream runs, and what ends it.
pub(super) fn detached<T: Task>(task: T) -> (WorkState<T>, WorkEnd<T>) {
    let cell = Arc::<TaskCell<T>>::default();
    *lock(&cell.state) = TaskCellState::Queued(task, None);
    let thread = WorkerThread { id: None, process: ProcessGuard::current() };
    let work = QueuedWork { cell: Arc::clone(&cell), position: None, keep: T::keep_cell, thread };
    (WorkState::Queued(work), WorkEnd(cell))
}

impl<T: Task> WorkEnd<T> {
    /// Ends the work. `end` gets what the work owns.
    pub(crate) fn end(self, end: impl FnOnce(&mut T) -> Result<()>) {
        let mut state = lock(&self.0.state);
        if let TaskCellState::Queued(mut task, _) = std::mem::replace(&mut *state, TaskCellState::Empty) {
            let result = end(&mut task).map_err(|error| task.label(error));
            *state = TaskCellState::Done(task, result);
        }
        drop(state);
        self.0.tell();
    }
}

impl<T> TaskCell<T> {
    /// Tells what waits for the work that it is done.
    fn tell(&self) {
        self.done.notify_all();
        // A waker that is stored later finds the work done.
        let waker = lock(&self.waker).take();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// A [`TaskCell`], whatever its task is.
trait Runnable: Send + Sync {
    fn run(&self);
}

impl<T: Task> Runnable for TaskCell<T> {
    fn run(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), TaskCellState::Empty);
        let TaskCellState::Queued(mut task, ticket) = state else { return };
        let result = catch_unwind(AssertUnwindSafe(|| {
            wait_for_turn(&task, ticket.as_ref())?;
            // The deadline includes the time in the queue.
            if let Some((watch, deadline)) = task.watch()
                && Instant::now() >= deadline
            {
                return Err(watch.fail(task.label(error!(DeadlineExceeded, "{MISSED_TURN}"))));
            }
            run_in_turn(&mut task, ticket, None)
        }))
        .unwrap_or_else(|panic| Err(error!(Plugin, "the work panicked: {}", panic_message(panic.as_ref()))));
        *lock(&self.state) = TaskCellState::Done(task, result);
        self.tell();
    }
}

/// What the threads that enqueue share with the thread that runs.
#[derive(Default)]
struct TaskQueue {
    state: Mutex<TaskQueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct TaskQueueState {
    tasks: VecDeque<Arc<dyn Runnable>>,
    /// The positions in the issue order of all tasks that have not ended.
    positions: VecDeque<Option<TicketPosition>>,
    /// How many tasks were enqueued, and how many of them have ended.
    enqueued: u64,
    done: u64,
    closed: bool,
}

impl TaskQueue {
    fn push(&self, task: Arc<dyn Runnable>, position: Option<TicketPosition>) {
        let mut state = lock(&self.state);
        state.tasks.push_back(task);
        state.positions.push_back(position);
        state.enqueued += 1;
        self.changed.notify_all();
    }

    fn run(&self) {
        let _mask = interrupt::mask();
        let mut state = lock(&self.state);
        loop {
            if let Some(task) = state.tasks.pop_front() {
                drop(state);
                // The task is dropped before it is counted, because its owner may reuse the cell.
                // The drop may run code of a user, which may panic; the thread continues.
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

    fn wait_for_enqueued(&self) -> Result<()> {
        let target = lock(&self.state).enqueued;
        let is_done = |state: &mut TaskQueueState| (state.done >= target).then_some(());
        let waited = Wait::forever().on(&self.state, &self.changed, is_done);
        waited.map_err(|stopped| {
            stopped.error("while the stream's work had not ended", "the stream's work has not ended")
        })
    }
}
