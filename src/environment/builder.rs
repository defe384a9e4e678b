//! Initializing the environment: finding the other ranks, agreeing on the backend, and making the
//! communicator.

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::panic::Location;
use std::time::{Duration, Instant};

use super::agreement::{AgreedSetup, RankInfo};
use super::discovery::{CallerValues, Discovery, Launcher, System, discover};
use super::endpoint::{Endpoint, is_this_machine};
use super::groups::NamedGroups;
use super::launch_report::LaunchReport;
use super::only_one::OnlyOne;
use super::rendezvous::Rendezvous;
use super::{Environment, SECRET};
use crate::collective::Purpose;
use crate::comm::{BackendKind, Communicator, DEFAULT_TIMEOUT, NcclId, exchange, timeout_or};
use crate::cuda;
use crate::error::{Result, bail, error};
use crate::handshake::Participant;
use crate::rank::Rank;
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
#[derive(Clone, Debug)]
#[must_use = "nothing is initialized until `initialize` is called"]
pub struct EnvironmentBuilder {
    given: CallerValues,
    backend: BackendKind,
    device: Option<u32>,
    secret: Option<Secret>,
    seed: u64,
    timeout: Option<Duration>,
    verbose: bool,
    caller: Option<String>,
}

impl Default for EnvironmentBuilder {
    fn default() -> Self {
        EnvironmentBuilder {
            given: CallerValues::default(),
            backend: BackendKind::Auto,
            device: None,
            secret: None,
            seed: DEFAULT_SEED,
            timeout: None,
            verbose: false,
            caller: None,
        }
    }
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
        self.seed = seed;
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
        let discovery = discover(&self.given, &System::this())?;
        let timeout = match self.timeout {
            Some(timeout) => timeout,
            None => timeout_or(DEFAULT_TIMEOUT)?,
        };
        let deadline = deadline_after(timeout);
        let report = LaunchReport::begin(&discovery, deadline);
        let connecting = Connecting {
            job: format!("environment {} of {}", only_one.generation(), discovery.job),
            device: self.device,
            discovery: &discovery,
            deadline,
        };
        let connected = self.connect(&connecting).map_err(|e| e.on_rank(discovery.rank));
        let (communicator, AgreedSetup { seed, .. }) = connected?;
        let communicator = communicator.with_timeout(timeout);
        report.met();
        only_one.count(&communicator);
        let groups = NamedGroups::new(communicator.clone());
        let environment = Environment { communicator, discovery, seed, groups, _only_one: only_one };
        crate::util::log::event!(DEBUG, "{environment:?}");
        if self.verbose {
            environment.print_on_master(format_args!("{environment:?}"));
        }
        Ok(environment)
    }

    /// Finds the other ranks, agrees with them on the backend, and makes the communicator.
    fn connect(&self, connecting: &Connecting<'_>) -> Result<(Communicator, AgreedSetup)> {
        let Connecting { discovery, deadline, ref job, .. } = *connecting;
        let secret = self.checked_secret()?;
        let ordinal = || connecting.ordinal();
        let info = RankInfo::of_this_process(self.backend, self.seed, ordinal, discovery.local_rank);
        let endpoint = match &discovery.rendezvous {
            None => {
                let host = connecting.host_communicator(job)?;
                let agreement = AgreedSetup::of_ranks(&host.exchange(Purpose::INITIALIZE, &info, deadline)?)?;
                let communicator = match agreement.backend {
                    BackendKind::Nccl => {
                        let exchange = |bytes: &[u8]| host.exchange_bytes(Purpose::INITIALIZE, bytes, deadline);
                        let id = share_id(discovery.rank, exchange)?;
                        connecting.nccl_communicator(&id, Some(host))?
                    }
                    _ => host,
                };
                return Ok((communicator, agreement));
            }
            Some(Endpoint::Tcp { host, .. })
                if self.backend == BackendKind::Host && !is_this_machine(host, deadline)? =>
            {
                bail!(
                    Unsupported,
                    "MASTER_ADDR is {host}, which is not this machine; the host backend is for one machine, and beyond it \
                     there is NCCL"
                )
            }
            Some(endpoint) => endpoint,
        };
        let participant = Participant {
            job,
            secret: secret.as_ref().map(|Secret(secret)| secret.as_slice()),
            world_size: discovery.world_size,
            first_rank: discovery.rank.0,
            rank_count: 1,
            deadline,
        };
        let mut rendezvous = Rendezvous::join(endpoint, &participant)?;
        let agreement =
            AgreedSetup::of_ranks(&exchange(&info, |rank| rank, |bytes| rendezvous.exchange(bytes, deadline))?)?;
        let connect_host = || connecting.host_communicator(&format!("{job} {}", rendezvous.nonce()));
        let host = agreement.is_one_machine.then(connect_host).transpose()?;
        let communicator = match (agreement.backend, host) {
            (BackendKind::Nccl, host) => {
                let id = share_id(discovery.rank, |bytes| rendezvous.exchange(bytes, deadline))?;
                connecting.nccl_communicator(&id, host)?
            }
            (_, Some(host)) => host,
            (_, None) => bail!(System, "ranks of several machines agreed on the host backend"),
        };
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

/// What this process needs to make its communicators.
struct Connecting<'a> {
    discovery: &'a Discovery,
    /// The name that all processes of the job give.
    job: String,
    /// The number of this rank's GPU, if the caller gives it.
    device: Option<u32>,
    deadline: Instant,
}

impl Connecting<'_> {
    /// A host communicator of all ranks, which are on one machine.
    fn host_communicator(&self, job: &str) -> Result<Communicator> {
        let Discovery { world_size, rank, .. } = *self.discovery;
        Communicator::builder().job(job).world_size(world_size).rank(rank).timeout(self.left()).connect()
    }

    /// An NCCL communicator of all ranks. `host`, if there is one, tells ranks which rank fails.
    fn nccl_communicator(&self, id: &NcclId, host: Option<Communicator>) -> Result<Communicator> {
        let Discovery { world_size, rank, .. } = *self.discovery;
        let builder = Communicator::builder().nccl(id).world_size(world_size).rank(rank).device(self.ordinal());
        builder.control(host).timeout(self.left()).connect()
    }

    /// The number of this rank's GPU. Without a number from the caller this loads CUDA.
    fn ordinal(&self) -> u32 {
        self.device.unwrap_or_else(|| default_device(self.discovery.local_rank))
    }

    /// The time until the deadline.
    fn left(&self) -> Duration {
        self.deadline.saturating_duration_since(Instant::now())
    }
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
    // If rank 0 fails, it gives no bytes, so that every rank returns an error.
    let own = id.as_ref().map_or(&[][..], |id| id.as_ref().map_or(&[][..], NcclId::as_bytes));
    let all = exchange(own)?;
    id?;
    NcclId::from_bytes(&all[0]).map_err(|e| error!(System, "rank 0 could not make an id").with_source(e))
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
