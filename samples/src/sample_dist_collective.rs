//! The demo, in the manner of TensorRT's sampleDistCollective: a network with one DistCollective
//! layer between two transposes, built, written as a plan, read back, run on every rank and
//! checked.
//!
//! ```text
//! input [3, C] -> Shuffle -> [C, 3] -> DistCollective -> "collective" -> Shuffle -> "output"
//! ```
//!
//! C is 4, or for operations that divide the C rows among the ranks the next multiple of the ranks.
//!
//! The network has two outputs. "output" is the model's result. "collective" is the layer's own
//! output, bound to a buffer that is filled with a pattern. REDUCE and GATHER write on the root
//! only: elsewhere the buffer must keep the pattern. Their networks end there, since a Shuffle
//! would read zeros on the other ranks, of which the library warns.

mod output;

use std::fmt::Display;
use std::ops::Range;
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use clap::Parser;
use distcollective::comm::{BackendKind, CommunicatorBuilder, timeout_or};
use distcollective::network::{LayerBody, Shuffle};
use distcollective::tensor::{F8E4M3, F8E5M2, Shape, bf16, f16};
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, Determinism, Engine, Environment, Error, ErrorKind, Network,
    Rank, ReduceOperation, Result, Stream,
};
use distcollective_launch as launch;
use output::{CLOSED, fail, print, tell_error};

/// Runs TensorRT's DistCollective operations between ranks and checks every result.
///
/// Example: sample_dist_collective --op reduce_scatter --ranks 4 --dtype bfloat16
#[derive(Parser)]
#[command(name = "sample_dist_collective", version)]
struct Arguments {
    /// The operation: all_reduce, all_gather, broadcast, reduce, reduce_scatter, all_to_all,
    /// gather, scatter, in any case; or all
    #[arg(long, default_value = "all")]
    op: String,
    /// The number of ranks, each a thread of this process. Under a launcher, this process is one of
    /// its ranks, and the launcher says how many there are [default: 2]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1024))]
    ranks: Option<u32>,
    /// The columns of the input. Some operations divide them among the ranks [default: 4; for those
    /// operations the next multiple of the ranks]
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    columns: Option<u32>,
    /// Make the ranks processes instead of threads
    #[arg(long)]
    processes: bool,
    /// The element type: float32, float16, bfloat16, float8, float8_e5m2, int64, int32, int8,
    /// uint8, bool
    #[arg(long, default_value = "float32")]
    dtype: DataType,
    /// The reduction, for operations that reduce: sum, prod, max, min, avg
    #[arg(long, default_value = "sum")]
    reduce_op: ReduceOperation,
    /// The root, for operations that have one
    #[arg(long, default_value_t = 0, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=65535))]
    root: u32,
    /// The backend: nccl, which needs a GPU for each rank; host (gloo is another name of it); auto,
    /// which is NCCL if it can be used
    #[arg(long, default_value = "auto")]
    backend: BackendKind,
    /// Reduce in exact mode: GPUs give the bits of the host, and NCCL only moves elements
    #[arg(long)]
    exact: bool,
}

/// How long a rank waits for the others, unless `DCL_TIMEOUT` says otherwise.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The rows of the network's input, which are the columns of the collective's.
const ROWS: usize = 3;

/// What the ranks do.
struct Job {
    arguments: Arguments,
    /// The number of ranks.
    ranks: u32,
    operations: Vec<CollectiveOperation>,
}

impl Job {
    /// The columns of the network's input, which are the rows of the collective's.
    fn columns(&self, operation: CollectiveOperation) -> usize {
        const LEAST: u32 = 4;
        let default = if divides(operation) { LEAST.next_multiple_of(self.ranks) } else { LEAST };
        self.arguments.columns.unwrap_or(default) as usize
    }

    /// What to change if the ranks cannot divide the columns.
    fn hint(&self, operation: CollectiveOperation) -> String {
        let (columns, ranks) = (self.columns(operation), self.ranks as usize);
        if !divides(operation) || columns % ranks == 0 {
            return String::new();
        }
        format!("; make --columns a multiple of {ranks}, such as {}", columns.next_multiple_of(ranks))
    }
}

/// Whether an operation divides the rows of its input among the ranks.
fn divides(operation: CollectiveOperation) -> bool {
    matches!(
        operation,
        CollectiveOperation::ReduceScatter | CollectiveOperation::AllToAll | CollectiveOperation::Scatter
    )
}

/// Whether an operation writes the output on the root only.
fn writes_on_root_only(operation: CollectiveOperation) -> bool {
    matches!(operation, CollectiveOperation::Reduce | CollectiveOperation::Gather)
}

/// Fills output buffers before the run.
const PATTERN: u8 = 0xa5;

fn main() -> ExitCode {
    distcollective::log::show_warnings();
    let arguments: Arguments = output::parse();
    let operations = if arguments.op.eq_ignore_ascii_case("all") {
        CollectiveOperation::ALL.to_vec()
    } else {
        match arguments.op.parse() {
            Ok(operation) => vec![operation],
            Err(error) => {
                tell_error(format!("{error}; or all"));
                return ExitCode::from(2);
            }
        }
    };
    let launcher = Environment::detect_launcher();
    let job = Job { ranks: arguments.ranks.unwrap_or(2), arguments, operations };
    let rows = match launcher {
        Some(launcher) => as_one_rank(job).map_err(|e| format!("under {launcher}: {e}")),
        None if job.arguments.processes => return start_processes(&job).unwrap_or_else(fail),
        None => in_threads(&job).map_err(|e| e.to_string()),
    };
    match rows {
        Ok(rows) if rows.iter().all(|row| row.passed) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => fail(error),
    }
}

/// Starts this program once for each rank, with the variables of a launcher.
fn start_processes(job: &Job) -> std::result::Result<ExitCode, Box<dyn std::error::Error>> {
    job.arguments.backend.resolve(job.ranks)?;
    let program = std::env::current_exe()?;
    let command = |_: Rank| {
        let mut command = Command::new(&program);
        command.args(std::env::args_os().skip(1));
        command
    };
    match launch::Job::new(job.ranks).run(command)? {
        launch::Outcome::Success => Ok(ExitCode::SUCCESS),
        // The reader of the ranks' output has closed it.
        launch::Outcome::Failed { status, .. } if status.code() == Some(CLOSED.into()) => Ok(ExitCode::from(CLOSED)),
        outcome => Err(outcome.to_string().into()),
    }
}

/// Runs this process as one rank of a launcher's job.
fn as_one_rank(mut job: Job) -> Result<Vec<Row>> {
    let builder = Environment::builder().backend(job.arguments.backend);
    let environment = builder.timeout(timeout_or(TIMEOUT)?).initialize()?;
    let ranks = environment.world_size();
    if let Some(asked) = job.arguments.ranks.filter(|asked| *asked != ranks) {
        let text = format!("--ranks is {asked}, and the launcher started {ranks}; leave --ranks out");
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    job.ranks = ranks;
    let mut rows = Vec::new();
    for &operation in &job.operations {
        let mut row = Row::new(operation);
        match build(&job, operation) {
            Ok(plan) => {
                let outcome = run_rank(&job, operation, &plan, environment.communicator());
                row.passed = true;
                row.report(environment.rank().index(), outcome);
            }
            // It is the same on every rank.
            Err(error) => row.cannot_be_built(environment.is_master(), error, job.hint(operation)),
        }
        rows.push(row);
    }
    environment.communicator().barrier()?;
    if environment.is_master() {
        print_summary(&job, "processes", environment.backend().name(), &rows);
    }
    environment.finalize()?;
    Ok(rows)
}

/// A line of the summary.
struct Row {
    name: String,
    shapes: Option<(Shape, Shape)>,
    slowest: Option<Duration>,
    passed: bool,
    remark: String,
}

impl Row {
    fn new(operation: CollectiveOperation) -> Self {
        let name = operation.name().to_uppercase();
        Row { name, shapes: None, slowest: None, passed: false, remark: String::new() }
    }

    fn cannot_be_built(&mut self, print: bool, error: Error, hint: String) {
        if print {
            tell_error(format!("{} cannot be built: {error}{hint}", self.name));
        }
        self.remark = "cannot be built".to_owned();
    }

    /// Prints the result of one rank, and keeps it for the summary.
    fn report(&mut self, rank: usize, outcome: Result<Outcome>) {
        let name = &self.name;
        match outcome {
            Ok(outcome) => {
                print(format!("Rank {rank} - {name} PASSED\n"));
                print(format!("Rank {rank} - {name} test completed successfully!\n"));
                self.shapes = Some((outcome.input, outcome.output));
                self.slowest = self.slowest.max(Some(outcome.time));
                if !outcome.written {
                    self.remark = "untouched off the root".to_owned();
                }
            }
            Err(error) => {
                print(format!("Rank {rank} - {name} FAILED: {error}\n"));
                self.passed = false;
            }
        }
    }
}

/// Runs every operation on ranks that are threads of this process.
fn in_threads(job: &Job) -> Result<Vec<Row>> {
    let backend = job.arguments.backend.resolve(job.ranks)?;
    let builder = Communicator::builder().backend(backend).timeout(timeout_or(TIMEOUT)?);
    let rows: Vec<Row> = job.operations.iter().map(|&operation| demonstrate(job, operation, &builder)).collect();
    let threads = if job.ranks == 1 { "thread" } else { "threads" };
    print_summary(job, threads, backend.name(), &rows);
    Ok(rows)
}

/// Builds one operation's network and runs it, each rank on a thread of its own.
fn demonstrate(job: &Job, operation: CollectiveOperation, builder: &CommunicatorBuilder) -> Row {
    let mut row = Row::new(operation);
    let plan = match build(job, operation) {
        Ok(plan) => plan,
        Err(error) => {
            row.cannot_be_built(true, error, job.hint(operation));
            return row;
        }
    };
    row.passed = true;
    // Ranks return their errors as values, so that every rank's is printed.
    let run = |communicator: Communicator| Ok(run_rank(job, operation, &plan, &communicator));
    match builder.clone().spawn(job.ranks, run) {
        Ok(outcomes) => outcomes.into_iter().enumerate().for_each(|(rank, outcome)| row.report(rank, outcome)),
        // A rank panicked, or its thread could not be started.
        Err(error) => row.report(error.rank().map_or(0, Rank::index), Err(error)),
    }
    row
}

/// Describes the network and builds its plan. It is the same on every rank.
fn build(job: &Job, operation: CollectiveOperation) -> Result<Vec<u8>> {
    let Job { arguments, ranks, .. } = job;
    let mut network = Network::new();
    let input = network.add_input("input", arguments.dtype, [ROWS as i64, job.columns(operation) as i64])?;
    let transposed = network.add_shuffle(input, Shuffle::transpose([1, 0]))?;
    let reduce_op = operation.reduces().then_some(arguments.reduce_op);
    let root = if operation.has_root() { i64::from(arguments.root) } else { -1 };
    let layer = network.add_dist_collective(transposed, operation, reduce_op, root, &[])?;
    network.layer_mut(layer)?.set_nb_rank(*ranks)?;
    network.layer_mut(layer)?.set_name(operation.name());
    if let (true, LayerBody::DistCollective(layer)) = (arguments.exact, network.layer_mut(layer)?.body_mut()) {
        layer.set_determinism(Determinism::Exact);
    }
    let collective = network.output(layer)?;
    network.mark_output(collective, "collective")?;
    if !writes_on_root_only(operation) {
        let output = network.add_shuffle(collective, Shuffle::transpose([1, 0]))?;
        network.mark_output(output, "output")?;
    }
    network.build()?.serialize()
}

/// The result of a rank that passed.
struct Outcome {
    input: Shape,
    output: Shape,
    written: bool,
    time: Duration,
}

/// The part of one rank: reads the plan, runs it and checks the outputs.
fn run_rank(job: &Job, operation: CollectiveOperation, plan: &[u8], communicator: &Communicator) -> Result<Outcome> {
    let data_type = job.arguments.dtype;
    let rank = communicator.rank();
    let engine = Engine::deserialize(plan)?;
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;

    let mut bindings = context.create_bindings();
    for io in engine.io_tensors() {
        let mut buffer = Buffer::zeroed(data_type, context.tensor_shape(&io.name)?)?;
        if io.name == "input" {
            buffer.write(0, &encode(data_type, &input_values(rank, job.columns(operation)))?)?;
            bindings.bind_input(&io.name, buffer)?;
        } else {
            buffer.as_mut_bytes()?.fill(PATTERN);
            bindings.bind_output(&io.name, buffer)?;
        }
    }
    let stream = Stream::inline();
    let start = Instant::now();
    let bindings = context.enqueue(bindings, &stream)?.wait()?;
    let time = start.elapsed();

    let collective = bindings.get("collective")?;
    let mut output = collective.shape();
    let expected = expected_rows(job, operation, rank)?;
    match &expected {
        Some(expected) => check("collective", collective, &encode(data_type, expected)?)?,
        None => check("collective", collective, &vec![PATTERN; collective.byte_len()])?,
    }
    if let (Some(expected), false) = (&expected, writes_on_root_only(operation)) {
        let transposed = bindings.get("output")?;
        check("output", transposed, &encode(data_type, &transpose(expected, output.as_slice()[0]))?)?;
        output = transposed.shape();
    }
    Ok(Outcome { input: bindings.get("input")?.shape(), output, written: expected.is_some(), time })
}

/// A rank's input: small whole numbers, which every type can hold.
fn input_values(rank: Rank, columns: usize) -> Vec<f32> {
    (0..ROWS * columns).map(|i| ((i + 2 * rank.index()) % 3) as f32).collect()
}

/// The rows of the collective's output on a rank, by the table in docs/src/operations.md; `None` if
/// it does not write there. The tensors of the collective have [`ROWS`] columns.
fn expected_rows(job: &Job, operation: CollectiveOperation, rank: Rank) -> Result<Option<Vec<f32>>> {
    let (Job { arguments, ranks: n, .. }, columns) = (job, job.columns(operation));
    let n = *n;
    let len = ROWS * columns;
    let block_len = len / n as usize;
    // This rank's block of an input that is divided.
    let block = rank.index() * block_len..(rank.index() + 1) * block_len;
    let input_of = |rank: u32, elements: Range<usize>| {
        let values = transpose(&input_values(Rank(rank), columns), ROWS);
        values[elements].to_vec()
    };
    let gathered = |elements: Range<usize>| (0..n).flat_map(|rank| input_of(rank, elements.clone())).collect();
    let reduced = |elements: Range<usize>| -> Result<Vec<f32>> {
        let inputs: Vec<Vec<f32>> = (0..n).map(|rank| input_of(rank, elements.clone())).collect();
        (0..elements.len()).map(|i| reduce(arguments, inputs.iter().map(|x| x[i]).collect())).collect()
    };
    let is_root = rank.0 == arguments.root;
    Ok(match operation {
        CollectiveOperation::AllReduce => Some(reduced(0..len)?),
        CollectiveOperation::AllGather => Some(gathered(0..len)),
        CollectiveOperation::Broadcast => Some(input_of(arguments.root, 0..len)),
        CollectiveOperation::Reduce => is_root.then(|| reduced(0..len)).transpose()?,
        CollectiveOperation::ReduceScatter => Some(reduced(block)?),
        CollectiveOperation::AllToAll => Some(gathered(block)),
        CollectiveOperation::Gather => is_root.then(|| gathered(0..len)),
        CollectiveOperation::Scatter => Some(input_of(arguments.root, block)),
        other => return Err(no_values_for(other)),
    })
}

/// The library may have operations, reductions and types that this demo does not check.
fn no_values_for(what: impl Display) -> Error {
    Error::new(ErrorKind::Unsupported, format!("the demo has no expected values for {what}"))
}

fn reduce(arguments: &Arguments, values: Vec<f32>) -> Result<f32> {
    // For bool, the sum is `or` and the product is `and`: reduce numbers 0 and 1, and take every
    // nonzero result for 1.
    let truth = |x: f32| if arguments.dtype == DataType::Bool { f32::from(x != 0.0) } else { x };
    if let [one] = values[..] {
        return Ok(one);
    }
    let n = values.len() as f32;
    let values = values.into_iter().map(truth);
    let result: f32 = match arguments.reduce_op {
        ReduceOperation::Sum => values.sum(),
        ReduceOperation::Prod => values.product(),
        ReduceOperation::Max => values.fold(f32::MIN, f32::max),
        ReduceOperation::Min => values.fold(f32::MAX, f32::min),
        // The sum wraps before it is divided.
        ReduceOperation::Avg => match arguments.dtype {
            DataType::Int8 => f32::from(values.sum::<f32>() as i64 as i8) / n,
            DataType::Uint8 => f32::from(values.sum::<f32>() as i64 as u8) / n,
            _ => values.sum::<f32>() / n,
        },
        other => return Err(no_values_for(other)),
    };
    Ok(truth(result))
}

/// Transposes a matrix of `rows` rows.
fn transpose(values: &[f32], rows: usize) -> Vec<f32> {
    let columns = values.len() / rows.max(1);
    (0..columns).flat_map(|column| (0..rows).map(move |row| values[row * columns + column])).collect()
}

/// The bytes of small numbers as elements of a type.
fn encode(data_type: DataType, values: &[f32]) -> Result<Vec<u8>> {
    let one = |x: f32| {
        Ok(match data_type {
            DataType::Float32 => x.to_ne_bytes().to_vec(),
            DataType::Float16 => f16::from_f32(x).to_ne_bytes().to_vec(),
            DataType::Bfloat16 => bf16::from_f32(x).to_ne_bytes().to_vec(),
            DataType::Float8E4M3 => vec![F8E4M3::from_f32(x).to_bits()],
            DataType::Float8E5M2 => vec![F8E5M2::from_f32(x).to_bits()],
            DataType::Int64 => (x as i64).to_ne_bytes().to_vec(),
            DataType::Int32 => (x as i32).to_ne_bytes().to_vec(),
            // A product of many ranks wraps around.
            DataType::Int8 | DataType::Uint8 => vec![x as i64 as u8],
            DataType::Bool => vec![x as u8],
            other => return Err(no_values_for(other)),
        })
    };
    Ok(values.iter().map(|&x| one(x)).collect::<Result<Vec<_>>>()?.concat())
}

fn check(name: &str, got: &Buffer, expected: &[u8]) -> Result<()> {
    let bytes = got.as_bytes()?;
    if bytes == expected {
        return Ok(());
    }
    let element = got.data_type().byte_len();
    let wrong = bytes.chunks(element).zip(expected.chunks(element)).filter(|(a, b)| a != b).count();
    let total = got.shape().element_count();
    Err(Error::new(
        ErrorKind::System,
        format!("{wrong} of {total} elements of {name:?} are wrong: {bytes:02x?}, not {expected:02x?}"),
    ))
}

fn print_summary(job: &Job, ranks_are: &str, backend: &str, rows: &[Row]) {
    let Arguments { dtype, exact, .. } = job.arguments;
    let exact = if exact { "; exact" } else { "" };
    print(format!("\nranks: {} {ranks_are}; type: {dtype}; backend: {backend}{exact}\n", job.ranks));
    print(format!("{:<15} {:<10} {:<10} {:>12}  result\n", "operation", "input", "output", "enqueue"));
    for row in rows {
        let (input, output) =
            row.shapes.map_or(("-".to_owned(), "-".to_owned()), |(i, o)| (i.to_string(), o.to_string()));
        let time = row.slowest.map_or("-".to_owned(), |t| format!("{:.1} us", t.as_secs_f64() * 1e6));
        let remark = match (row.passed, row.remark.as_str()) {
            (true, "") => "PASSED".to_owned(),
            (true, remark) => format!("PASSED, {remark}"),
            (false, "") => "FAILED".to_owned(),
            (false, remark) => format!("FAILED: {remark}"),
        };
        print(format!("{:<15} {input:<10} {output:<10} {time:>12}  {remark}\n", row.name));
    }
}
