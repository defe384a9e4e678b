//! Memory of a GPU, and pinned memory of the host.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::Device;
use super::driver::check;
use super::helper::Sent;
use super::sys::{self, CUdeviceptr};
use crate::error::{Error, Result, error};

/// How long an allocation that fails waits for dropped memory to be freed before it tries again.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// Memory on a GPU.
pub(crate) struct DeviceMemory {
    pub(crate) device: Arc<Device>,
    pub(crate) start: NonNull<u8>,
    byte_len: usize,
    /// A number that other memory at the same address does not have.
    pub(crate) generation: u64,
}

/// A number that no other memory has. CUDA may give the same address to other memory later.
pub(crate) fn new_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

// SAFETY: an address; the calls that use it are unsafe themselves.
unsafe impl Send for DeviceMemory {}
// SAFETY: as above.
unsafe impl Sync for DeviceMemory {}

impl DeviceMemory {
    /// Allocates `byte_len` bytes, not initialized; for 0 bytes one, so that there is an address.
    pub(crate) fn new(device: &Arc<Device>, byte_len: usize) -> Result<Self> {
        let allocate = || {
            // Another thread's capture goes on.
            let _current = device.enter_relaxed()?;
            let mut address: CUdeviceptr = 0;
            // SAFETY: writes one address.
            check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, byte_len.max(1)) })?;
            Ok::<_, Error>(address)
        };
        // Dropped memory is freed later, by a thread of the device. What dropped work used may not
        // have been dropped yet.
        let address = allocate().or_else(|_| {
            device.sweep();
            device.settle(RELEASE_TIMEOUT);
            allocate()
        });
        let address = address.map_err(|e| e.about(|| format!("{byte_len} bytes on GPU {}", device.ordinal())))?;
        let start = NonNull::new(address as *mut u8).ok_or_else(|| error!(System, "cuMemAlloc gave no address"))?;
        Ok(DeviceMemory { device: Arc::clone(device), start, byte_len, generation: new_generation() })
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.byte_len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        let address = self.address() as CUdeviceptr;
        self.device.release_later("cuMemFree", move || {
            // SAFETY: allocated by `new`, and freed once.
            check("cuMemFree", unsafe { sys::cuMemFree_v2(address) })
        });
    }
}

/// Pinned memory of the host, which a GPU copies to and from without the processor.
pub(crate) struct PinnedMemory {
    device: Arc<Device>,
    pub(crate) start: NonNull<u8>,
}

// SAFETY: an address; the calls that use it are unsafe themselves.
unsafe impl Send for PinnedMemory {}
// SAFETY: as above.
unsafe impl Sync for PinnedMemory {}

impl PinnedMemory {
    /// Allocates `byte_len` bytes, not initialized; for 0 bytes one, so that there is an address.
    pub(crate) fn new(device: &Arc<Device>, byte_len: usize) -> Result<Self> {
        let _current = device.enter()?;
        let mut address = std::ptr::null_mut();
        // SAFETY: writes one address.
        check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, byte_len.max(1), 0) })?;
        let start = NonNull::new(address.cast()).ok_or_else(|| error!(System, "cuMemHostAlloc gave no address"))?;
        Ok(PinnedMemory { device: Arc::clone(device), start })
    }

    pub(super) fn address(&self) -> *mut u8 {
        self.start.as_ptr()
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        // SAFETY: an address, which only the closure uses from here on.
        let address = unsafe { Sent::new(self.start) };
        self.device.release_later("cuMemFreeHost", move || {
            // SAFETY: allocated by `new`, and freed once.
            check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address.into_inner().as_ptr().cast()) })
        });
    }
}
