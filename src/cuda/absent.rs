//! What stands for this folder in a build without the feature `nccl`: all that the rest of the
//! crate uses of CUDA. A function that would make a value returns an error. So no value of these
//! types exists, and no method is ever called.

use std::any::Any;
use std::convert::Infallible;
use std::ffi::c_void;
use std::fmt::Display;
use std::ptr::NonNull;
use std::sync::Arc;
use std::time::Instant;

use crate::data_type::DataType;
use crate::element::ElementWiseOperation;
use crate::error::{Result, bail};
use crate::layout::Layout;
use crate::util::interrupt;

/// The error of everything that needs CUDA or NCCL.
pub(crate) fn absent<T>() -> Result<T> {
    bail!(Unsupported, "the library was built without the feature `nccl`, which CUDA and NCCL need")
}

pub(crate) fn device_count() -> Result<u32> {
    absent()
}

pub(crate) fn driver_version() -> Result<(i32, i32)> {
    absent()
}

pub(crate) fn nvrtc_version() -> Result<(i32, i32)> {
    absent()
}

/// Without CUDA no code changes the current GPU.
pub(crate) fn call_out<T>(code: impl FnOnce() -> T) -> Result<T> {
    Ok(code())
}

/// Runs the interrupt hook if it is due.
pub(crate) fn check_interrupt(meanwhile: impl Display) -> Result<()> {
    interrupt::check().map_err(|e| interrupt::ended(&e, meanwhile))
}

/// Without CUDA no call hangs, so none needs a thread of its own.
pub(crate) mod helper {
    use std::time::{Duration, Instant};

    use crate::error::Result;

    pub(crate) fn settle(_timeout: Duration) {}

    pub(crate) fn bounded<T>(_what: &str, _deadline: Instant, call: impl FnOnce() -> T) -> Result<T> {
        Ok(call())
    }
}

pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) capability: (i32, i32),
    pub(crate) multiprocessors: u32,
    pub(crate) memory_bytes: usize,
    pub(crate) bus_id: String,
    none: Infallible,
}

impl Device {
    pub(crate) fn open(_ordinal: u32) -> Result<Arc<Self>> {
        absent()
    }

    pub(crate) fn ordinal(&self) -> u32 {
        match self.none {}
    }

    pub(crate) fn prepare(&self, _kernels: impl IntoIterator<Item = Kernel>) -> Result<()> {
        match self.none {}
    }

    pub(crate) fn check_kernels(&self) -> Result<()> {
        match self.none {}
    }

    pub(crate) unsafe fn read(self: &Arc<Self>, _from: *const u8, _to: &mut [u8]) -> Result<()> {
        match self.none {}
    }

    pub(crate) unsafe fn write(self: &Arc<Self>, _from: &[u8], _to: *mut u8) -> Result<()> {
        match self.none {}
    }
}

#[derive(Debug)]
pub(crate) struct CudaStream(Infallible);

impl CudaStream {
    pub(crate) fn new(_device: &Arc<Device>) -> Result<Self> {
        absent()
    }

    pub(crate) unsafe fn borrowed(_device: &Arc<Device>, _raw: *mut c_void) -> Result<Self> {
        absent()
    }

    pub(crate) fn id(&self) -> u64 {
        match self.0 {}
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        match self.0 {}
    }

    pub(crate) fn as_ptr(&self) -> *mut c_void {
        match self.0 {}
    }

    pub(crate) fn is_capturing(&self) -> Result<bool> {
        match self.0 {}
    }

    pub(crate) fn visit(&self) -> Result<Visit> {
        match self.0 {}
    }

    pub(crate) fn expect(&self, _deadline: Instant) {
        match self.0 {}
    }

    pub(crate) fn point(&self) -> Point {
        match self.0 {}
    }

    pub(crate) fn wait_for(&self, _point: &Point) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn synchronize(&self, _deadline: Instant, _alive: impl FnMut() -> Result<()>) -> Result<()> {
        match self.0 {}
    }

    pub(crate) fn drain(&self) {
        match self.0 {}
    }

    pub(crate) fn keep(&self, _until: Point, _value: Box<dyn Any + Send>) {
        match self.0 {}
    }

    pub(crate) fn sweep(&self) {
        match self.0 {}
    }

    pub(crate) fn sweep_if_many(&self) {
        match self.0 {}
    }

    pub(crate) unsafe fn copy(&self, _from: *const u8, _to: *mut u8, _byte_len: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn zero(&self, _to: *mut u8, _byte_len: usize) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn cast(
        &self,
        _from: DataType,
        _input: *const u8,
        _to: DataType,
        _output: *mut u8,
        _count: usize,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn gather(
        &self,
        _layout: &Layout<1>,
        _input: *const u8,
        _output: *mut u8,
        _element_bytes: usize,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn copy_rows(
        &self,
        _input: *const u8,
        _output: *mut u8,
        _row_count: usize,
        _row_bytes: usize,
        _pitch_bytes: usize,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn element_wise(
        &self,
        _operation: ElementWiseOperation,
        _data_type: DataType,
        _layout: &Layout<2>,
        _inputs: [*const u8; 2],
        _output: *mut u8,
    ) -> Result<()> {
        match self.0 {}
    }
}

pub(crate) struct Visit(Infallible);

impl Visit {
    pub(crate) fn is_capturing(&self) -> bool {
        match self.0 {}
    }
}

#[derive(Clone)]
pub(crate) struct Point(Infallible);

impl Point {
    pub(crate) fn deadline(&self, _own: Instant) -> Instant {
        match self.0 {}
    }

    pub(crate) fn is_done(&self) -> Result<bool> {
        match self.0 {}
    }

    pub(crate) fn wait(&self, _deadline: Instant, _alive: impl FnMut() -> Result<()>) -> Result<()> {
        match self.0 {}
    }
}

pub(crate) struct Capture(Infallible);

impl Capture {
    pub(crate) fn begin(_stream: &CudaStream) -> Result<Self> {
        absent()
    }

    pub(crate) fn finish(self) -> Result<Graph> {
        match self.0 {}
    }
}

pub(crate) struct Graph(Infallible);

impl Graph {
    pub(crate) unsafe fn launch(&mut self, _stream: &CudaStream) -> Result<()> {
        match self.0 {}
    }
}

pub(crate) struct DeviceMemory(Infallible);

impl DeviceMemory {
    pub(crate) fn new(_device: &Arc<Device>, _byte_len: usize) -> Result<Self> {
        absent()
    }

    pub(crate) fn device(&self) -> &Arc<Device> {
        match self.0 {}
    }

    pub(crate) fn address(&self) -> *mut u8 {
        match self.0 {}
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        match self.0 {}
    }

    pub(crate) fn generation(&self) -> u64 {
        match self.0 {}
    }
}

pub(crate) struct PinnedMemory(Infallible);

impl PinnedMemory {
    pub(crate) fn new(_device: &Arc<Device>, _byte_len: usize) -> Result<Self> {
        absent()
    }

    pub(crate) fn start(&self) -> NonNull<u8> {
        match self.0 {}
    }
}

pub(crate) struct Transfer(Infallible);

impl Transfer {
    pub(crate) fn new(_device: &Arc<Device>) -> Result<Self> {
        absent()
    }

    pub(crate) unsafe fn upload(
        &mut self,
        _from: *const u8,
        _to: *mut u8,
        _byte_len: usize,
        _stream: &CudaStream,
        _deadline: Instant,
        _alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        match self.0 {}
    }

    pub(crate) unsafe fn download(
        &mut self,
        _from: *const u8,
        _to: *mut u8,
        _byte_len: usize,
        _stream: &CudaStream,
        _deadline: Instant,
        _alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        match self.0 {}
    }
}

/// There are no kernels.
pub(crate) struct Kernel(Infallible);

impl Kernel {
    pub(crate) fn of_cast(_from: DataType, _to: DataType) -> Option<Self> {
        None
    }

    pub(crate) fn of_gather(_element_bytes: usize) -> impl Iterator<Item = Self> {
        std::iter::empty()
    }

    pub(crate) fn of_copy_rows(_element_bytes: usize) -> impl Iterator<Item = Self> {
        std::iter::empty()
    }

    pub(crate) fn of_element_wise(_operation: ElementWiseOperation, _data_type: DataType) -> Option<Self> {
        None
    }
}
