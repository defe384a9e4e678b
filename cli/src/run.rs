//! `distcollective run`: runs one layer on files, or the plan of an engine.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::ValueHint;
use distcollective::collective::{GroupRank, Partition};
use distcollective::comm::BackendKind;
use distcollective::tensor::{Dims, TensorView, TensorViewMut};
use distcollective::{
    Buffer, CollectiveOperation, Communicator, DataType, DistCollectiveLayer, Groups, Rank, ReduceOperation, Root,
};
use serde_json::{Value, json};

use crate::output::{Ended, Failure, print_json};
use crate::{names, npy, progress, rank_files, run_plan};

/// Runs one DistCollective layer on `.npy` files, or a plan, each rank a thread.
///
/// `{rank}` in a file's name stands for the rank. A rank whose output the operation does not write
/// gets no output file. No output may be one of the input files.
///
/// With a plan it prints a table of how long each layer took on each rank: the time, the part in
/// which the rank waited for others, the rest in which it moved elements, and the bytes that the
/// layer reads and writes. `DCL_PROFILE` writes the same times into a file that Perfetto opens.
///
/// Examples:
/// distcollective run --op all_gather -n 3 --input 'in{rank}.npy' --output 'out{rank}.npy'
/// distcollective run model.plan -n 2 --input 'x=in{rank}.npy'
#[derive(clap::Args)]
pub struct Arguments {
    /// A plan to run in place of one layer
    #[arg(value_hint = ValueHint::FilePath, conflicts_with_all = ["op", "reduce_op", "root", "groups", "dtype", "json"])]
    plan: Option<PathBuf>,
    /// The operation
    #[arg(long, value_parser = names::operation(), required_unless_present = "plan")]
    op: Option<CollectiveOperation>,
    /// The reduction, for operations that reduce
    #[arg(long, value_parser = names::reduce_operation())]
    reduce_op: Option<ReduceOperation>,
    /// The root, for operations that have one: a rank; with several groups, a number within each
    #[arg(long, allow_negative_numbers = true, value_parser = clap::value_parser!(u32).range(0..=65535))]
    root: Option<u32>,
    /// The ranks that take part, in this order: '2,0'. Several groups, which do the operation each
    /// by itself: '0,1;2,3'. All ranks unless given
    #[arg(long, value_parser = groups)]
    groups: Option<Groups>,
    /// The element type; the files' own unless given. bfloat16 is stored as uint16, float8 as uint8
    #[arg(long, value_parser = names::data_type())]
    dtype: Option<DataType>,
    /// The number of ranks
    #[arg(short, long = "ranks", value_parser = clap::value_parser!(u32).range(1..=1024))]
    pub n: u32,
    /// The input files, with {rank} in the name; of a plan NAME=FILE for each input, which is zeros
    /// unless given
    #[arg(long, value_hint = ValueHint::FilePath, required_unless_present = "plan")]
    pub input: Vec<String>,
    /// The output files, with {rank} in the name; of a plan NAME=FILE for each output to keep
    #[arg(long, value_hint = ValueHint::FilePath, required_unless_present = "plan")]
    pub output: Vec<String>,
    /// How many times a plan runs [default: 10]
    #[arg(long, requires = "plan", value_parser = clap::value_parser!(u32).range(1..))]
    pub runs: Option<u32>,
    /// The backend; auto is NCCL if there is a GPU for each rank
    #[arg(long, default_value = "host", value_parser = names::backend())]
    pub backend: BackendKind,
    /// How long a rank waits for the others, in seconds [default: DCL_TIMEOUT, or 60]
    #[arg(long, value_parser = crate::seconds)]
    pub timeout: Option<Duration>,
    /// Print one line of JSON: the layer, and the files that were read and written
    #[arg(long)]
    json: bool,
}

/// Reads `2,0` as a group, and `0,1;2,3` as a partition.
fn groups(text: &str) -> Result<Groups, String> {
    let group = |text: &str| -> Result<Vec<u32>, String> {
        let rank = |rank: &str| {
            rank.trim()
                .parse()
                .map_err(|_| format!("{rank:?} is not a rank; give ranks as '2,0', and several groups as '0,1;2,3'"))
        };
        text.split(',').map(rank).collect()
    };
    let groups = match &text.split(';').map(group).collect::<Result<Vec<_>, _>>()?[..] {
        [group] => Groups::Group(group.iter().copied().map(Into::into).collect()),
        groups => Groups::Partition(Partition::new(groups.iter().map(|group| group.iter().copied()))),
    };
    groups.check().map_err(|e| e.to_string())?;
    Ok(groups)
}

pub fn run(arguments: &Arguments) -> Ended {
    crate::check_alone("run")?;
    if let Some(plan) = &arguments.plan {
        return run_plan::run(plan, arguments);
    }
    let summary = run_ranks(arguments)?;
    if arguments.json {
        print_json("distcollective.run/1", summary);
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs all ranks, and tells what they did.
fn run_ranks(arguments: &Arguments) -> Result<Value, Failure> {
    let files = |option: &str, patterns: &[String]| match patterns {
        [pattern] => rank_files::of_ranks(option, pattern, arguments.n),
        _ => Err(Failure::usage(format!("{option} is given {} times, and a layer needs one", patterns.len()))),
    };
    let input_files = files("--input", &arguments.input)?;
    let output_files = files("--output", &arguments.output)?;
    let layer = layer(arguments).map_err(Failure::usage)?;
    let backend = arguments.backend.resolve(arguments.n)?;
    let timeout = crate::timeout(arguments.timeout)?;
    rank_files::check_apart(&input_files, &output_files)?;
    let inputs = read_inputs(&input_files, arguments.dtype)?;
    let builder = Communicator::builder().backend(backend).timeout(timeout);
    let run = |communicator: Communicator| run_rank(&layer, &communicator, &inputs[communicator.rank().index()]);
    let outputs = builder.spawn(arguments.n, run)?;
    write_outputs(&output_files, &outputs)?;
    let ranks = input_files.iter().zip(&output_files).zip(inputs.iter().zip(&outputs)).enumerate();
    let ranks: Vec<Value> = ranks
        .map(|(rank, ((input_file, output_file), (input, output)))| {
            json!({
                "rank": rank,
                "input": tensor(input_file, input),
                "output": output.as_ref().map(|output| tensor(output_file, output)),
            })
        })
        .collect();
    Ok(json!({
        "operation": layer.collective_operation().name(),
        "reduce_op": layer.reduce_op().map(ReduceOperation::name),
        "root": layer.root().map(Root::number),
        "groups": match layer.groups() {
            Groups::All => None,
            Groups::Group(group) => Some(vec![numbers(group)]),
            Groups::Partition(partition) => Some(partition.groups().iter().map(|group| numbers(group)).collect()),
        },
        "backend": backend.name(),
        "ranks": ranks,
    }))
}

fn numbers(ranks: &[Rank]) -> Vec<u32> {
    ranks.iter().map(|rank| rank.0).collect()
}

/// A file and the tensor in it, as JSON.
fn tensor(file: &Path, buffer: &Buffer) -> Value {
    json!({ "file": file.to_string_lossy(), "data_type": buffer.data_type().name(), "shape": buffer.shape().as_slice() })
}

fn layer(arguments: &Arguments) -> Result<DistCollectiveLayer, String> {
    let Arguments { op: Some(op), reduce_op, root, groups, n, .. } = arguments else {
        return Err("no operation is given; give it with --op".to_owned());
    };
    if op.has_root() && root.is_none() {
        return Err(format!("{op} has a root; give it with --root"));
    }
    if op.reduces() && reduce_op.is_none() {
        return Err(format!("{op} reduces; give sum, prod, max, min or avg with --reduce-op"));
    }
    let in_groups: Vec<Rank> = match groups {
        None | Some(Groups::All) => Vec::new(),
        Some(Groups::Group(group)) => group.clone(),
        Some(Groups::Partition(partition)) => partition.groups().concat(),
    };
    if let Some(rank) = in_groups.iter().find(|rank| rank.0 >= *n) {
        return Err(format!("--groups has rank {rank}, and there are {n} ranks"));
    }
    let set = || {
        let mut layer = DistCollectiveLayer::new(*op, *reduce_op, root.map_or(-1, i64::from), &[])?;
        match groups {
            None => layer.set_nb_rank(*n)?,
            Some(groups) => layer.set_groups(groups.clone())?,
        }
        // In a partition the root counts within each group.
        if let (Some(Groups::Partition(_)), Some(root)) = (groups, layer.root()) {
            layer.set_root(Some(GroupRank(root.number()).into()));
        }
        layer.output_dims(&Dims::new(&[-1])?)?;
        Ok(layer)
    };
    set().map_err(|e: distcollective::Error| e.to_string())
}

/// Reads all inputs before any rank starts, so that an error in a file is one line.
fn read_inputs(files: &[PathBuf], wanted: Option<DataType>) -> Result<Vec<Buffer>, String> {
    let bytes = files.iter().filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum();
    let bar = progress::bar("reading", bytes);
    let mut inputs: Vec<Buffer> = Vec::new();
    for file in files {
        let input = npy::read(file, wanted, &bar)?;
        if let Some(first) = inputs.first()
            && (first.data_type(), first.shape()) != (input.data_type(), input.shape())
        {
            return Err(format!(
                "{} is {} {}, and {} is {} {}; the ranks' inputs have one type and shape",
                file.display(),
                input.data_type(),
                input.shape(),
                files[0].display(),
                first.data_type(),
                first.shape()
            ));
        }
        inputs.push(input);
    }
    Ok(inputs)
}

/// Writes the outputs of the ranks that have one, after all ranks have succeeded.
fn write_outputs(files: &[PathBuf], outputs: &[Option<Buffer>]) -> Result<(), String> {
    let bytes = outputs.iter().flatten().map(|output| output.byte_len() as u64).sum();
    let bar = progress::bar("writing", bytes);
    let mut files = files.iter().zip(outputs);
    files.try_for_each(|(file, output)| output.as_ref().map_or(Ok(()), |output| npy::write(file, output, &bar)))
}

fn run_rank(
    layer: &DistCollectiveLayer,
    communicator: &Communicator,
    input: &Buffer,
) -> distcollective::Result<Option<Buffer>> {
    let bound = layer.bind(communicator, input.data_type())?;
    let shape = input.shape();
    let output_shape = bound.output_shape(shape.as_slice())?;
    let mut output = Buffer::zeroed(input.data_type(), output_shape)?;
    bound.execute(Some(TensorView::from(input)), Some(TensorViewMut::from(&mut output)), shape.as_slice())?;
    Ok(bound.writes_output().then_some(output))
}

#[cfg(test)]
mod tests {
    use super::groups;

    #[test]
    fn groups_are_read_and_checked() {
        for (text, shown) in [("2,0", "[2, 0]"), (" 2 , 0 ", "[2, 0]"), ("3", "[3]"), ("0,1;2,3", "[[0, 1], [2, 3]]")] {
            assert_eq!(groups(text).map(|groups| groups.to_string()).as_deref(), Ok(shown));
        }
        for (text, says) in [
            ("", "\"\" is not a rank; give ranks as '2,0', and several groups as '0,1;2,3'"),
            ("0,1;", "\"\" is not a rank"),
            ("0,-1", "\"-1\" is not a rank"),
            ("0,1;2", "equal lengths"),
            ("0,1;1,2", "rank 1 occurs twice"),
        ] {
            let error = groups(text).expect_err(text);
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}
