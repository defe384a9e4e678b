//! `distcollective run`: one layer on files.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, DistCollectiveLayer, ReduceOperation, TensorView,
    TensorViewMut,
};

use crate::npy;

/// Runs one DistCollective layer on `.npy` files, each rank a thread.
///
/// `{rank}` in a file's name stands for the rank. A rank whose output the operation does not write writes no file.
///
/// Example: distcollective run --op all_gather -n 3 --input 'in{rank}.npy' --output 'out{rank}.npy'
#[derive(clap::Args)]
pub struct Arguments {
    /// The operation: all_reduce, all_gather, broadcast, reduce, reduce_scatter, all_to_all, gather, scatter
    #[arg(long)]
    op: CollectiveOperation,
    /// The reduction, for operations that reduce: sum, prod, max, min, avg
    #[arg(long)]
    reduce_op: Option<ReduceOperation>,
    /// The root, for operations that have one
    #[arg(long)]
    root: Option<u32>,
    /// The ranks that take part, in their order; all unless given
    #[arg(long, value_delimiter = ',')]
    groups: Vec<i64>,
    /// The element type; the files' own unless given. bfloat16 is kept as uint16, float8 as uint8
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
    let file = |pattern: &str, rank: u32| PathBuf::from(pattern.replace("{rank}", &rank.to_string()));
    let root = arguments.root.map_or(-1, i64::from);
    let mut layer = DistCollectiveLayer::new(arguments.op, arguments.reduce_op, root, &arguments.groups)
        .map_err(|e| e.to_string())?;
    if arguments.groups.is_empty() {
        layer.set_nb_rank(arguments.n).map_err(|e| e.to_string())?;
    }
    // All inputs before anything runs: what is wrong with a file is told in one line.
    let inputs: Vec<Buffer> = (0..arguments.n)
        .map(|rank| npy::read(&file(&arguments.input, rank), arguments.dtype))
        .collect::<Result<_, String>>()?;
    for (rank, input) in inputs.iter().enumerate().skip(1) {
        let (first, other) = (&inputs[0], input);
        if (first.data_type(), first.shape()) != (other.data_type(), other.shape()) {
            return Err(format!(
                "{} is {} {}, and {} is {} {}",
                file(&arguments.input, rank as u32).display(),
                other.data_type(),
                other.shape(),
                file(&arguments.input, 0).display(),
                first.data_type(),
                first.shape()
            ));
        }
    }
    let threads: Vec<_> = Communicator::in_process(arguments.n)
        .map_err(|e| e.to_string())?
        .into_iter()
        .zip(inputs)
        .map(|(communicator, input)| {
            let (layer, path) = (layer.clone(), file(&arguments.output, communicator.rank().0));
            std::thread::spawn(move || {
                let output = run_rank(&layer, &communicator, &input).map_err(|e| e.to_string())?;
                output.map_or(Ok(()), |output| npy::write(&path, &output))
            })
        })
        .collect();
    let results: Vec<Result<(), String>> =
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err("a rank panicked".to_owned()))).collect();
    results.into_iter().collect()
}

fn run_rank(
    layer: &DistCollectiveLayer,
    communicator: &Communicator,
    input: &Buffer,
) -> distcollective::Result<Option<Buffer>> {
    let bound = layer.bind(&communicator.with_timeout(Duration::from_secs(60)), input.data_type())?;
    let shape = input.shape();
    let output_shape = bound.output_shape(shape.as_slice())?;
    let mut output = Buffer::zeroed(input.data_type(), output_shape)?;
    bound.execute(Some(TensorView::from(input)), Some(TensorViewMut::from(&mut output)), shape.as_slice())?;
    Ok(bound.writes_output().then_some(output))
}
