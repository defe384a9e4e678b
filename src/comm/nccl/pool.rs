//! Memory of ncclMemAlloc, and which of it outlives its buffer.
//!
//! From 2.24 on NCCL registers such memory with the communicator when a captured call names it, by
//! its addresses (ncclRegister in NCCL's `register.cc`). It does not learn when the memory is
//! freed: a registration goes some groups after its graph was destroyed (`group.cc`), or with the
//! communicator. If other memory had come to the addresses meanwhile, later captured calls and
//! windows would reach the pages of the freed memory on the peers.

use std::ops::Range;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use super::library::NcclLibrary;
use super::sys::*;
use crate::cuda::{Device, Visit};
use crate::error::{Result, error};
use crate::util::lock;

/// The blocks of the process that are not freed, and their addresses.
static BLOCKS: Mutex<Vec<(Range<usize>, Weak<Block>)>> = Mutex::new(Vec::new());

/// Whether an address is in memory that [`MemoryPool`] gave. If a graph names it, its pages stay.
pub(super) fn has(address: usize) -> bool {
    lock(&BLOCKS).iter().any(|(range, block)| range.contains(&address) && block.strong_count() > 0)
}

/// The block that an address is in, of a buffer that exists.
pub(super) fn block_at(address: usize) -> Option<Arc<Block>> {
    lock(&BLOCKS).iter().find_map(|(range, block)| range.contains(&address).then(|| block.upgrade())?)
}

/// Memory of NCCL's. The last reference frees it, on the device's thread for deferred release: the
/// GPU does not use the memory any more, and no window of a living communicator is over it.
pub(super) struct Block {
    library: &'static NcclLibrary,
    pub(super) address: NonNull<u8>,
    /// A multiple of a window's granularity.
    pub(super) byte_len: usize,
}

// SAFETY: NCCL takes the address from any thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        // SAFETY: ncclMemAlloc gave the memory, which is freed once; nothing uses it any more.
        let result = unsafe { ncclMemFree(self.address.as_ptr().cast()) };
        if let Err(error) = self.library.check("ncclMemFree", result) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}

/// The memory that captured calls of a domain's communicators have named. It stays until they have
/// ended, and is used again meanwhile.
pub(super) struct MemoryPool {
    pub(super) device: Arc<Device>,
    captured: Mutex<Vec<Arc<Block>>>,
    /// A communicator was not destroyed, and may use the memory.
    is_left_behind: AtomicBool,
}

impl MemoryPool {
    pub(super) fn new(device: &Arc<Device>) -> Arc<Self> {
        Arc::new(MemoryPool {
            device: Arc::clone(device),
            captured: Mutex::default(),
            is_left_behind: AtomicBool::new(false),
        })
    }

    /// Memory of at least `byte_len` bytes: captured memory of that length that no buffer has, or
    /// new memory.
    pub(super) fn take(&self, library: &'static NcclLibrary, byte_len: usize) -> Result<Arc<Block>> {
        let byte_len = byte_len.max(1).next_multiple_of(NCCL_WIN_REQUIRED_ALIGNMENT);
        let is_spare = |block: &&Arc<Block>| block.byte_len == byte_len && Arc::strong_count(block) == 1;
        if let Some(spare) = lock(&self.captured).iter().find(is_spare) {
            return Ok(Arc::clone(spare));
        }
        let _current = self.device.enter_relaxed()?;
        let mut address = ptr::null_mut();
        // SAFETY: writes one address.
        library.check("ncclMemAlloc", unsafe { ncclMemAlloc(&mut address, byte_len) })?;
        let address = NonNull::new(address.cast()).ok_or_else(|| error!(System, "ncclMemAlloc gave no address"))?;
        let block = Arc::new(Block { library, address, byte_len });
        let start = address.addr().get();
        let mut blocks = lock(&BLOCKS);
        blocks.retain(|(_, block)| block.strong_count() > 0);
        blocks.push((start..start + byte_len, Arc::downgrade(&block)));
        Ok(block)
    }

    /// If this thread records a call, keeps the memory that the call names.
    pub(super) fn note_call(&self, addresses: impl IntoIterator<Item = usize>) {
        if !Visit::is_recording() {
            return;
        }
        for address in addresses {
            let Some(block) = block_at(address) else { continue };
            let mut captured = lock(&self.captured);
            if !captured.iter().any(|other| Arc::ptr_eq(other, &block)) {
                captured.push(block);
            }
        }
    }

    /// Frees memory when the GPU does not use it any more.
    pub(super) fn free_later<T: Send + 'static>(&self, memory: Vec<T>) {
        if !memory.is_empty() {
            self.device.release_later("ncclMemFree", move || {
                drop(memory);
                Ok(())
            });
        }
    }

    /// Says that a communicator ends without being destroyed.
    pub(super) fn leave_behind(&self) {
        self.is_left_behind.store(true, Ordering::Relaxed);
    }
}

impl Drop for MemoryPool {
    fn drop(&mut self) {
        let captured = std::mem::take(self.captured.get_mut().unwrap_or_else(PoisonError::into_inner));
        match *self.is_left_behind.get_mut() {
            true => std::mem::forget(captured),
            false => self.free_later(captured),
        }
    }
}
