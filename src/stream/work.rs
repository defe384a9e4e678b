//! The handle on enqueued work: [`Work`], and the error that hands back what a call owned.

use std::fmt;

use super::launch::LaunchedWork;
use super::worker::QueuedWork;
use crate::error::{Error, Result};

/// A handle on enqueued work. `T` is what the work owns meanwhile: buffers, bindings.
///
/// Dropping or leaking a `Work` is sound and does not stop the work; what it owns is then freed when it is done, or never.
#[must_use = "`wait` says whether the work succeeded, and hands the buffers back"]
pub struct Work<T: Send + 'static> {
    state: WorkState<T>,
    /// Lets go of what only the run needed.
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

    /// Whether the work is finished, well or not. Does not block.
    pub fn is_done(&self) -> bool {
        match &self.state {
            WorkState::Done(..) => true,
            WorkState::Launched(launched) => launched.is_done(),
            WorkState::Queued(pending) => pending.is_done(),
        }
    }

    /// Whether the work was finished, or recorded, when it was enqueued, so that waiting for it asks nobody.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, WorkState::Done(..))
    }

    /// Whether this thread may wait for the work.
    pub(crate) fn check_wait(&self) -> Result<()> {
        match &self.state {
            WorkState::Queued(pending) => pending.check_wait(),
            _ => Ok(()),
        }
    }

    /// Blocks until the work is finished and hands back what it owned. It takes no longer than the deadlines of the
    /// collectives inside.
    ///
    /// # Errors
    ///
    /// What went wrong in the work, together with what it owned.
    ///
    /// # Panics
    ///
    /// Instead of waiting for ever: on a worker stream, what runs there waits for work that is
    /// behind it; a plugin waits for work that was issued after its own run, and that waits for
    /// that run; the work was enqueued by a process that this one was forked from, and is not done
    /// here.
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

/// An error together with what the failed call owned. It turns into the [`Error`] alone with `?`.
pub struct EnqueueError<T> {
    /// What went wrong.
    pub error: Error,
    /// What the call owned. After an error the contents of outputs are undefined.
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
