use std::collections::BTreeSet;
use std::error::Error as _;
use std::io::ErrorKind::StorageFull;
use std::io::{Error, Result};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use distcollective::{ErrorKind, Rank};

use crate::{Job, JobControl, Outcome, RankOutput};

fn shell(script: &str) -> impl FnMut(Rank) -> Command {
    move |_| {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }
}

#[test]
fn the_outcome_says_how_ranks_end() {
    let job = Job::new(3);
    assert_eq!(job.run(shell("true")).expect("a shell"), Outcome::Success);
    // A job may run again.
    let outcome = job.run(shell("[ $RANK != 2 ] || exit 7")).expect("a shell");
    assert_eq!((outcome.to_string().as_str(), outcome.exit_code()), ("rank 2 exited with code 7", 7));
    let outcome = job.run(shell("[ $RANK != 1 ] || kill -9 $$")).expect("a shell");
    assert_eq!((outcome.to_string().as_str(), outcome.exit_code()), ("rank 1 was ended by signal 9 (SIGKILL)", 137));
    job.control().end(15);
    assert_eq!(job.run(shell("sleep 60")).expect("a shell"), Outcome::Ended { signal: 15 });
    assert_eq!([15, i32::MAX, i32::MIN].map(|signal| Outcome::Ended { signal }.exit_code()), [143, 1, 1]);
    let shown = [2, 11, 40, 64, 0, i32::MAX].map(|signal| Outcome::Ended { signal }.to_string());
    let signals = ["2 (SIGINT)", "11 (SIGSEGV)", "40", "64", "0", "2147483647"];
    assert_eq!(shown, signals.map(|signal| format!("interrupted by signal {signal}")));
}

#[test]
fn a_job_that_runs_is_not_disturbed_by_a_second_run() {
    let job = Job::new(1);
    let (started, has_started) = channel();
    std::thread::scope(|scope| {
        let first = scope.spawn(|| {
            job.run(|_| {
                started.send(()).expect("the test waits");
                shell("sleep 9")(Rank(0))
            })
        });
        has_started.recv().expect("the rank is about to start");
        let error = job.run(shell("true")).expect_err("it runs");
        assert_eq!(error.to_string(), "the job runs already; a second run begins when the first has ended");
        job.control().end(15);
        assert_eq!(first.join().expect("no panic").expect("a shell"), Outcome::Ended { signal: 15 });
    });
}

/// An output that cannot take anything, not even the end of a stream if it has no text.
struct Fails {
    panics: bool,
}

impl Fails {
    fn fail(&self, rank: Rank) -> Result<()> {
        assert!(!self.panics, "no place for rank {rank}");
        Err(Error::new(StorageFull, format!("no place for rank {rank}")))
    }
}

impl RankOutput for Fails {
    fn write(&mut self, rank: Rank, _text: &[u8]) -> Result<()> {
        self.fail(rank)
    }

    fn closed(&mut self, rank: Rank) -> Result<()> {
        self.fail(rank)
    }
}

/// The output of the ranks that go on, and of ranks that have ended.
#[test]
fn an_output_that_fails_or_panics_ends_the_job_with_an_error() {
    for script in ["echo text; exec sleep 60", "yes", "echo text", "true"] {
        for (panics, expected) in [
            (false, "the ranks were ended because what they write cannot be passed on: no place for rank 0"),
            (true, "the ranks were ended because a RankOutput panicked: no place for rank 0"),
        ] {
            let job = Job::new(1).output(Fails { panics }, Fails { panics });
            let error = job.run(shell(script)).expect_err("its output fails");
            assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::System, expected), "{script}");
            let source = error.source().and_then(|source| source.downcast_ref::<Error>());
            assert_eq!(source.map(Error::kind), (!panics).then_some(StorageFull), "{script}");
        }
    }
}

/// The ranks get SIGTERM and have time to end. Nothing that they write then is passed on.
#[test]
fn ranks_can_clean_up_after_an_output_has_failed() {
    const CLEANS_UP: &str = "trap 'echo more >&2; sleep 0.3; echo more; : > $FILE; exit 0' TERM
        echo text; while :; do sleep 0.01; done";
    let file = std::env::temp_dir().join(format!("dcl-test-output-{}", std::process::id()));
    let (sender, texts) = channel();
    let job = Job::new(1).output(Fails { panics: false }, Passes(sender));
    let start = |rank| {
        let mut command = shell(CLEANS_UP)(rank);
        command.env("FILE", &file);
        command
    };
    job.run(start).expect_err("its output fails");
    std::fs::remove_file(&file).expect("the rank cleaned up");
    drop(job);
    assert_eq!(texts.iter().next(), None);
}

/// Numbers that are no signal's, and the ranks that are not started yet.
#[test]
fn a_job_can_end_while_it_starts_and_by_any_number() {
    let job = Job::new(3);
    let mut asked = Vec::new();
    let outcome = job.run(|rank| {
        asked.push(rank.0);
        if rank == Rank(1) {
            job.control().end(15);
        }
        shell("exec sleep 60")(rank)
    });
    assert_eq!((outcome.expect("a shell"), asked), (Outcome::Ended { signal: 15 }, vec![0, 1]));

    let (sender, lines) = channel();
    let job = Job::new(1).output(Passes(sender.clone()), Passes(sender));
    let control = job.control();
    let run = std::thread::spawn(move || {
        job.run(shell("trap 'echo TERM; exit 0' TERM; echo up; while :; do sleep 0.01; done"))
    });
    let line = || lines.recv_timeout(Duration::from_secs(9)).unwrap_or_default();
    assert_eq!(line(), "up\n");
    control.signal(i32::MAX);
    control.end(i32::MAX);
    assert_eq!(line(), "TERM\n");
    assert_eq!(run.join().expect("no panic").expect("a shell"), Outcome::Ended { signal: i32::MAX });
}

/// In a program that ignores SIGCHLD, the kernel does not tell how ranks end.
#[test]
fn a_program_that_ignores_the_end_of_children_gets_an_error() {
    const INSIDE: &str = "IGNORES_CHILDREN";
    if std::env::var_os(INSIDE).is_some() {
        let error = Job::new(1).run(shell("exit 3")).expect_err("the exit code is lost");
        assert_eq!(error.kind(), ErrorKind::System);
        // The rank may have ended before its process is watched.
        assert!(error.to_string().starts_with("rank 0: its "), "{error}");
        return;
    }
    let name = "tests::a_program_that_ignores_the_end_of_children_gets_an_error";
    let mut test = Command::new("timeout");
    test.args(["9", "env", "--ignore-signal=CHLD"]).arg(std::env::current_exe().expect("this program"));
    let output = test.args(["--exact", name]).env(INSIDE, "1").output().expect("it starts");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

/// An output that passes on what ranks write.
struct Passes(Sender<String>);

impl RankOutput for Passes {
    fn write(&mut self, _rank: Rank, text: &[u8]) -> Result<()> {
        self.0.send(String::from_utf8_lossy(text).into_owned()).map_err(Error::other)
    }
}

/// A request to end a job.
type Request = fn(&JobControl);

/// A rank cleans up after the first request to end, while the second one comes.
#[test]
fn end_once_leaves_the_ranks_their_time() {
    const CLEANS_UP: &str = "trap 'trap \"\" INT TERM; echo caught; sleep 0.3; echo cleaned; exit 0' INT TERM
        echo ready; while :; do sleep 0.01; done";
    let (end, end_once): (Request, Request) = (|control| control.end(2), |control| control.end_once(15));
    for [first, second] in [[end, end_once], [end_once, end]] {
        let (sender, lines) = channel();
        let job = Job::new(1).output(Passes(sender.clone()), Passes(sender));
        let control = job.control();
        let run = std::thread::spawn(move || job.run(shell(CLEANS_UP)));
        let line = || lines.recv_timeout(Duration::from_secs(9)).unwrap_or_default();
        assert_eq!(line(), "ready\n");
        first(&control);
        assert_eq!(line(), "caught\n");
        second(&control);
        assert_eq!(line(), "cleaned\n");
        assert_eq!(run.join().expect("no panic").expect("a shell"), Outcome::Ended { signal: 2 });
    }
}

#[test]
fn what_cannot_run_is_an_error() {
    let refused = |job: Job, expected: &str| {
        let error = job.run(shell("true")).expect_err("it is refused");
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, expected));
    };
    refused(Job::new(0), "a job of 0 ranks; it has at least 1");
    refused(Job::new(2).stdin(2), "standard input is for rank 2, and the job has ranks 0 to 1");
    refused(Job::new(2).cpus([BTreeSet::from([0])]), "there are 1 sets of CPUs for 2 ranks");
    refused(Job::new(1).cpus([BTreeSet::new()]), "rank 0 cannot run on an empty set of CPUs");
    let error = Job::new(2).run(|_| Command::new("/no/such/program")).expect_err("there is no such program");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().starts_with("rank 0: \"/no/such/program\" cannot be started: "), "{error}");
}
