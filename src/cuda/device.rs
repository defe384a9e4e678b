//! One GPU.

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute};

use super::deferred_release::DeferredRelease;
use super::driver::{check, load};
use super::kernels::Kernels;
use super::{CudaStream, Kernel, Transfer};
use crate::error::{Error, Result, bail};
use crate::util::fork::ProcessGuard;
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
        let mut context: CUcontext = std::ptr::null_mut();
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

    /// Compiles the shortest kernel, to see whether kernels can be compiled for this GPU and
    /// loaded.
    pub(crate) fn check_kernels(&self) -> Result<()> {
        self.prepare([Kernel::NormalizeBool])
    }

    /// Whether this is the process that opened the GPU. CUDA does not work in a child that was
    /// forked.
    pub(crate) fn is_here(&self) -> bool {
        self.process.is_current()
    }

    /// Releases something on a thread of the device, after earlier releases. Does not wait for it.
    pub(crate) fn release_later(
        self: &Arc<Self>,
        what: &'static str,
        release: impl FnOnce() -> Result<()> + Send + 'static,
    ) {
        if !self.is_here() {
            return std::mem::forget(release);
        }
        let device = Arc::clone(self);
        self.deferred.push(move || {
            if let Err(error) = device.enter().and_then(|_current| release()) {
                crate::util::log::event!(WARN, "{what}: {error}; it is left behind");
            }
        });
    }

    /// Waits, at most for `timeout`, until all earlier releases have ended.
    pub(super) fn settle(&self, timeout: Duration) {
        self.deferred.settle(timeout);
    }

    /// Waits for all work that was enqueued on this GPU. The caller has entered the device.
    pub(crate) fn synchronize(&self) -> Result<()> {
        // SAFETY: the call takes no arguments.
        check("cuCtxSynchronize", unsafe { sys::cuCtxSynchronize() })
    }

    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// Makes this the current GPU of the thread, until the guard is dropped. Every call of CUDA
    /// begins here, so this is where a child that was forked gets its error.
    pub(crate) fn enter(&self) -> Result<Current> {
        self.process.check("a GPU")?;
        let mut before: CUcontext = std::ptr::null_mut();
        // SAFETY: writes one pointer.
        check("cuCtxGetCurrent", unsafe { sys::cuCtxGetCurrent(&mut before) })?;
        if before != self.context {
            // SAFETY: the context lives as long as the process.
            check("cuCtxSetCurrent", unsafe { sys::cuCtxSetCurrent(self.context) })?;
        }
        Ok(Current { before, changed: before != self.context })
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "GPU {} ({})", self.ordinal, self.name)
    }
}

/// Keeps a GPU current. Its drop restores the GPU that was current before.
pub(crate) struct Current {
    before: CUcontext,
    changed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: the context was current before, or is null. The next call reports an error.
            let _ = unsafe { sys::cuCtxSetCurrent(self.before) };
        }
    }
}
