//! The distributed environment of this process: its rank, its communicator, its groups, its seeds.
//! It resembles ColossalAI's launch functions and torch.distributed's `init_process_group`.

mod agreement;
mod builder;
mod discovery;
mod endpoint;
mod generator;
mod groups;
mod launch_report;
mod only_one;
mod process;
mod rendezvous;

use std::fmt;
use std::time::Duration;

pub use builder::{DEFAULT_SEED, EnvironmentBuilder};
pub use discovery::Launcher;
use discovery::{CallerValues, Discovery, LAUNCH_SOCKET, System};
pub use generator::Generator;
use groups::NamedGroups;
use only_one::OnlyOne;

use crate::comm::{BackendKind, Communicator};
use crate::cuda;
use crate::error::Result;
use crate::memory::MemorySpace;
use crate::rank::Rank;
use crate::util::settings;

/// The variable of the secret, which proves that a rank is one of the job's.
const SECRET: &str = "DCL_SECRET";

/// How long NCCL's communicators may take to end with those of the other ranks.
const SETTLE_TIMEOUT: Duration = Duration::from_secs(10);

/// The distributed environment: this process's rank, the communicator of all ranks, named groups,
/// seeds.
///
/// There is one at a time in a process. [`finalize`](Self::finalize) waits for the other ranks and
/// ends it; dropping it frees everything at once. Then there can be another one.
///
/// ```no_run
/// use distcollective::{Environment, ReduceOperation};
///
/// // Under torchrun, mpirun, srun, `distcollective launch` or TensorRT's variables.
/// let environment = Environment::from_env()?;
/// let mut x = [environment.rank().0 as f32];
/// environment.communicator().all_reduce(&mut x, ReduceOperation::Sum)?;
/// environment.print_on_master(format_args!("the sum is {}", x[0]));
/// environment.finalize()?;
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Where values come from
///
/// A value comes from the caller ([`EnvironmentBuilder`]), else from the launcher's variables:
///
/// | launcher | rank, world size | local rank, local world size |
/// |---|---|---|
/// | `distcollective launch`, torchrun, ColossalAI | `RANK`, `WORLD_SIZE` | `LOCAL_RANK`, `LOCAL_WORLD_SIZE` |
/// | TensorRT's sample | `TRT_MY_RANK`, `TRT_WORLD_SIZE` | derived |
/// | Open MPI | `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE` | `OMPI_COMM_WORLD_LOCAL_RANK`, `OMPI_COMM_WORLD_LOCAL_SIZE` |
/// | MPICH, Intel MPI | `PMI_RANK`, `PMI_SIZE` | `MPI_LOCALRANKID`, `MPI_LOCALNRANKS` |
/// | SLURM | `SLURM_PROCID`, `SLURM_NTASKS` | `SLURM_LOCALID`, `SLURM_STEP_TASKS_PER_NODE` or `SLURM_NTASKS_PER_NODE` |
///
/// Rank and world size are required. The local ones are derived if they are absent: all ranks are
/// on one machine. A launcher is complete if both its rank and its world size are set. The first
/// complete one in this order counts, with two exceptions:
///
/// - SLURM's variables do not count beside those of another complete launcher: they are those of
///   the allocation, or of the task in which that launcher runs. If srun sets PMI's variables too
///   (`srun --mpi=pmi2`), SLURM's count.
/// - If two other launchers are complete, one of them runs inside the other, and the inner one
///   counts. Its variables are missing in the environment of a parent process that has those of
///   the outer one. If no parent process shows that and they give different numbers, the error
///   names both.
///
/// # Where ranks meet
///
/// - `MASTER_ADDR` and `MASTER_PORT`, if the address is the loopback: on this machine, on an
///   abstract Unix socket named by the job. Only processes of the same user get in.
/// - `MASTER_ADDR` and `MASTER_PORT`, with any other address: over TCP at that address, on port
///   `MASTER_PORT` + 1 (torchrun has its store on `MASTER_PORT` itself) or `DCL_RENDEZVOUS_PORT`.
///   Ranks prove to each other that they know the job and, if it is set, the secret `DCL_SECRET`
///   (any bytes, at least one). Every later message is authenticated with a key from these proofs:
///   one that was altered, repeated or left out on the way is an error, and no rank uses it.
///   Nothing is encrypted. At most 65536 ranks.
/// - `TRT_NCCL_ID_FILE`: through that file, to which rank 0 writes its address and a nonce; after
///   that as over TCP. It may be absent or empty, or left from a process of this machine that has
///   ended. Only this user can read it while it is there, and it is removed when the ranks have
///   met. Other content is an error, and so is a second rank 0.
/// - Otherwise the launcher's own name of the job, on this machine: `PMIX_NAMESPACE`,
///   `SLURM_JOB_ID` with `SLURM_STEP_ID`, or the process `hydra_pmi_proxy` of MPICH and Intel MPI,
///   which started the ranks.
///
/// `DCL_JOB_ID`, `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` are part of the job's name
/// if they are set. Two jobs never meet each other.
///
/// # Backend
///
/// NCCL if every rank has a GPU of its own, CUDA's driver, NVRTC and NCCL; else the host backend,
/// for ranks on one machine. [`EnvironmentBuilder::backend`] asks for one of them. Ranks compare
/// what they ask for, what they have, and where they are, and all of them come to the same result.
/// A rank's GPU is the one whose number is its local rank, or the only one that its process sees.
pub struct Environment {
    communicator: Communicator,
    discovery: Discovery,
    seed: u64,
    groups: NamedGroups,
    _only_one: OnlyOne,
}

impl Environment {
    /// Initializes from the launcher's variables.
    ///
    /// # Errors
    ///
    /// Those of [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn from_env() -> Result<Self> {
        Self::builder().initialize()
    }

    /// Initializes from values of the caller, and from the launcher's variables for the others.
    pub fn builder() -> EnvironmentBuilder {
        EnvironmentBuilder::default()
    }

    /// [`from_env`](Self::from_env) under torchrun only.
    ///
    /// # Errors
    ///
    /// Those of [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_torch() -> Result<Self> {
        Self::builder().launcher(Launcher::Torch).initialize()
    }

    /// [`from_env`](Self::from_env) under Open MPI only, with rank 0 at `host` and `port`.
    ///
    /// # Errors
    ///
    /// Those of [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_openmpi(host: &str, port: u16) -> Result<Self> {
        Self::builder().launcher(Launcher::OpenMpi).host(host).port(port).initialize()
    }

    /// [`from_env`](Self::from_env) under SLURM only, with rank 0 at `host` and `port`.
    ///
    /// # Errors
    ///
    /// Those of [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_slurm(host: &str, port: u16) -> Result<Self> {
        Self::builder().launcher(Launcher::Slurm).host(host).port(port).initialize()
    }

    /// Whether this process has an environment.
    pub fn is_initialized() -> bool {
        OnlyOne::exists()
    }

    /// The communicator of all ranks of this process's environment, for code that is not handed the
    /// environment. `None` before all ranks have come, and after [`finalize`](Self::finalize).
    pub fn current_communicator() -> Option<Communicator> {
        OnlyOne::communicator()
    }

    /// The launcher whose variables are set, if there is one.
    pub fn detect_launcher() -> Option<Launcher> {
        discovery::launcher_of(&System::this())
    }

    /// This process's rank and the number of ranks, by the launcher's variables alone.
    ///
    /// # Errors
    ///
    /// `InvalidArgument`: a variable is missing or wrong, or variables contradict each other.
    pub fn detect_rank() -> Result<(Rank, u32)> {
        let discovery = discovery::discover(&CallerValues::default(), &System::this())?;
        Ok((discovery.rank, discovery.world_size))
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.discovery.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.discovery.world_size
    }

    /// This process's number among the ranks of its machine.
    pub fn local_rank(&self) -> u32 {
        self.discovery.local_rank
    }

    /// The number of ranks on this machine.
    pub fn local_world_size(&self) -> u32 {
        self.discovery.local_world_size
    }

    /// The launcher that started the ranks.
    pub fn launcher(&self) -> Launcher {
        self.discovery.launcher
    }

    /// The backend; never [`BackendKind::Auto`].
    pub fn backend(&self) -> BackendKind {
        self.communicator.backend()
    }

    /// The memory of this rank's tensors: with NCCL, the memory of its GPU.
    pub fn device(&self) -> MemorySpace {
        self.communicator.space()
    }

    /// The source of each value, by the value's name: `("rank", "RANK")`. The names are "rank",
    /// "world_size", "local_rank", "local_world_size" and "rendezvous".
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.discovery.sources.iter().map(|(what, from)| (*what, from.as_str()))
    }

    /// The communicator of all ranks.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Makes a named group of ranks, in this order; see [`Communicator::new_group`]. Every rank
    /// gives the same name and ranks. Gives `None` on ranks that are not members. Collective.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: there is a group of that name, or another thread is making one.
    /// - `Disagreement`: names or ranks differ between ranks. Every rank gets this error, and the
    ///   communicator stays usable.
    /// - Those of [`Communicator::new_group`].
    pub fn new_group(&self, name: &str, ranks: impl IntoIterator<Item: Into<Rank>>) -> Result<Option<Communicator>> {
        let ranks: Vec<Rank> = ranks.into_iter().map(Into::into).collect();
        self.groups.make(&self.communicator, name, &ranks)
    }

    /// The communicator of a named group; "default" is that of all ranks.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: there is no group of that name.
    /// - `NotAMember`: this rank is not in the group.
    pub fn group(&self, name: &str) -> Result<Communicator> {
        self.groups.get(name, self.rank())
    }

    /// The members of a named group, in its order, on members and others alike.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: there is no group of that name.
    pub fn group_ranks(&self, name: &str) -> Result<Vec<Rank>> {
        self.groups.ranks(name)
    }

    /// The names of all groups, sorted; "default" is one of them.
    pub fn group_names(&self) -> Vec<String> {
        self.groups.names()
    }

    /// The seed, which is rank 0's on all ranks.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers that are the same on all ranks: stream 0 of the seed.
    pub fn common_rng(&self) -> Generator {
        Generator::new(self.seed, 0)
    }

    /// Random numbers of this rank's own: stream `1 + rank` of the seed.
    pub fn rank_rng(&self) -> Generator {
        Generator::new(self.seed, 1 + u64::from(self.rank().0))
    }

    /// The first number of [`common_rng`](Self::common_rng) and that of
    /// [`rank_rng`](Self::rank_rng), to see that ranks agree.
    pub fn first_draws(&self) -> (u64, u64) {
        (self.common_rng().next_u64(), self.rank_rng().next_u64())
    }

    /// Whether this is rank 0.
    pub fn is_master(&self) -> bool {
        self.rank() == Rank(0)
    }

    /// Prints a line on rank 0.
    pub fn print_on_master(&self, text: fmt::Arguments<'_>) {
        if self.is_master() {
            println!("{text}");
        }
    }

    /// Ends the environment: waits for every rank, then frees everything. Collective.
    ///
    /// # Errors
    ///
    /// Those of [`Communicator::finalize`].
    pub fn finalize(self) -> Result<()> {
        let finalized = self.communicator.clone().finalize();
        drop(self);
        // If a process on GPUs ends at once, it may take memory from its peers that they still use.
        cuda::helper::settle(SETTLE_TIMEOUT);
        finalized
    }
}

impl fmt::Debug for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Discovery { launcher, rank, world_size, local_rank, local_world_size, .. } = &self.discovery;
        write!(
            f,
            "rank {rank} of {world_size}, local rank {local_rank} of {local_world_size}, launcher {launcher}, backend {}, \
             seed {}",
            self.backend(),
            self.seed
        )
    }
}

/// The names of all environment variables that the library reads.
pub fn variable_names() -> impl Iterator<Item = &'static str> {
    discovery::variable_names().chain(settings::SETTINGS_VARIABLES).chain([SECRET, LAUNCH_SOCKET])
}

/// What is wrong with the values of the library's own variables, a sentence each. What is wrong
/// with those of a launcher is an error of [`Environment::detect_rank`].
pub fn variable_mistakes() -> Vec<String> {
    let mut mistakes = settings::mistakes();
    if Environment::detect_launcher().is_none() {
        mistakes.extend(discovery::mistakes_without_launcher(&System::this()));
    }
    if std::env::var_os(SECRET).is_some_and(|secret| secret.is_empty()) {
        mistakes.push(format!("{SECRET} is empty; unset it, or give it at least one byte"));
    }
    mistakes
}
