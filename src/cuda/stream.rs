//! CUDA streams.

use std::ffi::c_void;
use std::fmt;
use std::ops::Deref;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::Device;
use super::device::Visit;
use super::driver::check;
use super::graph::CapturedGraph;
use super::memory::new_generation;
use super::owner::Owner;
use super::point::{Point, StreamState};
use super::sys::{self, CUstream, CUstreamCaptureStatus};
use crate::error::{Result, bail};

/// How long aborted work may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A CUDA stream, and what is known of its work.
pub(crate) struct CudaStream {
    state: Arc<StreamState>,
    origin: StreamOrigin,
    id: u64,
    alive: Arc<()>,
}

/// Who destroys the driver's stream, and when.
enum StreamOrigin {
    /// The library, when its work has ended.
    Library,
    /// The caller, after the library's last use.
    Caller,
    /// The owner's drop, or another library later. The library drops the owner when the work has
    /// ended.
    Owner(Owner),
}

impl CudaStream {
    /// A new stream, which does not wait for the default stream.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let _current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, sys::CU_STREAM_NON_BLOCKING) })?;
        Ok(Self::with(device, raw, StreamOrigin::Library))
    }

    /// The caller's stream, or that of an owner.
    ///
    /// # Safety
    ///
    /// `raw` is null or a stream of this device's primary context, and exists as long as this value
    /// and work that it enqueues, or as the owner.
    pub(crate) unsafe fn borrowed(device: &Arc<Device>, raw: *mut c_void, owner: Option<Owner>) -> Result<Self> {
        let _current = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller promises a live stream or null; the call writes one pointer.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(raw.cast(), &mut context) })?;
        if context != device.context() {
            bail!(InvalidArgument, "the stream is not one of GPU {}, or not of its primary context", device.ordinal());
        }
        Ok(Self::with(device, raw.cast(), owner.map_or(StreamOrigin::Caller, StreamOrigin::Owner)))
    }

    fn with(device: &Arc<Device>, raw: CUstream, origin: StreamOrigin) -> Self {
        // The driver may reuse the handle of an own stream while work of the destroyed one still
        // runs. A caller destroys a stream only when its work has ended.
        let is_own = matches!(origin, StreamOrigin::Library);
        let id = if is_own { 2 * new_generation() + 1 } else { raw.addr() as u64 };
        let state = Arc::new(StreamState::new(device, raw));
        device.add_stream(&state);
        CudaStream { state, origin, id, alive: Arc::default() }
    }

    /// A reference that dies with the stream.
    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// A number for each stream: even for a caller's, odd for one that the library made.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// The handle, for other libraries.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.raw().cast()
    }

    /// Makes the stream's GPU current, and asks once whether the stream is being captured. Until
    /// the guard is dropped, this thread does not ask the driver for either again.
    pub(crate) fn visit(&self) -> Result<Visit> {
        let current = self.device().enter()?;
        let is_capturing = self.is_capturing()?;
        Ok(Visit::new(current, self.id, is_capturing))
    }

    /// Whether the stream is being captured: enqueued work is recorded into a graph and does not
    /// run.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        if let Some(is_capturing) = Visit::status_of(self.id) {
            return Ok(is_capturing);
        }
        match self.state.capture_status()? {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE if matches!(self.origin, StreamOrigin::Owner(_)) => {
                bail!(
                    Unsupported,
                    "the stream is being captured, and the library got it with an owner; the graph might outlive what \
                     is recorded; Stream::from_raw_cuda gives a stream that records"
                )
            }
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            _ => bail!(
                InvalidArgument,
                "the stream's capture has been invalidated by an earlier call, or it is the default stream and another \
                 stream is captured"
            ),
        }
    }

    /// The graph into which the stream's work is being recorded; `None` if it is not.
    pub(crate) fn captured_graph(&self) -> Result<Option<CapturedGraph>> {
        self.is_capturing()?.then(|| CapturedGraph::of(self)).transpose()
    }

    /// Makes everything that is enqueued from now on wait for work of another stream.
    pub(crate) fn wait_for(&self, point: &Point) -> Result<()> {
        let Some(event) = point.event()? else {
            bail!(NotReady, "the stream of the earlier work is being captured; wait for that work before the capture");
        };
        let _current = self.device().enter()?;
        // SAFETY: stream and event are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw(), event.handle(), 0) })
    }

    /// Waits until everything that was enqueued so far has ended. An error of `alive`, which is
    /// called again and again, ends the wait; so does the interrupt hook.
    pub(crate) fn synchronize(&self, deadline: Instant, alive: impl FnMut() -> Result<()>) -> Result<()> {
        match self.state.mark_now()? {
            Some(event) => event.wait(deadline, alive),
            None => bail!(NotReady, "the stream is being captured, so there is no work to wait for"),
        }
    }

    /// After a failure: waits until the aborted work has ended and does not use the caller's memory
    /// any more. If the stream is captured meanwhile, this waits for the capture's end.
    pub(crate) fn drain(&self) {
        if let Err(error) = self.state.finish(Instant::now() + DRAIN_TIMEOUT) {
            crate::util::log::event!(WARN, "work on the GPU goes on after its communicator was aborted: {error}");
        }
    }
}

impl Deref for CudaStream {
    type Target = Arc<StreamState>;

    fn deref(&self) -> &Self::Target {
        &self.state
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:p} of GPU {}", self.raw(), self.device().ordinal())
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        let (state, caller) = (Arc::clone(&self.state), StreamOrigin::Caller);
        let origin = std::mem::replace(&mut self.origin, caller);
        if !self.device().is_here() {
            return std::mem::forget(origin);
        }
        let is_callers = matches!(origin, StreamOrigin::Caller);
        // The caller may destroy his stream at once.
        if is_callers {
            state.close();
        }
        let kept = state.take_kept();
        if is_callers && kept.is_empty() {
            return;
        }
        self.device().release_later("a stream that was dropped", move || {
            // The end of work is not known if the caller dropped the stream during a capture.
            kept.into_iter().filter(|(end, _)| !matches!(end.is_done(), Ok(true))).for_each(std::mem::forget);
            state.device().remove_stream(&state);
            if !is_callers {
                state.close();
            }
            match origin {
                // SAFETY: `new` made the stream, it is destroyed once, and no thread uses it after
                // `close`.
                StreamOrigin::Library => check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(state.raw()) }),
                StreamOrigin::Caller => Ok(()),
                StreamOrigin::Owner(owner) => {
                    drop(owner);
                    Ok(())
                }
            }
        });
    }
}
