//! Mapped memory that ranks share, in one process or in several.

use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};
use rustix::mm::{Advice, MapFlags, MremapFlags, ProtFlags};

use super::{SharedMemorySize, free_memory};
use crate::comm::host::system::caused_by;
use crate::error::{Result, bail, error};

/// How much is allocated in one step. A signal that interrupts a step undoes it, so steps are
/// short.
const PIECE_BYTES: usize = 2 << 20;

/// The seals that a memory file must have, so that its length never changes and no access faults
/// (invariant 1). A seal against writing would forbid our own mappings.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Memory that begins as zeros and is mapped until this is dropped. It has no name in a file
/// system, so nothing is left of it after a crash.
pub(crate) struct SharedMemory {
    base: NonNull<u8>,
    len: usize,
}

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
        Self::mapped(base, len)
    }

    /// Memory that processes share, and the sealed file to send to them. `keep_going` is called
    /// before each step of the allocation; its error ends it.
    pub(crate) fn for_processes(
        size: SharedMemorySize,
        keep_going: &dyn Fn() -> Result<()>,
    ) -> Result<(Self, OwnedFd)> {
        let SharedMemorySize { byte_len, resident } = size;
        free_memory::check("shared memory", resident as u64)?;
        let refused = |call| move |e| caused_by(error!(System, "no shared memory of {byte_len} bytes"), call, e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("distcollective", flags).map_err(refused("memfd_create"))?;
        rustix::fs::ftruncate(&file, byte_len as u64).map_err(refused("ftruncate"))?;
        in_pieces(resident, keep_going, |start, len| {
            rustix::fs::fallocate(&file, FallocateFlags::empty(), start as u64, len as u64)
        })?
        .map_err(refused("fallocate"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(refused("fcntl(F_ADD_SEALS)"))?;
        Ok((Self::map(&file, byte_len)?, file))
    }

    /// Allocates whole pages that no rank has used yet.
    pub(crate) fn populate(&self, offset: usize, len: usize, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        free_memory::check("shared memory", len as u64)?;
        let start = self.bytes(offset, len);
        let populated = in_pieces(len, keep_going, |from, len| {
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
        })?;
        populated.map_err(|e| caused_by(error!(System, "no shared memory of {len} bytes"), "madvise", e))
    }

    /// Memory whose file another process sent.
    pub(crate) fn open(file: OwnedFd, len: usize) -> Result<Self> {
        let refused = |call| move |e| caused_by(error!(System, "a peer's shared memory cannot be used"), call, e);
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused("fcntl(F_GET_SEALS)"))?;
        let found = rustix::fs::fstat(&file).map_err(refused("fstat"))?.st_size;
        if !seals.contains(SEALS) || i64::try_from(len) != Ok(found) {
            bail!(
                System,
                "a peer's shared memory has {found} bytes and seals {seals:?}, instead of {len} and {SEALS:?}"
            );
        }
        Self::map(&file, len)
    }

    fn map(file: &OwnedFd, len: usize) -> Result<Self> {
        // SAFETY: a new mapping changes no existing one.
        let base = unsafe {
            rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)
        };
        Self::mapped(base, len)
    }

    fn mapped(base: rustix::io::Result<*mut std::ffi::c_void>, len: usize) -> Result<Self> {
        let refused = |e| caused_by(error!(System, "shared memory of {len} bytes cannot be mapped"), "mmap", e);
        match NonNull::new(base.map_err(refused)?.cast()) {
            Some(base) => Ok(SharedMemory { base, len }),
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

/// Calls `step` with the start and the length of each piece of `len` bytes, again if a signal
/// interrupted it. `keep_going` is called before each step. Returns the first error of either.
fn in_pieces(
    len: usize,
    keep_going: &dyn Fn() -> Result<()>,
    step: impl Fn(usize, usize) -> rustix::io::Result<()>,
) -> Result<rustix::io::Result<()>> {
    for start in (0..len).step_by(PIECE_BYTES) {
        loop {
            keep_going()?;
            match step(start, PIECE_BYTES.min(len - start)) {
                Ok(()) => break,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Ok(Err(error)),
            }
        }
    }
    Ok(Ok(()))
}

impl Drop for SharedMemory {
    fn drop(&mut self) {
        // SAFETY: mapped with this length, and no reference outlives `self`. An error would leak
        // it.
        let _ = unsafe { rustix::mm::munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    const KIB: usize = 1 << 10;

    /// How many bytes of a file are allocated.
    fn allocated(file: &OwnedFd) -> usize {
        rustix::fs::fstat(file).expect("a file").st_blocks as usize * 512
    }

    #[test]
    fn only_the_beginning_is_allocated_at_once_and_the_rest_when_it_is_used() {
        let size = SharedMemorySize { byte_len: 4096 * KIB, resident: 64 * KIB };
        let (memory, file) = SharedMemory::for_processes(size, &|| Ok(())).expect("memory");
        assert_eq!(memory.len(), size.byte_len);
        assert_eq!(allocated(&file), size.resident);
        memory.populate(1024 * KIB, 256 * KIB, &|| Ok(())).expect("memory");
        assert_eq!(allocated(&file), size.resident + 256 * KIB);
        // A peer that opens it allocates nothing by that.
        let peer = SharedMemory::open(file.try_clone().expect("a descriptor"), size.byte_len).expect("memory");
        assert_eq!(peer.len(), size.byte_len);
        assert_eq!(allocated(&file), size.resident + 256 * KIB);
    }

    #[test]
    fn memory_is_allocated_in_pieces_until_it_is_to_stop() {
        let asked = Cell::new(0);
        let keep_going = || {
            asked.set(asked.get() + 1);
            if asked.get() > 3 { Err(error!(DeadlineExceeded, "the test")) } else { Ok(()) }
        };
        let stopped =
            SharedMemory::for_processes(SharedMemorySize::fully_resident(5 * PIECE_BYTES), &keep_going).map(|_| ());
        assert_eq!(stopped.expect_err("it stops").to_string(), "the test");
        assert_eq!(asked.get(), 4);
    }

    #[test]
    fn a_step_that_a_signal_interrupts_is_done_again_until_it_is_to_stop() {
        let asked = Cell::new(0);
        let keep_going = || {
            asked.set(asked.get() + 1);
            if asked.get() > 100 { Err(error!(DeadlineExceeded, "the test")) } else { Ok(()) }
        };
        let result = in_pieces(1, &keep_going, |_, _| Err(rustix::io::Errno::INTR));
        assert_eq!(result.expect_err("it stops").to_string(), "the test");
    }

    #[test]
    fn memory_that_is_refused_says_how_much_and_which_call() {
        let error = SharedMemory::for_processes(SharedMemorySize { byte_len: usize::MAX, resident: 0 }, &|| Ok(()));
        let error = error.map(|_| ()).expect_err("no file is as long");
        let text = format!("no shared memory of {} bytes: ftruncate: Invalid argument (os error 22)", usize::MAX);
        assert_eq!(error.to_string(), text);
    }
}
