//! Benchmarks on a GPU: the time that this library adds to the bare calls of CUDA and NCCL, the
//! bandwidth of its kernels compared with a copy, and whether it frees everything.
//! `tools/gpu-check` runs them. It prints one JSON object per line. The field `ok` says whether a
//! figure is within its limit; the exit status does not.

mod calls;
mod cuda;
mod exact;
mod kernels;
mod leaks;
mod measure;
mod nccl;
mod rank;

use std::process::ExitCode;
use std::time::Duration;

use distcollective::Communicator;
use distcollective::comm::BackendKind;
use serde_json::{Value, json};

/// Why a benchmark could not run.
type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T> = std::result::Result<T, Error>;

/// How long a rank waits for another.
const TIMEOUT: Duration = Duration::from_secs(60);

const USAGE: &str = "\
usage: gpu_bench BENCHMARK [--ranks N | --launched] [--rounds N] [--seconds N] [--quick]

benchmarks:
  calls     every collective: NCCL's own call, eager, in an engine, in a graph
  exact     the hashes of results in exact mode, beside those of the host
  kernels   the bandwidth of kernels, compared with a copy on the device
  leaks     memory after creating and dropping everything again and again

  --ranks N     the ranks of calls and exact, which are threads (1)
  --launched    this process is a rank of calls or exact, and a launcher has started it
  --rounds N    the rounds of leaks (200)
  --seconds N   about how long calls takes, and after which time leaks starts no further round (60)
  --quick       few repetitions and small tensors: tests that it works, not how fast

example: gpu_bench calls --ranks 2";

/// The options of the command line.
struct Options {
    ranks: u32,
    is_launched: bool,
    rounds: u32,
    time: Duration,
    quick: bool,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<()> {
    let (name, rest) = arguments.split_first().ok_or(USAGE)?;
    let mut options =
        Options { ranks: 1, is_launched: false, rounds: 200, time: Duration::from_secs(60), quick: false };
    let mut rest = rest.iter();
    while let Some(option) = rest.next() {
        let mut number = || rest.next().ok_or(USAGE)?.parse::<u32>().map_err(|_| USAGE);
        match option.as_str() {
            "--ranks" => options.ranks = number()?,
            "--launched" => options.is_launched = true,
            "--rounds" => options.rounds = number()?,
            "--seconds" => options.time = Duration::from_secs(number()?.into()),
            "--quick" => options.quick = true,
            _ => return Err(USAGE.into()),
        }
    }
    // A launched rank learns it from its environment.
    if !options.is_launched
        && let Err(error) = Communicator::check_backend(BackendKind::Nccl, options.ranks)
    {
        print(json!({"benchmark": name, "ranks": options.ranks, "skipped": error.to_string()}));
        return Ok(());
    }
    match name.as_str() {
        "calls" => calls::run(&options),
        "exact" => exact::run(&options),
        "kernels" => kernels::run(&options),
        "leaks" => leaks::run(&options),
        _ => Err(USAGE.into()),
    }
}

/// Prints one result at once, so that it is not lost if the next benchmark hangs.
fn print(result: Value) {
    println!("{result}");
}
