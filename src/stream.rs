//! Where enqueued work runs, and the handle on it: [`Stream`], [`Work`].

use std::collections::VecDeque;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::{Error, Result, error};

/// Where enqueued work runs.
///
/// The inline stream runs it on the caller's thread, and the [`Work`] it gives is finished. A worker stream is one thread
/// that runs what it is given in order; it lets a rank compute while a collective goes on, and costs a wake-up for each
/// piece of work. Clones are the same stream.
///
/// Dropping a worker stream does not wait: its thread does what was enqueued, then ends.
#[derive(Clone, Default)]
pub struct Stream {
    worker: Option<Arc<WorkerHandle>>,
}

impl Stream {
    /// The caller's thread.
    pub const fn inline() -> Self {
        Stream { worker: None }
    }

    /// A thread of its own.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread.
    pub fn worker() -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let thread = Arc::clone(&queue);
        std::thread::Builder::new()
            .name("dcl-stream".to_owned())
            .spawn(move || thread.run())
            .map_err(|e| error!(System, "no thread for a worker stream").with_source(e))?;
        Ok(Stream { worker: Some(Arc::new(WorkerHandle { queue })) })
    }

    /// Blocks until everything enqueued so far is done.
    pub fn synchronize(&self) {
        if let Some(worker) = &self.worker {
            worker.queue.wait_for_enqueued();
        }
    }

    /// Runs a task, here or on the stream's thread. `cell` is where a worker puts it, if it has been on one before.
    pub(crate) fn submit<T: Task>(&self, mut task: T, cell: Option<Arc<Cell<T>>>) -> Work<T> {
        let Some(worker) = &self.worker else {
            let result = task.run();
            if let Some(cell) = cell {
                task.keep_cell(cell);
            }
            return Work { state: WorkState::Done(task, result) };
        };
        let cell = cell.unwrap_or_default();
        *lock(&cell.state) = CellState::Queued(task);
        worker.queue.push(Arc::clone(&cell) as Arc<dyn Runnable>);
        Work { state: WorkState::Pending { cell, keep: T::keep_cell } }
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.worker.is_some() { "Stream::worker" } else { "Stream::inline" })
    }
}

/// Work for a stream. It owns everything it touches, so that leaking its handle is sound.
pub(crate) trait Task: Send + Sized + 'static {
    fn run(&mut self) -> Result<()>;

    /// Takes the cell back when the task is handed back, for a task that is enqueued again and again.
    fn keep_cell(&mut self, _cell: Arc<Cell<Self>>) {}
}

/// A place for one task on its way through a worker.
pub(crate) struct Cell<T> {
    state: Mutex<CellState<T>>,
    done: Condvar,
}

enum CellState<T> {
    Empty,
    Queued(T),
    Done(T, Result<()>),
}

impl<T> Default for Cell<T> {
    fn default() -> Self {
        Cell { state: Mutex::new(CellState::Empty), done: Condvar::new() }
    }
}

impl<T> Cell<T> {
    fn wait(&self) -> (T, Result<()>) {
        let mut state = lock(&self.state);
        loop {
            match std::mem::replace(&mut *state, CellState::Empty) {
                CellState::Done(operands, result) => return (operands, result),
                other => *state = other,
            }
            state = self.done.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

trait Runnable: Send + Sync {
    fn run(&self);
}

impl<T: Task> Runnable for Cell<T> {
    fn run(&self) {
        let state = std::mem::replace(&mut *lock(&self.state), CellState::Empty);
        let CellState::Queued(mut task) = state else { return };
        let result = catch_unwind(AssertUnwindSafe(|| task.run()))
            .unwrap_or_else(|panic| Err(error!(Plugin, "the work panicked: {}", panic_message(panic.as_ref()))));
        *lock(&self.state) = CellState::Done(task, result);
        self.done.notify_all();
    }
}

/// The text of a panic, as far as it has one.
pub(crate) fn panic_message(panic: &(dyn std::any::Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

/// Ends the worker's thread when the last handle is gone.
struct WorkerHandle {
    queue: Arc<Queue>,
}

impl Drop for WorkerHandle {
    fn drop(&mut self) {
        lock(&self.queue.state).closed = true;
        self.queue.changed.notify_all();
    }
}

#[derive(Default)]
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Arc<dyn Runnable>>,
    /// How many tasks were enqueued, and how many of them are done.
    enqueued: u64,
    done: u64,
    closed: bool,
}

impl Queue {
    fn push(&self, task: Arc<dyn Runnable>) {
        let mut state = lock(&self.state);
        state.tasks.push_back(task);
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

/// Locks a mutex whose data every panic leaves whole.
pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle on enqueued work. `T` is what the work owns meanwhile: buffers, bindings.
///
/// Dropping or leaking a `Work` is sound and does not stop the work; what it owns is then freed when it is done, or never.
#[must_use = "`wait` says whether the work succeeded, and hands the buffers back"]
pub struct Work<T> {
    state: WorkState<T>,
}

enum WorkState<T> {
    Done(T, Result<()>),
    Pending { cell: Arc<Cell<T>>, keep: fn(&mut T, Arc<Cell<T>>) },
}

impl<T> Work<T> {
    /// Whether the work is finished, well or not. Does not block.
    pub fn is_done(&self) -> bool {
        match &self.state {
            WorkState::Done(..) => true,
            WorkState::Pending { cell, .. } => matches!(*lock(&cell.state), CellState::Done(..)),
        }
    }

    /// Blocks until the work is finished and hands back what it owned. It takes no longer than the deadlines of the
    /// collectives inside.
    ///
    /// # Errors
    ///
    /// What went wrong in the work, together with what it owned.
    pub fn wait(self) -> Result<T, Failed<T>> {
        let (operands, result) = match self.state {
            WorkState::Done(operands, result) => (operands, result),
            WorkState::Pending { cell, keep } => {
                let (mut operands, result) = cell.wait();
                keep(&mut operands, cell);
                (operands, result)
            }
        };
        match result {
            Ok(()) => Ok(operands),
            Err(error) => Err(Failed::new(error, operands)),
        }
    }
}

impl<T> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work(done: {})", self.is_done())
    }
}

/// An error together with what the failed call owned. It turns into the [`Error`] alone with `?`.
pub struct Failed<T> {
    /// What went wrong.
    pub error: Error,
    /// What the call owned. After an error the contents of outputs are undefined.
    pub operands: Box<T>,
}

impl<T> Failed<T> {
    pub(crate) fn new(error: Error, operands: T) -> Self {
        Failed { error, operands: Box::new(operands) }
    }
}

impl<T> From<Failed<T>> for Error {
    fn from(failed: Failed<T>) -> Error {
        failed.error
    }
}

impl<T> fmt::Debug for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for Failed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for Failed<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}
