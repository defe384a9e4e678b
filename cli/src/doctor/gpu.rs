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
    #[serde(flatten)]
    pub info: GpuInfo,
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
        let info = GpuInfo::open(ordinal, left(deadline))?;
        let kernel_problem = info.check_kernels(left(deadline)).err().map(|error| error.to_string());
        Ok(Gpu { info, kernel_problem })
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

/// NCCL as it was loaded, with the file that it was loaded from, or the name by which it was found.
pub fn nccl() -> Probe<NcclInfo> {
    let found = NcclInfo::load().map(|mut nccl| {
        nccl.file = file_of("libnccl.so").unwrap_or(nccl.file);
        nccl
    });
    found.into()
}

impl Library {
    /// The library with this version, and with a file whose name begins like this.
    pub fn of(version: Result<(i32, i32)>, name: &str) -> Result<Self> {
        let (major, minor) = version?;
        Ok(Library { version: format!("{major}.{minor}"), file: file_of(name) })
    }

    /// An MPI that says this of itself.
    pub fn of_mpi(version: String) -> Self {
        Library { version, file: file_of("libmpi") }
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
