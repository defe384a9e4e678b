//! How time and memory grow on the host backend: with the number of ranks, as threads and as
//! processes, with the size of a call, with the number of layers of a network, and with the number
//! of groups. Times are medians in microseconds.

mod calls;
mod layers;
mod memory;

use clap::Parser;
use distcollective::{Communicator, Environment, Result};

use crate::jobs::run_as_job;
use crate::time::timed;

/// Measures how time and memory grow with ranks, sizes, layers and groups.
#[derive(Parser)]
pub struct Arguments {
    /// The most ranks, as threads and as processes
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// The bytes of the largest call
    #[arg(long, default_value_t = 4 << 20, value_parser = clap::value_parser!(u32).range(8..))]
    bytes: u32,
    /// The layers of the largest network
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(10..))]
    layers: u32,
    /// The most groups
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    groups: u32,
}

/// What a process of a job does.
fn run_rank(arguments: &Arguments) -> Result<()> {
    let before = memory::of_this_process()?;
    let (connect, environment) = timed(Environment::from_env)?;
    calls::measure("processes", environment.communicator(), arguments, before, connect)?;
    environment.finalize()
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    layers::measure(arguments)?;
    for ranks in 1..=arguments.ranks {
        let (connect, _) = timed(|| Communicator::builder().in_process(ranks))?;
        let before = memory::of_this_process()?;
        Communicator::spawn(ranks, |communicator| {
            calls::measure("threads", &communicator, arguments, before, connect)
        })?;
        run_as_job(ranks)?;
    }
    Ok(())
}

/// Measures in this process, or, if a launcher started it, as the rank that it is.
pub fn measure(arguments: &Arguments) -> Result<()> {
    if Environment::detect_launcher().is_some() { run_rank(arguments) } else { measure_all(arguments) }
}
