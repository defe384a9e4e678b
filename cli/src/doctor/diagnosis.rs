//! What is on this machine, and what follows from it for ranks.

use std::time::{Duration, Instant};

use distcollective::system::{self, NcclInfo};
use serde::Serialize;

use super::gpu::{self, Gpu, Library};
use super::host::Host;
use super::launch::Launch;
use super::probe::{Probe, left};

/// How long the driver and the compiler may take altogether. A GPU that hangs is one of the things
/// to find out.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// What is on this machine, as this process sees it, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    pub version: &'static str,
    /// The commit that this program was built from, or "unknown".
    pub commit: &'static str,
    /// The target triple that this program was built for.
    pub target: &'static str,
    /// The machine without its GPUs.
    pub host: Host,
    /// What the environment says of ranks and libraries.
    pub launch: Launch,
    /// CUDA's driver; its version is that of the newest CUDA that it is for.
    pub driver: Probe<Library>,
    /// The GPUs, by their number among those that this process sees.
    pub gpus: Probe<Vec<Probe<Gpu>>>,
    /// CUDA's run-time compiler.
    pub nvrtc: Probe<Library>,
    pub nccl: Probe<NcclInfo>,
    /// What moves elements between machines without GPUs.
    pub ucx: Probe<Library>,
    /// What may do so in place of UCX.
    pub mpi: Probe<Library>,
    /// The number of ranks on this machine up to which the backend "auto" is NCCL. A conclusion
    /// says what it is for more.
    pub nccl_max_world_size: u32,
    /// What follows, in sentences.
    pub conclusions: Vec<String>,
    /// What is wrong or will not work, in sentences.
    pub warnings: Vec<String>,
}

impl Diagnosis {
    /// Collects all facts, and opens the GPUs as ranks would open them. `assessment` adds what
    /// follows. It does not fail: a fact that cannot be found out is a [`Probe`] that says why. If
    /// a GPU hangs, it takes up to half a minute.
    pub fn collect() -> Self {
        let deadline = Instant::now() + PROBE_TIMEOUT;
        Diagnosis {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("CLI_COMMIT"),
            target: env!("CLI_TARGET"),
            host: Host::look(),
            launch: Launch::look(),
            driver: Library::of(system::driver_version(left(deadline)), "libcuda.so").into(),
            gpus: gpu::all(deadline),
            nvrtc: Library::of(system::nvrtc_version(left(deadline)), "libnvrtc.so").into(),
            nccl: gpu::nccl(),
            ucx: Library::of(system::ucx_version(), "libucp.so").into(),
            mpi: system::mpi_version().map(Library::of_mpi).into(),
            nccl_max_world_size: 0,
            conclusions: Vec::new(),
            warnings: Vec::new(),
        }
    }
}
