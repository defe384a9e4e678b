//! What a call costs beside its elements: 8 bytes, on one rank and between two threads; the bare
//! collective, the same as a layer of a built engine, and the layer by itself.

use distcollective::context::Bindings;
use distcollective::{
    Buffer, Builder, Communicator, DataType, DistCollective, ExecutionContext, Network, ReduceOperation, Result, Stream,
};
use divan::Bencher;
use micro_bench::Pair;

fn main() {
    divan::main();
}

const MAX: ReduceOperation = ReduceOperation::Max;
const ELEMENTS: i64 = 2;

fn buffer() -> Result<Buffer> {
    Buffer::zeroed(DataType::Float32, [ELEMENTS])
}

fn bare(communicator: Communicator) -> Result<impl FnMut() -> Result<()>> {
    let (x, mut y) = (buffer()?, buffer()?);
    Ok(move || communicator.all_reduce_into(&x, &mut y, MAX))
}

/// The collective as the only layer of an engine, and its tensors.
fn engine(communicator: &Communicator) -> Result<(ExecutionContext, Bindings)> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [ELEMENTS])?;
    let y = network.add(DistCollective::all_reduce(MAX).nb_rank(communicator.world_size()), x)?;
    network.mark_output(y, "y")?;
    let mut context = Builder::new().build(&network)?.create_execution_context()?;
    context.set_communicator(communicator)?;
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", buffer()?)?;
    bindings.bind_output("y", buffer()?)?;
    Ok((context, bindings))
}

fn enqueue(communicator: Communicator) -> Result<impl FnMut() -> Result<()>> {
    let (mut context, bindings) = engine(&communicator)?;
    let (mut bindings, stream) = (Some(bindings), Stream::inline());
    Ok(move || {
        let given = bindings.take().unwrap_or_else(|| context.create_bindings());
        bindings = Some(context.enqueue(given, &stream)?.wait()?);
        Ok(())
    })
}

fn alone() -> Communicator {
    Communicator::in_process(1).expect("one rank").remove(0)
}

#[divan::bench(sample_size = 2000, sample_count = 50)]
fn one_rank_bare(bencher: Bencher) {
    let mut call = bare(alone()).expect("buffers");
    bencher.bench_local(|| call().expect("a call"));
}

#[divan::bench(sample_size = 2000, sample_count = 50)]
fn one_rank_engine_inline(bencher: Bencher) {
    let mut call = enqueue(alone()).expect("an engine");
    bencher.bench_local(|| call().expect("a run"));
}

#[divan::bench(sample_size = 2000, sample_count = 50)]
fn two_ranks_bare(bencher: Bencher) {
    let pair = Pair::new(bare).expect("two ranks");
    let mut call = bare(pair.communicator().clone()).expect("buffers");
    bencher.bench_local(|| call().expect("a call"));
    drop(call);
}

#[divan::bench(sample_size = 2000, sample_count = 50)]
fn two_ranks_engine_inline(bencher: Bencher) {
    let pair = Pair::new(enqueue).expect("two ranks");
    let mut call = enqueue(pair.communicator().clone()).expect("an engine");
    bencher.bench_local(|| call().expect("a run"));
    drop(call);
}
