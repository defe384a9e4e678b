//! Making communicators: of threads, by the builder, on the `ncclComm_t` of the caller.

use std::ffi::c_void;
use std::time::Duration;

use super::{BackendKind, Communicator, CommunicatorBuilder, nccl};
use crate::error::Result;
use crate::util::deadline_after;

impl Communicator {
    /// The ranks of a new communicator whose ranks are threads of this process. Element `r` is rank
    /// `r`, to be moved to its thread.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let ranks = Communicator::in_process(3)?;
    /// assert_eq!(ranks[2].rank().0, 2);
    /// // On a thread for each rank.
    /// let sums = Communicator::spawn_on(ranks, |communicator| {
    ///     let mut x = [communicator.rank().0 as f32, 1.0];
    ///     communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
    ///     Ok(x)
    /// })?;
    /// assert_eq!(sums, [[3.0, 3.0]; 3]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A communicator of no rank, or of more than 1024.
    pub fn in_process(world_size: u32) -> Result<Vec<Self>> {
        Self::builder().in_process(world_size)
    }

    /// Makes a communicator with what is given: on a backend, between processes, by an NCCL id; see
    /// [`CommunicatorBuilder`].
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// Whether so many ranks of this process can be on a backend; see
    /// [`CommunicatorBuilder::in_process`].
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub fn check_backend(backend: BackendKind, world_size: u32) -> Result<()> {
        match backend {
            BackendKind::Host | BackendKind::Auto => Ok(()),
            BackendKind::Nccl => nccl::check_gpus(world_size).map(|_| ()),
        }
    }

    /// A communicator on the caller's `ncclComm_t`, which it borrows, as TensorRT's
    /// `setCommunicator` does. This library never aborts or destroys it; what is split from it is
    /// the library's own. Collective: ranks exchange what their NCCL and GPU can do.
    ///
    /// # Safety
    ///
    /// It is a communicator of the NCCL that `libnccl.so.2` is in this process. It is not destroyed
    /// before all clones of this and everything made with them are dropped, and no other code uses
    /// it during a call.
    ///
    /// # Errors
    ///
    /// A null pointer; no NCCL from 2.19 on, no CUDA; ranks that do not come before the deadline;
    /// what NCCL says.
    pub unsafe fn from_raw_nccl(communicator: *mut c_void, timeout: Duration) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { nccl::borrow(communicator, deadline_after(timeout))? };
        Ok(Self::new(backend, timeout))
    }
}
