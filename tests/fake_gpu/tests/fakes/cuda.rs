//! The fake driver, as a program sees it.

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A structure of a library's functions. They are called as if they were safe: they check handles
/// and addresses themselves, and the tests give them places for results that exist.
macro_rules! library {
    ($name:ident, $file:literal, { $($function:ident = $symbol:literal($($argument:ty),*) -> $result:ty;)* }) => {
        pub struct $name {
            $(pub $function: extern "C" fn($($argument),*) -> $result,)*
        }

        impl $name {
            pub fn load() -> Self {
                // SAFETY: loading the library runs no code of its own.
                let library = unsafe { libloading::Library::new($file) }.expect(concat!($file, " is in the path"));
                let functions = $name {
                    // SAFETY: the signatures are those of the C sources.
                    $($function: *unsafe { library.get($symbol) }.expect($symbol),)*
                };
                std::mem::forget(library);
                functions
            }
        }
    };
}
pub(crate) use library;

pub type Handle = *mut c_void;
/// What cuMemCreate makes: the type, the types of handles, the location's type and number.
#[repr(C)]
pub struct Properties(pub [c_int; 4], pub [u64; 2]);
pub type HostFunction = extern "C" fn(*mut c_void);

library!(Cuda, "libcuda.so.1", {
    init = "cuInit"(c_uint) -> c_int;
    driver_version = "cuDriverGetVersion"(*mut c_int) -> c_int;
    device_count = "cuDeviceGetCount"(*mut c_int) -> c_int;
    device_get = "cuDeviceGet"(*mut c_int, c_int) -> c_int;
    device_attribute = "cuDeviceGetAttribute"(*mut c_int, c_int, c_int) -> c_int;
    context_retain = "cuDevicePrimaryCtxRetain"(*mut Handle, c_int) -> c_int;
    context_release = "cuDevicePrimaryCtxRelease_v2"(c_int) -> c_int;
    context_set = "cuCtxSetCurrent"(Handle) -> c_int;
    context_get = "cuCtxGetCurrent"(*mut Handle) -> c_int;
    context_push = "cuCtxPushCurrent_v2"(Handle) -> c_int;
    context_pop = "cuCtxPopCurrent_v2"(*mut Handle) -> c_int;
    context_device = "cuCtxGetDevice"(*mut c_int) -> c_int;
    context_synchronize = "cuCtxSynchronize"() -> c_int;
    memory_allocate = "cuMemAlloc_v2"(*mut u64, usize) -> c_int;
    memory_free = "cuMemFree_v2"(u64) -> c_int;
    memory_allocate_on = "cuMemAllocAsync"(*mut u64, usize, Handle) -> c_int;
    memory_free_on = "cuMemFreeAsync"(u64, Handle) -> c_int;
    memory_info = "cuMemGetInfo_v2"(*mut usize, *mut usize) -> c_int;
    pinned_allocate = "cuMemHostAlloc"(*mut Handle, usize, c_uint) -> c_int;
    pinned_free = "cuMemFreeHost"(Handle) -> c_int;
    copy_to_device = "cuMemcpyHtoD_v2"(u64, *const c_void, usize) -> c_int;
    copy_to_host = "cuMemcpyDtoH_v2"(*mut c_void, u64, usize) -> c_int;
    copy_to_device_on = "cuMemcpyHtoDAsync_v2"(u64, *const c_void, usize, Handle) -> c_int;
    copy_to_host_on = "cuMemcpyDtoHAsync_v2"(*mut c_void, u64, usize, Handle) -> c_int;
    copy_on = "cuMemcpyDtoDAsync_v2"(u64, u64, usize, Handle) -> c_int;
    set = "cuMemsetD8_v2"(u64, u8, usize) -> c_int;
    set_on = "cuMemsetD8Async"(u64, u8, usize, Handle) -> c_int;
    pointer_attribute = "cuPointerGetAttribute"(*mut c_void, c_int, u64) -> c_int;
    stream_create = "cuStreamCreate"(*mut Handle, c_uint) -> c_int;
    stream_destroy = "cuStreamDestroy_v2"(Handle) -> c_int;
    stream_synchronize = "cuStreamSynchronize"(Handle) -> c_int;
    stream_query = "cuStreamQuery"(Handle) -> c_int;
    stream_wait = "cuStreamWaitEvent"(Handle, Handle, c_uint) -> c_int;
    stream_context = "cuStreamGetCtx"(Handle, *mut Handle) -> c_int;
    capture_begin = "cuStreamBeginCapture_v2"(Handle, c_int) -> c_int;
    capture_end = "cuStreamEndCapture"(Handle, *mut Handle) -> c_int;
    capture_status = "cuStreamIsCapturing"(Handle, *mut c_int) -> c_int;
    capture_info = "cuStreamGetCaptureInfo_v2"(Handle, *mut c_int, *mut u64, *mut Handle, *mut *const Handle,
        *mut usize) -> c_int;
    capture_depends = "cuStreamUpdateCaptureDependencies_v2"(Handle, *mut Handle, *const c_void, usize, c_uint)
        -> c_int;
    graph_add_record = "cuGraphAddEventRecordNode"(*mut Handle, Handle, *const Handle, usize, Handle) -> c_int;
    virtual_create = "cuMemCreate"(*mut u64, usize, *const Properties, u64) -> c_int;
    virtual_release = "cuMemRelease"(u64) -> c_int;
    virtual_reserve = "cuMemAddressReserve"(*mut u64, usize, usize, u64, u64) -> c_int;
    virtual_free = "cuMemAddressFree"(u64, usize) -> c_int;
    virtual_map = "cuMemMap"(u64, usize, usize, u64, u64) -> c_int;
    virtual_unmap = "cuMemUnmap"(u64, usize) -> c_int;
    virtual_access = "cuMemSetAccess"(u64, usize, *const [c_int; 3], usize) -> c_int;
    virtual_export = "cuMemExportToShareableHandle"(*mut c_int, u64, c_int, u64) -> c_int;
    virtual_import = "cuMemImportFromShareableHandle"(*mut u64, isize, c_int) -> c_int;
    capture_mode = "cuThreadExchangeStreamCaptureMode"(*mut c_int) -> c_int;
    event_create = "cuEventCreate"(*mut Handle, c_uint) -> c_int;
    event_destroy = "cuEventDestroy_v2"(Handle) -> c_int;
    event_record = "cuEventRecord"(Handle, Handle) -> c_int;
    event_query = "cuEventQuery"(Handle) -> c_int;
    event_synchronize = "cuEventSynchronize"(Handle) -> c_int;
    event_elapsed = "cuEventElapsedTime_v2"(*mut f32, Handle, Handle) -> c_int;
    module_load = "cuModuleLoadData"(*mut Handle, *const c_char) -> c_int;
    module_unload = "cuModuleUnload"(Handle) -> c_int;
    module_function = "cuModuleGetFunction"(*mut Handle, Handle, *const c_char) -> c_int;
    launch = "cuLaunchKernel"(Handle, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, c_uint, Handle, *mut *mut c_void,
        *mut *mut c_void) -> c_int;
    launch_host = "cuLaunchHostFunc"(Handle, HostFunction, *mut c_void) -> c_int;
    graph_instantiate = "cuGraphInstantiateWithFlags"(*mut Handle, Handle, u64) -> c_int;
    graph_launch = "cuGraphLaunch"(Handle, Handle) -> c_int;
    graph_exec_destroy = "cuGraphExecDestroy"(Handle) -> c_int;
    graph_destroy = "cuGraphDestroy"(Handle) -> c_int;
    user_object = "cuUserObjectCreate"(*mut Handle, *mut c_void, HostFunction, c_uint, c_uint) -> c_int;
    graph_retain = "cuGraphRetainUserObject"(Handle, Handle, c_uint, c_uint) -> c_int;
    graph_nodes = "cuGraphGetNodes"(Handle, *mut Handle, *mut usize) -> c_int;
    error_name = "cuGetErrorName"(c_int, *mut *const c_char) -> c_int;
    proc_address = "cuGetProcAddress_v2"(*const c_char, *mut Handle, c_int, u64, *mut c_int) -> c_int;
    live_count = "fake_cuda_live"(*const c_char) -> usize;
    call_count = "fake_cuda_calls"(*const c_char) -> u64;
});

pub const INVALID_VALUE: c_int = 1;
pub const OUT_OF_MEMORY: c_int = 2;
pub const NOT_INITIALIZED: c_int = 3;
pub const INVALID_IMAGE: c_int = 200;
pub const INVALID_CONTEXT: c_int = 201;
pub const INVALID_HANDLE: c_int = 400;
pub const ILLEGAL_STATE: c_int = 401;
pub const NOT_FOUND: c_int = 500;
pub const NOT_READY: c_int = 600;
pub const NOT_PERMITTED: c_int = 800;
pub const CAPTURE_UNSUPPORTED: c_int = 900;
pub const CAPTURE_INVALIDATED: c_int = 901;
pub const CAPTURE_MERGE: c_int = 902;
pub const CAPTURE_UNMATCHED: c_int = 903;
pub const CAPTURE_UNJOINED: c_int = 904;
pub const CAPTURE_ISOLATION: c_int = 905;
pub const CAPTURE_IMPLICIT: c_int = 906;
pub const CAPTURED_EVENT: c_int = 907;
pub const CAPTURE_WRONG_THREAD: c_int = 908;

pub const NO_HANDLE: Handle = std::ptr::null_mut();

pub fn cuda() -> &'static Cuda {
    static CUDA: OnceLock<Cuda> = OnceLock::new();
    CUDA.get_or_init(Cuda::load)
}

#[track_caller]
pub fn ok(result: c_int) {
    assert_eq!(result, 0);
}

/// Makes a device the calling thread's.
pub fn use_device(device: c_int) -> Handle {
    let mut context = NO_HANDLE;
    ok((cuda().init)(0));
    ok((cuda().context_retain)(&mut context, device));
    ok((cuda().context_set)(context));
    context
}

pub fn allocate(bytes: usize) -> u64 {
    let mut address = 0;
    ok((cuda().memory_allocate)(&mut address, bytes));
    address
}

/// Pinned memory, as bytes.
pub fn pinned(bytes: usize) -> &'static mut [u8] {
    let mut address = NO_HANDLE;
    ok((cuda().pinned_allocate)(&mut address, bytes, 0));
    // SAFETY: the memory was just allocated and filled. No other code has its address, and the
    // tests do not free it while they use it.
    unsafe { std::slice::from_raw_parts_mut(address.cast(), bytes) }
}

/// What can be in device memory.
pub trait Element: Copy + Default {}
impl Element for u8 {}
impl Element for i8 {}
impl Element for u16 {}
impl Element for u32 {}
impl Element for i32 {}
impl Element for i64 {}
impl Element for u64 {}
impl Element for f32 {}
impl Element for f64 {}

pub fn upload<T: Element>(elements: &[T]) -> u64 {
    let address = allocate(size_of_val(elements));
    ok((cuda().copy_to_device)(address, elements.as_ptr().cast(), size_of_val(elements)));
    address
}

pub fn download<T: Element>(address: u64, count: usize) -> Vec<T> {
    let mut elements = vec![T::default(); count];
    ok((cuda().copy_to_host)(elements.as_mut_ptr().cast(), address, count * size_of::<T>()));
    elements
}

pub fn stream() -> Handle {
    let mut stream = NO_HANDLE;
    ok((cuda().stream_create)(&mut stream, 1));
    stream
}

pub fn event() -> Handle {
    let mut event = NO_HANDLE;
    ok((cuda().event_create)(&mut event, 0));
    event
}

pub fn synchronize(stream: Handle) {
    ok((cuda().stream_synchronize)(stream));
}

pub fn live(kind: &CStr) -> usize {
    (cuda().live_count)(kind.as_ptr())
}

/// What a stream can be made to wait at.
pub struct Gate(AtomicBool);

impl Gate {
    pub fn new() -> &'static Gate {
        Box::leak(Box::new(Gate(AtomicBool::new(false))))
    }

    /// Puts the gate on a stream.
    pub fn close(&'static self, stream: Handle) {
        ok((cuda().launch_host)(stream, wait_at, std::ptr::from_ref(self).cast_mut().cast()));
    }

    pub fn open(&self) {
        self.0.store(true, Ordering::Release);
    }
}

extern "C" fn wait_at(gate: *mut c_void) {
    // SAFETY: gates are leaked.
    let gate = unsafe { &*gate.cast::<Gate>() };
    while !gate.0.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The argument of the kernel `fake_fill`.
#[repr(C)]
pub struct Fill {
    pub at: u64,
    pub count: u64,
    pub value: u32,
}

/// Loads the kernel that fills.
pub fn fill_kernel() -> Handle {
    let (mut module, mut function) = (NO_HANDLE, NO_HANDLE);
    ok((cuda().module_load)(&mut module, c"FAKE CUBIN 13\n".as_ptr()));
    ok((cuda().module_function)(&mut function, module, c"fake_fill".as_ptr()));
    function
}

pub fn launch_fill(function: Handle, stream: Handle, at: u64, count: u64, value: u32) -> c_int {
    let mut fill = Fill { at, count, value };
    let mut parameters = [std::ptr::from_mut(&mut fill).cast()];
    (cuda().launch)(function, 2, 1, 1, 32, 1, 1, 0, stream, parameters.as_mut_ptr(), std::ptr::null_mut())
}
