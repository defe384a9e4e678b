//! Ranks that are processes, on one machine and on several, for which `DCL_HOST_ID` stands.

use std::process::Child as Process;
use std::time::{Duration, Instant};

use distcollective::{Communicator, ErrorKind, Rank, ReduceOperation, Result};

use super::graphs::records_if_told;
use super::{Child, ENVIRONMENT, needs_more_gpus, needs_test_libraries, on_gpus};
use crate::conformance::quarters;
use crate::processes::wait_for_line;
use crate::ranks::{DEADLINE, wait_all};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    on_gpus(
        ranks,
        match name {
            "sum until told" => sum_until_told,
            "exit" => exit,
            "exit first" => exit_first,
            "fail first" => fail_first,
            "split" => split,
            "barrier" => barrier,
            "other calls" => other_calls,
            "other reductions" => |communicator: Communicator| differ(&communicator, ReduceOperation::Max, 4),
            "other lengths" => |communicator: Communicator| differ(&communicator, ReduceOperation::Sum, 5),
            "fail" => fail,
            "leave" => leave,
            "messages" => messages_both_ways,
            "other messages" => other_messages,
            "graphs" => |communicator: Communicator| records_if_told(&communicator),
            _ => panic!("{name} is no role"),
        },
    );
}

fn sum_until_told(communicator: Communicator) -> Result<()> {
    println!("ready");
    let error = (0..u64::MAX).find_map(|_| communicator.all_reduce(&mut [1f32; 100], ReduceOperation::Sum).err());
    println!("{}", error.expect("a rank has died"));
    Ok(())
}

/// The process of the last rank ends, and has not dropped its communicator.
fn exit(communicator: Communicator) -> Result<()> {
    let first = communicator.barrier();
    if communicator.rank().0 + 1 == communicator.world_size() {
        std::process::exit(0);
    }
    println!("{}", first.and_then(|()| communicator.barrier()).expect_err("a rank has exited"));
    Ok(())
}

/// The process of the last rank ends before the first call of NCCL, in which the others connect.
fn exit_first(communicator: Communicator) -> Result<()> {
    let made = communicator.monitored_barrier(DEADLINE);
    if communicator.rank().0 + 1 == communicator.world_size() {
        std::process::exit(0);
    }
    let sum = || communicator.all_reduce(&mut [1f32], ReduceOperation::Sum);
    let error = made.and_then(|()| sum()).expect_err("a rank has exited");
    println!("{error}");
    Ok(())
}

/// The last rank ends the communicator while the others connect.
fn fail_first(communicator: Communicator) -> Result<()> {
    communicator.monitored_barrier(DEADLINE)?;
    let last = communicator.world_size() - 1;
    let error = match communicator.rank().0 == last {
        true => {
            std::thread::sleep(Duration::from_millis(50));
            communicator.abort("out of data")?;
            wait_for_the_end(&communicator)
        }
        false => communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("a rank has failed"),
    };
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    println!("{error}");
    Ok(())
}

/// NCCL's split fails on all ranks. Ranks 0 and 1 fail because of rank 2, whose reason they get.
fn split(communicator: Communicator) -> Result<()> {
    println!("{}", communicator.split(Some(0), 0).expect_err("NCCL's split fails"));
    Ok(())
}

/// The last rank does not come to the second barrier.
fn barrier(communicator: Communicator) -> Result<()> {
    communicator.monitored_barrier(DEADLINE)?;
    let error = match communicator.rank().0 + 1 == communicator.world_size() {
        true => wait_for_the_end(&communicator),
        false => communicator.monitored_barrier(Duration::from_secs(3)).expect_err("the last rank does not come"),
    };
    println!("{error}");
    Ok(())
}

/// Waits, without a call of this rank that the other ranks wait for.
fn wait_for_the_end(communicator: &Communicator) -> distcollective::Error {
    let end = Instant::now() + DEADLINE;
    loop {
        if let Err(error) = communicator.check() {
            return error;
        }
        assert!(Instant::now() < end, "no rank has told this one");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Rank 1 makes another call than rank 0, which is on its machine.
fn other_calls(communicator: Communicator) -> Result<()> {
    let op = if communicator.rank() == Rank(1) { ReduceOperation::Max } else { ReduceOperation::Sum };
    // Others may be told in the first barrier.
    let first = communicator.monitored_barrier(DEADLINE);
    let last = first.and_then(|()| communicator.all_reduce(&mut [1f32; 4], op)).and_then(|()| communicator.barrier());
    let error = last.expect_err("calls differ");
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    println!("{error}");
    Ok(())
}

/// Ranks of the second machine make another call. NCCL may carry it out.
fn differ(communicator: &Communicator, reduction: ReduceOperation, len: usize) -> Result<()> {
    communicator.barrier()?;
    let begin = Instant::now();
    for call in 0..10 {
        let is_other = call == 5 && std::env::var("DCL_HOST_ID").as_deref() == Ok("b");
        let (reduction, len) = if is_other { (reduction, len) } else { (ReduceOperation::Sum, 4) };
        if communicator.all_reduce(&mut vec![1f32; len], reduction).is_err() {
            break;
        }
    }
    let error = wait_for_the_end(communicator);
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    println!("{error}, after {:?}", begin.elapsed());
    Ok(())
}

/// The last rank ends the communicator. Others may be told in the first barrier.
fn fail(communicator: Communicator) -> Result<()> {
    let first = communicator.barrier();
    if communicator.rank().0 + 1 == communicator.world_size() {
        communicator.abort("out of data")?;
    }
    let error = first.and_then(|()| communicator.barrier()).expect_err("it has ended");
    let last = communicator.world_size() - 1;
    let text = match communicator.rank().0 == last {
        true => format!("rank {last}: out of data"),
        false => format!("rank {last} ended the communicator: out of data"),
    };
    assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    assert!(error.to_string().ends_with(&text), "{error}");
    println!("{error}");
    Ok(())
}

/// Rank 0 leaves first. The others go on in a group, but cannot meet on the host.
fn leave(communicator: Communicator) -> Result<()> {
    let group = communicator.new_group(1..communicator.world_size())?;
    drop(communicator);
    let Some(group) = group else {
        drop(ENVIRONMENT.lock().expect("no panic").take());
        return Ok(());
    };
    let end = Instant::now() + Duration::from_secs(2);
    let mut goes_on = [1f32];
    while goes_on == [1.0] {
        goes_on = [if Instant::now() < end { 1.0 } else { 0.0 }];
        group.all_reduce(&mut goes_on, ReduceOperation::Min)?;
    }
    let begin = Instant::now();
    let error = group.monitored_barrier(Duration::from_secs(60)).expect_err("rank 0 has left");
    assert!(error.to_string().contains("rank 0, which passes on the messages"), "{error}");
    println!("told after {:?}", begin.elapsed());
    Ok(())
}

/// Each rank sends every other one messages of lengths that both know.
fn messages_both_ways(communicator: Communicator) -> Result<()> {
    let (rank, n) = (communicator.rank().0, communicator.world_size());
    let len = |from: u32, to: u32, round: u32| (1 + from + 5 * to + 3 * round) as usize;
    for round in 0..20 {
        for (from, to) in (0..n).flat_map(|from| (0..n).map(move |to| (from, to))).filter(|(from, to)| from != to) {
            if rank == from {
                communicator.send(&vec![1f32; len(from, to, round)], to, 0)?;
            } else if rank == to {
                communicator.recv(&mut vec![0f32; len(from, to, round)], from, 0)?;
            }
        }
        communicator.barrier()?;
    }
    communicator.check()
}

/// Rank 3 receives more than rank 2, which is on its machine, sends.
fn other_messages(communicator: Communicator) -> Result<()> {
    let made = communicator.monitored_barrier(DEADLINE);
    let end = made.and_then(|()| match communicator.rank() {
        Rank(2) => communicator.send(&[1f32; 4], 3, 0),
        Rank(3) => communicator.recv(&mut [1f32; 5], 2, 0).map(drop),
        _ => Ok(()),
    });
    let error = end.and_then(|()| communicator.barrier()).expect_err("messages differ");
    println!("{error}");
    Ok(())
}

/// The ranks of a role in processes pass, and what each says has a text.
fn each_says(role: &str, machines: &[&str], text: &str) {
    if needs_more_gpus(machines.len() as u32) {
        return;
    }
    let ends = wait_all(Child::new(role, machines.len() as u32).on_machines(machines).start(), DEADLINE);
    for (rank, (succeeded, said)) in ends.into_iter().enumerate() {
        assert!(succeeded && said.contains(text), "rank {rank} of {machines:?}: {said}");
    }
}

/// Kills a rank that is in calls. The others name it.
fn dies(machines: &[&str], rank: usize) {
    if needs_more_gpus(machines.len() as u32) {
        return;
    }
    let mut ranks: Vec<Process> =
        Child::new("processes sum until told", machines.len() as u32).on_machines(machines).start();
    for process in &mut ranks {
        wait_for_line(process, "ready");
    }
    std::thread::sleep(Duration::from_millis(50));
    let mut dying = ranks.remove(rank);
    dying.kill().expect("it lives");
    dying.wait().expect("it has died");
    let begin = Instant::now();
    for (succeeded, said) in wait_all(ranks, DEADLINE) {
        assert!(succeeded && said.contains(&format!("rank {rank} died")), "{said}");
        assert!(said.matches("all_reduce(sum) of 100 float32").count() <= 1, "{said}");
    }
    println!("told after {:?}", begin.elapsed());
}

fn passes(role: &str, ranks: u32) {
    if !needs_more_gpus(ranks) {
        Child::new(role, ranks).in_processes().passes();
    }
}

fn passes_on(role: &str, machines: &[&str]) {
    if !needs_more_gpus(machines.len() as u32) {
        Child::new(role, machines.len() as u32).on_machines(machines).passes();
    }
}

fn conforms((ranks, place, mode): (u32, &str, &str), quarter: usize) {
    passes(&format!("conformance {place} {mode} {quarter}"), ranks);
}

quarters! {
    crate::nccl::processes::conforms;
    processes_2: (2, "own", "backend"),
    exact_processes_3: (3, "symmetric", "layers"),
}

#[test]
fn eager_calls_and_groups() {
    passes("eager", 3);
    passes("wires", 2);
}

#[test]
fn messages() {
    passes("messages exchange", 3);
    passes("messages streams", 2);
}

#[test]
fn contexts_that_others_capture() {
    passes("contexts capture", 2);
    passes("contexts mistakes", 2);
}

#[test]
fn differing_calls_are_named() {
    for role in ["eager", "enqueued", "layer"] {
        passes(&format!("differing {role}"), 2);
    }
}

#[test]
fn differences_of_other_kinds_are_named() {
    for role in ["list", "context", "graph", "barrier", "split", "message"] {
        passes(&format!("differing {role}"), 2);
    }
}

#[test]
fn processes_that_agree() {
    passes("differing same", 3);
}

#[test]
fn the_death_of_a_process_is_told() {
    dies(&["a", "a"], 1);
}

const TWO_MACHINES: [&str; 4] = ["a", "a", "b", "b"];

#[test]
fn calls_on_several_machines() {
    passes_on("eager", &TWO_MACHINES);
    passes_on("eager", &["a", "b", "a"]);
    passes_on("contexts capture", &["a", "b"]);
    passes_on("differing same", &["a", "b", "b"]);
    passes_on("processes graphs", &["a", "b", "b"]);
}

#[test]
fn messages_between_machines() {
    for machines in [&["a", "b"][..], &["a", "b", "a"], &TWO_MACHINES] {
        passes_on("processes messages", machines);
    }
    passes_on("messages exchange", &["a", "b", "b"]);
    let text = "rank 2 sends 4 float32; rank 3 receives 5 float32";
    each_says("processes other messages", &TWO_MACHINES, text);
}

#[test]
fn conformance_on_several_machines() {
    for quarter in 0..4 {
        passes_on(&format!("conformance own backend {quarter}"), &["a", "b"]);
    }
}

#[test]
fn a_death_is_told_on_all_machines() {
    for rank in [0, 1, 3] {
        dies(&TWO_MACHINES, rank);
    }
    dies(&["a", "b", "c"], 2);
}

#[test]
fn a_barrier_names_who_is_missing_on_another_machine() {
    each_says("processes barrier", &TWO_MACHINES, "rank 3 did not arrive before the deadline");
}

#[test]
fn an_error_is_told_on_all_machines() {
    for machines in [&TWO_MACHINES[..], &["a", "b", "c"]] {
        each_says("processes fail", machines, "out of data");
    }
}

#[test]
fn an_error_of_init_is_told_on_all_machines() {
    if needs_test_libraries() {
        return;
    }
    let script = [("FAKE_NCCL", "fail=ncclCommInitRankConfig:1:2:3")];
    let ranks = Child::new("processes fail", 4).on_machines(&TWO_MACHINES).with(&script).start();
    for (rank, (_, said)) in wait_all(ranks, DEADLINE).into_iter().enumerate() {
        let told = if rank == 3 { "" } else { "rank 3 ended the communicator: " };
        let text = format!("rank {rank}: {told}ncclCommInitRankConfig: NCCL says ncclSystemError");
        assert!(said.contains(&text), "{said}");
    }
}

#[test]
fn a_difference_on_one_machine_is_told_on_all() {
    let text = "rank 0 calls all_reduce(sum) of 4 float32; rank 1 calls all_reduce(max) of 4 float32";
    each_says("processes other calls", &TWO_MACHINES, text);
}

#[test]
fn a_difference_between_machines_is_told_on_all() {
    let names = |other: &str| {
        format!("ranks disagree on collective 7: rank 0 calls all_reduce(sum) of 4 float32; rank 2 calls {other}")
    };
    each_says("processes other reductions", &TWO_MACHINES, &names("all_reduce(max) of 4 float32"));
    each_says("processes other lengths", &TWO_MACHINES, &names("all_reduce(sum) of 5 float32"));
}

#[test]
fn a_rank_that_exits_has_died() {
    for machines in [&["a", "a", "a"][..], &["a", "a", "b"], &["a", "b", "a"]] {
        if needs_more_gpus(machines.len() as u32) {
            return;
        }
        let ends = wait_all(Child::new("processes exit", 3).on_machines(machines).start(), DEADLINE);
        for (succeeded, said) in &ends[..2] {
            assert!(*succeeded && said.contains("rank 2 died"), "{machines:?}: {said}");
        }
    }
}

/// NCCL's ranks connect in their first call, and see a closed connection before they learn why.
#[test]
fn the_reason_is_told_of_an_end_while_ranks_connect() {
    for machines in [&["a", "a", "a"][..], &["a", "b", "a"]] {
        if needs_more_gpus(machines.len() as u32) {
            return;
        }
        let ends = wait_all(Child::new("processes exit first", 3).on_machines(machines).start(), DEADLINE);
        for (succeeded, said) in &ends[..2] {
            assert!(*succeeded && said.contains("rank 2 died"), "{machines:?}: {said}");
        }
        each_says("processes fail first", machines, "out of data");
    }
}

#[test]
fn a_closed_connection_is_not_the_reason() {
    if needs_test_libraries() {
        return;
    }
    let script = "fail=ncclCommSplit:1:6:0,fail=ncclCommSplit:1:6:1,fail=ncclCommSplit:1:2:2";
    let script = [("FAKE_NCCL", script)];
    for machines in [&["a", "a", "a"][..], &["a", "b", "a"]] {
        let ranks = Child::new("processes split", 3).on_machines(machines).with(&script).start();
        for (_, said) in wait_all(ranks, DEADLINE) {
            assert!(said.contains("ncclCommSplit: NCCL says ncclSystemError"), "{machines:?}: {said}");
        }
    }
}

#[test]
fn others_go_on_when_rank_0_has_left() {
    passes_on("processes leave", &TWO_MACHINES);
}
