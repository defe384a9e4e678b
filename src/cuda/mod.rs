//! NVIDIA GPUs: devices, streams, memory, and kernels that are compiled at run time. CUDA's driver
//! is loaded at the first use; on a machine without it that use is an error.
//!
//! A GPU may never answer. Calls that may block on it run on [`helper`] threads with a deadline.
//! Drops do not wait: a thread of the device releases what was dropped (`deferred_release`).

mod deferred_release;
mod device;
mod driver;
mod graph;
pub(crate) mod helper;
mod kernels;
mod library;
mod memory;
mod nvrtc;
mod stream;
mod sys;
mod transfer;
mod transposition;

pub(crate) use device::{Device, device_count};
pub(crate) use driver::driver_version;
pub(crate) use graph::{Capture, Graph};
pub(crate) use kernels::Kernel;
pub(crate) use memory::{DeviceMemory, new_generation};
pub(crate) use nvrtc::version as nvrtc_version;
pub(crate) use stream::{CudaStream, Event, Pause};
pub(crate) use transfer::Transfer;
pub(crate) use transposition::Transposition;
