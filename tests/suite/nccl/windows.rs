//! Windows: where they are, when they go, and what becomes of their memory after a fault.

use std::sync::{Arc, Barrier};

use distcollective::collective::Partition;
use distcollective::comm::Operands;
use distcollective::context::ContextOptions;
use distcollective::network::ElementWiseOperation;
use distcollective::{
    Communicator, DataType, DistCollective, Error, ErrorKind, ExecutionContext, Network, Rank, ReduceOperation, Result,
    inputs, outputs,
};
use fake_gpu::Variant;

use super::captures::{Driver, SUM, free_what_was_dropped};
use super::faults::{says, sums};
use super::libraries::{device_memory, nccl_calls, nccl_live};
use super::stuck::wait_for_calls;
use super::{Child, communicators, cuda_stream, is_on_gpu, needs_more_gpus, needs_test_libraries, on_gpus};
use crate::ranks::{DEADLINE, on_communicators};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "are registered" => {
            on_gpus(ranks, |communicator| windows(&communicator));
            println!("windows: {}", nccl_calls("ncclCommWindowRegister"));
        }
        "fail" => {
            let barrier = Arc::new(Barrier::new(ranks as usize));
            sums(ranks, move |communicator| failing(communicator, &barrier));
        }
        "of groups" => {
            on_gpus(ranks, |communicator| windows_of_groups(&communicator));
            if !is_on_gpu() {
                println!("windows: {}", nccl_calls("ncclCommWindowRegister"));
            }
        }
        "of many groups" => {
            on_gpus(ranks, |communicator| windows_of_many_groups(&communicator));
            println!("windows: {}", nccl_calls("ncclCommWindowRegister"));
        }
        "nowhere" => {
            on_gpus(ranks, |communicator| unlike_regions(&communicator));
            if !is_on_gpu() {
                assert_eq!(nccl_calls("ncclCommWindowRegister"), 0);
            }
        }
        "of groups that fail" => sums(ranks, windows_of_groups),
        "dropped apart" => on_gpus(ranks, |communicator| windows_dropped_apart(&communicator)),
        "ended late" => ended_late(ranks),
        "deregistered for ever" => deregistered_for_ever(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// A context with a window, which has run.
fn with_window(communicator: &Communicator) -> Result<ExecutionContext> {
    with_window_of(communicator, ContextOptions::default(), 1)
}

/// A context with options and a window, which has run so often.
pub fn with_window_of(communicator: &Communicator, options: ContextOptions, runs: usize) -> Result<ExecutionContext> {
    let n = communicator.world_size();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1024])?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n), x)?;
    let y = network.add(DistCollective::all_gather().nb_rank(n), sum)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context_with(options)?;
    context.set_communicator(communicator)?;
    for _ in 0..runs {
        let mut y = vec![0f32; 1024 * n as usize];
        context.execute(inputs!["x" => &[1f32; 1024]], outputs!["y" => &mut y])?;
        assert!(y.iter().all(|y| *y == n as f32));
    }
    Ok(context)
}

/// The tensor between two collectives lies in memory that is registered where it can be.
fn windows(communicator: &Communicator) -> Result<()> {
    with_window(communicator).map(drop)
}

/// A context with collectives among groups, which has run three times. Four ranks have them among
/// the rows and the columns of a mesh; of three, the outer ones are each in one group. A region is
/// a window of the communicator, and of this rank's in each group.
fn with_groups(communicator: &Communicator) -> Result<ExecutionContext> {
    let (rank, sum) = (communicator.rank().0, || DistCollective::all_reduce(ReduceOperation::Sum));
    let (rows, columns) = ([[0, 1], [2, 3]], [[0, 2], [1, 3]]);
    let (sums, total) = match communicator.world_size() {
        3 => ([sum().group([0, 1]), sum().group([1, 2]), sum().nb_rank(3)], 2.0),
        _ => ([rows, columns, rows].map(|groups| sum().partition(Partition::new(groups))), 12.0),
    };
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1024])?;
    let y = sums.iter().try_fold(x, |x, sum| network.add(sum.clone(), x))?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    for _ in 0..3 {
        let mut y = [0f32; 1024];
        context.execute(inputs!["x" => &[rank as f32; 1024]], outputs!["y" => &mut y])?;
        assert_eq!(y, [total; 1024]);
    }
    Ok(context)
}

/// Two such contexts, one after the other.
pub fn windows_of_groups(communicator: &Communicator) -> Result<()> {
    for _ in 0..2 {
        drop(with_groups(communicator)?);
        free_what_was_dropped(communicator);
    }
    communicator.barrier()
}

/// So many contexts at once that the groups of the last one register nothing.
fn windows_of_many_groups(communicator: &Communicator) -> Result<()> {
    let contexts = (0..5).map(|_| with_groups(communicator)).collect::<Result<Vec<_>>>()?;
    communicator.barrier()?;
    drop(contexts);
    Ok(())
}

/// Another layer reads the operand of rank 0's collective, whose result cannot come to the same
/// place. Ranks with windows would write where it is on this rank.
fn unlike_regions(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1024])?;
    let double = network.add_elementwise(x, x, ElementWiseOperation::Sum)?;
    let group = DistCollective::all_reduce(ReduceOperation::Sum).group(0..n);
    let sum = network.add(group, double)?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n), sum)?;
    let last = match communicator.rank() {
        Rank(0) => double,
        _ => x,
    };
    let y = network.add_elementwise(sum, last, ElementWiseOperation::Sum)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    for _ in 0..3 {
        let mut y = [0f32; 1024];
        context.execute(inputs!["x" => &[1f32; 1024]], outputs!["y" => &mut y])?;
        assert_eq!(y, [(2 * n * n) as f32 + if communicator.rank() == Rank(0) { 2.0 } else { 1.0 }; 1024]);
    }
    Ok(())
}

/// NCCL does not say that the memory is registered, and may use it nevertheless. So it is not freed
/// before the communicator has ended.
fn failing(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let result = windows(communicator);
    free_what_was_dropped(communicator);
    barrier.wait();
    assert_eq!(nccl_calls("ncclMemFree"), 0);
    barrier.wait();
    result
}

/// Rank 1 does not come back from NCCL, which deregisters a window that all ranks have dropped. It
/// is told that another rank has failed, and does not free the memory.
fn deregistered_for_ever(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Result<Error> {
        drop(with_window(&communicator)?);
        free_what_was_dropped(&communicator);
        communicator.barrier()?;
        if communicator.rank() == Rank(0) {
            let communicator = communicator.clone();
            std::thread::spawn(move || {
                wait_for_calls("ncclCommWindowDeregister", ranks as usize);
                communicator.abort("the user has closed the window").expect("an end");
            });
        }
        let error = with_window(&communicator).map(drop).expect_err("NCCL keeps the call of rank 1");
        free_what_was_dropped(&communicator);
        Ok(error)
    });
    for error in results {
        let error = error.expect("no other error");
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        println!("{error}");
    }
}

/// A call fails during a capture, which waits for no abort. The ranks drop their windows and their
/// communicators before the abort ends, which frees the memory then.
fn ended_late(ranks: u32) {
    let barrier = Arc::new(Barrier::new(ranks as usize));
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Result<Error> {
        let [window, memory] = [(); 2].map(|()| communicator.allocate(DataType::Float32, [8]));
        barrier.wait();
        let stream = cuda_stream(&communicator)?;
        let driver = Driver::on(&communicator);
        driver.begin_capture(&stream);
        let failed = communicator.collective_async(SUM, Operands::in_place(memory?), &stream)?.wait();
        driver.end_capture(&stream);
        drop(window?);
        Ok(failed.expect_err("NCCL refuses the call").into())
    });
    for error in results {
        println!("{}", error.expect("no other error"));
    }
    wait_for_calls("ncclMemFree", 2 * ranks as usize);
}

/// Ranks drop a context with a window at different moments. A window that is registered between
/// these moments is bound at the same offset on all ranks; the next one replaces the dropped one.
fn windows_dropped_apart(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size() as usize;
    let mut first = Some(with_window(communicator)?);
    let second = with_window(communicator)?;
    if communicator.rank() == Rank(0) {
        first = None;
        free_what_was_dropped(communicator);
    }
    communicator.barrier()?;
    let third = with_window(communicator)?;
    communicator.barrier()?;
    assert!(is_on_gpu() || nccl_live("window") == 3 * n);
    let pieces = device_memory();
    communicator.barrier()?;
    drop(first);
    free_what_was_dropped(communicator);
    communicator.barrier()?;
    let fourth = with_window(communicator)?;
    free_what_was_dropped(communicator);
    communicator.barrier()?;
    assert!(is_on_gpu() || nccl_live("window") == 3 * n);
    // NCCL keeps what is registered.
    assert_eq!(device_memory(), pieces);
    communicator.barrier()?;
    drop((second, third, fourth));
    Ok(())
}

#[test]
fn without_windows_memory_is_memory() {
    if needs_test_libraries() {
        return;
    }
    says("windows are registered", 3, "null_window", &["windows: 3"]);
    says("windows are registered", 3, "never_in_progress", &["windows: 3"]);
    for variant in [Variant::Previous, Variant::Old] {
        let text = Child::new("windows are registered", 2).on(variant).passes();
        assert!(text.contains("windows: 0"), "{variant:?}: {text}");
    }
}

#[test]
fn a_region_is_a_window_of_the_communicators_of_groups() {
    for (ranks, said) in [(3, "windows: 14"), (4, "windows: 24")] {
        if !needs_more_gpus(ranks) {
            says("windows of groups", ranks, "", &[said][usize::from(is_on_gpu())..]);
        }
    }
    if !is_on_gpu() {
        says("windows of groups", 4, "null_window", &["windows: 24"]);
        // Five of the communicator on each rank, and 32 of groups.
        says("windows of many groups", 4, "", &["windows: 52"]);
        // Rank 3's window of its row.
        let told = ["rank 3 ended the communicator", "ncclCommWindowRegister: NCCL says ncclSystemError"];
        says("windows of groups that fail", 4, "fail=ncclCommWindowRegister:2:2:3", &told);
    }
}

#[test]
fn memory_is_no_window_if_ranks_have_other_layers_at_their_collectives() {
    for ranks in [2, 3].into_iter().filter(|ranks| !needs_more_gpus(*ranks)) {
        says("windows nowhere", ranks, "", &[]);
    }
}

#[test]
fn windows_are_bound_alike_although_ranks_drop_others_at_different_moments() {
    for ranks in [2, 3].into_iter().filter(|ranks| !needs_more_gpus(*ranks)) {
        says("windows dropped apart", ranks, "", &[]);
    }
}

#[test]
fn memory_whose_registration_has_no_end_is_kept() {
    if needs_test_libraries() {
        return;
    }
    for script in ["stall=ncclCommWindowRegister:1:0", "in_progress=ncclCommWindowRegister:60000"] {
        says("windows fail", 2, script, &["ncclCommWindowRegister has not returned by the deadline"]);
    }
}

#[test]
fn a_rank_that_deregisters_a_window_is_told_of_a_failure() {
    if needs_test_libraries() {
        return;
    }
    says("windows deregistered for ever", 2, "stall=ncclCommWindowDeregister:1:1", &["the user has closed the window"]);
}

#[test]
fn what_ends_the_communicator_last_frees_its_memory() {
    if needs_test_libraries() {
        return;
    }
    let script = "in_progress=ncclCommAbort:500,fail=ncclAllReduce:1:3:0,fail=ncclAllReduce:1:3:1";
    says("windows ended late", 2, script, &["ncclInternalError"]);
}
