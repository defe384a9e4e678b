//! How a dictionary is broadcast.

use std::fmt;
use std::sync::Arc;

use crate::error::Error;
use crate::memory::MemorySpace;
use crate::rank::Rank;

/// How a dictionary is broadcast.
#[derive(Clone)]
pub struct BroadcastOptions {
    pub(super) src: Rank,
    pub(super) device: Option<MemorySpace>,
    pub(super) pin_memory: bool,
    pub(super) shared: bool,
    pub(super) progress: Option<Arc<dyn Fn(BroadcastProgress) + Send + Sync>>,
    pub(super) refusal: Option<Error>,
}

/// How far a broadcast has come on this rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BroadcastProgress {
    /// The bytes of elements that have been sent or received.
    pub byte_count: u64,
    /// The bytes of all elements.
    pub total_bytes: u64,
}

impl Default for BroadcastOptions {
    fn default() -> Self {
        BroadcastOptions { src: Rank(0), device: None, pin_memory: false, shared: false, progress: None, refusal: None }
    }
}

impl BroadcastOptions {
    /// Rank 0 of the group gives its dictionary; what arrives lies in the memory of the
    /// communicator.
    pub fn new() -> Self {
        Self::default()
    }

    /// The rank, of the group, that gives its dictionary. Every rank gives the same.
    pub fn src(mut self, src: impl Into<Rank>) -> Self {
        self.src = src.into();
        self
    }

    /// The memory in which a receiver's tensors lie at the end. One that lies elsewhere is
    /// replaced. Without this, a tensor that the receiver has is filled where it lies, and a new
    /// one is in the memory of the communicator ([`space`](crate::Communicator::space)). The
    /// source's tensors may be in any memory.
    pub fn device(mut self, device: MemorySpace) -> Self {
        self.device = Some(device);
        self
    }

    /// Puts new tensors of a receiver into pinned host memory, which GPUs copy from without the
    /// processor. It needs CUDA.
    pub fn pin_memory(mut self, pin_memory: bool) -> Self {
        self.pin_memory = pin_memory;
        self
    }

    /// Gives receivers one copy in memory that all of them share, instead of one each. For ranks of
    /// one machine on the host backend; every rank gives the same.
    ///
    /// Each tensor of a receiver that has the name of one that arrives is replaced by a read-only
    /// view ([`Tensor::as_bytes`](super::Tensor::as_bytes), [`view`](super::Tensor::view)). The
    /// source keeps its own tensors. A view owns a part of the copy: it stays valid when other
    /// views, the dictionary or the communicator are dropped, and when ranks fail or end. The copy
    /// is freed when all processes have dropped all of their views. A repeated broadcast makes a
    /// new copy; the old one stays until its views are dropped.
    pub fn shared(mut self, shared: bool) -> Self {
        self.shared = shared;
        self
    }

    /// Calls a function on this rank after each piece of the elements; with
    /// [`shared`](Self::shared), on a receiver once at the end. It must not call the communicator.
    pub fn progress(mut self, progress: impl Fn(BroadcastProgress) + Send + Sync + 'static) -> Self {
        self.progress = Some(Arc::new(progress));
        self
    }

    /// Makes the broadcast fail with an error that the caller has found on this rank, such as a
    /// mistake in a configuration. Every rank gets the error at once, no dictionary changes, and
    /// the communicator works afterwards. A rank that does not make the call instead leaves the
    /// others waiting until their deadline.
    ///
    /// ```
    /// use distcollective::tensor_dict::BroadcastOptions;
    /// use distcollective::{Communicator, Error, ErrorKind, TensorDict};
    ///
    /// let told = Communicator::spawn(2, |communicator| {
    ///     let mut options = BroadcastOptions::new();
    ///     if communicator.rank().0 == 1 {
    ///         options = options.refuse(Error::new(ErrorKind::InvalidArgument, "no such model"));
    ///     }
    ///     let result = communicator.broadcast_tensor_dict(&mut TensorDict::new(), &options);
    ///     Ok(result.expect_err("rank 1 refuses").to_string())
    /// })?;
    /// assert_eq!(told[1], "rank 1: broadcast_tensor_dict: no such model");
    /// assert!(told[0].ends_with("because rank 1 refuses: no such model"));
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn refuse(mut self, error: Error) -> Self {
        self.refusal = Some(error);
        self
    }
}

impl fmt::Debug for BroadcastOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastOptions")
            .field("src", &self.src)
            .field("device", &self.device)
            .field("pin_memory", &self.pin_memory)
            .field("shared", &self.shared)
            .field("refusal", &self.refusal)
            .finish_non_exhaustive()
    }
}
