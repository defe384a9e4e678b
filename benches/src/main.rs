//! The benchmarks of distcollective. They print one JSON object per line.

mod calls;
mod gpu;
mod growth;
mod jobs;
mod networks;
mod overlap;
mod time;
mod weights;

use std::process::ExitCode;

use clap::Parser;

/// Why a benchmark could not run.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// Measures distcollective. Figures mean something if Cargo's profile is `dist`.
#[derive(Parser)]
#[command(name = "benches")]
enum Benchmark {
    Calls,
    Gpu(gpu::Options),
    Growth(growth::Arguments),
    Networks(networks::Arguments),
    Overlap(overlap::Arguments),
    Weights(weights::Arguments),
}

fn main() -> ExitCode {
    let result = match Benchmark::parse() {
        Benchmark::Calls => calls::measure().map_err(Error::from),
        Benchmark::Gpu(options) => gpu::measure(&options),
        Benchmark::Growth(arguments) => growth::measure(&arguments).map_err(Error::from),
        Benchmark::Networks(arguments) => networks::measure_all(&arguments).map_err(Error::from),
        Benchmark::Overlap(arguments) => overlap::measure(&arguments).map_err(Error::from),
        Benchmark::Weights(arguments) => weights::measure(&arguments).map_err(Error::from),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
