//! How far an asynchronous all_reduce and computation overlap on the CPU: each rank, a process,
//! computes alone, waits for an all_reduce alone, and does both at once. The computation is about
//! as long as the all_reduce. It prints medians of rank 0:
//!
//! - `compute_ms`, `all_reduce_ms`: each alone; `both_ms`: both at once, until both have ended.
//! - `slowdown`: how many times longer the computation takes while the all_reduce goes on.
//! - `hidden`: the part of the all_reduce's time that costs nothing,
//!   `(compute + all_reduce - both) / all_reduce`. It is 1 if all is hidden, 0 if nothing is, and
//!   negative if both at once take longer than one after the other.

mod compute;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::Parser;
use compute::Computation;
use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::{Buffer, Communicator, DataType, Environment, Error, ErrorKind, ReduceOperation, Result};
use serde_json::json;

use crate::jobs::{list, run_as_job, run_script};
use crate::time::median;

/// Measures an asynchronous all_reduce beside computation.
#[derive(Parser)]
pub struct Arguments {
    /// The lengths of the all_reduce, in KiB
    #[arg(long, value_delimiter = ',', default_value = "1024,16384")]
    kilobytes: Vec<usize>,
    /// The numbers of processes
    #[arg(long, value_delimiter = ',', default_value = "2")]
    ranks: Vec<u32>,
    /// The number of measured rounds
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// The Python that has torch, for gloo; without it gloo is not measured
    #[arg(long)]
    python: Option<PathBuf>,
}

fn milliseconds(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// One length on one rank.
struct Measurement<'a> {
    communicator: &'a Communicator,
    /// `None` while the work has it.
    tensor: Option<Buffer>,
    rounds: u32,
}

impl Measurement<'_> {
    /// Starts the all_reduce, computes meanwhile, and waits. Gives the time of the computation and
    /// that of both.
    fn both(&mut self, work: &mut Computation, steps: u32) -> Result<[f64; 2]> {
        let tensor = self.tensor.take().ok_or_else(|| Error::new(ErrorKind::System, "the tensor is lost"))?;
        self.communicator.barrier()?;
        let start = Instant::now();
        let (max, stream) = (Collective::AllReduce { reduce_op: ReduceOperation::Max }, self.communicator.stream()?);
        let all_reduce = self.communicator.collective_async(max, Operands::in_place(tensor), &stream)?;
        work.run(steps);
        let computed = milliseconds(start.elapsed());
        self.tensor = all_reduce.wait()?.output;
        Ok([computed, milliseconds(start.elapsed())])
    }

    /// The median of some rounds in which each rank computes so many steps.
    fn median_of_both(&mut self, work: &mut Computation, steps: u32) -> Result<[f64; 2]> {
        let times: Vec<[f64; 2]> = (0..self.rounds).map(|_| self.both(work, steps)).collect::<Result<_>>()?;
        Ok([0, 1].map(|which| median(times.iter().map(|times| times[which]).collect())))
    }

    fn compute_alone(&self, work: &mut Computation, steps: u32) -> Result<f64> {
        let mut times = Vec::new();
        for _ in 0..self.rounds {
            self.communicator.barrier()?;
            let start = Instant::now();
            work.run(steps);
            times.push(milliseconds(start.elapsed()));
        }
        Ok(median(times))
    }
}

/// What a process of the job does. Rank 0 prints the results.
fn run_rank(arguments: &Arguments) -> Result<()> {
    let environment = Environment::from_env()?;
    let communicator = environment.communicator();
    for &kilobytes in &arguments.kilobytes {
        let tensor = Buffer::zeroed(DataType::Float32, [(kilobytes << 10) as i64 / 4])?;
        let mut measurement = Measurement { communicator, tensor: Some(tensor), rounds: arguments.rounds };
        for mut work in [Computation::in_cache(), Computation::in_memory()] {
            let [_, all_reduce] = measurement.median_of_both(&mut work, 0)?;
            // Every rank computes as many steps as fit into rank 0's all_reduce.
            let step = measurement.compute_alone(&mut work, 1)?;
            let mut steps = [(all_reduce / step).ceil() as i64];
            communicator.broadcast(&mut steps, 0)?;
            let steps = steps[0].clamp(1, 1_000_000) as u32;
            let compute = measurement.compute_alone(&mut work, steps)?;
            let [beside, both] = measurement.median_of_both(&mut work, steps)?;
            environment.print_on_master(format_args!(
                "{}",
                json!({
                    "benchmark": "overlap", "implementation": "distcollective", "ranks": environment.world_size(),
                    "bytes": kilobytes << 10, "computation": work.name(), "compute_ms": compute,
                    "all_reduce_ms": all_reduce, "both_ms": both, "slowdown": beside / compute,
                    "hidden": (compute + all_reduce - both) / all_reduce,
                })
            ));
        }
    }
    environment.finalize()
}

/// Lets gloo do the same.
fn measure_gloo(arguments: &Arguments, python: &Path, ranks: u32) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gloo_overlap.py");
    run_script(python, script, [ranks.to_string(), arguments.rounds.to_string(), list(&arguments.kilobytes)])
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    println!("{}", json!({ "benchmark": "overlap", "cores": cores, "rounds": arguments.rounds }));
    for &ranks in &arguments.ranks {
        run_as_job(ranks)?;
        if let Some(python) = &arguments.python {
            measure_gloo(arguments, python, ranks)?;
        }
    }
    Ok(())
}

/// Starts the jobs, or, if a launcher started this process, measures as the rank that it is.
pub fn measure(arguments: &Arguments) -> Result<()> {
    if Environment::detect_launcher().is_some() { run_rank(arguments) } else { measure_all(arguments) }
}
