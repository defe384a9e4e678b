//! `distcollective launch`: one process a rank.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use rustix::process::{Pid, Signal, kill_process_group};

/// Starts N ranks of a program with RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
///
/// Each line that a rank writes is prefixed by its number. When a rank fails, the others are ended, and the exit code is the
/// failed rank's (128 and the signal's number where a signal ended it).
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

/// How long the other ranks have to end by themselves when one has failed.
const GRACE: Duration = Duration::from_secs(2);

const POLL_INTERVAL: Duration = Duration::from_millis(10);

struct Rank {
    child: Child,
    readers: Vec<JoinHandle<()>>,
    status: Option<ExitStatus>,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    let interrupted = Arc::new(AtomicBool::new(false));
    for signal in [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM] {
        if let Err(error) = signal_hook::flag::register(signal, Arc::clone(&interrupted)) {
            eprintln!("error: signal {signal} cannot be watched: {error}");
            return ExitCode::from(127);
        }
    }
    let mut ranks: Vec<Rank> = match start(arguments) {
        Ok(ranks) => ranks,
        Err(text) => {
            eprintln!("error: {text}");
            return ExitCode::from(127);
        }
    };
    let outcome = watch(&mut ranks, &interrupted);
    // The pipes end with the ranks, unless a rank's own child still holds one.
    let end = Instant::now() + Duration::from_secs(1);
    while ranks.iter().flat_map(|rank| &rank.readers).any(|reader| !reader.is_finished()) && Instant::now() < end {
        std::thread::sleep(POLL_INTERVAL);
    }
    match outcome {
        Outcome::Success => ExitCode::SUCCESS,
        Outcome::Interrupted => {
            eprintln!("error: interrupted; the ranks were ended");
            ExitCode::from(130)
        }
        Outcome::Failed(number, status) => {
            let others = if ranks.len() > 1 { "; the other ranks were ended" } else { "" };
            eprintln!("error: rank {number} {}{others}", describe(status));
            let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
            ExitCode::from(u8::try_from(code).unwrap_or(1))
        }
    }
}

fn start(arguments: &Arguments) -> Result<Vec<Rank>, String> {
    // A port that nobody uses now. The host backend takes it as a name only; what crosses machines will listen on it.
    let port = TcpListener::bind(("127.0.0.1", 0))
        .and_then(|listener| listener.local_addr())
        .map_err(|e| format!("no free port: {e}"))?
        .port();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let job = format!("{}-{}", std::process::id(), now.as_nanos());
    let (program, rest) = arguments.program.split_first().ok_or("there is no program")?;
    let mut ranks: Vec<Rank> = Vec::new();
    for number in 0..arguments.n {
        let mut command = Command::new(program);
        command
            .args(rest)
            .env("RANK", number.to_string())
            .env("WORLD_SIZE", arguments.n.to_string())
            .env("LOCAL_RANK", number.to_string())
            .env("LOCAL_WORLD_SIZE", arguments.n.to_string())
            .env("MASTER_ADDR", "127.0.0.1")
            .env("MASTER_PORT", port.to_string())
            .env("DCL_JOB_ID", &job)
            .process_group(0)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let end_with_parent = || {
            rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
            Ok(())
        };
        // SAFETY: between fork and exec the child makes one system call, which allocates nothing and takes no lock.
        unsafe { command.pre_exec(end_with_parent) };
        match command.spawn() {
            Ok(mut child) => {
                let mut readers = Vec::new();
                readers.extend(child.stdout.take().map(|pipe| forward(number, pipe, std::io::stdout)));
                readers.extend(child.stderr.take().map(|pipe| forward(number, pipe, std::io::stderr)));
                ranks.push(Rank { child, readers, status: None });
            }
            Err(error) => {
                ranks.iter_mut().for_each(|rank| end(rank, Signal::KILL));
                return Err(format!("rank {number}: {program:?} cannot be started: {error}"));
            }
        }
    }
    Ok(ranks)
}

/// Copies a rank's lines, each with its number in front, whole.
fn forward<W: Write + 'static>(rank: u32, pipe: impl Read + Send + 'static, to: fn() -> W) -> JoinHandle<()> {
    std::thread::spawn(move || {
        let mut lines = BufReader::new(pipe);
        let mut line = Vec::new();
        while lines.read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            if !line.ends_with(b"\n") {
                line.push(b'\n');
            }
            let mut text = format!("[{rank}] ").into_bytes();
            text.append(&mut line);
            // Whoever reads us may have gone; the rank goes on.
            let _ = to().write_all(&text);
        }
    })
}

enum Outcome {
    Success,
    /// The first rank that failed.
    Failed(usize, ExitStatus),
    Interrupted,
}

/// Waits for all ranks. When one fails or somebody interrupts, the others are ended.
fn watch(ranks: &mut [Rank], interrupted: &AtomicBool) -> Outcome {
    let mut failure = None;
    let mut ending_since = None;
    let mut sent = None;
    loop {
        for (number, rank) in ranks.iter_mut().enumerate().filter(|(_, rank)| rank.status.is_none()) {
            rank.status = rank.child.try_wait().ok().flatten();
            if let Some(status) = rank.status.filter(|status| !status.success()) {
                failure.get_or_insert((number, status));
            }
        }
        let interrupted = interrupted.load(Ordering::Relaxed);
        if ranks.iter().all(|rank| rank.status.is_some()) {
            if failure.is_some() || interrupted {
                // What the ranks had started goes with them.
                ranks.iter_mut().for_each(|rank| end(rank, Signal::KILL));
            }
            return match failure {
                _ if interrupted => Outcome::Interrupted,
                Some((number, status)) => Outcome::Failed(number, status),
                None => Outcome::Success,
            };
        }
        if failure.is_some() || interrupted {
            let ending = ending_since.get_or_insert_with(Instant::now).elapsed();
            // Ranks that wait for the one that failed end by themselves and say why; the others are told, then ended.
            let signal = match ending {
                _ if ending >= 2 * GRACE => Some(Signal::KILL),
                _ if ending >= GRACE || interrupted => Some(Signal::TERM),
                _ => None,
            };
            if let Some(signal) = signal.filter(|signal| sent != Some(*signal)) {
                sent = Some(signal);
                ranks.iter_mut().filter(|rank| rank.status.is_none()).for_each(|rank| end(rank, signal));
            }
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

/// Sends a signal to a rank and all its children: each rank is a process group.
fn end(rank: &mut Rank, signal: Signal) {
    if let Some(pid) = i32::try_from(rank.child.id()).ok().and_then(Pid::from_raw) {
        // The group may have ended meanwhile; while a member lives the number is nobody else's.
        let _ = kill_process_group(pid, signal);
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("exited with code {code}"),
        (None, Some(signal)) => format!("was ended by signal {signal}"),
        (None, None) => "ended".to_owned(),
    }
}
