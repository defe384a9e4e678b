//! `distcollective broadcast-weights`: gives every rank the tensors of a file.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::ValueHint;
use distcollective::comm::BackendKind;
use distcollective::tensor_dict::BroadcastOptions;
use distcollective::{Communicator, TensorDict};
use indicatif::ProgressBar;
use serde_json::{Value, json};

use crate::output::{Ended, Failure, print, print_json};
use crate::{names, progress, rank_files};

/// Broadcasts the tensors of a safetensors file from rank 0 to all ranks, each a thread.
///
/// Rank 0 maps the file, so nothing may change it meanwhile. With --output each rank writes what it
/// has then; `{rank}` in the name stands for the rank. No output may be the file itself.
///
/// Example: distcollective broadcast-weights m.safetensors -n 2 --output 'copy{rank}.safetensors'
#[derive(clap::Args)]
pub struct Arguments {
    /// The file
    #[arg(value_name = "MODEL.safetensors", value_hint = ValueHint::FilePath)]
    model: PathBuf,
    /// The number of ranks
    #[arg(short, long = "ranks", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    n: u32,
    /// The files that the ranks write, with {rank} in the name; none unless given
    #[arg(long, value_hint = ValueHint::FilePath)]
    output: Option<String>,
    /// The backend; auto is NCCL if there is a GPU for each rank
    #[arg(long, default_value = "host", value_parser = names::backend(&[]))]
    backend: BackendKind,
    /// The ranks other than 0 share one copy
    #[arg(long)]
    shared: bool,
    /// How long the whole broadcast may take, in seconds [default: DCL_TIMEOUT, or 60]
    #[arg(long, value_parser = crate::seconds)]
    timeout: Option<Duration>,
    /// Print one line of JSON instead of a sentence
    #[arg(long)]
    json: bool,
}

pub fn run(arguments: &Arguments) -> Ended {
    crate::check_alone("broadcast-weights")?;
    let summary = run_ranks(arguments)?;
    match arguments.json {
        true => print_json("distcollective.broadcast-weights/1", summary),
        false => print(sentence(&summary)),
    }
    Ok(ExitCode::SUCCESS)
}

/// `2 ranks have 300 tensors of 2147483648 bytes after 0.412 s`.
fn sentence(summary: &Value) -> String {
    let count = |key: &str, noun: &str| match summary[key].as_u64() {
        Some(1) => format!("1 {noun}"),
        count => format!("{} {noun}s", count.unwrap_or_default()),
    };
    let verb = if summary["world_size"] == 1 { "has" } else { "have" };
    let seconds = summary["seconds"].as_f64().unwrap_or_default();
    format!(
        "{} {verb} {} of {} after {seconds:.3} s\n",
        count("world_size", "rank"),
        count("tensor_count", "tensor"),
        count("tensor_bytes", "byte")
    )
}

fn run_ranks(arguments: &Arguments) -> Result<Value, Failure> {
    let n = arguments.n;
    let outputs = arguments.output.as_ref().map(|pattern| rank_files::of_ranks("--output", pattern, n)).transpose()?;
    let backend = arguments.backend.resolve(n)?;
    let timeout = crate::timeout(arguments.timeout)?;
    let model = std::slice::from_ref(&arguments.model);
    outputs.as_ref().map_or(Ok(()), |outputs| rank_files::check_apart(model, outputs))?;
    // SAFETY: the help says that nothing may change the file. This program does not.
    let model = unsafe { TensorDict::map(&arguments.model) }?;
    let (tensors, bytes) = (model.len(), model.byte_len());
    let builder = Communicator::builder().backend(backend).timeout(timeout);
    let bar = progress::bar("broadcasting", bytes);
    let model = std::sync::Mutex::new(Some(model));
    let receive = |communicator: Communicator| {
        let rank = communicator.rank().0;
        // The source's dictionary is rank 0's.
        let own = if rank == 0 { model.lock().ok().and_then(|mut model| model.take()) } else { None };
        let (mut dict, start) = (own.unwrap_or_default(), Instant::now());
        communicator.broadcast_tensor_dict(&mut dict, &options(arguments.shared, rank == n - 1, rank == 0, &bar))?;
        Ok((start.elapsed().as_secs_f64(), dict))
    };
    let received = builder.spawn(n, receive)?;
    let (seconds, dicts): (Vec<f64>, Vec<_>) = received.into_iter().unzip();
    bar.finish_and_clear();
    if let Some(outputs) = &outputs {
        write(outputs, &dicts)?;
    }
    let outputs: Option<Vec<_>> = outputs.map(|files| files.iter().map(|file| shown(file)).collect());
    Ok(json!({
        "file": shown(&arguments.model),
        "world_size": n,
        "backend": backend.name(),
        "tensor_count": tensors,
        "tensor_bytes": bytes,
        "seconds": seconds.into_iter().fold(0.0, f64::max),
        "outputs": outputs,
    }))
}

/// The last rank moves the bar: it is a receiver, if there is one. Of ranks that share only the
/// source sees the pieces.
fn options(shared: bool, is_last: bool, is_source: bool, bar: &ProgressBar) -> BroadcastOptions {
    let (bar, options) = (bar.clone(), BroadcastOptions::new().shared(shared));
    match if shared { is_source } else { is_last } {
        true => options.progress(move |progress| bar.set_position(progress.byte_count)),
        false => options,
    }
}

/// Writes the dictionaries of all ranks, after all have succeeded.
fn write(files: &[PathBuf], dicts: &[TensorDict]) -> distcollective::Result<()> {
    let bar = progress::bar("writing", dicts.iter().map(TensorDict::byte_len).sum());
    files.iter().zip(dicts).try_for_each(|(file, dict)| {
        dict.save(file)?;
        bar.inc(dict.byte_len());
        Ok(())
    })
}

fn shown(file: &Path) -> String {
    file.to_string_lossy().into_owned()
}
