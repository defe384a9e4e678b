//! The consumer's weights reach both producers after each step, between threads and between
//! processes.

use std::process::Command;

use test_support::{product, succeed, timed};

const WEIGHT_SYNC: &str = env!("CARGO_BIN_EXE_weight_sync");

/// The lines of every rank: three steps of the consumer, and what each producer serves.
fn check(command: &mut Command) {
    let text = succeed(command);
    let lines = |start: &str| {
        let lines = text.lines().filter_map(|line| Some(line.split_once(start)?.1.to_owned()));
        lines.collect::<Vec<_>>()
    };
    let losses: Vec<f32> = lines("Rank 0 (consumer) step ")
        .iter()
        .map(|line| line.split(' ').nth(2).and_then(|loss| loss.parse().ok()).expect("a loss"))
        .collect();
    assert!(losses.len() == 3 && losses.is_sorted_by(|a, b| a > b), "{text}");
    let [first, second] = [1, 2].map(|rank| lines(&format!("Rank {rank} (producer) ")));
    assert_eq!(first, second, "{text}");
    assert!(first.len() == 3 && first[2].starts_with("step 3: serves the new weights, which predict ["), "{text}");
}

#[test]
fn ranks_can_be_threads() {
    check(&mut timed(WEIGHT_SYNC));
}

#[test]
fn ranks_can_be_processes_of_the_launcher() {
    let launcher = product("distcollective");
    check(timed(launcher).args(["launch", "-n", "3", "--", WEIGHT_SYNC]));
}
