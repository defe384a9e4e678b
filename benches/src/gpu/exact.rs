//! Exact mode: the hashes of reductions on GPUs, beside those of the host and of NCCL's own.

use distcollective::collective::Collective;
use distcollective::tensor::{Element, bf16, f16};
use distcollective::{Communicator, Determinism, Rank, ReduceOperation};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::rank::{ROOT, on_ranks};
use super::{Options, print};
use crate::Result;

/// The elements of each rank: of few, every rank gets all contributions; of many, its share. No
/// number of ranks that is usual divides them.
const COUNTS: [usize; 2] = [1_009, 1_000_003];

const COLLECTIVES: [Collective<Rank>; 3] = [
    Collective::AllReduce { reduce_op: ReduceOperation::Sum },
    Collective::AllReduce { reduce_op: ReduceOperation::Avg },
    Collective::Reduce { reduce_op: ReduceOperation::Prod, root: ROOT },
];

pub fn run(options: &Options) -> Result<()> {
    on_ranks(options, |caller| {
        for collective in COLLECTIVES {
            for count in COUNTS {
                compare::<f32>(options, &caller.communicator, collective, count, |x| x)?;
                compare::<f16>(options, &caller.communicator, collective, count, f16::from_f32)?;
                compare::<bf16>(options, &caller.communicator, collective, count, bf16::from_f32)?;
            }
        }
        Ok(())
    })
}

fn compare<T: Element>(
    options: &Options,
    communicator: &Communicator,
    collective: Collective<Rank>,
    count: usize,
    of_f32: fn(f32) -> T,
) -> Result<()> {
    let (rank, ranks) = (communicator.rank(), communicator.world_size());
    // The host's result: ranks that are threads of this process, with the same inputs.
    let host = Communicator::spawn(ranks, |host| hash(&host, collective, count, of_f32))?;
    let host_hash = &host[rank.index()];
    let exact_hash = hash(&communicator.with_determinism(Determinism::Exact), collective, count, of_f32)?;
    let backend_hash = hash(communicator, collective, count, of_f32)?;
    print(json!({
        "benchmark": "exact",
        "place": {
            "operation": collective.operation().name(),
            "reduce_op": collective.reduce_op().map(ReduceOperation::name),
            "type": T::DATA_TYPE.name(),
            "elements": count,
            "ranks": ranks,
            "rank": rank.0,
            "ranks_are": if options.is_launched { "processes" } else { "threads" },
        },
        "exact_hash": exact_hash,
        "host_hash": host_hash,
        "nccl_hash": backend_hash,
        "ok": exact_hash == *host_hash,
    }));
    Ok(())
}

/// The hash of this rank's output. A rank that gets no result has its input there.
fn hash<T: Element>(
    communicator: &Communicator,
    collective: Collective<Rank>,
    count: usize,
    of_f32: fn(f32) -> T,
) -> distcollective::Result<String> {
    // From 0.5 to 1.5, other values on each rank, so that the order of a sum shows in its bits.
    let element = |i: usize| {
        let bits = (i as u32).wrapping_mul(0x9e37_79b9).wrapping_add(communicator.rank().0.wrapping_mul(0x85eb_ca6b));
        of_f32(0.5 + (bits.wrapping_mul(bits | 1) >> 8) as f32 / (1 << 24) as f32)
    };
    let input: Vec<T> = (0..count).map(element).collect();
    let mut output = input.clone();
    communicator.collective(collective, Some(&input), Some(&mut output))?;
    let output = distcollective::Buffer::from(output);
    let hash = Sha256::digest(output.as_bytes()?);
    Ok(hash.iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}
