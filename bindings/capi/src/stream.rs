//! `dcl_stream_*` and `dcl_work_*`.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use dcl::comm::{Messages, RawCollective, Received};
use dcl::{Error, ErrorKind, Stream, Work};

use super::arguments::{OutPointer, VoidPointer, timeout, unsigned};
use super::handle::{Handle, Object, TryRwLock};
use super::library::interruption_count;
use super::owned_work::{BroadcastWork, RunWork};
use super::status::{CallError, Result, Status, call, lock};

/// `dcl_stream_t`.
pub(super) struct CStream {
    stream: Stream,
    untracked: Mutex<UntrackedWork>,
}

/// Work that was enqueued without a handle.
#[derive(Default)]
struct UntrackedWork {
    work: VecDeque<AnyWork>,
    /// The first error of work that has left the list.
    error: Option<CallError>,
}

impl Object for CStream {
    const TYPE: &'static str = "dcl_stream_t";
}

/// `dcl_work_t`.
pub(super) struct CWork {
    state: TryRwLock<WorkState, CWork>,
}

struct WorkState {
    /// The work, until a call waits for it.
    pending: Option<AnyWork>,
    /// The work's result, after that.
    result: Result<Ended>,
}

/// What each message of the work has received. Other work has none.
type Ended = Vec<Option<Received>>;

impl Object for CWork {
    const TYPE: &'static str = "dcl_work_t";
}

/// Work of any kind of call.
pub(super) enum AnyWork {
    Run(RunWork),
    Collective(Work<RawCollective>),
    Messages(Work<Messages>),
    Broadcast(Arc<BroadcastWork>),
}

impl AnyWork {
    fn is_done(&self) -> bool {
        match self {
            AnyWork::Run(run) => run.work.is_done(),
            AnyWork::Collective(work) => work.is_done(),
            AnyWork::Messages(work) => work.is_done(),
            AnyWork::Broadcast(work) => work.is_done(),
        }
    }

    /// Whether it was done, or recorded, when it was enqueued.
    fn is_settled(&self) -> bool {
        match self {
            AnyWork::Run(run) => run.work.is_settled(),
            AnyWork::Collective(work) => work.is_settled(),
            AnyWork::Messages(work) => work.is_settled(),
            AnyWork::Broadcast(work) => work.is_settled(),
        }
    }

    fn check_wait(&self) -> Result<()> {
        Ok(match self {
            AnyWork::Run(run) => run.work.check_wait(),
            AnyWork::Collective(work) => work.check_wait(),
            AnyWork::Messages(work) => work.check_wait(),
            AnyWork::Broadcast(work) => return work.check_wait(),
        }?)
    }

    /// Waits for the work. Gives its result, or the work itself if it goes on, because the timeout
    /// is over or the caller's callback ends the wait.
    fn wait(self, timeout: Duration) -> ControlFlow<Result<Ended>, Self> {
        fn of<T, E: Into<CallError>>(result: Result<T, E>) -> ControlFlow<Result<Ended>, AnyWork> {
            ControlFlow::Break(result.map(|_| Ended::new()).map_err(Into::into))
        }
        fn received<E: Into<CallError>>(result: Result<Messages, E>) -> ControlFlow<Result<Ended>, AnyWork> {
            ControlFlow::Break(result.map(|messages| messages.received().to_vec()).map_err(Into::into))
        }
        let goes_on = ControlFlow::Continue;
        match self {
            AnyWork::Run(run) => run.wait(timeout).map_or_else(|run| goes_on(AnyWork::Run(*run)), of),
            AnyWork::Collective(work) => {
                work.wait_timeout(timeout).map_or_else(|work| goes_on(AnyWork::Collective(work)), of)
            }
            AnyWork::Broadcast(work) => match work.wait(timeout) {
                Some(result) => of(result),
                None => goes_on(AnyWork::Broadcast(work)),
            },
            AnyWork::Messages(work) => {
                work.wait_timeout(timeout).map_or_else(|work| goes_on(AnyWork::Messages(work)), received)
            }
        }
    }
}

/// A wait that ends only with its work, or if the caller's callback ends it.
const WITHOUT_TIMEOUT: Duration = Duration::MAX;

/// The error of a wait that the caller's callback has ended.
fn interrupted() -> CallError {
    Error::new(ErrorKind::Interrupted, "interrupted by the program while the work had not ended; the work goes on")
        .into()
}

impl CStream {
    /// Keeps work until it is done, and drops finished work. The drop happens without the lock,
    /// because a run may own a plugin whose `destroy` calls this library.
    fn keep(&self, work: AnyWork) {
        lock(&self.untracked).work.push_back(work);
        loop {
            let mut untracked = lock(&self.untracked);
            if !untracked.work.front().is_some_and(AnyWork::is_done) {
                return;
            }
            let Some(done) = untracked.work.pop_front() else { return };
            drop(untracked);
            match done.wait(Duration::ZERO) {
                ControlFlow::Break(Ok(_)) => {}
                ControlFlow::Break(Err(error)) => drop(lock(&self.untracked).error.get_or_insert(error)),
                ControlFlow::Continue(pending) => return lock(&self.untracked).work.push_front(pending),
            }
        }
    }

    /// Waits for all work of the list, and gives its first error.
    ///
    /// # Errors
    ///
    /// The caller's callback ends the wait. The rest stays in the list.
    fn wait_for_untracked(&self) -> Result<Result<()>> {
        let mut first = Ok(());
        let mut left = std::mem::take(&mut lock(&self.untracked).work);
        while let Some(work) = left.pop_front() {
            match work.wait(WITHOUT_TIMEOUT) {
                ControlFlow::Break(result) => first = first.and(result.map(drop)),
                ControlFlow::Continue(pending) => {
                    left.push_front(pending);
                    let mut untracked = lock(&self.untracked);
                    left.append(&mut untracked.work);
                    untracked.work = left;
                    if let Err(error) = first {
                        untracked.error.get_or_insert(error);
                    }
                    return Err(interrupted());
                }
            }
        }
        Ok(first)
    }
}

/// Enqueues on the caller's stream; a NULL stream is the calling thread. If the work is done at
/// once, the call returns its error. Otherwise the work goes to `work`, or to the stream if `work`
/// is NULL.
pub(super) fn enqueue(
    stream: Handle<CStream>,
    work: OutPointer<Handle<CWork>>,
    submit: impl FnOnce(&Stream) -> Result<AnyWork>,
) -> Result<()> {
    let stream = if stream.is_null() { None } else { Some(stream.get()?) };
    let submitted = match &stream {
        None => submit(&Stream::inline())?,
        Some(stream) => submit(&stream.stream)?,
    };
    let handle = work.optional();
    let pending = match stream {
        _ if submitted.is_settled() => {
            // This waits for nothing.
            match submitted.wait(WITHOUT_TIMEOUT) {
                ControlFlow::Break(result) => result.map(|_| None)?,
                ControlFlow::Continue(pending) => Some(pending),
            }
        }
        Some(stream) if handle.is_none() => {
            stream.keep(submitted);
            None
        }
        _ => Some(submitted),
    };
    if let Some(handle) = handle {
        handle.set(CWork::new(pending));
    }
    Ok(())
}

impl CWork {
    /// A handle of work; of none, if it has ended well.
    fn new(pending: Option<AnyWork>) -> Handle<Self> {
        Handle::new(CWork { state: TryRwLock::new(WorkState { pending, result: Ok(Ended::new()) }) })
    }

    pub(super) fn handle(work: AnyWork) -> Handle<Self> {
        Self::new(Some(work))
    }

    /// What each message of the work has received, after a call that waited for it.
    pub(super) fn received(&self) -> Result<Ended> {
        let state = self.state.write()?;
        match &state.pending {
            Some(_) => {
                Err(CallError::new(Status::NOT_READY, "no call has waited for the work's end; call dcl_work_wait"))
            }
            None => state
                .result
                .clone()
                .map_err(|error| CallError::new(Status::NOT_READY, format!("the work has failed: {error}"))),
        }
    }
}

impl CStream {
    pub(super) fn handle(stream: Stream) -> Handle<Self> {
        Handle::new(CStream { stream, untracked: Mutex::default() })
    }
}

fn new_stream(stream: OutPointer<Handle<CStream>>, make: impl FnOnce() -> Result<Stream>) -> Result<()> {
    let output = stream.check("stream")?;
    output.set(CStream::handle(make()?));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_new_worker(stream: OutPointer<Handle<CStream>>) -> Status {
    call(|| new_stream(stream, || Ok(Stream::worker()?)))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_new_cuda(device: i32, stream: OutPointer<Handle<CStream>>) -> Status {
    call(|| new_stream(stream, || Ok(Stream::cuda(unsigned("device", device)?)?)))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_from_cuda(
    cuda_stream: VoidPointer,
    device: i32,
    stream: OutPointer<Handle<CStream>>,
) -> Status {
    call(|| {
        new_stream(stream, || {
            let device = unsigned("device", device)?;
            // SAFETY: the header requires a stream of that GPU's primary context, which outlives
            // everything that is enqueued through the handle.
            Ok(unsafe { Stream::from_raw_cuda(cuda_stream.address(), device)? })
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_free(stream: Handle<CStream>) -> Status {
    call(|| stream.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_get_cuda(stream: Handle<CStream>, cuda_stream: OutPointer<*mut c_void>) -> Status {
    call(|| {
        let (stream, cuda_stream) = (stream.get()?, cuda_stream.check("cuda_stream")?);
        cuda_stream.set(stream.stream.as_raw_cuda().unwrap_or(std::ptr::null_mut()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_synchronize(stream: Handle<CStream>) -> Status {
    call(|| {
        if stream.is_null() {
            return Ok(());
        }
        let stream = stream.get()?;
        stream.stream.check_wait()?;
        lock(&stream.untracked).work.iter().try_for_each(AnyWork::check_wait)?;
        let first = stream.wait_for_untracked()?;
        let synchronized = stream.stream.synchronize().map_err(CallError::from);
        // Work that has left the list was enqueued earlier, so its error comes first.
        let earlier = lock(&stream.untracked).error.take().map_or(Ok(()), Err);
        earlier.and(first).and(synchronized)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_is_done(work: Handle<CWork>, is_done: OutPointer<i32>) -> Status {
    call(|| {
        let (work, is_done) = (work.get()?, is_done.check("is_done")?);
        let done = work.state.write()?.pending.as_ref().is_none_or(AnyWork::is_done);
        is_done.set(done.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_wait(work: Handle<CWork>) -> Status {
    call(|| wait(work, WITHOUT_TIMEOUT))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_wait_for(work: Handle<CWork>, timeout_ms: i64) -> Status {
    call(|| wait(work, timeout(timeout_ms)?.unwrap_or(WITHOUT_TIMEOUT)))
}

/// Waits for work, at most for the timeout, and gives its result.
fn wait(work: Handle<CWork>, timeout: Duration) -> Result<()> {
    let work = work.get()?;
    let state = &mut *work.state.write()?;
    state.pending.as_ref().map_or(Ok(()), AnyWork::check_wait)?;
    if let Some(pending) = state.pending.take() {
        // If `wait` panics, later calls return this.
        state.result = Err(CallError::new(Status::INTERNAL, "waiting for this work panicked"));
        let interruptions = interruption_count();
        match pending.wait(timeout) {
            ControlFlow::Break(result) => state.result = result,
            ControlFlow::Continue(pending) => {
                state.pending = Some(pending);
                return Err(match interruption_count() == interruptions {
                    true => CallError::new(Status::PENDING, "the work has not ended yet"),
                    false => interrupted(),
                });
            }
        }
    }
    state.result.as_ref().map(drop).map_err(Clone::clone)
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_free(work: Handle<CWork>) -> Status {
    call(|| work.free())
}
