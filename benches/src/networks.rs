//! How long a network takes to describe, to build, and to write and read as a plan. The time for
//! each layer should stay the same from 10 to 100,000 layers.

use clap::Parser;
use distcollective::{DataType, DistCollective, Engine, Network, ReduceOperation, Result};
use serde_json::json;

use crate::time::{powers, timed};

/// Measures networks of 10 to so many layers.
#[derive(Parser)]
pub struct Arguments {
    /// The layers of the largest network
    #[arg(long, default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(10..))]
    most: u32,
}

/// The layers of the smallest network. Each further one has ten times as many.
const LEAST: u32 = 10;

/// How a network's layers hang together.
#[derive(Clone, Copy)]
enum Kind {
    /// Each layer reads the one before: few tensors are in use at the same time.
    Chain,
    /// Half of the layers read the input, and then the others read one of them each: half of the
    /// tensors are in use at the same time.
    Wide,
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Chain => "chain",
            Kind::Wide => "wide",
        }
    }

    fn describe(self, layers: u32) -> Result<Network> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [64])?;
        let sum = || DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
        match self {
            Kind::Chain => {
                let mut last = x;
                for layer in 0..layers {
                    last = if layer % 2 == 0 {
                        network.add(sum(), last)?
                    } else {
                        network.add_cast(last, DataType::Float32)?
                    };
                }
                network.mark_output(last, "y")?;
            }
            Kind::Wide => {
                let halves =
                    (0..layers / 2).map(|_| network.add_cast(x, DataType::Float16)).collect::<Result<Vec<_>>>()?;
                for (number, half) in halves.into_iter().enumerate() {
                    let y = network.add_cast(half, DataType::Int8)?;
                    network.mark_output(y, &format!("y{number}"))?;
                }
            }
        }
        Ok(network)
    }
}

/// Measures both kinds of networks of all sizes.
pub fn measure_all(arguments: &Arguments) -> Result<()> {
    for kind in [Kind::Chain, Kind::Wide] {
        powers(LEAST, arguments.most, 10).try_for_each(|layers| measure(kind, layers))?;
    }
    Ok(())
}

/// Measures one network, and prints the result.
fn measure(kind: Kind, layers: u32) -> Result<()> {
    let (describe, network) = timed(|| kind.describe(layers))?;
    let (build, engine) = timed(|| network.build())?;
    let (write, plan) = timed(|| engine.serialize())?;
    let (read, _) = timed(|| Engine::deserialize(&plan))?;
    let result = json!({
        "benchmark": "network", "kind": kind.name(), "layers": layers, "plan_bytes": plan.len(),
        "describe_us": describe, "build_us": build, "write_us": write, "read_us": read,
        "memory": engine.inspect().to_json()["memory"],
    });
    println!("{result}");
    Ok(())
}
