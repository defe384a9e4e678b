//! Mapped memory that ranks share, in one process or in several.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::in_pieces;
use crate::error::{Result, bail, error};
use crate::util::{caused_by, free_memory};

/// Memory that begins as zeros and is mapped until this is dropped. It has no name in a file
/// system, so nothing is left of it after a crash.
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
    /// Dropped when the memory has been unmapped.
    _range: Option<InUse>,
}

/// What a mapping keeps of the file that it is of.
type InUse = Box<dyn Send + Sync>;

// SAFETY: safe code reaches it through atomics only (invariant 1). Those who use raw pointers to
// its bytes say why they may.
unsafe impl Send for SharedMemory {}
// SAFETY: as above.
unsafe impl Sync for SharedMemory {}

/// A type that may be placed in shared memory (invariant 1).
///
/// # Safety
///
/// Zeros are a value of the type, and every part of it that a rank writes is an atomic.
pub(crate) unsafe trait Shareable {}

impl SharedMemory {
    /// Memory that the threads of this process share. Most of it may never be touched, and counts
    /// when it is.
    pub(crate) fn for_threads(len: usize) -> Result<Self> {
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping changes no existing one.
        let base =
            unsafe { rustix::mm::mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, flags) };
        Self::mapped(base, len, None)
    }

    /// Bytes of the world's file, from an offset that is a multiple of the page's length.
    pub(super) fn map(file: &OwnedFd, offset: u64, len: usize, range: Option<InUse>) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping changes no existing one.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, access, MapFlags::SHARED, file, offset) };
        Self::mapped(base, len, range)
    }

    /// Allocates whole pages that no rank has used yet.
    pub(crate) fn populate(&self, offset: usize, len: usize, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        free_memory::check("shared memory", len as u64)?;
        let start = self.bytes(offset, len);
        let populate = |from, len| {
            let piece = start.wrapping_add(from);
            // SAFETY: the pages are in this mapping (`bytes` has checked it), and keep their bytes.
            match unsafe { rustix::mm::madvise(piece.cast(), len, Advice::LinuxPopulateWrite) } {
                // Linux before 5.14, or a filter that forbids the call.
                Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOSYS | rustix::io::Errno::PERM) => {
                    for page in (0..len).step_by(rustix::param::page_size()) {
                        // SAFETY: the byte is mapped, and peers use it only after this call.
                        let byte = unsafe { AtomicU8::from_ptr(piece.wrapping_add(page)) };
                        byte.fetch_or(0, Ordering::Relaxed);
                    }
                    Ok(())
                }
                result => result,
            }
        };
        let refused = |e| caused_by(error!(System, "no shared memory of {len} bytes"), "madvise", e);
        in_pieces(len, keep_going, populate, refused)
    }

    fn mapped(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize, range: Option<InUse>) -> Result<Self> {
        let refused = |e| caused_by(error!(System, "shared memory of {len} bytes cannot be mapped"), "mmap", e);
        match NonNull::new(base.map_err(refused)?.cast()) {
            Some(base) => Ok(SharedMemory { base, len, _range: range }),
            None => bail!(System, "shared memory was mapped at address 0"),
        }
    }

    /// The length in bytes.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Frees whole pages, in every process. They read as zeros afterwards.
    pub(crate) fn give_back(&self, start: *mut u8, len: usize) {
        debug_assert!(
            start.addr() >= self.base.addr().get() && start.addr() + len <= self.base.addr().get() + self.len
        );
        // SAFETY: the pages are in this mapping. They hold plain bytes, of which no reference
        // outlives a call. The kernel refuses pages that have become private; they are freed with
        // the mapping.
        let _ = unsafe { rustix::mm::madvise(start.cast(), len, Advice::LinuxRemove) };
    }

    /// Has the kernel refuse writes through this mapping from now on.
    pub(crate) fn protect(&self) -> Result<()> {
        // SAFETY: the pages are in this mapping, and the caller of an atomic or of a raw pointer
        // into it only reads from now on.
        let protected =
            unsafe { rustix::mm::mprotect(self.base.as_ptr().cast(), self.len, rustix::mm::MprotectFlags::READ) };
        protected.map_err(|e| caused_by(error!(System, "shared memory cannot be made read-only"), "mprotect", e))
    }

    /// Replaces whole pages of a mapping by private memory with the same bytes. For a thread that
    /// reads them this is one step.
    ///
    /// # Safety
    ///
    /// The pages are mapped, and no thread of this process writes them meanwhile.
    ///
    /// # Panics
    ///
    /// If there is no memory.
    pub(crate) unsafe fn replace_by_copy(start: *mut u8, len: usize) {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the new mapping is filled and then moved over the old pages, which the caller
        // says are mapped and not written.
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

    /// `count` values at an offset.
    ///
    /// # Panics
    ///
    /// If they are not within the memory, or not aligned.
    pub(crate) fn slice<T: Shareable>(&self, offset: usize, count: usize) -> &[T] {
        assert!(offset.is_multiple_of(align_of::<T>()) && offset + count * size_of::<T>() <= self.len);
        // SAFETY: the line above checks bounds and alignment, and the mapping begins with a page.
        // Any bytes that a rank writes there are values of atomics (invariant 1).
        unsafe { std::slice::from_raw_parts(self.base.as_ptr().add(offset).cast(), count) }
    }

    /// The address of plain bytes at an offset.
    ///
    /// # Panics
    ///
    /// If they are not within the memory.
    pub(crate) fn bytes(&self, offset: usize, len: usize) -> *mut u8 {
        assert!(offset + len <= self.len);
        self.base.as_ptr().wrapping_add(offset)
    }
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference outlives `self`. An error would leak
        // it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}
