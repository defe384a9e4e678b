//! One GPU.

use std::ffi::CStr;
use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUdevice_attribute};

use super::driver::{check, load};
use super::kernels::Kernels;
use super::{CudaStream, Transfer};
use crate::error::{Error, Result, bail};
use crate::stream::lock;

/// A GPU with its primary context, which lives as long as the process.
pub(crate) struct Device {
    ordinal: u32,
    context: CUcontext,
    pub(crate) name: String,
    /// The compute capability: (9, 0).
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: u32,
    pub(crate) memory_bytes: usize,
    /// What tells this GPU from the others of the machine: `0000:01:00.0`.
    pub(crate) bus_id: String,
    pub(super) kernels: Kernels,
    /// Through which copies from and to the host go, made when there is the first.
    transfer: Mutex<Option<Transfer>>,
}

// SAFETY: a context may be used from any thread; the rest is plain data and a mutex.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

/// When a copy by itself has to be done.
fn deadline() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The devices that were opened.
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
    /// The GPU with this number among those that the process sees.
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
        // SAFETY: each call writes what it is given a place for, and no more than the lengths say.
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
        // SAFETY: both texts end with a zero, as CUDA promises for these lengths.
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
            transfer: Mutex::default(),
        })
    }

    /// The number of this GPU among those that the process sees.
    pub(crate) fn ordinal(&self) -> u32 {
        self.ordinal
    }

    /// Through which copies from and to the host go.
    pub(crate) fn transfer<T>(self: &Arc<Self>, copy: impl FnOnce(&mut Transfer) -> Result<T>) -> Result<T> {
        let mut transfer = lock(&self.transfer);
        let transfer = match &mut *transfer {
            Some(transfer) => transfer,
            none => none.insert(Transfer::new(self)?),
        };
        copy(transfer)
    }

    /// Copies from the GPU to the host and waits for it.
    ///
    /// # Safety
    ///
    /// The address is valid for reads of as many bytes, which nobody writes.
    pub(crate) unsafe fn read(self: &Arc<Self>, from: *const u8, to: &mut [u8]) -> Result<()> {
        let stream = Arc::new(CudaStream::new(self)?);
        // SAFETY: the caller's promise.
        self.transfer(|transfer| unsafe {
            transfer.download(from, to.as_mut_ptr(), to.len(), &stream, deadline(), &mut || Ok(()))
        })
    }

    /// Copies from the host to the GPU and waits for it.
    ///
    /// # Safety
    ///
    /// The address is valid for writes of as many bytes, which nobody else uses.
    pub(crate) unsafe fn write(self: &Arc<Self>, from: &[u8], to: *mut u8) -> Result<()> {
        let stream = Arc::new(CudaStream::new(self)?);
        // SAFETY: the caller's promise.
        self.transfer(|transfer| unsafe {
            transfer.upload(from.as_ptr(), to, from.len(), &stream, deadline(), &mut || Ok(()))
        })?;
        stream.synchronize(deadline(), || Ok(()))
    }

    pub(super) fn context(&self) -> CUcontext {
        self.context
    }

    /// Makes this the current GPU of the thread, until the guard is dropped.
    pub(crate) fn enter(&self) -> Result<Current> {
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

/// Holds a GPU current, and puts back what was current before.
pub(crate) struct Current {
    before: CUcontext,
    changed: bool,
}

impl Drop for Current {
    fn drop(&mut self) {
        if self.changed {
            // SAFETY: it was current before, or is null. What goes wrong shows in the next call.
            let _ = unsafe { sys::cuCtxSetCurrent(self.before) };
        }
    }
}
