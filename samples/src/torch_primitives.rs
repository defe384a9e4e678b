//! The examples of torch.distributed's tutorials on collectives, with four ranks: threads of this
//! process, or the processes of a launcher.
//!
//! ```text
//! torch_primitives all_reduce
//! distcollective launch -n 4 -- torch_primitives all_reduce
//! ```
//!
//! Each rank has the tensor `[rank + 1]`, unless the example says something else.

use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective::{Communicator, Environment, Error, ErrorKind, ReduceOperation, Result};

/// The number of ranks.
const RANKS: u32 = 4;

/// The rank from which or to which data goes, in examples that have one.
const ROOT: u32 = 0;

/// What one rank does.
type Example = fn(&Communicator) -> Result<()>;

const EXAMPLES: [(&str, Example); 8] = [
    ("broadcast", broadcast),
    ("all_reduce", all_reduce),
    ("reduce", reduce),
    ("scatter", scatter),
    ("gather", gather),
    ("all_gather", all_gather),
    ("async", asynchronous),
    ("send_recv", send_recv),
];

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
    let mut list = vec![[0.0f32]; communicator.world_size() as usize];
    let is_root = rank.0 == ROOT;
    communicator.gather_list(&tensor, is_root.then_some(&mut list), ROOT)?;
    match is_root {
        true => println!("Rank {rank} gathered list: {:?}", list.as_flattened()),
        false => println!("Rank {rank} sent tensor: {:?}", tensor[0]),
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
    let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    let work = communicator.collective_async(sum, Operands::in_place(vec![rank.0 as f32]), &communicator.stream()?)?;
    let operands = work.wait()?;
    let sum = operands.output.expect("the work hands the buffer back");
    println!("Rank {rank} async all_reduce result: {:?}", sum.as_slice::<f32>()?[0]);
    Ok(())
}

/// Ranks 0 and 2 send their tensor to the next rank.
fn send_recv(communicator: &Communicator) -> Result<()> {
    const TAG: u32 = 0;
    let (rank, mut tensor) = (communicator.rank(), tensor_of(communicator));
    if rank.0 % 2 == 0 {
        communicator.send(&tensor, rank.0 + 1, TAG)?;
        println!("Rank {rank} sent tensor: {:?}", tensor[0]);
    } else {
        communicator.recv(&mut tensor, rank.0 - 1, TAG)?;
        println!("Rank {rank} received tensor: {:?}", tensor[0]);
    }
    Ok(())
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or_default();
    let Some((_, example)) = EXAMPLES.into_iter().find(|(known, _)| *known == name) else {
        let names = EXAMPLES.map(|(name, _)| name).join(", ");
        return Err(Error::new(ErrorKind::InvalidArgument, format!("{name:?} is no example; they are {names}")));
    };
    if Environment::detect_launcher().is_none() {
        return Communicator::spawn(RANKS, |communicator| example(&communicator)).map(drop);
    }
    let environment = Environment::from_env()?;
    if environment.world_size() != RANKS {
        let text = format!("the examples are for {RANKS} ranks, and there are {}", environment.world_size());
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    example(environment.communicator())?;
    environment.finalize()
}
