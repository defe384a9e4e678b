//! Whether everything is freed: creates and drops communicators, buffers, contexts with graphs and
//! streams again and again.

use std::thread;
use std::time::{Duration, Instant};

use distcollective::comm::BackendKind;
use distcollective::context::ContextOptions;
use distcollective::network::Shuffle;
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, DistCollective, Engine, Network, ReduceOperation, Stream};
use serde_json::json;

use super::cuda::{self, Cuda};
use super::{Options, TIMEOUT, print};
use crate::Result;

/// The GPU memory that may be lost: a few small allocations.
const TOLERANCE: usize = 4 << 20;

/// The side of a square tensor.
const SIDE: i64 = 256;

pub fn run(options: &Options) -> Result<()> {
    let cuda = cuda::current(0)?;
    let rounds = if options.quick { 12 } else { options.rounds };
    let begin = Instant::now();
    let warm_up = (rounds / 10).max(3);
    let mut before = None;
    let mut done = 0;
    while done < rounds && begin.elapsed() < options.time {
        round(done)?;
        done += 1;
        if done == warm_up {
            before = Some(Snapshot::take(cuda)?);
        }
    }
    let after = Snapshot::take(cuda)?;
    let Some(before) = before.filter(|_| done >= 2 * warm_up) else {
        return Err(format!("{done} rounds in {:?} are too few to say anything", options.time).into());
    };
    let lost = before.free.saturating_sub(after.free);
    print(json!({
        "benchmark": "leaks",
        "rounds": done,
        "warm_up": warm_up,
        "seconds": begin.elapsed().as_secs_f64().round(),
        "lost_bytes": lost,
        "allowed_bytes": TOLERANCE,
        "before": before.to_json(),
        "after": after.to_json(),
        "ok": lost <= TOLERANCE,
    }));
    Ok(())
}

/// The resources of the process.
struct Snapshot {
    free: usize,
    threads: usize,
    files: usize,
    resident_kib: Option<u64>,
}

impl Snapshot {
    /// Waits until the free memory no longer changes: helper threads may still be freeing.
    fn take(cuda: &Cuda) -> Result<Self> {
        let end = Instant::now() + Duration::from_secs(10);
        let mut free = cuda.free_memory()?;
        let mut since = Instant::now();
        while since.elapsed() < Duration::from_millis(500) && Instant::now() < end {
            thread::sleep(Duration::from_millis(20));
            let now = cuda.free_memory()?;
            if now != free {
                (free, since) = (now, Instant::now());
            }
        }
        let count = |folder: &str| std::fs::read_dir(folder).map(Iterator::count);
        let status = std::fs::read_to_string("/proc/self/status")?;
        let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.split_whitespace().next());
        Ok(Snapshot {
            free,
            threads: count("/proc/self/task")?,
            files: count("/proc/self/fd")?,
            resident_kib: resident.and_then(|kib| kib.parse().ok()),
        })
    }

    fn to_json(&self) -> serde_json::Value {
        json!({
            "free_bytes": self.free,
            "threads": self.threads,
            "open_files": self.files,
            "resident_kib": self.resident_kib,
        })
    }
}

/// Creates everything, uses it and drops it. Every third round also drops work without waiting for
/// it, and communicators without finalizing them.
fn round(number: u32) -> Result<()> {
    let [communicator] = <[Communicator; 1]>::try_from(
        Communicator::builder().backend(BackendKind::Nccl).timeout(TIMEOUT).in_process(1)?,
    )
    .map_err(|_| "one rank was asked for")?;
    let space = communicator.space();
    let MemorySpace::Cuda(ordinal) = space else { return Err("the communicator is not on a GPU".into()) };
    let stream = Stream::cuda(ordinal)?;
    let mut context = engine()?.create_execution_context_with(ContextOptions::default().cuda_graph(true))?;
    context.set_communicator(&communicator)?;
    let mut bindings = context.create_bindings();
    let symmetric = communicator.allocate(DataType::Float32, [SIDE, SIDE])?;
    bindings.bind_input("x", symmetric)?;
    bindings.bind_output("y", Buffer::zeroed_in(space, DataType::Float16, [SIDE, SIDE])?)?;
    // The first run is direct, the second records a graph, the third replays it.
    for _ in 0..3 {
        let work = context.enqueue(bindings, &stream).map_err(|failed| failed.error)?;
        bindings = work.wait()?;
    }
    communicator.all_reduce(&mut vec![1f32; 1 << 16], ReduceOperation::Sum)?;
    let group = communicator.split(Some(0), 0)?.ok_or("every rank has a color")?;
    group.barrier()?;
    if number.is_multiple_of(3) {
        drop(context.enqueue(bindings, &stream).map_err(|failed| failed.error)?);
        // A dropped stream never frees what is still in use on it.
        stream.synchronize()?;
        return Ok(());
    }
    drop(context);
    group.finalize()?;
    communicator.finalize()?;
    Ok(())
}

fn engine() -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [SIDE, SIDE])?;
    let h = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1), x)?;
    let h = network.add_shuffle(h, Shuffle::transpose([1, 0]))?;
    let y = network.add_cast(h, DataType::Float16)?;
    network.mark_output(y, "y")?;
    Ok(network.build()?)
}
