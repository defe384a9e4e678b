//! The handle on enqueued work ([`Work`]), and the error that returns what a call owned.

use std::fmt;

use super::launch::LaunchedWork;
use super::worker::QueuedWork;
use crate::error::{Error, Result};

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
/// use distcollective::{Buffer, Communicator, ReduceOperation, Stream};
///
/// let communicator = Communicator::in_process(1)?.remove(0);
/// let stream = Stream::worker()?;
/// let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
/// let operands = Operands::in_place(Buffer::from_slice(&[1.0f32, 2.0], [2])?);
/// let work = communicator.collective_async(sum, operands, &stream)?;
/// // Compute something else here. `wait` returns the buffers, after an error too.
/// match work.wait() {
///     Ok(operands) => assert_eq!(operands.output.unwrap().as_slice::<f32>()?, [1.0, 2.0]),
///     Err(failed) => println!("{}; the buffers are {:?}", failed.error, failed.operands),
/// }
/// # Ok::<(), distcollective::Error>(())
/// ```
#[must_use = "`wait` says whether the work succeeded, and returns the buffers"]
pub struct Work<T: Send + 'static> {
    state: WorkState<T>,
    /// Drops what only the run needed: [`Task::finish`](super::Task::finish).
    finish: fn(&mut T),
}

pub(super) enum WorkState<T: Send + 'static> {
    Done(T, Result<()>),
    Launched(LaunchedWork<T>),
    Queued(QueuedWork<T>),
}

impl<T: Send + 'static> Work<T> {
    pub(super) fn new(state: WorkState<T>, finish: fn(&mut T)) -> Self {
        Work { state, finish }
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
            WorkState::Done(..) => true,
            WorkState::Launched(launched) => launched.is_done(),
            WorkState::Queued(queued) => queued.is_done(),
        }
    }

    /// Whether the work had ended, or was recorded into a graph, when the enqueueing call returned.
    /// The answer is the same each time. If it is true, [`wait`](Self::wait) returns at once.
    pub fn is_settled(&self) -> bool {
        matches!(self.state, WorkState::Done(..))
    }

    /// Checks that this thread may wait for the work: that [`wait`](Self::wait) does not panic.
    ///
    /// # Errors
    ///
    /// The cases that [`wait`](Self::wait) lists under "Panics".
    pub fn check_wait(&self) -> Result<()> {
        match &self.state {
            WorkState::Queued(queued) => queued.check_wait(),
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
    /// The error of the work, with what the work owned. See the contract of
    /// [`Communicator`](crate::Communicator) for the errors of collectives.
    ///
    /// # Panics
    ///
    /// If the call would never return:
    ///
    /// - work on a worker stream waits for work that is behind it on that stream;
    /// - a plugin waits for work that was issued after the plugin's own run;
    /// - this process was forked from the one that enqueued the work on a worker stream.
    pub fn wait(self) -> Result<T, EnqueueError<T>> {
        if let Err(error) = self.check_wait() {
            panic!("{error}");
        }
        let (mut operands, result) = match self.state {
            WorkState::Done(operands, result) => (operands, result),
            WorkState::Launched(launched) => launched.wait(),
            WorkState::Queued(queued) => queued.wait(),
        };
        (self.finish)(&mut operands);
        match result {
            Ok(()) => Ok(operands),
            Err(error) => Err(EnqueueError::new(error, operands)),
        }
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
