//! How long a network takes to describe, to build, and to write and read as a plan. The time for
//! each layer should stay the same from 10 to 100,000 layers. It prints one JSON object per line.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use distcollective::{Builder, DataType, DistCollective, Engine, Network, ReduceOperation, Result};
use serde_json::json;

const USAGE: &str = "\
usage: network_bench [--most N]

  --most N   the layers of the largest network (100000)";

/// The layers of the smallest network. Each further one has ten times as many.
const LEAST: usize = 10;

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

    fn describe(self, layers: usize) -> Result<Network> {
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

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let most = match arguments.as_slice() {
        [] => Some(100_000),
        [option, number] if option == "--most" => number.parse().ok(),
        _ => None,
    };
    let Some(most) = most else {
        eprintln!("{USAGE}");
        return ExitCode::FAILURE;
    };
    for kind in [Kind::Chain, Kind::Wide] {
        for layers in std::iter::successors(Some(LEAST), |layers| layers.checked_mul(10)).take_while(|&l| l <= most) {
            if let Err(error) = measure(kind, layers) {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        }
    }
    ExitCode::SUCCESS
}

/// Measures one network, and prints the result.
fn measure(kind: Kind, layers: usize) -> Result<()> {
    let (describe, network) = timed(|| kind.describe(layers))?;
    let (build, engine) = timed(|| Builder::new().build(&network))?;
    let (write, plan) = timed(|| engine.serialize())?;
    let (read, _) = timed(|| Engine::deserialize(&plan))?;
    let micros = |time: Duration| (time.as_secs_f64() * 1e7).round() / 10.0;
    let result = json!({
        "benchmark": "network", "kind": kind.name(), "layers": layers, "plan_bytes": plan.len(),
        "describe_us": micros(describe), "build_us": micros(build), "write_us": micros(write), "read_us": micros(read),
        "memory": engine.inspect().to_json()["memory"],
    });
    println!("{result}");
    Ok(())
}

/// Does something, and says how long that took.
fn timed<T>(body: impl FnOnce() -> Result<T>) -> Result<(Duration, T)> {
    let start = Instant::now();
    let value = body()?;
    Ok((start.elapsed(), value))
}
