//! Memory for kernels, and their launch.

use std::ffi::c_void;
use std::{ptr, slice};

use host_kernels::{BLOCK, kernel};
use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap_anonymous, mprotect, munmap};

pub use crate::random::Random;

impl Random {
    pub fn bytes(&mut self, len: usize) -> Vec<u8> {
        (0..len).map(|_| self.next() as u8).collect()
    }
}

/// What the bytes around a buffer are, and those of a buffer that nobody wrote.
const UNTOUCHED: u8 = 0xa5;

/// Bytes that begin so many bytes after a multiple of 16. Those around them nobody may write, and what is more than a few
/// bytes behind them nobody can even read.
pub struct Buffer {
    pages: *mut c_void,
    /// How many bytes of the pages can be read and written; one more page cannot.
    usable: usize,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn new(len: usize, offset: usize) -> Self {
        let page = rustix::param::page_size();
        let usable = (len + 16).next_multiple_of(page);
        let start = (usable - len - offset % 16) / 16 * 16 + offset % 16;
        // SAFETY: fresh pages, of which the last one is nobody's.
        let pages = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let pages = mmap_anonymous(ptr::null_mut(), usable + page, access, MapFlags::PRIVATE).expect("pages");
            mprotect(pages.byte_add(usable), page, MprotectFlags::empty()).expect("a page that nobody can read");
            pages
        };
        let mut buffer = Buffer { pages, usable, start, len };
        buffer.all().fill(UNTOUCHED);
        buffer
    }

    pub fn of(bytes: &[u8], offset: usize) -> Self {
        let mut buffer = Buffer::new(bytes.len(), offset);
        let range = buffer.start..buffer.start + buffer.len;
        buffer.all()[range].copy_from_slice(bytes);
        buffer
    }

    pub fn address(&mut self) -> *mut c_void {
        self.pages.wrapping_byte_add(self.start)
    }

    /// The bytes, once it is sure that those around them are what they were.
    pub fn bytes(&mut self) -> Vec<u8> {
        let (start, len) = (self.start, self.len);
        let (before, rest) = self.all().split_at(start);
        let (bytes, after) = rest.split_at(len);
        assert!(before.iter().chain(after).all(|&byte| byte == UNTOUCHED), "bytes around the buffer were written");
        bytes.to_vec()
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: so many bytes of the pages are there to be read and written, and they begin as zeros.
        unsafe { slice::from_raw_parts_mut(self.pages.cast(), self.usable) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pages are this buffer's, whose borrows have ended.
        unsafe { munmap(self.pages, self.usable + rustix::param::page_size()).expect("pages of this buffer") };
    }
}

/// Runs the kernel of a name on a grid of so many blocks.
///
/// # Safety
///
/// The structure is the one that the kernel takes, and the addresses in it are valid for what the kernel does there.
pub unsafe fn launch<A>(name: &str, arguments: &A, grid: u32) {
    let kernel = kernel(name).unwrap_or_else(|| panic!("there is no kernel {name}"));
    // SAFETY: the caller's promise.
    unsafe { kernel.launch((&raw const *arguments).cast(), grid, BLOCK) };
}
