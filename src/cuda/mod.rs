//! NVIDIA GPUs: devices, streams, memory, and kernels that are compiled at run time. Everything is loaded when it is first
//! used: a machine without CUDA's driver gets an error that says so.
//!
//! Whatever might block on a GPU that never answers is done by [`helper`] threads, with a deadline, or for drops by the device's
//! `deferred_release`, so that no drop waits.

mod deferred_release;
mod device;
mod driver;
mod graph;
pub(crate) mod helper;
mod kernels;
mod memory;
mod nvrtc;
mod stream;
mod transfer;

pub(crate) use device::{Device, device_count};
pub(crate) use driver::driver_version;
pub(crate) use graph::{Capture, Graph};
pub(crate) use kernels::{Kernel, Transposition};
pub(crate) use memory::{DeviceMemory, new_generation};
pub(crate) use nvrtc::version as nvrtc_version;
pub(crate) use stream::{CudaStream, Event, Pause};
pub(crate) use transfer::Transfer;
