//! CUDA's streams and events.

use std::any::Any;
use std::ffi::c_void;
use std::fmt;
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{
    self, CUevent, CUevent_flags, CUstream, CUstream_flags, CUstreamCaptureMode, CUstreamCaptureStatus,
};

use super::Device;
use super::driver::{check, is_not_ready};
use super::helper::{Sent, warning};
use super::memory::new_generation;
use crate::error::{Result, bail};
use crate::util::lock;
use crate::util::slow_warning::SlowWarning;

/// How long aborted work may take to come to its end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A stream of a GPU: the caller's, or our own.
pub(crate) struct CudaStream {
    device: Arc<Device>,
    raw: CUstream,
    is_own: bool,
    id: u64,
    alive: Arc<()>,
    /// Events that are not in use, so that work is enqueued without making any.
    spare: Arc<Mutex<Vec<Arc<RawEvent>>>>,
    /// What work that nobody waits for may still use, with the event after which it does not.
    kept: Mutex<Vec<(Event, Box<dyn Any + Send>)>>,
}

// SAFETY: a stream may be used from any thread.
unsafe impl Send for CudaStream {}
// SAFETY: as above; the driver orders calls.
unsafe impl Sync for CudaStream {}

impl CudaStream {
    /// A new stream, which does not wait for the default stream.
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let _current = device.enter()?;
        let mut raw = std::ptr::null_mut();
        let flags = CUstream_flags::CU_STREAM_NON_BLOCKING as u32;
        // SAFETY: writes one pointer.
        check("cuStreamCreate", unsafe { sys::cuStreamCreate(&mut raw, flags) })?;
        Ok(Self::with(device, raw, true))
    }

    /// The caller's stream.
    ///
    /// # Safety
    ///
    /// It is a stream of this device's primary context, or null, and lives as long as this and all clones of it.
    pub(crate) unsafe fn borrowed(device: &Arc<Device>, raw: *mut c_void) -> Result<Self> {
        let _current = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller's promise; writes one pointer.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(raw.cast(), &mut context) })?;
        if context != device.context() {
            bail!(InvalidArgument, "the stream is not one of GPU {}, or not of its primary context", device.ordinal());
        }
        Ok(Self::with(device, raw.cast(), false))
    }

    fn with(device: &Arc<Device>, raw: CUstream, is_own: bool) -> Self {
        // A handle of our own may come again while work of the one before is still under way; the caller's may not.
        let id = if is_own { 2 * new_generation() + 1 } else { raw.addr() as u64 };
        CudaStream {
            device: Arc::clone(device),
            raw,
            is_own,
            id,
            alive: Arc::default(),
            spare: Arc::default(),
            kept: Mutex::default(),
        }
    }

    /// Gone when the stream is.
    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// What tells streams apart: even for the caller's, odd for our own.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// The handle, for other libraries.
    pub(crate) fn as_ptr(&self) -> *mut c_void {
        self.raw.cast()
    }

    pub(super) fn raw(&self) -> CUstream {
        self.raw
    }

    /// Whether what is enqueued now is recorded into a graph instead of run.
    pub(crate) fn is_capturing(&self) -> Result<bool> {
        let _current = self.device.enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        // SAFETY: writes one value.
        check("cuStreamIsCapturing", unsafe { sys::cuStreamIsCapturing(self.raw, &mut status) })?;
        match status {
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE => Ok(false),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE => Ok(true),
            CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_INVALIDATED => {
                bail!(InvalidArgument, "the stream's capture has been invalidated by an earlier call")
            }
        }
    }

    /// An event after everything that has been enqueued so far.
    pub(crate) fn record(&self) -> Result<Event> {
        let _current = self.device.enter()?;
        let spare = lock(&self.spare).pop();
        let raw = match spare {
            Some(raw) => raw,
            None => Arc::new(RawEvent::new(&self.device)?),
        };
        let event = Event { raw: Some(raw), pool: Arc::clone(&self.spare) };
        // SAFETY: stream and event are alive and of one context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.handle(), self.raw) })?;
        Ok(event)
    }

    /// Lets what is enqueued from now on wait for an event of another stream.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: stream and event are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.handle(), 0) })
    }

    /// Waits until everything enqueued so far is done. `alive` is asked from time to time whether that is still to be expected.
    pub(crate) fn synchronize(&self, deadline: Instant, alive: impl FnMut() -> Result<()>) -> Result<()> {
        self.record()?.wait(deadline, alive)
    }

    /// After a failure: waits until what was aborted has come to its end, so that nobody uses the caller's memory any more.
    pub(crate) fn drain(&self) {
        if self.synchronize(Instant::now() + DRAIN_TIMEOUT, || Ok(())).is_err() {
            crate::util::log::event!(WARN, "work on the GPU goes on after its communicator was aborted");
        }
    }

    /// Keeps what enqueued work uses until that is done.
    pub(crate) fn keep(&self, until: Event, what: Box<dyn Any + Send>) {
        lock(&self.kept).push((until, what));
    }

    /// Lets go of what is not in use any more.
    pub(crate) fn sweep(&self) {
        let mut done = Vec::new();
        let mut kept = lock(&self.kept);
        let mut index = 0;
        while index < kept.len() {
            // What cannot be asked may be in use.
            if matches!(kept[index].0.is_done(), Ok(true)) {
                done.push(kept.swap_remove(index));
            } else {
                index += 1;
            }
        }
        // What goes may take this stream's lock.
        drop(kept);
    }
}

impl fmt::Debug for CudaStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stream {:p} of GPU {}", self.raw, self.device.ordinal())
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // What work still uses goes after it.
        for (until, what) in std::mem::take(&mut *lock(&self.kept)) {
            self.device.release_later("work that nobody waited for", move || {
                until.wait(Instant::now() + KEEPING, || Ok(())).inspect_err(|_| std::mem::forget(what))
            });
        }
        if self.is_own {
            // SAFETY: the driver takes a stream from any thread, and nothing else has this one any more.
            let raw = unsafe { Sent::new(self.raw) };
            self.device.release_later("cuStreamDestroy", move || {
                // SAFETY: made by `new`, and destroyed once; what is enqueued on it is still done.
                check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(raw.into_inner()) })
            });
        }
    }
}

/// A point in a stream. Clones are the same; the last one gives the driver's event back to its stream.
#[derive(Clone)]
pub(crate) struct Event {
    raw: Option<Arc<RawEvent>>,
    pool: Arc<Mutex<Vec<Arc<RawEvent>>>>,
}

struct RawEvent {
    device: Arc<Device>,
    handle: CUevent,
}

// SAFETY: an event may be used from any thread.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    fn new(device: &Arc<Device>) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
        let flags = CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        // SAFETY: writes one pointer; the device is current.
        check("cuEventCreate", unsafe { sys::cuEventCreate(&mut handle, flags) })?;
        Ok(RawEvent { device: Arc::clone(device), handle })
    }
}

impl Drop for RawEvent {
    fn drop(&mut self) {
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: made by `new`, and destroyed once; the driver frees it when it has been reached.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// Lets this thread ask for events although another one captures a stream, which a capture of the whole process forbids.
struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    fn begin() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges the thread's mode with the value.
        check("cuThreadExchangeStreamCaptureMode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
        Ok(Relaxed(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: puts back what `begin` has found.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// How long what work uses is kept after its stream was dropped. Then it is left behind.
const KEEPING: Duration = Duration::from_secs(3600);

/// For how long a wait spins, and then gives way, before it sleeps.
const SPINNING: Duration = Duration::from_micros(50);
const YIELDING: Duration = Duration::from_millis(1);
const SLEEP: Duration = Duration::from_micros(100);

impl Event {
    fn handle(&self) -> CUevent {
        self.raw.as_ref().map_or(std::ptr::null_mut(), |raw| raw.handle)
    }

    /// Whether it has been reached.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let Some(raw) = &self.raw else { return Ok(true) };
        let _current = raw.device.enter()?;
        let _relaxed = Relaxed::begin()?;
        // SAFETY: the event is alive.
        let result = unsafe { sys::cuEventQuery(raw.handle) };
        if is_not_ready(result) {
            return Ok(false);
        }
        check("cuEventQuery", result).map(|()| true)
    }

    /// Waits until it is reached. `alive` is asked from time to time whether that is still to be expected.
    pub(crate) fn wait(&self, deadline: Instant, mut alive: impl FnMut() -> Result<()>) -> Result<()> {
        let mut pause = Pause::begin("work on the GPU");
        while !self.is_done()? {
            alive()?;
            if Instant::now() >= deadline {
                bail!(DeadlineExceeded, "the work on the GPU was not done by the deadline");
            }
            pause.pause();
        }
        Ok(())
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        if let Some(mut raw) = self.raw.take()
            && Arc::get_mut(&mut raw).is_some()
        {
            lock(&self.pool).push(raw);
        }
    }
}

/// A wait for something that can only be asked for: it spins, then gives way, then sleeps.
pub(crate) struct Pause<'a> {
    start: Instant,
    what: &'a str,
    /// From the first sleep on.
    slow: Option<SlowWarning>,
}

impl<'a> Pause<'a> {
    /// A wait for `what`, as a warning about a long wait names it.
    pub(crate) fn begin(what: &'a str) -> Self {
        Pause { start: Instant::now(), what, slow: None }
    }

    pub(crate) fn pause(&mut self) {
        match self.start.elapsed() {
            waited if waited < SPINNING => std::hint::spin_loop(),
            waited if waited < YIELDING => std::thread::yield_now(),
            _ => {
                self.slow.get_or_insert_with(SlowWarning::new).look(|seconds| warning(self.what, seconds));
                std::thread::sleep(SLEEP);
            }
        }
    }
}
