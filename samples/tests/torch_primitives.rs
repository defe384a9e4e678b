//! The lines of the tutorials' examples.

use std::process::Command;

use test_support::{product, succeed, timed};

const SAMPLE: &str = env!("CARGO_BIN_EXE_torch_primitives");

/// The lines that four ranks write, sorted.
fn lines(example: &str) -> Vec<String> {
    let of_ranks = |line: fn(u32) -> String| (0..4).map(line);
    let sent = || of_ranks(|rank| format!("Rank {rank} sent tensor: {}.0", rank + 1));
    let initial = || of_ranks(|rank| format!("Rank {rank} initial tensor: {}.0", rank + 1));
    let list = "[1.0, 2.0, 3.0, 4.0]";
    let mut lines: Vec<String> = match example {
        "broadcast" => of_ranks(|rank| format!("Rank {rank} has data: 1.0")).collect(),
        "all_reduce" => initial().chain(of_ranks(|rank| format!("Rank {rank} final tensor: 10.0"))).collect(),
        "reduce" => {
            let last = |rank: u32| if rank == 0 { 10 } else { rank + 1 };
            initial().chain((0..4).map(|rank| format!("Rank {rank} final tensor: {}.0", last(rank)))).collect()
        }
        "scatter" => {
            let received = of_ranks(|rank| format!("Rank {rank} received tensor: {}.0", rank + 1));
            received.chain([format!("Rank 0 scatter list: {list}")]).collect()
        }
        "gather" => sent().skip(1).chain([format!("Rank 0 gathered list: {list}")]).collect(),
        "all_gather" => sent().chain((0..4).map(|rank| format!("Rank {rank} gathered list: {list}"))).collect(),
        "async" => of_ranks(|rank| format!("Rank {rank} async all_reduce result: 6.0")).collect(),
        "send_recv" => {
            let sent = |rank: u32| [(rank, "sent"), (rank + 1, "received")];
            let lines = [0, 2].into_iter().flat_map(|rank| sent(rank).map(|line| (rank + 1, line)));
            lines.map(|(value, (rank, verb))| format!("Rank {rank} {verb} tensor: {value}.0")).collect()
        }
        _ => panic!("{example} is no example"),
    };
    lines.sort();
    lines
}

/// The lines of a program, without what the launcher writes before them.
fn written_by(command: &mut Command) -> Vec<String> {
    let text = succeed(command);
    let mut lines: Vec<String> = text.lines().map(|line| line[line.find("Rank ").unwrap_or(0)..].to_owned()).collect();
    lines.sort();
    lines
}

const EXAMPLES: [&str; 8] =
    ["broadcast", "all_reduce", "reduce", "scatter", "gather", "all_gather", "async", "send_recv"];

#[test]
fn four_threads_write_the_lines() {
    for example in EXAMPLES {
        assert_eq!(written_by(timed(SAMPLE).arg(example)), lines(example), "{example}");
    }
}

#[test]
fn four_launched_processes_write_the_lines() {
    let distcollective = product("distcollective");
    for example in EXAMPLES {
        let mut command = timed(&distcollective);
        command.args(["launch", "-n", "4", "--", SAMPLE, example]);
        assert_eq!(written_by(&mut command), lines(example), "{example}");
    }
}

#[test]
fn another_number_of_ranks_is_an_error() {
    let distcollective = product("distcollective");
    let mut command = timed(distcollective);
    let (output, text) = test_support::run(command.args(["launch", "-n", "2", "--", SAMPLE, "broadcast"]));
    assert!(!output.status.success());
    assert!(text.contains("the examples are for 4 ranks, and there are 2"), "{text}");
}
