//! The names of backends.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result, bail};

/// A backend, or the choice of one.
///
/// ```
/// use distcollective::comm::BackendKind;
///
/// assert_eq!("host".parse::<BackendKind>()?, BackendKind::Host);
/// assert_eq!(BackendKind::Nccl.name(), "nccl");
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum BackendKind {
    /// NCCL if there is a GPU for each rank, otherwise the host. An error where a rank sees a GPU,
    /// and something that NCCL needs is missing or does not work. Only a choice: no communicator is
    /// of this kind.
    #[default]
    Auto,
    /// The processor and the memory of one machine.
    Host,
    /// GPUs, by NVIDIA's NCCL.
    Nccl,
    /// The processors of several machines: the host backend on each, and UCX between them.
    Ucx,
    /// The processors of several machines: the host backend on each, and MPI between them.
    Mpi,
}

impl BackendKind {
    /// Its name in text: `auto`, `host`, `nccl`, `ucx`, `mpi`.
    pub const fn name(self) -> &'static str {
        match self {
            BackendKind::Auto => "auto",
            BackendKind::Host => "host",
            BackendKind::Nccl => "nccl",
            BackendKind::Ucx => "ucx",
            BackendKind::Mpi => "mpi",
        }
    }
}

impl fmt::Display for BackendKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for BackendKind {
    type Err = Error;

    /// Reads a name in any case.
    fn from_str(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "auto" => BackendKind::Auto,
            "host" => BackendKind::Host,
            "nccl" => BackendKind::Nccl,
            "ucx" => BackendKind::Ucx,
            "mpi" => BackendKind::Mpi,
            _ => bail!(
                InvalidArgument,
                "{name:?} is not a backend; they are \"nccl\", \"host\", \"ucx\", \"mpi\" and \"auto\""
            ),
        })
    }
}
