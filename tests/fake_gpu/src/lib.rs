//! Stand-ins for `libcuda.so.1`, `libnccl.so.2` and `libnvrtc.so.13`, so that what calls them can
//! be tested on machines without a GPU. They work on host memory, check their arguments strictly,
//! and can be told to fail; the comments at the top of `cuda/driver.h`, `nccl/api.h` and
//! `nvrtc/nvrtc.c` say how.
//!
//! A program gets them instead of the real ones when [`library_dir`] is in its `LD_LIBRARY_PATH`
//! from the start.

use std::path::{Path, PathBuf};

/// Which libraries there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// All three, with NCCL 2.30.7, and NVRTC of CUDA 12 too.
    Current,
    /// The same, with NVRTC of CUDA 13 only.
    Nvrtc13,
    /// NCCL says that it is 2.30.6, whose windows give wrong results.
    Previous,
    /// NCCL says that it is 2.21.5, and lacks what came later: alltoall, gather, scatter, windows,
    /// revoke.
    Old,
    /// NCCL says that it is 2.18.3, and lacks `ncclMemAlloc` and `ncclMemFree` too.
    Ancient,
    /// Without NVRTC.
    NoNvrtc,
    /// Without NCCL.
    NoNccl,
    /// Without the driver.
    NoDriver,
}

/// A folder that stands for the current variant, if it is set: that of NCCL's own host code.
pub const NCCL: &str = "FAKE_GPU_NCCL";

/// The folder of a variant's libraries, for `LD_LIBRARY_PATH`.
pub fn library_dir(variant: Variant) -> PathBuf {
    if let (Variant::Current, Some(nccl)) = (variant, std::env::var_os(NCCL)) {
        return nccl.into();
    }
    let folder = match variant {
        Variant::Current => "current",
        Variant::Nvrtc13 => "nvrtc_13",
        Variant::Previous => "previous",
        Variant::Old => "old",
        Variant::Ancient => "ancient",
        Variant::NoNvrtc => "no_nvrtc",
        Variant::NoNccl => "no_nccl",
        Variant::NoDriver => "no_driver",
    };
    Path::new(env!("OUT_DIR")).join(folder)
}
