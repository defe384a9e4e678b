//! The libraries that are loaded when they are first used.

use std::path::Path;

use distcollective::Result;
use distcollective::system::{self, NcclInfo};
use serde::Serialize;

use super::probe::{Probe, Timer};

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

pub fn driver(timer: Timer) -> Probe<Library> {
    Library::of(system::driver_version(timer.left()), "libcuda.so").into()
}

pub fn nvrtc(timer: Timer) -> Probe<Library> {
    Library::of(system::nvrtc_version(timer.left()), "libnvrtc.so").into()
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
    fn of(version: Result<(i32, i32)>, name: &str) -> Result<Self> {
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
