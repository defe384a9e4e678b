//! Networks of many layers: building, plan bytes, a run, and memory.

use std::time::Instant;

use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Network, ReduceOperation, Result, Stream,
};
use serde_json::json;

use super::Arguments;
use super::memory::of_this_process;
use crate::time::{median, micros, powers, timed};

const RUNS: usize = 15;
const ELEMENTS: i64 = 2;

/// A chain of all_reduces among `ranks`, each of 8 bytes.
fn chain(layers: u32, ranks: u32) -> Result<Network> {
    let mut network = Network::new();
    let mut last = network.add_input("x", DataType::Float32, [ELEMENTS])?;
    for _ in 0..layers {
        last = network.add(DistCollective::all_reduce(ReduceOperation::Max).nb_rank(ranks), last)?;
    }
    network.mark_output(last, "y")?;
    Ok(network)
}

/// Networks on one rank, where no layer waits, and on two threads.
pub fn measure(arguments: &Arguments) -> Result<()> {
    for ranks in [1, 2] {
        for layers in powers(10, arguments.layers, 10) {
            let before = of_this_process()?;
            let (describe, network) = timed(|| chain(layers, ranks))?;
            let (build, engine) = timed(|| network.build())?;
            let memory = of_this_process()? - before;
            let (write, plan) = timed(|| engine.serialize())?;
            let (read, _) = timed(|| Engine::deserialize(&plan))?;
            let results = Communicator::spawn(ranks, |communicator| run(&engine, &communicator))?;
            let [set_communicator, enqueue] = results[0];
            let per_layer = |time: f64| (time * 1e3 / f64::from(layers)).round() / 1e3;
            println!(
                "{}",
                json!({
                    "benchmark": "layers", "ranks": ranks, "layers": layers, "plan_bytes": plan.len(),
                    "describe_us": describe, "build_us": build, "write_us": write, "read_us": read,
                    "set_communicator_us": set_communicator, "enqueue_us": enqueue,
                    "enqueue_us_per_layer": per_layer(enqueue), "build_us_per_layer": per_layer(build),
                    "private_bytes": memory.private,
                })
            );
        }
    }
    Ok(())
}

/// The times of `set_communicator` and of a run on the inline stream.
fn run(engine: &Engine, communicator: &Communicator) -> Result<[f64; 2]> {
    let mut context = engine.create_execution_context()?;
    let (set_communicator, ()) = timed(|| context.set_communicator(communicator))?;
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::zeroed(DataType::Float32, [ELEMENTS])?)?;
    bindings.bind_output("y", Buffer::zeroed(DataType::Float32, [ELEMENTS])?)?;
    let stream = Stream::inline();
    let mut times = Vec::new();
    for _ in 0..RUNS {
        communicator.barrier()?;
        let start = Instant::now();
        bindings = context.enqueue(bindings, &stream)?.wait()?;
        times.push(micros(start, 1));
    }
    Ok([set_communicator, median(times)])
}
