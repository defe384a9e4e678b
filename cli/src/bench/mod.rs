//! `distcollective bench`: the speed of collectives, and whether their results are right.

mod measure;
mod options;
mod report;
mod values;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use distcollective::comm::BackendKind;
use distcollective::tensor::Dims;
use distcollective::{
    CollectiveOperation, Communicator, DataType, Determinism, DistCollectiveLayer, Environment, Rank, ReduceOperation,
    WireType,
};
use distcollective_launch::{Job, Outcome};
use serde_json::Value;

use crate::launch::{Binding, Output, Prefix, job_failure};
use crate::names;
use crate::output::{CLOSED, Ended, Failure};
use crate::plot::Plot;
use measure::BATCH_TIME;
use options::{Bench, Format, Timing};

/// Measures collectives over a range of sizes, out of place and in place, and checks every result.
///
/// Ranks are threads of this process; with --processes they are processes that it starts. Under a
/// launcher this process is one of the launcher's ranks. Rank 0 prints.
///
/// The size is that of the whole tensor: the larger of input and output if one is a block of the
/// other. The count is the number of elements in a rank's block: all of them for all_reduce,
/// broadcast and reduce, one n-th for the others. Sizes are rounded down to whole blocks; sizes
/// with less than one element for each rank are skipped.
///
/// A batch is calls back to back, which begin after a barrier; its time is the mean of its calls on
/// the slowest rank. The time shown is the median of the batches. Batches out of place and in place
/// alternate. With --dirty each call is timed by itself, after a barrier. algbw is size / time.
/// busbw is algbw times a factor: 2(n-1)/n for all_reduce; (n-1)/n for all_gather, reduce_scatter,
/// all_to_all, gather and scatter; 1 for broadcast and reduce. These are the definitions of
/// nccl-tests (PERFORMANCE.md; for gather and scatter its code). GB/s are 10^9 bytes per second.
///
/// #wrong is the number of elements, on all ranks, that differ from the exact result in any bit. If
/// there are any, the exit code is 1.
///
/// CSV and JSON have more columns: the calls in a batch, and the shortest and the longest batch.
/// What is null in JSON is N/A in CSV.
///
/// --points prints a line for each size, as other programs' benchmarks do whose figures --plot can
/// show with --peers: label,ranks,operation,bytes,median,min,max,batches,iterations. Times are in
/// microseconds, out of place. The operation of a benchmark with --barrier ends with _bar. Bytes
/// are those of what a rank has to itself: its input, or for scatter its output. --min-bytes and
/// --max-bytes are then such bytes too.
///
/// Example: distcollective bench --op all_gather -n 4 --max-bytes 64M
#[derive(clap::Args)]
pub struct Arguments {
    /// The operations, separated by commas
    #[arg(long, default_value = "all_reduce", value_delimiter = ',', value_parser = names::operations())]
    op: Vec<Operations>,
    /// The reduction, for operations that reduce
    #[arg(long, default_value = "sum", value_parser = names::reduce_operation())]
    reduce_op: ReduceOperation,
    /// The root, for operations that have one
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=65535))]
    root: u32,
    /// The element type
    #[arg(long, default_value = "float32", value_parser = names::data_type())]
    dtype: DataType,
    /// The type in which float32 elements travel: half of the bytes, rounded
    #[arg(long, value_parser = names::wire_type())]
    wire: Option<WireType>,
    /// The number of ranks: 2 unless given; under a launcher, the launcher's
    #[arg(short, long = "ranks", value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: Option<u32>,
    /// Makes the ranks processes instead of threads
    #[arg(long)]
    processes: bool,
    /// The first size, in bytes or with a unit: K, M, G or KiB, MiB, GiB (powers of 1024)
    #[arg(short = 'b', long, default_value = "8", value_parser = bytes)]
    min_bytes: usize,
    /// The largest size, in bytes or with such a unit
    #[arg(short = 'e', long, default_value = "1M", value_parser = bytes)]
    max_bytes: usize,
    /// Each size is the one before times this factor
    #[arg(short, long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(2..))]
    factor: u32,
    /// The number of calls in a batch [default: as many as take 10 ms]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    iters: Option<u32>,
    /// The number of measured batches
    #[arg(long, default_value_t = 9, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batches: u32,
    /// The number of calls before the measured ones
    #[arg(long, default_value_t = 5)]
    warmup: u32,
    /// Rewrite the input before each call, which is not timed, as programs do
    #[arg(long)]
    dirty: bool,
    /// A barrier after each call, whose time is counted: a root cannot run ahead then
    #[arg(long)]
    barrier: bool,
    /// Percentiles of the batches' times, in more columns: 90,99
    #[arg(long, value_name = "PERCENT", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(..=100))]
    percentiles: Vec<u8>,
    /// Show how elements moved, in more columns; the Rust type TransferPath explains the names
    #[arg(long, conflicts_with = "points")]
    explain: bool,
    /// Which CPUs each rank may use: auto (share if there is a CPU for each rank), none, core (one
    /// each), share (an equal part of them) or sets such as '0-3;4-7'
    #[arg(long, default_value = "auto")]
    bind: Binding,
    /// Whether to check results: 0 or 1
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u8).range(0..=1))]
    check: u8,
    /// The backend; auto is NCCL if there is a GPU for each rank
    #[arg(long, default_value = "auto", value_parser = names::backend(&["ucx", "mpi"]))]
    backend: BackendKind,
    /// Print comma-separated values with a header instead of the table
    #[arg(long)]
    csv: bool,
    /// Print one JSON object per line instead of the table
    #[arg(long, conflicts_with = "csv")]
    json: bool,
    /// Print points with this label instead of the table
    #[arg(long, value_name = "LABEL", conflicts_with_all = ["csv", "json"], value_parser = label)]
    points: Option<String>,
    /// Draw times over sizes into this SVG file
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,
    /// A file of points that the plot has too; may be given several times
    #[arg(long, value_name = "FILE", requires = "plot")]
    peers: Vec<PathBuf>,
    /// How long each collective waits for other ranks, in seconds [default: DCL_TIMEOUT, or 60]
    #[arg(long, value_parser = crate::seconds)]
    timeout: Option<Duration>,
    /// Use symmetric buffers, which the communicator allocates, instead of private ones
    #[arg(long)]
    symmetric: bool,
    /// Reduce in exact mode: GPUs give the bits of the host, and NCCL only moves elements
    #[arg(long)]
    exact: bool,
}

/// The operations that one name stands for.
type Operations = Vec<CollectiveOperation>;

/// Reads a label, which is one value of a line of values.
fn label(text: &str) -> Result<String, &'static str> {
    if text.is_empty() || text.contains([',', '\n']) { Err("a label has no comma") } else { Ok(text.to_owned()) }
}

/// Reads a number of bytes: `8`, `64K`, `1MiB`.
fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit: usize = match text[digits.len()..].to_ascii_uppercase().as_str() {
        "" | "B" => 1,
        "K" | "KIB" => 1 << 10,
        "M" | "MIB" => 1 << 20,
        "G" | "GIB" => 1 << 30,
        _ => {
            let unit = &text[digits.len()..];
            return Err(format!("{unit} is not a unit; they are K, M and G, or KiB, MiB and GiB, powers of 1024"));
        }
    };
    let number: usize =
        digits.trim_end().parse().map_err(|_| "a number of bytes is needed, such as 8, 64K or 1MiB".to_owned())?;
    number
        .checked_mul(unit)
        .filter(|bytes| *bytes > 0)
        .ok_or_else(|| "it is zero or more than memory can be".to_owned())
}

pub fn run(arguments: &Arguments) -> Ended {
    match Environment::detect_launcher() {
        Some(_) => as_one_rank(arguments),
        None => from_here(arguments),
    }
}

/// Runs this process as one rank of a launcher's job. Rank 0 prints the errors that all ranks find.
fn as_one_rank(arguments: &Arguments) -> Ended {
    let timeout = crate::timeout(arguments.timeout)?;
    let environment = Environment::builder().backend(arguments.backend).timeout(timeout).initialize()?;
    let n = environment.world_size();
    let bench = match prepare(arguments, n, "processes", environment.backend().name()) {
        Err(failure) if !environment.is_master() => return Ok(failure.exit_code()),
        bench => bench?,
    };
    let wrong = bench.run(environment.communicator())?;
    let is_master = environment.is_master();
    environment.finalize()?;
    if is_master || wrong == 0 { ended(wrong) } else { Ok(ExitCode::FAILURE) }
}

/// Starts the ranks, as threads or processes.
fn from_here(arguments: &Arguments) -> Ended {
    let n = arguments.n.unwrap_or(2);
    // Finds mistakes in the options before any rank starts.
    prepare(arguments, n, "threads", "")?;
    let backend = arguments.backend.resolve(n)?;
    let cpus = arguments.bind.sets(n).map_err(Failure::usage)?;
    if arguments.processes {
        return start_processes(n, cpus);
    }
    let timeout = crate::timeout(arguments.timeout)?;
    let bench = Bench { cpus, ..prepare(arguments, n, "threads", backend.name())? };
    let builder = Communicator::builder().backend(backend).timeout(timeout);
    // Every rank returns the same number.
    let wrong = builder.spawn(n, |communicator| bench.run(&communicator));
    ended(wrong.map_err(|error| job_failure(error, 1))?[0])
}

/// Checks the options and makes the benchmark of them.
fn prepare(arguments: &Arguments, n: u32, ranks_are: &str, backend: &str) -> Result<Bench, Failure> {
    if let Some(asked) = arguments.n.filter(|asked| *asked != n) {
        return Err(Failure::usage(format!("-n is {asked}, and the launcher started {n}")));
    }
    let mut operations: Operations = Vec::new();
    for operation in arguments.op.iter().flatten().copied() {
        if !operations.contains(&operation) {
            operations.push(operation);
        }
    }
    let layers = operations.iter().map(|&operation| layer(arguments, operation, n));
    let layers = layers.collect::<distcollective::Result<_>>().map_err(Failure::usage)?;
    let sizes = std::iter::successors(Some(arguments.min_bytes), |size| size.checked_mul(arguments.factor as usize))
        .take_while(|size| *size <= arguments.max_bytes)
        .collect();
    let bench = Bench {
        layers,
        sizes,
        sizes_per_rank: arguments.points.is_some(),
        data_type: arguments.dtype,
        ranks: n as usize,
        timing: Timing {
            iterations: arguments.iters,
            batches: arguments.batches,
            warmup: arguments.warmup,
            dirty: arguments.dirty,
            barrier: arguments.barrier,
        },
        cpus: None,
        percentiles: arguments.percentiles.clone(),
        explain: arguments.explain,
        plot: arguments.plot.clone().map(|file| Plot::new(file, &arguments.peers)).transpose()?,
        check: arguments.check == 1,
        symmetric: arguments.symmetric,
        format: match arguments {
            Arguments { csv: true, .. } => Format::Csv,
            Arguments { json: true, .. } => Format::Json,
            Arguments { points: Some(label), .. } => Format::Points(label.clone()),
            _ => Format::Table,
        },
        settings: vec![
            ("version", Value::from(env!("CARGO_PKG_VERSION"))),
            ("world_size", Value::from(n)),
            ("ranks_are", Value::from(ranks_are)),
            ("backend", Value::from(backend)),
            ("symmetric", Value::from(arguments.symmetric)),
            ("exact", Value::from(arguments.exact)),
            ("wire_type", Value::from(arguments.wire.map(WireType::name))),
            ("warmup_iterations", Value::from(arguments.warmup)),
            ("iterations", Value::from(arguments.iters)),
            ("batch_ms", Value::from(arguments.iters.is_none().then_some(BATCH_TIME.as_millis() as u64))),
            ("batches", Value::from(arguments.batches)),
            ("rewrites_input", Value::from(arguments.dirty)),
            ("barrier_after_each_call", Value::from(arguments.barrier)),
        ],
    };
    if operations.iter().any(|operation| bench.counts(*operation).is_empty()) {
        let (min, max, data_type) = (arguments.min_bytes, arguments.max_bytes, arguments.dtype);
        let ranks = if n == 1 { "the rank".to_owned() } else { format!("each of {n} ranks") };
        return Err(Failure::usage(format!("no size from {min} to {max} bytes has a {data_type} for {ranks}")));
    }
    Ok(bench)
}

fn layer(arguments: &Arguments, operation: CollectiveOperation, n: u32) -> distcollective::Result<DistCollectiveLayer> {
    let reduce_op = operation.reduces().then_some(arguments.reduce_op);
    let root = if operation.has_root() { i64::from(arguments.root) } else { -1 };
    let mut layer = DistCollectiveLayer::new(operation, reduce_op, root, &[])?;
    layer.set_nb_rank(n)?;
    if arguments.exact {
        layer.set_determinism(Determinism::Exact);
    }
    layer.set_wire_type(arguments.wire);
    layer.check_type(arguments.dtype)?;
    layer.output_dims(&Dims::new(&[i64::from(n)])?)?;
    Ok(layer)
}

/// Starts this program once for each rank, with the variables of a launcher.
fn start_processes(ranks: u32, cpus: Option<Vec<BTreeSet<usize>>>) -> Ended {
    let program = std::env::current_exe()?;
    let command = |_: Rank| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command
    };
    let mut job = Job::new(ranks);
    if let Some(cpus) = cpus {
        job = job.cpus(cpus);
    }
    let output = Output::new(job.control());
    output.end_when_stdout_closes()?;
    let stdout = output.stream(std::io::stdout(), Prefix::None, None);
    let outcome = job.output(stdout, output.stream(std::io::stderr(), Prefix::None, None)).run(command);
    let outcome = outcome.map_err(|error| job_failure(error, 1))?;
    if output.is_closed() {
        return Ok(ExitCode::from(CLOSED));
    }
    match outcome {
        Outcome::Success => Ok(ExitCode::SUCCESS),
        // The rank has printed its error.
        Outcome::Failed { status, .. } if status.code().is_some() => Ok(ExitCode::FAILURE),
        other => Err(other.into()),
    }
}

fn ended(wrong: u64) -> Ended {
    if wrong == 0 { Ok(ExitCode::SUCCESS) } else { Err(format!("{wrong} elements are wrong").into()) }
}
