//! What is on this machine, and what follows from it for ranks. `distcollective doctor` shows it.
//!
//! ```
//! use distcollective::Diagnosis;
//!
//! let diagnosis = Diagnosis::collect();
//! for sentence in diagnosis.conclusions.iter().chain(&diagnosis.warnings) {
//!     println!("{sentence}");
//! }
//! ```

mod gpu;
mod host;
mod launch;
mod library;
mod verdict;

use std::error::Error;
use std::time::{Duration, Instant};

use serde::Serialize;

pub use gpu::Gpu;
pub use host::{Host, OpenFiles};
pub use launch::Launch;
pub use library::{Library, Nccl};

use crate::cuda::helper;
use crate::error::Result;

/// How long the driver and the compiler may take altogether. A GPU that hangs is one of the things to find out.
const PATIENCE: Duration = Duration::from_secs(30);

/// What was found, or in words why it was not. It is serialized as the value itself, or as an object with the one field
/// `problem`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Finding<T> {
    /// What was found.
    Found(T),
    /// It was not.
    Missing {
        /// Why not.
        problem: String,
    },
}

impl<T> Finding<T> {
    /// What was found.
    pub fn found(&self) -> Option<&T> {
        match self {
            Finding::Found(found) => Some(found),
            Finding::Missing { .. } => None,
        }
    }

    /// Why it was not.
    pub fn problem(&self) -> Option<&str> {
        match self {
            Finding::Found(_) => None,
            Finding::Missing { problem } => Some(problem),
        }
    }
}

impl<T> From<Result<T>> for Finding<T> {
    fn from(result: Result<T>) -> Self {
        match result {
            Ok(found) => Finding::Found(found),
            Err(error) => {
                let cause = error.source().map_or(String::new(), |cause| format!(" ({cause})"));
                Finding::Missing { problem: format!("{error}{cause}") }
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
    pub driver: Finding<Library>,
    /// The GPUs, by their number among those that this process sees.
    pub gpus: Finding<Vec<Finding<Gpu>>>,
    /// CUDA's run-time compiler.
    pub nvrtc: Finding<Library>,
    /// NCCL.
    pub nccl: Finding<Nccl>,
    /// MPI.
    pub mpi: Finding<Library>,
    /// For up to so many ranks on this machine the backend "auto" is NCCL, and for more the host; it may be NCCL for more where
    /// [`Nccl::shares_gpus`].
    pub nccl_ranks: u32,
    /// What follows, in sentences.
    pub conclusions: Vec<String>,
    /// What is wrong or will disappoint, in sentences.
    pub warnings: Vec<String>,
}

impl Diagnosis {
    /// Looks at everything. It takes up to half a minute where a GPU hangs, and does not fail: what cannot be found out is a
    /// [`Finding`] that says why. The GPUs are opened as ranks would open them.
    pub fn collect() -> Self {
        let deadline = Instant::now() + PATIENCE;
        let mut diagnosis = Diagnosis {
            version: env!("CARGO_PKG_VERSION"),
            host: Host::look(),
            launch: Launch::look(),
            driver: library::driver(deadline),
            gpus: gpu::all(deadline),
            nvrtc: library::nvrtc(deadline),
            nccl: library::nccl(),
            mpi: Finding::Missing { problem: "not built in: there is no MPI backend yet".to_owned() },
            nccl_ranks: 0,
            conclusions: Vec::new(),
            warnings: Vec::new(),
        };
        verdict::conclude(&mut diagnosis);
        diagnosis
    }
}

/// Does what may hang, within a deadline.
fn bounded<T: Send + 'static>(
    what: &str,
    deadline: Instant,
    call: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    helper::bounded(what, deadline, call)?
}
