//! Host time of enqueueing an all_reduce: by a bound layer, by a context, and by the bare call.

use std::time::Instant;

use distcollective::context::ContextOptions;
use distcollective::{DataType, DistCollective, ReduceOperation};

use crate::measure::{Way, batch_len, compare, nanoseconds};
use crate::rank::{Rank, by_context, on_ranks};
use crate::{Options, Result};

pub fn run(options: &Options) -> Result<()> {
    on_ranks(options, |rank, place| {
        let len = batch_len(options);
        let (context, bindings) = rank.context(ContextOptions::default(), len)?;
        let layer = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(rank.communicator.world_size());
        let layer = layer.named("sum").into_layer().bind(rank.communicator, DataType::Float32)?;
        let (input, output) = (rank.input(), rank.output());
        let communicator = rank.communicator;
        let (stream, count) = (rank.stream, rank.count);
        let mut works = Vec::with_capacity(len);
        let by_layer = Way::ours("BoundLayer::enqueue", move |len| {
            let begin = Instant::now();
            for _ in 0..len {
                // SAFETY: the buffers have `count` elements and outlive the work, which is waited
                // for below. All runs write the same values, one after the other in the stream.
                works.push(unsafe { layer.enqueue(input, output, &[count], stream)? });
            }
            let elapsed = begin.elapsed();
            for work in works.drain(..) {
                work.wait().map_err(|failed| failed.error)?;
            }
            Ok(elapsed)
        });
        let by_context = by_context("ExecutionContext::enqueue", context, bindings, stream);
        let mut checked = [by_layer, by_context];
        for way in &mut checked {
            rank.check(way)?;
        }
        let rank: &Rank<'_> = rank;
        let mut ways = vec![bare(rank, output), bare(rank, output)];
        ways.extend(checked);
        if communicator.world_size() == 1 {
            // With one rank the library does not call NCCL. Measure what that call would cost.
            ways.push(Way::bare("ncclAllReduce", move |len| {
                let begin = Instant::now();
                for _ in 0..len {
                    // SAFETY: the buffers outlive the call, which is waited for below.
                    unsafe { rank.call_nccl(output)? };
                }
                let elapsed = begin.elapsed();
                rank.bare_stream.synchronize()?;
                Ok(elapsed)
            }));
        }
        let times = nanoseconds(options, &mut ways, || Ok(communicator.barrier()?))?;
        Ok(compare("enqueue", place, &ways, &times))
    })
}

fn bare<'a>(rank: &'a Rank<'_>, output: *mut u8) -> Way<'a> {
    Way::bare(rank.name_of_bare_call(), move |len| {
        let begin = Instant::now();
        for _ in 0..len {
            // SAFETY: the buffers outlive the call, which is waited for below.
            unsafe { rank.call_bare(output)? };
        }
        let elapsed = begin.elapsed();
        rank.bare_stream.synchronize()?;
        Ok(elapsed)
    })
}
