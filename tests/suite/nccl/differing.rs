//! What ranks get when one of them calls something else than the others. NCCL compares nothing: its
//! ranks wait for each other forever, or end with results that no rank asked for.

use std::time::Instant;

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::dist_collective::BoundLayer;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, DistCollectiveLayer, ErrorKind, Rank, ReduceOperation, Result, Work,
};

use super::graphs::Runner;
use super::libraries::nccl_calls;
use super::{Child, communicators, cuda_stream, needs_more_gpus, needs_test_libraries, on_gpus, threads_share_a_gpu};
use crate::ranks::{DEADLINE, on_communicators};

const SUM: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
const MAX: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Max };
const FROM_0: Collective<Rank> = Collective::Broadcast { root: Rank(0) };
const FROM_1: Collective<Rank> = Collective::Broadcast { root: Rank(1) };

/// A call of so many elements of a type.
type Call = (Collective<Rank>, DataType, usize);

/// What differs, the calls of the ranks, those of rank 1, and what the error says of both.
type Case = (&'static str, Vec<Call>, Vec<Call>, [&'static str; 2]);

fn cases() -> Vec<Case> {
    let (float, int) = (DataType::Float32, DataType::Int32);
    let [sum, max, long] = [(SUM, float, 4), (MAX, float, 4), (SUM, float, 4096)];
    let texts = |first, second| [first, second];
    vec![
        (
            "operation",
            vec![sum],
            vec![(Collective::AllGather, float, 4)],
            texts("all_reduce(sum) of 4 float32", "all_gather of 4 float32"),
        ),
        ("reduction", vec![sum], vec![max], texts("all_reduce(sum) of 4 float32", "all_reduce(max) of 4 float32")),
        ("type", vec![sum], vec![(SUM, int, 4)], texts("all_reduce(sum) of 4 float32", "all_reduce(sum) of 4 int32")),
        ("count", vec![sum], vec![long], texts("all_reduce(sum) of 4 float32", "all_reduce(sum) of 4096 float32")),
        ("root", vec![(FROM_0, float, 4)], vec![(FROM_1, float, 4)], texts("from group rank 0", "from group rank 1")),
        ("order", vec![sum, max], vec![max, sum], texts("all_reduce(sum) of", "all_reduce(max) of")),
        ("one left out", vec![sum, sum, max], vec![sum, max, max], texts("all_reduce(sum) of", "all_reduce(max) of")),
    ]
}

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Way {
    /// Done when it returns.
    Eager,
    Enqueued,
    Layer,
}

/// One rank's calls in one of the ways.
struct Caller {
    communicator: Communicator,
    way: Way,
    layers: Vec<((Collective<Rank>, DataType), BoundLayer)>,
    works: Vec<Work<Operands>>,
}

impl Caller {
    /// For layers, all ranks bind all that are in the case.
    fn new(communicator: Communicator, way: Way, calls: &[Call]) -> Result<Self> {
        let n = communicator.world_size();
        let mut layers: Vec<(_, BoundLayer)> = Vec::new();
        for &(collective, data_type, _) in calls.iter().filter(|_| way == Way::Layer) {
            if layers.iter().any(|(known, _)| *known == (collective, data_type)) {
                continue;
            }
            let layer: DistCollectiveLayer = match collective {
                Collective::AllReduce { reduce_op } => DistCollective::all_reduce(reduce_op).nb_rank(n).into_layer(),
                Collective::AllGather => DistCollective::all_gather().nb_rank(n).into_layer(),
                Collective::Broadcast { root } => DistCollective::broadcast(root).nb_rank(n).into_layer(),
                other => panic!("no case has {other:?}"),
            };
            layers.push(((collective, data_type), layer.bind(&communicator, data_type)?));
        }
        Ok(Caller { communicator, way, layers, works: Vec::new() })
    }

    fn call(&mut self, (collective, data_type, len): Call) -> Result<()> {
        let blocks = if collective == Collective::AllGather { self.communicator.world_size() as usize } else { 1 };
        let space = self.communicator.space();
        let input = Buffer::zeroed_in(space, data_type, [len as i64])?;
        let mut output = Buffer::zeroed_in(space, data_type, [(blocks * len) as i64])?;
        match self.way {
            Way::Eager => self.communicator.collective(collective, Some(&input), Some(&mut output)),
            Way::Enqueued => {
                let stream = cuda_stream(&self.communicator)?;
                let operands = Operands::new(input, output);
                self.works.push(self.communicator.collective_async(collective, operands, &stream)?);
                Ok(())
            }
            Way::Layer => {
                let layer = self.layers.iter().find(|(of, _)| *of == (collective, data_type));
                layer.expect("it is bound").1.execute(Some(&input), Some(&mut output), &[len])
            }
        }
    }

    /// The error of the calls: of one that takes elements from ranks with another one, or else of a
    /// barrier after them.
    fn error_of(mut self, calls: &[Call]) -> distcollective::Error {
        let all = calls.iter().try_for_each(|call| self.call(*call));
        let waited = all.and_then(|()| {
            self.works.drain(..).try_for_each(|work| work.wait().map(drop).map_err(distcollective::Error::from))
        });
        let is_root =
            calls.contains(&(Collective::Broadcast { root: self.communicator.rank() }, calls[0].1, calls[0].2));
        assert!(waited.is_err() || is_root, "a result that nobody asked for");
        waited.and_then(|()| self.communicator.barrier()).expect_err("the calls differ")
    }
}

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    match name {
        "eager" => all_cases(ranks, Way::Eager),
        "enqueued" => all_cases(ranks, Way::Enqueued),
        "layer" => all_cases(ranks, Way::Layer),
        "list" => differ(ranks, ["all_gather of 4 float32", "all_gather of 4 float32 as a list of blocks"], list),
        "context" => differ(ranks, ["makes run 2, in no capture", "all_reduce(sum) of 4 float32"], |communicator| {
            replays_and_calls(&communicator, false)
        }),
        "graph" => {
            let run = if threads_share_a_gpu(ranks) { "makes run 4, in no capture" } else { "replays CUDA graph 0" };
            differ(ranks, [run, "all_reduce(sum) of 4 float32"], |communicator| replays_and_calls(&communicator, true));
        }
        "barrier" => differ(ranks, ["monitored_barrier", "all_reduce(sum) of 4 float32"], |communicator| {
            match communicator.rank() {
                Rank(1) => communicator.all_reduce(&mut [0f32; 4], ReduceOperation::Sum),
                _ => communicator.monitored_barrier(DEADLINE),
            }
        }),
        "split" => differ(ranks, ["split", "all_reduce(sum) of 4 float32"], |communicator| match communicator.rank() {
            Rank(1) => communicator.all_reduce(&mut [0f32; 4], ReduceOperation::Sum),
            _ => communicator.split(Some(0), 0).map(drop),
        }),
        "message" => {
            differ(ranks, ["rank 0 sends 4 float32", "rank 1 receives 5 float32"], |communicator| {
                match communicator.rank() {
                    Rank(0) => communicator.send(&[1f32; 4], 1, 0),
                    Rank(1) => communicator.recv(&mut [1f32; 5], 0, 0).map(drop),
                    _ => Ok(()),
                }
            });
            // Of the same length: NCCL moves it.
            differ(ranks, ["rank 1 sends 4 float32", "rank 0 receives 4 int32"], |communicator| {
                match communicator.rank() {
                    Rank(1) => communicator.send(&[1f32; 4], 0, 0),
                    Rank(0) => communicator.recv(&mut [1i32; 4], 1, 0).map(drop),
                    _ => Ok(()),
                }
            });
        }
        "nobody_waits" => on_gpus(ranks, |communicator| nobody_waits(&communicator)),
        "same" => on_gpus(ranks, |communicator| same(&communicator)),
        _ => panic!("{name} is no role"),
    }
}

/// Runs a body whose end is an error that names two calls, on every rank.
fn differ(ranks: u32, sides: [&str; 2], body: impl Fn(Communicator) -> Result<()> + Send + Sync + 'static) {
    let begin = Instant::now();
    let body = move |communicator: Communicator| body(communicator.clone()).and_then(|()| communicator.barrier());
    for (rank, result) in on_communicators(DEADLINE, communicators(ranks), body).into_iter().enumerate() {
        let error = result.expect_err("the calls differ");
        assert_eq!(error.kind(), ErrorKind::Disagreement, "rank {rank}: {error}");
        let text = error.to_string();
        assert!(sides.iter().all(|side| text.contains(side)), "rank {rank}: {text}\nlacks one of {sides:?}");
    }
    println!("{sides:?}: after {:?}", begin.elapsed());
}

fn all_cases(ranks: u32, way: Way) {
    // NCCL completes a call with another reduction, at times before a wait has looked at anything.
    let many = cases().into_iter().flat_map(|case| vec![case.clone(); if case.0 == "reduction" { 20 } else { 1 }]);
    for (what, common, odd, sides) in many {
        println!("{way:?}, {what}:");
        let all: Vec<Call> = common.iter().chain(&odd).copied().collect();
        differ(ranks, sides, move |communicator| {
            let calls = if communicator.rank() == Rank(1) { &odd } else { &common };
            Err(Caller::new(communicator, way, &all)?.error_of(calls))
        });
    }
}

/// Rank 1 gives a list of blocks, for which NCCL sends and receives.
fn list(communicator: Communicator) -> Result<()> {
    let n = communicator.world_size() as usize;
    let (input, mut output) = ([1f32; 4], vec![0f32; 4 * n]);
    match communicator.rank() {
        Rank(1) => communicator.all_gather_list(&input, output.chunks_mut(4)),
        _ => communicator.all_gather(&input, &mut output),
    }
}

/// Rank 1 calls first, and then runs the context. The others do it the other way around.
fn replays_and_calls(communicator: &Communicator, records: bool) -> Result<()> {
    let mut runner = Runner::new(communicator, records)?;
    let mut bindings = runner.bindings(4)?;
    for _ in 0..if records { 3 } else { 1 } {
        bindings = runner.run(bindings)?;
    }
    let sum = || communicator.all_reduce(&mut [1f32; 4], ReduceOperation::Sum);
    if communicator.rank() == Rank(1) {
        sum()?;
    }
    runner.enqueue(bindings)?.wait().map(drop)?;
    sum()
}

/// The ranks enqueue different calls, and none of them waits: the watchdog finds the difference,
/// and ends what would keep the GPU busy.
fn nobody_waits(communicator: &Communicator) -> Result<()> {
    let count = if communicator.rank() == Rank(1) { 8 } else { 4 };
    let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [count])?;
    drop(communicator.collective_async(SUM, Operands::in_place(buffer), &cuda_stream(communicator)?)?);
    let end = Instant::now() + DEADLINE;
    while nccl_calls("ncclCommAbort") < communicator.world_size() as usize {
        assert!(Instant::now() < end, "nobody has found it");
        std::thread::yield_now();
    }
    let error = communicator.check().expect_err("the calls differ");
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    Ok(())
}

/// Ranks that make the same calls at different speeds.
fn same(communicator: &Communicator) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let mut works = std::collections::VecDeque::new();
    for call in 0..2000 {
        let buffer = Buffer::zeroed_in(communicator.space(), DataType::Float32, [1 + call % 5])?;
        let reduction = if call % 3 == 0 { MAX } else { SUM };
        works.push_back(communicator.collective_async(reduction, Operands::in_place(buffer), &stream)?);
        if works.len() > 1 + 20 * communicator.rank().index() {
            works.pop_front().map_or(Ok(()), |work| work.wait().map(drop))?;
        }
        if call % 100 == 0 {
            communicator.all_reduce(&mut [1f32], ReduceOperation::Sum)?;
        }
    }
    works.into_iter().try_for_each(|work| work.wait().map(drop))?;
    communicator.barrier()
}

fn plays(role: &str, ranks: &[u32]) {
    for &ranks in ranks.iter().filter(|ranks| !needs_more_gpus(**ranks)) {
        Child::new(&format!("differing {role}"), ranks).passes();
    }
}

#[test]
fn calls_that_are_done_when_they_return() {
    plays("eager", &[2, 3]);
}

#[test]
fn calls_that_are_enqueued() {
    plays("enqueued", &[2, 3]);
}

#[test]
fn calls_of_layers() {
    plays("layer", &[2]);
}

#[test]
fn a_rank_that_gives_a_list() {
    plays("list", &[2, 3]);
}

#[test]
fn a_run_of_a_context_and_a_call_in_another_order() {
    plays("context", &[2]);
    plays("graph", &[2, 3]);
}

#[test]
fn ranks_that_wait_on_the_host_and_ranks_that_wait_on_the_gpu() {
    plays("barrier", &[2]);
    plays("split", &[2]);
}

#[test]
fn messages() {
    plays("message", &[2, 3]);
}

#[test]
fn a_difference_that_nobody_waits_for() {
    if !needs_test_libraries() {
        plays("nobody_waits", &[2]);
    }
}

#[test]
fn ranks_that_agree() {
    plays("same", &[2, 4]);
}
