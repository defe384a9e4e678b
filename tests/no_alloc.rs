//! A steady-state enqueue allocates nothing, on any stream and backend; nor does a message.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::Duration;

use distcollective::collective::Partition;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::network::{ElementWiseOperation, Plugin, PluginCall, Shuffle};
use distcollective::tensor::MemorySpace;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, ExecutionContext, Network, Rank, ReduceOperation, Result,
    Stream, inputs, outputs,
};
use test_support::{succeed, timed};

/// Counts the allocations of the whole process while `COUNTING` is set.
struct Counting;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicUsize = AtomicUsize::new(0);

// SAFETY: each function calls the system allocator's.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if COUNTING.load(Ordering::Relaxed) {
            ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller promises what the system allocator asks for.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const RANKS: u32 = 2;
const TIMEOUT: Duration = Duration::from_secs(10);

/// Tells a child its backend.
const BACKEND: &str = "DCL_TEST_BACKEND";

/// All kinds of layers.
fn engine() -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4, 6])?;
    let h = network.add_plugin("double", Double, &[x])?;
    let h = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(RANKS), h)?;
    let h = network.add_shuffle(h, Shuffle::transpose([1, 0]).then_reshape([4, 6]).then_transpose([1, 0]))?;
    let bias = network.add_constant(&[1f32, 2., 3., 4.], [1, 4])?;
    let h = network.add_elementwise(h, bias, ElementWiseOperation::Sum)?;
    let h = network.add_concatenation(&[h, h], 1)?;
    let h = network.add_slice(h, &[0, 7], &[6, 4], &[1, -2])?;
    let h = network.add_identity(h)?;
    let h = network.add_cast(h, DataType::Bfloat16)?;
    let h = network.add(DistCollective::all_gather().nb_rank(RANKS), h)?;
    let h = network.add(DistCollective::reduce_scatter(ReduceOperation::Max).nb_rank(RANKS), h)?;
    let h = network.add(DistCollective::all_to_all().group([Rank(1), Rank(0)]), h)?;
    let h = network.add(DistCollective::all_gather().partition(Partition::new([[0], [1]])), h)?;
    let r = network.add(DistCollective::reduce(ReduceOperation::Avg, Rank(0)).nb_rank(RANKS), h)?;
    let z = network.add_cast(r, DataType::Int8)?;
    network.mark_output(r, "r")?;
    network.mark_output(z, "z")?;
    network.build()
}

#[derive(Debug)]
struct Double;

impl Plugin for Double {
    fn type_name(&self) -> &str {
        "double"
    }

    fn runs_on_cuda(&self) -> bool {
        true
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        // The values on a GPU do not matter here.
        if call.cuda_stream().is_some() {
            return Ok(());
        }
        let input = call.input(0)?.as_slice::<f32>()?;
        call.output(0)?.as_mut_slice::<f32>()?.iter_mut().zip(input).for_each(|(y, x)| *y = 2.0 * x);
        Ok(())
    }
}

fn bindings(context: &ExecutionContext, space: MemorySpace) -> Result<Bindings> {
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::zeroed_in(space, DataType::Float32, [4, 6])?)?;
    bindings.bind_output("r", Buffer::zeroed_in(space, DataType::Bfloat16, [6, 4])?)?;
    bindings.bind_output("z", Buffer::zeroed_in(space, DataType::Int8, [6, 4])?)?;
    Ok(bindings)
}

/// Messages of one rank and then of the other: one that travels in the ring, and one that is copied
/// from the sender's buffer.
fn exchange(communicator: &Communicator, long: &mut [f32]) -> Result<()> {
    let other = Rank(1 - communicator.rank().0);
    for sender in 0..RANKS {
        for len in [3, long.len()] {
            match communicator.rank() == Rank(sender) {
                true => communicator.send(&long[..len], other, 0)?,
                false => drop(communicator.recv(&mut long[..len], other, 0)?),
            }
        }
    }
    Ok(())
}

/// Enqueues in every way, and counts in the second half.
fn run(communicator: &Communicator, engine: &Engine) -> Result<()> {
    let space = communicator.space();
    let streams = match space {
        MemorySpace::Cuda(ordinal) => vec![Stream::inline(), Stream::cuda(ordinal)?, Stream::worker()?],
        _ => vec![Stream::inline(), Stream::worker()?],
    };
    let mut ways = Vec::new();
    // On the host the second context is the same as the first.
    for cuda_graph in [false, true] {
        let options = ContextOptions::default().cuda_graph(cuda_graph);
        let mut context = engine.create_execution_context_with(options)?;
        context.set_communicator(communicator)?;
        let bound = bindings(&context, space)?;
        ways.push((context, Some(bound)));
    }
    let x = [1.0f32; 24];
    let (mut r, mut z) = (Buffer::zeroed(DataType::Bfloat16, [6, 4])?, [0i8; 24]);
    let mut long = vec![0f32; 100_000];
    const ROUNDS: usize = 40;
    let mut settled = None;
    for round in 0..ROUNDS {
        if round == ROUNDS / 2 {
            // On GPUs this waits until what was dropped so far is released.
            settled = Some(communicator.allocate(DataType::Uint8, [1])?);
            communicator.barrier()?;
            COUNTING.store(true, Ordering::SeqCst);
            communicator.barrier()?;
        }
        for (context, bound) in &mut ways {
            for stream in &streams {
                *bound = bound.take().map(|bound| context.enqueue(bound, stream)?.wait()).transpose()?;
            }
        }
        ways[0].0.execute(inputs!["x" => &x], outputs!["r" => &mut r, "z" => &mut z])?;
        if space == MemorySpace::Host {
            exchange(communicator, &mut long)?;
        }
    }
    communicator.barrier()?;
    COUNTING.store(false, Ordering::SeqCst);
    drop(settled);
    communicator.barrier()
}

fn allocates_nothing(communicators: Vec<Communicator>) {
    let engine = engine().expect("an engine");
    let (sender, results) = channel();
    let start = |communicator: Communicator| {
        let (sender, engine) = (sender.clone(), engine.clone());
        std::thread::spawn(move || sender.send(run(&communicator, &engine)).expect("the test listens"))
    };
    let threads: Vec<_> = communicators.into_iter().map(start).collect();
    for _ in 0..RANKS {
        results.recv_timeout(TIMEOUT).expect("the ranks finish").expect("no error");
    }
    assert_eq!(ALLOCATIONS.load(Ordering::SeqCst), 0);
    let before = ALLOCATIONS.load(Ordering::SeqCst);
    COUNTING.store(true, Ordering::SeqCst);
    std::hint::black_box(vec![0u8; 100]);
    COUNTING.store(false, Ordering::SeqCst);
    assert!(ALLOCATIONS.load(Ordering::SeqCst) > before, "the counter counts");
    // The process ends when they have dropped their communicators.
    threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
}

/// The work of a child process. It has no other test, because the whole process is counted.
#[test]
fn a_steady_state_enqueue_allocates_nothing() {
    let Ok(backend) = std::env::var(BACKEND) else {
        for backend in ["host", "nccl"] {
            let mut child = timed(std::env::current_exe().expect("this program"));
            child.args(["a_steady_state", "--nocapture"]).env(BACKEND, backend);
            // The test libraries allocate in C, which is not counted.
            succeed(child.env("LD_LIBRARY_PATH", fake_gpu::library_dir(fake_gpu::Variant::Current)));
        }
        return;
    };
    // A wait that runs a hook allocates nothing either.
    distcollective::interrupt::set_interrupt_hook(|| std::ops::ControlFlow::Continue(())).expect("no hook before");
    let builder = Communicator::builder().backend(backend.parse().expect("a backend")).timeout(TIMEOUT);
    allocates_nothing(builder.in_process(RANKS).expect("ranks"));
}
