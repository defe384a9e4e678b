//! `distcollective launch`: starts a process for each rank.

mod events;
mod output;
mod reports;

use std::collections::BTreeSet;
use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{
    Pid, PidfdFlags, Signal, WaitId, WaitIdOptions, WaitIdStatus, kill_process_group, pidfd_open, waitid,
};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use events::{Event, Events};
use output::Output;
use reports::Reports;

/// Starts N ranks of a program with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and
/// MASTER_PORT set.
///
/// Each line that a rank writes gets the rank's number as prefix.
///
/// If a rank fails, the launcher ends the others, and exits with the failed rank's code, or with
/// 128 plus the signal's number if a signal ended that rank.
///
/// If a rank exits with code 0 while others wait for it to initialize their environment, the
/// launcher ends them. Its exit code is then 1.
///
/// On SIGHUP, SIGINT or SIGTERM the launcher ends the ranks. Its exit code is then 128 plus the
/// signal's number.
///
/// Example: distcollective launch -n 4 -- sample_dist_collective --op all
#[derive(clap::Args)]
pub struct Arguments {
    /// The number of ranks
    #[arg(short, value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: u32,
    /// The program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<String>,
}

/// The time that the other ranks have to end by themselves after one has failed.
const GRACE: Duration = Duration::from_secs(2);

pub fn run(arguments: &Arguments) -> ExitCode {
    match launch(arguments) {
        Ok(Outcome::Success) => ExitCode::SUCCESS,
        Ok(Outcome::Interrupted(signal)) => {
            eprintln!("error: interrupted by signal {signal}; the ranks were ended");
            exit_code(128 + signal)
        }
        Ok(Outcome::Failed(number, status)) => {
            let others = if arguments.n > 1 { "; the other ranks were ended" } else { "" };
            eprintln!("error: rank {number} {}{others}", describe(status));
            exit_code(status.exit_status().unwrap_or_else(|| 128 + status.terminating_signal().unwrap_or(0)))
        }
        Ok(Outcome::Missed(number, waiting)) => {
            let waiting: Vec<String> = waiting.iter().map(u32::to_string).collect();
            let (noun, verb) = if waiting.len() == 1 { ("rank", "waits") } else { ("ranks", "wait") };
            let waiting = waiting.join(", ");
            eprintln!(
                "error: rank {number} exited with code 0 and never met the others, and {noun} {waiting} {verb} for it to \
                 initialize the environment; the other ranks were ended"
            );
            ExitCode::FAILURE
        }
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::from(127)
        }
    }
}

enum Outcome {
    Success,
    /// The first rank that failed.
    Failed(usize, WaitIdStatus),
    /// A rank that exited with code 0, and the ranks that wait for it to initialize their
    /// environment.
    Missed(usize, BTreeSet<u32>),
    /// The first signal.
    Interrupted(i32),
}

fn launch(arguments: &Arguments) -> Result<Outcome, String> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let job = format!("{}-{}", std::process::id(), now.as_nanos());
    let socket = format!("distcollective-launch-{job}");
    // A port that is free now. On one machine ranks use it only as part of a name.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|e| format!("no free port: {e}"))?
        .port();
    // The name that the library gives to the job of these variables.
    let reports = Reports::listen(&socket, format!("loopback:{port}/{job}"), arguments.n);
    let mut launch = Launch {
        job,
        reports: reports.map_err(|e| format!("no socket for the ranks' reports: {e}"))?,
        port,
        socket,
        ranks: Vec::new(),
        events: Events::new().map_err(|e| format!("events cannot be watched: {e}"))?,
        output: Output::default(),
    };
    if let Some(listener) = launch.reports.listener() {
        launch.events.add_report(listener).map_err(|e| format!("the ranks' reports cannot be watched: {e}"))?;
    }
    for signal in [SIGHUP, SIGINT, SIGTERM] {
        launch.events.add_signal(signal).map_err(|e| format!("signal {signal} cannot be watched: {e}"))?;
    }
    let mut outcome = launch.start(arguments).and_then(|()| launch.watch());
    if !matches!(outcome, Ok(Outcome::Success)) {
        launch.end_all();
    }
    launch.output.drain(|interval| match launch.next_signal(interval) {
        Some(signal) => {
            launch.end_all();
            outcome = Ok(Outcome::Interrupted(signal));
            true
        }
        None => false,
    });
    outcome
}

/// A rank's process. The launcher never reaps it, so that no other process gets its number.
struct Rank {
    pid: Pid,
    status: Option<WaitIdStatus>,
}

impl Rank {
    /// How the rank has ended, if it has.
    fn poll(&mut self) -> rustix::io::Result<Option<WaitIdStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.status = waitid(WaitId::Pid(self.pid), options)?;
        Ok(self.status)
    }

    /// Whether a process of the rank's group runs: the rank, or one that it started. True if /proc
    /// cannot be read.
    fn has_processes(&self) -> bool {
        let Ok(processes) = std::fs::read_dir("/proc") else { return true };
        let stats = processes.flatten().filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
        let group = self.pid.as_raw_nonzero().to_string();
        stats.into_iter().any(|stat| {
            // `7 (a name) S 1 7 ...`: after the name, which may contain any characters, come the
            // state, the parent and the group.
            let mut fields = stat.rsplit(')').next().unwrap_or_default().split_ascii_whitespace();
            let (state, group_of) = (fields.next(), fields.nth(1));
            group_of == Some(group.as_str()) && !matches!(state, Some("Z" | "X"))
        })
    }

    /// Sends a signal to a rank and all its children: each rank is a process group.
    fn end(&self, signal: Signal) {
        // An error means that all its processes have ended.
        let _ = kill_process_group(self.pid, signal);
    }
}

/// How often the launcher checks whether all processes of a rank have ended, while other ranks wait
/// to initialize.
const POLL_INTERVAL: Duration = Duration::from_millis(50);

struct Launch {
    /// Unique to this launcher.
    job: String,
    /// MASTER_PORT.
    port: u16,
    /// The name of the socket for reports.
    socket: String,
    reports: Reports,
    ranks: Vec<Rank>,
    events: Events,
    output: Output,
}

impl Launch {
    fn start(&mut self, arguments: &Arguments) -> Result<(), String> {
        let (program, rest) = arguments.program.split_first().ok_or("there is no program")?;
        for number in 0..arguments.n {
            let mut command = Command::new(program);
            command
                .args(rest)
                .env("RANK", number.to_string())
                .env("WORLD_SIZE", arguments.n.to_string())
                .env("LOCAL_RANK", number.to_string())
                .env("LOCAL_WORLD_SIZE", arguments.n.to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", self.port.to_string())
                .env("DCL_JOB_ID", &self.job)
                .env(reports::VARIABLE, &self.socket)
                .process_group(0)
                .stdin(Stdio::null())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
            let end_with_parent = || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                Ok(())
            };
            // SAFETY: between fork and exec the child only makes one system call, which neither
            // allocates nor locks.
            unsafe { command.pre_exec(end_with_parent) };
            let child = command.spawn().map_err(|e| format!("rank {number}: {program:?} cannot be started: {e}"))?;
            self.watch_rank(number, child).map_err(|e| format!("rank {number} cannot be watched: {e}"))?;
        }
        Ok(())
    }

    /// Watches a rank's process and its output.
    fn watch_rank(&mut self, number: u32, mut child: Child) -> std::io::Result<()> {
        let pid = Pid::from_child(&child);
        self.ranks.push(Rank { pid, status: None });
        self.events.add_rank(number as usize, pidfd_open(pid, PidfdFlags::empty())?)?;
        if let Some(pipe) = child.stdout.take() {
            self.output.forward(number, pipe, std::io::stdout)?;
        }
        if let Some(pipe) = child.stderr.take() {
            self.output.forward(number, pipe, std::io::stderr)?;
        }
        Ok(())
    }

    /// Waits for all ranks. If one fails or a signal arrives, ends the others.
    fn watch(&mut self) -> Result<Outcome, String> {
        let mut outcome = Outcome::Success;
        let mut ending_since = None;
        // The signals still to be sent to the remaining ranks, and when; the last one first.
        let mut steps: Vec<(Instant, Signal)> = Vec::new();
        while self.ranks.iter().any(|rank| rank.status.is_none()) {
            let timeout = steps.last().map(|(at, _)| at.saturating_duration_since(Instant::now()));
            // No event says that a process which a rank left behind has ended.
            let polls = self.ranks.iter().any(|rank| rank.status.is_some()) && self.reports.has_waiting();
            let timeout = timeout.or(polls.then_some(POLL_INTERVAL));
            let event = self.events.next(timeout).map_err(|e| format!("events cannot be waited for: {e}"))?;
            let now = Instant::now();
            match event {
                Some(Event::Ended(number)) => {
                    let status = self.ranks[number].poll().map_err(|e| format!("rank {number}: {e}"))?;
                    if let Some(status) = status.filter(|status| status.exit_status() != Some(0))
                        && matches!(outcome, Outcome::Success)
                    {
                        outcome = Outcome::Failed(number, status);
                        // Ranks that wait for the failed one return an error and end by themselves.
                        // The others get SIGTERM, then SIGKILL.
                        ending_since = Some(now);
                        steps = vec![(now + 2 * GRACE, Signal::KILL), (now + GRACE, Signal::TERM)];
                    }
                }
                Some(Event::Signal(signal)) if !matches!(outcome, Outcome::Interrupted(_)) => {
                    outcome = Outcome::Interrupted(signal);
                    let since = ending_since.unwrap_or(now);
                    steps = vec![(since + 2 * GRACE, Signal::KILL), (now, Signal::TERM)];
                }
                _ => {}
            }
            if matches!(outcome, Outcome::Success)
                && let Some((ended, waiting)) = self.missed()
            {
                outcome = Outcome::Missed(ended, waiting);
                steps = vec![(now + GRACE, Signal::KILL), (now, Signal::TERM)];
            }
            while let Some((_, signal)) = steps.pop_if(|(at, _)| *at <= now) {
                self.ranks.iter().filter(|rank| rank.status.is_none()).for_each(|rank| rank.end(signal));
            }
        }
        Ok(outcome)
    }

    /// An ended rank that others still wait for. First reads all reports, since a rank may have
    /// reported before it ended.
    fn missed(&mut self) -> Option<(usize, BTreeSet<u32>)> {
        let Launch { reports, events, ranks, output, .. } = self;
        reports.read(|connection| events.add_report(connection), |number| ranks.get(number).map(|rank| rank.pid));
        // The others may wait for a process that the rank left behind.
        reports.missed(|number| {
            let rank = ranks.get(number).filter(|rank| rank.status.is_some());
            rank.is_some_and(|rank| output.has_ended(number as u32) && !rank.has_processes())
        })
    }

    /// Kills the remaining ranks and all processes that ranks started.
    fn end_all(&self) {
        self.ranks.iter().for_each(|rank| rank.end(Signal::KILL));
    }

    /// Waits for a signal until the timeout.
    fn next_signal(&self, timeout: Duration) -> Option<i32> {
        match self.events.next(Some(timeout)) {
            Ok(Some(Event::Signal(signal))) => Some(signal),
            _ => None,
        }
    }
}

fn describe(status: WaitIdStatus) -> String {
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}

fn exit_code(code: i32) -> ExitCode {
    ExitCode::from(u8::try_from(code).unwrap_or(1))
}
