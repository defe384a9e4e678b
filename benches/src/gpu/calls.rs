//! What a collective costs the host, and how long it takes: NCCL's own call, an eager call, a bound
//! layer, an engine, and graphs of the bare call and of the engine.

use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::RawOperands;
use distcollective::context::{Bindings, ContextOptions};
use distcollective::{Communicator, DataType, Determinism, ExecutionContext, Rank, ReduceOperation};
use serde_json::{Value, json};

use super::cuda::Graph;
use super::measure::{Times, Way, batch_len, compare, nanoseconds};
use super::nccl::BareCommunicator;
use super::rank::{Caller, Case, ROOT, on_ranks};
use super::{Options, print};
use crate::Result;

/// The sizes of a collective, in bytes.
const SIZES: [usize; 4] = [2 << 10, 64 << 10, 1 << 20, 16 << 20];

const COLLECTIVES: [Collective<Rank>; 8] = [
    Collective::AllReduce { reduce_op: ReduceOperation::Sum },
    Collective::AllGather,
    Collective::Broadcast { root: ROOT },
    Collective::Reduce { reduce_op: ReduceOperation::Sum, root: ROOT },
    Collective::ReduceScatter { reduce_op: ReduceOperation::Sum },
    Collective::AllToAll,
    Collective::Gather { root: ROOT },
    Collective::Scatter { root: ROOT },
];

pub fn run(options: &Options) -> Result<()> {
    on_ranks(options, |caller| {
        let communicator = &caller.communicator;
        let ranks = communicator.world_size();
        // With one rank every collective is the same copy.
        let collectives = if ranks == 1 || options.is_no_op { &COLLECTIVES[..1] } else { &COLLECTIVES };
        let sizes = match options.is_no_op {
            true => &SIZES[..1],
            false if options.quick => &SIZES[..2],
            false => &SIZES,
        };
        let groups = (0..if options.is_no_op { 8 } else { 0 }).map(|_| communicator.split(Some(0), 0));
        let _groups = groups.collect::<distcollective::Result<Vec<_>>>()?;
        // Each case measures calls and graphs.
        let budget = options.time / (2 * collectives.len() * sizes.len()) as u32;
        for &collective in collectives {
            for &byte_len in sizes {
                let place = json!({
                    "operation": collective.operation().name(),
                    "bytes": byte_len,
                    "ranks": ranks,
                    "rank": communicator.rank().0,
                    "ranks_are": if options.is_launched { "processes" } else { "threads" },
                });
                if BareCommunicator::has(collective.operation()) {
                    let mut case = Case::new(caller, collective, byte_len)?;
                    calls(options, budget, caller, &mut case, &place)?.into_iter().for_each(print);
                    graphs(options, budget, caller, &mut case, &place)?.into_iter().for_each(print);
                } else {
                    let reason = "this NCCL has no such call; the library makes it of others";
                    print(json!({"benchmark": "calls", "place": place, "skipped": reason}));
                }
            }
        }
        Ok(())
    })
}

fn calls(
    options: &Options,
    budget: Duration,
    caller: &Caller,
    case: &mut Case<'_>,
    place: &Value,
) -> Result<Vec<Value>> {
    let (context, bindings) = case.context(ContextOptions::default(), batch_len(options))?;
    let (input, output) = (case.input(), case.output());
    let (collective, block, operands) = (case.collective, case.block, RawOperands::Pair { input, output });
    let by_call = |communicator: Communicator| {
        let mut works = Vec::new();
        move |len| {
            Times::of(
                &mut works,
                |works| {
                    for _ in 0..len {
                        let (data_type, stream) = (DataType::Float32, &caller.stream);
                        // SAFETY: the case's buffers are as long as the collective needs, and
                        // outlive the work, which is waited for below. All runs write the same
                        // values, one after the other in the stream.
                        works.push(unsafe { communicator.enqueue(collective, data_type, block, operands, stream)? });
                    }
                    Ok(())
                },
                |works| works.drain(..).try_for_each(|work| Ok(work.wait().map(drop)?)),
            )
        }
    };
    let eager = Way::ours("Communicator::enqueue", by_call(caller.communicator.clone()));
    // It is shown beside the others, and does more than they do.
    let exact = caller.communicator.with_determinism(Determinism::Exact);
    let mut exact = Way::bare("Communicator::enqueue, exact", by_call(exact));
    let layer = case.layer()?.bind(&caller.communicator, DataType::Float32)?;
    let elements = case.input_elements();
    let mut works = Vec::new();
    let by_layer = Way::ours("BoundLayer::enqueue", move |len| {
        Times::of(
            &mut works,
            |works| {
                for _ in 0..len {
                    // SAFETY: as above.
                    works.push(unsafe { layer.enqueue(input, output, &[elements], &caller.stream)? });
                }
                Ok(())
            },
            |works| works.drain(..).try_for_each(|work| Ok(work.wait().map(drop)?)),
        )
    });
    let mut ours = [eager, by_layer, by_engine("ExecutionContext::enqueue", context, bindings, caller)];
    for way in &mut ours {
        case.check(way)?;
    }
    let is_alone = caller.communicator.world_size() == 1;
    // It has a kernel of the library's.
    let has_exact = case.collective.reduce_op().is_some() && !is_alone && !options.is_no_op;
    if has_exact {
        case.check(&mut exact)?;
    }
    let case: &Case<'_> = case;
    let name = if is_alone { "cuMemcpyDtoDAsync" } else { "NCCL" };
    let bare = || {
        Way::bare(name, move |len| {
            repeat(caller, len, || {
                // SAFETY: the call is waited for before the case ends.
                unsafe { case.call_bare(output) }
            })
        })
    };
    let mut ways = vec![bare(), bare()];
    ways.extend(ours);
    if has_exact {
        ways.push(exact);
    }
    if is_alone {
        // With one rank the library does not call NCCL. Measure what that call would cost.
        // SAFETY: the call is waited for before the case ends.
        ways.push(Way::bare("NCCL", move |len| repeat(caller, len, || unsafe { case.call_nccl(output) })));
    }
    let times = nanoseconds(options, &caller.communicator, budget, &mut ways)?;
    Ok(compare("calls", place, &ways, &times))
}

fn graphs(
    options: &Options,
    budget: Duration,
    caller: &Caller,
    case: &mut Case<'_>,
    place: &Value,
) -> Result<Vec<Value>> {
    let (mut context, mut bindings) = case.context(ContextOptions::default().cuda_graph(true), batch_len(options))?;
    // The first run is direct, and the second records a graph, if it may.
    for _ in 0..2 {
        let used = bindings.pop().ok_or("a batch has a run")?;
        bindings.push(context.enqueue(used, &caller.stream).map_err(|failed| failed.error)?.wait()?);
    }
    if context.cuda_graphs().recorded == 0 {
        let reason = "contexts record no graphs where ranks of one process share a GPU";
        return Ok(vec![json!({"benchmark": "calls", "skipped": reason})]);
    }
    let mut ours = by_engine("ExecutionContext::enqueue, graph", context, bindings, caller);
    case.check(&mut ours)?;
    let output = case.output();
    // One call before recording, so that NCCL has allocated all that it needs.
    // SAFETY: the call is waited for here.
    unsafe { case.call_bare(output)? };
    caller.bare_stream.synchronize()?;
    // SAFETY: the buffers outlive every launch of the graph; all launches are waited for.
    let graph = caller.bare_stream.record(|| unsafe { case.call_bare(output) })?;
    case.check(&mut launches(caller, &graph))?;
    let mut ways = [launches(caller, &graph), launches(caller, &graph), ours];
    let times = nanoseconds(options, &caller.communicator, budget, &mut ways)?;
    Ok(compare("calls", place, &ways, &times))
}

/// Runs of a context. Each takes bindings, and returns them when it is waited for.
fn by_engine<'a>(
    name: &'static str,
    mut context: ExecutionContext,
    bindings: Vec<Bindings>,
    caller: &'a Caller,
) -> Way<'a> {
    let mut kept = (bindings, Vec::new());
    Way::ours(name, move |len| {
        Times::of(
            &mut kept,
            |(bindings, works)| {
                for _ in 0..len {
                    let bindings = bindings.pop().ok_or("a batch is longer than was said")?;
                    works.push(context.enqueue(bindings, &caller.stream).map_err(|failed| failed.error)?);
                }
                Ok(())
            },
            |(bindings, works)| {
                for work in works.drain(..) {
                    bindings.push(work.wait()?);
                }
                Ok(())
            },
        )
    })
}

fn launches<'a>(caller: &'a Caller, graph: &'a Graph) -> Way<'a> {
    Way::bare("cuGraphLaunch", move |len| {
        // SAFETY: the recorded call reads and writes the case's buffers, which outlive the launch:
        // the stream is synchronized after each batch.
        repeat(caller, len, || unsafe { graph.launch(&caller.bare_stream) })
    })
}

/// Makes a bare call again and again, then waits for the stream.
fn repeat(caller: &Caller, len: usize, call: impl Fn() -> Result<()>) -> Result<Times> {
    Times::of(&mut (), |()| (0..len).try_for_each(|_| call()), |()| caller.bare_stream.synchronize())
}
