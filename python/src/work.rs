//! Calls that go on after they return: torch.distributed's `Work`.

use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

use distcollective::comm::{Messages, RawCollective, Received};
use distcollective::{Error, ErrorKind};
use pyo3::prelude::*;

use super::errors::{self, exception};
use super::interrupt;
use super::tensor::Tensor;
use super::timeout::Timeout;

/// Work of the library.
pub(super) enum Pending {
    Collective(distcollective::Work<RawCollective>),
    Messages(distcollective::Work<Messages>),
}

/// What work has received: an element for each message.
type Sources = Vec<Option<Received>>;

impl Pending {
    fn is_done(&self) -> bool {
        match self {
            Pending::Collective(work) => work.is_done(),
            Pending::Messages(work) => work.is_done(),
        }
    }

    /// Waits for the work. Gives its result, or the work itself if it goes on.
    fn wait(self, timeout: Duration) -> ControlFlow<Result<Sources, Error>, Self> {
        let checked = match &self {
            Pending::Collective(work) => work.check_wait(),
            Pending::Messages(work) => work.check_wait(),
        };
        if let Err(error) = checked {
            return ControlFlow::Break(Err(error));
        }
        match self {
            Pending::Collective(work) => match work.wait_timeout(timeout) {
                Ok(result) => ControlFlow::Break(result.map(|_| Vec::new()).map_err(Error::from)),
                Err(work) => ControlFlow::Continue(Pending::Collective(work)),
            },
            Pending::Messages(work) => match work.wait_timeout(timeout) {
                Ok(result) => ControlFlow::Break(result.map(|done| done.received().to_vec()).map_err(Error::from)),
                Err(work) => ControlFlow::Continue(Pending::Messages(work)),
            },
        }
    }
}

/// Work that a program does not hold any more.
struct DroppedWork {
    pending: Pending,
    _tensors: Vec<Tensor>,
    /// The process that began it.
    process: u32,
}

impl DroppedWork {
    /// Whether the work has ended. In a child that was forked the answer is no: a thread of the
    /// parent may have held a lock of the work.
    fn has_ended(&self) -> bool {
        self.process == std::process::id() && self.pending.is_done()
    }
}

/// Dropped work with its tensors, until it has ended.
static DROPPED: Mutex<Vec<DroppedWork>> = Mutex::new(Vec::new());

fn dropped() -> MutexGuard<'static, Vec<DroppedWork>> {
    DROPPED.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Frees what dropped work held, if it has ended.
fn free_ended() {
    let ended: Vec<_> = {
        let mut dropped = dropped();
        if dropped.is_empty() {
            return;
        }
        dropped.extract_if(.., |work| work.has_ended()).collect()
    };
    // Without the lock: a tensor's end may run code of the program, which calls this library.
    drop(ended);
}

/// A call that goes on.
#[pyclass(frozen, module = "distcollective._core")]
pub(super) struct Work {
    /// Held by a thread that waits, without the interpreter. So a thread with the interpreter only
    /// tries to lock it.
    state: Mutex<State>,
    /// The thread that holds it asks whether the work has ended, and waits for no other rank.
    is_asked: AtomicBool,
    process: u32,
}

struct State {
    pending: Option<Pending>,
    /// What the work reads and writes, until it has ended, less what the caller keeps instead.
    tensors: Vec<Tensor>,
    /// After its end.
    result: Result<Sources, Error>,
}

impl State {
    /// Notes the end of the work. Gives the tensors, which are dropped without the lock: a tensor's
    /// end may run code of the program, which waits for this work.
    #[must_use]
    fn end(&mut self, result: Result<Sources, Error>) -> Vec<Tensor> {
        if result.is_ok() {
            self.tensors.iter().for_each(Tensor::write_back);
        }
        self.result = result;
        std::mem::take(&mut self.tensors)
    }

    /// The tensors of work that has ended, or whose end was noted before: see [`end`](Self::end).
    /// `None` if it goes on. Waits for no other rank.
    fn poll(&mut self, py: Python<'_>) -> Option<Vec<Tensor>> {
        match self.pending.take() {
            None => Some(Vec::new()),
            Some(pending) if !pending.is_done() => {
                self.pending = Some(pending);
                None
            }
            // After an error this may wait for the GPU.
            Some(pending) => match py.detach(|| pending.wait(Duration::ZERO)) {
                ControlFlow::Break(result) => Some(self.end(result)),
                ControlFlow::Continue(pending) => {
                    self.pending = Some(pending);
                    None
                }
            },
        }
    }
}

/// How long a thread sleeps between looks at work for which another thread waits.
const PAUSE: Duration = Duration::from_millis(1);

impl Work {
    pub(super) fn new(pending: Pending, tensors: Vec<Tensor>) -> Self {
        free_ended();
        let state = State { pending: Some(pending), tensors, result: Ok(Vec::new()) };
        Work { state: Mutex::new(state), is_asked: AtomicBool::new(false), process: std::process::id() }
    }

    /// The state, unless another thread waits for the work.
    fn try_state(&self) -> Option<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Some(state),
            Err(TryLockError::Poisoned(poisoned)) => Some(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    /// Checks that this is the process that began the work. In a child that was forked, a thread of
    /// the parent may have held the lock, and would never free it.
    fn check_process(&self, py: Python<'_>) -> PyResult<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => {
                let text = "work belongs to the process that began it, and this one was forked from that";
                Err(exception(py, &Error::new(ErrorKind::Unsupported, text)))
            }
        }
    }

    /// The result of work that has ended. Waits for no other rank.
    fn result(&self, py: Python<'_>) -> PyResult<Option<Result<Sources, Error>>> {
        self.check_process(py)?;
        let mut state = loop {
            match self.try_state() {
                Some(state) => break state,
                None if self.is_asked.load(Ordering::Relaxed) => py.detach(|| std::thread::sleep(PAUSE)),
                None => return Ok(None),
            }
        };
        // Other threads look at it with the interpreter, which this one has now.
        self.is_asked.store(true, Ordering::Relaxed);
        let polled = state.poll(py);
        self.is_asked.store(false, Ordering::Relaxed);
        let Some(tensors) = polled else { return Ok(None) };
        let result = state.result.clone();
        drop(state);
        drop(tensors);
        Ok(Some(result))
    }

    /// Waits until the work has ended.
    pub(super) fn wait_until(&self, py: Python<'_>, deadline: Option<Instant>) -> PyResult<()> {
        self.check_process(py)?;
        interrupt::check_may_wait(py)?;
        errors::check_raised()?;
        let left = || deadline.map_or(Duration::MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
        loop {
            if let Some(mut state) = self.try_state() {
                let Some(pending) = state.pending.take() else {
                    let result = state.result.clone();
                    drop(state);
                    return result.map(drop).map_err(|error| exception(py, &error));
                };
                match py.detach(|| pending.wait(left())) {
                    ControlFlow::Break(result) => {
                        let tensors = state.end(result);
                        drop(state);
                        drop(tensors);
                    }
                    ControlFlow::Continue(pending) => {
                        state.pending = Some(pending);
                        drop(state);
                        if left().is_zero() {
                            return Err(exception(py, &timed_out()));
                        }
                        let interrupted = "interrupted by the program while the work had not ended; the work goes on";
                        return Err(exception(py, &Error::new(ErrorKind::Interrupted, interrupted)));
                    }
                }
            } else if left().is_zero() {
                return Err(exception(py, &timed_out()));
            } else {
                py.check_signals()?;
                py.detach(|| std::thread::sleep(PAUSE.min(left())));
            }
        }
    }
}

fn timed_out() -> Error {
    let text = "the work has not ended within the timeout of this wait; it goes on, and can be waited for again";
    Error::new(ErrorKind::DeadlineExceeded, text)
}

#[pymethods]
impl Work {
    /// Waits until the call has ended, and raises its error. A timeout of zero is no limit, as in
    /// torch.
    #[pyo3(signature = (timeout = None))]
    fn wait(&self, py: Python<'_>, timeout: Option<Timeout>) -> PyResult<bool> {
        let deadline =
            timeout.filter(|timeout| !timeout.0.is_zero()).and_then(|timeout| Instant::now().checked_add(timeout.0));
        self.wait_until(py, deadline).map(|()| true)
    }

    /// Lets go of torch's tensors on a GPU. The caller keeps their memory until the GPU does not
    /// use it.
    fn forget_tensors(&self) {
        let is_on_gpu = |tensor: &mut Tensor| tensor.stream().is_some();
        let forgotten = self.try_state().map(|mut state| state.tensors.extract_if(.., is_on_gpu).collect::<Vec<_>>());
        // Without the lock: see `State::end`.
        drop(forgotten);
    }

    /// Whether the call has ended, well or not.
    pub(super) fn is_completed(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.result(py)?.is_some())
    }

    /// Whether the call has ended well.
    fn is_success(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.result(py)?.is_some_and(|result| result.is_ok()))
    }

    /// The error of a call that has ended with one.
    fn exception(&self, py: Python<'_>) -> PyResult<Option<PyErr>> {
        errors::check_raised()?;
        Ok(self.result(py)?.and_then(Result::err).map(|error| exception(py, &error)))
    }

    /// The sender's rank of the communicator, of a message that has been received.
    fn _source_rank(&self, py: Python<'_>) -> PyResult<Option<u32>> {
        Ok(self.received(py)?.into_iter().flatten().next().map(|(source, _)| source))
    }

    /// For each message that has been received, the sender's rank of the communicator, and how many
    /// elements there are. `None` for a send.
    fn received(&self, py: Python<'_>) -> PyResult<Vec<Option<(u32, usize)>>> {
        let received = self.result(py)?.and_then(Result::ok).unwrap_or_default();
        Ok(received.into_iter().map(|received| received.map(|it| (it.source.0, it.element_count))).collect())
    }
}

/// The memory of work that has not ended stays.
impl Drop for Work {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(pending) = state.pending.take() else { return };
        let work = DroppedWork { pending, _tensors: std::mem::take(&mut state.tensors), process: self.process };
        if !work.has_ended() {
            dropped().push(work);
        }
    }
}
