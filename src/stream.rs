//! Where enqueued work runs, and the handle on it: [`Stream`], [`Work`].

use std::collections::VecDeque;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use crate::cuda::{CudaStream, Device, Event};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder, IssueTicket, Position, missed_turn};
use crate::util::fork::ProcessGuard;
use crate::util::{lock, panic_message};

/// How long [`Stream::synchronize`] waits for a GPU.
const SYNCHRONIZE_TIMEOUT: Duration = Duration::from_secs(600);

/// How long aborted work may take to come to its end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// Where enqueued work runs.
///
/// The inline stream runs it on the caller's thread, and the [`Work`] it gives is finished. A worker stream is one thread
/// that runs what it is given in order; it lets a rank compute while a collective goes on, and costs a wake-up for each
/// piece of work. A CUDA stream, for communicators on GPUs, takes work without waiting for anything; tensors are then in the
/// GPU's memory. Clones are the same stream.
///
/// Dropping a worker stream does not wait: its thread does what was enqueued, then ends. Nor does dropping a CUDA stream.
#[derive(Clone, Default)]
pub struct Stream {
    kind: Kind,
}

#[derive(Clone, Default)]
enum Kind {
    #[default]
    Inline,
    Worker(Arc<WorkerHandle>),
    Cuda(Arc<CudaStream>),
}

impl Stream {
    /// The caller's thread.
    pub const fn inline() -> Self {
        Stream { kind: Kind::Inline }
    }

    /// A new CUDA stream of the GPU with this number among those that the process sees. It does not wait for the default stream.
    ///
    /// # Errors
    ///
    /// No CUDA, or no such GPU.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        let stream = CudaStream::new(&Device::open(ordinal)?)?;
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// The caller's CUDA stream: a `CUstream` or `cudaStream_t`; null is the default stream. What is enqueued while it is being
    /// captured is recorded into the caller's graph; the [`Work`] of that is finished at once.
    ///
    /// # Safety
    ///
    /// It is a stream of that GPU's primary context, the one that the CUDA runtime uses, and it is destroyed only when all clones of
    /// this and all work enqueued through them are gone. Buffers, contexts and communicators outlive the caller's graphs of what was
    /// enqueued on them, and launches of those graphs do not overlap other work of the same contexts.
    ///
    /// # Errors
    ///
    /// No CUDA, no such GPU, a stream of another one; CUDA's "per-thread" stream, which is another one on each thread.
    pub unsafe fn from_raw_cuda(stream: *mut c_void, ordinal: u32) -> Result<Self> {
        const PER_THREAD: usize = 2;
        if stream.addr() == PER_THREAD {
            bail!(Unsupported, "CUDA's per-thread default stream is another one on each thread; make one of your own");
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { CudaStream::borrowed(&Device::open(ordinal)?, stream)? };
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// The `CUstream`, where it is a CUDA stream.
    pub fn as_raw_cuda(&self) -> Option<*mut c_void> {
        match &self.kind {
            Kind::Cuda(stream) => Some(stream.as_ptr()),
            _ => None,
        }
    }

    /// The CUDA stream, if it is one.
    pub(crate) fn as_cuda(&self) -> Option<&Arc<CudaStream>> {
        match &self.kind {
            Kind::Cuda(stream) => Some(stream),
            _ => None,
        }
    }

    /// A thread of its own.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread.
    pub fn worker() -> Result<Self> {
        let queue = Arc::new(Queue::default());
        let thread = Arc::clone(&queue);
        let thread = std::thread::Builder::new()
            .name("dcl-stream".to_owned())
            .spawn(move || thread.run())
            .map_err(|e| error!(System, "no thread for a worker stream").with_source(e))?;
        let thread = WorkerThread { id: thread.thread().id(), process: ProcessGuard::current() };
        let worker = WorkerHandle { queue, thread };
        Ok(Stream { kind: Kind::Worker(Arc::new(worker)) })
    }

    /// Blocks until everything enqueued so far is done. On a CUDA stream that is whatever anybody has enqueued, and the wait is
    /// bounded: see [`Work::wait`] for how a collective that fails is found.
    ///
    /// # Errors
    ///
    /// On a CUDA stream: it is not done within 600 s, or the GPU has failed. On a worker stream:
    /// what runs on it calls this, or a plugin does whose run is ahead of that work in the issue
    /// order; it would wait for itself.
    pub fn synchronize(&self) -> Result<()> {
        self.check_wait()?;
        match &self.kind {
            Kind::Inline => Ok(()),
            Kind::Worker(worker) => {
                worker.queue.wait_for_enqueued();
                Ok(())
            }
            Kind::Cuda(stream) => {
                stream.synchronize(Instant::now() + SYNCHRONIZE_TIMEOUT, || Ok(()))?;
                // Work that nobody waited for is let go of; it may hold the stream itself.
                stream.sweep();
                Ok(())
            }
        }
    }

    /// Whether this thread may wait for the stream.
    pub(crate) fn check_wait(&self) -> Result<()> {
        match &self.kind {
            Kind::Worker(worker) => {
                worker.thread.check_wait()?;
                let positions = lock(&worker.queue.state).positions.clone();
                positions.iter().try_for_each(|position| check_not_behind(position.as_ref()))
            }
            _ => Ok(()),
        }
    }

    /// Runs a task, here or on the stream's thread, or enqueues what it does. `cell` is where a worker puts it, if it has been on
    /// one before.
    pub(crate) fn submit<T: Task>(&self, mut task: T, cell: Option<Arc<Cell<T>>>) -> Work<T> {
        let Kind::Worker(worker) = &self.kind else {
            // Where a worker is not wanted now, it may be the next time.
            if let Some(cell) = cell {
                task.keep_cell(cell);
            }
            let order = task.order();
            let ticket = order.as_ref().map(|(order, extent)| order.issue_here(*extent));
            let state = match &self.kind {
                Kind::Cuda(stream) => launch(task, ticket, stream),
                _ => {
                    let turn = wait_for_turn(&task, ticket.as_ref());
                    let result = turn.and_then(|()| run_in_turn(&mut task, ticket, None));
                    WorkState::Done(task, result)
                }
            };
            return Work { state, finish: T::finish };
        };
        if let Err(error) = worker.thread.check_process() {
            return Work { state: WorkState::Done(task, Err(error)), finish: T::finish };
        }
        let cell = cell.unwrap_or_default();
        let order = task.order();
        if order.as_ref().is_some_and(|(order, _)| order.is_in_run()) {
            let error = error!(
                InvalidArgument,
                "a plugin cannot enqueue work on a worker stream for a communicator of its own run: the moment would decide \
                 about its place in the order; the plugin makes the call on its own thread"
            );
            return Work { state: WorkState::Done(task, Err(error)), finish: T::finish };
        }
        let hand_over = |ticket: Option<IssueTicket<'static>>| {
            let position = ticket.as_ref().and_then(IssueTicket::position);
            *lock(&cell.state) = CellState::Queued(task, ticket);
            worker.queue.push(Arc::clone(&cell) as Arc<dyn Runnable>, position.clone());
            position
        };
        let stream = Arc::as_ptr(&worker.queue).addr();
        let position = match order {
            Some((order, extent)) => order.issue(extent, stream, |ticket| hand_over(Some(ticket))),
            None => hand_over(None),
        };
        let pending = Pending { cell, position, keep: T::keep_cell, thread: worker.thread };
        Work { state: WorkState::Pending(pending), finish: T::finish }
    }
}

/// Waits until it is a task's turn. An error ends the communicator: a rank that leaves a collective
/// out would let its peers wait for nothing.
fn wait_for_turn<T: Task>(task: &T, ticket: Option<&IssueTicket<'_>>) -> Result<()> {
    let (Some(ticket), Some((watch, deadline))) = (ticket, task.watch()) else { return Ok(()) };
    let turn = ticket.wait(deadline, || watch.check(), |error| task.label(error));
    turn.map_err(|error| match watch.check() {
        Ok(()) => watch.give_up(error),
        Err(_) => task.label(error),
    })
}

/// Runs a task whose turn has come, and gives its place back.
fn run_in_turn<T: Task>(task: &mut T, ticket: Option<IssueTicket<'_>>, stream: Option<&Arc<CudaStream>>) -> Result<()> {
    match ticket {
        Some(ticket) => ticket.run(|| task.run(stream)),
        None => task.run(stream),
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Inline => f.write_str("Stream::inline"),
            Kind::Worker(_) => f.write_str("Stream::worker"),
            Kind::Cuda(stream) => stream.fmt(f),
        }
    }
}

/// Work for a stream. It owns everything it touches, so that leaking its handle is sound.
pub(crate) trait Task: Send + Sized + 'static {
    /// The issue order that it takes a place in, and for which communicators.
    fn order(&self) -> Option<(Arc<IssueOrder>, Extent)> {
        None
    }

    /// Does it, or enqueues it on a CUDA stream.
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()>;

    /// Learns after which event of a stream what it has enqueued is done.
    fn launched(&self, _event: &Event, _stream: &CudaStream) {}

    /// Says in an error of enqueued work what it was.
    fn label(&self, error: Error) -> Error {
        error
    }

    /// Who finds out that enqueued work will not be done, and when it has to be.
    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        None
    }

    /// Lets go of what only the run needed, before the task is handed back.
    fn finish(&mut self) {}

    /// Takes the cell back when the task is handed back, for a task that is enqueued again and again.
    fn keep_cell(&mut self, _cell: Arc<Cell<Self>>) {}
}

/// Who knows whether work that goes on elsewhere can still be done: a communicator.
pub(crate) trait Watch: Send + Sync {
    /// The error after which it cannot.
    fn check(&self) -> Result<()>;

    /// Gives up, because of an error of this rank's own, which every further call returns. Gives the error as calls return it.
    fn give_up(&self, error: Error) -> Error;
}

/// Enqueues a task on a CUDA stream.
fn launch<T: Task>(mut task: T, ticket: Option<IssueTicket<'_>>, stream: &Arc<CudaStream>) -> WorkState<T> {
    let watch = task.watch();
    let is_capturing = match stream.is_capturing() {
        Ok(is_capturing) => is_capturing,
        Err(error) => return WorkState::Done(task, Err(error)),
    };
    if let Err(error) = wait_for_turn(&task, ticket.as_ref()) {
        return WorkState::Done(task, Err(error));
    }
    // From here on NCCL keeps the order of what is enqueued.
    let result = run_in_turn(&mut task, ticket, Some(stream));
    // What is recorded is not done; it may never be, or a hundred times. A capture does not allow to ask for events either.
    if is_capturing {
        return WorkState::Done(task, result);
    }
    stream.sweep();
    // A task that fails has seen to its communicator by itself.
    let recorded = result.and_then(|()| {
        stream.record().map_err(|error| match &watch {
            Some((watch, _)) => watch.give_up(error),
            None => error,
        })
    });
    match recorded {
        Ok(event) => {
            task.launched(&event, stream);
            let (work, stream) = (Some((task, event)), Arc::clone(stream));
            WorkState::Launched(Launched { work, stream, watch, label: T::label })
        }
        Err(error) => {
            // A part of it may have been enqueued.
            drain(stream);
            WorkState::Done(task, Err(error))
        }
    }
}

/// Work that has been enqueued on a CUDA stream.
struct Launched<T: Send + 'static> {
    /// Until it is waited for.
    work: Option<(T, Event)>,
    stream: Arc<CudaStream>,
    watch: Option<(Arc<dyn Watch>, Instant)>,
    label: fn(&T, Error) -> Error,
}

impl<T: Send + 'static> Launched<T> {
    fn is_done(&self) -> bool {
        // What cannot be asked, or will not be done any more, is found out by waiting for it.
        self.work.as_ref().is_none_or(|(_, event)| event.is_done().unwrap_or(true))
            || self
                .watch
                .as_ref()
                .is_some_and(|(watch, deadline)| watch.check().is_err() || Instant::now() >= *deadline)
    }

    fn wait(mut self) -> (T, Result<()>) {
        let result = self.work.as_ref().map_or(Ok(()), |(_, event)| self.wait_for(event));
        match self.work.take() {
            Some((task, _)) => {
                let result = result.map_err(|error| (self.label)(&task, error));
                (task, result)
            }
            None => unreachable!("work is taken when it is waited for, or dropped"),
        }
    }

    fn wait_for(&self, event: &Event) -> Result<()> {
        let Some((watch, deadline)) = &self.watch else {
            return event.wait(Instant::now() + SYNCHRONIZE_TIMEOUT, || Ok(()));
        };
        event.wait(*deadline, || watch.check()).map_err(|error| {
            let error = watch.give_up(error);
            drain(&self.stream);
            error
        })
    }
}

/// After a failure: waits until what was aborted has come to its end, so that nobody uses the caller's memory any more.
pub(crate) fn drain(stream: &CudaStream) {
    if stream.synchronize(Instant::now() + DRAIN_TIMEOUT, || Ok(())).is_err() {
        crate::util::log::event!(WARN, "work on the GPU goes on after its communicator was aborted");
    }
}

impl<T: Send + 'static> Drop for Launched<T> {
    fn drop(&mut self) {
        if let Some((task, event)) = self.work.take() {
            self.stream.keep(event, Box::new(task));
        }
    }
}

/// A place for one task on its way through a worker.
pub(crate) struct Cell<T> {
    state: Mutex<CellState<T>>,
    done: Condvar,
}

enum CellState<T> {
    Empty,
    Queued(T, Option<IssueTicket<'static>>),
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
        let CellState::Queued(mut task, ticket) = state else { return };
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
        *lock(&self.state) = CellState::Done(task, result);
        self.done.notify_all();
    }
}

/// Ends the worker's thread when the last handle is gone.
struct WorkerHandle {
    queue: Arc<Queue>,
    thread: WorkerThread,
}

impl Drop for WorkerHandle {
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
struct Queue {
    state: Mutex<QueueState>,
    changed: Condvar,
}

#[derive(Default)]
struct QueueState {
    tasks: VecDeque<Arc<dyn Runnable>>,
    /// The places in the issue order of all tasks that are not done.
    positions: VecDeque<Option<Position>>,
    /// How many tasks were enqueued, and how many of them are done.
    enqueued: u64,
    done: u64,
    closed: bool,
}

impl Queue {
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

/// A handle on enqueued work. `T` is what the work owns meanwhile: buffers, bindings.
///
/// Dropping or leaking a `Work` is sound and does not stop the work; what it owns is then freed when it is done, or never.
#[must_use = "`wait` says whether the work succeeded, and hands the buffers back"]
pub struct Work<T: Send + 'static> {
    state: WorkState<T>,
    /// Lets go of what only the run needed.
    finish: fn(&mut T),
}

enum WorkState<T: Send + 'static> {
    Done(T, Result<()>),
    Launched(Launched<T>),
    Pending(Pending<T>),
}

/// Work that a worker stream has taken.
struct Pending<T> {
    cell: Arc<Cell<T>>,
    /// Its place in the issue order.
    position: Option<Position>,
    keep: fn(&mut T, Arc<Cell<T>>),
    thread: WorkerThread,
}

impl<T> Pending<T> {
    fn is_done(&self) -> bool {
        // In a child it will not be done any more, which is found out by waiting for it.
        !self.thread.process.is_current() || matches!(*lock(&self.cell.state), CellState::Done(..))
    }

    /// Whether this thread may wait for it.
    fn check_wait(&self) -> Result<()> {
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

impl<T: Send + 'static> Work<T> {
    /// Whether the work is finished, well or not. Does not block.
    pub fn is_done(&self) -> bool {
        match &self.state {
            WorkState::Done(..) => true,
            WorkState::Launched(launched) => launched.is_done(),
            WorkState::Pending(pending) => pending.is_done(),
        }
    }

    /// Whether the work was finished, or recorded, when it was enqueued, so that waiting for it asks nobody.
    pub(crate) fn is_settled(&self) -> bool {
        matches!(self.state, WorkState::Done(..))
    }

    /// Whether this thread may wait for the work.
    pub(crate) fn check_wait(&self) -> Result<()> {
        match &self.state {
            WorkState::Pending(pending) => pending.check_wait(),
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
    pub fn wait(self) -> Result<T, Failed<T>> {
        if let Err(error) = self.check_wait() {
            panic!("{error}");
        }
        let (mut operands, result) = match self.state {
            WorkState::Done(operands, result) => (operands, result),
            WorkState::Launched(launched) => launched.wait(),
            WorkState::Pending(Pending { cell, keep, .. }) => {
                let (mut operands, result) = cell.wait();
                keep(&mut operands, cell);
                (operands, result)
            }
        };
        (self.finish)(&mut operands);
        match result {
            Ok(()) => Ok(operands),
            Err(error) => Err(Failed::new(error, operands)),
        }
    }
}

impl<T: Send + 'static> fmt::Debug for Work<T> {
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
