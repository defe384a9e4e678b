//! Memory that ranks share: of one process, or of several.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use crate::error::{Result, bail, error};

/// The seals that shared memory must have: its length never changes, so that no access faults. (A seal against writing would
/// forbid our own mappings.)
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Zeroed memory, mapped until it is dropped. It has no name anywhere, so nothing is left of it after a crash.
pub(super) struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
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
        Self::mapped(base, len)
    }

    /// Memory that can be handed to other processes, allocated in full and sealed, with the file to hand over.
    pub(super) fn of_processes(len: usize) -> Result<(Self, OwnedFd)> {
        let refused = |e| error!(System, "no shared memory of {len} bytes").with_source(std::io::Error::from(e));
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("distcollective", flags).map_err(refused)?;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, len as u64))
            .map_err(refused)?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(refused)?;
        Ok((Self::map(&file, len)?, file))
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
        Self::map(&file, len)
    }

    fn map(file: &OwnedFd, len: usize) -> Result<Self> {
        // SAFETY: a new mapping, which touches nothing that exists.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        Self::mapped(base, len)
    }

    fn mapped(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Self> {
        let refused =
            |e| error!(System, "shared memory of {len} bytes cannot be mapped").with_source(std::io::Error::from(e));
        match NonNull::new(base.map_err(refused)?.cast()) {
            Some(base) => Ok(SharedMemory { base, len }),
            None => bail!(System, "shared memory was mapped at address 0"),
        }
    }

    /// The length in bytes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Gives the memory of whole pages back to the system, in every process. They read as zeros afterwards.
    pub(super) fn give_back(&self, start: *mut u8, len: usize) {
        debug_assert!(
            start.addr() >= self.base.addr().get() && start.addr() + len <= self.base.addr().get() + self.len
        );
        // SAFETY: the pages are this mapping's, and no reference to plain bytes of it outlives a call. Where it is refused,
        // because the pages are private by now, they go with the mapping.
        let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxRemove) };
    }

    /// Replaces whole pages of a mapping by private memory with the same bytes, in one step for whoever reads them.
    ///
    /// # Safety
    ///
    /// The pages are mapped, and nobody in this process writes them meanwhile.
    ///
    /// # Panics
    ///
    /// There is no memory.
    pub(super) unsafe fn replace_by_copy(start: *mut u8, len: usize) {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping, which is filled and then moved over the old pages; the caller says that nobody writes them.
        let moved = unsafe {
            rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, flags, MapFlags::PRIVATE).and_then(|copy| {
                copy.cast::<u8>().copy_from_nonoverlapping(start, len);
                rustix::mm::mremap_fixed(copy, len, len, MremapFlags::MAYMOVE, start.cast())
            })
        };
        if let Err(error) = moved {
            panic!("no memory to keep {len} bytes of a communicator that failed: {error}");
        }
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
