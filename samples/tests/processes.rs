//! The demo's ranks as processes end with the demo.

use std::process::{Command, Stdio};

use test_support::processes::{children, state, wait_until};

#[test]
fn an_ended_demo_leaves_no_rank() {
    // A rank that prints into a full pipe does not end by itself.
    let (_reader, writer) = std::io::pipe().expect("a pipe");
    let pipe = || Stdio::from(writer.try_clone().expect("a descriptor"));
    Command::new("timeout").args(["1", "cat", "/dev/zero"]).stdout(pipe()).status().expect("it starts");
    for signal in ["INT", "TERM", "KILL"] {
        let mut demo = Command::new("env");
        demo.args(["--default-signal", env!("CARGO_BIN_EXE_sample_dist_collective")]);
        demo.args(["--processes", "--ranks", "2"]).stdout(pipe());
        let mut demo = demo.spawn().expect("it starts");
        // Two ranks, and the process that guards them.
        wait_until("the ranks start", || children(demo.id()).len() == 3);
        let pids = children(demo.id());
        let sent = Command::new("kill").args(["-s", signal, &demo.id().to_string()]).status();
        assert!(sent.expect("it starts").success());
        demo.wait().expect("an own child");
        wait_until("all processes end", || pids.iter().all(|pid| state(*pid).is_none()));
    }
}
