//! How far the bits of a reduction are determined.

use distcollective_elements::numbered;
use serde::{Deserialize, Serialize};

/// How far the bits of a reduction are determined: of a communicator
/// ([`Communicator::with_determinism`](crate::Communicator::with_determinism)) or of a layer
/// ([`DistCollectiveLayer::set_determinism`](crate::DistCollectiveLayer::set_determinism)). If one
/// of the two says `Exact`, the reduction is exact. Movement changes no byte in either mode, unless
/// the call has a transport type.
///
/// All ranks of a call have the same mode.
///
/// On the host both modes are the same. On GPUs `Exact` costs time and memory:
///
/// | bytes that a rank receives | `Backend` (NCCL on a ring) | `Exact`, up to 512 KiB | `Exact`, above |
/// |---|---|---|---|
/// | all_reduce of `b` bytes | `2 (n - 1) b / n` | `(n - 1) b` | `2 (n - 1) b / n` |
/// | reduce of `b` bytes, at the root | `b` | `(n - 1) b` | `2 (n - 1) b / n` |
/// | reduce_scatter to `b` bytes | `(n - 1) b` | `(n - 1) b` | `(n - 1) b` |
///
/// The 512 KiB are `n b`, what all ranks contribute. The guide "On GPUs" has the calls, the kernels
/// and the memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum Determinism {
    /// The backend reduces in the way that it finds fastest. On GPUs that is NCCL's own reduction:
    /// the bits of a sum of floats depend on the algorithm, and so on the length, the number of
    /// channels, registration and NCCL's version.
    #[default]
    Backend = 0,
    /// Every backend gives the host's bits: the elements of the ranks are reduced in rank order. On
    /// GPUs NCCL moves the elements, and this library's kernels reduce them.
    Exact = 1,
}

numbered!(Determinism, "a determinism": Backend "backend", Exact "exact");
