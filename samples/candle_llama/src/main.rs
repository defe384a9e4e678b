//! A tensor-parallel llama in candle: each rank loads its part of every matrix from one safetensors
//! file of random weights, and the ranks' logits are compared with those of the model on one rank.
//!
//! Run it with `cargo run --release -p candle_llama -- --ranks 4`, where ranks are threads, or
//! under a launcher, where each is a process: `distcollective launch -n 4 -- candle_llama`.

mod model;
#[path = "../../src/output.rs"]
mod output;
mod weights;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use candle_core::{DType, Device};
use candle_nn::var_builder::ShardedSafeTensors;
use clap::Parser;
use distcollective::comm::BackendKind;
use distcollective::{Communicator, Environment, Error, ErrorKind, Rank, Result};
use tempfile::NamedTempFile;

use crate::model::{Config, Llama};
use crate::output::{fail, parse, print};

/// Runs a tensor-parallel llama with random weights, and compares its logits with those of the
/// model on one rank.
///
/// Examples:
///   candle_llama --ranks 4
///   distcollective launch -n 4 -- candle_llama
#[derive(Parser)]
#[command(name = "candle_llama", version, verbatim_doc_comment)]
struct Arguments {
    /// The number of ranks, which are threads. Under a launcher it does not count
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..))]
    ranks: u32,
    /// What moves the tensors: host or, which is not supported yet, nccl
    #[arg(long, default_value = "host")]
    backend: BackendKind,
}

const CONFIG: Config = Config {
    vocab: 256,
    hidden: 64,
    intermediate: 192,
    layers: 4,
    heads: 8,
    kv_heads: 4,
    max_positions: 64,
    rope_theta: 10_000.0,
    norm_eps: 1e-5,
};

const PROMPT: [u32; 12] = [3, 141, 59, 26, 53, 58, 97, 93, 238, 46, 26, 43];

/// The tokens that are generated behind the prompt.
const STEPS: usize = 8;

/// How much logits may differ from those of one rank, relative to the largest of these. An
/// all_reduce adds the products of a row in another order than one rank does.
const BOUND: f32 = 1e-5;

/// What a failure of candle is in the library's errors.
fn of_candle(error: candle_core::Error) -> Error {
    Error::new(ErrorKind::Plugin, error.to_string())
}

/// A file of weights, which is removed when it is dropped.
fn make_weights() -> Result<NamedTempFile> {
    let no_file = |error| Error::new(ErrorKind::System, "no temporary file for the weights").with_source(error);
    let file = NamedTempFile::with_suffix(".safetensors").map_err(no_file)?;
    weights::save(&CONFIG, file.path()).map_err(of_candle)?;
    Ok(file)
}

/// Loads the model of each communicator from the same file.
fn load(path: &Path, communicators: [&Communicator; 2]) -> candle_core::Result<[Llama; 2]> {
    // SAFETY: rank 0 has written the file, and no process writes it again.
    let vb = unsafe { ShardedSafeTensors::var_builder(&[path], DType::F32, &Device::Cpu)? };
    let [split, whole] = communicators.map(|communicator| Llama::load(&CONFIG, vb.clone(), communicator));
    Ok([split?, whole?])
}

/// Generates tokens with both models, and gives whether their logits agree. Each token is that of
/// the whole model, so that both models get the same ones.
fn compare(rank: Rank, mut split: Llama, mut whole: Llama) -> candle_core::Result<bool> {
    let (mut tokens, mut position, mut passed) = (PROMPT.to_vec(), 0, true);
    for _ in 0..STEPS {
        let of_split = split.forward(&tokens, position)?;
        let of_whole = whole.forward(&tokens, position)?;
        position += tokens.len();
        let largest = of_whole.abs()?.max(0)?.to_scalar::<f32>()?;
        let difference = (of_split - &of_whole)?.abs()?.max(0)?.to_scalar::<f32>()? / largest;
        let token = of_whole.argmax(0)?.to_scalar::<u32>()?;
        let close = difference <= BOUND;
        passed &= close;
        let result = if close { "PASSED" } else { "FAILED" };
        let differ = format!("logits differ from those of one rank by at most {difference:.1e} of the largest");
        print(format!("Rank {rank} - token {position} is {token:3}: {differ} {result}\n"));
        tokens = vec![token];
    }
    Ok(passed)
}

/// Runs one rank, and gives whether its logits are right.
fn run_rank(communicator: &Communicator) -> Result<bool> {
    let rank = communicator.rank();
    let file = if rank == Rank(0) { Some(make_weights()?) } else { None };
    let mut path = file.as_ref().map_or_else(Vec::new, |file| file.path().as_os_str().as_bytes().to_vec());
    communicator.broadcast_bytes(&mut path, 0)?;
    let alone = Communicator::builder().in_process(1)?.remove(0);
    let [split, whole] = load(Path::new(OsStr::from_bytes(&path)), [communicator, &alone]).map_err(of_candle)?;
    // Every rank has loaded its part, so rank 0 may remove the file.
    communicator.barrier()?;
    drop(file);
    compare(rank, split, whole).map_err(of_candle)
}

/// Runs this process as one rank of a launcher's job.
fn as_one_rank() -> Result<bool> {
    let environment = Environment::builder().backend(BackendKind::Host).initialize()?;
    let passed = run_rank(environment.communicator())?;
    environment.finalize()?;
    Ok(passed)
}

/// Runs the ranks as threads of this process.
fn as_threads(ranks: u32) -> Result<bool> {
    let passed = Communicator::spawn(ranks, |communicator| run_rank(&communicator))?;
    Ok(passed.into_iter().all(|passed| passed))
}

fn run(Arguments { ranks, backend }: Arguments) -> Result<bool> {
    if backend != BackendKind::Host {
        let text =
            "distcollective-candle has no support for CUDA yet, so the model runs on the CPU; use --backend host";
        return Err(Error::new(ErrorKind::Unsupported, text).about(|| format!("--backend {backend}")));
    }
    if Environment::detect_launcher().is_some() { as_one_rank() } else { as_threads(ranks) }
}

fn main() -> ExitCode {
    distcollective::log::show_warnings();
    match run(parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => fail(error),
    }
}
