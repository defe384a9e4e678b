//! CUDA's run-time compiler (NVRTC), loaded at the first use.

use std::ffi::{CStr, CString};
use std::ptr;

use sys::{nvrtcProgram, nvrtcResult};

use super::driver::driver_version;
use super::library;
use crate::error::{Result, bail, error};

/// Loads the compiler of the driver's major version if it is there: a driver takes nothing that a
/// compiler of a newer one has made (NVIDIA's CUDA Compatibility guide).
fn load() -> Result<()> {
    let missing = "CUDA's run-time compiler, libnvrtc.so or libnvrtc.so.13 or .12, is not to be found; it is in the CUDA toolkit and in the PyPI package \
                   nvidia-cuda-nvrtc (for CUDA 12: nvidia-cuda-nvrtc-cu12), whose lib folder then has to be in LD_LIBRARY_PATH";
    let is_for_12 = driver_version().is_ok_and(|(major, _)| major <= 12);
    let files: &[&str] = match is_for_12 {
        true => &["libnvrtc.so.12", "libnvrtc.so", "libnvrtc.so.13"],
        false => &["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
    };
    let file = sys::load(files, |_| error!(Unsupported, "{missing}"))?;
    library::require_all(file, &sys::lacking())
}

/// Checks that the driver takes what the compiler makes.
fn check_version() -> Result<()> {
    let ((compiler, minor), driver) = (version()?, driver_version()?);
    if compiler > driver.0 {
        bail!(
            Unsupported,
            "CUDA's run-time compiler is of version {compiler}.{minor}, and the driver takes up to {}.{}; install the \
             compiler of CUDA {} (PyPI's nvidia-cuda-nvrtc-cu12 for CUDA 12), or a newer driver",
            driver.0,
            driver.1,
            driver.0
        );
    }
    Ok(())
}

/// The compiler's version: (13, 0).
pub(crate) fn version() -> Result<(i32, i32)> {
    load()?;
    let (mut major, mut minor) = (0, 0);
    // SAFETY: writes two numbers.
    check("nvrtcVersion", unsafe { sys::nvrtcVersion(&mut major, &mut minor) })?;
    Ok((major, minor))
}

fn check(what: &str, result: nvrtcResult) -> Result<()> {
    if result == nvrtcResult::NVRTC_SUCCESS {
        return Ok(());
    }
    // SAFETY: the call gives a constant text.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(result)) };
    bail!(System, "{what}: NVRTC says {}", text.to_string_lossy())
}

/// A program, destroyed by its drop.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is live, or null, which NVRTC refuses. It is destroyed once.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

/// The newest of the architectures that the compiler knows and the GPU's own is newer than, if the
/// compiler does not know the GPU's: 90.
fn older_architecture(capability: (i32, i32)) -> Result<Option<i32>> {
    let mut count = 0;
    // SAFETY: the first call writes one number, and the second as many.
    let known = unsafe {
        check("nvrtcGetNumSupportedArchs", sys::nvrtcGetNumSupportedArchs(&mut count))?;
        let mut known = vec![0; count.max(0) as usize];
        check("nvrtcGetSupportedArchs", sys::nvrtcGetSupportedArchs(known.as_mut_ptr()))?;
        known
    };
    let own = 10 * capability.0 + capability.1;
    Ok(known.into_iter().filter(|known| *known <= own).max().filter(|newest| *newest < own))
}

/// Compiles a source for one architecture, or to PTX, which the driver compiles, if the compiler
/// does not know the architecture yet. Arithmetic keeps the rules of IEEE 754: no product is fused
/// into a sum, and nothing is flushed to zero.
pub(super) fn compile(source: &str, capability: (i32, i32)) -> Result<Vec<u8>> {
    load()?;
    check_version()?;
    let text = |text: &str| CString::new(text).map_err(|e| error!(System, "a source has a zero in it").with_source(e));
    let source = text(source)?;
    let older = older_architecture(capability)?;
    let architecture = text(&match older {
        Some(older) => format!("--gpu-architecture=compute_{older}"),
        None => format!("--gpu-architecture=sm_{}{}", capability.0, capability.1),
    })?;
    let options =
        [architecture.as_ptr(), c"--fmad=false".as_ptr(), c"--ftz=false".as_ptr(), c"--prec-div=true".as_ptr()];
    let mut program = Program(ptr::null_mut());
    // SAFETY: the texts outlive the calls; there are no headers, and as many options as the list
    // has.
    unsafe {
        let created = sys::nvrtcCreateProgram(
            &mut program.0,
            source.as_ptr(),
            c"distcollective.cu".as_ptr(),
            0,
            ptr::null(),
            ptr::null(),
        );
        check("nvrtcCreateProgram", created)?;
        let compiled = sys::nvrtcCompileProgram(program.0, options.len() as i32, options.as_ptr());
        if let Err(error) = check("nvrtcCompileProgram", compiled) {
            return Err(error.followed_by(&format!("\n{}", log(&program))));
        }
        let mut len = 0;
        if older.is_some() {
            check("nvrtcGetPTXSize", sys::nvrtcGetPTXSize(program.0, &mut len))?;
            let mut ptx = vec![0u8; len];
            check("nvrtcGetPTX", sys::nvrtcGetPTX(program.0, ptx.as_mut_ptr().cast()))?;
            return Ok(ptx);
        }
        check("nvrtcGetCUBINSize", sys::nvrtcGetCUBINSize(program.0, &mut len))?;
        let mut cubin = vec![0u8; len];
        check("nvrtcGetCUBIN", sys::nvrtcGetCUBIN(program.0, cubin.as_mut_ptr().cast()))?;
        Ok(cubin)
    }
}

/// The messages of the compiler.
fn log(program: &Program) -> String {
    let (mut len, mut text) = (0, Vec::new());
    // SAFETY: the program is alive, and the buffer has the length that NVRTC gave.
    unsafe {
        if sys::nvrtcGetProgramLogSize(program.0, &mut len) == nvrtcResult::NVRTC_SUCCESS {
            text = vec![0u8; len];
            let _ = sys::nvrtcGetProgramLog(program.0, text.as_mut_ptr().cast());
        }
    }
    String::from_utf8_lossy(&text).trim_end_matches('\0').to_owned()
}

/// The part of NVRTC's interface that this module calls, with the names and types of `nvrtc.h`.
#[expect(non_camel_case_types, non_snake_case, reason = "the names are NVRTC's")]
mod sys {
    use std::ffi::{c_char, c_int};

    use crate::cuda::library::{Unloaded, functions, handles};

    handles! {
        nvrtcProgram = _nvrtcProgram;
    }

    /// The result of a call: any number, since NVRTC has more results than are named here.
    #[derive(Clone, Copy, PartialEq, Eq)]
    #[repr(transparent)]
    pub(super) struct nvrtcResult(c_int);

    impl nvrtcResult {
        pub(super) const NVRTC_SUCCESS: Self = nvrtcResult(0);
        const NVRTC_ERROR_INTERNAL_ERROR: Self = nvrtcResult(11);
    }

    impl Unloaded for nvrtcResult {
        const UNLOADED: Self = nvrtcResult::NVRTC_ERROR_INTERNAL_ERROR;
    }

    functions! {
        fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> nvrtcResult;
        fn nvrtcGetErrorString(result: nvrtcResult) -> *const c_char;
        fn nvrtcCreateProgram(
            program: *mut nvrtcProgram,
            source: *const c_char,
            name: *const c_char,
            header_count: c_int,
            headers: *const *const c_char,
            include_names: *const *const c_char
        ) -> nvrtcResult;
        fn nvrtcCompileProgram(
            program: nvrtcProgram,
            option_count: c_int,
            options: *const *const c_char
        ) -> nvrtcResult;
        fn nvrtcGetNumSupportedArchs(count: *mut c_int) -> nvrtcResult;
        fn nvrtcGetSupportedArchs(architectures: *mut c_int) -> nvrtcResult;
        fn nvrtcGetPTXSize(program: nvrtcProgram, byte_len: *mut usize) -> nvrtcResult;
        fn nvrtcGetPTX(program: nvrtcProgram, ptx: *mut c_char) -> nvrtcResult;
        fn nvrtcGetCUBINSize(program: nvrtcProgram, byte_len: *mut usize) -> nvrtcResult;
        fn nvrtcGetCUBIN(program: nvrtcProgram, cubin: *mut c_char) -> nvrtcResult;
        fn nvrtcGetProgramLogSize(program: nvrtcProgram, byte_len: *mut usize) -> nvrtcResult;
        fn nvrtcGetProgramLog(program: nvrtcProgram, log: *mut c_char) -> nvrtcResult;
        fn nvrtcDestroyProgram(program: *mut nvrtcProgram) -> nvrtcResult;
    }
}
