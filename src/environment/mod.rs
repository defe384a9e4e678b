//! The distributed environment of this process: its rank, its communicator, its groups, its seeds.
//! It resembles ColossalAI's launch functions and torch.distributed's `init_process_group`.

mod agreement;
mod builder;
mod connect_by;
mod discovery;
mod endpoint;
mod groups;
mod held_port;
mod launch_report;
mod only_one;
mod process;
mod rendezvous;

use std::fmt;
use std::time::Duration;

pub use builder::{DEFAULT_SEED, EnvironmentBuilder};
pub use discovery::Launcher;
use discovery::{CallerValues, Discovery, LAUNCH_SOCKET, System};
use groups::NamedGroups;
use held_port::HeldPort;
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
/// A value comes from the caller ([`EnvironmentBuilder`]), else from the variables of torchrun,
/// `distcollective launch`, TensorRT's sample, Open MPI, MPICH, Intel MPI or SLURM. Rank and world
/// size are required. The guide "Under each launcher" lists the variables, and says which launcher
/// counts if several have set theirs, and where the ranks meet: on this machine, over TCP or MPI,
/// or through a file. Rank 0's process, with its forks, holds `MASTER_PORT` as long as the
/// environment lives: the system gives it to no program that asks for a free port.
///
/// # Backend
///
/// NCCL if every rank has a GPU of its own; else the host backend, for ranks on one machine; else
/// the host backend on each machine, and between them MPI if the ranks have met over it, or UCX. It
/// is an error if a rank sees its GPU, and NCCL is missing or something does not work.
/// [`EnvironmentBuilder::backend`] asks for one of them. Ranks compare what they ask for, what they
/// have, and where they are, and all of them come to the same result. A rank's GPU is the one whose
/// number is its local rank, or the only one that its process sees.
pub struct Environment {
    communicator: Communicator,
    discovery: Discovery,
    seed: u64,
    groups: NamedGroups,
    _only_one: OnlyOne,
    _port: Option<HeldPort>,
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
    /// - `InvalidArgument`: a group has this name already, or another thread is making one.
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
    /// - `InvalidArgument`: no group has this name.
    /// - `NotAMember`: this rank is not in the group.
    pub fn group(&self, name: &str) -> Result<Communicator> {
        self.groups.get(name, self.rank())
    }

    /// The members of a named group, in its order, on members and others alike.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: no group has this name.
    pub fn group_ranks(&self, name: &str) -> Result<Vec<Rank>> {
        self.groups.ranks(name)
    }

    /// The names of all groups, sorted; "default" is one of them.
    pub fn group_names(&self) -> Vec<String> {
        self.groups.names()
    }

    /// The seed for the program's generators of random numbers: rank 0's, on all ranks.
    pub fn seed(&self) -> u64 {
        self.seed
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
