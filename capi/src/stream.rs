//! `dcl_stream_*` and `dcl_work_*`.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::Mutex;

use dcl::comm::RawCollective;
use dcl::dist_collective::LayerTask;
use dcl::{Stream, Work};

use super::arguments::{OutPointer, VoidPointer, unsigned};
use super::context::RunWork;
use super::handle::{Handle, Object, TryRwLock};
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
    result: Result<()>,
}

impl Object for CWork {
    const TYPE: &'static str = "dcl_work_t";
}

/// Work of any kind of call.
pub(super) enum AnyWork {
    Run(RunWork),
    Layer(Work<LayerTask>),
    Collective(Work<RawCollective>),
}

impl AnyWork {
    fn is_done(&self) -> bool {
        match self {
            AnyWork::Run(run) => run.work.is_done(),
            AnyWork::Layer(work) => work.is_done(),
            AnyWork::Collective(work) => work.is_done(),
        }
    }

    /// Whether it was done, or recorded, when it was enqueued.
    fn is_settled(&self) -> bool {
        match self {
            AnyWork::Run(run) => run.work.is_settled(),
            AnyWork::Layer(work) => work.is_settled(),
            AnyWork::Collective(work) => work.is_settled(),
        }
    }

    fn check_wait(&self) -> Result<()> {
        Ok(match self {
            AnyWork::Run(run) => run.work.check_wait(),
            AnyWork::Layer(work) => work.check_wait(),
            AnyWork::Collective(work) => work.check_wait(),
        }?)
    }

    fn wait(self) -> Result<()> {
        match self {
            AnyWork::Run(run) => run.wait(),
            AnyWork::Layer(work) => Ok(work.wait().map(drop)?),
            AnyWork::Collective(work) => Ok(work.wait().map(drop)?),
        }
    }
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
            let done = untracked.work.pop_front();
            drop(untracked);
            if let Some(Err(error)) = done.map(AnyWork::wait) {
                lock(&self.untracked).error.get_or_insert(error);
            }
        }
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
            submitted.wait()?;
            None
        }
        Some(stream) if handle.is_none() => {
            stream.keep(submitted);
            None
        }
        _ => Some(submitted),
    };
    if let Some(handle) = handle {
        handle.set(Handle::new(CWork { state: TryRwLock::new(WorkState { pending, result: Ok(()) }) }));
    }
    Ok(())
}

fn new_stream(stream: OutPointer<Handle<CStream>>, make: impl FnOnce() -> Result<Stream>) -> Result<()> {
    let output = stream.check("stream")?;
    output.set(Handle::new(CStream { stream: make()?, untracked: Mutex::default() }));
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
        let untracked = std::mem::take(&mut lock(&stream.untracked).work);
        let mut first = Ok(());
        for work in untracked {
            first = first.and(work.wait());
        }
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
    call(|| {
        let work = work.get()?;
        let state = &mut *work.state.write()?;
        state.pending.as_ref().map_or(Ok(()), AnyWork::check_wait)?;
        if let Some(pending) = state.pending.take() {
            // If `wait` panics, later calls return this.
            state.result = Err(CallError::new(Status::INTERNAL, "waiting for this work panicked"));
            state.result = pending.wait();
        }
        state.result.clone()
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_free(work: Handle<CWork>) -> Status {
    call(|| work.free())
}
