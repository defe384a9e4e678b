//! Contexts that record CUDA graphs: which runs are recorded and replayed, and ranks that differ.

use std::sync::{Arc, Barrier};
use std::time::Instant;

use distcollective::comm::NcclId;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, ErrorKind, ExecutionContext, Network, Rank,
    ReduceOperation, Result, Stream, Work,
};
use libloading::Library;

use super::captures::{Driver, free_what_was_dropped};
use super::ends::Makers;
use super::libraries::{cuda_calls, cuda_live, nccl_calls, nccl_live};
use super::windows::with_window_of;
use super::{Child, TIMEOUT, communicators, cuda_stream, is_on_gpu, needs_more_gpus, needs_test_libraries, on_gpus};
use crate::ranks::{DEADLINE, logged, on_communicators, patient};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "alternating" => alternating(ranks),
        "uneven" => on_gpus(ranks, |communicator| uneven(&communicator)),
        "many" => on_gpus(ranks, |communicator| many(&communicator)),
        "shapes" => on_gpus(ranks, |communicator| shapes(&communicator)),
        "borrowed" => borrowed(ranks),
        "groups" => on_gpus(ranks, |communicator| groups(&communicator)),
        "ended" => ended(ranks),
        "ahead" => replays_ahead(ranks),
        "captured_memory" | "captured_windows" => {
            let barrier = Arc::new(Barrier::new(ranks as usize));
            let body = if name == "captured_memory" { captured_memory } else { captured_windows };
            on_gpus(ranks, move |communicator| body(&communicator, &barrier));
        }
        "mapped" => on_gpus(ranks, |communicator| mapped(&communicator)),
        "differing_buffers" => differing(ranks, differing_buffers),
        "differing_contexts" => differing(ranks, differing_contexts),
        "differing_captures" => differing(ranks, |rank| differing_captures(rank, false)),
        "differing_captures_of_a_recorder" => differing(ranks, |rank| differing_captures(rank, true)),
        "differing_captures_in_a_wait" => differing(ranks, differing_captures_in_a_wait),
        _ => panic!("{name} is no role"),
    }
}

/// An all_reduce of up to 64 float32.
fn sum(ranks: u32) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1])?;
    network.set_optimization_profile(x, [1], [4], [64])?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks).named("sum"), x)?;
    network.mark_output(y, "y")?;
    network.build()
}

/// A rank with a context whose input has four elements.
pub struct Runner {
    communicator: Communicator,
    stream: Stream,
    context: ExecutionContext,
    /// The number of the latest run, which is the value of its input.
    run: u32,
}

impl Runner {
    pub fn new(communicator: &Communicator, records: bool) -> Result<Self> {
        Self::with(communicator, ContextOptions::default().cuda_graph(records))
    }

    fn with(communicator: &Communicator, options: ContextOptions) -> Result<Self> {
        let mut context = sum(communicator.world_size())?.create_execution_context_with(options)?;
        context.set_communicator(communicator)?;
        context.set_input_shape("x", [4])?;
        let stream = cuda_stream(communicator)?;
        Ok(Runner { communicator: communicator.clone(), stream, context, run: 0 })
    }

    fn tensor(&self, len: i64) -> Result<Buffer> {
        Buffer::zeroed_in(self.communicator.space(), DataType::Float32, [len])
    }

    pub fn bindings(&self, len: i64) -> Result<Bindings> {
        let mut bindings = self.context.create_bindings();
        bindings.bind_input("x", self.tensor(len)?)?;
        bindings.bind_output("y", self.tensor(len)?)?;
        Ok(bindings)
    }

    /// Runs, and checks the output.
    pub fn run(&mut self, mut bindings: Bindings) -> Result<Bindings> {
        self.run += 1;
        let n = self.communicator.world_size();
        let fill = |value: u32, len: usize| vec![value as f32; len].into_iter().flat_map(f32::to_ne_bytes).collect();
        let len = bindings.get("x")?.byte_len() / 4;
        let (x, expected): (Vec<u8>, Vec<u8>) = (fill(self.run, len), fill(n * self.run, len));
        bindings.get_mut("x")?.write(0, &x)?;
        let bindings = self.context.enqueue(bindings, &self.stream)?.wait()?;
        let mut y = vec![0; expected.len()];
        bindings.get("y")?.read(0, &mut y)?;
        assert_eq!(y, expected, "run {}", self.run);
        Ok(bindings)
    }

    /// Makes three runs, whose outputs are not checked.
    fn run_on(&mut self, mut bindings: Bindings) -> Result<()> {
        for _ in 0..3 {
            bindings = self.enqueue(bindings)?.wait()?;
        }
        Ok(())
    }

    /// Enqueues a run, whose output is not checked.
    pub fn enqueue(&mut self, bindings: Bindings) -> Result<Work<Bindings>> {
        Ok(self.context.enqueue(bindings, &self.stream)?)
    }

    /// Runs with each bindings in turn.
    fn run_all(&mut self, all: Vec<Bindings>) -> Result<Vec<Bindings>> {
        all.into_iter().map(|bindings| self.run(bindings)).collect()
    }

    /// How many runs were recorded, replayed and plain.
    fn counts(&self) -> [u64; 3] {
        let graphs = self.context.cuda_graphs();
        [graphs.recorded, graphs.replayed, graphs.plain]
    }
}

/// The graphs of a communicator that has ended are destroyed although their contexts are there:
/// NCCL does not free the communicator before.
fn ended(ranks: u32) {
    let barrier = Arc::new(Barrier::new(ranks as usize));
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| -> Result<()> {
        let mut runner = Runner::new(&communicator, true)?;
        let mut bindings = runner.bindings(4)?;
        for _ in 0..3 {
            bindings = runner.run(bindings)?;
        }
        assert_eq!(runner.counts(), [1, 1, 1]);
        barrier.wait();
        // NCCL does not abort a communicator that has graphs.
        let warnings = logged(|| communicator.abort("the user has closed the window").expect("an end"));
        assert_eq!(warnings, "");
        let end = Instant::now() + TIMEOUT;
        while !is_on_gpu() && cuda_live("graph exec") > 0 {
            assert!(Instant::now() < end, "a graph is not destroyed");
            std::thread::yield_now();
        }
        barrier.wait();
        Ok(())
    });
    for result in results {
        result.expect("no other error");
    }
}

/// Waits until what all ranks have dropped is freed. Gives how often NCCL has freed memory, and how
/// many pieces there are.
fn freed_and_left(communicator: &Communicator, barrier: &Barrier) -> [usize; 2] {
    free_what_was_dropped(communicator);
    barrier.wait();
    let counts = [nccl_calls("ncclMemFree"), nccl_live("memory")];
    barrier.wait();
    counts
}

/// Runs on buffers of the communicator are recorded, and all is dropped. The buffers' memory stays,
/// and the next ones have it. Other memory is freed.
fn captured_memory(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let ranks = communicator.world_size() as usize;
    for round in 1..=3 {
        let mut runner = Runner::new(communicator, true)?;
        let mut bindings = runner.context.create_bindings();
        bindings.bind_input("x", communicator.allocate(DataType::Float32, [4])?)?;
        bindings.bind_output("y", communicator.allocate(DataType::Float32, [4])?)?;
        for _ in 0..3 {
            bindings = runner.run(bindings)?;
        }
        assert_eq!(runner.counts(), [1, 1, 1]);
        drop((bindings, runner, communicator.allocate(DataType::Float32, [1 << 16])?));
        assert_eq!(freed_and_left(communicator, barrier), [round * ranks, 2 * ranks]);
    }
    Ok(())
}

/// Runs of contexts with windows are recorded, and the contexts are dropped.
fn captured_windows(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    for _ in 0..4 {
        let context = with_window_of(communicator, ContextOptions::default().cuda_graph(true), 3)?;
        let graphs = context.cuda_graphs();
        assert_eq!([graphs.recorded, graphs.replayed, graphs.plain], [1, 1, 1]);
        drop(context);
        let [freed, left] = freed_and_left(communicator, barrier);
        // The memory of the latest window is free for others when the next one is there.
        assert!(freed == 0 && left <= 2 * communicator.world_size() as usize, "{freed} freed, {left} left");
    }
    Ok(())
}

/// No run on memory that the caller may map anew is recorded. That of cuMemAlloc stays where it is.
fn mapped(communicator: &Communicator) -> Result<()> {
    let _driver = Driver::on(communicator);
    let mut address = std::ptr::null_mut::<u8>();
    // SAFETY: the functions have these types; the memory is freed once.
    let free = unsafe {
        let nccl = Library::new("libnccl.so.2").expect("NCCL");
        let allocate = nccl.get::<unsafe extern "C" fn(*mut *mut u8, usize) -> i32>("ncclMemAlloc").expect("it");
        assert_eq!(allocate(&mut address, 4096), 0);
        *nccl.get::<unsafe extern "C" fn(*mut u8) -> i32>("ncclMemFree").expect("it")
    };
    let mut runner = Runner::new(communicator, true)?;
    let mut by_address = runner.bindings(4)?;
    // SAFETY: the memory is that long, and only the runs use it.
    unsafe { by_address.bind_address("x", address, 16)? };
    runner.run_on(by_address)?;
    assert_eq!(runner.counts(), [0, 0, 3]);
    let mut borrowed = runner.bindings(4)?;
    // SAFETY: as above.
    let output = unsafe { Buffer::from_raw_borrowed(communicator.space(), address, DataType::Float32, [4])? };
    borrowed.bind_output("y", output)?;
    runner.run_on(borrowed)?;
    assert_eq!(runner.counts(), [0, 0, 6]);
    let (mut allocated, mut x) = (runner.bindings(4)?, runner.tensor(4)?);
    // SAFETY: as above; the buffer is dropped after the runs.
    unsafe { allocated.bind_address("x", x.as_mut_ptr(), 16)? };
    runner.run_on(allocated)?;
    assert_eq!(runner.counts(), [1, 1, 7]);
    // SAFETY: nothing uses the memory any more.
    assert_eq!(unsafe { free(address) }, 0);
    Ok(())
}

/// Two pairs of buffers alternate. The first run of each is plain, the second recorded, and the
/// others replay. Then one tensor of a pair is bound to other memory.
fn alternating(ranks: u32) {
    on_gpus(ranks, |communicator| {
        let mut runner = Runner::new(&communicator, true)?;
        let mut pairs = vec![runner.bindings(4)?, runner.bindings(4)?];
        for _ in 0..5 {
            pairs = runner.run_all(pairs)?;
        }
        assert_eq!(runner.counts(), [2, 6, 2]);
        for (name, counts) in [("y", [3, 8, 3]), ("x", [4, 10, 4])] {
            // It comes from another place than what is dropped.
            let other = runner.tensor(4)?;
            match name {
                "y" => pairs[0].bind_output(name, other)?,
                _ => pairs[0].bind_input(name, other)?,
            }
            for _ in 0..2 {
                pairs = runner.run_all(pairs)?;
            }
            assert_eq!(runner.counts(), counts, "{name}");
        }
        Ok(())
    });
    if !is_on_gpu() {
        assert_eq!(cuda_calls("cuStreamBeginCapture_v2"), 4 * ranks as usize);
        assert_eq!(cuda_calls("cuGraphLaunch"), (4 + 10) * ranks as usize);
    }
}

/// The buffers of rank 0 stay, and those of the others alternate. All replay what they recorded
/// together.
fn uneven(communicator: &Communicator) -> Result<()> {
    let mut runner = Runner::new(communicator, true)?;
    let mut pairs = vec![runner.bindings(4)?, runner.bindings(4)?];
    for _ in 0..4 {
        for pair in 0..2 {
            let pair = if communicator.rank() == Rank(0) { 0 } else { pair };
            let bindings = runner.run(pairs.remove(pair))?;
            pairs.insert(pair, bindings);
        }
    }
    let counts = if communicator.world_size() == 1 { [1, 6, 1] } else { [2, 4, 2] };
    assert_eq!(runner.counts(), counts);
    Ok(())
}

/// More buffers than a context keeps graphs for: those that were used longest ago leave.
fn many(communicator: &Communicator) -> Result<()> {
    let mut runner = Runner::new(communicator, true)?;
    let capacity = runner.context.cuda_graphs().capacity;
    let mut all = (0..=capacity).map(|_| runner.bindings(4)).collect::<Result<Vec<_>>>()?;
    let last = all.pop().expect("one more");
    for _ in 0..3 {
        all = runner.run_all(all)?;
    }
    let capacity = capacity as u64;
    assert_eq!(runner.counts(), [capacity, capacity, capacity]);
    // The first is used again, and the second leaves.
    let first = runner.run(all.remove(0))?;
    runner.run(last)?;
    let first = runner.run(first)?;
    assert_eq!(runner.counts(), [capacity, capacity + 2, capacity + 1]);
    let second = runner.run(all.remove(0))?;
    assert_eq!(runner.counts(), [capacity, capacity + 2, capacity + 2]);
    drop((first, second));
    Ok(())
}

/// Shapes that alternate are replayed too, also if they are set again.
fn shapes(communicator: &Communicator) -> Result<()> {
    let mut runner = Runner::new(communicator, true)?;
    let mut all = vec![runner.bindings(4)?, runner.bindings(16)?];
    for _ in 0..4 {
        let mut done = Vec::new();
        for (bindings, len) in all.into_iter().zip([4, 16]) {
            runner.context.set_input_shape("x", [len])?;
            done.push(runner.run(bindings)?);
        }
        all = done;
    }
    assert_eq!(runner.counts(), [2, 4, 2]);
    Ok(())
}

/// Contexts on communicators that were split off: each agrees among its own ranks.
fn groups(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank().0;
    let half = communicator.split(Some(rank % 2), 0)?.expect("every rank has a color");
    let mut runner = Runner::new(&half, true)?;
    let mut bindings = runner.bindings(4)?;
    // The halves run differently often.
    for _ in 0..4 + rank % 2 {
        bindings = runner.run(bindings)?;
    }
    assert_eq!(runner.counts(), [1, 2 + u64::from(rank % 2), 1]);
    drop(bindings);
    communicator.barrier()
}

/// Contexts whose ranks cannot agree record only if they are told to.
pub fn records_if_told(communicator: &Communicator) -> Result<()> {
    let recording = ContextOptions::default().cuda_graph(true);
    for (options, counts) in [(recording, [0, 0, 0]), (recording.graphs_without_agreement(true), [1, 1, 1])] {
        let mut runner = Runner::with(communicator, options)?;
        let mut bindings = runner.bindings(4)?;
        for _ in 0..3 {
            bindings = runner.run(bindings)?;
        }
        assert_eq!(runner.counts(), if communicator.world_size() == 1 { [1, 1, 1] } else { counts });
    }
    Ok(())
}

/// A borrowed communicator has no host communicator beside it.
fn borrowed(ranks: u32) {
    let makers = Makers::find();
    let id = NcclId::new().expect("an id");
    std::thread::scope(|scope| {
        for rank in 0..ranks {
            let (makers, id) = (&makers, &id);
            scope.spawn(move || {
                // It loads the driver.
                let stream = Stream::cuda(rank).expect("a stream");
                let raw = makers.make(id, ranks, rank);
                // SAFETY: the communicator is destroyed below, after everything that uses it.
                let communicator =
                    unsafe { Communicator::from_raw_nccl(raw, patient(TIMEOUT)) }.expect("a communicator");
                records_if_told(&communicator).expect("runs");
                // NCCL registers no memory of cuMemAlloc in a capture.
                communicator.allocate(DataType::Float32, [4]).expect("memory");
                assert!(is_on_gpu() || nccl_calls("ncclMemAlloc") == 0);
                drop((communicator, stream));
                makers.destroy(raw);
            });
        }
    });
}

/// Rank 0 enqueues many replays before rank 1 begins the first.
fn replays_ahead(ranks: u32) {
    let barrier = Arc::new(Barrier::new(ranks as usize));
    on_gpus(ranks, move |communicator| {
        let mut runner = Runner::new(&communicator, true)?;
        let (x, mut y) = (runner.tensor(4)?, runner.tensor(4)?);
        let mut enqueue = || {
            let mut bindings = runner.context.create_bindings();
            // SAFETY: the tensors outlive the runs, which are waited for below and write the same
            // values, one after the other in the stream.
            unsafe {
                bindings.bind_address("x", x.as_ptr().cast_mut(), 16)?;
                bindings.bind_address("y", y.as_mut_ptr(), 16)?;
            }
            runner.enqueue(bindings)
        };
        for _ in 0..2 {
            enqueue()?.wait()?;
        }
        if communicator.rank() == Rank(1) {
            barrier.wait();
        }
        let works = (0..100).map(|_| enqueue()).collect::<Result<Vec<_>>>()?;
        if communicator.rank() == Rank(0) {
            barrier.wait();
        }
        works.into_iter().try_for_each(|work| work.wait().map(drop))?;
        assert_eq!(runner.counts(), [1, 100, 1]);
        Ok(())
    });
}

/// What a rank of a disagreement has: its communicator, and where ranks meet without NCCL.
struct Differing {
    communicator: Communicator,
    barrier: Arc<Barrier>,
}

impl Differing {
    fn is_odd(&self) -> bool {
        self.communicator.rank() == Rank(1)
    }
}

/// Runs a body whose end is a disagreement of rank 1 with the others, which every rank gets.
fn differing(ranks: u32, body: impl Fn(Differing) -> Result<()> + Send + Sync + 'static) {
    let barrier = Arc::new(Barrier::new(ranks as usize));
    let results = on_communicators(DEADLINE, communicators(ranks), move |communicator| {
        body(Differing { communicator, barrier: Arc::clone(&barrier) })
    });
    for (rank, result) in results.into_iter().enumerate() {
        let Err(error) = result else { panic!("rank {rank} got no error") };
        assert_eq!(error.kind(), ErrorKind::Disagreement, "rank {rank}: {error}");
        println!("\nrank {rank}: {error}");
    }
}

/// Rank 1 binds other memory for a run that the others replay.
fn differing_buffers(rank: Differing) -> Result<()> {
    let mut runner = Runner::new(&rank.communicator, true)?;
    let mut bindings = runner.bindings(4)?;
    for _ in 0..3 {
        bindings = runner.run(bindings)?;
    }
    if rank.is_odd() {
        bindings.bind_output("y", runner.tensor(4)?)?;
    }
    runner.run(bindings).map(drop)
}

/// Rank 1 runs another context than the others.
fn differing_contexts(rank: Differing) -> Result<()> {
    let mut runners = [Runner::new(&rank.communicator, true)?, Runner::new(&rank.communicator, true)?];
    let runner = &mut runners[usize::from(rank.is_odd())];
    let bindings = runner.bindings(4)?;
    runner.run(bindings).map(drop)
}

/// The others capture a run of a context that records or does not, and rank 1 runs it.
fn differing_captures(rank: Differing, records: bool) -> Result<()> {
    let mut runner = Runner::new(&rank.communicator, records)?;
    let bindings = runner.bindings(4)?;
    let bindings = runner.run(bindings)?;
    rank.barrier.wait();
    if rank.is_odd() {
        return runner.run(bindings).map(drop);
    }
    let driver = Driver::on(&rank.communicator);
    driver.begin_capture(&runner.stream);
    let captured = runner.context.enqueue(bindings, &runner.stream)?.wait().map(drop);
    driver.end_capture(&runner.stream);
    Ok(captured?)
}

/// Rank 1 waits for its run already when the others begin to capture.
fn differing_captures_in_a_wait(rank: Differing) -> Result<()> {
    let mut runner = Runner::new(&rank.communicator, false)?;
    let bindings = runner.bindings(4)?;
    let bindings = runner.run(bindings)?;
    if rank.is_odd() {
        let work = runner.context.enqueue(bindings, &runner.stream)?;
        rank.barrier.wait();
        return Ok(work.wait().map(drop)?);
    }
    rank.barrier.wait();
    let driver = Driver::on(&rank.communicator);
    driver.begin_capture(&runner.stream);
    let captured = runner.context.enqueue(bindings, &runner.stream)?.wait().map(drop);
    driver.end_capture(&runner.stream);
    Ok(captured?)
}

fn plays(role: &str, ranks: &[u32]) -> Vec<String> {
    let possible = ranks.iter().filter(|ranks| !needs_more_gpus(**ranks));
    possible.map(|&ranks| Child::new(&format!("graphs {role}"), ranks).passes()).collect()
}

/// Every rank's error says what rank 1 does and what the others do.
fn differs(role: &str, sides: [&str; 2]) {
    if needs_test_libraries() {
        return;
    }
    for (ranks, text) in [2, 3].into_iter().zip(plays(&format!("differing_{role}"), &[2, 3])) {
        let errors: Vec<&str> = text.lines().filter(|line| line.starts_with("rank ")).collect();
        assert_eq!(errors.len(), ranks, "{text}");
        for error in errors {
            assert!(sides.iter().all(|side| error.contains(side)), "{error}");
        }
    }
}

#[test]
fn buffers_that_alternate_are_replayed() {
    plays("alternating", &[1, 2, 3]);
}

#[test]
fn ranks_replay_what_they_recorded_together() {
    plays("uneven", &[1, 2, 3]);
}

#[test]
fn a_replay_waits_for_no_rank() {
    plays("ahead", &[2]);
}

#[test]
fn a_context_keeps_the_graphs_that_were_used_last() {
    plays("many", &[1, 2]);
}

#[test]
fn shapes_that_alternate_are_replayed() {
    plays("shapes", &[1, 2]);
}

#[test]
fn a_group_agrees_among_its_ranks() {
    plays("groups", &[4]);
}

#[test]
fn a_borrowed_communicator_records_only_if_it_is_told_to() {
    plays("borrowed", &[1, 2]);
}

#[test]
fn graphs_of_a_communicator_that_has_ended_are_destroyed() {
    plays("ended", &[2]);
}

#[test]
fn memory_that_a_graph_has_captured_stays_until_the_communicator_ends() {
    if !needs_test_libraries() {
        plays("captured_memory", &[2, 3]);
        plays("captured_windows", &[2, 3]);
    }
}

#[test]
fn runs_on_memory_that_the_caller_may_map_anew_are_plain() {
    plays("mapped", &[1, 2]);
}

#[test]
fn a_rank_that_binds_other_memory_than_before_is_named() {
    differs(
        "buffers",
        ["a run that replays CUDA graph 0 of context", "rank 1 makes a run with the buffers of no CUDA graph"],
    );
}

#[test]
fn a_rank_that_runs_another_context_is_named() {
    differs("contexts", ["rank 1", "context"]);
}

#[test]
fn a_rank_that_captures_alone_is_named() {
    let capture = "run 2, in a capture of the caller's";
    differs("captures", [capture, "rank 1 makes run 2, in no capture"]);
    differs("captures_of_a_recorder", [capture, "rank 1 makes a run with the buffers of no CUDA graph"]);
    differs("captures_in_a_wait", [capture, "rank 1 makes run 2, in no capture"]);
}
