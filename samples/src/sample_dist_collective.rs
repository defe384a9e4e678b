//! The demo, in the manner of TensorRT's sampleDistCollective: for each operation, every rank runs
//! a network with one DistCollective layer between two transposes, and checks the output.
//!
//! ```text
//! input [3, C] -> Shuffle -> [C, 3] -> DistCollective -> Shuffle -> output
//! ```
//!
//! REDUCE and GATHER write on the root only. Their networks end with the collective, and on the
//! other ranks the output has to stay as it was.

use std::io::{Write, stdout};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use distcollective::CollectiveOperation::*;
use distcollective::comm::BackendKind;
use distcollective::network::Shuffle;
use distcollective::tensor::{Bool, Element, F8E4M3, F8E5M2, bf16, f16};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, Engine, Environment};
use distcollective::{Error, ErrorKind, Network, ReduceOperation, Result, Stream};

/// Runs TensorRT's DistCollective operations between ranks and checks every result.
///
/// Example: sample_dist_collective --op reduce_scatter --ranks 4 --dtype bfloat16
#[derive(Parser)]
#[command(name = "sample_dist_collective", version)]
struct Arguments {
    /// all_reduce, all_gather, broadcast, reduce, reduce_scatter, all_to_all, gather, scatter, all
    #[arg(long, default_value = "all")]
    op: String,
    /// The number of ranks, each a thread of this process. Under a launcher this process is one
    /// rank, and the launcher says how many there are
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// The columns of the input. Some operations divide them among the ranks [default: 4; for those
    /// operations the next multiple of the ranks]
    #[arg(long)]
    columns: Option<u32>,
    /// float32, float16, bfloat16, float8, float8_e5m2, int64, int32, int8, uint8, bool
    #[arg(long, default_value = "float32")]
    dtype: DataType,
    /// nccl, which needs a GPU for each rank; host; auto, which is NCCL if they are there
    #[arg(long, default_value = "auto")]
    backend: BackendKind,
}

const ROOT: usize = 0; // of the operations that have one
const UNWRITTEN: u8 = 5; // what outputs hold before the run

fn main() -> ExitCode {
    match run(&Arguments::parse()).inspect_err(|error| eprintln!("error: {error}")) {
        Ok(true) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}

/// Runs the ranks of this process. Gives whether every output was right.
fn run(arguments: &Arguments) -> Result<bool> {
    let all = CollectiveOperation::ALL.to_vec();
    let operations = if arguments.op == "all" { all } else { vec![arguments.op.parse()?] };
    let build_all = |ranks| -> Result<Vec<_>> {
        operations.iter().map(|operation| Ok((*operation, build(arguments, *operation, ranks)?))).collect()
    };
    if Environment::detect_launcher().is_some() {
        let environment = Environment::builder().backend(arguments.backend).initialize()?;
        let engines = build_all(environment.world_size())?;
        let passed = run_rank(environment.communicator(), &engines, arguments.dtype)?;
        environment.finalize()?;
        return Ok(passed);
    }
    let engines = build_all(arguments.ranks)?;
    let builder = Communicator::builder().backend(arguments.backend);
    let passed = builder.spawn(arguments.ranks, |own| run_rank(&own, &engines, arguments.dtype))?;
    Ok(passed.into_iter().all(|passed| passed))
}

/// Builds the network of an operation. It is the same on every rank.
fn build(arguments: &Arguments, operation: CollectiveOperation, ranks: u32) -> Result<Engine> {
    let divides = matches!(operation, ReduceScatter | AllToAll | Scatter);
    let columns = arguments.columns.unwrap_or(if divides { 4u32.next_multiple_of(ranks) } else { 4 });
    let reduce_op = operation.reduces().then_some(ReduceOperation::Sum);
    let root = if matches!(operation, Broadcast | Reduce | Gather | Scatter) { ROOT as i64 } else { -1 };

    let mut network = Network::new();
    let input = network.add_input("input", arguments.dtype, [3, columns.into()])?;
    let transposed = network.add_shuffle(input, Shuffle::transpose([1, 0]))?;
    let layer = network.add_dist_collective(transposed, operation, reduce_op, root, &[])?;
    network.layer_mut(layer)?.set_nb_rank(ranks)?;
    network.layer_mut(layer)?.set_name(operation.name()); // for errors
    let mut output = network.output(layer)?;
    if !matches!(operation, Reduce | Gather) {
        output = network.add_shuffle(output, Shuffle::transpose([1, 0]))?;
    }
    network.mark_output(output, "output")?;
    network.build()
}

/// The part of one rank, with the Rust type of the elements, and a function that makes them.
fn run_rank(own: &Communicator, engines: &[(CollectiveOperation, Engine)], dtype: DataType) -> Result<bool> {
    match dtype {
        DataType::Float32 => run_engines(own, engines, f32::from),
        DataType::Float16 => run_engines(own, engines, f16::from),
        DataType::Bfloat16 => run_engines(own, engines, bf16::from),
        DataType::Float8E4M3 => run_engines(own, engines, |x| F8E4M3::from_f32(x.into())),
        DataType::Float8E5M2 => run_engines(own, engines, |x| F8E5M2::from_f32(x.into())),
        DataType::Int64 => run_engines(own, engines, i64::from),
        DataType::Int32 => run_engines(own, engines, i32::from),
        DataType::Int8 => run_engines(own, engines, |x| x as i8),
        DataType::Uint8 => run_engines(own, engines, |x| x),
        DataType::Bool => run_engines(own, engines, |x| Bool::from(x != 0)),
        other => Err(Error::new(ErrorKind::Unsupported, format!("the demo has no numbers of type {other}"))),
    }
}

/// Runs every engine and checks its output. Rank 0 prints the table.
fn run_engines<T: Element + PartialEq>(
    own: &Communicator,
    engines: &[(CollectiveOperation, Engine)],
    number: fn(u8) -> T,
) -> Result<bool> {
    let (rank, ranks, backend) = (own.rank().index(), own.world_size() as usize, own.backend().name());
    let ranks_are = if Environment::detect_launcher().is_some() { "processes" } else { "threads" };
    let mut table = format!("\nranks: {ranks} {ranks_are}; type: {}; backend: {backend}\n", T::DATA_TYPE);
    table += &format!("{:<15} {:<10} {:<10} {:>12}  result\n", "operation", "input", "output", "enqueue");
    let transposed = |i: usize, matrix: &[usize]| i % matrix[1] * matrix[0] + i / matrix[1];
    let mut all_passed = true;
    for &(operation, ref engine) in engines {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(own)?; // ranks compare their plans
        let [input, output] = [context.tensor_shape("input")?, context.tensor_shape("output")?];
        let len = input.element_count();
        let values: Vec<T> = (0..len).map(|i| number(value(rank, ranks, transposed(i, input.as_slice())))).collect();
        let unwritten = vec![number(UNWRITTEN); output.element_count()];

        let mut bindings = context.create_bindings();
        bindings.bind_input("input", Buffer::from_slice(&values, input)?)?;
        bindings.bind_output("output", Buffer::from_slice(&unwritten, output)?)?;
        let start = Instant::now();
        let bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
        let micros = start.elapsed().as_secs_f32() * 1e6;

        let is_on_root_only = matches!(operation, Reduce | Gather);
        let index = |i| if is_on_root_only { i } else { transposed(i, output.as_slice()) };
        let expected = |i| number(expected(operation, rank, ranks, len, index(i)));
        let got = bindings.get("output")?.as_slice::<T>()?;
        let wrong = (0..got.len()).filter(|&i| got[i] != expected(i)).count();
        let name = operation.name().to_uppercase();
        print(&match wrong {
            0 => format!("Rank {rank} - {name} PASSED\nRank {rank} - {name} test completed successfully!\n"),
            _ => format!("Rank {rank} - {name} FAILED: {wrong} elements are wrong\n"),
        })?;
        let mut most = [micros, wrong as f32]; // of all ranks
        own.all_reduce(&mut most, ReduceOperation::Max)?;
        let (micros, passed) = (most[0], most[1] == 0.0);
        all_passed &= passed;
        let result = match (passed, is_on_root_only && ranks > 1) {
            (true, false) => "PASSED",
            (true, true) => "PASSED, untouched off the root",
            (false, _) => "FAILED",
        };
        let [input, output] = [input, output].map(|shape| shape.to_string());
        table += &format!("{name:<15} {input:<10} {output:<10} {micros:>9.1} us  {result}\n");
    }
    if rank == 0 {
        print(&table)?;
    }
    Ok(all_passed)
}

/// Element `i` of the collective's input: 0 or 1. Of each sum three summands at most are 1, so it
/// is exact in every type.
fn value(rank: usize, ranks: usize, i: usize) -> u8 {
    u8::from((rank + i) % ranks <= i % 3)
}

/// Element `i` of the collective's output, where inputs have `len` elements.
fn expected(operation: CollectiveOperation, rank: usize, ranks: usize, len: usize, i: usize) -> u8 {
    let value = |rank, i| value(rank, ranks, i);
    let sum = |i| (0..ranks).map(|rank| value(rank, i)).sum();
    let block = len / ranks; // of an input that is divided
    match operation {
        AllReduce => sum(i),
        AllGather => value(i / len, i % len),
        Broadcast => value(ROOT, i),
        Reduce if rank == ROOT => sum(i),
        ReduceScatter => sum(rank * block + i),
        AllToAll => value(i / block, rank * block + i % block),
        Gather if rank == ROOT => value(i / len, i % len),
        Scatter => value(ROOT, rank * block + i),
        _ => UNWRITTEN,
    }
}

/// Prints lines. If they have no reader, as after `head`, that is an error and no panic.
fn print(lines: &str) -> Result<()> {
    let printed = stdout().write_all(lines.as_bytes());
    printed.map_err(|error| Error::new(ErrorKind::System, format!("the output cannot be written: {error}")))
}
