//! What is on this machine, and what follows from it for ranks. `distcollective doctor` shows it;
//! it is no part of the public API.
//!
//! ```
//! use distcollective::diagnosis::Diagnosis;
//!
//! let diagnosis = Diagnosis::collect();
//! for sentence in diagnosis.conclusions.iter().chain(&diagnosis.warnings) {
//!     println!("{sentence}");
//! }
//! ```

mod assessment;
mod gpu;
mod host;
mod launch;
mod library;

use std::error::Error;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use gpu::Gpu;
pub use host::{Host, OpenFiles};
pub use launch::Launch;
pub use library::{Library, Nccl};

use crate::cuda::helper;
use crate::error::Result;

/// How long the driver and the compiler may take altogether. A GPU that hangs is one of the things
/// to find out.
const PROBE_TIMEOUT: Duration = Duration::from_secs(30);

/// One fact about this machine: its value, or why it could not be found out. It is serialized as
/// the value itself, or as an object with the one field `problem`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Probe<T> {
    /// The value.
    Found(T),
    /// There is no value.
    Missing {
        /// Why not.
        problem: String,
    },
}

impl<T> Probe<T> {
    /// The value, if there is one.
    pub fn found(&self) -> Option<&T> {
        match self {
            Probe::Found(found) => Some(found),
            Probe::Missing { .. } => None,
        }
    }

    /// Why there is no value.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Probe::Found(_) => None,
            Probe::Missing { problem } => Some(problem),
        }
    }
}

impl<T> From<Result<T>> for Probe<T> {
    fn from(result: Result<T>) -> Self {
        match result {
            Ok(found) => Probe::Found(found),
            Err(error) => {
                let cause = error.source().map_or(String::new(), |cause| format!(" ({cause})"));
                Probe::Missing { problem: format!("{error}{cause}") }
            }
        }
    }
}

/// What is on this machine, as this process sees it, and what follows from it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Diagnosis {
    /// The version of this library.
    pub version: &'static str,
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
    /// NCCL.
    pub nccl: Probe<Nccl>,
    /// MPI.
    pub mpi: Probe<Library>,
    /// The number of ranks on this machine up to which the backend "auto" is NCCL. For more ranks
    /// it is the host, or NCCL if [`Nccl::shares_gpus`].
    pub nccl_ranks: u32,
    /// What follows, in sentences.
    pub conclusions: Vec<String>,
    /// What is wrong or will not work, in sentences.
    pub warnings: Vec<String>,
}

impl Diagnosis {
    /// Collects all facts, and what follows from them. It opens the GPUs as ranks would open them.
    /// It does not fail: a fact that cannot be found out is a [`Probe`] that says why. If a GPU
    /// hangs, it takes up to half a minute.
    pub fn collect() -> Self {
        let deadline = Instant::now() + PROBE_TIMEOUT;
        let mut diagnosis = Diagnosis {
            version: env!("CARGO_PKG_VERSION"),
            host: Host::look(),
            launch: Launch::look(),
            driver: library::driver(deadline),
            gpus: gpu::all(deadline),
            nvrtc: library::nvrtc(deadline),
            nccl: library::nccl(),
            mpi: Probe::Missing { problem: "not built in: there is no MPI backend yet".to_owned() },
            nccl_ranks: 0,
            conclusions: Vec::new(),
            warnings: Vec::new(),
        };
        assessment::assess(&mut diagnosis);
        diagnosis
    }
}

/// Does what may hang, within a deadline.
fn bounded<T: Send + 'static>(
    what: &'static str,
    deadline: Instant,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    helper::bounded(what, deadline, call)?
}
