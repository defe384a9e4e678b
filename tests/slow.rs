//! Long waits are logged, and the library's own environment variables are read. Each case is a
//! child, because the variables are read once in a process.

use std::time::Duration;

use distcollective::{Communicator, Environment, ErrorKind, Rank, ReduceOperation};
use test_support::{run, text, timed};

const CASE: &str = "DCL_TEST_CASE";

/// What a child does. It has no `tracing` subscriber, so that the log goes to stderr.
#[test]
fn child() {
    let Ok(case) = std::env::var(CASE) else { return };
    let ranks = match Communicator::builder().in_process(2) {
        Ok(ranks) => ranks,
        Err(error) => return println!("{error}"),
    };
    let soon = |rank: usize| ranks[rank].with_timeout(Duration::from_millis(400));
    match case.as_str() {
        "timeout" => println!("{:?}", ranks[0].timeout()),
        // Rank 1 has made no call.
        "one thread" => println!("{}", soon(0).barrier().expect_err("rank 1 does not come")),
        "another thread" => {
            let both = std::thread::scope(|scope| {
                let second = scope.spawn(|| ranks[1].all_reduce(&mut [1.0f32], ReduceOperation::Sum));
                let first = ranks[0].all_reduce(&mut [1.0f32], ReduceOperation::Sum);
                second.join().expect("no panic").and(first)
            });
            both.expect("a sum");
            println!("{}", soon(0).barrier().expect_err("rank 1 does not come").kind() == ErrorKind::DeadlineExceeded);
        }
        "the same thread" => {
            // The root does not wait for the other rank.
            ranks[1].broadcast(&mut [1u8], Rank(1)).expect("a broadcast");
            ranks[0].broadcast(&mut [0u8], Rank(1)).expect("a broadcast");
            println!("{}", soon(0).barrier().expect_err("rank 1 does not come"));
        }
        "bootstrap" => {
            let builder = Communicator::builder().job(format!("slow-{}", std::process::id())).world_size(2);
            println!("{}", builder.connect().expect_err("rank 1 does not come"));
        }
        "rendezvous" => {
            let builder = Environment::builder().rank(0).world_size(2).host("127.0.0.2").port(1);
            println!("{}", builder.initialize().expect_err("rank 1 does not come"));
        }
        other => panic!("no case {other}"),
    }
}

/// What a child writes, on stdout and on stderr.
fn output(case: &str, variables: &[(&str, &str)]) -> (String, String) {
    let mut child = timed(std::env::current_exe().expect("this program"));
    child.args(["child", "--exact", "--nocapture"]).env(CASE, case).envs(variables.iter().copied());
    let (output, log) = run(&mut child);
    assert!(output.status.success(), "{case}: {log}");
    (text(&output.stdout), text(&output.stderr))
}

const SOON: (&str, &str) = ("DCL_SLOW_WARNING", "0.05");

#[test]
fn a_long_wait_names_the_call_and_the_missing_ranks() {
    let (_, log) = output("one thread", &[SOON]);
    let warning = "distcollective: warning: rank 0: barrier (collective 1) has waited for 0 s: rank 1 is not there; rank 1 is \
                   a rank of this process and has made no call; each rank needs a thread of its own, as Communicator::spawn gives \
                   it";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
    let (_, log) = output("another thread", &[SOON]);
    assert!(log.contains("rank 0: barrier (collective 2) has waited for 0 s: rank 1 is not there\n"), "{log}");
    let (_, log) = output("the same thread", &[SOON]);
    assert!(
        log.contains("rank 1 is not there; rank 1 made its last call on this same thread; each rank needs"),
        "{log}"
    );
}

#[test]
fn a_long_wait_is_not_logged_if_the_log_is_off() {
    for silent in [("DCL_SLOW_WARNING", "0"), ("DCL_LOG", "error"), ("DCL_LOG", "off"), ("DCL_SLOW_WARNING", "60")] {
        let loud = if silent.0 == "DCL_LOG" { vec![SOON, silent] } else { vec![silent] };
        let (_, log) = output("one thread", &loud);
        assert!(!log.contains("distcollective:"), "{silent:?}: {log}");
    }
}

#[test]
fn a_long_wait_for_ranks_that_do_not_come_is_logged() {
    for case in ["bootstrap", "rendezvous"] {
        let (text, log) = output(case, &[SOON, ("DCL_TIMEOUT", "0.4")]);
        assert!(log.contains("rank 0 has waited for 0 s: rank 1 has not come"), "{case}: {log}");
        assert!(text.contains("rank 1 of 2 did not come"), "{case}: {text}");
    }
}

#[test]
fn a_mistyped_variable_is_logged() {
    let (_, log) = output("timeout", &[("DCL_TIMEOT", "5")]);
    let warning = "distcollective: warning: DCL_TIMEOT is none of this library's variables, and DCL_TIMEOUT is one\n";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
    assert!(!output("timeout", &[("DCL_TIMEOT", "5"), ("DCL_LOG", "off")]).1.contains("distcollective:"));
}

#[test]
fn the_variables_are_read() {
    assert!(output("timeout", &[("DCL_TIMEOUT", "2.5")]).0.contains("2.5s"));
    assert!(output("timeout", &[]).0.contains("600s"));
    let (text, _) = output("timeout", &[("DCL_TIMEOUT", "soon")]);
    let quoted = "DCL_TIMEOUT is \"soon\", which is not a number of seconds above 0, such as 60 or 0.5";
    assert!(text.contains(quoted), "{text}");
    assert!(include_str!("../docs/src/settings.md").contains(&format!("`{quoted}`")), "the guide quotes it");
}
