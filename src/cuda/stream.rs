//! CUDA streams and events.

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
use crate::util::slow_warning::SlowWarning;
use crate::util::{interrupt, lock};

/// How long aborted work may take to end.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(10);

/// A CUDA stream, borrowed from the caller or made by the library.
pub(crate) struct CudaStream {
    device: Arc<Device>,
    raw: CUstream,
    is_own: bool,
    id: u64,
    alive: Arc<()>,
    /// Events that are not in use. Work reuses them, so that enqueueing makes none.
    spare: Arc<Mutex<Vec<Arc<RawEvent>>>>,
    /// What enqueued work uses although its `Work` was dropped, each with the event of its end.
    kept: Mutex<Vec<(Event, Box<dyn Any + Send>)>>,
}

// SAFETY: CUDA allows any thread to use a stream.
unsafe impl Send for CudaStream {}
// SAFETY: as above, and the driver locks the stream in each call.
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
    /// `raw` is null or a stream of this device's primary context, and exists as long as this value
    /// and work that it enqueues.
    pub(crate) unsafe fn borrowed(device: &Arc<Device>, raw: *mut c_void) -> Result<Self> {
        let _current = device.enter()?;
        let mut context = std::ptr::null_mut();
        // SAFETY: the caller promises a live stream or null; the call writes one pointer.
        check("cuStreamGetCtx", unsafe { sys::cuStreamGetCtx(raw.cast(), &mut context) })?;
        if context != device.context() {
            bail!(InvalidArgument, "the stream is not one of GPU {}, or not of its primary context", device.ordinal());
        }
        Ok(Self::with(device, raw.cast(), false))
    }

    fn with(device: &Arc<Device>, raw: CUstream, is_own: bool) -> Self {
        // The driver may reuse the handle of an own stream while work of the destroyed one still
        // runs. A caller destroys a stream only when its work has ended.
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

    /// A reference that dies with the stream.
    pub(crate) fn alive(&self) -> Weak<()> {
        Arc::downgrade(&self.alive)
    }

    /// A number for each stream: even for a caller's, odd for one that the library made.
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

    /// Whether the stream is being captured: enqueued work is recorded into a graph and does not
    /// run.
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

    /// An event after everything that was enqueued so far.
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

    /// Makes everything that is enqueued from now on wait for an event of another stream.
    pub(crate) fn wait_for(&self, event: &Event) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: stream and event are alive.
        check("cuStreamWaitEvent", unsafe { sys::cuStreamWaitEvent(self.raw, event.handle(), 0) })
    }

    /// Waits until everything that was enqueued so far has ended. An error of `alive`, which is
    /// called again and again, ends the wait; so does the interrupt hook.
    pub(crate) fn synchronize(&self, deadline: Instant, alive: impl FnMut() -> Result<()>) -> Result<()> {
        self.record()?.wait(deadline, alive)
    }

    /// After a failure: waits until the aborted work has ended and does not use the caller's memory
    /// any more.
    pub(crate) fn drain(&self) {
        let _mask = interrupt::mask();
        if self.synchronize(Instant::now() + DRAIN_TIMEOUT, || Ok(())).is_err() {
            crate::util::log::event!(WARN, "work on the GPU goes on after its communicator was aborted");
        }
    }

    /// Keeps a value that enqueued work uses, until the event of its end.
    pub(crate) fn keep(&self, until: Event, what: Box<dyn Any + Send>) {
        lock(&self.kept).push((until, what));
    }

    /// Drops kept values whose work has ended.
    pub(crate) fn sweep(&self) {
        let mut done = Vec::new();
        let mut kept = lock(&self.kept);
        let mut index = 0;
        while index < kept.len() {
            // If the query fails, the work may still run.
            if matches!(kept[index].0.is_done(), Ok(true)) {
                done.push(kept.swap_remove(index));
            } else {
                index += 1;
            }
        }
        // A dropped value may take this stream's lock.
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
        // Values that work still uses are dropped after it.
        for (until, what) in std::mem::take(&mut *lock(&self.kept)) {
            self.device.release_later("work whose handle was dropped", move || {
                until.wait(Instant::now() + KEEP_TIMEOUT, || Ok(())).inspect_err(|_| std::mem::forget(what))
            });
        }
        if self.is_own {
            // SAFETY: the driver takes a stream from any thread, and nothing else has this one any
            // more.
            let raw = unsafe { Sent::new(self.raw) };
            self.device.release_later("cuStreamDestroy", move || {
                // SAFETY: `new` made the stream, and it is destroyed once. The driver ends its work
                // first.
                check("cuStreamDestroy", unsafe { sys::cuStreamDestroy_v2(raw.into_inner()) })
            });
        }
    }
}

/// A point in a stream. Clones are the same point. The last one returns the driver's event to the
/// stream.
#[derive(Clone)]
pub(crate) struct Event {
    raw: Option<Arc<RawEvent>>,
    pool: Arc<Mutex<Vec<Arc<RawEvent>>>>,
}

struct RawEvent {
    device: Arc<Device>,
    handle: CUevent,
}

// SAFETY: CUDA allows any thread to use an event.
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
        // SAFETY: `new` made the event, and it is destroyed once. The driver frees it when the
        // stream has reached it.
        let _ = unsafe { sys::cuEventDestroy_v2(self.handle) };
    }
}

/// Allows this thread to query events although another thread captures a stream in the mode that
/// forbids it to the whole process.
struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    fn begin() -> Result<Self> {
        let mut mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_RELAXED;
        // SAFETY: exchanges the thread's mode with the variable's.
        check("cuThreadExchangeStreamCaptureMode", unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut mode) })?;
        Ok(Relaxed(mode))
    }
}

impl Drop for Relaxed {
    fn drop(&mut self) {
        // SAFETY: restores the mode that `begin` has replaced.
        let _ = unsafe { sys::cuThreadExchangeStreamCaptureMode(&mut self.0) };
    }
}

/// How long a dropped stream waits for its work before it leaks what the work uses.
const KEEP_TIMEOUT: Duration = Duration::from_secs(3600);

/// How long a wait spins, then yields, before it sleeps; and how long one sleep is.
const SPIN_TIME: Duration = Duration::from_micros(50);
const YIELD_TIME: Duration = Duration::from_millis(1);
const SLEEP_TIME: Duration = Duration::from_micros(100);

impl Event {
    fn handle(&self) -> CUevent {
        self.raw.as_ref().map_or(std::ptr::null_mut(), |raw| raw.handle)
    }

    /// Whether the stream has reached it.
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

    /// Waits until the stream reaches it. An error of `alive`, which is called again and again,
    /// ends the wait; so does the interrupt hook.
    pub(crate) fn wait(&self, deadline: Instant, mut alive: impl FnMut() -> Result<()>) -> Result<()> {
        let mut pause = Pause::begin("work on the GPU");
        while !self.is_done()? {
            alive()?;
            if Instant::now() >= deadline {
                bail!(DeadlineExceeded, "the work on the GPU was not done by the deadline");
            }
            pause.pause()?;
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

/// A wait that polls: it spins, then yields, then sleeps.
pub(crate) struct Pause<'a> {
    start: Instant,
    what: &'a str,
    /// Set at the first sleep.
    slow: Option<SlowWarning>,
}

impl<'a> Pause<'a> {
    /// Begins a wait. A warning about a long one names it `what`.
    pub(crate) fn begin(what: &'a str) -> Self {
        Pause { start: Instant::now(), what, slow: None }
    }

    /// Lets some time pass.
    ///
    /// # Errors
    ///
    /// The interrupt hook ends the wait.
    pub(crate) fn pause(&mut self) -> Result<()> {
        match self.start.elapsed() {
            waited if waited < SPIN_TIME => std::hint::spin_loop(),
            waited if waited < YIELD_TIME => std::thread::yield_now(),
            _ => {
                let what = self.what;
                interrupt::check().map_err(|e| interrupt::ended(&e, format_args!("while {what} had not ended")))?;
                self.slow.get_or_insert_with(SlowWarning::new).look(|seconds| warning(what, seconds));
                std::thread::sleep(SLEEP_TIME);
            }
        }
        Ok(())
    }
}
