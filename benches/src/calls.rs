//! What a call costs beside its elements: 8 bytes, on one rank and between two threads; the bare
//! collective, and the same as the only layer of an engine on the inline stream.

use distcollective::collective::Collective;
use distcollective::context::Bindings;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, ExecutionContext, Network, ReduceOperation, Result, Stream,
};
use serde_json::json;

use crate::jobs::beside_peer;
use crate::time::median_micros;

const SAMPLES: u32 = 50;
const CALLS: u32 = 2000;
const MAX: ReduceOperation = ReduceOperation::Max;
const ELEMENTS: i64 = 2;

/// Something that makes one call.
type Call = Box<dyn FnMut() -> Result<()>>;

/// Makes the call of a rank.
type Make = fn(Communicator) -> Result<Call>;

/// Prints the medians of all ways.
pub fn measure() -> Result<()> {
    let ways: [(&str, Make); 2] = [("bare", bare), ("engine", engine)];
    for (way, make) in ways {
        let mut alone = make(Communicator::builder().in_process(1)?.remove(0))?;
        let alone = median_micros(SAMPLES, CALLS, &mut alone)?;
        let pair = beside_peer(make, |call| median_micros(SAMPLES, CALLS, call))?;
        for (ranks, time) in [(1, alone), (2, pair)] {
            println!("{}", json!({ "benchmark": "calls", "way": way, "ranks": ranks, "ns": (time * 1e3).round() }));
        }
    }
    Ok(())
}

fn buffer() -> Result<Buffer> {
    Buffer::zeroed(DataType::Float32, [ELEMENTS])
}

fn bare(communicator: Communicator) -> Result<Call> {
    let (x, mut y) = (buffer()?, buffer()?);
    let max = Collective::AllReduce { reduce_op: MAX };
    Ok(Box::new(move || communicator.collective(max, Some(&x), Some(&mut y))))
}

fn engine(communicator: Communicator) -> Result<Call> {
    let (mut context, bindings) = context(&communicator)?;
    let (mut bindings, stream) = (Some(bindings), Stream::inline());
    Ok(Box::new(move || {
        let given = bindings.take().unwrap_or_else(|| context.create_bindings());
        bindings = Some(context.enqueue(given, &stream)?.wait()?);
        Ok(())
    }))
}

/// The collective as the only layer of an engine, and its tensors.
fn context(communicator: &Communicator) -> Result<(ExecutionContext, Bindings)> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [ELEMENTS])?;
    let y = network.add(DistCollective::all_reduce(MAX).nb_rank(communicator.world_size()), x)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", buffer()?)?;
    bindings.bind_output("y", buffer()?)?;
    Ok((context, bindings))
}
