//! The libraries that are loaded when they are first used.

use std::path::Path;
use std::time::Instant;

use serde::Serialize;

use super::{Probe, bounded};
use crate::comm::nccl;
use crate::cuda::{driver_version, nvrtc_version};
use crate::error::Result;

/// A library that was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Library {
    /// Its version: `13.0`.
    pub version: String,
    /// The file that it was loaded from, where that can be seen.
    pub file: Option<String>,
}

/// NCCL as it was loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
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

pub(super) fn driver(deadline: Instant) -> Probe<Library> {
    let version = bounded("asking the driver for its version", deadline, driver_version);
    Library::of(version, "libcuda.so").into()
}

pub(super) fn nvrtc(deadline: Instant) -> Probe<Library> {
    let version = bounded("asking NVRTC for its version", deadline, nvrtc_version);
    Library::of(version, "libnvrtc.so").into()
}

pub(super) fn nccl() -> Probe<Nccl> {
    let look = || {
        let library = nccl::library()?;
        Ok(Nccl {
            version: library.version.to_string(),
            file: file_of("libnccl.so").unwrap_or_else(|| library.name.to_owned()),
            has_all_to_all: library.has_all_to_all(),
            has_windows: library.has_windows(),
            shares_gpus: nccl::can_share_gpus()?,
        })
    };
    look().into()
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
