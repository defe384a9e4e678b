//! Benchmarks on a GPU: the time that this library adds to the bare calls of CUDA and NCCL, the
//! bandwidth of its kernels compared with a copy, and whether it frees everything.
//! `tools/gpu-check` runs them. The field `ok` says whether a figure is within its limit; the exit
//! status does not.

mod calls;
mod cuda;
mod exact;
mod kernels;
mod leaks;
mod measure;
mod nccl;
mod rank;

use std::time::Duration;

use clap::{Parser, ValueEnum};
use distcollective::comm::BackendKind;
use serde_json::{Value, json};

use crate::Result;

/// How long a rank waits for another.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What is measured on a GPU.
#[derive(Clone, Copy, ValueEnum)]
enum Benchmark {
    /// Every collective: NCCL's own call, eager, in an engine, in a graph
    Calls,
    /// The hashes of results in exact mode, beside those of the host
    Exact,
    /// The bandwidth of kernels, compared with a copy on the device
    Kernels,
    /// Memory after creating and dropping everything again and again
    Leaks,
}

/// Measures what the library costs on a GPU, beside the bare calls of CUDA and NCCL.
#[derive(Parser)]
pub struct Options {
    #[arg(value_enum)]
    benchmark: Benchmark,
    /// The ranks of calls and exact, which are threads
    #[arg(long, default_value_t = 1)]
    ranks: u32,
    /// This process is a rank of calls or exact, and a launcher has started it
    #[arg(long = "launched", conflicts_with = "ranks")]
    is_launched: bool,
    /// The rounds of leaks
    #[arg(long, default_value_t = 200)]
    rounds: u32,
    /// About how long calls takes, and after which time leaks starts no further round
    #[arg(long = "seconds", default_value = "60", value_parser = |text: &str| text.parse().map(Duration::from_secs))]
    time: Duration,
    /// CUDA and NCCL are those of benches/no_op: calls makes only an all_reduce, beside 8 groups,
    /// and does not look at the result
    #[arg(long = "no-op")]
    is_no_op: bool,
    /// Few repetitions and small tensors: tests that it works, not how fast
    #[arg(long)]
    quick: bool,
}

/// Measures, if there is a GPU.
pub fn measure(options: &Options) -> Result<()> {
    // A launched rank learns it from its environment.
    if !options.is_launched
        && let Err(error) = BackendKind::Nccl.resolve(options.ranks)
    {
        let name = options.benchmark.to_possible_value().map(|value| value.get_name().to_owned());
        print(json!({"benchmark": name, "ranks": options.ranks, "skipped": error.to_string()}));
        return Ok(());
    }
    match options.benchmark {
        Benchmark::Calls => calls::run(options),
        Benchmark::Exact => exact::run(options),
        Benchmark::Kernels => kernels::run(options),
        Benchmark::Leaks => leaks::run(options),
    }
}

/// Prints one result at once, so that it is not lost if the next benchmark hangs.
fn print(result: Value) {
    println!("{result}");
}
