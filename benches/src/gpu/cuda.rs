//! The calls of CUDA's driver that a program without this library would make.

use std::ffi::c_void;
use std::ptr;

use crate::Result;

/// A stream, event, graph or communicator of CUDA or NCCL.
pub type Handle = *mut c_void;

/// Declares the functions of a library that return a status, and loads them.
macro_rules! functions {
    ($(#[$comment:meta])* $name:ident, $file:literal: $($field:ident = $symbol:literal ($($argument:ty),*);)*) => {
        $(#[$comment])*
        pub struct $name {
            $(pub $field: unsafe extern "C" fn($($argument),*) -> i32,)*
        }

        impl $name {
            /// The functions, which the first call loads.
            pub fn get() -> $crate::Result<&'static Self> {
                static LOADED: std::sync::OnceLock<$name> = std::sync::OnceLock::new();
                if let Some(loaded) = LOADED.get() {
                    return Ok(loaded);
                }
                let loaded = Self::load()?;
                Ok(LOADED.get_or_init(|| loaded))
            }

            fn load() -> $crate::Result<Self> {
                // SAFETY: the library's initializers have no preconditions; its functions have
                // these types.
                let (library, functions) = unsafe {
                    let library = libloading::Library::new($file)?;
                    let functions = $name { $($field: *library.get($symbol)?,)* };
                    (library, functions)
                };
                // Never unloaded: the functions are used until the process ends.
                std::mem::forget(library);
                Ok(functions)
            }
        }
    };
}

pub(crate) use functions;

functions! {
    /// CUDA's driver.
    Cuda, "libcuda.so.1":
    init = "cuInit" (u32);
    device = "cuDeviceGet" (*mut i32, i32);
    retain_context = "cuDevicePrimaryCtxRetain" (*mut Handle, i32);
    set_context = "cuCtxSetCurrent" (Handle);
    memory = "cuMemGetInfo_v2" (*mut usize, *mut usize);
    copy = "cuMemcpyDtoDAsync_v2" (u64, u64, usize, Handle);
    create_stream = "cuStreamCreate" (*mut Handle, u32);
    destroy_stream = "cuStreamDestroy_v2" (Handle);
    synchronize = "cuStreamSynchronize" (Handle);
    create_event = "cuEventCreate" (*mut Handle, u32);
    destroy_event = "cuEventDestroy_v2" (Handle);
    record = "cuEventRecord" (Handle, Handle);
    await_event = "cuEventSynchronize" (Handle);
    elapsed = "cuEventElapsedTime" (*mut f32, Handle, Handle);
    begin_capture = "cuStreamBeginCapture_v2" (Handle, i32);
    end_capture = "cuStreamEndCapture" (Handle, *mut Handle);
    instantiate = "cuGraphInstantiateWithFlags" (*mut Handle, Handle, u64);
    launch = "cuGraphLaunch" (Handle, Handle);
    destroy_graph = "cuGraphDestroy" (Handle);
    destroy_executable = "cuGraphExecDestroy" (Handle);
}

const NON_BLOCKING: u32 = 1;
const THREAD_LOCAL: i32 = 1;

/// Turns a status into a result.
pub fn check(what: &str, status: i32) -> Result<()> {
    if status == 0 { Ok(()) } else { Err(format!("{what} gives {status}").into()) }
}

/// The driver, with this GPU's primary context current on the calling thread, as CUDA's runtime
/// sets it.
pub fn current(ordinal: u32) -> Result<&'static Cuda> {
    let cuda = Cuda::get()?;
    let (mut device, mut context) = (0, ptr::null_mut());
    // SAFETY: each call writes at most one value, to a variable of its type. The primary context is
    // never released.
    unsafe {
        check("cuInit", (cuda.init)(0))?;
        check("cuDeviceGet", (cuda.device)(&mut device, ordinal as i32))?;
        check("cuDevicePrimaryCtxRetain", (cuda.retain_context)(&mut context, device))?;
        check("cuCtxSetCurrent", (cuda.set_context)(context))?;
    }
    Ok(cuda)
}

impl Cuda {
    /// The free memory of the current GPU, in bytes.
    pub fn free_memory(&self) -> Result<usize> {
        let (mut free, mut total) = (0, 0);
        // SAFETY: writes two numbers.
        check("cuMemGetInfo", unsafe { (self.memory)(&mut free, &mut total) })?;
        Ok(free)
    }

    /// Enqueues a copy on the device.
    ///
    /// # Safety
    ///
    /// Both addresses are valid for `byte_len` bytes on the current GPU until the copy has
    /// finished.
    pub unsafe fn enqueue_copy(&self, from: *const u8, to: *mut u8, byte_len: usize, stream: Handle) -> Result<()> {
        // SAFETY: the caller's promise.
        let status = unsafe { (self.copy)(to as u64, from as u64, byte_len, stream) };
        check("cuMemcpyDtoDAsync", status)
    }
}

/// A stream of the current GPU, created with the flags that the library uses.
pub struct Stream {
    pub cuda: &'static Cuda,
    pub raw: Handle,
}

impl Stream {
    pub fn new(cuda: &'static Cuda) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuStreamCreate", unsafe { (cuda.create_stream)(&mut raw, NON_BLOCKING) })?;
        Ok(Stream { cuda, raw })
    }

    pub fn synchronize(&self) -> Result<()> {
        // SAFETY: the stream is there.
        check("cuStreamSynchronize", unsafe { (self.cuda.synchronize)(self.raw) })
    }

    /// Records a graph of what `enqueue` enqueues on this stream.
    pub fn record(&self, enqueue: impl FnOnce() -> Result<()>) -> Result<Graph> {
        let (mut graph, mut executable) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is there; the calls write one handle each.
        unsafe {
            check("cuStreamBeginCapture", (self.cuda.begin_capture)(self.raw, THREAD_LOCAL))?;
            let enqueued = enqueue();
            check("cuStreamEndCapture", (self.cuda.end_capture)(self.raw, &mut graph))?;
            enqueued?;
            let made = check("cuGraphInstantiateWithFlags", (self.cuda.instantiate)(&mut executable, graph, 0));
            check("cuGraphDestroy", (self.cuda.destroy_graph)(graph))?;
            made?;
        }
        Ok(Graph { cuda: self.cuda, raw: executable })
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once.
        unsafe { (self.cuda.destroy_stream)(self.raw) };
    }
}

/// A graph that can be launched.
pub struct Graph {
    cuda: &'static Cuda,
    raw: Handle,
}

impl Graph {
    /// # Safety
    ///
    /// The recorded calls may run again: their memory is valid until the launch has finished.
    pub unsafe fn launch(&self, stream: &Stream) -> Result<()> {
        // SAFETY: both are there; the rest is the caller's promise.
        check("cuGraphLaunch", unsafe { (self.cuda.launch)(self.raw, stream.raw) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: made by `record`, and destroyed once.
        unsafe { (self.cuda.destroy_executable)(self.raw) };
    }
}

/// A point in time on a stream.
pub struct Event {
    cuda: &'static Cuda,
    raw: Handle,
}

impl Event {
    pub fn new(cuda: &'static Cuda) -> Result<Self> {
        let mut raw = ptr::null_mut();
        // SAFETY: writes one handle.
        check("cuEventCreate", unsafe { (cuda.create_event)(&mut raw, 0) })?;
        Ok(Event { cuda, raw })
    }

    pub fn record(&self, stream: Handle) -> Result<()> {
        // SAFETY: the event is there, and so is the caller's stream.
        check("cuEventRecord", unsafe { (self.cuda.record)(self.raw, stream) })
    }

    /// Waits for both events, and returns the seconds between them.
    pub fn seconds_since(&self, start: &Event) -> Result<f64> {
        let mut milliseconds = 0.0;
        // SAFETY: both are there; writes one number.
        unsafe {
            check("cuEventSynchronize", (self.cuda.await_event)(self.raw))?;
            check("cuEventElapsedTime", (self.cuda.elapsed)(&mut milliseconds, start.raw, self.raw))?;
        }
        Ok(f64::from(milliseconds) / 1e3)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: made by `new`, and destroyed once.
        unsafe { (self.cuda.destroy_event)(self.raw) };
    }
}
