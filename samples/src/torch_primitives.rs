//! The examples of torch.distributed's tutorials on collectives, with four ranks: threads of this
//! process, or the processes of a launcher.
//!
//! ```text
//! torch_primitives --example all_reduce
//! distcollective launch -n 4 -- torch_primitives --example all_reduce
//! ```
//!
//! Each rank has the tensor `[rank + 1]`, unless the example says something else.

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use distcollective::{Communicator, Environment, Error, ErrorKind, ReduceOperation, Result};

/// The number of ranks.
const RANKS: u32 = 4;

/// The rank from which or to which data goes, in examples that have one.
const ROOT: u32 = 0;

/// Runs one of the primitives of torch.distributed's tutorials on four ranks.
#[derive(Parser)]
#[command(name = "torch_primitives", version)]
struct Arguments {
    /// The primitive
    #[arg(long, value_enum)]
    example: Example,
}

#[derive(Clone, Copy, ValueEnum)]
#[value(rename_all = "snake_case")]
enum Example {
    Broadcast,
    AllReduce,
    Reduce,
    Scatter,
    Gather,
    AllGather,
    Async,
}

impl Example {
    /// The part of one rank.
    fn body(self) -> fn(&Communicator) -> Result<()> {
        match self {
            Example::Broadcast => broadcast,
            Example::AllReduce => all_reduce,
            Example::Reduce => reduce,
            Example::Scatter => scatter,
            Example::Gather => gather,
            Example::AllGather => all_gather,
            Example::Async => asynchronous,
        }
    }
}

/// A rank's tensor.
fn tensor_of(communicator: &Communicator) -> [f32; 1] {
    [communicator.rank().0 as f32 + 1.0]
}

/// The root's tensor is 1; every rank gets it.
fn broadcast(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank();
    let mut tensor = [if rank.0 == ROOT { 1.0f32 } else { 0.0 }];
    communicator.broadcast(&mut tensor, ROOT)?;
    println!("Rank {rank} has data: {:?}", tensor[0]);
    Ok(())
}

fn all_reduce(communicator: &Communicator) -> Result<()> {
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    println!("Rank {rank} initial tensor: {:?}", tensor[0]);
    communicator.all_reduce(&mut tensor, ReduceOperation::Sum)?;
    println!("Rank {rank} final tensor: {:?}", tensor[0]);
    Ok(())
}

/// Only the root gets the sum. The others keep their tensor.
fn reduce(communicator: &Communicator) -> Result<()> {
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    println!("Rank {rank} initial tensor: {:?}", tensor[0]);
    communicator.reduce(&mut tensor, ReduceOperation::Sum, ROOT)?;
    println!("Rank {rank} final tensor: {:?}", tensor[0]);
    Ok(())
}

/// The root has a list of tensors, one for each rank.
fn scatter(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank();
    let list: Vec<[f32; 1]> = (1..=communicator.world_size()).map(|value| [value as f32]).collect();
    let mut tensor = [0.0f32];
    let is_root = rank.0 == ROOT;
    if is_root {
        println!("Rank {rank} scatter list: {:?}", list.as_flattened());
    }
    communicator.scatter_list(is_root.then_some(&list), &mut tensor, ROOT)?;
    println!("Rank {rank} received tensor: {:?}", tensor[0]);
    Ok(())
}

/// The root gets a list of tensors, one from each rank.
fn gather(communicator: &Communicator) -> Result<()> {
    let (rank, tensor) = (communicator.rank(), tensor_of(communicator));
    println!("Rank {rank} sent tensor: {:?}", tensor[0]);
    let mut list = vec![[0.0f32]; communicator.world_size() as usize];
    let is_root = rank.0 == ROOT;
    communicator.gather_list(&tensor, is_root.then_some(&mut list), ROOT)?;
    if is_root {
        println!("Rank {rank} gathered list: {:?}", list.as_flattened());
    }
    Ok(())
}

/// Every rank gets the list.
fn all_gather(communicator: &Communicator) -> Result<()> {
    let (rank, tensor) = (communicator.rank(), tensor_of(communicator));
    println!("Rank {rank} sent tensor: {:?}", tensor[0]);
    let mut list = vec![[0.0f32]; communicator.world_size() as usize];
    communicator.all_gather_list(&tensor, &mut list)?;
    println!("Rank {rank} gathered list: {:?}", list.as_flattened());
    Ok(())
}

/// The tensors are the ranks. Each rank is free to compute until it needs the sum.
fn asynchronous(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank();
    let work = communicator.all_reduce_async(vec![rank.0 as f32], ReduceOperation::Sum)?;
    let operands = work.wait()?;
    let sum = operands.output.expect("the work hands the buffer back");
    println!("Rank {rank} async all_reduce result: {:?}", sum.as_slice::<f32>()?[0]);
    Ok(())
}

fn run(example: Example) -> Result<()> {
    let body = example.body();
    if Environment::detect_launcher().is_none() {
        return Communicator::spawn(RANKS, |communicator| body(&communicator)).map(drop);
    }
    let environment = Environment::from_env()?;
    if environment.world_size() != RANKS {
        let text = format!("the examples are for {RANKS} ranks, and there are {}", environment.world_size());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    body(environment.communicator())?;
    environment.finalize()
}

fn main() -> ExitCode {
    distcollective::log::show_warnings();
    match run(Arguments::parse().example) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}
