//! Threads that NCCL keeps, and what brings them out; calls that never return.

use std::fs::{self, DirEntry};
use std::sync::Arc;
use std::time::Instant;

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, DistCollectiveLayer, Error, Network, Rank, ReduceOperation, Result,
    Work, inputs, outputs,
};
use fake_gpu::Variant;

use super::faults::{SHORT, says, says_on, sums};
use super::libraries::{nccl_calls, nccl_live};
use super::{TIMEOUT, communicators, cuda_stream, needs_test_libraries, on_gpus};
use crate::ranks::{DEADLINE, on_communicators};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "beside a failure" => beside_a_failure(ranks),
        "beside an abort" => beside_an_abort(ranks),
        "after a pause" => after_a_pause(ranks),
        "group" => sums(ranks, two_sums),
        "group that fails" => group_that_fails(ranks),
        "for good" => for_good(ranks),
        "full queue" => full_queue(ranks),
        "full queue without a peer" => full_queue_without_a_peer(ranks),
        "half a split" => half_a_split(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// Waits until NCCL has got this call so many times.
pub fn wait_for_calls(function: &str, count: usize) {
    let end = Instant::now() + TIMEOUT;
    while nccl_calls(function) < count {
        assert!(Instant::now() < end, "{function} is not called {count} times");
        std::thread::yield_now();
    }
}

/// Rank 0 is stuck inside NCCL, and has a deadline that the test does not reach. The others abort.
fn beside_a_failure(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), |communicator| -> Option<Error> {
        if communicator.rank() == Rank(0) {
            return communicator.with_timeout(10 * TIMEOUT).all_reduce(&mut [1f32], ReduceOperation::Sum).err();
        }
        wait_for_calls("ncclAllReduce", 1);
        communicator.abort("the user has closed the window").expect("an end");
        None
    });
    println!("{:?}", results[0].as_ref().expect("rank 0 fails"));
}

/// Each rank is stuck inside NCCL, and has a deadline that the test does not reach. Another thread
/// of rank 0 aborts.
fn beside_an_abort(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Error {
        let communicator = communicator.with_timeout(10 * TIMEOUT);
        if communicator.rank() == Rank(0) {
            let communicator = communicator.clone();
            std::thread::spawn(move || {
                wait_for_calls("ncclAllReduce", ranks as usize);
                communicator.abort("the user has closed the window").expect("an end");
            });
        }
        communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("rank 0 aborts")
    });
    for error in results {
        println!("{error:?}");
    }
}

/// The thread that looks after calls ends when there is no communicator any more. For later ones
/// there is another.
fn after_a_pause(ranks: u32) {
    drop(communicators(ranks));
    let is_watchdog = |task: std::io::Result<DirEntry>| {
        task.is_ok_and(|task| fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name == "dcl-watchdog\n"))
    };
    let end = Instant::now() + TIMEOUT;
    while fs::read_dir("/proc/self/task").expect("tasks").any(is_watchdog) {
        assert!(Instant::now() < end, "the watchdog has nothing to look after");
        std::thread::yield_now();
    }
    sums(ranks, |communicator| communicator.all_reduce(&mut [1f32], ReduceOperation::Sum));
}

/// Two sums of a context, which NCCL gets in one group.
fn two_sums(communicator: &Communicator) -> Result<()> {
    two(communicator, || {
        DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size()).into_layer()
    })
}

fn two_broadcasts(communicator: &Communicator) -> Result<()> {
    two(communicator, || DistCollective::broadcast(Rank(0)).nb_rank(communicator.world_size()).into_layer())
}

fn two(communicator: &Communicator, layer: impl Fn() -> DistCollectiveLayer) -> Result<()> {
    let mut network = Network::new();
    for name in ["a", "b"] {
        let x = network.add_input(name, DataType::Float32, [4])?;
        let y = network.add(layer(), x)?;
        network.mark_output(y, &format!("{name} out"))?;
    }
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let (mut a, mut b) = ([0f32; 4], [0f32; 4]);
    let outputs = outputs!["a out" => &mut a, "b out" => &mut b];
    context.execute(inputs!["a" => &[1f32; 4], "b" => &[1f32; 4]], outputs)
}

/// After a group of one communicator has failed, the thread can use another one.
fn group_that_fails(ranks: u32) {
    let pairs: Vec<_> = communicators(ranks).into_iter().zip(communicators(ranks)).collect();
    let (failing, others): (Vec<_>, Vec<_>) = pairs.into_iter().unzip();
    let others = Arc::new(others);
    let results = on_communicators(DEADLINE, failing, move |communicator| -> Result<Error> {
        let error = two_broadcasts(&communicator).expect_err("NCCL fails");
        others[communicator.rank().index()].barrier()?;
        two_sums(&others[communicator.rank().index()])?;
        Ok(error)
    });
    for error in results {
        println!("{:?}", error.expect("the other communicator works"));
    }
}

/// Rank 0's thread does not come out of NCCL, whatever this library does. The other ranks are told.
fn for_good(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), |communicator| -> Option<Error> {
        if communicator.rank() == Rank(0) {
            std::thread::spawn(move || communicator.with_timeout(SHORT).all_reduce(&mut [1f32], ReduceOperation::Sum));
            return None;
        }
        communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).err()
    });
    for error in results.into_iter().flatten() {
        println!("{error:?}");
    }
}

/// Enqueues more sums than fit, without waiting for any.
fn enqueue_sums(communicator: &Communicator, count: usize) -> Result<Vec<Work<Operands>>> {
    let stream = cuda_stream(communicator)?;
    let enqueue = |_| {
        let mut buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [1])?;
        buffer.write(0, &1f32.to_le_bytes())?;
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Ok(communicator.collective_async(sum, Operands::in_place(buffer), &stream)?)
    };
    (0..count).map(enqueue).collect()
}

/// Rank 0 is kept inside NCCL until the others come.
fn full_queue(ranks: u32) {
    on_gpus(ranks, move |communicator| {
        if communicator.rank() != Rank(0) {
            wait_for_calls("ncclAllReduce", 3);
        }
        for work in enqueue_sums(&communicator, 5)? {
            let mut sum = [0; 4];
            work.wait()?.output.expect("handed back").read(0, &mut sum)?;
            assert_eq!(f32::from_le_bytes(sum), ranks as f32);
        }
        communicator.barrier()
    });
}

/// Rank 0 is kept inside NCCL, and no rank comes.
fn full_queue_without_a_peer(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), |communicator| -> Error {
        if communicator.rank() == Rank(0) {
            let works = enqueue_sums(&communicator.with_timeout(SHORT), 5).expect("an error comes with the work");
            return works.into_iter().find_map(|work| work.wait().err()).expect("the queue is full").into();
        }
        loop {
            match communicator.check() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => return error,
            }
        }
    });
    for error in results {
        println!("{error:?}");
    }
}

/// One rank does not come to a split. NCCL leaves the others a child that is good for nothing but
/// an abort.
fn half_a_split(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Error {
        if communicator.rank().0 + 1 < ranks {
            return communicator.with_timeout(SHORT).split(Some(0), 0).map(drop).expect_err("a rank does not come");
        }
        loop {
            match communicator.check() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => return error,
            }
        }
    });
    for error in results {
        println!("{error:?}");
    }
    let end = Instant::now() + TIMEOUT;
    while nccl_live("communicator") > 0 {
        assert!(Instant::now() < end, "a communicator is not aborted");
        std::thread::yield_now();
    }
}

#[test]
fn a_thread_that_is_stuck_in_nccl_comes_out_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    // The rank that comes later may find that the other one has ended the communicator.
    let kept = "all_reduce(sum) of 1 float32 (collective 1 of ranks 0 and 1): NCCL kept the call until the deadline";
    for role in ["faults sum", "faults enqueued sum"] {
        says(
            role,
            2,
            "in_progress=ncclAllReduce:60000",
            &["DeadlineExceeded", if role == "faults sum" { kept } else { "NCCL kept the call until the deadline" }],
        );
    }
    says("faults split", 2, "in_progress=ncclCommSplit:60000", &["ncclCommSplit has not returned by the deadline"]);
    let register = "in_progress=ncclCommWindowRegister:60000";
    says("windows fail", 2, register, &["ncclCommWindowRegister has not returned by the deadline"]);
}

#[test]
fn a_group_that_is_stuck_in_nccl_comes_out_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    // The rank whose watchdog looks first tells the other one.
    let kept = ["DeadlineExceeded: rank ", ": a group of 2 collectives: NCCL kept the call until the deadline"];
    says("stuck group", 2, "in_progress=ncclGroupEnd:60000", &kept);
}

#[test]
fn a_group_that_fails_is_ended() {
    if needs_test_libraries() {
        return;
    }
    let failed = "rank 0: a group of 2 collectives: ncclGroupEnd: NCCL says ncclInternalError";
    says("stuck group that fails", 2, "fail=ncclBroadcast:1:3:0", &[failed]);
}

#[test]
fn there_is_a_watchdog_again_after_a_pause() {
    if needs_test_libraries() {
        return;
    }
    says("stuck after a pause", 2, "in_progress=ncclAllReduce:60000", &["NCCL kept the call until the deadline"]);
}

#[test]
fn a_thread_that_is_stuck_in_nccl_comes_out_when_a_peer_fails() {
    if needs_test_libraries() {
        return;
    }
    says(
        "stuck beside a failure",
        3,
        "in_progress=ncclAllReduce:60000",
        &["Aborted: rank 0: ", "the user has closed the window"],
    );
}

#[test]
fn a_thread_that_is_stuck_in_nccl_comes_out_when_another_thread_aborts() {
    if needs_test_libraries() {
        return;
    }
    let script = "in_progress=ncclAllReduce:60000";
    let expected = ["Aborted: rank 0: ", "Aborted: rank 1: ", "the user has closed the window"];
    says("stuck beside an abort", 2, script, &expected);
}

#[test]
fn a_thread_that_never_comes_out_of_nccl_keeps_no_other_rank() {
    if needs_test_libraries() {
        return;
    }
    says(
        "stuck for good",
        3,
        "stall=ncclAllReduce:1:0",
        &["rank 1: all_reduce", "rank 2: ", "rank 0 ended the communicator: NCCL kept the call"],
    );
}

#[test]
fn a_full_queue_keeps_the_caller_until_its_deadline() {
    if needs_test_libraries() {
        return;
    }
    says("stuck full queue", 2, "fifo=2", &[]);
    let stuck = "(collective 3 of ranks 0 and 1): NCCL kept the call until the deadline";
    says("stuck full queue without a peer", 2, "fifo=2", &[stuck, "rank 1: rank 0 ended the communicator"]);
}

#[test]
fn what_a_failed_split_leaves_is_aborted() {
    if needs_test_libraries() {
        return;
    }
    for variant in [Variant::Current, Variant::Old] {
        says_on(variant, "stuck half a split", 2, "", &["DeadlineExceeded: rank 0", "rank 1: rank 0 ended"]);
    }
}

#[test]
fn what_never_returns_ends_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    says("faults split", 2, "stall=ncclCommSplit:1:0", &["ncclCommSplit has not returned by the deadline"]);
    says(
        "windows fail",
        2,
        "stall=ncclCommWindowRegister:1:0",
        &["ncclCommWindowRegister has not returned by the deadline"],
    );
}
