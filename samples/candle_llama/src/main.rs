//! A tensor-parallel llama in candle: each rank loads its part of every matrix from one safetensors
//! file of random weights, and the ranks' logits are compared with those of the model on one rank.
//!
//! Run it with `cargo run --release -p candle_llama -- --ranks 4`, where ranks are threads, or
//! under a launcher, where each is a process: `distcollective launch -n 4 -- candle_llama`.

mod model;
mod weights;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use candle_core::{DType, Device};
use candle_nn::var_builder::ShardedSafeTensors;
use clap::Parser;
use distcollective::comm::BackendKind;
use distcollective::{Communicator, Environment, Error, ErrorKind, Rank, Result};
use tempfile::NamedTempFile;

use crate::model::{Config, Llama};

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
    #[arg(long, default_value_t = 2)]
    ranks: u32,
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

/// Generates tokens with both models, whose logits have to agree. Each token is that of the whole
/// model, so that both models get the same ones.
fn compare(rank: Rank, mut split: Llama, mut whole: Llama) -> candle_core::Result<()> {
    let (mut tokens, mut position) = (PROMPT.to_vec(), 0);
    for _ in 0..STEPS {
        let of_split = split.forward(&tokens, position)?;
        let of_whole = whole.forward(&tokens, position)?;
        position += tokens.len();
        let largest = of_whole.abs()?.max(0)?.to_scalar::<f32>()?;
        let difference = (of_split - &of_whole)?.abs()?.max(0)?.to_scalar::<f32>()? / largest;
        let token = of_whole.argmax(0)?.to_scalar::<u32>()?;
        let differ = format!("logits differ from those of one rank by at most {difference:.1e} of the largest");
        assert!(difference <= BOUND, "{differ}");
        println!("Rank {rank} - token {position} is {token:3}: {differ} PASSED");
        tokens = vec![token];
    }
    Ok(())
}

/// Runs one rank.
fn run_rank(communicator: &Communicator) -> Result<()> {
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

fn main() -> Result<()> {
    let Arguments { ranks } = Arguments::parse();
    if Environment::detect_launcher().is_none() {
        return Communicator::spawn(ranks, |communicator| run_rank(&communicator)).map(drop);
    }
    // Its tensors are on the CPU.
    let environment = Environment::builder().backend(BackendKind::Host).initialize()?;
    run_rank(environment.communicator())?;
    environment.finalize()
}
