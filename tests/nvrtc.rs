//! Compiles the kernels of `cuda/` with NVRTC for each generation of devices, and needs no device.

use std::collections::BTreeSet;
use std::ffi::{CString, c_char, c_int, c_void};
use std::ptr;

use libloading::{Library, Symbol};

/// What the library compiles kernels from: a text, and for each kernel its entry in
/// `cuda/kernels.list`, its name and the line that defines it.
const TEXT: &str = include_str!(concat!(env!("OUT_DIR"), "/kernels.cu"));
const KERNELS: &[(&str, &str, &str)] = &include!(concat!(env!("OUT_DIR"), "/kernels.rs"));

/// NVRTC's `nvrtcResult`, which is 0 for success.
type Status = c_int;

type CreateProgram = unsafe extern "C" fn(
    *mut *mut c_void,
    *const c_char,
    *const c_char,
    c_int,
    *const *const c_char,
    *const *const c_char,
) -> Status;
type CompileProgram = unsafe extern "C" fn(*mut c_void, c_int, *const *const c_char) -> Status;
type DestroyProgram = unsafe extern "C" fn(*mut *mut c_void) -> Status;
type GetSize = unsafe extern "C" fn(*mut c_void, *mut usize) -> Status;
type GetBytes = unsafe extern "C" fn(*mut c_void, *mut c_char) -> Status;
type GetNumber = unsafe extern "C" fn(*mut c_int) -> Status;

/// One of each generation, and the first one that converts to float8. CI compiles for all of them.
const ARCHITECTURES: [i32; 5] = [80, 89, 90, 100, 120];

struct Nvrtc(Library);

impl Nvrtc {
    /// `None` if there is no NVRTC. In CI that is a failure.
    fn load() -> Option<Self> {
        for name in ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"] {
            // SAFETY: loading NVRTC runs only its own initialization.
            if let Ok(library) = unsafe { Library::new(name) } {
                return Some(Nvrtc(library));
            }
        }
        assert!(std::env::var("DCL_REQUIRE_PEERS").is_err(), "libnvrtc is not installed");
        println!("skipped: libnvrtc is not installed");
        None
    }

    fn function<F>(&self, name: &str) -> Symbol<'_, F> {
        // SAFETY: callers give the type that nvrtc.h declares for the function.
        unsafe { self.0.get(name) }.unwrap_or_else(|e| panic!("{name}: {e}"))
    }

    /// The architectures that it compiles for: 90 is Hopper.
    fn architectures(&self) -> Vec<i32> {
        let count: Symbol<GetNumber> = self.function("nvrtcGetNumSupportedArchs");
        let list: Symbol<GetNumber> = self.function("nvrtcGetSupportedArchs");
        let mut n = 0;
        // SAFETY: the first writes a number, the second as many numbers as that.
        unsafe {
            assert_eq!(count(&mut n), 0);
            let mut architectures = vec![0; n as usize];
            assert_eq!(list(architectures.as_mut_ptr()), 0);
            architectures
        }
    }

    /// Compiles a text to the code of an architecture.
    fn compile(&self, text: &str, architecture: i32) -> Vec<u8> {
        self.compile_to("CUBIN", text, architecture)
    }

    /// Compiles a text for an architecture to what NVRTC calls `CUBIN` or `PTX`.
    fn compile_to(&self, form: &str, text: &str, architecture: i32) -> Vec<u8> {
        let create: Symbol<CreateProgram> = self.function("nvrtcCreateProgram");
        let compile: Symbol<CompileProgram> = self.function("nvrtcCompileProgram");
        let destroy: Symbol<DestroyProgram> = self.function("nvrtcDestroyProgram");
        let c = |text: &str| CString::new(text).expect("no zero in a text");
        let pointers = |strings: &[CString]| strings.iter().map(|string| string.as_ptr()).collect::<Vec<_>>();
        let options =
            [c(&format!("--gpu-architecture=sm_{architecture}")), c("--fmad=false"), c("-Werror=all-warnings")];
        let (text, file) = (c(text), c("kernels.cu"));
        let mut program = ptr::null_mut();
        // SAFETY: all strings end with a zero and outlive the calls; the count is that of the
        // options; `bytes` gets a compiled program; the program is destroyed once, at the end.
        unsafe {
            let status = create(&mut program, text.as_ptr(), file.as_ptr(), 0, ptr::null(), ptr::null());
            assert_eq!(status, 0);
            let status = compile(program, options.len() as c_int, pointers(&options).as_ptr());
            let log = self.bytes(program, "nvrtcGetProgramLogSize", "nvrtcGetProgramLog");
            assert_eq!(status, 0, "sm_{architecture}: {}", String::from_utf8_lossy(&log));
            let code = self.bytes(program, &format!("nvrtcGet{form}Size"), &format!("nvrtcGet{form}"));
            assert_eq!(destroy(&mut program), 0);
            code
        }
    }

    /// # Safety
    ///
    /// The program was compiled, and the names are those of a size and of the bytes with that size.
    unsafe fn bytes(&self, program: *mut c_void, size: &str, get: &str) -> Vec<u8> {
        let (size, get): (Symbol<GetSize>, Symbol<GetBytes>) = (self.function(size), self.function(get));
        let mut len = 0;
        // SAFETY: the second function writes as many bytes as the first one says.
        unsafe {
            assert_eq!(size(program, &mut len), 0);
            let mut bytes = vec![0u8; len];
            assert_eq!(get(program, bytes.as_mut_ptr().cast()), 0);
            bytes
        }
    }
}

/// The source of the kernels whose entries are wanted.
fn source_of(is_wanted: impl Fn(&str) -> bool) -> String {
    let wanted = KERNELS.iter().filter(|(entry, ..)| is_wanted(entry));
    wanted.fold(TEXT.to_owned(), |source, (_, _, definition)| source + definition + "\n")
}

fn names_of(is_wanted: impl Fn(&str) -> bool) -> BTreeSet<String> {
    KERNELS.iter().filter(|(entry, ..)| is_wanted(entry)).map(|(_, name, _)| (*name).to_owned()).collect()
}

/// The kernels in code: each is a section of its own.
fn kernels_in(code: &[u8]) -> BTreeSet<String> {
    let text = String::from_utf8_lossy(code);
    text.split('\0').filter_map(|name| name.rsplit_once(".text.")).map(|(_, kernel)| kernel.to_owned()).collect()
}

fn compiles_for(architecture: i32) {
    let Some(nvrtc) = Nvrtc::load() else { return };
    if !nvrtc.architectures().contains(&architecture) {
        assert!(std::env::var("DCL_REQUIRE_PEERS").is_err(), "this NVRTC does not compile for sm_{architecture}");
        println!("skipped: this NVRTC does not compile for sm_{architecture}");
        return;
    }
    assert_eq!(kernels_in(&nvrtc.compile(&source_of(|_| true), architecture)), names_of(|_| true));
}

/// One test for each, so that they run at the same time.
macro_rules! architectures {
    ($($test:ident: $index:literal),*) => { $(
        #[test]
        fn $test() {
            compiles_for(ARCHITECTURES[$index]);
        }
    )* };
}

architectures!(sm_80: 0, sm_89: 1, sm_90: 2, sm_100: 3, sm_120: 4);

/// At run time the library compiles only the kernels that it needs.
#[test]
fn one_kernel_by_itself() {
    let Some(nvrtc) = Nvrtc::load() else { return };
    let is_wanted = |entry: &str| ["cast float16 float32", "transpose 4"].contains(&entry);
    let code = nvrtc.compile(&source_of(is_wanted), 90);
    assert_eq!(kernels_in(&code).len(), 2);
    assert_eq!(kernels_in(&code), names_of(is_wanted));
}

/// Devices that have an instruction for the conversion of float32 to float8 use it, and no other
/// does.
#[test]
fn float8_is_converted_by_an_instruction_where_there_is_one() {
    let Some(nvrtc) = Nvrtc::load() else { return };
    let supported = nvrtc.architectures();
    for (data_type, format) in [("float8_e4m3", "e4m3"), ("float8_e5m2", "e5m2")] {
        let instruction = format!("cvt.rn.satfinite.{format}x2.f32");
        let kernels = ["cast float32", "divide", "reduce", "cast int32"].map(|kernel| match kernel {
            "reduce" => format!("reduce {data_type} sum"),
            _ => format!("{kernel} {data_type}"),
        });
        let is_wanted = |entry: &str| kernels.iter().any(|kernel| kernel == entry);
        assert_eq!(names_of(is_wanted).len(), kernels.len());
        for architecture in ARCHITECTURES.into_iter().filter(|architecture| supported.contains(architecture)) {
            let code = nvrtc.compile_to("PTX", &source_of(is_wanted), architecture);
            let text = String::from_utf8_lossy(&code);
            for name in names_of(is_wanted) {
                let (_, body) = text.split_once(&format!(".entry {name}(")).expect("the kernel is in the code");
                let body = body.split(".entry ").next().expect("a body");
                assert_eq!(body.contains(&instruction), architecture >= 89, "{name} for sm_{architecture}");
            }
        }
    }
}
