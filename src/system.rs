//! What this machine has for ranks: memory, room for processes, GPUs and the libraries through
//! which they are used; and files that replace others when they are whole.
//!
//! ```
//! use std::time::Duration;
//!
//! use distcollective::system::{self, GpuInfo};
//!
//! let timeout = Duration::from_secs(10);
//! for ordinal in 0..GpuInfo::count(timeout).unwrap_or(0) {
//!     println!("{:?}", GpuInfo::open(ordinal, timeout)?);
//! }
//! println!("{} bytes are free", system::available_memory()?);
//! assert!(system::most_processes()? > 1);
//! # Ok::<(), distcollective::Error>(())
//! ```

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use crate::comm::most_processes;
use crate::comm::{self, nccl_library};
use crate::cuda::helper;
use crate::cuda::{self, Device, Kernel};
use crate::error::Result;
use crate::mpi;
use crate::util::deadline_after;
pub use crate::util::descriptors::resource_limits;
pub use crate::util::free_memory::{available_memory, memory_limit};
pub use crate::util::new_file::NewFile;

/// A GPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct GpuInfo {
    /// Its number among the GPUs that this process sees. It is not serialized.
    #[serde(skip)]
    pub ordinal: u32,
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
    /// Whether an NCCL that [has it](NcclInfo::reduces_float8) reduces float8 on it, from compute
    /// capability 9.0 on; else a kernel does, after an exchange of inputs.
    pub reduces_float8: bool,
}

impl GpuInfo {
    /// The number of GPUs that this process sees.
    ///
    /// # Errors
    ///
    /// The driver does not work, or does not answer in this time.
    pub fn count(timeout: Duration) -> Result<u32> {
        bounded("counting the GPUs", timeout, cuda::visible_count)
    }

    /// Opens a GPU, as a rank does, and says what it is.
    ///
    /// # Errors
    ///
    /// No GPU has this number, or it does not answer in this time.
    pub fn open(ordinal: u32, timeout: Duration) -> Result<Self> {
        let device = bounded("opening the GPU", timeout, move || Device::open(ordinal))?;
        let (major, minor) = device.capability;
        Ok(GpuInfo {
            ordinal,
            name: device.name.clone(),
            capability: format!("{major}.{minor}"),
            memory_bytes: device.memory_bytes as u64,
            bus_id: device.bus_id.clone(),
            multiprocessors: device.multiprocessors,
            runs_layers: comm::runs_layers(&device),
            reduces_float8: comm::reduces_float8(&device),
        })
    }

    /// Compiles a kernel for the GPU and loads it.
    ///
    /// # Errors
    ///
    /// There is no NVRTC, or the kernel cannot be compiled or loaded in this time.
    pub fn check_kernels(&self, timeout: Duration) -> Result<()> {
        let ordinal = self.ordinal;
        // The shortest one.
        bounded("compiling a kernel", timeout, move || Device::open(ordinal)?.prepare([Kernel::NormalizeBool]))
    }
}

/// NCCL as it is loaded.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct NcclInfo {
    /// Its version: `2.30.7`.
    pub version: String,
    /// The name by which the file was found.
    pub file: String,
    /// Whether it has AlltoAll, Gather and Scatter, from 2.28.3 on.
    pub has_all_to_all: bool,
    /// Whether it has symmetric windows, through which collectives reach the ranks' memory
    /// directly, and their results are right: from 2.30.7 on.
    pub has_windows: bool,
    /// Whether it reduces float8, from 2.24.3 on, on the GPUs that it
    /// [does so on](GpuInfo::reduces_float8).
    pub reduces_float8: bool,
    /// Whether several ranks may share one GPU, from 2.30 on with `NCCL_MULTI_RANK_GPU_ENABLE=1`.
    pub shares_gpus: bool,
    /// What ranks do in place of what it lacks or has wrong, in sentences.
    pub detours: Vec<String>,
}

impl NcclInfo {
    /// Loads NCCL, as a rank does, and says what it is.
    ///
    /// # Errors
    ///
    /// NCCL is not installed, or is older than 2.19.
    pub fn load() -> Result<Self> {
        let library = nccl_library()?;
        Ok(NcclInfo {
            version: library.version_text(),
            file: library.name.to_owned(),
            has_all_to_all: library.has_all_to_all(),
            has_windows: library.has_windows(),
            reduces_float8: library.reduces_float8(),
            shares_gpus: comm::can_share_gpus()?,
            detours: library.detours(),
        })
    }
}

/// The newest CUDA version that the driver is for: (13, 0). Works without a GPU too.
///
/// # Errors
///
/// There is no driver for CUDA 12 or newer, or it does not answer in this time.
pub fn driver_version(timeout: Duration) -> Result<(i32, i32)> {
    bounded("asking the driver for its version", timeout, cuda::driver_version)
}

/// The version of NVRTC, CUDA's run-time compiler: (13, 0).
///
/// # Errors
///
/// There is no NVRTC, or it does not answer in this time.
pub fn nvrtc_version(timeout: Duration) -> Result<(i32, i32)> {
    bounded("asking NVRTC for its version", timeout, cuda::nvrtc_version)
}

/// The version of UCX, which moves elements between machines without GPUs: (1, 13).
///
/// # Errors
///
/// There is no UCX from 1.11 on.
pub fn ucx_version() -> Result<(i32, i32)> {
    comm::ucx_version()
}

/// What the MPI that is installed says of itself: `Open MPI v4.1.4`. It is loaded, and not
/// initialized.
///
/// # Errors
///
/// There is no MPI from version 3 on.
pub fn mpi_version() -> Result<String> {
    mpi::version()
}

/// Makes a call that may hang.
fn bounded<T: Send + 'static>(
    what: &'static str,
    timeout: Duration,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    helper::bounded(what, deadline_after(timeout), call)?
}
