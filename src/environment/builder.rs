//! Initializing the environment: finding the other ranks, agreeing on the backend, and making the
//! communicator.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::agreement::{AgreedSetup, RankInfo};
use super::connect_by::{connect_agreed, share_id};
use super::discovery::{CallerValues, Discovery, Launcher, System, discover};
use super::endpoint::Endpoint;
use super::groups::NamedGroups;
use super::held_port::HeldPort;
use super::launch_report::LaunchReport;
use super::only_one::OnlyOne;
use super::rendezvous::Rendezvous;
use super::{Environment, SECRET};
use crate::collective::Purpose;
use crate::comm::{
    BackendKind, Communicator, DEFAULT_TIMEOUT, LinkEngine, can_connect_machines, connect_machines, exchange,
    timeout_or,
};
use crate::cuda;
use crate::error::{Result, bail};
use crate::handshake::Participant;
use crate::mpi::{self, Launched};
use crate::rank::Rank;
use crate::util::log::{event, warn_of_mistyped_settings};
use crate::util::{deadline_after, interrupt};

/// The seed of an environment unless it is set: ColossalAI's default seed.
pub const DEFAULT_SEED: u64 = 1024;

/// Initializes an [`Environment`]. A value that is not given comes from the environment variables;
/// see [`Environment`].
///
/// ```no_run
/// use std::time::Duration;
///
/// use distcollective::Environment;
///
/// let environment = Environment::builder()
///     .rank(0)
///     .world_size(2)
///     .host("10.0.0.1")
///     .port(29500)
///     .timeout(Duration::from_secs(60))
///     .initialize()?;
/// assert_eq!(environment.world_size(), 2);
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[must_use = "nothing is initialized until `initialize` is called"]
pub struct EnvironmentBuilder {
    given: CallerValues,
    backend: BackendKind,
    device: Option<u32>,
    secret: Option<Secret>,
    seed: Option<u64>,
    timeout: Option<Duration>,
    verbose: bool,
    caller: Option<String>,
}

impl EnvironmentBuilder {
    /// Sets this process's rank.
    pub fn rank(mut self, rank: impl Into<Rank>) -> Self {
        self.given.rank = Some(rank.into().0);
        self
    }

    /// Sets the number of ranks.
    pub fn world_size(mut self, world_size: u32) -> Self {
        self.given.world_size = Some(world_size);
        self
    }

    /// Sets this process's number among the ranks of its machine.
    pub fn local_rank(mut self, local_rank: u32) -> Self {
        self.given.local_rank = Some(local_rank);
        self
    }

    /// Sets the host of rank 0, instead of `MASTER_ADDR`.
    pub fn host(mut self, host: impl Into<String>) -> Self {
        self.given.host = Some(host.into());
        self
    }

    /// Sets the launcher's port on that host, instead of `MASTER_PORT`.
    pub fn port(mut self, port: u16) -> Self {
        self.given.port = Some(port);
        self
    }

    /// Sets the port of the rendezvous over TCP, instead of `DCL_RENDEZVOUS_PORT` or the port after
    /// `MASTER_PORT`.
    pub fn rendezvous_port(mut self, port: u16) -> Self {
        self.given.rendezvous_port = Some(port);
        self
    }

    /// Sets the name of the job, by which its ranks meet on this machine, instead of at a host and
    /// port.
    pub fn job(mut self, name: impl Into<String>) -> Self {
        self.given.job = Some(name.into());
        self
    }

    /// Sets the secret of this job's ranks, instead of `DCL_SECRET`, for a rendezvous over a
    /// network that others use. Any bytes; an empty secret is an error of
    /// [`initialize`](Self::initialize).
    pub fn secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.secret = Some(Secret(secret.into()));
        self
    }

    /// Sets the number of this rank's GPU among those that the process sees.
    pub fn device(mut self, ordinal: u32) -> Self {
        self.device = Some(ordinal);
        self
    }

    /// Sets the backend. [`BackendKind::Auto`] unless set.
    pub fn backend(mut self, backend: BackendKind) -> Self {
        self.backend = backend;
        self
    }

    /// Sets the seed. Every rank gets rank 0's. [`DEFAULT_SEED`] unless set.
    pub fn seed(mut self, seed: u64) -> Self {
        self.seed = Some(seed);
        self
    }

    /// Sets how long to wait for the other ranks: in all of the initialization together, and later
    /// in each call. Unless set, `DCL_TIMEOUT`, or 600 s.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = Some(timeout);
        self
    }

    /// Lets rank 0 print a line when the environment is initialized.
    pub fn verbose(mut self, verbose: bool) -> Self {
        self.verbose = verbose;
        self
    }

    /// Sets where the program initializes the environment, for the error of a second
    /// initialization: "the environment was initialized at serve.py:12 and not finalized since".
    /// Unless set, the source line that calls [`initialize`](Self::initialize); that line says
    /// nothing if it is in a binding for another language.
    pub fn called_at(mut self, place: impl Into<String>) -> Self {
        self.caller = Some(place.into());
        self
    }

    /// Restricts the variables to those of one launcher. Another launcher's do not count then.
    pub fn launcher(mut self, launcher: Launcher) -> Self {
        self.given.launcher = Some(launcher);
        self
    }

    /// Finds the other ranks, agrees with them on the backend, and makes the communicator.
    /// Collective between processes.
    ///
    /// # Errors
    ///
    /// - `NotReady`: this process has an environment.
    /// - `InvalidArgument`: a value is missing or wrong, or values contradict each other (one error
    ///   for all of them); the secret is empty; rank 0's file has content.
    /// - `Disagreement`: ranks have different world sizes, secrets or backends, or two processes
    ///   have the same rank.
    /// - `Unsupported`: the backend cannot be used on every rank.
    /// - `DeadlineExceeded`: ranks did not come before the deadline.
    /// - `PeerLost`, `Aborted`: a rank failed or ended.
    /// - `Interrupted`: the [interrupt hook](crate::interrupt) ended a wait. Ranks that have met
    ///   this one are told.
    /// - `System`: rank 0's port is in use; the system refused a socket, memory or a file.
    #[track_caller]
    pub fn initialize(self) -> Result<Environment> {
        interrupt::check_may_wait()?;
        let line = Location::caller();
        let caller = self.caller.clone().unwrap_or_else(|| line.to_string());
        let only_one = OnlyOne::new(caller)?;
        let given = CallerValues { over_mpi: self.backend == BackendKind::Mpi, ..self.given.clone() };
        let mut discovery = discover(&given, &System::this())?;
        warn_of_mistyped_settings();
        let timeout = match self.timeout {
            Some(timeout) => timeout,
            None => timeout_or(DEFAULT_TIMEOUT)?,
        };
        let deadline = deadline_after(timeout);
        let port = discovery.master_port.filter(|_| discovery.rank == Rank(0)).and_then(HeldPort::new);
        let report = LaunchReport::begin(&discovery, deadline);
        let job = format!("environment {} of {}", only_one.generation(), discovery.job);
        let connected = self.connect(&discovery, &job, deadline).map_err(|e| e.on_rank(discovery.rank));
        let (communicator, AgreedSetup { seed, machines, backend }) = connected?;
        if backend != BackendKind::Nccl {
            // NCCL's ranks have taken the GPUs of the numbers that they had.
            discovery.derive_local_numbers(&machines);
        }
        let communicator = communicator.with_timeout(timeout);
        report.met();
        only_one.count(&communicator);
        let groups = NamedGroups::new(communicator.clone());
        let environment = Environment { communicator, discovery, seed, groups, _only_one: only_one, _port: port };
        event!(DEBUG, "{environment:?}");
        if self.verbose {
            environment.print_on_master(format_args!("{environment:?}"));
        }
        Ok(environment)
    }

    /// Finds the other ranks, agrees with them on the backend, and makes the communicator. All
    /// processes of the job give the same `job`.
    fn connect(&self, discovery: &Discovery, job: &str, deadline: Instant) -> Result<(Communicator, AgreedSetup)> {
        let Discovery { rank, world_size, local_rank, .. } = *discovery;
        let secret = self.checked_secret()?;
        // Without a number from the caller it is the local rank, or that of the only GPU. Counting
        // them loads CUDA.
        let default = || if cuda::device_count().is_ok_and(|count| count == 1) { 0 } else { local_rank };
        let ordinal = || self.device.unwrap_or_else(default);
        let builder = || {
            let left = deadline.saturating_duration_since(Instant::now());
            Communicator::builder().world_size(world_size).rank(rank).timeout(left)
        };
        let info = RankInfo::of_this_process(self.backend, self.seed.unwrap_or(DEFAULT_SEED), ordinal, local_rank);
        let endpoint = match &discovery.rendezvous {
            None => {
                let host = builder().job(job).connect().map_err(|error| discovery.explain_late(error))?;
                let agreement = host.exchange(Purpose::INITIALIZE, &info, deadline)?;
                let agreement = AgreedSetup::of_ranks(&agreement, BackendKind::Ucx)?;
                match agreement.backend {
                    BackendKind::Host => return Ok((host, agreement)),
                    kind @ (BackendKind::Ucx | BackendKind::Mpi) => bail!(
                        Unsupported,
                        "the ranks meet by the job's name, as those of one machine do; for the backend \"{kind}\" set \
                         MASTER_ADDR and MASTER_PORT"
                    ),
                    _ => {}
                }
                let id = share_id(rank, |bytes| host.exchange_bytes(Purpose::INITIALIZE, bytes, deadline))?;
                // The host tells ranks which rank fails.
                return Ok((builder().nccl(&id).device(ordinal()).control(Some(host)).connect()?, agreement));
            }
            Some(endpoint) => endpoint,
        };
        let secret = secret.as_ref().map(|Secret(secret)| secret.as_slice());
        let participant = Participant { secret, ..Participant::new(job, rank.0, world_size, deadline) };
        let mut rendezvous = Rendezvous::join(endpoint, &participant)?;
        let infos = exchange(&info, |rank| rank, |bytes| rendezvous.exchange(bytes, deadline))?;
        let over_mpi = matches!(endpoint, Endpoint::Mpi(_));
        let between_machines = if over_mpi { BackendKind::Mpi } else { BackendKind::Ucx };
        let agreement = AgreedSetup::of_ranks(&infos, between_machines)?;
        let job = format!("{job} {}", rendezvous.nonce());
        if agreement.backend == BackendKind::Mpi {
            // Before a rank waits in MPI for the others, each can use it.
            let can_use = mpi::check().map(|()| Vec::new()).map_err(|error| error.to_string());
            agreement.addresses(exchange(&can_use, |rank| rank, |bytes| rendezvous.exchange(bytes, deadline))?)?;
            let launched = Launched { rank: rank.0, world_size, launcher: discovery.launcher.name() };
            let engine = LinkEngine::Mpi(rendezvous.into_mpi(launched, deadline)?);
            let communicator = connect_machines(engine, &job, rank, agreement.machines.clone(), deadline)?;
            return Ok((communicator, agreement));
        }
        let is_between_machines = agreement.backend == BackendKind::Nccl && !agreement.is_one_machine();
        if is_between_machines && !over_mpi && can_connect_machines(world_size) {
            let id = share_id(rank, |bytes| rendezvous.exchange(bytes, deadline))?;
            let engine = LinkEngine::Rendezvous(rendezvous.into_channels()?);
            let control = connect_machines(engine, &job, rank, agreement.machines.clone(), deadline)?;
            return Ok((builder().nccl(&id).device(ordinal()).control(Some(control)).connect()?, agreement));
        }
        let exchange_bytes = |bytes: &[u8]| rendezvous.exchange(bytes, deadline);
        let communicator = connect_agreed(&agreement, &job, rank, ordinal, deadline, exchange_bytes)?;
        Ok((communicator, agreement))
    }

    /// The caller's secret, else that of `DCL_SECRET`, whose bytes need not be UTF-8.
    fn checked_secret(&self) -> Result<Option<Secret>> {
        let (secret, name) = match &self.secret {
            Some(secret) => (Some(secret.clone()), "the secret that the caller gives"),
            None => (std::env::var_os(SECRET).map(|secret| Secret(secret.into_vec())), SECRET),
        };
        if secret.as_ref().is_some_and(|Secret(secret)| secret.is_empty()) {
            bail!(InvalidArgument, "{name} is empty; a secret has at least one byte, or is not set at all");
        }
        Ok(secret)
    }
}

/// Bytes that are not shown in logs.
#[derive(Clone)]
struct Secret(Vec<u8>);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not shown")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
