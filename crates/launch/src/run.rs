//! One run of a job: starts the ranks, watches them, ends them.

use std::collections::BTreeSet;
use std::io::{IsTerminal, Result as IoResult};
use std::net::TcpListener;
use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use distcollective::system::resource_limits;
use distcollective::{Error, Rank, Result};
use rustix::io::Errno;
use rustix::process::{PidfdFlags, Rlimit, Signal, pidfd_open};
use rustix::thread::CpuSet;

use crate::control::JobControl;
use crate::events::{EventFlags, Events, OTHER, event_counter};
use crate::guard::Guard;
use crate::input::InputCopy;
use crate::output::Forwarding;
use crate::processes::{kill_job, living_groups};
use crate::rank_process::RankProcess;
use crate::reports::Reports;
use crate::{Job, Outcome, descriptors};

/// The variable that names the socket for [`Reports`].
const LAUNCH_SOCKET: &str = "DCL_LAUNCH_SOCKET";

/// Variables that torchrun gives to its ranks, beside those that a job sets.
const TORCH_ELASTIC: [&str; 3] = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"];

/// The variable that names the jobs in which a process runs, the outermost first. Children of ranks
/// inherit it.
const JOBS: &str = "DCL_LAUNCH_JOBS";

/// The time that ranks have to end by themselves before they get SIGTERM, and then SIGKILL.
const GRACE: Duration = Duration::from_secs(2);

/// How often the job checks whether all processes of a rank have ended, while other ranks wait to
/// initialize. No event says so.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// After all ranks have ended, how long the output of processes that they left behind is taken.
const LEFTOVER_LIMIT: Duration = Duration::from_secs(5);

/// How many files the job has open for each rank.
const FILES_PER_RANK: u64 = 4;

/// Runs a job. `cpus` has a set for each rank.
pub(super) fn run(job: &Job, cpus: Option<&[CpuSet]>, command: impl FnMut(Rank) -> Command) -> Result<Outcome> {
    let mut run = Run::new(job)?;
    let outcome = run.start(job, cpus, command).and_then(|()| run.watch())?;
    if !outcome.is_success() {
        run.kill_all();
    }
    let outcome = run.drain()?.unwrap_or(outcome);
    run.is_over = true;
    Ok(outcome)
}

struct Run<'a> {
    control: &'a JobControl,
    variables: RunVariables,
    /// `None` once the job is over.
    guard: Option<Guard>,
    reports: Reports,
    ranks: Vec<RankProcess>,
    events: Events,
    forwarding: Forwarding,
    /// The copy of a terminal's input to a rank.
    input: Option<InputCopy>,
    /// The limit of open files that the ranks get: this process's before the job raised it. `None`
    /// if the system does not tell.
    files: Option<Rlimit>,
    /// Whether all ranks have ended, and what they left behind may go on.
    is_over: bool,
}

/// What every rank's environment says of this run.
struct RunVariables {
    /// Unique to this run.
    job: String,
    /// MASTER_PORT.
    port: u16,
    /// The name of the socket for reports.
    socket: String,
    /// The value of [`JOBS`].
    jobs: String,
}

impl RunVariables {
    fn new() -> Result<Self> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let job = format!("{}-{}", std::process::id(), now.as_nanos());
        // A port that is free now. On one machine ranks use it only as part of a name.
        let address = TcpListener::bind(("127.0.0.1", 0)).and_then(|listener| listener.local_addr());
        let port = address.map_err(|e| error!(System, "no free port: {e}").with_source(e))?.port();
        let outer = std::env::var(JOBS).unwrap_or_default();
        Ok(RunVariables { socket: format!("distcollective-launch-{job}"), jobs: format!("{outer}{job};"), job, port })
    }

    /// What the environments of this run's processes have, and no other's.
    fn mark(&self) -> String {
        format!("{};", self.job)
    }

    fn set(&self, command: &mut Command, rank: Rank, world_size: u32) {
        let (rank, world_size) = (rank.to_string(), world_size.to_string());
        command
            .envs([("RANK", &rank), ("LOCAL_RANK", &rank)])
            .envs([("WORLD_SIZE", &world_size), ("LOCAL_WORLD_SIZE", &world_size)])
            .envs([("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", &self.port.to_string())])
            .envs([("DCL_JOB_ID", &self.job), (LAUNCH_SOCKET, &self.socket), (JOBS, &self.jobs)]);
        // If this program is a rank of torchrun, the new ranks are not.
        for name in TORCH_ELASTIC {
            command.env_remove(name);
        }
    }
}

impl<'a> Run<'a> {
    fn new(job: &'a Job) -> Result<Self> {
        let files = resource_limits(libc::RLIMIT_NOFILE).ok();
        let files = files.map(|[current, maximum]| Rlimit { current, maximum });
        descriptors::make_room(FILES_PER_RANK * u64::from(job.world_size));
        let variables = RunVariables::new()?;
        // The name that the environment gives to the job of these variables.
        let name = format!("loopback:{}/{}", variables.port, variables.job);
        let events = Events::new().map_err(failed("events cannot be watched"))?;
        let reports = Reports::listen(&variables.socket, name, job.world_size, &events);
        let reports = reports.map_err(failed("no socket for the ranks' reports"))?;
        let news = Arc::new(event_counter().map_err(failed("no event counter"))?);
        events.add_other(&*news).map_err(failed("an event counter cannot be watched"))?;
        let guard = Guard::start(variables.mark().as_bytes(), job.world_size as usize);
        let guard = guard.map_err(failed("the process that guards the ranks cannot be started"))?;
        let forwarding = Forwarding::new(job.world_size, Arc::clone(&news));
        let forwarding = forwarding.map_err(failed("no event counter"))?;
        job.control.enter(&news)?;
        Ok(Run {
            control: &job.control,
            variables,
            guard: Some(guard),
            reports,
            ranks: Vec::new(),
            events,
            forwarding,
            input: None,
            files,
            is_over: false,
        })
    }

    /// Starts all ranks, or those up to the call of [`JobControl::end`].
    fn start(&mut self, job: &Job, cpus: Option<&[CpuSet]>, mut command: impl FnMut(Rank) -> Command) -> Result<()> {
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        for rank in (0..job.world_size).map(Rank) {
            let mut command = command(rank);
            self.variables.set(&mut command, rank, job.world_size);
            let takes_stdin = job.stdin == Some(rank);
            let copies_stdin = takes_stdin && std::io::stdin().is_terminal();
            command.stdin(match takes_stdin {
                true if copies_stdin => Stdio::piped(),
                true => Stdio::inherit(),
                false => Stdio::null(),
            });
            if job.outputs.is_some() {
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
            }
            let cpus = cpus.map(|sets| sets[rank.index()]);
            // While the lock is held, no signal can miss a rank that has just been started.
            let mut state = self.control.lock();
            if state.end.is_some() {
                break;
            }
            let program = command.get_program().to_owned();
            let process = RankProcess::start(command, job.own_groups, cpus, self.files)
                .map_err(|e| failed(format_args!("{program:?} cannot be started"))(e).on_rank(rank))?;
            state.targets.push(process.target());
            drop(state);
            self.ranks.push(process);
            let child = self.watch_rank(rank).map_err(|e| failed("its process cannot be watched")(e).on_rank(rank))?;
            stdout.extend(child.stdout.take().map(|pipe| (rank, OwnedFd::from(pipe))));
            stderr.extend(child.stderr.take().map(|pipe| (rank, OwnedFd::from(pipe))));
            if let Some(pipe) = child.stdin.take() {
                self.input = Some(InputCopy::copy_to(pipe).map_err(failed("standard input cannot be copied"))?);
            }
        }
        for (pipes, output) in [stdout, stderr].into_iter().zip(job.outputs.iter().flatten()) {
            let started = self.forwarding.start(pipes, Arc::clone(output));
            started.map_err(failed("the ranks' output cannot be forwarded"))?;
        }
        Ok(())
    }

    fn watch_rank(&mut self, rank: Rank) -> IoResult<&mut Child> {
        let process = &mut self.ranks[rank.index()];
        if let Some(guard) = &self.guard {
            guard.tell(process.target().as_raw())?;
        }
        let pidfd = pidfd_open(process.pid(), PidfdFlags::empty()).map_err(|e| match e {
            Errno::NOSYS | Errno::PERM => std::io::Error::other(format!(
                "the launcher needs pidfd_open, which Linux has from 5.3 on, and which a sandbox may forbid: {e}"
            )),
            e => e.into(),
        })?;
        // The kernel removes it from the queue when it is closed.
        let pidfd = process.pidfd.insert(pidfd);
        self.events.add(rank.index() as u64, pidfd, EventFlags::IN | EventFlags::ET)?;
        Ok(&mut process.child)
    }

    /// Waits for all ranks. If one fails or the job is ended, ends the others.
    fn watch(&mut self) -> Result<Outcome> {
        let mut outcome = Outcome::Success;
        let mut ending_since = None;
        // The signals still to be sent to the remaining ranks, and when; the last one first.
        let mut steps: Vec<(Instant, Signal)> = Vec::new();
        loop {
            let now = Instant::now();
            if ending_since.is_none() && self.forwarding.failure().is_some() {
                ending_since = Some(now);
                steps = ending(Signal::TERM.as_raw(), now, now);
            }
            if let Some((signal, is_second)) = self.new_request_to_end() {
                outcome = Outcome::Ended { signal };
                let since = *ending_since.get_or_insert(now);
                steps = if is_second { vec![(now, Signal::KILL)] } else { ending(signal, since, now) };
            }
            if ending_since.is_none()
                && let Some((rank, waiting)) = self.missed()
            {
                outcome = Outcome::Missed { rank, waiting };
                ending_since = Some(now);
                steps = vec![(now + GRACE, Signal::KILL), (now, Signal::TERM)];
            }
            while let Some((_, signal)) = steps.pop_if(|(at, _)| *at <= now) {
                self.send(signal);
            }
            if self.ranks.iter().all(|rank| rank.status.is_some()) {
                return Ok(outcome);
            }
            let timeout = steps.last().map(|(at, _)| at.saturating_duration_since(now));
            let timeout = timeout.or(self.may_be_missed().then_some(POLL_INTERVAL));
            if let Some(number) = self.next(timeout)?
                && let rank = Rank(number as u32)
                && let Some(status) =
                    self.ranks[number].poll().map_err(|e| failed("its end cannot be found out")(e).on_rank(rank))?
                && !status.success()
                && ending_since.is_none()
            {
                outcome = Outcome::Failed { rank, status };
                // Ranks that wait for the failed one return an error and end by themselves. The
                // others get SIGTERM, then SIGKILL.
                let now = Instant::now();
                ending_since = Some(now);
                steps = vec![(now + 2 * GRACE, Signal::KILL), (now + GRACE, Signal::TERM)];
            }
        }
    }

    /// Waits for the next event. Gives the number of the rank if one has ended.
    fn next(&self, timeout: Option<Duration>) -> Result<Option<usize>> {
        let number = self.events.next(timeout).map_err(failed("events cannot be waited for"))?;
        Ok(number.filter(|number| *number != OTHER).map(|number| number as usize))
    }

    /// The signal that is to end the job, if it was asked to end since the last call, and whether
    /// [`JobControl::end`] was called a second time: then the ranks get SIGKILL.
    fn new_request_to_end(&self) -> Option<(i32, bool)> {
        let mut state = self.control.lock();
        let is_new = std::mem::take(&mut state.has_request);
        state.end.filter(|_| is_new).map(|signal| (signal, state.calls_of_end > 1))
    }

    /// Whether a rank waits for others to initialize, and a rank has ended.
    fn may_be_missed(&self) -> bool {
        self.reports.has_waiting() && self.ranks.iter().any(|rank| rank.status.is_some())
    }

    /// An ended rank that others still wait for.
    fn missed(&mut self) -> Option<(Rank, BTreeSet<Rank>)> {
        self.read_reports();
        if !self.may_be_missed() {
            return None;
        }
        // The others may wait for a process that the rank left behind.
        let groups = living_groups();
        let has_ended = |(number, rank): (usize, &RankProcess)| {
            rank.status.is_some() && self.forwarding.has_closed(number) && !rank.has_processes(groups.as_ref())
        };
        let ended: Vec<bool> = self.ranks.iter().enumerate().map(has_ended).collect();
        // What ended after the first reading may have reported before.
        self.read_reports();
        self.reports.missed(|number| ended.get(number).is_some_and(|ended| *ended))
    }

    fn read_reports(&mut self) {
        let Run { reports, events, ranks, .. } = self;
        reports.read(events, |pid, rank| ranks.get(rank).is_some_and(|process| process.includes(pid)));
    }

    /// Sends a signal that ends the remaining ranks. A stopped one goes on, so that it can end.
    fn send(&self, signal: Signal) {
        for rank in self.ranks.iter().filter(|rank| rank.status.is_none()) {
            rank.target().send(signal);
            rank.target().send(Signal::CONT);
        }
    }

    /// Kills the remaining ranks and all processes that ranks started.
    fn kill_all(&self) {
        self.ranks.iter().for_each(|rank| rank.target().send(Signal::KILL));
        kill_job(self.variables.mark().as_bytes(), &[], 0);
    }

    /// Waits until the output is passed on, or has failed. Returns an outcome if the job was asked
    /// to end meanwhile.
    fn drain(&mut self) -> Result<Option<Outcome>> {
        self.forwarding.ranks_have_ended();
        let mut limit = None;
        while self.forwarding.failure().is_none() && !self.forwarding.is_finished() {
            let now = Instant::now();
            if self.forwarding.is_paid() && now >= *limit.get_or_insert(now + LEFTOVER_LIMIT) {
                break;
            }
            if let Some((signal, _)) = self.new_request_to_end() {
                self.kill_all();
                return Ok(Some(Outcome::Ended { signal }));
            }
            self.next(limit.map(|limit| limit.saturating_duration_since(now)))?;
        }
        self.forwarding.failure().map_or(Ok(None), |failure| Err(failure.clone()))
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.input = None;
        // After an error, ranks may still run.
        if !self.is_over {
            self.kill_all();
        }
        self.control.leave();
        // Only then may other processes get the ranks' numbers.
        self.guard = None;
        self.ranks.iter_mut().for_each(|rank| drop(rank.child.wait()));
    }
}

/// The signals that end ranks, and when; the last one first.
fn ending(signal: i32, since: Instant, now: Instant) -> Vec<(Instant, Signal)> {
    let first = Signal::from_named_raw(signal).unwrap_or(Signal::TERM);
    vec![(since + 2 * GRACE, Signal::KILL), (since + GRACE, Signal::TERM), (now, first)]
}

/// An error of the system, and what to do about it.
fn failed(what: impl std::fmt::Display) -> impl FnOnce(std::io::Error) -> Error {
    move |e| error!(System, "{what}: {e}{}", descriptors::hint(&e)).with_source(e)
}
