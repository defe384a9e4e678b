//! CUDA's driver, loaded at the first use.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use super::library;
use super::sys::{self, CUresult};
use crate::error::{Result, bail, error};

/// Loads the driver, once.
pub(super) fn load() -> Result<()> {
    static LOADED: OnceLock<Result<()>> = OnceLock::new();
    let initialize = || {
        find()?;
        // SAFETY: `find` has just found the function.
        check("cuInit", unsafe { sys::cuInit(0) })?;
        super::helper::settle_at_exit();
        Ok(())
    };
    LOADED.get_or_init(initialize).clone()
}

/// Looks all functions up. This works without a GPU too.
fn find() -> Result<()> {
    library::require_all(open()?, &sys::lacking())
}

fn open() -> Result<&'static str> {
    let missing =
        "CUDA's driver, libcuda.so or libcuda.so.1, is not to be found; it comes with NVIDIA's display driver";
    sys::load(&["libcuda.so.1", "libcuda.so"], |_| error!(Unsupported, "{missing}"))
}

/// Whether there is no driver, or it finds no GPU. The toolkit's libcuda.so, which programs are
/// linked with, is none.
pub(super) fn sees_no_gpu() -> bool {
    let none = [CUresult::CUDA_ERROR_NO_DEVICE, CUresult::CUDA_ERROR_STUB_LIBRARY];
    // SAFETY: the driver is open when it is called, and it may be called again.
    open().is_err() || none.contains(&unsafe { sys::cuInit(0) })
}

/// The result of a call of the driver as an error of this crate.
pub(super) fn check(what: &str, result: CUresult) -> Result<()> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let mut name = std::ptr::null();
    let mut text = std::ptr::null();
    // SAFETY: both functions write a pointer to a constant text, or null.
    let (name, text) = unsafe {
        let _ = sys::cuGetErrorName(result, &mut name);
        let _ = sys::cuGetErrorString(result, &mut text);
        let read =
            |text: *const c_char| if text.is_null() { "?".into() } else { CStr::from_ptr(text).to_string_lossy() };
        (read(name), read(text))
    };
    match result {
        CUresult::CUDA_ERROR_OUT_OF_MEMORY => bail!(System, "{what}: the GPU's memory is used up ({name})"),
        _ => bail!(System, "{what}: CUDA says {name}: {text}"),
    }
}

/// The newest CUDA version that the driver supports: (13, 0). Works without a GPU too.
pub(crate) fn driver_version() -> Result<(i32, i32)> {
    find()?;
    let mut version = 0;
    // SAFETY: writes one number.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}
