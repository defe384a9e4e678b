//! A worker stream: its thread, and the queue of that thread.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use super::queued_work::{QueuedWork, TaskCell, TaskCellState, WorkerThread, check_not_behind};
use super::task::{Task, run_in_turn, wait_for_turn};
use super::work::WorkKind;
use crate::error::{Result, error};
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
    ) -> WorkKind<T> {
        let cell = cell.unwrap_or_default();
        if order.as_ref().is_some_and(|(order, _)| order.is_in_run()) {
            let error = error!(
                InvalidArgument,
                "a plugin cannot enqueue work on a worker stream for a communicator of its own run: its position in the \
                 issue order would depend on timing; the plugin makes the call on its own thread"
            );
            return WorkKind::Done(task, Err(error));
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
        WorkKind::Queued(QueuedWork { cell, position, keep: T::keep_cell, thread: self.thread })
    }

    /// Blocks until everything that was enqueued so far has ended, or the interrupt hook ends the
    /// wait.
    pub(super) fn wait_for_enqueued(&self) -> Result<()> {
        let TaskQueue { state, changed } = &*self.queue;
        let target = lock(state).enqueued;
        let is_done = |state: &mut TaskQueueState| (state.done >= target).then_some(());
        let waited = Wait::forever().on(state, changed, is_done);
        waited.map_err(|stopped| {
            stopped.error("while the stream's work had not ended", "the stream's work has not ended")
        })
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

/// A [`TaskCell`], whatever its task is.
trait Runnable: Send + Sync {
    fn run(&self);
}

impl<T: Task> Runnable for TaskCell<T> {
    fn run(&self) {
        let state = std::mem::take(&mut *lock(&self.state));
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
}
