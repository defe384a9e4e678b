//! The fake NVRTC.

use std::ffi::{CStr, c_char, c_int};

use crate::child::test_in_child;
use crate::cuda::{self, Handle, NO_HANDLE, cuda, library, ok};

library!(Nvrtc, "libnvrtc.so.13", {
    version = "nvrtcVersion"(*mut c_int, *mut c_int) -> c_int;
    create = "nvrtcCreateProgram"(*mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char) -> c_int;
    compile = "nvrtcCompileProgram"(Handle, c_int, *const *const c_char) -> c_int;
    cubin_size = "nvrtcGetCUBINSize"(Handle, *mut usize) -> c_int;
    cubin = "nvrtcGetCUBIN"(Handle, *mut c_char) -> c_int;
    ptx_size = "nvrtcGetPTXSize"(Handle, *mut usize) -> c_int;
    ptx = "nvrtcGetPTX"(Handle, *mut c_char) -> c_int;
    log_size = "nvrtcGetProgramLogSize"(Handle, *mut usize) -> c_int;
    log = "nvrtcGetProgramLog"(Handle, *mut c_char) -> c_int;
    destroy = "nvrtcDestroyProgram"(*mut Handle) -> c_int;
    error_text = "nvrtcGetErrorString"(c_int) -> *const c_char;
    architecture_count = "nvrtcGetNumSupportedArchs"(*mut c_int) -> c_int;
    architectures = "nvrtcGetSupportedArchs"(*mut c_int) -> c_int;
});

const INVALID_INPUT: c_int = 3;
const INVALID_PROGRAM: c_int = 4;
const INVALID_OPTION: c_int = 5;
const COMPILATION: c_int = 6;

fn program(nvrtc: &Nvrtc) -> Handle {
    let (mut program, none) = (NO_HANDLE, std::ptr::null());
    ok((nvrtc.create)(&mut program, c"kernel".as_ptr(), c"kernel.cu".as_ptr(), 0, none, none));
    program
}

/// A text of a program's.
fn text(
    program: Handle,
    size: extern "C" fn(Handle, *mut usize) -> c_int,
    get: extern "C" fn(Handle, *mut c_char) -> c_int,
) -> String {
    let mut bytes = 0;
    ok(size(program, &mut bytes));
    let mut text = vec![0u8; bytes];
    ok(get(program, text.as_mut_ptr().cast()));
    CStr::from_bytes_with_nul(&text).expect("a text").to_str().expect("plain text").to_string()
}

test_in_child!(what_is_compiled_can_be_loaded, Current, &[], || {
    let nvrtc = Nvrtc::load();
    let (mut major, mut minor, mut count) = (0, 0, 0);
    ok((nvrtc.version)(&mut major, &mut minor));
    assert_eq!(major, 13);
    ok((nvrtc.architecture_count)(&mut count));
    let mut architectures = vec![0; count as usize];
    ok((nvrtc.architectures)(architectures.as_mut_ptr()));
    assert!(architectures.contains(&90));
    let mut program = program(&nvrtc);
    let mut size = 9;
    ok((nvrtc.cubin_size)(program, &mut size));
    assert_eq!(size, 0);
    assert_eq!((nvrtc.cubin)(program, [0; 9].as_mut_ptr()), INVALID_INPUT);
    assert_eq!((nvrtc.compile)(program, 1, [c"arch".as_ptr()].as_ptr()), INVALID_OPTION);
    ok((nvrtc.compile)(program, 1, [c"--gpu-architecture=sm_90".as_ptr()].as_ptr()));
    assert_eq!(text(program, nvrtc.log_size, nvrtc.log), "");
    assert!(text(program, nvrtc.ptx_size, nvrtc.ptx).contains("PTX"));
    let image = std::ffi::CString::new(text(program, nvrtc.cubin_size, nvrtc.cubin)).expect("no zeros");
    cuda::use_device(0);
    let mut module = NO_HANDLE;
    ok((cuda().module_load)(&mut module, image.as_ptr()));
    let mut gone = program;
    ok((nvrtc.destroy)(&mut program));
    assert_eq!(program, NO_HANDLE);
    assert_eq!((nvrtc.destroy)(&mut gone), INVALID_PROGRAM);
});

test_in_child!(a_compilation_fails_with_a_log, Current, &[("FAKE_NVRTC", "fail")], || {
    let nvrtc = Nvrtc::load();
    let program = program(&nvrtc);
    assert_eq!((nvrtc.compile)(program, 0, std::ptr::null()), COMPILATION);
    assert!(text(program, nvrtc.log_size, nvrtc.log).contains("error"));
    // SAFETY: the library gives a constant text.
    assert_eq!(unsafe { CStr::from_ptr((nvrtc.error_text)(COMPILATION)) }, c"NVRTC_ERROR_COMPILATION");
});
