//! The examples of torch.distributed's tutorials on collectives, with four ranks: threads of this
//! process, or the processes of a launcher.
//!
//! ```text
//! torch_primitives --example all_reduce
//! distcollective launch -n 4 -- torch_primitives --example all_reduce
//! ```
//!
//! Each rank has the tensor `[rank + 1]`, unless the example says something else.

mod output;

use std::process::ExitCode;

use clap::{Parser, ValueEnum};
use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::{Communicator, Environment, Error, ErrorKind, ReduceOperation, Result};

use crate::output::{fail, print};

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
    SendRecv,
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
            Example::SendRecv => send_recv,
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
    print(format!("Rank {rank} has data: {:?}\n", tensor[0]));
    Ok(())
}

fn all_reduce(communicator: &Communicator) -> Result<()> {
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    print(format!("Rank {rank} initial tensor: {:?}\n", tensor[0]));
    communicator.all_reduce(&mut tensor, ReduceOperation::Sum)?;
    print(format!("Rank {rank} final tensor: {:?}\n", tensor[0]));
    Ok(())
}

/// Only the root gets the sum. The others keep their tensor.
fn reduce(communicator: &Communicator) -> Result<()> {
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    print(format!("Rank {rank} initial tensor: {:?}\n", tensor[0]));
    communicator.reduce(&mut tensor, ReduceOperation::Sum, ROOT)?;
    print(format!("Rank {rank} final tensor: {:?}\n", tensor[0]));
    Ok(())
}

/// The root has a list of tensors, one for each rank.
fn scatter(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank();
    let list: Vec<[f32; 1]> = (1..=communicator.world_size()).map(|value| [value as f32]).collect();
    let mut tensor = [0.0f32];
    let is_root = rank.0 == ROOT;
    if is_root {
        print(format!("Rank {rank} scatter list: {:?}\n", list.as_flattened()));
    }
    communicator.scatter_list(is_root.then_some(&list), &mut tensor, ROOT)?;
    print(format!("Rank {rank} received tensor: {:?}\n", tensor[0]));
    Ok(())
}

/// The root gets a list of tensors, one from each rank.
fn gather(communicator: &Communicator) -> Result<()> {
    let (rank, tensor) = (communicator.rank(), tensor_of(communicator));
    let mut list = vec![[0.0f32]; communicator.world_size() as usize];
    let is_root = rank.0 == ROOT;
    communicator.gather_list(&tensor, is_root.then_some(&mut list), ROOT)?;
    print(match is_root {
        true => format!("Rank {rank} gathered list: {:?}\n", list.as_flattened()),
        false => format!("Rank {rank} sent tensor: {:?}\n", tensor[0]),
    });
    Ok(())
}

/// Every rank gets the list.
fn all_gather(communicator: &Communicator) -> Result<()> {
    let (rank, tensor) = (communicator.rank(), tensor_of(communicator));
    print(format!("Rank {rank} sent tensor: {:?}\n", tensor[0]));
    let mut list = vec![[0.0f32]; communicator.world_size() as usize];
    communicator.all_gather_list(&tensor, &mut list)?;
    print(format!("Rank {rank} gathered list: {:?}\n", list.as_flattened()));
    Ok(())
}

/// The tensors are the ranks. Each rank is free to compute until it needs the sum.
fn asynchronous(communicator: &Communicator) -> Result<()> {
    let rank = communicator.rank();
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    let work = communicator.collective_async(sum, Operands::in_place(vec![rank.0 as f32]), &communicator.stream()?)?;
    let operands = work.wait()?;
    let sum = operands.output.expect("the work hands the buffer back");
    print(format!("Rank {rank} async all_reduce result: {:?}\n", sum.as_slice::<f32>()?[0]));
    Ok(())
}

/// Ranks 0 and 2 send their tensor to the next rank.
fn send_recv(communicator: &Communicator) -> Result<()> {
    const TAG: u32 = 0;
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    if rank.0 % 2 == 0 {
        communicator.send(&tensor, rank.0 + 1, TAG)?;
        print(format!("Rank {rank} sent tensor: {:?}\n", tensor[0]));
    } else {
        communicator.recv(&mut tensor, rank.0 - 1, TAG)?;
        print(format!("Rank {rank} received tensor: {:?}\n", tensor[0]));
    }
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
    match run(output::parse::<Arguments>().example) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => fail(error),
    }
}
