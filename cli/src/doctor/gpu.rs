//! The GPUs.

use distcollective::Result;
use distcollective::system::GpuInfo;
use serde::Serialize;

use super::probe::{Probe, Timer};

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Gpu {
    pub name: String,
    /// Its compute capability: `9.0`.
    pub capability: String,
    pub memory_bytes: u64,
    /// What tells it from the others of the machine: `0000:01:00.0`.
    pub bus_id: String,
    pub multiprocessors: u32,
    /// Whether layers of several ranks run on it.
    pub runs_layers: bool,
    /// Whether NCCL reduces float8 on it; else a kernel does, after an exchange of inputs.
    pub reduces_float8: bool,
    /// Why kernels cannot be compiled for it and loaded, where they cannot.
    pub kernel_problem: Option<String>,
}

/// All GPUs that this process sees.
pub fn all(timer: Timer) -> Probe<Vec<Probe<Gpu>>> {
    let count = GpuInfo::count(timer.left());
    count.map(|count| (0..count).map(|ordinal| Gpu::look(ordinal, timer).into()).collect()).into()
}

impl Gpu {
    fn look(ordinal: u32, timer: Timer) -> Result<Self> {
        let gpu = GpuInfo::open(ordinal, timer.left())?;
        let kernels = gpu.check_kernels(timer.left());
        let (major, minor) = gpu.capability;
        Ok(Gpu {
            name: gpu.name,
            capability: format!("{major}.{minor}"),
            memory_bytes: gpu.memory_bytes,
            bus_id: gpu.bus_id,
            multiprocessors: gpu.multiprocessors,
            runs_layers: gpu.runs_layers,
            reduces_float8: gpu.reduces_float8,
            kernel_problem: kernels.err().map(|error| error.to_string()),
        })
    }
}
