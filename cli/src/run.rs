//! `distcollective run`: runs one layer on files.

use std::path::PathBuf;
use std::process::ExitCode;

use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, DistCollectiveLayer, ReduceOperation};

use crate::{npy, progress};

/// Runs one DistCollective layer on `.npy` files, each rank a thread.
///
/// `{rank}` in a file's name stands for the rank. A rank whose output the operation does not write
/// gets no output file.
///
/// Example: distcollective run --op all_gather -n 3 --input 'in{rank}.npy' --output 'out{rank}.npy'
#[derive(clap::Args)]
pub struct Arguments {
    /// The operation: all_reduce, all_gather, broadcast, reduce, reduce_scatter, all_to_all,
    /// gather, scatter
    #[arg(long)]
    op: CollectiveOperation,
    /// The reduction, for operations that reduce: sum, prod, max, min, avg
    #[arg(long)]
    reduce_op: Option<ReduceOperation>,
    /// The root, for operations that have one
    #[arg(long)]
    root: Option<u32>,
    /// The ranks that take part, in this order; all ranks unless given
    #[arg(long, value_delimiter = ',')]
    groups: Vec<i64>,
    /// The element type; the files' own unless given. bfloat16 is stored as uint16, float8 as uint8
    #[arg(long)]
    dtype: Option<DataType>,
    /// The number of ranks
    #[arg(short, value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: u32,
    /// The input files, with {rank} in the name
    #[arg(long)]
    input: String,
    /// The output files, with {rank} in the name
    #[arg(long)]
    output: String,
}

pub fn run(arguments: &Arguments) -> ExitCode {
    match run_ranks(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            eprintln!("error: {text}");
            ExitCode::FAILURE
        }
    }
}

fn run_ranks(arguments: &Arguments) -> Result<(), String> {
    for (option, pattern) in [("--input", &arguments.input), ("--output", &arguments.output)] {
        if arguments.n > 1 && !pattern.contains("{rank}") {
            return Err(format!("{option} {pattern:?} names one file for {} ranks; put {{rank}} into it", arguments.n));
        }
    }
    let root = arguments.root.map_or(-1, i64::from);
    let mut layer = DistCollectiveLayer::new(arguments.op, arguments.reduce_op, root, &arguments.groups)
        .map_err(|e| e.to_string())?;
    if arguments.groups.is_empty() {
        layer.set_nb_rank(arguments.n).map_err(|e| e.to_string())?;
    }
    let inputs = read_inputs(arguments)?;
    let run = |communicator: Communicator| run_rank(&layer, &communicator, &inputs[communicator.rank().index()]);
    let outputs = Communicator::spawn(arguments.n, run).map_err(|e| e.to_string())?;
    write_outputs(arguments, &outputs)
}

/// The file name of each rank.
fn files(arguments: &Arguments, pattern: &str) -> Vec<PathBuf> {
    (0..arguments.n).map(|rank| PathBuf::from(pattern.replace("{rank}", &rank.to_string()))).collect()
}

/// Reads all inputs before any rank starts, so that an error in a file is one line.
fn read_inputs(arguments: &Arguments) -> Result<Vec<Buffer>, String> {
    let files = files(arguments, &arguments.input);
    let bytes = files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
    let bar = progress::bar("reading", bytes);
    let inputs: Vec<Buffer> =
        files.iter().map(|file| npy::read(file, arguments.dtype, &bar)).collect::<Result<_, String>>()?;
    for (file, other) in files.iter().zip(&inputs).skip(1) {
        let first = &inputs[0];
        if (first.data_type(), first.shape()) != (other.data_type(), other.shape()) {
            return Err(format!(
                "{} is {} {}, and {} is {} {}",
                file.display(),
                other.data_type(),
                other.shape(),
                files[0].display(),
                first.data_type(),
                first.shape()
            ));
        }
    }
    Ok(inputs)
}

/// Writes the outputs of the ranks that have one, after all ranks have succeeded.
fn write_outputs(arguments: &Arguments, outputs: &[Option<Buffer>]) -> Result<(), String> {
    let bytes = outputs.iter().flatten().map(|output| output.byte_len() as u64).sum();
    let bar = progress::bar("writing", bytes);
    let mut files = files(arguments, &arguments.output).into_iter().zip(outputs);
    files.try_for_each(|(file, output)| output.as_ref().map_or(Ok(()), |output| npy::write(&file, output, &bar)))
}

fn run_rank(
    layer: &DistCollectiveLayer,
    communicator: &Communicator,
    input: &Buffer,
) -> distcollective::Result<Option<Buffer>> {
    let bound = layer.bind(&communicator.with_timeout(crate::timeout(None)?), input.data_type())?;
    let shape = input.shape();
    let output_shape = bound.output_shape(shape.as_slice())?;
    let mut output = Buffer::zeroed(input.data_type(), output_shape)?;
    bound.execute(Some(TensorView::from(input)), Some(TensorViewMut::from(&mut output)), shape.as_slice())?;
    Ok(bound.writes_output().then_some(output))
}
