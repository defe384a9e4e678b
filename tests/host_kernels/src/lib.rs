//! The kernels of `cuda/` compiled for the host, where their arithmetic can be tested without a device.

use std::ffi::{CString, c_char, c_void};

type Function = unsafe extern "C" fn(arguments: *const c_void, grid: u32, block: u32);

unsafe extern "C" {
    fn dcl_host_kernel(name: *const c_char) -> Option<Function>;
}

/// The source of the kernels for the host in C, for other build scripts. It defines
/// `dcl_host_kernel`, which finds a kernel by its name, and `dcl_host_kernel_arguments`, which gives
/// the size of its structure.
pub const SOURCE: &str = concat!(env!("OUT_DIR"), "/kernels.c");

/// How many threads a block of every kernel has.
pub const BLOCK: u32 = 256;

/// A kernel, as a function that runs all threads of a grid one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(Function);

/// The kernel of a name.
pub fn kernel(name: &str) -> Option<Kernel> {
    let name = CString::new(name).ok()?;
    // SAFETY: the function reads the string, which ends with a zero, and keeps nothing of it.
    unsafe { dcl_host_kernel(name.as_ptr()) }.map(Kernel)
}

impl Kernel {
    /// Runs the kernel on a grid of `grid` blocks of `block` threads, which are [`BLOCK`] for every kernel.
    ///
    /// # Safety
    ///
    /// `arguments` is the structure that the kernel takes (`cuda/arguments.h`), and the addresses in it are valid for what
    /// the kernel reads and writes there.
    pub unsafe fn launch(&self, arguments: *const c_void, grid: u32, block: u32) {
        // SAFETY: the caller's promise.
        unsafe { (self.0)(arguments, grid, block) };
    }
}
