//! The builder of communicators: of threads, of processes, on GPUs.

use std::sync::Arc;
use std::time::Duration;

use super::host::{self, MAX_RANKS};
use super::{Backend, BackendKind, Communicator, DEFAULT_TIMEOUT, NcclId, nccl, timeout_or};
use crate::collective::Determinism;
use crate::error::{Result, bail};
use crate::handshake::Participant;
use crate::rank::Rank;
use crate::util::{deadline_after, interrupt};

/// Makes communicators in one of three ways:
///
/// | ranks | what is set | the last call |
/// |---|---|---|
/// | threads of this process | [`backend`](Self::backend) | [`in_process`](Self::in_process) |
/// | processes of one machine and one user | [`job`](Self::job), `world_size`, `rank` | [`connect`](Self::connect) |
/// | threads or processes with a GPU each | [`nccl`](Self::nccl), `world_size`, `rank`, `device` | [`connect`](Self::connect) |
///
/// ```
/// use std::time::Duration;
///
/// use distcollective::comm::BackendKind;
/// use distcollective::Communicator;
///
/// // NCCL if there are two GPUs, else the host.
/// let builder = Communicator::builder();
/// let builder = builder.backend(BackendKind::Auto).timeout(Duration::from_secs(60));
/// assert_eq!(builder.in_process(2)?.len(), 2);
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
#[must_use = "there is no communicator until `connect` or `in_process` is called"]
pub struct CommunicatorBuilder {
    backend: Option<BackendKind>,
    job: Option<String>,
    id: Option<NcclId>,
    world_size: Option<u32>,
    rank: Option<Rank>,
    device: Option<u32>,
    control: Option<Communicator>,
    timeout: Option<Duration>,
    determinism: Determinism,
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
    /// let id = NcclId::new()?; // to be sent to the other ranks
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

    /// Makes a communicator whose ranks are threads of this process. Element `r` is rank `r`, to be
    /// moved to its thread. On NCCL, rank `r` has GPU `r`. From NCCL 2.30 on, with
    /// `NCCL_MULTI_RANK_GPU_ENABLE=1`, ranks may share a GPU, and there may be more ranks than
    /// GPUs.
    ///
    /// # Errors
    ///
    /// - A communicator of no rank, or of more than 1024 on the host.
    /// - A value is set that is for [`connect`](Self::connect).
    /// - On NCCL: no NCCL from 2.19 on, no CUDA, not enough GPUs; what NCCL says.
    pub fn in_process(self, world_size: u32) -> Result<Vec<Communicator>> {
        interrupt::check_may_wait()?;
        let for_connect = [
            ("job", self.job.is_some()),
            ("nccl", self.id.is_some()),
            ("world_size", self.world_size.is_some()),
            ("rank", self.rank.is_some()),
            ("device", self.device.is_some()),
        ];
        if let Some((name, _)) = for_connect.into_iter().find(|(_, is_set)| *is_set) {
            bail!(InvalidArgument, "in_process makes all ranks of a communicator; {name} is for connect");
        }
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        let timeout = self.own_timeout()?;
        let is_nccl = match self.backend.unwrap_or(BackendKind::Host) {
            BackendKind::Host => false,
            BackendKind::Nccl => true,
            BackendKind::Auto => nccl::check_all(world_size).is_ok(),
        };
        if is_nccl {
            let backends = nccl::in_process(world_size, deadline_after(timeout))?;
            return Ok(backends.into_iter().map(|backend| self.communicator(backend, timeout)).collect());
        }
        if world_size > MAX_RANKS {
            bail!(InvalidArgument, "{world_size} ranks; a communicator on the host has at most {MAX_RANKS}");
        }
        let backends = host::in_process(world_size)?;
        Ok(backends.into_iter().map(|backend| self.communicator(Arc::new(backend), timeout)).collect())
    }

    /// Connects this rank to the others. Collective.
    ///
    /// # Errors
    ///
    /// - Values that do not fit each other; neither a job's name nor an NCCL id.
    /// - Ranks do not come before the deadline.
    /// - With a job's name:
    ///   - Another job of this user, or another user, has the same name.
    ///   - A process expects another number of ranks, or has a rank that is there already. Each
    ///     process that has come gets the error at once.
    ///   - There are no descriptors or no memory. Rank 0's process raises its soft limit of open
    ///     files if the number of ranks needs that.
    ///   - This process's user is the overflow user (65534), and there are other processes.
    /// - With an NCCL id: no NCCL from 2.19 on, no CUDA, no such GPU; what NCCL says.
    pub fn connect(self) -> Result<Communicator> {
        interrupt::check_may_wait()?;
        self.check_backend()?;
        match self.id {
            Some(id) => self.connect_nccl(&id),
            None => match self.connect_ranks(1)?.pop() {
                Some(communicator) => Ok(communicator),
                None => bail!(System, "the bootstrap gave no communicator"),
            },
        }
    }

    /// [`connect`](Self::connect) for a process that has several ranks of a job, from
    /// [`rank`](Self::rank) on. Gives them in order, each to be moved to its thread. Collective
    /// between processes.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect); an NCCL id, with which each rank connects by itself.
    pub fn connect_ranks(self, count: u32) -> Result<Vec<Communicator>> {
        interrupt::check_may_wait()?;
        self.check_backend()?;
        if self.id.is_some() {
            bail!(InvalidArgument, "with an NCCL id each rank connects by itself");
        }
        let job = match self.job.as_deref() {
            Some("") => bail!(InvalidArgument, "the job's name is empty; give every process of the job the same name"),
            Some(job) => job,
            None => bail!(
                InvalidArgument,
                "neither a job's name nor an NCCL id is set, and ranks find each other by one of them"
            ),
        };
        let world_size = self.world_size.unwrap_or(1);
        if world_size == 0 || world_size > MAX_RANKS {
            bail!(InvalidArgument, "world_size is {world_size}; between processes it is 1 to {MAX_RANKS}");
        }
        let timeout = self.own_timeout()?;
        let participant = Participant {
            job,
            secret: None,
            world_size,
            first_rank: self.own_rank().0,
            rank_count: count,
            deadline: deadline_after(timeout),
        };
        let backends = host::between_processes(&participant)?;
        Ok(backends.into_iter().map(|backend| self.communicator(Arc::new(backend), timeout)).collect())
    }

    fn connect_nccl(self, id: &NcclId) -> Result<Communicator> {
        let (rank, timeout) = (self.own_rank(), self.own_timeout()?);
        let (world_size, ordinal) = (self.world_size.unwrap_or(1), self.device.unwrap_or(0));
        let control = self.control.as_ref().map(|control| Arc::clone(&control.backend));
        let backend = nccl::connect(id, rank, world_size, ordinal, control, deadline_after(timeout));
        let communicator = self.communicator(backend.map_err(|e| e.on_rank(rank))?, timeout);
        communicator.agree_on_determinism().map_err(|e| e.on_rank(rank))?;
        Ok(communicator)
    }

    fn communicator(&self, backend: Arc<dyn Backend>, timeout: Duration) -> Communicator {
        Communicator::new(backend, timeout).with_determinism(self.determinism)
    }

    /// Checks that the values which choose the backend of [`connect`](Self::connect) agree.
    fn check_backend(&self) -> Result<()> {
        match (self.id, self.backend.unwrap_or(BackendKind::Auto)) {
            (Some(_), _) if self.job.is_some() => {
                bail!(InvalidArgument, "ranks find each other by an NCCL id or by a job's name, not by both")
            }
            (Some(_), BackendKind::Host) => bail!(InvalidArgument, "an NCCL id is not for the backend \"host\""),
            (None, BackendKind::Nccl) => bail!(InvalidArgument, "the backend \"nccl\" connects by an NCCL id"),
            (None, _) if self.device.is_some() => bail!(InvalidArgument, "a device is for ranks with an NCCL id"),
            _ => Ok(()),
        }
    }

    fn own_rank(&self) -> Rank {
        self.rank.unwrap_or(Rank(0))
    }

    fn own_timeout(&self) -> Result<Duration> {
        self.timeout.map_or_else(|| timeout_or(DEFAULT_TIMEOUT), Ok)
    }
}
