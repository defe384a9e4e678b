//! What a new communicator is to be: of threads, of processes, on GPUs. `create` makes it.

use std::time::Duration;

use super::{BackendKind, Communicator, NcclId};
use crate::collective::Determinism;
use crate::rank::Rank;

/// Makes communicators in one of four ways:
///
/// | ranks | what is set | the last call |
/// |---|---|---|
/// | threads of this process | [`backend`](Self::backend) | [`spawn`](Self::spawn), [`in_process`](Self::in_process) |
/// | processes of one machine and one user | [`job`](Self::job), `world_size`, `rank` | [`connect`](Self::connect) |
/// | processes that exchange bytes | `world_size`, `rank` | [`connect_by`](Self::connect_by) |
/// | threads or processes with a GPU each | [`nccl`](Self::nccl), `world_size`, `rank`, `device` | [`connect`](Self::connect) |
///
/// ```
/// use std::time::Duration;
///
/// use distcollective::comm::{BackendKind, timeout_or};
/// use distcollective::{Communicator, Determinism};
///
/// // NCCL if there are two GPUs, else the host. An error if there are GPUs, but no NCCL.
/// let backend = BackendKind::Auto.resolve(2)?;
/// let builder = Communicator::builder().backend(backend).determinism(Determinism::Exact);
/// let builder = builder.timeout(timeout_or(Duration::from_secs(60))?);
/// let backends = builder.spawn(2, |communicator| Ok(communicator.backend()))?;
/// assert_eq!(backends, [backend; 2]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// Processes find each other by the job's name:
///
/// ```no_run
/// use distcollective::{Communicator, ReduceOperation};
///
/// let rank: u32 = std::env::var("RANK").unwrap().parse().unwrap();
/// let communicator = Communicator::builder().job("serve-1").world_size(4).rank(rank).connect()?;
/// communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// [`Environment`](crate::Environment) does the same with what the launcher says.
#[derive(Clone, Debug, Default)]
#[must_use = "there is no communicator until `connect`, `spawn` or `in_process` is called"]
pub struct CommunicatorBuilder {
    pub(crate) backend: Option<BackendKind>,
    pub(super) job: Option<String>,
    pub(super) id: Option<NcclId>,
    pub(super) world_size: Option<u32>,
    pub(super) rank: Option<Rank>,
    pub(crate) device: Option<u32>,
    pub(super) control: Option<Communicator>,
    pub(super) timeout: Option<Duration>,
    pub(crate) determinism: Determinism,
}

impl CommunicatorBuilder {
    /// Sets the backend. Unless set, it is NCCL if there is an [NCCL id](Self::nccl), else the
    /// host.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.backend = Some(backend);
        self
    }

    /// Sets the name of the job, by which processes of one machine and one user find each other.
    /// They give the same name, and no other job of the user has it at the same time. Nothing is
    /// left in the file system, and nothing survives a crash. If a process dies, the ranks that
    /// wait for it return an error at once.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.job = Some(name.into());
        self
    }

    /// Sets the NCCL id, by which ranks on GPUs find each other. One rank makes it and sends it to
    /// the others. The ranks may be threads, or processes of several machines.
    ///
    /// ```no_run
    /// use distcollective::comm::NcclId;
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let id = NcclId::new()?; // on one rank, which sends `id.as_bytes()` to the others
    /// let id = NcclId::from_bytes(id.as_bytes())?; // on each of these
    /// let builder = Communicator::builder().nccl(&id).world_size(8);
    /// let communicator = builder.rank(0).device(0).connect()?;
    /// communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn nccl(mut self, id: &NcclId) -> Self {
        self.id = Some(*id);
        self
    }

    /// Sets the number of ranks in all processes together; 1 unless set.
    pub fn world_size(mut self, world_size: u32) -> Self {
        self.world_size = Some(world_size);
        self
    }

    /// Sets this process's rank, or the first of them; 0 unless set.
    pub fn rank(mut self, rank: impl Into<Rank>) -> Self {
        self.rank = Some(rank.into());
        self
    }

    /// Sets the number of this rank's GPU among those that the process sees; 0 unless set.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.device = Some(ordinal);
        self
    }

    /// Sets how long to wait for the others, now and in each call; see
    /// [`Communicator::with_timeout`]. Unless set, what `DCL_TIMEOUT` says, or 600 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Sets how far the bits of reductions are determined, [`Determinism::Backend`] unless set; see
    /// [`Communicator::with_determinism`]. Every rank sets the same.
    pub fn determinism(mut self, determinism: Determinism) -> Self {
        self.determinism = determinism;
        self
    }

    /// Sets the control communicator: the same ranks on the host. From it a rank on a GPU learns at
    /// once that a peer failed.
    pub(crate) fn control(mut self, control: Option<Communicator>) -> Self {
        self.control = control;
        self
    }
}
