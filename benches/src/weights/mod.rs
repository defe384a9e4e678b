//! How fast the weights of a safetensors file in the page cache reach the processes of one machine:
//! the bytes that all receivers together get per second, into tensors that they have. Beside it
//! stand a copy by two threads, which is what the memory allows, and gloo's loop over tensors. GB/s
//! are 10^9 bytes per second.

mod copy;

use std::path::{Path, PathBuf};
use std::time::Instant;

use clap::Parser;
use distcollective::tensor_dict::BroadcastOptions;
use distcollective::{Buffer, DataType, Environment, Error, ErrorKind, Result, TensorDict};
use serde_json::json;

use crate::jobs::{list, run_as_job, run_script};

/// Measures the broadcast of a safetensors file between processes.
#[derive(Parser)]
pub struct Arguments {
    /// The size of the file, in MiB
    #[arg(long, default_value_t = 2048)]
    megabytes: usize,
    /// The number of tensors
    #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..))]
    tensors: u32,
    /// The numbers of processes
    #[arg(long, value_delimiter = ',', default_value = "2,4")]
    ranks: Vec<u32>,
    /// The number of measured broadcasts
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Where the file is written; it is removed at the end
    #[arg(long, default_value = "weights.safetensors")]
    file: PathBuf,
    /// The Python that has torch, for gloo; without it gloo is not measured
    #[arg(long)]
    python: Option<PathBuf>,
}

/// The size of tensor `index`: every third one is small, as biases and norms are.
fn element_counts(arguments: &Arguments) -> Vec<usize> {
    let (count, total) = (arguments.tensors as usize, (arguments.megabytes << 20) / 2);
    const SMALL: usize = 4096;
    let is_small = |index: usize| index % 3 == 2;
    let large = (0..count).filter(|&index| !is_small(index)).count();
    let rest = total.saturating_sub((count - large) * SMALL) / large;
    (0..count).map(|index| if is_small(index) { SMALL } else { rest }).collect()
}

fn write_file(arguments: &Arguments) -> Result<u64> {
    let mut dict = TensorDict::new();
    for (index, count) in element_counts(arguments).into_iter().enumerate() {
        let mut tensor = Buffer::zeroed(DataType::Bfloat16, [count as i64])?;
        let mut state = index as u64 + 1;
        for word in tensor.as_mut_bytes()?.chunks_mut(8) {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            word.copy_from_slice(&state.to_le_bytes()[..word.len()]);
        }
        dict.insert(format!("layers.{index}.weight"), tensor);
    }
    dict.save(&arguments.file)?;
    Ok(dict.byte_len())
}

fn gigabytes_per_second(bytes: u64, seconds: f64) -> f64 {
    (bytes as f64 / seconds / 1e7).round() / 100.0
}

/// What a process of the job does. Rank 0 prints the result.
fn run_rank(arguments: &Arguments) -> Result<()> {
    let environment = Environment::from_env()?;
    let communicator = environment.communicator();
    // SAFETY: the program that wrote the file removes it at the end, and changes nothing in it.
    let map = || unsafe { TensorDict::map(&arguments.file) };
    let (file, options) = (map()?, BroadcastOptions::new());
    let mut dict = if environment.is_master() { map()? } else { TensorDict::new() };
    // The receivers get their tensors.
    communicator.broadcast_tensor_dict(&mut dict, &options)?;
    let mut times = Vec::new();
    for _ in 0..arguments.rounds {
        communicator.barrier()?;
        let start = Instant::now();
        communicator.broadcast_tensor_dict(&mut dict, &options)?;
        communicator.barrier()?;
        times.push(start.elapsed().as_secs_f64());
    }
    for (name, tensor) in file.iter() {
        let own = dict.get(name).ok_or_else(|| Error::new(ErrorKind::System, format!("{name} has not come")))?;
        if own.as_bytes()? != tensor.as_bytes()? {
            return Err(Error::new(ErrorKind::System, format!("{name} differs from the file")));
        }
    }
    times.sort_by(f64::total_cmp);
    let n = environment.world_size();
    let bytes = file.byte_len() * u64::from(n - 1);
    let rate = |time: f64| gigabytes_per_second(bytes, time);
    environment.print_on_master(format_args!(
        "{}",
        json!({
            "benchmark": "weights", "implementation": "distcollective", "ranks": n, "bytes": file.byte_len(),
            "tensors": file.len(), "received_gb_per_s": rate(times[times.len() / 2]),
            "slowest": rate(times[times.len() - 1]), "fastest": rate(times[0]),
        })
    ));
    environment.finalize()
}

/// Lets gloo broadcast tensors of the same sizes.
fn measure_gloo(arguments: &Arguments, python: &Path, ranks: u32) -> Result<()> {
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/gloo_weights.py");
    let counts = list(&element_counts(arguments));
    run_script(python, script, [ranks.to_string(), arguments.rounds.to_string(), counts])
}

fn measure_all(arguments: &Arguments) -> Result<()> {
    let bytes = write_file(arguments)?;
    println!("{}", json!({ "benchmark": "weights", "file_bytes": bytes, "tensors": arguments.tensors }));
    for &ranks in &arguments.ranks {
        let before = copy::two_threads();
        run_as_job(ranks)?;
        let copies = [before, copy::two_threads()];
        println!("{}", json!({ "benchmark": "copy", "threads": 2, "bytes": copy::BYTES, "gb_per_s": copies }));
        if let Some(python) = &arguments.python {
            measure_gloo(arguments, python, ranks)?;
        }
    }
    Ok(())
}

/// Starts the jobs, or, if a launcher started this process, measures as the rank that it is.
pub fn measure(arguments: &Arguments) -> Result<()> {
    if Environment::detect_launcher().is_some() {
        return run_rank(arguments);
    }
    let measured = measure_all(arguments);
    // It may not be there after an error.
    let _ = std::fs::remove_file(&arguments.file);
    measured
}
