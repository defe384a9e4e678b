use std::collections::BTreeSet;
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use super::{Job, JobControl, Outcome, RankOutput};
use crate::error::ErrorKind;
use crate::rank::Rank;

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
    assert_eq!((outcome.to_string().as_str(), outcome.exit_code()), ("rank 1 was ended by signal 9", 137));
    job.control().end(15);
    assert_eq!(job.run(shell("sleep 60")).expect("a shell"), Outcome::Ended { signal: 15 });
    assert_eq!([15, i32::MAX, i32::MIN].map(|signal| Outcome::Ended { signal }.exit_code()), [143, 1, 1]);
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

/// An output that cannot take anything.
struct Panics;

impl RankOutput for Panics {
    fn write(&mut self, rank: Rank, _text: &[u8]) {
        panic!("no place for rank {rank}");
    }
}

/// The output of the ranks that go on, and of ranks that have ended.
#[test]
fn an_output_that_panics_ends_the_job_with_an_error() {
    for script in ["echo text; exec sleep 60", "echo text"] {
        let error = Job::new(1).output(Panics, Panics).run(shell(script)).expect_err("its output panics");
        let expected = "a RankOutput of the job panicked, so the ranks were killed: no place for rank 0";
        assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::System, expected), "{script}");
    }
}

/// An output that passes on what ranks write.
struct Passes(Sender<String>);

impl RankOutput for Passes {
    fn write(&mut self, _rank: Rank, text: &[u8]) {
        // An error means that the test has ended.
        let _ = self.0.send(String::from_utf8_lossy(text).into_owned());
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
    refused(Job::new(1).cpus([BTreeSet::new()]), "a rank cannot run on an empty set of CPUs");
    let error = Job::new(2).run(|_| Command::new("/no/such/program")).expect_err("there is no such program");
    assert_eq!(error.kind(), ErrorKind::System);
    assert!(error.to_string().starts_with("rank 0: \"/no/such/program\" cannot be started: "), "{error}");
}
