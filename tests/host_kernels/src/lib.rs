//! The kernels of `cuda/` compiled for the host, so that tests of their arithmetic need no device.

use std::ffi::{CString, c_char, c_void};

type Function = unsafe extern "C" fn(arguments: *const c_void, grid: u32, block: u32);

unsafe extern "C" {
    fn dcl_host_kernel(name: *const c_char) -> Option<Function>;
}

/// The source of the kernels for the host in C, for other build scripts. It defines
/// `dcl_host_kernel`, which finds a kernel by its name, and `dcl_host_kernel_arguments`, which
/// gives the size of its structure.
pub const SOURCE: &str = concat!(env!("OUT_DIR"), "/kernels.c");

/// How many threads a block of every kernel has.
pub const BLOCK: u32 = 256;

/// A kernel, as a function that runs all threads of a grid one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Function);

/// The kernel with this name.
pub fn kernel(name: &str) -> Option<Kernel> {
    let name = CString::new(name).ok()?;
    // SAFETY: the function reads the string, which ends with a zero, and keeps no pointer to it.
    unsafe { dcl_host_kernel(name.as_ptr()) }.map(Kernel)
}

impl Kernel {
    /// Runs the kernel on `grid` blocks of `block` threads. Every kernel needs [`BLOCK`] threads.
    ///
    /// # Safety
    ///
    /// `arguments` points to the structure that the kernel takes (`cuda/arguments.h`), and the
    /// addresses in it are valid for the kernel's reads and writes.
    pub unsafe fn launch(&self, arguments: *const c_void, grid: u32, block: u32) {
        // SAFETY: the caller promises the structure and its addresses.
        unsafe { (self.0)(arguments, grid, block) };
    }
}
