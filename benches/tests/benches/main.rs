//! The benchmarks run to their end. The figures themselves mean nothing here.

mod gpu;
mod growth;
mod networks;
mod overlap;
mod weights;

use std::process::Command;

use test_support::timed;

fn benchmark(name: &str) -> Command {
    let mut command = timed(env!("CARGO_BIN_EXE_benches"));
    command.arg(name);
    command
}
