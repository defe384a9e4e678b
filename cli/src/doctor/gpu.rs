//! The GPUs, and the libraries through which they are used.

use std::path::Path;
use std::time::Instant;

use distcollective::Result;
use distcollective::system::{GpuInfo, NcclInfo};
use serde::Serialize;

use super::probe::{Probe, left};

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
pub fn all(deadline: Instant) -> Probe<Vec<Probe<Gpu>>> {
    let count = GpuInfo::count(left(deadline));
    count.map(|count| (0..count).map(|ordinal| Gpu::look(ordinal, deadline).into()).collect()).into()
}

impl Gpu {
    fn look(ordinal: u32, deadline: Instant) -> Result<Self> {
        let gpu = GpuInfo::open(ordinal, left(deadline))?;
        let kernels = gpu.check_kernels(left(deadline));
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

/// A library that was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Library {
    /// Its version: `13.0`.
    pub version: String,
    /// The file that it was loaded from, where that can be seen.
    pub file: Option<String>,
}

/// NCCL as it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Nccl {
    /// Its version: `2.30.7`.
    pub version: String,
    /// The file that it was loaded from, or the name by which it was found.
    pub file: String,
    /// Whether it has AlltoAll, Gather and Scatter, from 2.28 on; else they are made of sends and
    /// receives.
    pub has_all_to_all: bool,
    /// Whether it has symmetric windows, from 2.27 on, through which collectives reach the ranks'
    /// memory directly.
    pub has_windows: bool,
    /// Whether several ranks may share one GPU, from 2.30 on with `NCCL_MULTI_RANK_GPU_ENABLE=1`.
    pub shares_gpus: bool,
}

pub fn nccl() -> Probe<Nccl> {
    let found = NcclInfo::load().map(|library| Nccl {
        version: library.version,
        file: file_of("libnccl.so").unwrap_or_else(|| library.file.to_owned()),
        has_all_to_all: library.has_all_to_all,
        has_windows: library.has_windows,
        shares_gpus: library.shares_gpus,
    });
    found.into()
}

impl Library {
    /// The library with this version, and with a file whose name begins like this.
    pub fn of(version: Result<(i32, i32)>, name: &str) -> Result<Self> {
        let (major, minor) = version?;
        Ok(Library { version: format!("{major}.{minor}"), file: file_of(name) })
    }
}

/// The file of a loaded library whose name begins like this, as the kernel knows it: links have
/// been followed.
fn file_of(name: &str) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let mut files = maps.lines().filter_map(|line| line.find('/').map(|start| &line[start..]));
    let is_named = |file: &&str| Path::new(file).file_name().is_some_and(|f| f.to_string_lossy().starts_with(name));
    files.find(is_named).map(str::to_owned)
}
