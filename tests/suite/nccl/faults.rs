//! Faults: calls of NCCL that fail, are in progress for long or report an error later; ranks that
//! do not come.

use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, Operands};
use distcollective::{Buffer, Communicator, DataType, Rank, ReduceOperation, Result};
use fake_gpu::Variant;

use super::libraries::nccl_calls;
use super::{Child, communicators, cuda_stream, is_on_gpu, needs_more_gpus, needs_test_libraries};
use crate::ranks::{DEADLINE, on_communicators};

/// The timeout of calls that have to fail.
pub const SHORT: Duration = Duration::from_millis(500);

/// The deadline of tests in which an abort hangs. The library waits 10 s for the abort, and 10 s
/// for the work that the abort should end.
pub const LONG: Duration = Duration::from_secs(40);

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "init" => {
            let begin = Instant::now();
            println!(
                "{}",
                Communicator::builder()
                    .backend(BackendKind::Nccl)
                    .timeout(SHORT)
                    .in_process(ranks)
                    .expect_err("it cannot be made")
            );
            assert!(begin.elapsed() < Duration::from_secs(5), "it is bounded");
        }
        "init in vain" => {
            play("init", ranks);
            let end = Instant::now() + DEADLINE;
            while nccl_calls("ncclCommAbort") < ranks as usize {
                assert!(Instant::now() < end, "a communicator is left behind");
                std::thread::yield_now();
            }
        }
        "sum" => sums(ranks, |communicator| communicator.all_reduce(&mut [1f32], ReduceOperation::Sum)),
        "sum and abort" => {
            sums_within(LONG, ranks, |communicator| communicator.all_reduce(&mut [1f32], ReduceOperation::Sum))
        }
        "enqueued sum" => sums(ranks, |communicator| {
            let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?;
            let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            let stream = cuda_stream(communicator)?;
            Ok(communicator.collective_async(sum, Operands::in_place(buffer), &stream)?.wait().map(|_| ())?)
        }),
        "split" => sums(ranks, |communicator| communicator.split(Some(0), 0).map(|_| ())),
        "message" => sums(ranks, |communicator| match communicator.rank() {
            Rank(0) => communicator.send(&[1f32], 1, 0),
            _ => communicator.recv(&mut [0f32], 0, 0).map(drop),
        }),
        "late rank" => late_rank(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// Makes a call that fails on every rank, and prints the errors.
pub fn sums(ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Send + Sync + 'static) {
    sums_within(DEADLINE, ranks, call);
}

/// [`sums`] with another deadline.
fn sums_within(deadline: Duration, ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Send + Sync + 'static) {
    let results = on_communicators(deadline, communicators(ranks), move |communicator| {
        let communicator = communicator.with_timeout(2 * SHORT);
        let error = call(&communicator).expect_err("it fails");
        // Further calls return the error at once.
        let begin = Instant::now();
        let again = communicator.barrier().expect_err("the communicator has ended");
        assert!(begin.elapsed() < SHORT, "a dead communicator does not wait");
        assert_eq!(communicator.check().expect_err("it has ended").kind(), again.kind());
        error
    });
    for error in results {
        println!("{:?}: {error}", error.kind());
    }
}

/// A rank comes too late. The others return at their deadline, and the communicator ends for all.
fn late_rank(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| {
        if communicator.rank() == Rank(0) {
            // Longer than the timeout of the others.
            std::thread::sleep(3 * SHORT);
        }
        communicator.with_timeout(SHORT).all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("a rank is late")
    });
    for error in results {
        println!("{:?}: {error}", error.kind());
    }
}

/// Runs a role with a script for the test library, and looks for texts in the output.
pub fn says(role: &str, ranks: u32, script: &str, expected: &[&str]) {
    says_on(Variant::Current, role, ranks, script, expected);
}

/// [`says`] with other libraries. With the current NCCL communicators block, with the old one they
/// do not.
pub fn says_on(variant: Variant, role: &str, ranks: u32, script: &str, expected: &[&str]) {
    let text = Child::new(role, ranks).on(variant).with(&[("FAKE_NCCL", script)]).passes();
    for part in expected {
        assert!(text.contains(part), "{role} with {script:?} does not say {part:?}:\n{text}");
    }
}

#[test]
fn a_communicator_that_cannot_be_made_is_an_error_in_time() {
    if needs_test_libraries() {
        return;
    }
    says("faults init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["ncclCommInitRankConfig: NCCL says ncclSystemError"]);
    // Rank 0 waits, and returns at once.
    says("faults init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["rank 1 ended the communicator"]);
    says("faults init", 2, "stall=ncclCommInitRankConfig:1:0", &["has not returned by the deadline"]);
    let lasting = "in_progress=ncclCommInitRankConfig:60000";
    says("faults init", 2, lasting, &["ncclCommInitRankConfig has not returned by the deadline"]);
    says_on(Variant::Old, "faults init", 2, lasting, &["was still in progress at the deadline"]);
    says_on(Variant::Old, "faults init", 2, "stall=ncclCommInitRankConfig:1:0", &["has not returned by the deadline"]);
    // NCCL writes the communicators after the deadline.
    says("faults init in vain", 2, "late_handle=1500", &["ncclCommInitRankConfig has not returned by the deadline"]);
    says("faults init", 2, "fail=ncclGetUniqueId:1:2", &["ncclGetUniqueId: NCCL says ncclSystemError"]);
}

#[test]
fn a_call_that_fails_ends_the_communicator_on_every_rank() {
    if needs_test_libraries() {
        return;
    }
    let call = "rank 1: all_reduce(sum) of 1 float32 (collective 1 of ranks 0 and 1): ncclAllReduce: NCCL says";
    // Before it the ranks exchange what they can do. Errors do not count that all_gather.
    says(
        "faults sum",
        2,
        "fail=ncclAllReduce:1:3:1",
        &[&format!("{call} ncclInternalError"), "NCCL's last message, which may be"],
    );
    // A non-blocking communicator keeps this error too.
    says("faults sum", 2, "fail=ncclAllReduce:1:4:1", &[&format!("{call} ncclInvalidArgument")]);
    says("faults sum", 2, "fail=ncclAllReduce:1:6:1", &["PeerLost: rank 1", "ncclRemoteError"]);
}

#[test]
fn a_message_that_fails_ends_the_communicator_on_every_rank() {
    if needs_test_libraries() {
        return;
    }
    let failed = ["rank 0: send", "NCCL says ncclInternalError", "rank 1: ", "rank 0 ended the communicator: "];
    says("faults message", 2, "fail=ncclSend:1:3:0", &failed);
    says("faults message", 2, "in_progress=ncclGroupEnd:60000", &["NCCL kept the call until the deadline"]);
}

#[test]
fn an_error_that_comes_later_is_found() {
    if needs_test_libraries() {
        return;
    }
    for role in ["faults sum", "faults enqueued sum"] {
        says(role, 2, "async_error=2:6:0", &["NCCL says ncclRemoteError", "rank 1: "]);
        says(role, 3, "async_error=2:2:2", &["NCCL says ncclSystemError"]);
    }
}

#[test]
fn what_stays_in_progress_ends_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    let lasting = "in_progress=ncclAllReduce:60000";
    says_on(Variant::Old, "faults sum", 2, lasting, &["DeadlineExceeded", "still in progress at the deadline"]);
    says_on(Variant::Old, "faults split", 2, "in_progress=ncclCommSplit:60000", &["DeadlineExceeded"]);
}

#[test]
fn being_in_progress_for_long_is_no_error() {
    if needs_test_libraries() {
        return;
    }
    for variant in [Variant::Current, Variant::Old] {
        for script in ["never_in_progress", "in_progress=ncclAllReduce:50"] {
            Child::new("eager", 2).on(variant).with(&[("FAKE_NCCL", script)]).passes();
        }
    }
}

#[test]
fn a_rank_that_does_not_come_is_found_at_the_deadline() {
    if needs_more_gpus(3) {
        return;
    }
    // NCCL itself may keep the first call until the ranks are connected.
    let found = if is_on_gpu() { "the deadline" } else { "the work on the GPU was not done by the deadline" };
    says("faults late rank", 3, "never_in_progress", &["DeadlineExceeded: rank", found]);
}
