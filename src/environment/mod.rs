//! The distributed environment of this process: who it is among the ranks, its communicator, its groups, its seeds. In the
//! manner of ColossalAI's launch functions and torch.distributed's `init_process_group`.

mod agreement;
mod discovery;
mod launch_report;
mod process;
mod random;
mod rendezvous;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::panic::Location;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use agreement::{Agreement, Backend, Statement, agree, is_this_machine};
pub use discovery::Launcher;
pub(crate) use discovery::variable_names;
use discovery::{Discovery, Given, MeetingPoint, ThisSystem};
use launch_report::LaunchReport;
pub use rand_chacha::ChaCha20Rng;
use rendezvous::{Place, Terms};

use crate::comm::{Communicator, DEFAULT_TIMEOUT, NcclId, Purpose, Wanted};
use crate::cuda;
use crate::error::{Result, bail, error};
use crate::memory::MemorySpace;
use crate::rank::Rank;
use crate::util::deadline_after;
use crate::util::lock;
use crate::util::settings::timeout_or;

/// How long NCCL's communicators may take to end with those of the other ranks.
const FAREWELL: Duration = Duration::from_secs(10);

/// ColossalAI's default seed.
pub const DEFAULT_SEED: u64 = 1024;

/// The name of the group of all ranks.
const DEFAULT_GROUP: &str = "default";

/// The distributed environment: this process's rank, the communicator of all ranks, named groups, seeds. There is one at a
/// time in a process; it ends with [`finalize`](Self::finalize), which waits for the others, or when it is dropped, which lets go of
/// everything at once, and then there can be another.
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
/// In this order: from the caller; `RANK`, `WORLD_SIZE`, `LOCAL_RANK`, `LOCAL_WORLD_SIZE`
/// (torchrun, ColossalAI, `distcollective launch`); `TRT_MY_RANK`, `TRT_WORLD_SIZE` (TensorRT's
/// sample); `OMPI_COMM_WORLD_*` (Open MPI); `PMI_RANK`, `PMI_SIZE`, `MPI_LOCALRANKID`,
/// `MPI_LOCALNRANKS` (MPICH, Intel MPI); `SLURM_PROCID`, `SLURM_NTASKS`, `SLURM_LOCALID`,
/// `SLURM_STEP_TASKS_PER_NODE` or `SLURM_NTASKS_PER_NODE`. Rank and world size are required; the
/// local ones are derived where they are absent. A launcher is complete if both its rank and its
/// world size are set. The first complete one in this order counts, but:
///
/// - SLURM's variables do not count beside those of another complete launcher: they are those of
///   the allocation, or of the task in which that launcher runs. Where srun sets PMI's variables
///   too (`srun --mpi=pmi2`), SLURM's count.
/// - If two complete launchers give different ranks or world sizes, one of them runs inside the
///   other, and the inner one counts. Its variables are missing in the environment of a parent
///   process that has those of the outer one. If no parent process shows that, the error names
///   both.
///
/// # Where ranks meet
///
/// - `MASTER_ADDR` and `MASTER_PORT`, where the address is the loopback: on this machine, on an abstract Unix socket named by the
///   job. Nobody else of the machine gets in.
/// - `MASTER_ADDR` and `MASTER_PORT`, with any other address: over TCP at that address, on port
///   `MASTER_PORT` + 1 (torchrun has its store on `MASTER_PORT` itself) or `DCL_RENDEZVOUS_PORT`.
///   Ranks prove to each other that they know the job and, where it is set, the secret `DCL_SECRET`
///   (any bytes, at least one). Every later message is authenticated with a key from these proofs:
///   one that was altered, repeated or left out on the way is an error, and nothing of it is used.
///   Nothing is encrypted. At most 65536 ranks.
/// - `TRT_NCCL_ID_FILE`: through that file, to which rank 0 writes its address and a nonce; after
///   that as over TCP. It may be absent or empty, or left from a process of this machine that has
///   ended. It is readable by this user only while it is there, and is removed when the ranks have
///   met. Other content is an error, and so is a second rank 0.
/// - Otherwise the launcher's own name of the job, on this machine: `PMIX_NAMESPACE`, `SLURM_JOB_ID` with `SLURM_STEP_ID`, or
///   the process `hydra_pmi_proxy` of MPICH and Intel MPI, which started the ranks.
///
/// `DCL_JOB_ID`, `TORCHELASTIC_RUN_ID` and `TORCHELASTIC_RESTART_COUNT` are part of the job's name where they are set: two jobs
/// never meet each other.
///
/// # Backend
///
/// NCCL where every rank has a GPU of its own, CUDA's driver, NVRTC and NCCL, else the host backend, for ranks on one machine; or what
/// [`EnvironmentBuilder::backend`] asks for. Ranks compare what they ask for, what they have, and where they are, and all come to the
/// same end. A rank's GPU is the one whose number is its local rank, or the only one that its process sees.
pub struct Environment {
    communicator: Communicator,
    backend: Backend,
    discovery: Discovery,
    seed: u64,
    groups: Mutex<BTreeMap<String, Group>>,
    _only: OnlyOne,
}

/// Says what the environment shall be; see [`Environment`] for what is looked for where nothing is said.
#[derive(Clone, Debug)]
#[must_use = "nothing is initialized until `initialize` is called"]
pub struct EnvironmentBuilder {
    given: Given,
    backend: String,
    device: Option<u32>,
    secret: Option<Secret>,
    seed: u64,
    timeout: Option<Duration>,
    verbose: bool,
}

/// Bytes that do not go into logs.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not shown")
    }
}

/// Where the environment of this process was initialized ("at src/main.rs:7:5"), and how many there were.
static CURRENT: Mutex<Option<String>> = Mutex::new(None);
static GENERATION: AtomicU64 = AtomicU64::new(0);

/// A named group.
enum Group {
    /// A thread is in the collective call that makes it; the name is taken.
    InTheMaking,
    /// The communicator, on a member.
    Made(Option<Communicator>),
}

/// Holds the place of the one environment.
struct OnlyOne;

impl OnlyOne {
    fn take(place: String) -> Result<Self> {
        let mut current = lock(&CURRENT);
        if let Some(first) = &*current {
            bail!(NotReady, "the environment was initialized {first} and not finalized since; there is one at a time");
        }
        *current = Some(place);
        Ok(OnlyOne)
    }
}

impl Drop for OnlyOne {
    fn drop(&mut self) {
        *lock(&CURRENT) = None;
    }
}

impl Default for EnvironmentBuilder {
    fn default() -> Self {
        EnvironmentBuilder {
            given: Given::default(),
            backend: "auto".to_owned(),
            device: None,
            secret: None,
            seed: DEFAULT_SEED,
            timeout: None,
            verbose: false,
        }
    }
}

impl EnvironmentBuilder {
    /// This process's rank.
    pub fn rank(mut self, rank: u32) -> Self {
        self.given.rank = Some(rank);
        self
    }

    /// The number of ranks.
    pub fn world_size(mut self, world_size: u32) -> Self {
        self.given.world_size = Some(world_size);
        self
    }

    /// This process's number among those on its machine.
    pub fn local_rank(mut self, local_rank: u32) -> Self {
        self.given.local_rank = Some(local_rank);
        self
    }

    /// Where ranks meet, instead of `MASTER_ADDR`.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.given.host = Some(host.into());
        self
    }

    /// Where ranks meet, instead of `MASTER_PORT`.
    pub fn port(mut self, port: u16) -> Self {
        self.given.port = Some(port);
        self
    }

    /// The port of the rendezvous over TCP, instead of `DCL_RENDEZVOUS_PORT` or the one after `MASTER_PORT`.
    pub fn rendezvous_port(mut self, port: u16) -> Self {
        self.given.rendezvous_port = Some(port);
        self
    }

    /// What only this job's ranks know, instead of `DCL_SECRET`: for a rendezvous over a network
    /// that others use. Any bytes; an empty secret is an error of [`initialize`](Self::initialize).
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(Secret(secret.into()));
        self
    }

    /// The number of this rank's GPU among those that the process sees.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.device = Some(ordinal);
        self
    }

    /// The backend: "nccl", "host" ("gloo" is another name of it) or "auto", the default.
    pub fn backend(mut self, name: impl Into<String>) -> Self {
        self.backend = name.into();
        self
    }

    /// The seed; rank 0's reaches every rank. 1024 unless set, as in ColossalAI.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = seed;
        self
    }

    /// How long to wait for the other ranks, altogether now and then in each call. Unless set, what
    /// `DCL_TIMEOUT` says, or 600 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets rank 0 print a line when the environment is ready.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }

    /// Meets the other ranks. Collective between processes.
    ///
    /// # Errors
    ///
    /// Everything that is missing or contradictory, at once, with the launcher; an environment that is initialized already; a
    /// backend that there is not, or not for all ranks; ranks that do not come; and see the contract of [`Communicator`].
    #[track_caller]
    pub fn initialize(self) -> Result<Environment> {
        let caller = Location::caller();
        self.initialize_at(format!("at {caller}"))
    }

    /// [`initialize`](Self::initialize), at a place that errors of a second one name.
    pub(crate) fn initialize_at(self, place: String) -> Result<Environment> {
        let only = OnlyOne::take(place)?;
        let wanted: Wanted = self.backend.parse()?;
        let discovery = discovery::discover(&self.given, &ThisSystem)?;
        // Ranks meet as often as each other; a new environment never meets what is left of the one before.
        let generation = GENERATION.load(Ordering::Relaxed);
        let timeout = match self.timeout {
            Some(timeout) => timeout,
            None => timeout_or(DEFAULT_TIMEOUT)?,
        };
        let deadline = deadline_after(timeout);
        let report = LaunchReport::begin(&discovery, deadline);
        let met = self.meet(wanted, &discovery, generation, deadline).map_err(|e| e.on_rank(discovery.rank));
        let (communicator, Agreement { backend, seed, .. }) = met?;
        let communicator = communicator.with_timeout(timeout);
        report.met();
        GENERATION.store(generation + 1, Ordering::Relaxed);
        let environment = Environment {
            seed,
            groups: Mutex::new(BTreeMap::from([(DEFAULT_GROUP.to_owned(), Group::Made(Some(communicator.clone())))])),
            communicator,
            backend,
            discovery,
            _only: only,
        };
        crate::util::log::event!(DEBUG, "{environment:?}");
        if self.verbose {
            environment.print_on_master(format_args!("{environment:?}"));
        }
        Ok(environment)
    }

    /// Meets the other ranks, finds what backend all of them want and can have, and makes the communicator.
    fn meet(
        &self,
        wanted: Wanted,
        discovery: &Discovery,
        generation: u64,
        deadline: Instant,
    ) -> Result<(Communicator, Agreement)> {
        let secret = self.checked_secret()?;
        let ordinal = self.device.unwrap_or_else(|| default_device(discovery.local_rank));
        let statement = Statement::new(wanted, self.seed, ordinal, discovery.local_rank).to_bytes()?;
        let job = format!("environment {generation} of {}", discovery.job);
        let place = match &discovery.meeting {
            MeetingPoint::Machine => {
                let host = self.meet_on_machine(job, discovery, deadline)?;
                let exchange = |bytes: &[u8]| host.exchange(Purpose::Initialize, bytes, deadline);
                let agreement = agree(&exchange(&statement)?)?;
                let communicator = match agreement.backend {
                    Backend::Host => host,
                    Backend::Nccl => {
                        let id = share_id(discovery.rank, exchange)?;
                        self.meet_on_gpus(&id, discovery, ordinal, Some(host), deadline)?
                    }
                };
                return Ok((communicator, agreement));
            }
            MeetingPoint::Address { host, .. } if wanted == Wanted::Host && !is_this_machine(host) => bail!(
                Unsupported,
                "MASTER_ADDR is {host}, which is not this machine; the host backend is for one machine, and beyond it there is \
                 NCCL"
            ),
            MeetingPoint::Address { host, port } => Place::Tcp { host: host.clone(), port: *port },
            MeetingPoint::File(path) => Place::File(path.clone()),
        };
        let terms = Terms {
            job: &job,
            secret: secret.as_ref().map(|Secret(secret)| secret.as_slice()),
            rank: discovery.rank.0,
            world_size: discovery.world_size,
            deadline,
        };
        let mut meeting = rendezvous::meet(&place, &terms)?;
        let agreement = agree(&meeting.exchange(&statement, deadline)?)?;
        let host = match agreement.is_one_machine {
            true => Some(self.meet_on_machine(format!("{job} {}", meeting.nonce()), discovery, deadline)?),
            false => None,
        };
        let communicator = match (agreement.backend, host) {
            (Backend::Host, Some(host)) => host,
            (Backend::Host, None) => bail!(System, "ranks of several machines agreed on the host backend"),
            (Backend::Nccl, host) => {
                let id = share_id(discovery.rank, |bytes| meeting.exchange(bytes, deadline))?;
                self.meet_on_gpus(&id, discovery, ordinal, host, deadline)?
            }
        };
        Ok((communicator, agreement))
    }

    /// The secret: the caller's, else that of `DCL_SECRET`, whose bytes need not be UTF-8.
    fn checked_secret(&self) -> Result<Option<Secret>> {
        let (secret, name) = match &self.secret {
            Some(secret) => (Some(secret.clone()), "the secret that the caller gives"),
            None => (std::env::var_os("DCL_SECRET").map(|secret| Secret(secret.into_vec())), "DCL_SECRET"),
        };
        if secret.as_ref().is_some_and(|Secret(secret)| secret.is_empty()) {
            bail!(InvalidArgument, "{name} is empty; a secret has at least one byte, or is not set at all");
        }
        Ok(secret)
    }

    /// Makes the communicator on GPUs, which has what is left of the time as its timeout; one on
    /// the host, if there is one, tells ranks who fails.
    fn meet_on_gpus(
        &self,
        id: &NcclId,
        discovery: &Discovery,
        ordinal: u32,
        host: Option<Communicator>,
        deadline: Instant,
    ) -> Result<Communicator> {
        let left = deadline.saturating_duration_since(Instant::now());
        Communicator::nccl_beside(id, discovery.rank, discovery.world_size, ordinal, host, left)
    }

    fn meet_on_machine(&self, job: String, discovery: &Discovery, deadline: Instant) -> Result<Communicator> {
        let left = deadline.saturating_duration_since(Instant::now());
        let builder = Communicator::builder().job(job).world_size(discovery.world_size).rank(discovery.rank);
        match builder.timeout(left).meet()?.pop() {
            Some(communicator) => Ok(communicator),
            None => bail!(System, "the meeting gave no communicator"),
        }
    }
}

/// This process's rank and the number of ranks, as the launcher's variables have it. Nobody is met.
pub(crate) fn place() -> Result<(Rank, u32)> {
    let discovery = discovery::discover(&Given::default(), &ThisSystem)?;
    Ok((discovery.rank, discovery.world_size))
}

/// The GPU of a local rank: the one of the same number, or the only one.
fn default_device(local_rank: u32) -> u32 {
    match cuda::device_count() {
        Ok(1) => 0,
        _ => local_rank,
    }
}

/// Brings an id that rank 0 makes to every rank.
fn share_id(rank: Rank, exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>) -> Result<NcclId> {
    let id = if rank == Rank(0) { NcclId::new().map(Some) } else { Ok(None) };
    // An empty text is rank 0's failure; everybody learns of it.
    let own = id.as_ref().map_or(&[][..], |id| id.as_ref().map_or(&[][..], NcclId::as_bytes));
    let all = exchange(own)?;
    id?;
    NcclId::from_bytes(&all[0]).map_err(|e| error!(System, "rank 0 could not make an id").with_source(e))
}

impl Environment {
    /// Initializes from what the launcher says.
    ///
    /// # Errors
    ///
    /// See [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn from_env() -> Result<Self> {
        Self::builder().initialize()
    }

    /// Says some of it, and looks for the rest.
    pub fn builder() -> EnvironmentBuilder {
        EnvironmentBuilder::default()
    }

    /// [`from_env`](Self::from_env) under torchrun only.
    ///
    /// # Errors
    ///
    /// See [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_torch() -> Result<Self> {
        Self::launched(Launcher::Torch, None)
    }

    /// [`from_env`](Self::from_env) under Open MPI only, meeting at `host` and `port`.
    ///
    /// # Errors
    ///
    /// See [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_openmpi(host: &str, port: u16) -> Result<Self> {
        Self::launched(Launcher::OpenMpi, Some((host, port)))
    }

    /// [`from_env`](Self::from_env) under SLURM only, meeting at `host` and `port`.
    ///
    /// # Errors
    ///
    /// See [`EnvironmentBuilder::initialize`].
    #[track_caller]
    pub fn launch_from_slurm(host: &str, port: u16) -> Result<Self> {
        Self::launched(Launcher::Slurm, Some((host, port)))
    }

    #[track_caller]
    fn launched(launcher: Launcher, meeting: Option<(&str, u16)>) -> Result<Self> {
        let mut builder = Self::builder();
        builder.given.launcher = Some(launcher);
        if let Some((host, port)) = meeting {
            builder = builder.host(host).port(port);
        }
        builder.initialize()
    }

    /// Whether this process has an environment.
    pub fn is_initialized() -> bool {
        lock(&CURRENT).is_some()
    }

    /// The launcher that the variables speak of, if they speak of one.
    pub fn detect_launcher() -> Option<Launcher> {
        discovery::launcher_of(&ThisSystem)
    }

    /// This process's rank.
    pub fn rank(&self) -> Rank {
        self.discovery.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.discovery.world_size
    }

    /// This process's number among those on its machine.
    pub fn local_rank(&self) -> u32 {
        self.discovery.local_rank
    }

    /// The number of ranks on this machine.
    pub fn local_world_size(&self) -> u32 {
        self.discovery.local_world_size
    }

    /// Who started the ranks.
    pub fn launcher(&self) -> Launcher {
        self.discovery.launcher
    }

    /// The backend: "host" or "nccl".
    pub fn backend(&self) -> &'static str {
        match self.backend {
            Backend::Host => "host",
            Backend::Nccl => "nccl",
        }
    }

    /// Where this rank's tensors are: with NCCL, on which GPU.
    pub fn device(&self) -> MemorySpace {
        self.communicator.space()
    }

    /// Where each value came from, by the value's name.
    pub fn sources(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.discovery.sources.iter().map(|(what, from)| (*what, from.as_str()))
    }

    /// The communicator of all ranks.
    pub fn communicator(&self) -> &Communicator {
        &self.communicator
    }

    /// Makes a named group of ranks, in this order; see [`Communicator::new_group`]. Every rank
    /// gives the same name and ranks. Collective.
    ///
    /// # Errors
    ///
    /// A name that there is already, or that another thread is making a group of; names or ranks
    /// that differ between ranks, which every rank learns of and which leave the communicator as it
    /// was; and see [`Communicator::new_group`].
    pub fn new_group(&self, name: &str, ranks: &[Rank]) -> Result<Option<Communicator>> {
        match lock(&self.groups).entry(name.to_owned()) {
            Entry::Vacant(place) => drop(place.insert(Group::InTheMaking)),
            Entry::Occupied(place) => match place.get() {
                Group::Made(_) => bail!(InvalidArgument, "there is a group {name:?} already"),
                Group::InTheMaking => bail!(InvalidArgument, "another thread is making group {name:?}"),
            },
        }
        let group = self.communicator.new_named_group(Some(name), ranks);
        let mut groups = lock(&self.groups);
        match &group {
            Ok(group) => drop(groups.insert(name.to_owned(), Group::Made(group.clone()))),
            Err(_) => drop(groups.remove(name)),
        }
        group
    }

    /// The communicator of a named group; "default" is that of all ranks. `None` where this rank is not a member.
    ///
    /// # Errors
    ///
    /// No group of that name.
    pub fn group(&self, name: &str) -> Result<Option<Communicator>> {
        let groups = lock(&self.groups);
        let made = groups.iter().filter_map(|(name, group)| match group {
            Group::Made(group) => Some((name.as_str(), group)),
            Group::InTheMaking => None,
        });
        let made: BTreeMap<&str, &Option<Communicator>> = made.collect();
        made.get(name).copied().cloned().ok_or_else(|| {
            let names: Vec<String> = made.keys().map(|name| format!("{name:?}")).collect();
            error!(InvalidArgument, "there is no group {name:?}; there are {}", names.join(", "))
        })
    }

    /// The seed: rank 0's.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// Random numbers that are the same on all ranks: ChaCha20 from the seed (`seed_from_u64`), stream 0.
    pub fn common_rng(&self) -> ChaCha20Rng {
        random::stream(self.seed, 0)
    }

    /// Random numbers of this rank's own: ChaCha20 from the seed, stream `1 + rank`.
    pub fn rank_rng(&self) -> ChaCha20Rng {
        random::stream(self.seed, 1 + u64::from(self.rank().0))
    }

    /// The first number of [`common_rng`](Self::common_rng) and of [`rank_rng`](Self::rank_rng), to see that ranks agree.
    pub fn first_draws(&self) -> (u64, u64) {
        (random::first(self.common_rng()), random::first(self.rank_rng()))
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

    /// Ends the environment: waits for every rank, and lets go of everything. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn finalize(self) -> Result<()> {
        let finalized = self.communicator.clone().finalize();
        drop(self);
        // On GPUs a process that ends at once may take from its peers what they still use.
        cuda::helper::settle(FAREWELL);
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

#[cfg(test)]
mod tests {
    use std::thread::scope;

    use super::*;
    use crate::error::ErrorKind;

    /// The environments of ranks that are threads of this process. In a program there is one for
    /// each process.
    fn environments(world_size: u32) -> Vec<Environment> {
        let of_rank = |communicator: Communicator| {
            let communicator = communicator.with_timeout(Duration::from_secs(10));
            let groups = BTreeMap::from([(DEFAULT_GROUP.to_owned(), Group::Made(Some(communicator.clone())))]);
            Environment {
                discovery: Discovery {
                    launcher: Launcher::Explicit,
                    rank: communicator.rank(),
                    world_size,
                    local_rank: communicator.rank().0,
                    local_world_size: world_size,
                    meeting: MeetingPoint::Machine,
                    job: String::new(),
                    sources: BTreeMap::new(),
                },
                communicator,
                backend: Backend::Host,
                seed: 0,
                groups: Mutex::new(groups),
                _only: OnlyOne,
            }
        };
        Communicator::in_process(world_size).expect("ranks").into_iter().map(of_rank).collect()
    }

    const BOTH: [Rank; 2] = [Rank(0), Rank(1)];

    /// Every rank learns of other names at once, with both, and can make groups afterwards.
    #[test]
    fn groups_of_different_names_are_a_disagreement() {
        let environments = environments(2);
        scope(|scope| {
            for environment in &environments {
                scope.spawn(move || {
                    // In opposite order on the two ranks.
                    let (own, other) = if environment.is_master() { ("tp", "dp") } else { ("dp", "tp") };
                    let rank = environment.rank().0;
                    let expected = |own: &str, other: &str| {
                        format!(
                            "rank {rank}: new_group wants the same name and ranks on every rank: this rank gives {own}, rank {} \
                             gives {other}",
                            1 - rank
                        )
                    };
                    for (own, other) in [(own, other), (other, own)] {
                        let error = environment.new_group(own, &BOTH).expect_err("different names");
                        assert_eq!(error.kind(), ErrorKind::Disagreement);
                        let [own, other] = [own, other].map(|name| format!("{name:?} [0, 1]"));
                        assert_eq!(error.to_string(), expected(&own, &other));
                        assert!(environment.group("tp").is_err());
                    }
                    // Beside a group without a name.
                    let unnamed = match rank {
                        0 => environment.new_group("tp", &BOTH),
                        _ => environment.communicator().new_group(BOTH),
                    };
                    let message = unnamed.expect_err("one has no name").to_string();
                    let sides = ["\"tp\" [0, 1]", "[0, 1] without a name"];
                    assert_eq!(message, expected(sides[rank as usize], sides[1 - rank as usize]));
                    // The names are free, and the communicator works.
                    let group = environment.new_group("tp", &BOTH).expect("a group").expect("a member");
                    group.barrier().expect("a barrier");
                    assert!(environment.new_group("tp", &BOTH).is_err());
                });
            }
        });
    }

    /// A name is taken from the beginning of the call that makes its group.
    #[test]
    fn two_threads_do_not_make_one_group() {
        let environments = environments(2);
        scope(|scope| {
            let twins =
                [(); 2].map(|()| scope.spawn(|| environments[0].new_group("tp", &BOTH).map(|group| group.is_some())));
            let end = Instant::now() + Duration::from_secs(10);
            while !twins.iter().any(|twin| twin.is_finished()) {
                assert!(Instant::now() < end, "both wait for rank 1");
                std::thread::yield_now();
            }
            assert!(environments[0].group("tp").is_err());
            environments[1].new_group("tp", &BOTH).expect("a group");
            let mut results = twins.map(|twin| twin.join().expect("no panic").map_err(|error| error.to_string()));
            results.sort();
            assert_eq!(results, [Ok(true), Err("another thread is making group \"tp\"".to_owned())]);
        });
    }

    #[test]
    fn a_secret_is_bytes_and_never_empty() {
        for builder in [
            Environment::builder().secret("text"),
            Environment::builder().secret("text".to_owned()),
            Environment::builder().secret(b"\xff".to_vec()),
        ] {
            assert!(builder.checked_secret().expect("a secret").is_some());
            assert!(format!("{builder:?}").contains("secret: Some(not shown)"), "{builder:?}");
        }
        let error = Environment::builder().secret("").checked_secret().map(|secret| secret.is_some());
        assert_eq!(
            error.expect_err("an empty secret").to_string(),
            "the secret that the caller gives is empty; a secret has at least one byte, or is not set at all"
        );
    }
}
