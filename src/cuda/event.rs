//! Events, and waits for them.

use std::ffi::c_uint;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::device::Relaxed;
use super::driver::check;
use super::helper::warning;
use super::sys::{self, CUevent, CUresult, CUstream};
use super::{Device, gpu_wait};
use crate::error::Result;
use crate::util::lock;

/// Events of a stream that are not in use. They are used again, so that a steady program makes
/// none.
pub(super) type EventPool = Arc<Mutex<Vec<Arc<RawEvent>>>>;

/// A moment of a stream. Clones are the same moment. The last one returns the driver's event to the
/// pool.
#[derive(Clone)]
pub(crate) struct Event {
    raw: Arc<RawEvent>,
    pool: EventPool,
}

pub(super) struct RawEvent {
    device: Arc<Device>,
    handle: CUevent,
}

// SAFETY: CUDA allows any thread to use an event.
unsafe impl Send for RawEvent {}
// SAFETY: as above.
unsafe impl Sync for RawEvent {}

impl RawEvent {
    fn new(device: &Arc<Device>, flags: c_uint) -> Result<Self> {
        let mut handle = std::ptr::null_mut();
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

impl Event {
    /// An event after everything that was enqueued so far on a stream.
    ///
    /// # Safety
    ///
    /// The stream exists, and is one of this device.
    pub(super) unsafe fn record(device: &Arc<Device>, stream: CUstream, pool: &EventPool) -> Result<Self> {
        let _current = device.enter()?;
        let spare = lock(pool).pop();
        let raw = match spare {
            Some(raw) => raw,
            None => Arc::new(RawEvent::new(device, sys::CU_EVENT_DISABLE_TIMING)?),
        };
        let event = Event { raw, pool: Arc::clone(pool) };
        // SAFETY: the caller's promise; the event is alive and of the same context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(event.handle(), stream) })?;
        Ok(event)
    }

    pub(super) fn handle(&self) -> CUevent {
        self.raw.handle
    }

    /// Whether two values are the same moment.
    pub(super) fn is_same(&self, other: &Event) -> bool {
        Arc::ptr_eq(&self.raw, &other.raw)
    }

    /// Whether the stream has reached it.
    pub(crate) fn is_done(&self) -> Result<bool> {
        let _current = self.raw.device.enter()?;
        let _relaxed = Relaxed::begin()?;
        // SAFETY: the event is alive.
        let result = unsafe { sys::cuEventQuery(self.handle()) };
        if result == CUresult::CUDA_ERROR_NOT_READY {
            return Ok(false);
        }
        check("cuEventQuery", result).map(|()| true)
    }

    /// Waits until the stream reaches it. An error of `alive`, which is called again and again,
    /// ends the wait; so does the interrupt hook.
    pub(crate) fn wait(&self, deadline: Instant, alive: impl FnMut() -> Result<()>) -> Result<()> {
        wait_until(|| self.is_done(), deadline, alive)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // Of two that are dropped at once neither may see that it is the last. Then the driver's
        // event is destroyed.
        if Arc::strong_count(&self.raw) == 1 {
            lock(&self.pool).push(Arc::clone(&self.raw));
        }
    }
}

/// A moment of a stream whose time is measured.
pub(crate) struct TimedEvent(RawEvent);

impl TimedEvent {
    /// As [`Event::record`].
    ///
    /// # Safety
    ///
    /// As there.
    pub(super) unsafe fn record(device: &Arc<Device>, stream: CUstream) -> Result<Self> {
        let _current = device.enter()?;
        let raw = RawEvent::new(device, sys::CU_EVENT_DEFAULT)?;
        // SAFETY: the caller's promise; the event is alive and of the same context.
        check("cuEventRecord", unsafe { sys::cuEventRecord(raw.handle, stream) })?;
        Ok(TimedEvent(raw))
    }

    /// The time since an earlier one. The stream has reached both.
    pub(crate) fn since(&self, earlier: &TimedEvent) -> Result<Duration> {
        let _current = self.0.device.enter()?;
        let _relaxed = Relaxed::begin()?;
        let mut milliseconds = 0f32;
        // SAFETY: both events are alive; the call writes one number.
        let result = unsafe { sys::cuEventElapsedTime(&mut milliseconds, earlier.0.handle, self.0.handle) };
        check("cuEventElapsedTime", result)?;
        Ok(Duration::try_from_secs_f32(milliseconds / 1e3).unwrap_or_default())
    }
}

/// Waits until work on a GPU is done. An error of `alive`, which is called again and again, ends
/// the wait; so does the interrupt hook.
pub(super) fn wait_until(
    is_done: impl Fn() -> Result<bool>,
    deadline: Instant,
    mut alive: impl FnMut() -> Result<()>,
) -> Result<()> {
    let warning = |seconds| warning("work on the GPU", seconds);
    let mut wait = gpu_wait(deadline).warning(&warning);
    while !is_done()? {
        alive()?;
        wait.pause().map_err(|stopped| {
            stopped.error("while work on the GPU had not ended", "the work on the GPU was not done by the deadline")
        })?;
    }
    Ok(())
}
