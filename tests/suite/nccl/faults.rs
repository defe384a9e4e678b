//! Faults: calls of NCCL that fail, stall, hang or report an error later; ranks that do not come or
//! disagree.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, NcclId, Operands};
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, Builder, Communicator, DataType, DistCollective, Error, ErrorKind, ExecutionContext, Network, Rank,
    ReduceOperation, Result, Stream, Work, inputs, outputs,
};
use fake_gpu::Variant;

use super::libraries::{cuda_calls, nccl_calls, nccl_live};
use super::{Child, TIMEOUT, communicators, cuda_stream, needs_test_libraries, on_gpus};
use crate::ranks::{DEADLINE, on_communicators};

/// The timeout of calls that have to fail.
const SHORT: Duration = Duration::from_millis(500);

/// The deadline of tests in which an abort hangs. The library waits 10 s for the abort, and 10 s
/// for the work that the abort should end.
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
        "windows dropped apart" => on_gpus(ranks, |communicator| windows_dropped_apart(&communicator)),
        "late rank" => late_rank(ranks),
        "stuck beside" => stuck_beside(ranks),
        "stuck for good" => stuck_for_good(ranks),
        "full queue" => full_queue(ranks),
        "full queue without a peer" => full_queue_without_a_peer(ranks),
        "half a split" => half_a_split(ranks),
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

/// Makes a call that fails on every rank, and prints the errors.
fn sums(ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Clone + Send + 'static) {
    sums_within(DEADLINE, ranks, call);
}

/// [`sums`] with another deadline.
fn sums_within(deadline: Duration, ranks: u32, call: impl Fn(&Communicator) -> Result<()> + Clone + Send + 'static) {
    let results = on_communicators(deadline, communicators(ranks), move |communicator| {
        let communicator = communicator.with_timeout(SHORT);
        let error = call(&communicator).expect_err("it fails");
        // Further calls return the error at once.
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

/// A context with a window, which has run.
fn with_window(communicator: &Communicator) -> Result<ExecutionContext> {
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
    Ok(context)
}

/// The tensor between two collectives lies in memory that is registered where it can be.
fn windows(communicator: &Communicator) -> Result<()> {
    with_window(communicator).map(drop)
}

/// Ranks drop a context with a window at different moments. A window that is registered between
/// these moments is bound at the same offset on all ranks; the next one replaces the dropped one.
fn windows_dropped_apart(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size() as usize;
    let mut first = Some(with_window(communicator)?);
    let second = with_window(communicator)?;
    if communicator.rank() == Rank(0) {
        first = None;
        // Releases are made in order.
        let frees = cuda_calls("cuMemFree_v2");
        drop(Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?);
        let end = Instant::now() + TIMEOUT;
        while cuda_calls("cuMemFree_v2") == frees && Instant::now() < end {
            std::thread::yield_now();
        }
    }
    communicator.barrier()?;
    let third = with_window(communicator)?;
    communicator.barrier()?;
    assert_eq!(nccl_live("window"), 3 * n);
    drop(first);
    communicator.barrier()?;
    let fourth = with_window(communicator)?;
    communicator.barrier()?;
    assert_eq!(nccl_live("window"), 3 * n);
    communicator.barrier()?;
    drop((second, third, fourth));
    Ok(())
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
    assert!(begin.elapsed() < TIMEOUT, "no rank waits for the deadline");
    for error in results {
        assert_eq!(error.kind(), ErrorKind::Aborted, "{error}");
        println!("{error}");
    }
}

/// Waits until NCCL has got this call so many times.
fn wait_for_calls(function: &str, count: usize) {
    let end = Instant::now() + TIMEOUT;
    while nccl_calls(function) < count {
        assert!(Instant::now() < end, "{function} is not called {count} times");
        std::thread::yield_now();
    }
}

/// Rank 0 is stuck inside NCCL, and has a deadline that the test does not reach. The others abort.
fn stuck_beside(ranks: u32) {
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

/// Rank 0's thread does not come out of NCCL, whatever this library does. The other ranks are told.
fn stuck_for_good(ranks: u32) {
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
                let communicator = unsafe { Communicator::from_raw_nccl(raw, TIMEOUT)? };
                assert_eq!((communicator.rank(), communicator.world_size()), (Rank(rank), ranks));
                assert_eq!(communicator.space(), MemorySpace::Cuda(rank));
                let mut x = [rank as f32, 1.0];
                communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
                assert_eq!(x, [(ranks * (ranks - 1) / 2) as f32, ranks as f32]);
                let group = communicator.split(Some(rank % 2), 0)?.expect("a color");
                group.barrier()?;
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

/// Runs a role with a script for the test library, and looks for texts in the output.
fn says(role: &str, ranks: u32, script: &str, expected: &[&str]) {
    says_on(Variant::Current, role, ranks, script, expected);
}

/// [`says`] with other libraries. With the current NCCL communicators block, with the old one they
/// do not.
fn says_on(variant: Variant, role: &str, ranks: u32, script: &str, expected: &[&str]) {
    let text = Child::new(&format!("faults {role}"), ranks).on(variant).with(&[("FAKE_NCCL", script)]).passes();
    for part in expected {
        assert!(text.contains(part), "{role} with {script:?} does not say {part:?}:\n{text}");
    }
}

#[test]
fn a_communicator_that_cannot_be_made_is_an_error_in_time() {
    if needs_test_libraries() {
        return;
    }
    says("init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["ncclCommInitRankConfig: NCCL says ncclSystemError"]);
    // Rank 0 waits, and returns at once.
    says("init", 2, "fail=ncclCommInitRankConfig:1:2:1", &["rank 1 ended the communicator"]);
    says("init", 2, "stall=ncclCommInitRankConfig:1:0", &["has not returned by the deadline"]);
    let lasting = "in_progress=ncclCommInitRankConfig:60000";
    says("init", 2, lasting, &["ncclCommInitRankConfig has not returned by the deadline"]);
    says_on(Variant::Old, "init", 2, lasting, &["was still in progress at the deadline"]);
    says_on(Variant::Old, "init", 2, "stall=ncclCommInitRankConfig:1:0", &["has not returned by the deadline"]);
    says("init", 2, "fail=ncclGetUniqueId:1:2", &["ncclGetUniqueId: NCCL says ncclSystemError"]);
}

#[test]
fn a_call_that_fails_ends_the_communicator_on_every_rank() {
    if needs_test_libraries() {
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
    // A non-blocking communicator keeps this error too.
    says("sum", 2, "fail=ncclAllReduce:1:4:1", &[&format!("{call} ncclInvalidArgument")]);
    says("sum", 2, "fail=ncclAllReduce:1:6:1", &["PeerLost: rank 1", "ncclRemoteError"]);
}

#[test]
fn an_error_that_comes_later_is_found() {
    if needs_test_libraries() {
        return;
    }
    for role in ["sum", "enqueued sum"] {
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
    says_on(Variant::Old, "sum", 2, lasting, &["DeadlineExceeded", "still in progress at the deadline"]);
    says_on(Variant::Old, "split", 2, "in_progress=ncclCommSplit:60000", &["DeadlineExceeded"]);
}

#[test]
fn a_thread_that_is_stuck_in_nccl_comes_out_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    let kept = |rank| {
        format!(
            "DeadlineExceeded: rank {rank}: all_reduce(sum) of 1 float32 (collective 1 of ranks 0 and 1): NCCL kept the call"
        )
    };
    for role in ["sum", "enqueued sum"] {
        says(
            role,
            2,
            "in_progress=ncclAllReduce:60000",
            &["DeadlineExceeded", "NCCL kept the call until the deadline"],
        );
    }
    says("sum", 2, "in_progress=ncclAllReduce:60000", &[&kept(0), &kept(1)]);
    says("split", 2, "in_progress=ncclCommSplit:60000", &["ncclCommSplit has not returned by the deadline"]);
    let register = "in_progress=ncclCommWindowRegister:60000";
    says("windows fail", 2, register, &["ncclCommWindowRegister has not returned by the deadline"]);
}

#[test]
fn a_thread_that_is_stuck_in_nccl_comes_out_when_a_peer_fails() {
    if needs_test_libraries() {
        return;
    }
    says(
        "stuck beside",
        3,
        "in_progress=ncclAllReduce:60000",
        &["Aborted: rank 0: ", "the user has closed the window"],
    );
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
    says("full queue", 2, "fifo=2", &[]);
    let stuck = "(collective 3 of ranks 0 and 1): NCCL kept the call until the deadline";
    says("full queue without a peer", 2, "fifo=2", &[stuck, "rank 1: rank 0 ended the communicator"]);
}

#[test]
fn what_a_failed_split_leaves_is_aborted() {
    if needs_test_libraries() {
        return;
    }
    for variant in [Variant::Current, Variant::Old] {
        says_on(variant, "half a split", 2, "", &["DeadlineExceeded: rank 0", "rank 1: rank 0 ended"]);
    }
}

#[test]
fn what_never_returns_ends_at_the_deadline() {
    if needs_test_libraries() {
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
fn without_windows_memory_is_memory() {
    if needs_test_libraries() {
        return;
    }
    says("windows", 3, "null_window", &["windows: 3"]);
    says("windows", 3, "never_in_progress", &["windows: 3"]);
    let text = Child::new("faults windows", 2).on(Variant::Old).passes();
    assert!(text.contains("windows: 0"), "{text}");
}

#[test]
fn windows_are_bound_alike_although_ranks_drop_others_at_different_moments() {
    if needs_test_libraries() {
        return;
    }
    says("windows dropped apart", 2, "", &[]);
    says("windows dropped apart", 3, "", &[]);
}

#[test]
fn ranks_that_do_not_come_or_do_not_agree_are_found_at_the_deadline() {
    if needs_test_libraries() {
        return;
    }
    says("late rank", 3, "never_in_progress", &["the work on the GPU was not done by the deadline"]);
    says("disagreement", 2, "never_in_progress", &["DeadlineExceeded"]);
}

#[test]
fn an_abort_ends_the_waits_of_the_others_at_once() {
    if needs_test_libraries() {
        return;
    }
    says("abort", 3, "never_in_progress", &["rank 1: ", "rank 2: ", "the user has closed the window"]);
}

#[test]
fn what_is_dropped_in_any_order_is_freed() {
    if needs_test_libraries() {
        return;
    }
    says("leaving", 3, "", &[]);
}

#[test]
fn a_drop_does_not_wait_for_an_abort_that_hangs() {
    if needs_test_libraries() {
        return;
    }
    let script = [("FAKE_NCCL", "hang_abort")];
    Child::new("faults drop", 3).with(&script).passes_within(LONG);
}

#[test]
fn a_borrowed_communicator_is_left_as_it_was() {
    if needs_test_libraries() {
        return;
    }
    says("borrowed", 3, "never_in_progress", &[]);
}
