//! Making communicators: of threads, of processes, on GPUs.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use super::{BackendKind, Communicator, CommunicatorBuilder, DEFAULT_TIMEOUT, NcclId, builder, host, nccl};
use crate::error::{Result, bail};
use crate::rank::Rank;
use crate::util::deadline_after;
use crate::util::settings::timeout_or;

impl Communicator {
    /// The ranks of a new communicator whose ranks are threads of this process. Element `r` is rank
    /// `r`, to be moved to its thread.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let threads: Vec<_> = Communicator::in_process(3)?
    ///     .into_iter()
    ///     .map(|communicator| {
    ///         std::thread::spawn(move || {
    ///             let mut x = [communicator.rank().0 as f32, 1.0];
    ///             communicator.all_reduce(&mut x, ReduceOperation::Sum).map(|()| x)
    ///         })
    ///     })
    ///     .collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap()?, [3.0, 3.0]);
    /// }
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A communicator of no rank, or of more than 1024.
    pub fn in_process(world_size: u32) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        if world_size > builder::MAX_RANKS {
            bail!(InvalidArgument, "{world_size} ranks; a communicator on the host has at most {}", builder::MAX_RANKS);
        }
        let timeout = timeout_or(DEFAULT_TIMEOUT)?;
        let backends = host::in_process(world_size)?;
        Ok(backends.into_iter().map(|backend| Self::new(Arc::new(backend), timeout)).collect())
    }

    /// A communicator between processes of this machine; see [`CommunicatorBuilder`].
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// The ranks of a new communicator that are threads of this process, on this backend.
    ///
    /// # Errors
    ///
    /// As [`in_process`](Self::in_process) and [`nccl_in_process`](Self::nccl_in_process).
    pub fn in_process_on(backend: BackendKind, world_size: u32, timeout: Duration) -> Result<Vec<Self>> {
        let on_host = || {
            let communicators = Self::in_process(world_size)?;
            Ok(communicators.into_iter().map(|communicator| communicator.with_timeout(timeout)).collect())
        };
        match backend {
            BackendKind::Host => on_host(),
            BackendKind::Nccl => Self::nccl_in_process(world_size, timeout),
            BackendKind::Auto if nccl::check_all(world_size).is_ok() => Self::nccl_in_process(world_size, timeout),
            BackendKind::Auto => on_host(),
        }
    }

    /// Whether so many ranks of this process can be on a backend; see
    /// [`in_process_on`](Self::in_process_on).
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

    /// The ranks of a new communicator on GPUs whose ranks are threads of this process: rank `r`
    /// has GPU `r`. From NCCL 2.30 on, with `NCCL_MULTI_RANK_GPU_ENABLE=1`, ranks may share a GPU,
    /// and there may be more ranks than GPUs.
    ///
    /// # Errors
    ///
    /// As [`nccl`](Self::nccl); not enough GPUs.
    pub fn nccl_in_process(world_size: u32, timeout: Duration) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        let backends = nccl::in_process(world_size, deadline_after(timeout))?;
        Ok(backends.into_iter().map(|backend| Self::new(backend, timeout)).collect())
    }

    /// A communicator on GPUs, of the ranks that have the same id. `ordinal` is this rank's GPU
    /// among those that its process sees. Ranks may be threads, or processes of several machines.
    /// Collective.
    ///
    /// [`Environment`](crate::Environment) does the same with what the launcher says.
    ///
    /// ```no_run
    /// use distcollective::{Communicator, DEFAULT_TIMEOUT, NcclId, Rank, ReduceOperation};
    ///
    /// let id = NcclId::new()?; // to be sent to the other ranks
    /// let communicator = Communicator::nccl(&id, Rank(0), 8, 0, DEFAULT_TIMEOUT)?;
    /// communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No NCCL from 2.19 on, no CUDA, no such GPU; ranks that do not come before the deadline; what
    /// NCCL says.
    pub fn nccl(id: &NcclId, rank: Rank, world_size: u32, ordinal: u32, timeout: Duration) -> Result<Self> {
        Self::nccl_beside(id, rank, world_size, ordinal, None, timeout)
    }

    /// [`nccl`](Self::nccl) with a control communicator: the same ranks on the host, which learn
    /// from it at once that a peer failed.
    pub(crate) fn nccl_beside(
        id: &NcclId,
        rank: Rank,
        world_size: u32,
        ordinal: u32,
        control: Option<Communicator>,
        timeout: Duration,
    ) -> Result<Self> {
        let control = control.map(|control| control.backend);
        let backend = nccl::meet(id, rank, world_size, ordinal, control, deadline_after(timeout));
        Ok(Self::new(backend.map_err(|e| e.on_rank(rank))?, timeout))
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
    /// As [`nccl`](Self::nccl); a null pointer.
    pub unsafe fn from_raw_nccl(communicator: *mut c_void, timeout: Duration) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { nccl::borrow(communicator, deadline_after(timeout))? };
        Ok(Self::new(backend, timeout))
    }
}
