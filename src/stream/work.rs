//! The handle on enqueued work ([`Work`]), and the errors that return what a call owned.

use std::fmt;
use std::sync::Arc;
use std::task::Waker;
use std::time::{Duration, Instant};

use super::launched_work::{LaunchedWork, WakeSlot};
use super::queued_work::{QueuedWork, TaskCell, TaskCellState, WorkerThread};
use super::task::Task;
use crate::error::{Error, Result, error};
use crate::util::fork::ProcessGuard;
use crate::util::{deadline_after, interrupt, lock};

/// A handle on enqueued work. The work owns a `T` (buffers or bindings) until [`wait`](Self::wait)
/// returns it.
///
/// Dropping or leaking a `Work` is sound and does not stop the work. What a dropped `Work` owns is
/// freed when the work has ended; on a CUDA stream at one of the next calls that enqueue there, or
/// when the stream is synchronized or dropped.
///
/// # Examples
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::comm::Operands;
/// use distcollective::stream::WorkError;
/// use distcollective::{Buffer, Communicator, ReduceOperation, Stream};
///
/// let communicator = Communicator::builder().in_process(1)?.remove(0);
/// let stream = Stream::worker()?;
/// let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
/// let operands = Operands::in_place(Buffer::from_slice(&[1.0f32, 2.0], [2])?);
/// let work = communicator.collective_async(sum, operands, &stream)?;
/// // Compute something else here. `wait` returns the buffers, after an error too.
/// match work.wait() {
///     Ok(operands) => assert_eq!(operands.output.unwrap().as_slice::<f32>()?, [1.0, 2.0]),
///     Err(WorkError::Failed(failed)) => println!("{failed}: {:?}", failed.operands),
///     Err(WorkError::Interrupted(work)) => println!("an interrupt; {work:?} goes on"),
/// }
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// In an `async` function, of any runtime, `work.await` gives the result; see [`WorkFuture`].
///
/// [`WorkFuture`]: super::WorkFuture
#[must_use = "`wait` says whether the work succeeded, and returns the buffers"]
pub struct Work<T: Send + 'static> {
    state: WorkKind<T>,
    /// Drops what only the run needed: [`Task::finish`](super::Task::finish).
    finish: fn(&mut T),
}

pub(super) enum WorkKind<T: Send + 'static> {
    Done(T, Result<()>),
    Launched(LaunchedWork<T>),
    Queued(QueuedWork<T>),
}

impl<T: Send + 'static> Work<T> {
    pub(super) fn new(state: WorkKind<T>) -> Self
    where
        T: Task,
    {
        Work { state, finish: T::finish }
    }

    /// Work that the enqueueing call has run itself.
    pub(crate) fn ended(task: T, result: Result<()>) -> Self
    where
        T: Task,
    {
        Work::new(WorkKind::Done(task, result))
    }

    /// Work that no stream runs. It goes on until it is ended.
    pub(crate) fn detached(task: T) -> (Self, WorkEnd<T>)
    where
        T: Task,
    {
        let cell = Arc::<TaskCell<T>>::default();
        *lock(&cell.state) = TaskCellState::Queued(task, None);
        let thread = WorkerThread { id: None, process: ProcessGuard::current() };
        let work = QueuedWork { cell: Arc::clone(&cell), position: None, keep: T::keep_cell, thread };
        (Work::new(WorkKind::Queued(work)), WorkEnd(cell))
    }

    /// Whether the work has ended, well or not. Does not block.
    ///
    /// On a CUDA stream an enqueueing call records no event. The first question about a piece of
    /// work does: `is_done`, [`wait`](Self::wait), or
    /// [`Stream::synchronize`](super::Stream::synchronize). It covers everything that was enqueued
    /// on the stream until then. So ask before later work is enqueued if you wait for this work
    /// alone, and above all if peers begin the later work only after that wait. While the stream is
    /// being captured no event can be recorded: then the answer to the first question is no.
    ///
    /// It is also true if [`wait`](Self::wait) would return an error at once.
    pub fn is_done(&self) -> bool {
        match &self.state {
            WorkKind::Done(..) => true,
            WorkKind::Launched(launched) => launched.is_done(),
            WorkKind::Queued(queued) => queued.is_done(),
        }
    }

    /// Whether the work had ended, or was recorded into a graph, when the enqueueing call returned.
    /// The answer is the same each time. If it is true, [`wait`](Self::wait) returns at once.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, WorkKind::Done(..))
    }

    /// The error of work that has ended with one, which [`wait`](Self::wait) returns too. `None`
    /// for work that goes on, and for work that has ended well: [`is_done`](Self::is_done) tells
    /// them apart.
    ///
    /// It waits for no other rank. On a GPU, after an error, it may wait until the GPU does not use
    /// the buffers any more, 10 s at most.
    pub fn exception(&self) -> Option<Error> {
        match &self.state {
            WorkKind::Done(_, result) => result.as_ref().err().cloned(),
            WorkKind::Launched(launched) => launched.error(),
            WorkKind::Queued(queued) => queued.error(),
        }
    }

    /// Has a task of an `async` program woken when the work ends. Work that has ended before this
    /// returns need not wake it. `slot` is the waiting task's own, `None` at first.
    pub(super) fn wake_at_end(&self, slot: &mut Option<WakeSlot>, waker: &Waker) {
        match &self.state {
            WorkKind::Done(..) => {}
            WorkKind::Launched(launched) => launched.wake_at_end(slot, waker),
            WorkKind::Queued(queued) => queued.wake_at_end(waker),
        }
    }

    /// Checks that this thread may wait for the work: that [`wait`](Self::wait) does not panic.
    ///
    /// # Errors
    ///
    /// The cases that [`wait`](Self::wait) lists under "Panics".
    pub fn check_wait(&self) -> Result<()> {
        if !self.is_done() {
            interrupt::check_may_wait()?;
        }
        match &self.state {
            WorkKind::Queued(queued) => queued.check_wait(),
            _ => Ok(()),
        }
    }

    /// Blocks until the work has ended, and returns what it owned. On a CUDA stream this may wait
    /// for later work too, and for the end of a capture of the stream: see
    /// [`is_done`](Self::is_done). So buffers may come back later than their own work ends.
    ///
    /// Every collective in the work ends by its deadline, so this call does too.
    ///
    /// # Errors
    ///
    /// - The error of the work, with what the work owned. See the contract of
    ///   [`Communicator`](crate::Communicator) for the errors of collectives.
    /// - The [interrupt hook](crate::interrupt) ended the wait. The error has the work, which goes
    ///   on.
    ///
    /// # Panics
    ///
    /// If the call would never return:
    ///
    /// - work on a worker stream waits for work that is behind it on that stream;
    /// - a plugin waits for work that was issued after the plugin's own run;
    /// - this process was forked from the one that enqueued the work on a worker stream;
    /// - the [interrupt hook](crate::interrupt) waits for work that has not ended.
    pub fn wait(self) -> Result<T, WorkError<T>> {
        match self.wait_until(|| deadline_after(Duration::MAX)) {
            Ok(result) => result.map_err(WorkError::Failed),
            Err(work) => Err(WorkError::Interrupted(Box::new(work))),
        }
    }

    /// [`wait`](Self::wait), at most for `timeout`. If the work has not ended by then, or the
    /// [interrupt hook](crate::interrupt) ends the wait, this gives the work back. It goes on, and
    /// can be waited for again.
    ///
    /// ```
    /// # use distcollective::collective::Collective;
    /// # use distcollective::comm::Operands;
    /// # use distcollective::{Buffer, Communicator, ReduceOperation, Stream};
    /// # let communicator = Communicator::builder().in_process(1)?.remove(0);
    /// # let stream = Stream::worker()?;
    /// # let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    /// # let operands = Operands::in_place(Buffer::from_slice(&[1.0f32, 2.0], [2])?);
    /// use std::time::Duration;
    ///
    /// let mut work = communicator.collective_async(sum, operands, &stream)?;
    /// let operands = loop {
    ///     match work.wait_timeout(Duration::from_millis(10)) {
    ///         Ok(result) => break result?,
    ///         Err(pending) => work = pending, // Show progress here.
    ///     }
    /// };
    /// # assert!(operands.output.is_some());
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// The outer error is the work itself. The inner one is that of the work, with what the work
    /// owned.
    ///
    /// # Panics
    ///
    /// As [`wait`](Self::wait).
    pub fn wait_timeout(self, timeout: Duration) -> Result<Result<T, EnqueueError<T>>, Self> {
        self.wait_until(|| deadline_after(timeout))
    }

    /// Waits until a time, which work that has ended does not ask for.
    pub(super) fn wait_until(self, until: impl FnOnce() -> Instant) -> Result<Result<T, EnqueueError<T>>, Self> {
        if let Err(error) = self.check_wait() {
            panic!("{error}");
        }
        let Work { state, finish } = self;
        // Work that is done is copied once, from where it is to where the caller wants it.
        let give_back = |mut operands: T, result: Result<()>| {
            finish(&mut operands);
            match result {
                Ok(()) => Ok(operands),
                Err(error) => Err(EnqueueError::new(error, operands)),
            }
        };
        let ended = match state {
            WorkKind::Done(operands, result) => return Ok(give_back(operands, result)),
            WorkKind::Launched(launched) => launched.wait(until()).map_err(WorkKind::Launched),
            WorkKind::Queued(queued) => queued.wait(until()).map_err(WorkKind::Queued),
        };
        match ended {
            Ok((operands, result)) => Ok(give_back(operands, result)),
            Err(state) => Err(Work { state, finish }),
        }
    }
}

/// Ends work that no stream runs.
pub(crate) struct WorkEnd<T>(Arc<TaskCell<T>>);

impl<T: Task> WorkEnd<T> {
    /// Ends the work. `end` gets what the work owns.
    pub(crate) fn end(self, end: impl FnOnce(&mut T) -> Result<()>) {
        let mut state = lock(&self.0.state);
        if let TaskCellState::Queued(mut task, _) = std::mem::take(&mut *state) {
            let result = end(&mut task).map_err(|error| task.label(error));
            *state = TaskCellState::Done(task, result);
        }
        drop(state);
        self.0.tell();
    }
}

impl<T: Send + 'static> fmt::Debug for Work<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Work(done: {})", self.is_done())
    }
}

/// An error of enqueued work, with what the work owned.
///
/// `?` converts it to the [`Error`] alone.
pub struct EnqueueError<T> {
    /// What went wrong.
    pub error: Error,
    /// What the work owned. The contents of outputs are undefined.
    pub operands: Box<T>,
}

impl<T> EnqueueError<T> {
    pub(crate) fn new(error: Error, operands: T) -> Self {
        EnqueueError { error, operands: Box::new(operands) }
    }
}

impl<T> From<EnqueueError<T>> for Error {
    fn from(failed: EnqueueError<T>) -> Error {
        failed.error
    }
}

impl<T> fmt::Debug for EnqueueError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.error, f)
    }
}

impl<T> fmt::Display for EnqueueError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<T> std::error::Error for EnqueueError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Why [`Work::wait`] gave no result.
///
/// `?` converts it to the [`Error`] alone; work that goes on is dropped then.
pub enum WorkError<T: Send + 'static> {
    /// The work has failed.
    Failed(EnqueueError<T>),
    /// The [interrupt hook](crate::interrupt) ended the wait. The work goes on, and can be waited
    /// for again.
    Interrupted(Box<Work<T>>),
}

impl<T: Send + 'static> From<EnqueueError<T>> for WorkError<T> {
    fn from(failed: EnqueueError<T>) -> Self {
        WorkError::Failed(failed)
    }
}

impl<T: Send + 'static> From<WorkError<T>> for Error {
    fn from(error: WorkError<T>) -> Error {
        match error {
            WorkError::Failed(failed) => failed.error,
            WorkError::Interrupted(_) => error!(Interrupted, "{INTERRUPTED}"),
        }
    }
}

/// The text of [`WorkError::Interrupted`].
const INTERRUPTED: &str = "interrupted by the program while the work had not ended; the work goes on";

impl<T: Send + 'static> fmt::Debug for WorkError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkError::Failed(failed) => fmt::Debug::fmt(failed, f),
            WorkError::Interrupted(_) => write!(f, "Interrupted: {INTERRUPTED}"),
        }
    }
}

impl<T: Send + 'static> fmt::Display for WorkError<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkError::Failed(failed) => failed.fmt(f),
            WorkError::Interrupted(_) => f.write_str(INTERRUPTED),
        }
    }
}

impl<T: Send + 'static> std::error::Error for WorkError<T> {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            WorkError::Failed(failed) => failed.source(),
            WorkError::Interrupted(_) => None,
        }
    }
}
