//! Four ranks as a mesh of 2×2, with a layer of its own. The guide "From an empty folder to a mesh"
//! explains it part by part.
//!
//! ```text
//! mesh build && mesh threads
//! distcollective launch -n 4 -- mesh
//! ```

use distcollective::collective::Partition;
use distcollective::network::{Plugin, PluginCall, PluginRegistry};
use distcollective::{
    Communicator, DataType, DistCollective, Engine, Environment, Network, ReduceOperation, Result, inputs, outputs,
};

/// Sets what is negative to 0.
#[derive(Debug)]
struct Relu;

impl Plugin for Relu {
    fn type_name(&self) -> &str {
        "relu"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let (x, mut y) = (call.input(0)?, call.output(0)?);
        for (x, y) in x.as_slice::<f32>()?.iter().zip(y.as_mut_slice::<f32>()?) {
            *y = x.max(0.0);
        }
        Ok(())
    }

    fn serialize(&self) -> Result<Vec<u8>> {
        Ok(Vec::new())
    }
}

fn build() -> Result<Engine> {
    let rows = Partition::new([[0, 1], [2, 3]]);
    let columns = Partition::new([[0, 2], [1, 3]]);

    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1, 2])?;
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).partition(rows).named("sum of a row");
    let sum = network.add(sum, x)?;
    let relu = network.add_plugin("relu", Relu, &[sum])?;
    let mean = DistCollective::all_reduce(ReduceOperation::Avg).partition(columns).named("mean of a column");
    let mean = network.add(mean, relu)?;
    network.mark_output(mean, "y")?;

    // The least shape, the usual one, and the greatest.
    network.set_optimization_profile(x, [1, 2], [1, 2], [1, 2])?;
    let many = network.add_optimization_profile()?;
    network.set_profile_shapes(many, x, [2, 2], [32, 2], [64, 2])?;
    network.build()
}

fn load() -> Result<Engine> {
    let mut plugins = PluginRegistry::new();
    plugins.register("relu", "1", |_| Ok(Relu))?;
    Engine::load_with("mesh.plan", &plugins)
}

/// Runs one row, and then three, on one rank.
fn run(engine: &Engine, communicator: &Communicator) -> Result<String> {
    let rank = communicator.rank().0 as f32;
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?; // ranks compare their plans

    let mut one = [0.0f32; 2];
    context.set_input_shape("x", [1, 2])?;
    context.execute(inputs!["x" => &[rank, -rank]], outputs!["y" => &mut one])?;

    let mut three = [0.0f32; 6];
    context.set_optimization_profile(1)?;
    context.set_input_shape("x", [3, 2])?;
    context.execute(inputs!["x" => &[rank; 6]], outputs!["y" => &mut three])?;
    Ok(format!("one row: {one:?}; three rows: {three:?}"))
}

fn main() -> Result<()> {
    match std::env::args().nth(1).as_deref() {
        Some("build") => build()?.save("mesh.plan"),
        Some("threads") => {
            let engine = load()?;
            let results = Communicator::spawn(4, |communicator| run(&engine, &communicator))?;
            results.iter().for_each(|result| println!("{result}"));
            Ok(())
        }
        _ => {
            let environment = Environment::from_env()?;
            println!("{}", run(&load()?, environment.communicator())?);
            environment.finalize()
        }
    }
}
