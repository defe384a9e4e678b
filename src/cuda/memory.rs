//! Memory of a GPU, and pinned memory of the host.
//!
//! Where several ranks of the process share the GPU, dropped memory is kept for the next allocation
//! of its size, until an allocation fails or the other ranks have gone (see `ranks`).

use std::ffi::c_int;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::Device;
use super::driver::check;
use super::sys::{self, CUdeviceptr, CUresult};
use crate::error::{Result, error};
use crate::util::lock;

/// How long an allocation that fails waits for dropped memory to be freed before it tries again.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// A number that no other memory has. CUDA may give the same address to other memory later.
pub(crate) fn new_generation() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum AllocationKind {
    Device,
    Pinned,
}

/// What CUDA has allocated.
#[derive(Clone, Copy)]
struct CudaAllocation {
    kind: AllocationKind,
    start: NonNull<u8>,
    byte_len: usize,
}

// SAFETY: an address; the calls that use it are unsafe themselves.
unsafe impl Send for CudaAllocation {}
// SAFETY: as above.
unsafe impl Sync for CudaAllocation {}

impl CudaAllocation {
    /// Asks CUDA for it. Another thread's capture goes on.
    fn allocate(device: &Device, kind: AllocationKind, byte_len: usize) -> Result<Self> {
        let _current = device.enter_relaxed()?;
        let (name, address) = match kind {
            AllocationKind::Device => {
                let mut address: CUdeviceptr = 0;
                // SAFETY: writes one address.
                check("cuMemAlloc", unsafe { sys::cuMemAlloc_v2(&mut address, byte_len) })?;
                ("cuMemAlloc", address as *mut u8)
            }
            AllocationKind::Pinned => {
                let mut address = std::ptr::null_mut();
                // SAFETY: writes one address.
                check("cuMemHostAlloc", unsafe { sys::cuMemHostAlloc(&mut address, byte_len, 0) })?;
                ("cuMemHostAlloc", address.cast())
            }
        };
        let start = NonNull::new(address).ok_or_else(|| error!(System, "{name} gave no address"))?;
        Ok(CudaAllocation { kind, start, byte_len })
    }

    /// The caller has made the device current, and no work uses the memory.
    fn free(self) -> Result<()> {
        let address = self.start.as_ptr();
        match self.kind {
            // SAFETY: `allocate` made it, and it is freed once.
            AllocationKind::Device => check("cuMemFree", unsafe { sys::cuMemFree_v2(address as CUdeviceptr) }),
            // SAFETY: as above.
            AllocationKind::Pinned => check("cuMemFreeHost", unsafe { sys::cuMemFreeHost(address.cast()) }),
        }
    }

    /// A kept allocation of this length, at most of twice the length, or a new one; for 0 bytes one
    /// of a byte, so that there is an address.
    fn take(device: &Arc<Device>, kind: AllocationKind, byte_len: usize) -> Result<Self> {
        let byte_len = byte_len.max(1);
        if let Some(allocation) = device.spare.take(kind, byte_len) {
            return Ok(allocation);
        }
        // Dropped memory is freed later, by a thread of the device. What dropped work used may not
        // have been dropped yet.
        Self::allocate(device, kind, byte_len).or_else(|_| {
            device.sweep();
            device.settle(RELEASE_TIMEOUT);
            // Not while work runs: another rank of the process may wait for this one.
            if device.drain(Instant::now() + RELEASE_TIMEOUT).is_ok() {
                let _current = device.enter_relaxed()?;
                device.spare.free()?;
            }
            Self::allocate(device, kind, byte_len)
        })
    }

    /// Frees it when no work uses it any more, or keeps it then for the next.
    fn release_later(self, device: &Arc<Device>) {
        let of = Arc::clone(device);
        let what = match self.kind {
            AllocationKind::Device => "cuMemFree",
            AllocationKind::Pinned => "cuMemFreeHost",
        };
        device.release_later(what, move || {
            of.spare.put(self);
            of.free_if_alone()
        });
    }
}

/// The allocations of a device that nothing uses.
#[derive(Default)]
pub(super) struct SpareMemory(Mutex<Vec<CudaAllocation>>);

impl SpareMemory {
    fn put(&self, allocation: CudaAllocation) {
        lock(&self.0).push(allocation);
    }

    /// The shortest of the allocations that are as long and not twice as long.
    fn take(&self, kind: AllocationKind, byte_len: usize) -> Option<CudaAllocation> {
        let mut allocations = lock(&self.0);
        let fits = |allocation: &CudaAllocation| {
            allocation.kind == kind && (byte_len..=2 * byte_len).contains(&allocation.byte_len)
        };
        let fitting = allocations.iter().enumerate().filter(|(_, allocation)| fits(allocation));
        let shortest = fitting.min_by_key(|(_, allocation)| allocation.byte_len).map(|(index, _)| index);
        shortest.map(|index| allocations.swap_remove(index))
    }

    /// Frees all. The caller has made the device current.
    fn free(&self) -> Result<()> {
        let allocations = std::mem::take(&mut *lock(&self.0));
        allocations.into_iter().map(CudaAllocation::free).fold(Ok(()), Result::and)
    }
}

impl Device {
    /// Frees the memory that is kept for later use.
    pub(super) fn free_spare_memory(self: &Arc<Self>) {
        let of = Arc::clone(self);
        self.release_later("spare memory", move || of.free_if_alone());
    }

    /// Whether the memory is of cuMemAlloc, and not of pages that a program maps where it likes.
    pub(crate) fn has_allocated(&self, address: *const u8) -> bool {
        let Ok(_current) = self.enter() else { return false };
        let (attribute, mut value) = (sys::CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE, 0);
        let to: *mut c_int = &raw mut value;
        // SAFETY: writes one number.
        let result = unsafe { sys::cuPointerGetAttribute(to.cast(), attribute, address as CUdeviceptr) };
        result == CUresult::CUDA_SUCCESS && value == 1
    }

    fn free_if_alone(&self) -> Result<()> {
        if self.ranks.are_several() { Ok(()) } else { self.spare.free() }
    }
}

/// Memory on a GPU.
pub(crate) struct DeviceMemory {
    pub(crate) device: Arc<Device>,
    allocation: CudaAllocation,
    /// A number that other memory at the same address does not have.
    pub(crate) generation: u64,
}

impl DeviceMemory {
    /// At least `byte_len` bytes, not initialized.
    pub(crate) fn new(device: &Arc<Device>, byte_len: usize) -> Result<Self> {
        let allocation = CudaAllocation::take(device, AllocationKind::Device, byte_len)
            .map_err(|e| e.about(|| format!("{byte_len} bytes on GPU {}", device.ordinal())))?;
        Ok(DeviceMemory { device: Arc::clone(device), allocation, generation: new_generation() })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.allocation.start
    }

    pub(crate) fn address(&self) -> *mut u8 {
        self.allocation.start.as_ptr()
    }

    pub(crate) fn byte_len(&self) -> usize {
        self.allocation.byte_len
    }
}

impl Drop for DeviceMemory {
    fn drop(&mut self) {
        self.allocation.release_later(&self.device);
    }
}

/// Pinned memory of the host, which a GPU copies to and from without the processor.
pub(crate) struct PinnedMemory {
    device: Arc<Device>,
    allocation: CudaAllocation,
}

impl PinnedMemory {
    /// At least `byte_len` bytes, not initialized.
    pub(crate) fn new(device: &Arc<Device>, byte_len: usize) -> Result<Self> {
        Ok(PinnedMemory {
            device: Arc::clone(device),
            allocation: CudaAllocation::take(device, AllocationKind::Pinned, byte_len)?,
        })
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        self.allocation.start
    }
}

impl Drop for PinnedMemory {
    fn drop(&mut self) {
        self.allocation.release_later(&self.device);
    }
}
