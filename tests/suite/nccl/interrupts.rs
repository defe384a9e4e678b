//! The interrupt hook ends waits for GPUs and for NCCL.

use std::cell::{Cell, RefCell};
use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, NcclId, Operands};
use distcollective::interrupt::set_interrupt_hook;
use distcollective::stream::WorkError;
use distcollective::{Buffer, Communicator, DataType, Error, ErrorKind, Rank, ReduceOperation, Result, Work};

use fake_gpu::Variant;

use super::libraries::nccl_calls;
use super::{Child, TIMEOUT, cuda_stream, needs_more_gpus, needs_test_libraries};
use crate::ranks::{DEADLINE, on_communicators};

thread_local! {
    /// After how many calls of the hook a wait of this thread ends; 0 for never.
    static CALLS_LEFT: Cell<u32> = const { Cell::new(0) };
    /// What the hook aborts where it would end a wait.
    static TO_ABORT: RefCell<Option<Communicator>> = const { RefCell::new(None) };
}

/// Ends the next wait of this thread when the hook is run for the second time.
fn end_next_wait() {
    CALLS_LEFT.set(2);
}

/// Plays a role in a child, whose hook this sets.
pub fn play(name: &str, ranks: u32) {
    let hook = || match CALLS_LEFT.get() {
        0 => ControlFlow::Continue(()),
        left => {
            CALLS_LEFT.set(left - 1);
            match TO_ABORT.with_borrow_mut(|to_abort| to_abort.take_if(|_| left == 1)) {
                Some(communicator) => {
                    communicator.abort("the user has closed the window").expect("an end");
                    ControlFlow::Continue(())
                }
                None if left == 1 => ControlFlow::Break(()),
                None => ControlFlow::Continue(()),
            }
        }
    };
    set_interrupt_hook(hook).expect("no hook before");
    match name {
        "init" => {
            let id = NcclId::new().expect("an id");
            end_next_wait();
            let builder = Communicator::builder().nccl(&id).world_size(2).rank(0).timeout(10 * TIMEOUT);
            println!("{:?}", builder.connect().expect_err("rank 1 does not come"));
        }
        "call" => call(ranks),
        "work" => work(ranks),
        "abort" => abort(ranks),
        _ => panic!("{name} is no role"),
    }
}

fn in_process(ranks: u32) -> Vec<Communicator> {
    Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks")
}

/// Rank 0's call is interrupted. The others make none; they see the end of the communicator.
fn call(ranks: u32) {
    let errors = on_communicators(DEADLINE, in_process(ranks), move |communicator| -> Error {
        if communicator.rank() == Rank(0) {
            end_next_wait();
            return communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("it is interrupted");
        }
        loop {
            match communicator.check() {
                Ok(()) => std::thread::yield_now(),
                Err(error) => return error,
            }
        }
    });
    for error in errors {
        println!("{error:?}");
    }
}

/// The hook aborts the communicator while this thread is inside NCCL, whose communicators are
/// aborted nevertheless.
fn abort(ranks: u32) {
    let errors = on_communicators(DEADLINE, in_process(ranks), move |communicator| -> Error {
        if communicator.rank() == Rank(0) {
            TO_ABORT.set(Some(communicator.clone()));
            end_next_wait();
        }
        communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("the hook aborts")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
    }
    let end = Instant::now() + TIMEOUT;
    while nccl_calls("ncclCommAbort") < ranks as usize {
        assert!(Instant::now() < end, "a communicator is not aborted");
        std::thread::yield_now();
    }
}

/// Rank 0's waits are interrupted, and its work goes on. It ends when the others come.
fn work(ranks: u32) {
    let was_interrupted = Arc::new(AtomicBool::new(false));
    let results = on_communicators(DEADLINE, in_process(ranks), move |communicator| -> Result<f32> {
        let stream = cuda_stream(&communicator)?;
        let enqueue = || -> Result<Work<Operands>> {
            let mut buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [1])?;
            buffer.write(0, &1f32.to_le_bytes())?;
            let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            Ok(communicator.collective_async(sum, Operands::in_place(buffer), &stream)?)
        };
        let work = if communicator.rank() == Rank(0) {
            let work = enqueue()?;
            end_next_wait();
            assert_eq!(stream.synchronize().expect_err("the others have not come").kind(), ErrorKind::Interrupted);
            end_next_wait();
            let Err(WorkError::Interrupted(work)) = work.wait() else { panic!("the others have not come") };
            let work = work.wait_timeout(Duration::ZERO).expect_err("the others have not come");
            communicator.check()?;
            was_interrupted.store(true, Ordering::SeqCst);
            work
        } else {
            while !was_interrupted.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            enqueue()?
        };
        let mut sum = [0; 4];
        work.wait()?.output.expect("handed back").read(0, &mut sum)?;
        Ok(f32::from_le_bytes(sum))
    });
    for sum in results {
        assert_eq!(sum.expect("no error"), ranks as f32);
    }
}

#[test]
fn an_initialization_is_interrupted() {
    let text = Child::new("interrupts init", 1).passes();
    assert!(text.contains("Interrupted: rank 0: interrupted by the program while ncclCommInitRankConfig"), "{text}");
}

#[test]
fn a_call_is_interrupted_and_its_peers_are_told() {
    if needs_more_gpus(2) {
        return;
    }
    let text = Child::new("interrupts call", 2).passes();
    assert!(text.contains("Interrupted: rank 0: all_reduce(sum) of 1 float32 (collective"), "{text}");
    assert!(text.contains("Aborted: rank 1: rank 0 ended the communicator: "), "{text}");
    assert_eq!(text.matches("interrupted by the program while work on the GPU had not ended").count(), 2, "{text}");
}

#[test]
fn the_hook_may_abort_in_a_call_of_nccl() {
    if needs_test_libraries() {
        return;
    }
    // Where communicators block, a thread inside NCCL cannot run the hook.
    let script = [("FAKE_NCCL", "in_progress=ncclAllReduce:60000")];
    Child::new("interrupts abort", 2).on(Variant::Old).with(&script).passes();
}

#[test]
fn work_goes_on_after_an_interrupt() {
    if needs_more_gpus(2) {
        return;
    }
    Child::new("interrupts work", 2).passes();
}
