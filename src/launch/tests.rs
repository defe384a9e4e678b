use std::collections::BTreeSet;
use std::process::Command;

use super::{Job, Outcome};
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
}

#[test]
fn a_job_that_runs_is_not_disturbed_by_a_second_run() {
    let job = Job::new(1);
    let (started, has_started) = std::sync::mpsc::channel();
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
