//! The GPUs.

use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;

use super::{Probe, bounded};
use crate::comm::nccl;
use crate::cuda::{Device, device_count};
use crate::error::Result;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Gpu {
    /// Its name.
    pub name: String,
    /// Its compute capability: `9.0`.
    pub capability: String,
    /// All of its memory.
    pub memory_bytes: u64,
    /// What tells it from the others of the machine: `0000:01:00.0`.
    pub bus_id: String,
    /// The number of its multiprocessors.
    pub multiprocessors: u32,
    /// Whether layers of several ranks run on it, as TensorRT has it: from compute capability 8.0
    /// on.
    pub runs_layers: bool,
    /// Whether NCCL reduces float8 on it, from compute capability 9.0 on; else a kernel does, after
    /// an exchange of inputs.
    pub reduces_float8: bool,
    /// Why kernels cannot be compiled for it and loaded, where they cannot.
    pub kernel_problem: Option<String>,
}

/// All GPUs that this process sees.
pub(super) fn all(deadline: Instant) -> Probe<Vec<Probe<Gpu>>> {
    let count = bounded("counting the GPUs", deadline, device_count);
    count.map(|count| (0..count).map(|ordinal| Gpu::look(ordinal, deadline).into()).collect()).into()
}

impl Gpu {
    fn look(ordinal: u32, deadline: Instant) -> Result<Self> {
        let device = bounded("opening the GPU", deadline, move || Device::open(ordinal))?;
        let with_kernel = Arc::clone(&device);
        let kernels = bounded("compiling a kernel", deadline, move || with_kernel.check_kernels());
        let (major, minor) = device.capability;
        Ok(Gpu {
            name: device.name.clone(),
            capability: format!("{major}.{minor}"),
            memory_bytes: device.memory_bytes as u64,
            bus_id: device.bus_id.clone(),
            multiprocessors: device.multiprocessors,
            runs_layers: nccl::runs_layers(&device),
            reduces_float8: nccl::reduces_float8(&device),
            kernel_problem: kernels.err().map(|error| error.to_string()),
        })
    }
}
