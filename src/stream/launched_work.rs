//! Work that was enqueued on a CUDA stream.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::Instant;

use super::SYNCHRONIZE_TIMEOUT;
use super::task::{Task, Watch, run_in_turn, wait_for_turn};
use crate::cuda::{CudaStream, Point};
use crate::error::{Error, ErrorKind, Result};
use crate::issue_order::IssueTicket;
use crate::util::lock;
use crate::util::poller::Poller;
use crate::util::wait::POLL;

/// Enqueues a task on a CUDA stream. Gives it back with the result if it has ended.
pub(super) fn launch<T: Task>(
    mut task: T,
    ticket: Option<IssueTicket<'_>>,
    stream: &Arc<CudaStream>,
) -> Result<LaunchedWork<T>, (T, Result<()>)> {
    let watch = task.watch();
    // The wait may run the interrupt hook, which may change the current GPU.
    if let Err(error) = wait_for_turn(&task, ticket.as_ref()) {
        return Err((task, Err(error)));
    }
    let visit = match stream.visit() {
        Ok(visit) => visit,
        Err(error) => return Err((task, Err(error))),
    };
    stream.expect(watch.as_ref().map_or_else(unwatched, |(_, deadline)| *deadline));
    // From here on NCCL keeps the order of enqueued collectives.
    let result = run_in_turn(&mut task, ticket, Some(stream));
    // The work was recorded into the caller's graph. It may run never or many times, and events
    // cannot be queried during a capture.
    if visit.is_capturing() {
        return Err((task, result));
    }
    stream.sweep_if_many();
    // If the task itself failed, it has ended its communicator.
    match result {
        Ok(()) => {
            let end = stream.point();
            let (task, stream, ending) = (Some(task), Arc::clone(stream), Ending { end, watch });
            Ok(LaunchedWork { task, ending, has_succeeded: AtomicBool::new(false), stream, label: T::label })
        }
        Err(error) => {
            // Part of the work may have been enqueued.
            stream.drain();
            Err((task, Err(error)))
        }
    }
}

/// The deadline of work without a communicator.
fn unwatched() -> Instant {
    Instant::now() + SYNCHRONIZE_TIMEOUT
}

/// When work on a CUDA stream ends: with its last command, or with an error of its communicator.
#[derive(Clone)]
struct Ending {
    end: Point,
    watch: Option<(Arc<dyn Watch>, Instant)>,
}

impl Ending {
    /// Whether the work ended well, after it has ended.
    fn check_result(&self) -> Result<()> {
        self.watch.as_ref().map_or(Ok(()), |(watch, _)| watch.check_result())
    }

    /// Whether it has come, with the answer of [`Point::is_done`].
    fn has_come(&self, is_done: &Result<bool>) -> bool {
        // If the query fails, or the work cannot end any more, a wait returns the error at once.
        !matches!(is_done, Ok(false))
            || self.watch.as_ref().is_some_and(|(watch, deadline)| {
                watch.check().is_err() || Instant::now() >= self.end.deadline(*deadline)
            })
    }
}

/// The task that waits. The thread takes the waker when the work has ended, and forgets work whose
/// slot is dropped.
pub(super) type WakeSlot = Arc<Mutex<Option<Waker>>>;

static WAKING: Poller = Poller::new("dcl-wake", POLL);

/// A slot whose waker is woken when `has_ended` is true.
fn wake_when(has_ended: impl Fn() -> bool + Send + 'static) -> io::Result<WakeSlot> {
    let slot = WakeSlot::default();
    let weak = Arc::downgrade(&slot);
    WAKING.add(move || {
        let Some(slot) = weak.upgrade() else { return false };
        let is_asked = lock(&slot).is_some();
        // If the question panics, the task asks itself.
        if is_asked && catch_unwind(AssertUnwindSafe(&has_ended)).unwrap_or(true) {
            let waker = lock(&slot).take();
            waker.into_iter().for_each(Waker::wake);
        }
        // A deadline that has passed may move when a capture ends. Then the task waits again.
        true
    })?;
    Ok(slot)
}

/// Work that was enqueued on a CUDA stream. Dropping it leaves the task with the stream.
pub(super) struct LaunchedWork<T: Send + 'static> {
    /// `None` after the wait.
    task: Option<T>,
    ending: Ending,
    /// Whether somebody has seen that the work ended well. It stays so, whatever ends the
    /// communicator later.
    has_succeeded: AtomicBool,
    stream: Arc<CudaStream>,
    label: fn(&T, Error) -> Error,
}

impl<T: Send + 'static> LaunchedWork<T> {
    pub(super) fn is_done(&self) -> bool {
        let is_done = self.ending.end.is_done();
        if matches!(is_done, Ok(true)) && self.ending.check_result().is_ok() {
            self.has_succeeded.store(true, Ordering::Relaxed);
        }
        self.has_succeeded.load(Ordering::Relaxed) || self.ending.has_come(&is_done)
    }

    /// The error that [`wait`](Self::wait) would return at once.
    pub(super) fn error(&self) -> Option<Error> {
        let (task, has_come) = (self.task.as_ref()?, self.is_done());
        let result = has_come.then(|| self.wait_for(Instant::now())).flatten()?;
        result.err().map(|error| (self.label)(task, error))
    }

    /// Has a thread wake a task when the work ends. Work that has ended before this returns need
    /// not wake it, so the caller asks once more. `slot` is `None` at the first question.
    pub(super) fn wake_at_end(&self, slot: &mut Option<WakeSlot>, waker: &Waker) {
        if slot.is_none() {
            let ending = self.ending.clone();
            *slot = wake_when(move || ending.has_come(&ending.end.is_done())).ok();
        }
        match slot {
            Some(slot) => *lock(slot) = Some(waker.clone()),
            // Without a thread the program asks again at once.
            None => waker.wake_by_ref(),
        }
    }

    /// Waits for the work, at most until `until`. Gives the work back if it has not ended by then,
    /// or the interrupt hook ends the wait.
    pub(super) fn wait(mut self, until: Instant) -> Result<(T, Result<()>), Self> {
        let Some(result) = self.wait_for(until) else { return Err(self) };
        match self.task.take() {
            Some(task) => {
                let result = result.map_err(|error| (self.label)(&task, error));
                Ok((task, result))
            }
            None => unreachable!("only `wait` and `drop` take the task, and each runs once"),
        }
    }

    /// `None` as in [`wait`](Self::wait).
    fn wait_for(&self, until: Instant) -> Option<Result<()>> {
        if self.has_succeeded.load(Ordering::Relaxed) {
            return Some(Ok(()));
        }
        let Ending { end, watch } = &self.ending;
        let own = watch.as_ref().map_or_else(unwatched, |(_, deadline)| *deadline);
        let mut deadline = end.deadline(own);
        let check = || watch.as_ref().map_or(Ok(()), |(watch, _)| watch.check());
        let error = loop {
            match end.wait(until.min(deadline), check).and_then(|()| self.ending.check_result()) {
                Ok(()) => {
                    self.has_succeeded.store(true, Ordering::Relaxed);
                    return Some(Ok(()));
                }
                // A capture has ended meanwhile, and the event covers later work.
                Err(late) if late.kind() == ErrorKind::DeadlineExceeded && deadline < until.min(end.deadline(own)) => {
                    deadline = end.deadline(own);
                }
                Err(error) => break error,
            }
        };
        // If the communicator has ended too, that counts.
        let is_alive = || check().is_ok() && Instant::now() < deadline;
        match error.kind() {
            ErrorKind::Interrupted | ErrorKind::DeadlineExceeded if is_alive() => return None,
            _ => {}
        }
        Some(Err(match watch {
            Some((watch, _)) => {
                let error = watch.fail(error);
                self.stream.drain();
                error
            }
            None => error,
        }))
    }
}

impl<T: Send + 'static> Drop for LaunchedWork<T> {
    fn drop(&mut self) {
        if let Some(task) = self.task.take() {
            self.stream.keep(self.ending.end.clone(), Box::new(task));
        }
    }
}
