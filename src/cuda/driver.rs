//! CUDA's driver, loaded at the first use.

use std::ffi::{CStr, c_char};
use std::sync::OnceLock;

use cudarc::driver::sys::{self, CUresult};
use libloading::Library;

use crate::error::{Result, bail, error};

/// The driver's functions that `src/cuda` calls. cudarc looks a function up at its first call and
/// panics if it is missing, so all are looked up before the first call. Drivers for CUDA 12 have
/// them.
const FUNCTIONS: &[&str] = &[
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGetCount",
    "cuDeviceGet",
    "cuDeviceGetName",
    "cuDeviceGetAttribute",
    "cuDeviceTotalMem_v2",
    "cuDeviceGetPCIBusId",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuMemAlloc_v2",
    "cuMemFree_v2",
    "cuMemHostAlloc",
    "cuMemFreeHost",
    "cuMemcpyHtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemsetD8Async",
    "cuStreamCreate",
    "cuStreamDestroy_v2",
    "cuStreamWaitEvent",
    "cuStreamGetCtx",
    "cuStreamIsCapturing",
    "cuStreamBeginCapture_v2",
    "cuStreamEndCapture",
    "cuThreadExchangeStreamCaptureMode",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventRecord",
    "cuEventQuery",
    "cuModuleLoadData",
    "cuModuleGetFunction",
    "cuLaunchKernel",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphExecDestroy",
    "cuGraphDestroy",
];

/// Loads the driver, once.
pub(super) fn load() -> Result<()> {
    static LOADED: OnceLock<Result<()>> = OnceLock::new();
    LOADED.get_or_init(initialize).clone()
}

fn initialize() -> Result<()> {
    find()?;
    // SAFETY: `find` has just found the function.
    check("cuInit", unsafe { sys::cuInit(0) })
}

fn find() -> Result<()> {
    let missing =
        "CUDA's driver, libcuda.so or libcuda.so.1, is not to be found; it comes with NVIDIA's display driver";
    find_library(&["cuda", "nvcuda"], FUNCTIONS, missing)
}

/// Finds a library as cudarc does, and checks that it has these functions.
pub(super) fn find_library(names: &[&str], functions: &[&str], missing: &str) -> Result<()> {
    for candidate in names.iter().flat_map(|name| cudarc::get_lib_name_candidates(name)) {
        // SAFETY: CUDA's libraries may be loaded at any time and from any thread.
        let Ok(library) = (unsafe { Library::new(&candidate) }) else { continue };
        for function in functions {
            // SAFETY: the symbol is not called.
            if let Err(e) = unsafe { library.get::<unsafe extern "C" fn()>(*function) } {
                let error = error!(Unsupported, "{candidate} has no {function}; it is older than CUDA 12");
                return Err(error.with_source(e));
            }
        }
        // cudarc opens the library again, so it stays loaded.
        std::mem::forget(library);
        return Ok(());
    }
    bail!(Unsupported, "{missing}")
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

/// Whether a result only says that work has not ended.
pub(super) fn is_not_ready(result: CUresult) -> bool {
    result == CUresult::CUDA_ERROR_NOT_READY
}

/// The newest CUDA version that the driver supports: (13, 0). Works without a GPU too.
pub(crate) fn driver_version() -> Result<(i32, i32)> {
    find()?;
    let mut version = 0;
    // SAFETY: writes one number.
    check("cuDriverGetVersion", unsafe { sys::cuDriverGetVersion(&mut version) })?;
    Ok((version / 1000, version % 1000 / 10))
}
