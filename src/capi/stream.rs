//! Streams, and work on them.

use std::collections::VecDeque;
use std::ffi::c_void;
use std::sync::{Mutex, TryLockError};

use super::arguments::{Out, Room, unsigned};
use super::context::RunWork;
use super::handle::{Handle, Object, busy};
use super::status::{Fault, Result, Status, call};
use crate::comm::RawCollective;
use crate::dist_collective::RawCall;
use crate::stream::{Stream, Work, lock};

/// `dcl_stream_t`.
pub(super) struct CStream {
    stream: Stream,
    unclaimed: Mutex<Unclaimed>,
}

/// What was enqueued without a handle.
#[derive(Default)]
struct Unclaimed {
    work: VecDeque<AnyWork>,
    /// The first error of what is not in the list any more.
    error: Option<Fault>,
}

impl Object for CStream {
    const TYPE: &'static str = "dcl_stream_t";
}

/// `dcl_work_t`.
pub(super) struct CWork {
    state: Mutex<WorkState>,
}

enum WorkState {
    Pending(AnyWork),
    Done(Result<()>),
}

impl Object for CWork {
    const TYPE: &'static str = "dcl_work_t";
}

/// Work of any kind.
pub(super) enum AnyWork {
    Run(RunWork),
    Layer(Work<RawCall>),
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

    fn wait(self) -> Result<()> {
        match self {
            AnyWork::Run(run) => run.wait(),
            AnyWork::Layer(work) => Ok(work.wait().map(drop)?),
            AnyWork::Collective(work) => Ok(work.wait().map(drop)?),
        }
    }
}

impl Unclaimed {
    /// Keeps work until it is done, and lets go of what is.
    fn keep(&mut self, work: AnyWork) {
        self.work.push_back(work);
        while self.work.front().is_some_and(AnyWork::is_done) {
            let done = self.work.pop_front().map_or(Ok(()), AnyWork::wait);
            if let Err(fault) = done {
                self.error.get_or_insert(fault);
            }
        }
    }
}

/// Enqueues on a stream of C's, NULL being the calling thread. What is done at once fails at once; the rest goes to `work`, or where
/// nobody wants that, to the stream.
pub(super) fn enqueue(
    stream: Handle<CStream>,
    work: Out<Handle<CWork>>,
    submit: impl FnOnce(&Stream) -> Result<AnyWork>,
) -> Result<()> {
    let stream = if stream.is_null() { None } else { Some(stream.get()?) };
    let submitted = match &stream {
        None => submit(&Stream::inline())?,
        Some(stream) => submit(&stream.stream)?,
    };
    let claim = work.optional();
    let state = match stream {
        _ if submitted.is_settled() => {
            submitted.wait()?;
            WorkState::Done(Ok(()))
        }
        Some(stream) if claim.is_none() => {
            lock(&stream.unclaimed).keep(submitted);
            return Ok(());
        }
        _ => WorkState::Pending(submitted),
    };
    if let Some(claim) = claim {
        claim.set(Handle::new(CWork { state: Mutex::new(state) }));
    }
    Ok(())
}

fn new_stream(stream: Out<Handle<CStream>>, make: impl FnOnce() -> Result<Stream>) -> Result<()> {
    let place = stream.place("stream")?;
    place.set(Handle::new(CStream { stream: make()?, unclaimed: Mutex::default() }));
    Ok(())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_new_worker(stream: Out<Handle<CStream>>) -> Status {
    call(|| new_stream(stream, || Ok(Stream::worker()?)))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_new_cuda(device: i32, stream: Out<Handle<CStream>>) -> Status {
    call(|| new_stream(stream, || Ok(Stream::cuda(unsigned("device", device)?)?)))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_from_cuda(cuda_stream: Room, device: i32, stream: Out<Handle<CStream>>) -> Status {
    call(|| {
        new_stream(stream, || {
            let device = unsigned("device", device)?;
            // SAFETY: the header wants a stream of that GPU's primary context that outlives what is enqueued through the handle.
            Ok(unsafe { Stream::from_raw_cuda(cuda_stream.address(), device)? })
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_free(stream: Handle<CStream>) -> Status {
    call(|| stream.free())
}

#[unsafe(no_mangle)]
extern "C" fn dcl_stream_get_cuda(stream: Handle<CStream>, cuda_stream: Out<*mut c_void>) -> Status {
    call(|| {
        let (stream, cuda_stream) = (stream.get()?, cuda_stream.place("cuda_stream")?);
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
        let unclaimed = std::mem::take(&mut lock(&stream.unclaimed).work);
        let mut first = Ok(());
        for work in unclaimed {
            first = first.and(work.wait());
        }
        let synchronized = stream.stream.synchronize().map_err(Fault::from);
        // What was let go of before was enqueued before.
        let earlier = lock(&stream.unclaimed).error.take().map_or(Ok(()), Err);
        earlier.and(first).and(synchronized)
    })
}

impl CWork {
    fn with<R>(&self, act: impl FnOnce(&mut WorkState) -> Result<R>) -> Result<R> {
        match self.state.try_lock() {
            Ok(mut state) => act(&mut state),
            Err(TryLockError::Poisoned(poisoned)) => act(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => Err(busy::<CWork>()),
        }
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_is_done(work: Handle<CWork>, is_done: Out<i32>) -> Status {
    call(|| {
        let (work, is_done) = (work.get()?, is_done.place("is_done")?);
        let done = work.with(|state| {
            Ok(match state {
                WorkState::Pending(work) => work.is_done(),
                WorkState::Done(_) => true,
            })
        })?;
        is_done.set(done.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_wait(work: Handle<CWork>) -> Status {
    call(|| {
        let work = work.get()?;
        work.with(|state| {
            // Until the result is there, in case that waiting panics.
            let panicked = || Fault::new(Status::INTERNAL, "waiting for this work panicked");
            match std::mem::replace(state, WorkState::Done(Err(panicked()))) {
                WorkState::Pending(pending) => *state = WorkState::Done(pending.wait()),
                done => *state = done,
            }
            match state {
                WorkState::Done(result) => result.clone(),
                WorkState::Pending(_) => Err(panicked()),
            }
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_work_free(work: Handle<CWork>) -> Status {
    call(|| work.free())
}
