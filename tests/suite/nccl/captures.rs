//! Captures of the caller's, and what the library must not do to them; what an enqueueing call asks
//! the driver for.

use std::cell::Cell;
use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::log::{LogLevel, set_log_handler};
use distcollective::stream::Work;
use distcollective::tensor::{Bool, MemorySpace, f16};
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Error, Network, Rank, ReduceOperation, Result, Stream,
    inputs, outputs,
};
use libloading::Library;

use super::libraries::{cuda_calls, cuda_live, nccl_calls};
use super::{Child, available_ranks, communicators, cuda_stream, is_on_gpu, needs_test_libraries, on_gpus};
use crate::ranks::on_communicators;

type Handle = *mut c_void;

const GLOBAL: i32 = 0;

/// A sum among all ranks.
pub const SUM: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

/// The deadline of a test in which an abort hangs, for which a thread may wait 10 s.
const LONG: Duration = Duration::from_secs(40);

/// How often a question meets a capture. Each rank makes as many calls.
const ATTEMPTS: usize = 20;

/// How many calls are counted on each rank.
const CALLS: usize = 5;

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "releases" => on_gpus(ranks, |communicator| releases(&communicator)),
        "question beside a release" => on_gpus(ranks, |communicator| question_beside_a_release(&communicator)),
        "questions" => on_gpus(ranks, |communicator| questions(&communicator)),
        "beside a capture" => on_gpus(ranks, |communicator| beside_a_capture(&communicator)),
        "recording" => on_gpus(ranks, |communicator| recording(&communicator)),
        "scratch" => {
            let barrier = Arc::new(Barrier::new(ranks as usize));
            on_gpus(ranks, move |communicator| scratch(&communicator, &barrier));
        }
        "scratch of a context" => {
            let barrier = Arc::new(Barrier::new(ranks as usize));
            on_gpus(ranks, move |communicator| scratch_of_a_context(&communicator, &barrier));
        }
        "failing capture" => failure(ranks, failing_capture),
        "failing recording" => failure(ranks, failing_recording),
        "destroyed stream" => on_gpus(ranks, |communicator| destroyed_stream(&communicator)),
        "calls" => {
            let barrier = Arc::new(Barrier::new(ranks as usize));
            on_gpus(ranks, move |communicator| calls(&communicator, &barrier));
        }
        _ => panic!("{name} is no role"),
    }
}

/// The caller's own use of the driver.
pub struct Driver(Library);

impl Driver {
    /// With the communicator's GPU current on this thread.
    pub fn on(communicator: &Communicator) -> Self {
        let MemorySpace::Cuda(ordinal) = communicator.space() else { panic!("the communicator is not on a GPU") };
        // SAFETY: the library is loaded already; the functions have these types.
        unsafe {
            let driver = Driver(Library::new("libcuda.so.1").expect("a driver"));
            let mut context = std::ptr::null_mut();
            let retain = driver.0.get::<unsafe extern "C" fn(*mut Handle, i32) -> i32>("cuDevicePrimaryCtxRetain");
            assert_eq!(retain.expect("it")(&mut context, ordinal as i32), 0);
            assert_eq!(driver.call("cuCtxSetCurrent", context), 0);
            driver
        }
    }

    /// A function that takes a handle.
    fn call(&self, name: &str, handle: Handle) -> i32 {
        // SAFETY: the functions that are called so have this type; the handle is alive.
        unsafe { self.0.get::<unsafe extern "C" fn(Handle) -> i32>(name).expect("it")(handle) }
    }

    fn new_stream(&self) -> Handle {
        let mut stream = std::ptr::null_mut();
        const NON_BLOCKING: u32 = 1;
        // SAFETY: the function has this type.
        let result = unsafe {
            let make = self.0.get::<unsafe extern "C" fn(*mut Handle, u32) -> i32>("cuStreamCreate");
            make.expect("it")(&mut stream, NON_BLOCKING)
        };
        assert_eq!(result, 0);
        stream
    }

    pub fn begin_capture(&self, stream: &Stream) {
        // SAFETY: the function has this type; the stream is alive.
        let result = unsafe {
            let begin = self.0.get::<unsafe extern "C" fn(Handle, i32) -> i32>("cuStreamBeginCapture_v2");
            begin.expect("it")(stream.as_raw_cuda().expect("a CUDA stream"), GLOBAL)
        };
        assert_eq!(result, 0);
    }

    /// Ends the capture, which nothing has invalidated.
    pub fn end_capture(&self, stream: &Stream) {
        let graph = self.captured(stream);
        assert_eq!(self.call("cuGraphDestroy", graph), 0);
    }

    /// Ends the capture, and gives its graph.
    fn captured(&self, stream: &Stream) -> Handle {
        let mut graph = std::ptr::null_mut();
        // SAFETY: the function has this type; the stream is alive.
        let result = unsafe {
            let end = self.0.get::<unsafe extern "C" fn(Handle, *mut Handle) -> i32>("cuStreamEndCapture");
            end.expect("it")(stream.as_raw_cuda().expect("a CUDA stream"), &mut graph)
        };
        assert_eq!(result, 0, "the capture was invalidated");
        graph
    }

    /// Ends the capture, and makes a graph that can be launched.
    fn launchable(&self, stream: &Stream) -> Handle {
        let graph = self.captured(stream);
        let mut executable = std::ptr::null_mut();
        // SAFETY: the function has this type; the graph is alive.
        let result = unsafe {
            let make =
                self.0.get::<unsafe extern "C" fn(*mut Handle, Handle, u64) -> i32>("cuGraphInstantiateWithFlags");
            make.expect("it")(&mut executable, graph, 0)
        };
        assert_eq!(result, 0);
        assert_eq!(self.call("cuGraphDestroy", graph), 0);
        executable
    }

    /// Enqueues a function of the host.
    fn launch_host(&self, stream: &Stream, function: extern "C" fn(Handle)) {
        // SAFETY: the function has this type; the stream is alive.
        let result = unsafe {
            let launch =
                self.0.get::<unsafe extern "C" fn(Handle, extern "C" fn(Handle), Handle) -> i32>("cuLaunchHostFunc");
            let raw = stream.as_raw_cuda().expect("a CUDA stream");
            launch.expect("it")(raw, function, std::ptr::null_mut())
        };
        assert_eq!(result, 0);
    }

    /// Launches a graph, and waits until it is done.
    fn launch(&self, executable: Handle, stream: &Stream) -> Result<()> {
        // SAFETY: the function has this type; graph and stream are alive.
        let result = unsafe {
            let launch = self.0.get::<unsafe extern "C" fn(Handle, Handle) -> i32>("cuGraphLaunch");
            launch.expect("it")(executable, stream.as_raw_cuda().expect("a CUDA stream"))
        };
        assert_eq!(result, 0);
        stream.synchronize()
    }
}

/// Waits until so many of the driver's calls were made.
fn wait_for_calls(function: &str, count: usize) {
    let end = Instant::now() + Duration::from_secs(5);
    while cuda_calls(function) < count {
        assert!(Instant::now() < end, "{function} is not called");
        std::thread::yield_now();
    }
}

/// Waits until what this rank has dropped so far is freed: an allocation that fails waits for it.
pub fn free_what_was_dropped(communicator: &Communicator) {
    let error = Buffer::zeroed_in(communicator.space(), DataType::Uint8, [1 << 50]).expect_err("too much memory");
    assert!(error.to_string().contains("cuMemAlloc"), "{error}");
}

/// What is dropped during a capture of the strictest mode is released before the capture ends, and
/// the capture goes on.
fn releases(communicator: &Communicator) -> Result<()> {
    let (stream, other) = (cuda_stream(communicator)?, cuda_stream(communicator)?);
    let driver = Driver::on(communicator);
    let buffer = |len| Buffer::zeroed_in(communicator.space(), DataType::Float32, [len]);
    let captured = communicator.collective_async(SUM, Operands::in_place(buffer(4)?), &stream)?.wait()?;
    let [first, second, window] = [buffer(8)?, buffer(16)?, communicator.allocate(DataType::Float32, [8])?];
    drop(communicator.collective_async(SUM, Operands::in_place(first), &other)?);
    let (frees, streams) = (cuda_calls("cuMemFree_v2"), cuda_calls("cuStreamDestroy_v2"));
    let windows = nccl_calls("ncclMemFree");
    driver.begin_capture(&stream);
    let work = communicator.collective_async(SUM, captured, &stream)?;
    drop((second, window, other));
    wait_for_calls("cuStreamDestroy_v2", streams + 1);
    wait_for_calls("cuMemFree_v2", frees + 2);
    super::stuck::wait_for_calls("ncclMemFree", windows + 1);
    driver.end_capture(&stream);
    work.wait()?;
    Ok(())
}

/// Another thread captures in the strictest mode, while this rank gets memory, compiles kernels and
/// makes calls. Both go on.
fn beside_a_capture(communicator: &Communicator) -> Result<()> {
    let (captured, other) = (cuda_stream(communicator)?, cuda_stream(communicator)?);
    let ((begun, is_begun), (over, is_over)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let driver = Driver::on(communicator);
            driver.begin_capture(&captured);
            begun.send(()).expect("the rank waits");
            // If the rank has failed too.
            let _ = is_over.recv();
            driver.end_capture(&captured);
        });
        is_begun.recv().expect("a capture");
        // Also one rank needs a kernel for this.
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [64])?;
        let y = network.add_cast(x, DataType::Float16)?;
        network.mark_output(y, "y")?;
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(communicator)?;
        let mut y = [f16::ZERO; 64];
        context.execute(inputs!["x" => &[3f32; 64]], outputs!["y" => &mut y])?;
        assert_eq!(y, [f16::from_f32(3.0); 64]);
        let mut any = [Bool(u8::from(communicator.rank() == Rank(0))), Bool(0)];
        communicator.all_reduce(&mut any, ReduceOperation::Max)?;
        assert_eq!(any, [Bool(1), Bool(0)]);
        let memory = communicator.allocate(DataType::Float32, [1 << 20])?;
        communicator.collective_async(SUM, Operands::in_place(memory), &other)?.wait()?;
        drop(over);
        Ok(())
    })
}

/// Whether work that was enqueued before a capture of its stream is done is not known during the
/// capture, if nothing has asked before. The question does the capture no harm.
fn questions(communicator: &Communicator) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let driver = Driver::on(communicator);
    let enqueue = || {
        let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?;
        Ok::<_, Error>(communicator.collective_async(SUM, Operands::in_place(buffer), &stream)?)
    };
    let (asked, not_asked) = (enqueue()?, enqueue()?);
    stream.synchronize()?;
    assert!(asked.is_done());
    // The question was about all that had been enqueued.
    assert!(not_asked.is_done());
    let mut is_known = Vec::new();
    for _ in 0..ATTEMPTS {
        let not_asked = enqueue()?;
        driver.begin_capture(&stream);
        assert!(asked.is_done());
        is_known.push(not_asked.is_done());
        driver.end_capture(&stream);
        not_asked.wait()?;
    }
    // A release that ran beside an attempt may have asked.
    assert!(is_known.contains(&false));
    asked.wait()?;
    Ok(())
}

/// Work that was waited for is done, although a release waits for what the caller has enqueued on
/// the stream by itself.
fn question_beside_a_release(communicator: &Communicator) -> Result<()> {
    static IS_OPEN: AtomicBool = AtomicBool::new(false);
    extern "C" fn wait_until_open(_: Handle) {
        while !IS_OPEN.load(Ordering::SeqCst) {
            std::thread::yield_now();
        }
    }
    let stream = cuda_stream(communicator)?;
    let driver = Driver::on(communicator);
    let buffer = || Buffer::zeroed_in(communicator.space(), DataType::Float32, [4]);
    let (operands, other) = (Operands::in_place(buffer()?), buffer()?);
    let work = communicator.collective_async(SUM, operands, &stream)?;
    stream.synchronize()?;
    free_what_was_dropped(communicator);
    driver.launch_host(&stream, wait_until_open);
    let records = cuda_calls("cuEventRecord");
    drop(other);
    wait_for_calls("cuEventRecord", records + 1);
    let is_done = work.is_done();
    IS_OPEN.store(true, Ordering::SeqCst);
    assert!(is_done);
    work.wait()?;
    Ok(())
}

/// A sum of bool, which needs scratch memory and a kernel where there are several ranks.
fn any(ranks: u32) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Bool, [64])?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks), x)?;
    network.mark_output(y, "y")?;
    network.build()
}

/// Recording a run drops no memory, not even the scratch memory of a stream that was dropped.
fn recording(communicator: &Communicator) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let bools = || Buffer::zeroed_in(communicator.space(), DataType::Bool, [64]);
    let mut context =
        any(communicator.world_size())?.create_execution_context_with(ContextOptions::default().cuda_graph(true))?;
    context.set_communicator(communicator)?;
    // Each of two streams gets scratch memory, and one of them is dropped.
    let mut operands = Operands::in_place(bools()?);
    for stream in [cuda_stream(communicator)?, stream.clone()] {
        operands = communicator.collective_async(SUM, operands, &stream)?.wait()?;
    }
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", bools()?)?;
    bindings.bind_output("y", bools()?)?;
    bindings = context.enqueue(bindings, &stream)?.wait()?;
    free_what_was_dropped(communicator);
    communicator.barrier()?;
    let (live, frees) = (cuda_live("device memory"), cuda_calls("cuMemFree_v2"));
    communicator.barrier()?;
    bindings = context.enqueue(bindings, &stream)?.wait()?;
    communicator.barrier()?;
    assert!(cuda_live("device memory") >= live, "recording gets memory and frees none");
    communicator.barrier()?;
    drop(operands);
    communicator.barrier()?;
    free_what_was_dropped(communicator);
    communicator.barrier()?;
    assert_eq!(cuda_calls("cuMemFree_v2"), frees + communicator.world_size() as usize, "one on each rank");
    communicator.barrier()?;
    drop(bindings);
    Ok(())
}

/// How much memory of GPUs there is when all ranks have come here and freed what they have dropped.
fn live_memory(communicator: &Communicator, barrier: &Barrier) -> usize {
    free_what_was_dropped(communicator);
    barrier.wait();
    let live = cuda_live("device memory");
    barrier.wait();
    live
}

/// Each capture gets scratch memory of its own, which no later call on the stream uses. It is freed
/// when the graph and what was made of it are gone.
fn scratch(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let ranks = communicator.world_size() as usize;
    let stream = cuda_stream(communicator)?;
    let driver = Driver::on(communicator);
    let bools = || Buffer::zeroed_in(communicator.space(), DataType::Bool, [64]);
    let sum = |operands| Ok::<_, Error>(communicator.collective_async(SUM, operands, &stream)?.wait()?);
    let (mut eager, mut recorded) = (Operands::in_place(bools()?), Operands::in_place(bools()?));
    eager = sum(eager)?;
    let live = live_memory(communicator, barrier);

    driver.begin_capture(&stream);
    recorded = sum(sum(recorded)?)?;
    let kept = driver.launchable(&stream);
    assert_eq!(live_memory(communicator, barrier), live + ranks, "two calls of one capture share memory");
    eager = sum(eager)?;
    assert_eq!(live_memory(communicator, barrier), live + ranks, "the stream has kept its own memory");
    driver.begin_capture(&stream);
    recorded = sum(recorded)?;
    let dropped = driver.launchable(&stream);
    assert_eq!(live_memory(communicator, barrier), live + 2 * ranks, "another capture gets other memory");

    // What needs memory frees that of graphs that are gone. A graph is not destroyed during a
    // capture.
    assert_eq!(driver.call("cuGraphExecDestroy", dropped), 0);
    barrier.wait();
    driver.begin_capture(&stream);
    recorded = sum(recorded)?;
    let latest = driver.launchable(&stream);
    assert_eq!(live_memory(communicator, barrier), live + 2 * ranks, "one graph is gone");
    if communicator.rank() == Rank(0) {
        recorded.output.as_mut().expect("in place").write(63, &[1])?;
    }
    driver.launch(kept, &stream)?;
    let mut any = [0; 64];
    recorded.output.as_ref().expect("in place").read(0, &mut any)?;
    assert_eq!((any[0], any[63]), (0, 1));
    for graph in [kept, latest] {
        assert_eq!(driver.call("cuGraphExecDestroy", graph), 0);
    }
    barrier.wait();
    driver.begin_capture(&stream);
    recorded = sum(recorded)?;
    let last = driver.launchable(&stream);
    assert_eq!(live_memory(communicator, barrier), live + ranks, "all others are gone");
    assert_eq!(driver.call("cuGraphExecDestroy", last), 0);
    drop((eager, recorded));
    Ok(())
}

/// The scratch memory of a context is a part of the context, on whatever streams it runs.
fn scratch_of_a_context(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let live = live_memory(communicator, barrier);
    for cuda_graph in [false, true] {
        let options = ContextOptions::default().cuda_graph(cuda_graph);
        let mut context = any(communicator.world_size())?.create_execution_context_with(options)?;
        context.set_communicator(communicator)?;
        let bools = || Buffer::zeroed_in(communicator.space(), DataType::Bool, [64]);
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", bools()?)?;
        bindings.bind_output("y", bools()?)?;
        let with_context = live_memory(communicator, barrier);
        for stream in [cuda_stream(communicator)?, cuda_stream(communicator)?, Stream::inline()] {
            bindings = context.enqueue(bindings, &stream)?.wait()?;
        }
        assert_eq!(live_memory(communicator, barrier), with_context, "runs allocate nothing");
        drop((context, bindings));
        assert_eq!(live_memory(communicator, barrier), live, "nothing of the context is left");
    }
    Ok(())
}

/// A call fails on rank 1 while it is recorded, into the caller's graph or by a context. An abort
/// that has begun hangs, as NCCL's does until the graph is gone. Prints which ranks wait for it.
fn failure(ranks: u32, fail: fn(&Communicator, &AtomicBool) -> Result<Option<Error>>) {
    set_log_handler(LogLevel::Warn, |_, text| println!("rank {:?}: {text}", RANK.get())).expect("no handler before");
    let has_returned = Arc::new(AtomicBool::new(false));
    let results = on_communicators(LONG, communicators(ranks), move |communicator| {
        RANK.set(Some(communicator.rank().0));
        fail(&communicator, &has_returned)
    });
    for error in results.into_iter().filter_map(|result| result.expect("no other error")) {
        println!("{error:?}");
    }
}

thread_local! {
    /// The rank of this thread.
    static RANK: Cell<Option<u32>> = const { Cell::new(None) };
}

fn wait_for(has_returned: &AtomicBool) {
    while !has_returned.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
}

fn failing_capture(communicator: &Communicator, has_returned: &AtomicBool) -> Result<Option<Error>> {
    if communicator.rank() == Rank(0) {
        wait_for(has_returned);
        return Ok(None);
    }
    let stream = cuda_stream(communicator)?;
    let driver = Driver::on(communicator);
    let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?;
    driver.begin_capture(&stream);
    let failed = communicator.collective_async(SUM, Operands::in_place(buffer), &stream)?.wait();
    driver.end_capture(&stream);
    has_returned.store(true, Ordering::SeqCst);
    Ok(failed.err().map(Error::from))
}

/// The second run is recorded.
fn failing_recording(communicator: &Communicator, has_returned: &AtomicBool) -> Result<Option<Error>> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4])?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size()), x)?;
    network.mark_output(y, "y")?;
    let options = ContextOptions::default().cuda_graph(true);
    let mut context = network.build()?.create_execution_context_with(options)?;
    context.set_communicator(communicator)?;
    let stream = cuda_stream(communicator)?;
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?)?;
    bindings.bind_output("y", Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?)?;
    bindings = context.enqueue(bindings, &stream)?.wait()?;
    if communicator.rank() == Rank(0) {
        let work = context.enqueue(bindings, &stream);
        wait_for(has_returned);
        drop(work);
        return Ok(None);
    }
    let failed = context.enqueue(bindings, &stream).map(|work| work.wait());
    has_returned.store(true, Ordering::SeqCst);
    Ok(failed?.err().map(Error::from))
}

/// The caller destroys a stream on which a context ran last. The context runs on another one.
fn destroyed_stream(communicator: &Communicator) -> Result<()> {
    let MemorySpace::Cuda(ordinal) = communicator.space() else { panic!("the communicator is not on a GPU") };
    let driver = Driver::on(communicator);
    let mut context = any(communicator.world_size())?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let bools = || Buffer::zeroed_in(communicator.space(), DataType::Bool, [64]);
    let enqueue = |context: &mut distcollective::ExecutionContext, stream: &Stream| -> Result<Work<Bindings>> {
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", bools()?)?;
        bindings.bind_output("y", bools()?)?;
        Ok(context.enqueue(bindings, stream)?)
    };
    for _ in 0..3 {
        let raw = driver.new_stream();
        // SAFETY: the stream is destroyed when its work is done and all that borrows it is dropped.
        let stream = unsafe { Stream::from_raw_cuda(raw, ordinal)? };
        drop(enqueue(&mut context, &stream)?);
        assert_eq!(driver.call("cuStreamSynchronize", raw), 0);
        drop(stream);
        assert_eq!(driver.call("cuStreamDestroy_v2", raw), 0);
        drop(enqueue(&mut context, &cuda_stream(communicator)?)?.wait()?);
    }
    Ok(())
}

/// What the driver is asked for, for all ranks together.
fn asked() -> [usize; 5] {
    ["cuCtxGetCurrent", "cuStreamIsCapturing", "cuEventRecord", "cuEventQuery", "cuThreadExchangeStreamCaptureMode"]
        .map(cuda_calls)
}

/// Counts what so many calls on each rank ask the driver for, and then the events of the waits.
fn count<T: Send + 'static>(
    communicator: &Communicator,
    barrier: &Barrier,
    mut enqueue: impl FnMut(usize) -> Result<Work<T>>,
) -> Result<Vec<T>> {
    let ranks = communicator.world_size() as usize;
    free_what_was_dropped(communicator);
    barrier.wait();
    let before = asked();
    barrier.wait();
    let works = (0..CALLS).map(&mut enqueue).collect::<Result<Vec<_>>>()?;
    barrier.wait();
    let after = asked();
    barrier.wait();
    // The test library in place of NCCL asks once for each call, too.
    assert_eq!(std::array::from_fn(|i| after[i] - before[i]), [CALLS * ranks, 2 * CALLS * ranks, 0, 0, 0]);
    let owned = works.into_iter().map(|work| Ok(work.wait()?)).collect::<Result<Vec<_>>>()?;
    barrier.wait();
    assert_eq!(asked()[2] - after[2], ranks, "an event for all calls of a rank");
    barrier.wait();
    Ok(owned)
}

/// An enqueueing call asks the driver once which GPU is current and once whether its stream is
/// captured, and records no event.
fn calls(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let tensor = || Buffer::zeroed_in(communicator.space(), DataType::Float32, [64]);
    let mut operands = (0..CALLS).map(|_| Ok(Operands::in_place(tensor()?))).collect::<Result<Vec<_>>>()?;
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [64])?;
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
    let y = network.add(sum, x)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let bindings = (0..CALLS).map(|_| {
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", tensor()?)?;
        bindings.bind_output("y", tensor()?)?;
        Ok(bindings)
    });
    let mut bindings = bindings.collect::<Result<Vec<_>>>()?;
    operands = count(communicator, barrier, |_| {
        let operands = operands.pop().expect("one for each call");
        Ok(communicator.collective_async(SUM, operands, &stream)?)
    })?;
    bindings = count(communicator, barrier, |_| {
        let bindings = bindings.pop().expect("one for each call");
        Ok(context.enqueue(bindings, &stream)?)
    })?;
    drop((operands, bindings));
    Ok(())
}

fn plays(role: &str, ranks: &[u32]) {
    for &ranks in ranks {
        if is_on_gpu() && ranks > available_ranks() {
            println!("skipped: there cannot be {ranks} ranks here");
            return;
        }
        Child::new(&format!("captures {role}"), ranks).passes();
    }
}

/// Roles that count the calls of the test libraries.
fn plays_on_fakes(role: &str, ranks: &[u32]) {
    if is_on_gpu() {
        println!("skipped: this needs the test libraries");
        return;
    }
    plays(role, ranks);
}

#[test]
fn releases_do_not_invalidate_a_capture() {
    plays_on_fakes("releases", &[1]);
}

#[test]
fn a_question_about_work_does_not_invalidate_a_capture() {
    plays("questions", &[1, 2]);
}

#[test]
fn calls_and_a_capture_of_another_thread_do_not_disturb_each_other() {
    plays("beside a capture", &[1, 2]);
}

#[test]
fn work_that_was_waited_for_is_done() {
    plays_on_fakes("question beside a release", &[1]);
}

#[test]
fn recording_frees_nothing() {
    plays_on_fakes("recording", &[2]);
}

#[test]
fn each_capture_has_scratch_memory_of_its_own() {
    plays_on_fakes("scratch", &[2, 3]);
}

#[test]
fn the_scratch_memory_of_a_context_goes_with_it() {
    plays_on_fakes("scratch of a context", &[2]);
}

#[test]
fn a_failure_during_a_capture_waits_for_no_abort() {
    if needs_test_libraries() {
        return;
    }
    for (role, call) in [("failing capture", 1), ("failing recording", 2)] {
        let script = format!("hang_abort,fail=ncclAllReduce:{call}:3:1");
        let child = format!("captures {role}");
        let text = Child::new(&child, 2).with(&[("FAKE_NCCL", &script)]).passes_within(LONG);
        assert!(text.contains("ncclInternalError"), "{text}");
        assert!(!text.contains("rank Some(1): ncclCommAbort has not ended in time"), "rank 1 has waited:\n{text}");
    }
}

#[test]
fn a_stream_may_be_destroyed_when_its_work_is_done() {
    plays("destroyed stream", &[1, 2]);
}

#[test]
fn an_enqueueing_call_asks_the_driver_for_little() {
    plays_on_fakes("calls", &[2]);
}
