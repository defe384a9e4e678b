//! One GPU.

use std::cell::Cell;
use std::ffi::CStr;
use std::fmt;
use std::ptr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::deferred_release::DeferredRelease;
use super::driver::{check, load, sees_no_gpu};
use super::helper;
use super::kernels::Kernels;
use super::memory::SpareMemory;
use super::point::StreamState;
use super::ranks::RanksOfGpu;
use super::sys::{self, CUcontext, CUdevice, CUdevice_attribute, CUstreamCaptureMode};
use super::{CudaStream, KEEP_TIMEOUT, Transfer};
use crate::error::{Error, Result, bail};
use crate::util::fork::ProcessGuard;
use crate::util::wait::Wait;
use crate::util::{interrupt, lock};

/// A GPU and its primary context, which exists until the process ends.
pub(crate) struct Device {
    ordinal: u32,
    context: CUcontext,
    pub(crate) name: String,
    /// The compute capability: (9, 0).
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: u32,
    pub(crate) memory_bytes: usize,
    /// The PCI address, unique on the machine: `0000:01:00.0`.
    pub(crate) bus_id: String,
    pub(super) kernels: Kernels,
    /// For `read` and `write`, made at the first of them.
    copying: Mutex<Option<(CudaStream, Transfer)>>,
    deferred: DeferredRelease,
    pub(super) spare: SpareMemory,
    pub(super) ranks: RanksOfGpu,
    /// The library's streams and the caller's, also dropped ones whose work goes on.
    streams: Mutex<Vec<Arc<StreamState>>>,
    process: ProcessGuard,
}

// SAFETY: CUDA allows any thread to use a context; the rest is plain data and mutexes.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// The deadline of a `read` or `write` that begins now.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The devices that were opened. They are never closed.
static OPEN: Mutex<Vec<Arc<Device>>> = Mutex::new(Vec::new());

/// The number of GPUs.
pub(crate) fn device_count() -> Result<u32> {
    load()?;
    let mut count = 0;
    // SAFETY: writes one number.
    check("cuDeviceGetCount", unsafe { sys::cuDeviceGetCount(&mut count) })?;
    Ok(count.max(0) as u32)
}

/// The number of GPUs that the process sees: 0 without a driver too. An error says that the driver
/// does not work.
pub(crate) fn visible_count() -> Result<u32> {
    if sees_no_gpu() { Ok(0) } else { device_count() }
}

/// Waits, until the deadline, for all releases so far: before the process ends.
pub(super) fn settle_all(deadline: Instant) {
    // A thread that opens a GPU may never come back.
    let Ok(open) = OPEN.try_lock() else { return };
    open.iter().for_each(|device| device.settle(deadline.saturating_duration_since(Instant::now())));
}

impl Device {
    /// GPU `ordinal`, counted from 0 among the GPUs that the process sees.
    pub(crate) fn open(ordinal: u32) -> Result<Arc<Self>> {
        let mut open = lock(&OPEN);
        if let Some(device) = open.iter().find(|device| device.ordinal == ordinal) {
            return Ok(Arc::clone(device));
        }
        let count = device_count()?;
        if ordinal >= count {
            let hint = "CUDA_VISIBLE_DEVICES says which GPUs a process sees";
            bail!(Unsupported, "there is no GPU {ordinal}; this process sees {count}, numbered from 0 ({hint})");
        }
        let device = Arc::new(Self::retain(ordinal)?);
        open.push(Arc::clone(&device));
        Ok(device)
    }

    fn retain(ordinal: u32) -> Result<Self> {
        let mut device: CUdevice = 0;
        let mut context: CUcontext = ptr::null_mut();
        let mut name = [0; 256];
        let mut bus_id = [0; 32];
        let mut memory_bytes = 0;
        // SAFETY: each call writes one value to a local variable, or a text no longer than its
        // length.
        unsafe {
            check("cuDeviceGet", sys::cuDeviceGet(&mut device, ordinal as i32))?;
            check("cuDeviceGetName", sys::cuDeviceGetName(name.as_mut_ptr(), name.len() as i32, device))?;
            check("cuDeviceGetPCIBusId", sys::cuDeviceGetPCIBusId(bus_id.as_mut_ptr(), bus_id.len() as i32, device))?;
            check("cuDeviceTotalMem", sys::cuDeviceTotalMem_v2(&mut memory_bytes, device))?;
            check("cuDevicePrimaryCtxRetain", sys::cuDevicePrimaryCtxRetain(&mut context, device))?;
        }
        let attribute = |attribute| {
            let mut value = 0;
            // SAFETY: writes one number.
            check("cuDeviceGetAttribute", unsafe { sys::cuDeviceGetAttribute(&mut value, attribute, device) })?;
            Ok::<i32, Error>(value)
        };
        let capability = (
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
            attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
        );
        let multiprocessors = attribute(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?.max(1) as u32;
        // SAFETY: CUDA ends both texts with a zero within these lengths.
        let text = |text: &[_]| unsafe { CStr::from_ptr(text.as_ptr()) }.to_string_lossy().into_owned();
        Ok(Device {
            ordinal,
            context,
            name: text(&name),
            capability,
            multiprocessors,
            memory_bytes,
            bus_id: text(&bus_id),
            kernels: Kernels::default(),
            copying: Mutex::default(),
            deferred: DeferredRelease::default(),
            spare: SpareMemory::default(),
            ranks: RanksOfGpu::default(),
            streams: Mutex::default(),
            process: ProcessGuard::current(),
        })
    }

    /// The number of this GPU among those that the process sees.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Copies from the GPU to the host and waits for it.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `to.len()` bytes, and nothing writes them until the call
    /// returns.
    pub(crate) unsafe fn read(self: &Arc<Self>, from: *const u8, to: &mut [u8]) -> Result<()> {
        // SAFETY: the caller promises what `download` asks of `from`; `to` is a slice of that
        // length.
        self.copying(|stream, transfer| unsafe {
            transfer.download(from, to.as_mut_ptr(), to.len(), stream, deadline(), &mut || Ok(()))
        })
    }

    /// Copies from the host to the GPU and waits for it.
    ///
    /// # Safety
    ///
    /// `to` is valid for writes of `from.len()` bytes, and nothing else uses them until the call
    /// returns.
    pub(crate) unsafe fn write(self: &Arc<Self>, from: &[u8], to: *mut u8) -> Result<()> {
        self.copying(|stream, transfer| {
            // SAFETY: the caller promises what `upload` asks of `to`; `from` is a slice of that
            // length.
            unsafe { transfer.upload(from.as_ptr(), to, from.len(), stream, deadline(), &mut || Ok(()))? };
            stream.synchronize(deadline(), || Ok(()))
        })
    }

    /// Makes a copy on a stream that only these copies use, so that no copy waits for a collective.
    fn copying(self: &Arc<Self>, copy: impl FnOnce(&CudaStream, &mut Transfer) -> Result<()>) -> Result<()> {
        // After an error the GPU might still use the memory, and no copy waits for another rank.
        let _mask = interrupt::mask();
        let mut copying = lock(&self.copying);
        let (stream, transfer) = match &mut *copying {
            Some(copying) => copying,
            none => none.insert((CudaStream::new(self)?, Transfer::new(self)?)),
        };
        copy(stream, transfer)
    }

    /// Whether this is the process that opened the GPU. CUDA does not work in a child that was
    /// forked.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_current()
    }

    pub(super) fn check_process(&self) -> Result<()> {
        self.process.check("a GPU")
    }

    /// Releases something on a thread of the device, after earlier releases and after the work that
    /// was enqueued before. Does not wait for it. If that work never ends, it is never released.
    pub(crate) fn release_later(
        self: &Arc<Self>,
        what: &'static str,
        release: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        if !self.is_here() || helper::is_over() {
            return std::mem::forget(release);
        }
        self.deferred.push(self, what, release);
    }

    /// Waits, at most for `timeout`, until all earlier releases have ended.
    pub(crate) fn settle(&self, timeout: Duration) {
        self.deferred.settle(timeout);
    }

    /// Adds a stream, after the work of which memory is freed.
    pub(super) fn add_stream(&self, stream: &Arc<StreamState>) {
        let mut streams = lock(&self.streams);
        streams.retain(|stream| !stream.is_over());
        streams.push(Arc::clone(stream));
    }

    /// Forgets a stream whose work is done.
    pub(super) fn remove_stream(&self, stream: &Arc<StreamState>) {
        lock(&self.streams).retain(|other| !Arc::ptr_eq(other, stream));
    }

    /// Drops what finished work of dropped handles used.
    pub(super) fn sweep(&self) {
        let streams = lock(&self.streams).clone();
        streams.iter().for_each(|stream| stream.sweep());
    }

    /// Waits for all work that was enqueued on streams that the library knows. Not with
    /// cuCtxSynchronize, which is not permitted while a stream of the context is captured and
    /// invalidates that capture. This may wait for long.
    pub(super) fn finish_enqueued(&self) -> Result<()> {
        let streams = lock(&self.streams).clone();
        let deadline = Instant::now() + KEEP_TIMEOUT;
        streams.iter().try_for_each(|stream| stream.finish(deadline))
    }

    /// Waits for all that was enqueued on streams that the library knows, but not for captures. So
    /// begin calls of CUDA that would wait for it and hold back launches meanwhile, also the launch
    /// of another rank that the work waits for.
    pub(super) fn drain(&self, deadline: Instant) -> Result<()> {
        let streams = lock(&self.streams).clone();
        streams.iter().try_for_each(|stream| stream.drain(deadline))
    }

    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// Makes this the current GPU of the thread, until the guard is dropped. Every call of CUDA
    /// begins here, so this is where a child that was forked gets its error.
    /// While a guard of the thread lives, further calls ask the driver for nothing.
    pub(crate) fn enter(&self) -> Result<Current> {
        self.check_process()?;
        let outer = ENTERED.get();
        if outer == self.context {
            return Ok(Current { outer, before: None });
        }
        let before = make_current(self.context)?;
        ENTERED.set(self.context);
        Ok(Current { outer, before })
    }

    /// [`enter`](Self::enter) for calls that would fail and invalidate captures of other threads,
    /// which are in GLOBAL mode in PyTorch. Also for the library's own threads.
    pub(crate) fn enter_relaxed(&self) -> Result<(Current, impl Sized)> {
        Ok((self.enter()?, Relaxed::begin()?))
    }
}

/// Makes a context current. Returns the one that was current before, if that was another.
fn make_current(context: CUcontext) -> Result<Option<CUcontext>> {
    let mut before: CUcontext = ptr::null_mut();
    // SAFETY: writes one pointer.
    check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
    if before == context {
        return Ok(None);
    }
    // SAFETY: the context lives as long as the process.
    check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(context) })?;
    Ok(Some(before))
}

thread_local! {
    /// The context that a guard of this thread has made current; null without a guard.
    static ENTERED: Cell<CUcontext> = const { Cell::new(ptr::null_mut()) };
    /// The stream that this thread visits, and whether it is being captured.
    static VISITED: Cell<Option<(u64, bool)>> = const { Cell::new(None) };
}

/// Runs code that is not the library's, which may leave another GPU current.
pub(crate) fn call_out<T>(code: impl FnOnce() -> T) -> Result<T> {
    let (entered, visited) = (ENTERED.replace(ptr::null_mut()), VISITED.take());
    let value = code();
    ENTERED.set(entered);
    VISITED.set(visited);
    if !entered.is_null() {
        make_current(entered)?;
    }
    Ok(value)
}

/// A wait for a GPU, or by a thread that may have made one current.
pub(crate) fn gpu_wait<'a>(deadline: Instant) -> Wait<'a> {
    Wait::until(deadline).checking(check_interrupt)
}

/// Runs the interrupt hook if it is due. The hook is the program's, and may change the current GPU.
///
/// # Errors
///
/// The hook ends the wait.
fn check_interrupt() -> Result<()> {
    if !interrupt::is_due() {
        return Ok(());
    }
    call_out(interrupt::check)?
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.ordinal, self.name)
    }
}

/// Keeps a GPU current. Its drop restores the GPU that was current before.
pub(crate) struct Current {
    /// What [`ENTERED`] was before.
    outer: CUcontext,
    /// What was current before, if that was another context.
    before: Option<CUcontext>,
}

impl Drop for Current {
    fn drop(&mut self) {
        if let Some(before) = self.before {
            // SAFETY: the context was current before, or is null. The next call reports an error.
            let _ = unsafe { sys::cuCtxSetCurrent(before) };
        }
        ENTERED.set(self.outer);
    }
}

/// Allows this thread what a capture in GLOBAL mode, which is PyTorch's default, forbids to all
/// threads of the process: to query events, to allocate and to free memory, to load kernels. In any
/// other mode of the thread such a call is an error and invalidates that capture.
pub(super) struct Relaxed(CUstreamCaptureMode);

impl Relaxed {
    pub(super) fn begin() -> Result<Self> {
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

/// A thread's stay at a stream: the GPU is current, and whether the stream is captured is known.
pub(crate) struct Visit {
    is_capturing: bool,
    outer: Option<(u64, bool)>,
    _current: Current,
}

impl Visit {
    pub(super) fn new(current: Current, stream: u64, is_capturing: bool) -> Self {
        Visit { is_capturing, outer: VISITED.replace(Some((stream, is_capturing))), _current: current }
    }

    /// Whether the stream is being captured.
    pub(crate) fn is_capturing(&self) -> bool {
        self.is_capturing
    }

    /// Whether this thread visits a stream that is being captured.
    pub(crate) fn is_recording() -> bool {
        VISITED.get().is_some_and(|(_, is_capturing)| is_capturing)
    }

    /// Whether a stream is being captured, if this thread visits it.
    pub(super) fn status_of(stream: u64) -> Option<bool> {
        VISITED.get().filter(|(visited, _)| *visited == stream).map(|(_, is_capturing)| is_capturing)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        VISITED.set(self.outer);
    }
}
