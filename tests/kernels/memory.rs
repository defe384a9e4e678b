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

/// The value of bytes around a buffer, and of a buffer that was not written.
const UNTOUCHED: u8 = 0xa5;

/// Memory for a kernel. Its address is `offset` bytes above a multiple of 16. A write to the bytes
/// around it fails a check, and an access more than a few bytes behind it faults.
pub struct Buffer {
    pages: *mut c_void,
    /// How many bytes of the pages are accessible. One more page is not.
    usable: usize,
    start: usize,
    len: usize,
}

impl Buffer {
    pub fn new(len: usize, offset: usize) -> Self {
        let page = rustix::param::page_size();
        let usable = (len + 16).next_multiple_of(page);
        let start = (usable - len - offset % 16) / 16 * 16 + offset % 16;
        // SAFETY: the pages are new, and nothing uses the last one, which is protected.
        let pages = unsafe {
            let access = ProtFlags::READ | ProtFlags::WRITE;
            let pages = mmap_anonymous(ptr::null_mut(), usable + page, access, MapFlags::PRIVATE).expect("pages");
            mprotect(pages.byte_add(usable), page, MprotectFlags::empty()).expect("an inaccessible page");
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

    /// The bytes. Checks that those around them were not written.
    pub fn bytes(&mut self) -> Vec<u8> {
        let (start, len) = (self.start, self.len);
        let (before, rest) = self.all().split_at(start);
        let (bytes, after) = rest.split_at(len);
        assert!(before.iter().chain(after).all(|&byte| byte == UNTOUCHED), "bytes around the buffer were written");
        bytes.to_vec()
    }

    fn all(&mut self) -> &mut [u8] {
        // SAFETY: `usable` bytes of the pages are accessible, and the kernel initialized them with
        // zeros.
        unsafe { slice::from_raw_parts_mut(self.pages.cast(), self.usable) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: the pages belong to this buffer, whose borrows have ended.
        unsafe { munmap(self.pages, self.usable + rustix::param::page_size()).expect("pages of this buffer") };
    }
}

/// Runs the kernel `name` on a grid of `grid` blocks.
///
/// # Safety
///
/// `A` is the structure that the kernel takes, and the addresses in it are valid for the kernel's
/// reads and writes.
pub unsafe fn launch<A>(name: &str, arguments: &A, grid: u32) {
    let kernel = kernel(name).unwrap_or_else(|| panic!("there is no kernel {name}"));
    // SAFETY: the caller promises the structure and its addresses.
    unsafe { kernel.launch((&raw const *arguments).cast(), grid, BLOCK) };
}
