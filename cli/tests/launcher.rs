//! `distcollective launch` itself: what reaches the ranks, what they write, what is left of them.

mod terminal;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use test_support::processes::{children, state, wait_until};
use test_support::{run, text, timed};

use self::terminal::terminal;

const DISTCOLLECTIVE: &str = env!("CARGO_BIN_EXE_distcollective");

/// A program that a test signals directly. Dropping it kills it.
struct Running {
    child: Child,
    stdout: BufReader<ChildStdout>,
}

impl Running {
    fn start(arguments: &[&str]) -> Self {
        let mut command = Command::new("env");
        command.args(["--default-signal", DISTCOLLECTIVE]).args(arguments);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("it starts");
        let stdout = BufReader::new(child.stdout.take().expect("a pipe"));
        // If a test waits in vain, its reads end with the program.
        let process = pidfd_open(Pid::from_child(&child), PidfdFlags::empty()).expect("an own child");
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(9));
            let _ = pidfd_send_signal(process, Signal::KILL);
        });
        Running { child, stdout }
    }

    /// Starts ranks that run a shell script.
    fn script(options: &[&str], script: &str) -> Self {
        Self::start(&[&["launch"], options, &["--", "sh", "-c", script]].concat())
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.stdout.read_line(&mut line).expect("text");
        line.trim_end().to_owned()
    }

    /// The words of `count` lines, without the prefixes, as numbers.
    fn numbers(&mut self, count: usize) -> Vec<u32> {
        let lines: Vec<String> = (0..count).map(|_| self.line()).collect();
        let words = lines.iter().flat_map(|line| line.split_whitespace().skip(1));
        words.map(|word| word.parse().expect("a number")).collect()
    }

    fn send(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("it runs");
    }

    /// Waits for the end. Returns the exit code that a shell has, the rest of the output, and the
    /// errors.
    fn end(mut self) -> (Option<i32>, String, String) {
        wait_until("the launcher ends", || self.child.try_wait().expect("an own child").is_some());
        let status = self.child.wait().expect("an own child");
        let (mut rest, mut errors) = (String::new(), String::new());
        self.stdout.read_to_string(&mut rest).expect("text");
        self.child.stderr.take().expect("a pipe").read_to_string(&mut errors).expect("text");
        (status.code().or(status.signal().map(|signal| 128 + signal)), rest, errors)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A rank with two children, one of which has a session of its own. It prints the numbers of all.
const FAMILY: &str = "sleep 60 & a=$!; setsid sleep 60 & b=$!
    until read pid name state parent group session rest < /proc/$b/stat && [ $session = $b ]; do :; done
    echo $$ $a $b";

fn assert_all_end(pids: &[u32]) {
    wait_until("all processes end", || pids.iter().all(|pid| state(*pid).is_none()));
}

#[test]
fn a_killed_launcher_leaves_no_rank_and_no_child_of_one() {
    for stopped in [false, true] {
        let mut launcher = Running::script(&["-n", "2"], &format!("{FAMILY}; wait"));
        let pids = launcher.numbers(2);
        assert_eq!(pids.len(), 6);
        if stopped {
            launcher.send(Signal::TSTP);
            wait_until("the ranks stop", || state(pids[0]) == Some('T') && state(pids[3]) == Some('T'));
        }
        launcher.send(Signal::KILL);
        assert_all_end(&pids);
    }
}

/// What is killed first is the process that guards the ranks.
#[test]
fn without_the_guard_a_killed_launcher_leaves_no_rank() {
    let mut launcher = Running::script(&["-n", "2"], "echo $$; exec sleep 60");
    let ranks = launcher.numbers(2);
    let others: Vec<u32> = children(launcher.child.id()).into_iter().filter(|pid| !ranks.contains(pid)).collect();
    let [guard] = others[..] else { panic!("one guard, not {others:?}") };
    kill_process(Pid::from_raw(guard as i32).expect("a number"), Signal::KILL).expect("it runs");
    assert_all_end(&[guard]);
    launcher.send(Signal::KILL);
    assert_all_end(&ranks);
}

#[test]
fn a_failed_rank_leaves_no_child() {
    let mut launcher = Running::script(&["-n", "1"], &format!("{FAMILY}; exit 3"));
    let pids = launcher.numbers(1);
    assert_eq!(launcher.end().0, Some(3));
    assert_all_end(&pids);
}

/// A launcher that is a rank of another one.
#[test]
fn an_inner_launcher_leaves_nothing_either() {
    let inner = format!("exec {DISTCOLLECTIVE} launch -n 2 -- sh -c '{FAMILY}; wait'");
    let mut launcher = Running::script(&["-n", "1"], &inner);
    let lines: Vec<String> = (0..2).map(|_| launcher.line()).collect();
    let words = lines.iter().flat_map(|line| line.split_whitespace().skip(2));
    let pids: Vec<u32> = words.map(|word| word.parse().expect("a number")).collect();
    assert_eq!(pids.len(), 6);
    launcher.send(Signal::KILL);
    assert_all_end(&pids);
}

#[test]
fn a_benchmark_that_ends_leaves_no_rank() {
    for signal in [Signal::INT, Signal::TERM, Signal::KILL] {
        let bench = Running::start(&["bench", "--processes", "-n", "2", "--iters", "100000"]);
        // Two ranks, and the process that guards them.
        wait_until("the ranks start", || children(bench.child.id()).len() == 3);
        let pids = children(bench.child.id());
        bench.send(signal);
        assert_all_end(&pids);
        assert_eq!(bench.end().0, Some(128 + signal.as_raw()));
    }
}

#[test]
fn signals_reach_the_ranks_as_they_are() {
    let traps = "for s in HUP INT QUIT; do trap \"echo $s; exit 9\" $s; done
        for s in USR1 USR2; do trap \"echo $s\" $s; done; echo ready; while :; do sleep 60 & wait; done";
    for (end, name) in [(Signal::HUP, "HUP"), (Signal::INT, "INT"), (Signal::QUIT, "QUIT")] {
        let mut launcher = Running::script(&["-n", "1"], traps);
        assert_eq!(launcher.line(), "[0] ready");
        for (signal, name) in [(Signal::USR1, "USR1"), (Signal::USR2, "USR2")] {
            launcher.send(signal);
            assert_eq!(launcher.line(), format!("[0] {name}"));
        }
        launcher.send(end);
        let (code, rest, errors) = launcher.end();
        assert_eq!((code, rest), (Some(128 + end.as_raw()), format!("[0] {name}\n")), "{errors}");
        let number = end.as_raw();
        assert_eq!(errors, format!("error: interrupted by signal {number} (SIG{name}); the ranks were ended\n"));
    }
}

#[test]
fn a_second_interrupt_ends_the_wait() {
    let stubborn = "trap 'echo INT' INT; trap 'echo TERM' TERM; echo ready; while :; do sleep 60 & wait; done";
    let mut launcher = Running::script(&["-n", "1"], stubborn);
    assert_eq!(launcher.line(), "[0] ready");
    launcher.send(Signal::INT);
    assert_eq!(launcher.line(), "[0] INT");
    // So that it is not taken for the same one.
    std::thread::sleep(Duration::from_millis(300));
    launcher.send(Signal::INT);
    let (code, rest, _) = launcher.end();
    // After 2 s without it, the rank would get SIGTERM.
    assert_eq!((code, rest.contains("TERM")), (Some(128 + 2), false), "{rest}");
}

/// Signals that come one after the other, each soon after the one before: `timeout` sends each
/// twice, but somebody who holds Ctrl-C down wants the end.
#[test]
fn interrupts_without_a_pause_end_the_wait() {
    let stubborn = "trap 'echo INT' INT; trap 'echo TERM' TERM; echo ready; while :; do sleep 60 & wait; done";
    let mut launcher = Running::script(&["-n", "1"], stubborn);
    assert_eq!(launcher.line(), "[0] ready");
    for _ in 0..15 {
        launcher.send(Signal::INT);
        std::thread::sleep(Duration::from_millis(100));
    }
    let (code, rest, _) = launcher.end();
    // After 2 s the rank would get SIGTERM.
    assert_eq!((code, rest.contains("TERM")), (Some(128 + 2), false), "{rest}");
}

/// A rank that prints its number, and ends on SIGUSR1.
const UNTIL_USR1: &str = "trap 'echo done; exit 0' USR1; echo $$; while :; do sleep 60 & wait; done";

#[test]
fn a_stopped_launcher_stops_its_ranks_until_it_goes_on() {
    let mut launcher = Running::script(&["-n", "2"], UNTIL_USR1);
    let mut all = launcher.numbers(2);
    all.push(launcher.child.id());
    launcher.send(Signal::TSTP);
    wait_until("all stop", || all.iter().all(|pid| state(*pid) == Some('T')));
    launcher.send(Signal::CONT);
    wait_until("all go on", || all.iter().all(|pid| state(*pid).is_some_and(|state| state != 'T')));
    launcher.send(Signal::USR1);
    let (code, rest, errors) = launcher.end();
    assert_eq!((code, rest.matches("done\n").count()), (Some(0), 2), "{rest}{errors}");
}

#[test]
fn ranks_end_when_the_reader_of_the_output_does() {
    // The ranks write no more, or without end.
    for script in ["echo up; sleep 60", "yes"] {
        let mut launcher = Running::script(&["-n", "2"], script);
        launcher.line();
        let pids = children(launcher.child.id());
        assert_eq!(pids.len(), 3);
        drop(std::mem::replace(&mut launcher.stdout, BufReader::new(another_stdout())));
        let (code, _, errors) = launcher.end();
        assert_eq!((code, errors.as_str()), (Some(128 + 13), ""), "{script}");
        assert_all_end(&pids);
    }
}

/// Ctrl-C ends the reader of a pipe together with the ranks.
#[test]
fn ranks_can_clean_up_when_the_reader_ends_with_an_interrupt() {
    let mark = temporary("cleaned-up");
    let script = format!(
        "trap 'trap \"\" INT TERM; sleep 0.3; : > {}; exit 0' INT TERM; echo ready; while :; do sleep 60 & wait; done",
        mark.display()
    );
    for interrupt_first in [true, false] {
        let mut launcher = Running::script(&["-n", "1"], &script);
        assert_eq!(launcher.line(), "[0] ready");
        if interrupt_first {
            launcher.send(Signal::INT);
        }
        drop(std::mem::replace(&mut launcher.stdout, BufReader::new(another_stdout())));
        if !interrupt_first {
            launcher.send(Signal::INT);
        }
        let (_, _, errors) = launcher.end();
        std::fs::remove_file(&mark).unwrap_or_else(|e| panic!("the rank did not clean up: {e}; {errors}"));
    }
}

#[test]
fn what_the_launcher_inherits_does_not_disturb_it() {
    let (output, text) = run(timed("env").args(["--ignore-signal=CHLD", DISTCOLLECTIVE, "launch", "-n", "2", "true"]));
    assert!(output.status.success(), "{text}");
    // More ranks than so few files are enough for. The ranks keep the limit.
    let limited = format!("ulimit -Sn 64; exec {DISTCOLLECTIVE} launch -n 40 -- sh -c 'ulimit -Sn'");
    let (output, text) = run(timed("sh").args(["-c", &limited]));
    assert!(output.status.success(), "{text}");
    assert_eq!(text.lines().filter(|line| line.ends_with("] 64")).count(), 40, "{text}");
    let limited = format!("ulimit -Sn 30; exec {DISTCOLLECTIVE} bench --processes -n 16 --max-bytes 8");
    let (output, text) = run(timed("sh").args(["-c", &limited]));
    assert!(output.status.success(), "{text}");
}

/// The output of a program that writes nothing.
fn another_stdout() -> ChildStdout {
    let mut child = Command::new("true").stdout(Stdio::piped()).spawn().expect("it starts");
    let stdout = child.stdout.take().expect("a pipe");
    child.wait().expect("an own child");
    stdout
}

#[test]
fn programs_end_silently_without_a_reader() {
    for arguments in PRINTING {
        let (reader, writer) = std::io::pipe().expect("a pipe");
        drop(reader);
        let (code, errors) = printing_to(writer.into(), arguments);
        assert_eq!((code, errors.as_str()), (Some(128 + 13), ""), "{arguments:?}");
    }
}

#[test]
fn programs_tell_in_one_line_that_they_cannot_print() {
    for arguments in PRINTING {
        let full = std::fs::File::options().write(true).open("/dev/full").expect("a device");
        let (code, errors) = printing_to(full.into(), arguments);
        assert_eq!((code, errors.lines().count()), (Some(1), 1), "{arguments:?}: {errors}");
        let tells = errors.starts_with("error: ") && errors.contains("No space left on device");
        // The rank of `bench --processes` has written to the launcher.
        assert!(tells, "{arguments:?}: {errors}");
    }
}

/// Commands that print.
const PRINTING: [&[&str]; 14] = [
    &["--help"],
    &["--version"],
    &["run", "--help"],
    &["bench", "--max-bytes", "1K"],
    &["bench", "--max-bytes", "1K", "--csv"],
    &["bench", "--max-bytes", "1K", "--processes"],
    &["doctor"],
    &["doctor", "--json"],
    &["schema", "bench"],
    &["completions", "bash"],
    &["man"],
    &["launch", "-n", "2", "--", "echo", "text"],
    &["launch", "-n", "1", "--", "yes"],
    &["env"],
];

/// Runs the program with this standard output. Returns the exit code that a shell has, and the
/// errors.
fn printing_to(stdout: Stdio, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new("timeout");
    command.args(["9", "env", "--default-signal", DISTCOLLECTIVE]).args(arguments);
    if arguments == ["env"] {
        static RUNS: AtomicU32 = AtomicU32::new(0);
        let name = format!("dcl-test-prints-{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
        command.envs([("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")]);
        command.env("DCL_JOB_ID", name);
    }
    let output = command.stdout(stdout).stderr(Stdio::piped()).spawn().and_then(Child::wait_with_output);
    let output = output.expect("it starts");
    (output.status.code().or(output.status.signal().map(|signal| 128 + signal)), text(&output.stderr))
}

#[test]
fn one_rank_may_read_the_standard_input() {
    for (options, expected) in [(&["-n", "2"][..], ""), (&["-n", "2", "--stdin", "1"], "[1] hello\n")] {
        let mut launcher = Running::script(options, "cat");
        let mut stdin = launcher.child.stdin.take().expect("a pipe");
        stdin.write_all(b"hello\n").expect("the launcher has it open");
        drop(stdin);
        let (code, rest, errors) = launcher.end();
        assert_eq!((code, rest.as_str()), (Some(0), expected), "{errors}");
    }
}

/// What was typed for the run before is lost, but no line that comes after it.
#[test]
fn a_line_that_is_typed_after_a_restart_is_for_the_ranks_that_run() {
    let (mut typing, open) = terminal();
    let script = "[ $DCL_RESTART_COUNT = 2 ] || exit 3; echo ready; read line; echo got $line";
    let mut launcher = timed("setsid")
        .args(["--wait", "--ctty", DISTCOLLECTIVE, "launch", "-n", "1", "--stdin", "0", "--max-restarts", "2"])
        .args(["--", "sh", "-c", script])
        .stdin(open())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(launcher.stdout.take().expect("a pipe")).lines();
    let mut line = || lines.next().transpose().expect("text").unwrap_or_default();
    assert_eq!(line(), "[0] ready");
    typing.write_all(b"hello\n").expect("the terminal is open");
    assert_eq!(line(), "[0] got hello");
    assert!(launcher.wait().expect("an own child").success());
}

/// A terminal that is gone sends SIGHUP. Output that it no longer takes is no reason to end.
#[test]
fn the_end_of_a_terminal_is_a_hangup() {
    let mark = temporary("hangup");
    let (mut reading, open) = terminal();
    let script = format!(
        "trap 'echo more; echo HUP > {}; exit 0' HUP; echo ready; while :; do sleep 0.01; echo more; done",
        mark.display()
    );
    let mut launcher = timed("setsid")
        .args(["--wait", "--ctty", "env", "--default-signal", DISTCOLLECTIVE, "launch", "-n", "1", "--", "sh", "-c"])
        .arg(script)
        .env("NO_COLOR", "1")
        .stdin(open())
        .stdout(open())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    let mut shown = [0; 9];
    reading.read_exact(&mut shown).expect("a line");
    assert_eq!(text(&shown), "[0] ready");
    drop(reading);
    assert_eq!(launcher.wait().expect("an own child").code(), Some(128 + 1));
    assert_eq!(std::fs::read_to_string(&mark).expect("the rank's file"), "HUP\n");
    std::fs::remove_file(mark).expect("it is there");
}

/// On a terminal, prefixes have colours, and a rank can read what the user types, although it is in
/// a process group that may not read from the terminal.
#[test]
fn on_a_terminal_prefixes_have_colours() {
    for (no_color, expected) in [("", "\x1b[36m[0]\x1b[0m hello"), ("1", "[0] hello")] {
        let (mut terminal, open) = terminal();
        let mut launcher = timed("setsid")
            .args(["--wait", "--ctty", DISTCOLLECTIVE, "launch", "-n", "1", "--stdin", "0", "--", "cat"])
            .env("TERM", "xterm")
            .env("NO_COLOR", no_color)
            .stdin(open())
            .stdout(open())
            .stderr(open())
            .spawn()
            .expect("it starts");
        // A line, and the end of the input.
        terminal.write_all(b"hello\n\x04").expect("the terminal is open");
        assert!(launcher.wait().expect("an own child").success());
        // The terminal shows what is typed, and what is written. It has no more to read then.
        let mut shown = Vec::new();
        let _ = terminal.read_to_end(&mut shown);
        assert!(text(&shown).contains(expected), "{:?}", text(&shown));
    }
}

#[test]
fn a_process_that_goes_on_writing_does_not_hold_the_launcher() {
    for left in ["(while :; do echo more; sleep 0.05; done)", "yes"] {
        let (output, text) = run(timed(DISTCOLLECTIVE)
            .args(["launch", "-n", "1", "--", "sh", "-c"])
            .arg(format!("echo first; {left} & exit 0")));
        assert!(output.status.success(), "{:?}", output.status);
        assert!(text.starts_with("[0] first\n"));
    }
}

#[test]
fn a_long_line_takes_little_memory() {
    const LEN: u64 = 400_000_000;
    // Threads reserve some address space, so the limit is half of the line.
    let limited =
        format!("ulimit -v 200000; MALLOC_ARENA_MAX=1 exec {DISTCOLLECTIVE} launch -n 1 -- head -c {LEN} /dev/zero");
    let mut launcher = timed("sh").args(["-c", &limited]).stdout(Stdio::piped()).spawn().expect("it starts");
    let written = std::io::copy(&mut launcher.stdout.take().expect("a pipe"), &mut std::io::sink()).expect("bytes");
    assert!(launcher.wait().expect("an own child").success());
    assert_eq!(written, LEN + "[0] \n".len() as u64);
}

/// Each part has to come before the rank writes the next one.
#[test]
fn progress_and_questions_appear_as_they_come() {
    let script = "printf '10%%\\r'; read a; printf '20%%\\r'; read a; printf '\\nname? '; read a; echo hello $a";
    let mut launcher = Running::script(&["-n", "1", "--stdin", "0"], script);
    let mut stdin = launcher.child.stdin.take().expect("a pipe");
    let mut expect = |launcher: &mut Running, text: &str| {
        let mut bytes = vec![0; text.len()];
        launcher.stdout.read_exact(&mut bytes).expect("text");
        assert_eq!(String::from_utf8(bytes).expect("UTF-8"), text);
        stdin.write_all(b"you\n").expect("the rank reads it");
    };
    expect(&mut launcher, "[0] 10%\r");
    expect(&mut launcher, "[0] 20%\r");
    expect(&mut launcher, "\n[0] name? ");
    let (code, rest, _) = launcher.end();
    assert_eq!((code, rest.as_str()), (Some(0), "hello you\n"));
}

fn temporary(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("dcl-test-{name}-{}", std::process::id()))
}

#[test]
fn every_rank_can_have_a_log_file() {
    let folder = temporary("logs");
    let script = "echo out $RANK; sleep 0.2; echo err $RANK >&2";
    let options = ["launch", "-n", "2", "--log-dir", folder.to_str().expect("UTF-8"), "--", "sh", "-c", script];
    let (output, shown) = run(timed(DISTCOLLECTIVE).args(options));
    assert!(output.status.success(), "{shown}");
    for rank in 0..2 {
        let log = std::fs::read_to_string(folder.join(format!("rank{rank}.log"))).expect("the log");
        assert_eq!(log, format!("out {rank}\nerr {rank}\n"));
        assert!(shown.contains(&format!("[{rank}] out {rank}\n")), "{shown}");
    }
    std::fs::remove_dir_all(folder).expect("it is there");
}

/// Ranks write parts of lines in turn, and a line without an end.
#[test]
fn without_prefixes_lines_of_ranks_stay_whole() {
    let script = "for i in 1 2 3 4 5; do printf \"a$RANK\"; sleep 0.01; printf \"b$RANK\\n\"; done; printf \"c$RANK\"";
    let options = ["launch", "-n", "2", "--no-prefix", "--", "sh", "-c", script];
    let (output, shown) = run(timed(DISTCOLLECTIVE).args(options));
    assert!(output.status.success() && output.stderr.is_empty(), "{shown}");
    for (line, count) in [("a0b0", 5), ("a1b1", 5), ("c0", 1), ("c1", 1)] {
        assert_eq!(shown.lines().filter(|shown| *shown == line).count(), count, "{shown}");
    }
    assert_eq!(shown.lines().count(), 12, "{shown}");
    // A line that never ends is shown in parts.
    let (output, shown) = run(timed(DISTCOLLECTIVE).args([
        "launch",
        "-n",
        "1",
        "--no-prefix",
        "--",
        "sh",
        "-c",
        "head -c 3000000 /dev/zero | tr '\\0' x",
    ]));
    assert!(output.status.success() && shown == format!("{}\n", "x".repeat(3_000_000)), "{} bytes", shown.len());
}

#[test]
fn ranks_can_be_bound_to_cpus() {
    const SHOW: &[&str] = &["--", "grep", "-w", "Cpus_allowed_list", "/proc/self/status"];
    let cpus = |options: &[&str]| {
        let (output, text) = run(timed(DISTCOLLECTIVE).args([&["launch"], options, SHOW].concat()));
        assert!(output.status.success(), "{text}");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.iter().map(|line| line.rsplit('\t').next().expect("a set").to_owned()).collect::<Vec<_>>()
    };
    let (_, own) = run(Command::new("grep").args(&SHOW[2..]));
    let own = own.trim_end().rsplit('\t').next().expect("a set").to_owned();
    let first = own.split([',', '-']).next().expect("a CPU").to_owned();
    assert_eq!(cpus(&["-n", "2", "--bind", "none"]), [own.clone(), own.clone()]);
    assert_eq!(cpus(&["-n", "1", "--bind", "share"])[0], own);
    // By default, ranks have equal shares if there is a CPU for each, and otherwise all CPUs.
    let count = std::thread::available_parallelism().expect("a number").get();
    let ranks = (count + 1).to_string();
    assert_eq!(cpus(&["-n", &ranks]), vec![own.clone(); count + 1]);
    let ranks = count.to_string();
    assert_eq!(cpus(&["-n", &ranks]), cpus(&["-n", &ranks, "--bind", "share"]));
    assert_eq!(cpus(&["-n", &ranks]).into_iter().collect::<BTreeSet<_>>().len(), count);
    // Another launcher may have started this one beside others.
    let (_, text) =
        run(timed("env").args(["RANK=0", "WORLD_SIZE=1", DISTCOLLECTIVE, "launch", "-n", &ranks]).args(SHOW));
    assert_eq!(text.lines().filter(|line| line.ends_with(&format!("\t{own}"))).count(), count, "{text}");
    assert!(cpus(&["-n", "1", "--bind", "core"])[0].parse::<u32>().is_ok());
    assert_eq!(cpus(&["-n", "2", "--bind", &format!("{first};{first}")]), [first.clone(), first]);

    let refused = |options: &[&str], expected: &str| {
        let (output, text) = run(timed(DISTCOLLECTIVE).args([&["launch"], options, &["true"]].concat()));
        assert!(!output.status.success() && text.contains(expected), "{text}");
    };
    refused(&["-n", "1000", "--bind", "core"], "cannot be divided among 1000 ranks; run without binding (--bind none)");
    refused(&["-n", "2", "--bind", "0"], "--bind has 1 set of CPUs for 2 ranks; separate sets by ';'");
    refused(&["-n", "1", "--bind", "first"], "\"first\" is no CPU and no range of CPUs");
}

#[test]
fn failed_ranks_start_again() {
    let script = format!(
        "[ $RANK$DCL_RESTART_COUNT != 11 ] || exit 5; [ $DCL_RESTART_COUNT != 0 ] || exit 3
        exec {DISTCOLLECTIVE} env"
    );
    let launch = |restarts: &str| {
        run(timed(DISTCOLLECTIVE).args(["launch", "-n", "2", "--max-restarts", restarts, "--", "sh", "-c", &script]))
    };
    let (output, text) = launch("2");
    assert!(output.status.success(), "{text}");
    assert!(text.contains("exited with code 3; all ranks start again, restart 1 of 2"), "{text}");
    assert!(text.contains("rank 1 exited with code 5; all ranks start again, restart 2 of 2"), "{text}");
    assert_eq!(text.matches("launcher           distcollective launch").count(), 2, "{text}");
    let (output, text) = launch("1");
    assert_eq!(output.status.code(), Some(5), "{text}");
    assert!(text.contains("error: rank 1 exited with code 5"), "{text}");
}
