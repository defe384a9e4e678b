//! One layer, run on files.

use std::path::{Path, PathBuf};

use distcollective::collective::GroupRank;
use distcollective::tensor::{Dims, TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, DataType, DistCollectiveLayer, Groups, Rank, ReduceOperation, Root};
use serde_json::{Value, json};

use super::Arguments;
use crate::output::Failure;
use crate::{npy, progress, rank_files};

/// Runs all ranks, and tells what they did.
pub(super) fn run_ranks(arguments: &Arguments) -> Result<Value, Failure> {
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
