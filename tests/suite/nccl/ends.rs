//! The end of a communicator: aborts, drops in any order, communicators that are borrowed.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{NcclId, Operands};
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, Error, ErrorKind, Rank, ReduceOperation, Result, Stream};

use super::faults::{LONG, says};
use super::libraries::nccl_calls;
use super::windows::windows_of_groups;
use super::{Child, TIMEOUT, communicators, cuda_stream, needs_more_gpus, needs_test_libraries};
use crate::ranks::{DEADLINE, on_communicators, patient};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "abort" => abort(ranks),
        "leaving" => leaving(ranks),
        "drop" => drop_while_aborts_hang(ranks),
        "borrowed" => borrowed(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// An abort of one rank ends the waits of the others at once, by the control communicator.
fn abort(ranks: u32) {
    let communicators = communicators(ranks);
    let begin = Instant::now();
    let results = on_communicators(DEADLINE, communicators, move |communicator| -> Error {
        if communicator.rank() == Rank(0) {
            std::thread::sleep(Duration::from_millis(50));
            communicator.abort("the user has closed the window").expect("an end");
            return communicator.barrier().expect_err("it has been aborted");
        }
        communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("rank 0 aborts")
    });
    // A rank whose communicator is not aborted would wait for 10 s, on a slow machine too.
    assert!(begin.elapsed() < TIMEOUT, "no rank waits for the deadline");
    for error in results {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        println!("{error}");
    }
}

/// Buffers and work may be dropped after their communicator and stream.
fn leaving(ranks: u32) {
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Result<()> {
        let mut buffer = communicator.allocate(DataType::Float32, [1024])?;
        communicator.all_reduce(&mut buffer, ReduceOperation::Sum)?;
        let stream = cuda_stream(&communicator)?;
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let own = Buffer::zeroed_in(communicator.space(), DataType::Float32, [64])?;
        let work = communicator.collective_async(sum, Operands::in_place(own), &stream)?;
        drop(stream);
        drop(communicator);
        let own = work.wait()?.output.expect("handed back");
        drop(buffer);
        own.read(0, &mut [0; 256])
    });
    for result in results {
        result.expect("no error");
    }
}

/// Rank 0 ends the communicator and waits, for a bounded time, for an abort that hangs. The others
/// find the communicator ended and drop it. Their aborts hang too and begin later, so a drop that
/// waited for them would return after rank 0's abort.
fn drop_while_aborts_hang(ranks: u32) {
    let has_aborted = Arc::new(AtomicBool::new(false));
    let are_ready = Arc::new(std::sync::Barrier::new(ranks as usize));
    let results = on_communicators(LONG, communicators(ranks), move |communicator| -> Result<bool> {
        let buffer = communicator.allocate(DataType::Float32, [1024])?;
        // Not the communicator's own: an abort may end that on the ranks that have not left it.
        are_ready.wait();
        if communicator.rank() == Rank(0) {
            communicator.abort("enough")?;
            has_aborted.store(true, Ordering::SeqCst);
            return Ok(true);
        }
        while communicator.check().is_ok() {
            std::thread::yield_now();
        }
        drop(communicator);
        drop(buffer);
        Ok(!has_aborted.load(Ordering::SeqCst))
    });
    for (rank, returned_first) in results.into_iter().enumerate() {
        assert!(returned_first.expect("no error"), "rank {rank}'s drop waited for its abort");
    }
    assert_eq!(nccl_calls("ncclCommAbort"), ranks as usize, "every rank aborts");
}

/// A communicator that the caller has made with NCCL. The library uses and splits it, and never
/// aborts or destroys it.
fn borrowed(ranks: u32) {
    let makers = Makers::find();
    let id = NcclId::new().expect("an id");
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            std::thread::spawn(move || -> Result<()> {
                // The current GPU of the thread is the one on which NCCL makes the communicator.
                let stream = Stream::cuda(rank)?;
                let raw = makers.make(&id, ranks, rank);
                // SAFETY: the same library has just made the communicator. It is destroyed below,
                // after everything that uses it.
                let communicator = unsafe { Communicator::from_raw_nccl(raw, patient(TIMEOUT))? };
                assert_eq!((communicator.rank(), communicator.world_size()), (Rank(rank), ranks));
                assert_eq!(communicator.space(), MemorySpace::Cuda(rank));
                let mut x = [rank as f32, 1.0];
                communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
                assert_eq!(x, [(ranks * (ranks - 1) / 2) as f32, ranks as f32]);
                let group = communicator.split(Some(rank % 2), 0)?.expect("a color");
                group.barrier()?;
                if ranks > 2 {
                    windows_of_groups(&communicator)?;
                }
                // An abort ends the library's handle only; `destroy` below still works.
                communicator.abort("enough")?;
                communicator.barrier().expect_err("it has been aborted");
                drop((group, communicator, stream));
                makers.destroy(raw);
                Ok(())
            })
        })
        .collect();
    for thread in threads {
        thread.join().expect("no panic").expect("no error");
    }
    // SAFETY: the library refuses a null pointer and does not use it.
    let error = unsafe { Communicator::from_raw_nccl(std::ptr::null_mut(), TIMEOUT) }.expect_err("null");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

type Make = unsafe extern "C" fn(*mut *mut c_void, i32, [u8; 128], i32) -> i32;

type SetDevice = unsafe extern "C" fn(*mut c_void) -> i32;

type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> i32;

type Destroy = unsafe extern "C" fn(*mut c_void) -> i32;

/// The functions that a program calls to make communicators of its own.
#[derive(Clone, Copy)]
pub(super) struct Makers {
    retain: Retain,
    set_current: SetDevice,
    make: Make,
    destroy: Destroy,
}

impl Makers {
    pub(super) fn find() -> Self {
        // SAFETY: the libraries are loaded already. Each function has its documented type.
        unsafe {
            let cuda = libloading::Library::new("libcuda.so.1").expect("a driver");
            let nccl = libloading::Library::new("libnccl.so.2").expect("NCCL");
            let makers = Makers {
                retain: *cuda.get::<Retain>("cuDevicePrimaryCtxRetain").expect("a function"),
                set_current: *cuda.get::<SetDevice>("cuCtxSetCurrent").expect("a function"),
                make: *nccl.get::<Make>("ncclCommInitRank").expect("a function"),
                destroy: *nccl.get::<Destroy>("ncclCommDestroy").expect("a function"),
            };
            std::mem::forget((cuda, nccl));
            makers
        }
    }

    /// Makes a communicator on the GPU with the number of the rank.
    pub(super) fn make(&self, id: &NcclId, ranks: u32, rank: u32) -> *mut c_void {
        let (mut context, mut raw) = (std::ptr::null_mut(), std::ptr::null_mut());
        let id: [u8; 128] = id.as_bytes().try_into().expect("128 bytes");
        // SAFETY: each call writes one pointer; the context lives as long as the process.
        unsafe {
            assert_eq!((self.retain)(&mut context, rank as i32), 0);
            assert_eq!((self.set_current)(context), 0);
            assert_eq!((self.make)(&mut raw, ranks as i32, id, rank as i32), 0);
        }
        raw
    }

    pub(super) fn destroy(&self, raw: *mut c_void) {
        // SAFETY: made by `make`, and destroyed once.
        assert_eq!(unsafe { (self.destroy)(raw) }, 0);
    }
}

#[test]
fn an_abort_that_hangs_is_left_behind() {
    if needs_test_libraries() {
        return;
    }
    let script = [("FAKE_NCCL", "hang_abort,fail=ncclAllReduce:1:3:1")];
    let text = Child::new("faults sum and abort", 2).with(&script).passes_within(LONG);
    assert!(text.contains("ncclInternalError"), "{text}");
}

#[test]
fn an_abort_ends_the_waits_of_the_others_at_once() {
    if needs_more_gpus(3) {
        return;
    }
    says("ends abort", 3, "never_in_progress", &["rank 1: ", "rank 2: ", "the user has closed the window"]);
}

#[test]
fn what_is_dropped_in_any_order_is_freed() {
    if needs_more_gpus(3) {
        return;
    }
    says("ends leaving", 3, "", &[]);
}

#[test]
fn a_drop_does_not_wait_for_an_abort_that_hangs() {
    if needs_test_libraries() {
        return;
    }
    let script = [("FAKE_NCCL", "hang_abort")];
    Child::new("ends drop", 3).with(&script).passes_within(LONG);
}

#[test]
fn a_borrowed_communicator_is_left_as_it_was() {
    if needs_more_gpus(3) {
        return;
    }
    says("ends borrowed", 3, "never_in_progress", &[]);
}
