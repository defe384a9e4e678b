//! How time and memory grow on the host backend: with the number of ranks, as threads and as
//! processes, with the size of a call, with the number of layers of a network, and with the number
//! of groups. It prints one JSON object per line; times are medians in microseconds.

mod calls;
#[path = "../../shared/jobs.rs"]
mod jobs;
mod layers;
mod memory;

use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use distcollective::{Communicator, Environment, Result};
use jobs::{exit_code, run_as_job};

/// Measures how time and memory grow with ranks, sizes, layers and groups.
#[derive(Parser, Clone)]
#[command(name = "growth_bench")]
struct Arguments {
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

/// Numbers from `least` to `most`, each `factor` times the one before.
fn powers(least: u32, most: u32, factor: u32) -> impl Iterator<Item = u32> {
    std::iter::successors(Some(least), move |number| number.checked_mul(factor)).take_while(move |n| *n <= most)
}

/// Does something, and says how many microseconds that took.
fn timed<T>(body: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
    let start = Instant::now();
    let value = body()?;
    Ok((micros(start, 1), value))
}

/// The microseconds of each of `count` calls since `start`.
fn micros(start: Instant, count: u32) -> f64 {
    (start.elapsed().as_secs_f64() * 1e9 / f64::from(count)).round() / 1e3
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
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
        let before = memory::of_this_process()?;
        let (connect, communicators) = timed(|| Communicator::in_process(ranks))?;
        Communicator::spawn_on(communicators, |communicator| {
            calls::measure("threads", &communicator, arguments, before, connect)
        })?;
        run_as_job(ranks)?;
    }
    Ok(())
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    exit_code(if Environment::detect_launcher().is_some() { run_rank(&arguments) } else { measure_all(&arguments) })
}
