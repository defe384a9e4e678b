//! Host time of replaying a graph of one all_reduce: by a context that records graphs, and by
//! launching a graph of the bare call.

use std::time::Instant;

use distcollective::context::ContextOptions;

use crate::cuda::Graph;
use crate::measure::{Way, batch_len, compare, nanoseconds};
use crate::rank::{Rank, by_context, on_ranks};
use crate::{Options, Result};

pub fn run(options: &Options) -> Result<()> {
    on_ranks(options, |rank, place| {
        let (context, bindings) = rank.context(ContextOptions::default().cuda_graph(true), batch_len(options))?;
        let (output, communicator) = (rank.output(), rank.communicator);
        let mut by_context = by_context("ExecutionContext::enqueue", context, bindings, rank.stream);
        // The first run is direct, the second records a graph, the third replays it; each is
        // checked.
        for _ in 0..3 {
            rank.check(&mut by_context)?;
        }
        // One call before recording, so that NCCL has allocated all that it needs.
        // SAFETY: the buffers outlive the call, which is waited for here.
        unsafe { rank.call_bare(output)? };
        rank.bare_stream.synchronize()?;
        // SAFETY: the buffers outlive every launch of the graph; all launches are waited for below.
        let graph = rank.bare_stream.record(|| unsafe { rank.call_bare(output) })?;
        rank.check(&mut launches(rank_stream(rank), &graph))?;
        let bare = || launches(rank_stream(rank), &graph);
        let mut ways = [bare(), bare(), by_context];
        let times = nanoseconds(options, &mut ways, || Ok(communicator.barrier()?))?;
        Ok(compare("replay", place, &ways, &times))
    })
}

fn rank_stream<'a>(rank: &Rank<'a>) -> &'a crate::cuda::Stream {
    rank.bare_stream
}

fn launches<'a>(stream: &'a crate::cuda::Stream, graph: &'a Graph) -> Way<'a> {
    Way::bare("cuGraphLaunch", move |len| {
        let begin = Instant::now();
        for _ in 0..len {
            // SAFETY: the recorded call reads and writes the rank's buffers, which outlive the
            // launch: the stream is synchronized below.
            unsafe { graph.launch(stream)? };
        }
        let elapsed = begin.elapsed();
        stream.synchronize()?;
        Ok(elapsed)
    })
}
