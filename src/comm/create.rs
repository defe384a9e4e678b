//! Making communicators: of threads, by the builder, on the `ncclComm_t` of the caller. Only this
//! file knows which backends there are.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::calls::exchange;
use super::cluster::{self, ClusterBackend, UcxLink};
use super::host::{self, MAX_RANKS};
use super::{Backend, BackendKind, Communicator, CommunicatorBuilder, DEFAULT_TIMEOUT, NcclId, nccl, timeout_or};
use crate::cuda::{Device, visible_count};
use crate::error::{Result, bail};
use crate::handshake::{Channel, Participant, random_text};
use crate::mpi::{Launched, Meeting, MpiCommunicator};
use crate::rank::Rank;
use crate::util::log::{event, warn_of_mistyped_settings};
use crate::util::{deadline_after, interrupt, machine};

impl Communicator {
    /// Makes a communicator with what is given: on a backend, between processes, by an NCCL id; see
    /// [`CommunicatorBuilder`].
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
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
    /// - `InvalidArgument`: the pointer is null.
    /// - `Unsupported`: no NCCL from 2.19 on, no CUDA.
    /// - `DeadlineExceeded`: a rank does not come in time.
    /// - `System`: NCCL or the GPU failed.
    pub unsafe fn from_raw_nccl(communicator: *mut c_void, timeout: Duration) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { nccl::borrow(communicator, deadline_after(timeout))? };
        Ok(Self::new(backend, timeout))
    }

    /// A communicator of the ranks of `MPI_COMM_WORLD`, on any number of machines: on each the host
    /// backend, and MPI between them. Unless the program has initialized MPI, this library does,
    /// and finalizes it when the process ends. Collective between all ranks that the launcher has
    /// started.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: there is no MPI; the program has initialized it with a level below
    ///   `MPI_THREAD_MULTIPLE`; it is not the launcher's MPI.
    /// - `NotReady`: MPI has been finalized.
    /// - `DeadlineExceeded`: a rank does not come in time.
    /// - `Interrupted`: the [interrupt hook](crate::interrupt) ended a wait.
    /// - `System`: MPI failed; the system refused a socket or memory.
    pub fn mpi_world(timeout: Duration) -> Result<Self> {
        interrupt::check_may_wait()?;
        let deadline = deadline_after(timeout);
        let world = MpiCommunicator::world(Launched::by_variables(), deadline)?;
        Self::over_mpi(world, timeout, deadline)
    }

    /// A communicator of the ranks of the caller's `MPI_Comm`, as [`mpi_world`](Self::mpi_world) of
    /// all. The handle is given as a number: the pointer of Open MPI, the `int` of MPICH and Intel
    /// MPI. It is duplicated and then not used. What is made here lives until MPI is finalized,
    /// from when on calls return an error. Collective between the ranks of the `MPI_Comm`.
    ///
    /// # Safety
    ///
    /// It is a communicator of the MPI that this process has loaded. If several are loaded, the
    /// first of `libmpi.so.40`, `libmpich.so.12`, `libmpi.so.12` and `libmpi_abi.so` counts.
    ///
    /// # Errors
    ///
    /// Those of [`mpi_world`](Self::mpi_world). `InvalidArgument`: it is null, or an
    /// intercommunicator. `NotReady`: MPI is not initialized.
    pub unsafe fn from_raw_mpi(communicator: usize, timeout: Duration) -> Result<Self> {
        interrupt::check_may_wait()?;
        let deadline = deadline_after(timeout);
        // SAFETY: the caller's promise.
        let duplicate = unsafe { MpiCommunicator::of_raw(communicator, deadline)? };
        Self::over_mpi(duplicate, timeout, deadline)
    }

    fn over_mpi(communicator: MpiCommunicator, timeout: Duration, deadline: Instant) -> Result<Self> {
        let (rank, mut meeting) = (Rank(communicator.rank), Meeting::new(communicator));
        let told = (machine::own_name(), random_text::<16>()?);
        let told: Vec<(String, String)> = exchange(&told, |rank| rank, |bytes| meeting.exchange(bytes, deadline))?;
        let machines = machine::numbers(told.iter().map(|(machine, _)| machine.as_str()));
        let engine = LinkEngine::Mpi(meeting.into_communicator());
        let connected = connect_machines(engine, &format!("mpi {}", told[0].1), rank, machines, deadline);
        connected.map(|communicator| communicator.with_timeout(timeout)).map_err(|e| e.on_rank(rank))
    }
}

impl BackendKind {
    /// The backend that [`CommunicatorBuilder::in_process`] takes for so many ranks; never
    /// [`Auto`](Self::Auto).
    ///
    /// # Errors
    ///
    /// `Unsupported`: it is [`Nccl`](Self::Nccl), and there is no NCCL from 2.19 on, no CUDA, or a
    /// GPU too few; it is [`Auto`](Self::Auto), and there are GPUs, but no NCCL. What CUDA says, if
    /// it does not work.
    pub fn resolve(self, world_size: u32) -> Result<Self> {
        match self {
            BackendKind::Host => Ok(BackendKind::Host),
            BackendKind::Nccl => nccl::check_gpus(world_size).map(|_| BackendKind::Nccl),
            BackendKind::Ucx | BackendKind::Mpi => {
                bail!(Unsupported, "the backend \"{self}\" is for processes, which meet in an environment")
            }
            BackendKind::Auto => Self::best_for(world_size)
                .map_err(|error| error.followed_by("; the backend \"host\" does the same without GPUs")),
        }
    }

    fn best_for(world_size: u32) -> Result<Self> {
        if visible_count()? == 0 {
            return Ok(BackendKind::Host);
        }
        nccl::library()?;
        Ok(match nccl::check_gpus(world_size) {
            Ok(_) => BackendKind::Nccl,
            Err(error) => {
                event!(WARN, "the host backend is used: {error}");
                BackendKind::Host
            }
        })
    }
}

impl CommunicatorBuilder {
    /// Makes a communicator whose ranks are threads of this process. Element `r` is rank `r`, to be
    /// moved to its thread; [`spawn`](Self::spawn) starts the threads too. On NCCL, rank `r` has
    /// GPU `r`. From NCCL 2.30 on, with `NCCL_MULTI_RANK_GPU_ENABLE=1`, ranks may share a GPU, and
    /// there may be more ranks than GPUs.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: no rank, or more than 1024 on the host; a value is set that is for
    ///   [`connect`](Self::connect); `DCL_TIMEOUT` has a value that it cannot have.
    /// - `Unsupported`: those of [`BackendKind::resolve`].
    /// - `System`: there is no memory, or NCCL or the GPU failed.
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
        let backends: Vec<Arc<dyn Backend>> = match self.backend.unwrap_or(BackendKind::Host).resolve(world_size)? {
            BackendKind::Nccl => nccl::in_process(world_size, || host_ranks(world_size), deadline_after(timeout))?,
            _ if world_size > MAX_RANKS => {
                bail!(InvalidArgument, "{world_size} ranks; a communicator on the host has at most {MAX_RANKS}")
            }
            _ => host_ranks(world_size)?,
        };
        Ok(backends.into_iter().map(|backend| self.communicator(backend, timeout)).collect())
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
    ///   - There are other processes, and this process's user is the overflow user (65534) of a
    ///     user namespace that does not map all users.
    /// - With an NCCL id: no NCCL from 2.19 on, no CUDA, no such GPU; what NCCL says.
    pub fn connect(self) -> Result<Communicator> {
        if let Some(id) = self.id {
            return self.connect_nccl(&id);
        }
        Ok(self.connect_ranks(1)?.remove(0))
    }

    /// [`connect`](Self::connect) for a process that has several ranks of a job, from
    /// [`rank`](Self::rank) on. Gives them in order, each to be moved to its thread. Collective
    /// between processes.
    ///
    /// ```
    /// use distcollective::Communicator;
    ///
    /// // A job of one process that has both ranks.
    /// let job = format!("serve-{}", std::process::id());
    /// let ranks = Communicator::builder().job(job).world_size(2).rank(0).connect_ranks(2)?;
    /// assert_eq!(ranks[1].rank().0, 1);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Those of [`connect`](Self::connect). `InvalidArgument`: an NCCL id is set, with which each
    /// rank connects by itself.
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
        let (world_size, timeout) = (self.own_world_size()?, self.own_timeout()?);
        let first = Participant::new(job, self.own_rank().0, world_size, deadline_after(timeout));
        let backends = host::between_processes(&Participant { rank_count: count, ..first })?;
        Ok(backends.into_iter().map(|backend| self.communicator(Arc::new(backend), timeout)).collect())
    }

    /// The rank, the number of ranks and the timeout of [`connect_by`](Self::connect_by).
    pub(crate) fn place_to_connect_by(&self) -> Result<(Rank, u32, Duration)> {
        interrupt::check_may_wait()?;
        if !matches!(self.backend, Some(BackendKind::Nccl | BackendKind::Auto)) {
            self.check_backend()?;
        }
        if self.job.is_some() || self.id.is_some() {
            bail!(InvalidArgument, "connect_by finds the ranks by what they exchange; job and nccl are for connect");
        }
        let (rank, world_size) = (self.own_rank(), self.own_world_size()?);
        match rank.0 < world_size {
            true => Ok((rank, world_size, self.own_timeout()?)),
            false => bail!(InvalidArgument, "rank is {rank}; it is less than world_size, {world_size}"),
        }
    }

    fn connect_nccl(self, id: &NcclId) -> Result<Communicator> {
        interrupt::check_may_wait()?;
        self.check_backend()?;
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
            (None, kind @ (BackendKind::Ucx | BackendKind::Mpi)) => {
                bail!(InvalidArgument, "the backend \"{kind}\" connects in an environment")
            }
            (None, _) if self.device.is_some() => bail!(InvalidArgument, "a device is for ranks with an NCCL id"),
            _ => Ok(()),
        }
    }

    fn own_rank(&self) -> Rank {
        self.rank.unwrap_or(Rank(0))
    }

    fn own_world_size(&self) -> Result<u32> {
        match self.world_size.unwrap_or(1) {
            world_size @ 1..=MAX_RANKS => Ok(world_size),
            world_size => {
                bail!(InvalidArgument, "world_size is {world_size}; between processes it is 1 to {MAX_RANKS}")
            }
        }
    }

    fn own_timeout(&self) -> Result<Duration> {
        warn_of_mistyped_settings();
        self.timeout.map_or_else(|| timeout_or(DEFAULT_TIMEOUT), Ok)
    }
}

impl NcclId {
    /// A new id.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: there is no NCCL from 2.19 on.
    /// - `System`: NCCL finds no network interface.
    pub fn new() -> Result<Self> {
        nccl::library()?.unique_id()
    }
}

/// The ranks of a host communicator, all of them threads of this process.
fn host_ranks(world_size: u32) -> Result<Vec<Arc<dyn Backend>>> {
    Ok(host::in_process(world_size, None)?.into_iter().map(|rank| Arc::new(rank) as Arc<dyn Backend>).collect())
}

/// What a rank of several machines has before it is connected: its connections, and the address at
/// which other ranks reach it.
pub(crate) fn ucx_link(rank: Rank, world_size: u32) -> Result<(UcxLink, Vec<u8>)> {
    UcxLink::new(rank, world_size)
}

/// The version of UCX as it is loaded.
pub(crate) fn ucx_version() -> Result<(i32, i32)> {
    cluster::ucx_version()
}

/// What moves bytes between machines.
pub(crate) enum LinkEngine {
    Ucx {
        link: UcxLink,
        /// Those of all ranks.
        addresses: Vec<Vec<u8>>,
    },
    /// Its ranks are those of the job.
    Mpi(MpiCommunicator),
    /// The connections over which the ranks have met, for a control communicator.
    Rendezvous(Vec<Channel>),
}

/// Whether so many ranks can be connected between machines.
pub(crate) fn can_connect_machines(world_size: u32) -> bool {
    world_size <= MAX_RANKS
}

/// The communicator of ranks on several machines. `machines` has the number of each rank's machine.
/// Collective.
pub(crate) fn connect_machines(
    engine: LinkEngine,
    job: &str,
    rank: Rank,
    machines: Box<[u32]>,
    deadline: Instant,
) -> Result<Communicator> {
    let on_machine = |other: &u32| machines[*other as usize] == machines[rank.index()];
    let local: Vec<u32> = (0..machines.len() as u32).filter(on_machine).collect();
    let names: Vec<Rank> = local.iter().copied().map(Rank).collect();
    // Ranks that are told that they are on several machines may share one.
    let local_job = format!("{job} machine {}", machines[rank.index()]);
    let local_rank = local.partition_point(|other| *other < rank.0) as u32;
    let participant = Participant::new(&local_job, local_rank, local.len() as u32, deadline);
    let host =
        host::between_processes(&Participant { names: Some(&names), ..participant }).map(|mut ranks| ranks.remove(0));
    let backend = match engine {
        LinkEngine::Rendezvous(channels) => ClusterBackend::over_rendezvous(channels, rank, machines, host)?,
        LinkEngine::Ucx { link, addresses } => ClusterBackend::over_ucx(link, &addresses, rank, machines, host?)?,
        LinkEngine::Mpi(communicator) => {
            let mut meeting = Meeting::new(communicator);
            let told = host.as_ref().map(drop).map_err(ToString::to_string);
            let told = exchange(&told, |rank| rank, |bytes| meeting.exchange(bytes, deadline));
            let (host, told) = (host?, told?);
            if let Some((error, other)) =
                told.iter().zip(0..).find_map(|(told, other)| Some((told.as_ref().err()?, other)))
            {
                bail!(Aborted, "rank {other} could not connect: {error}");
            }
            ClusterBackend::over_mpi(meeting.into_communicator(), rank, machines, host)?
        }
    };
    Ok(Communicator::new(Arc::new(backend), deadline.saturating_duration_since(Instant::now())))
}

/// Whether NCCL can be used, and lets several ranks share one GPU.
pub(crate) fn can_share_gpus() -> Result<bool> {
    nccl::can_share_gpus()
}

/// NCCL as it is loaded.
pub(crate) fn nccl_library() -> Result<&'static nccl::NcclLibrary> {
    nccl::library()
}

/// Whether layers of several ranks run on a GPU.
pub(crate) fn runs_layers(device: &Device) -> bool {
    nccl::runs_layers(device)
}

/// Whether NCCL reduces float8 on a GPU.
pub(crate) fn reduces_float8(device: &Device) -> bool {
    nccl::reduces_float8(device)
}

/// About how many ranks on the host backend can be processes of their own, by the number of files
/// that a process may have open.
///
/// # Errors
///
/// The system lacks what processes need to share memory and to meet; containers may forbid it.
pub fn most_processes() -> Result<u32> {
    host::most_processes()
}
