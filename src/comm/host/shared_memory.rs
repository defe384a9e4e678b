//! Memory that ranks share: of one process, or of several.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::error::{Result, bail, error};

/// The seals that shared memory must have: its length never changes, so that no access faults. (A seal against writing would
/// forbid our own mappings.)
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Zeroed memory, mapped until it is dropped. It has no name anywhere, so nothing is left of it after a crash.
pub(super) struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    file: Option<OwnedFd>,
}

// SAFETY: it is reached through atomics, and through raw pointers whose users say why they may.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// What may lie in shared memory.
///
/// # Safety
///
/// Zeros are a value of the type, and every part of it that anybody writes is an atomic.
pub(super) unsafe trait Shareable {}

impl SharedMemory {
    /// Memory for the threads of this process.
    pub(super) fn of_process(len: usize) -> Result<Self> {
        // SAFETY: a new mapping, which touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        };
        Self::mapped(base, len, None)
    }

    /// Memory that can be handed to other processes, allocated in full and sealed.
    pub(super) fn of_processes(len: usize) -> Result<Self> {
        let refused = |e| error!(System, "no shared memory of {len} bytes").with_source(std::io::Error::from(e));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("distcollective", flags).map_err(refused)?;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64))
            .map_err(refused)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(refused)?;
        Self::map(file, len)
    }

    /// Memory that another process handed over.
    pub(super) fn open(file: OwnedFd, len: usize) -> Result<Self> {
        let refused = |e| error!(System, "a peer's shared memory cannot be used").with_source(std::io::Error::from(e));
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused)?;
        let found = rustix::fs::fstat(&file).map_err(refused)?.st_size;
        if !seals.contains(SEALS) || found != len as i64 {
            bail!(
                System,
                "a peer's shared memory has {found} bytes and seals {seals:?}, instead of {len} and {SEALS:?}"
            );
        }
        Self::map(file, len)
    }

    fn map(file: OwnedFd, len: usize) -> Result<Self> {
        // SAFETY: a new mapping, which touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, &file, 0)
        };
        Self::mapped(base, len, Some(file))
    }

    fn mapped(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize, file: Option<OwnedFd>) -> Result<Self> {
        let refused =
            |e| error!(System, "shared memory of {len} bytes cannot be mapped").with_source(std::io::Error::from(e));
        match NonNull::new(base.map_err(refused)?.cast()) {
            Some(base) => Ok(SharedMemory { base, len, file }),
            None => bail!(System, "shared memory was mapped at address 0"),
        }
    }

    /// The file, to hand to another process.
    pub(super) fn file(&self) -> Option<BorrowedFd<'_>> {
        self.file.as_ref().map(AsFd::as_fd)
    }

    /// Values at an offset.
    ///
    /// # Panics
    ///
    /// They are not within the memory, or not aligned.
    pub(super) fn slice<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + count * size_of::<T>() <= self.len);
        // SAFETY: just checked, the mapping is aligned to a page, and `T` may lie in shared memory.
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// The address of plain bytes at an offset.
    ///
    /// # Panics
    ///
    /// They are not within the memory.
    pub(super) fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len);
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and nobody holds a reference that outlives `self`. An error would leak it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
