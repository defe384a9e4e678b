//! What goes wrong: NCCL that fails, stalls, hangs or says so late; ranks that do not come, or do
//! not agree.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, NcclId, Operands};
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, Builder, Communicator, DataType, DistCollective, Error, ErrorKind, Network, Rank, ReduceOperation, Result,
    Stream, inputs, outputs,
};
use fake_gpu::Variant;

use super::libraries::nccl_calls;
use super::{Child, TIMEOUT, cuda_stream, is_on_gpu, on_gpus};
use crate::ranks::{DEADLINE, on_communicators};

/// How long a rank waits where nothing is to come.
const SHORT: Duration = Duration::from_millis(500);

/// How long ranks may take that wait for an abort, and for what it should have ended: each has ten
/// seconds.
const LONG: Duration = Duration::from_secs(40);

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
        "windows fail" => sums(ranks, windows),
        "windows" => {
            on_gpus(ranks, |communicator| windows(&communicator));
            println!("windows: {}", nccl_calls("ncclCommWindowRegister"));
        }
        "late rank" => late_rank(ranks),
        "abort" => abort(ranks),
        "disagreement" => sums(ranks, |communicator| {
            let count = 1 + communicator.rank().index();
            communicator.all_reduce(&mut vec![1f32; count], ReduceOperation::Sum)
        }),
        "leaving" => leaving(ranks),
        "drop" => drop_while_aborts_hang(ranks),
        "borrowed" => borrowed(ranks),
        _ => panic!("{name} is no role"),
    }
}

/// A call on every rank that fails on all of them, in time. Prints what they say.
fn sums(ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Clone + Send + 'static) {
    sums_within(DEADLINE, ranks, call);
}

/// [`sums`] with another deadline.
fn sums_within(deadline: Duration, ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Clone + Send + 'static) {
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks");
    let results = on_communicators(deadline, communicators, move |communicator| {
        let communicator = communicator.with_timeout(SHORT);
        let error = call(&communicator).expect_err("it fails");
        // The communicator is dead, and says why at once.
        let begin = Instant::now();
        let again = communicator.barrier().expect_err("the communicator has ended");
        assert!(begin.elapsed() < SHORT / 2, "a dead communicator does not wait");
        assert_eq!(communicator.check().expect_err("it has ended").kind(), again.kind());
        error
    });
    for error in results {
        println!("{:?}: {error}", error.kind());
    }
}

/// The tensor between two collectives lies in memory that is registered where it can be.
fn windows(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1024])?;
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n), x)?;
    let y = network.add(DistCollective::all_gather().nb_rank(n), sum)?;
    network.mark_output(y, "y")?;
    let mut context = Builder::new().build(&network)?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut y = vec![0f32; 1024 * n as usize];
    context.execute(inputs!["x" => &[1f32; 1024]], outputs!["y" => &mut y])?;
    assert!(y.iter().all(|y| *y == n as f32));
    Ok(())
}

/// A rank that does not come: the others wait until their deadline, and the communicator ends for
/// all.
fn late_rank(ranks: u32) {
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks");
    let results = on_communicators(DEADLINE, communicators, move |communicator| {
        if communicator.rank() == Rank(0) {
            // It comes when the others have given up.
            std::thread::sleep(3 * SHORT);
        }
        communicator.with_timeout(SHORT).all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("a rank is late")
    });
    for error in results {
        println!("{:?}: {error}", error.kind());
    }
}

/// A rank that gives up tells the others at once, through the communicator on the host beside
/// NCCL's.
fn abort(ranks: u32) {
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks");
    let begin = Instant::now();
    let results = on_communicators(DEADLINE, communicators, move |communicator| -> Error {
        if communicator.rank() == Rank(0) {
            std::thread::sleep(Duration::from_millis(50));
            communicator.abort("the user has closed the window").expect("an end");
            return communicator.barrier().expect_err("it has been aborted");
        }
        communicator.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("rank 0 aborts")
    });
    assert!(begin.elapsed() < TIMEOUT, "nobody waits for the deadline");
    for error in results {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        println!("{error}");
    }
}

/// Buffers, streams and work outlive the communicator and each other.
fn leaving(ranks: u32) {
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks");
    let results = on_communicators(DEADLINE, communicators, move |communicator| -> Result<()> {
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
    let communicators =
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(ranks).expect("ranks");
    let results = on_communicators(LONG, communicators, move |communicator| -> Result<bool> {
        let buffer = communicator.allocate(DataType::Float32, [1024])?;
        communicator.barrier()?;
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

/// A communicator that somebody else has made with NCCL: it is used, split from, and left as it
/// was.
fn borrowed(ranks: u32) {
    let makers = Makers::find();
    let id = NcclId::new().expect("an id");
    let threads: Vec<_> = (0..ranks)
        .map(|rank| {
            std::thread::spawn(move || -> Result<()> {
                // The current GPU of the thread is the one on which NCCL makes the communicator.
                let stream = Stream::cuda(rank)?;
                let raw = makers.make(&id, ranks, rank);
                // SAFETY: the communicator has just been made by the same library, and is destroyed
                // when all is gone.
                let communicator = unsafe { Communicator::from_raw_nccl(raw, TIMEOUT)? };
                assert_eq!((communicator.rank(), communicator.world_size()), (Rank(rank), ranks));
                assert_eq!(communicator.space(), MemorySpace::Cuda(rank));
                let mut x = [rank as f32, 1.0];
                communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
                assert_eq!(x, [(ranks * (ranks - 1) / 2) as f32, ranks as f32]);
                let group = communicator.split(Some(rank % 2), 0)?.expect("a color");
                group.barrier()?;
                // It ends for us, and not for its owner.
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
    // SAFETY: a null pointer is an argument that is refused.
    let error = unsafe { Communicator::from_raw_nccl(std::ptr::null_mut(), TIMEOUT) }.expect_err("null");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
}

type Make = unsafe extern "C" fn(*mut *mut c_void, i32, [u8; 128], i32) -> i32;
type SetDevice = unsafe extern "C" fn(*mut c_void) -> i32;
type Retain = unsafe extern "C" fn(*mut *mut c_void, i32) -> i32;
type Destroy = unsafe extern "C" fn(*mut c_void) -> i32;

/// What an engine with NCCL of its own calls.
#[derive(Clone, Copy)]
struct Makers {
    retain: Retain,
    set_current: SetDevice,
    make: Make,
    destroy: Destroy,
}

impl Makers {
    fn find() -> Self {
        // SAFETY: the libraries are loaded already; each function has the type that its
        // documentation says.
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

    /// Returns a usable value for FFI: pointers go through integers so that threads can have them.
    fn make(&self, id: &NcclId, ranks: u32, rank: u32) -> *mut c_void {
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

    fn destroy(&self, raw: *mut c_void) {
        // SAFETY: made by `make`, and destroyed once.
        assert_eq!(unsafe { (self.destroy)(raw) }, 0);
    }
}

/// Runs a role with a script for the test library, and looks for what ranks say.
fn says(role: &str, ranks: u32, script: &str, expected: &[&str]) {
    let text = Child::new(&format!("faults {role}"), ranks).with(&[("FAKE_NCCL", script)]).passes();
    for part in expected {
        assert!(text.contains(part), "{role} with {script:?} does not say {part:?}:\n{text}");
    }
}

fn skips() -> bool {
    if is_on_gpu() {
        println!("skipped: this needs the test libraries");
    }
    is_on_gpu()
}

#[test]
fn a_communicator_that_cannot_be_made_is_an_error_in_time() {
    if skips() {
        return;
    }
    says("init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["ncclCommInitRankConfig: NCCL says ncclSystemError"]);
    // Rank 0, which waits, is told at once.
    says("init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["rank 1 ended the communicator"]);
    says("init", 2, "stall=ncclCommInitRankConfig:1:0", &["has not returned by the deadline"]);
    says("init", 2, "in_progress=ncclCommInitRankConfig:60000", &["was still in progress at the deadline"]);
    says("init", 2, "fail=ncclGetUniqueId:1:2", &["ncclGetUniqueId: NCCL says ncclSystemError"]);
}

#[test]
fn a_call_that_fails_ends_the_communicator_on_every_rank() {
    if skips() {
        return;
    }
    let call = "rank 1: all_reduce(sum) of 1 float32 (collective 1 of ranks 0 and 1): ncclAllReduce: NCCL says";
    // Before it the ranks exchange what they can do. Errors do not count that all_gather.
    says(
        "sum",
        2,
        "fail=ncclAllReduce:1:3:1",
        &[&format!("{call} ncclInternalError"), "NCCL's last message, which may be"],
    );
    // A communicator that does not block keeps this error too.
    says("sum", 2, "fail=ncclAllReduce:1:4:1", &[&format!("{call} ncclInvalidArgument")]);
    says("sum", 2, "fail=ncclAllReduce:1:6:1", &["PeerLost: rank 1", "ncclRemoteError"]);
}

#[test]
fn an_error_that_comes_later_is_found() {
    if skips() {
        return;
    }
    for role in ["sum", "enqueued sum"] {
        says(role, 2, "async_error=2:6:0", &["NCCL says ncclRemoteError", "rank 1: "]);
        says(role, 3, "async_error=2:2:2", &["NCCL says ncclSystemError"]);
    }
}

#[test]
fn what_stays_in_progress_ends_at_the_deadline() {
    if skips() {
        return;
    }
    says("sum", 2, "in_progress=ncclAllReduce:60000", &["DeadlineExceeded", "still in progress at the deadline"]);
    says("split", 2, "in_progress=ncclCommSplit:60000", &["DeadlineExceeded"]);
    says("windows fail", 2, "in_progress=ncclCommWindowRegister:60000", &["DeadlineExceeded"]);
}

#[test]
fn what_never_returns_ends_at_the_deadline() {
    if skips() {
        return;
    }
    says("split", 2, "stall=ncclCommSplit:1:0", &["ncclCommSplit has not returned by the deadline"]);
    says(
        "windows fail",
        2,
        "stall=ncclCommWindowRegister:1:0",
        &["ncclCommWindowRegister has not returned by the deadline"],
    );
}

/// What an abort and what it should end are given, ten seconds each, is the subject here.
#[test]
fn an_abort_that_hangs_is_left_behind() {
    if skips() {
        return;
    }
    let script = [("FAKE_NCCL", "hang_abort,fail=ncclAllReduce:1:3:1")];
    let text = Child::new("faults sum and abort", 2).with(&script).passes_within(LONG);
    assert!(text.contains("ncclInternalError"), "{text}");
}

#[test]
fn being_in_progress_for_long_is_no_error() {
    if skips() {
        return;
    }
    for script in ["always_in_progress", "never_in_progress", "in_progress=ncclAllReduce:50"] {
        Child::new("eager", 2).with(&[("FAKE_NCCL", script)]).passes();
    }
}

#[test]
fn without_windows_memory_is_memory() {
    if skips() {
        return;
    }
    says("windows", 3, "null_window", &["windows: 3"]);
    says("windows", 3, "never_in_progress", &["windows: 3"]);
    let text = Child::new("faults windows", 2).on(Variant::Old).passes();
    assert!(text.contains("windows: 0"), "{text}");
}

#[test]
fn ranks_that_do_not_come_or_do_not_agree_are_found_at_the_deadline() {
    if skips() {
        return;
    }
    says("late rank", 3, "never_in_progress", &["the work on the GPU was not done by the deadline"]);
    says("disagreement", 2, "never_in_progress", &["DeadlineExceeded"]);
}

#[test]
fn who_aborts_tells_the_others_at_once() {
    if skips() {
        return;
    }
    says("abort", 3, "never_in_progress", &["rank 1: ", "rank 2: ", "the user has closed the window"]);
}

#[test]
fn what_is_dropped_in_any_order_is_let_go_of() {
    if skips() {
        return;
    }
    says("leaving", 3, "always_in_progress", &[]);
}

#[test]
fn a_drop_does_not_wait_for_an_abort_that_hangs() {
    if skips() {
        return;
    }
    let script = [("FAKE_NCCL", "hang_abort")];
    Child::new("faults drop", 3).with(&script).passes_within(LONG);
}

#[test]
fn a_borrowed_communicator_is_left_as_it_was() {
    if skips() {
        return;
    }
    says("borrowed", 3, "never_in_progress", &[]);
}
