//! NVIDIA GPUs: devices, streams, memory, and kernels that are compiled at run time. CUDA's driver
//! is loaded at the first use; on a machine without it that use is an error.
//!
//! A GPU may never answer. Calls that may block on it run on [`helper`] threads with a deadline.
//! Drops do not wait: a thread of the device releases what was dropped (`deferred_release`).
//!
//! Other code of the process may capture streams at any time. So the library's own threads call the
//! driver in RELAXED mode (`Relaxed`), as any thread does that gets memory or loads kernels. No
//! thread waits for a whole context: it waits for events, of the library's streams that are not
//! being captured (`point`).

use std::time::Duration;

mod deferred_release;
mod device;
mod driver;
mod event;
mod gather;
mod graph;
pub(crate) mod helper;
mod kernels;
pub(crate) mod library;
mod memory;
mod nvrtc;
mod owner;
mod point;
mod ranks;
mod stream;
mod sys;
mod transfer;

pub(crate) use device::{Device, Visit, call_out, device_count, gpu_wait, visible_count};
pub(crate) use driver::driver_version;
pub(crate) use event::TimedEvent;
pub(crate) use graph::{CapturedGraph, Graph};
pub(crate) use kernels::Kernel;
pub(crate) use memory::{DeviceMemory, PinnedMemory, new_generation};
pub(crate) use nvrtc::version as nvrtc_version;
pub(crate) use owner::Owner;
pub(crate) use point::Point;
pub(crate) use ranks::{Ended, RankOnGpu};
pub(crate) use stream::CudaStream;
pub(crate) use transfer::Transfer;

/// How long work may take that nothing waits for. What it uses is then left behind.
const KEEP_TIMEOUT: Duration = Duration::from_secs(3600);
