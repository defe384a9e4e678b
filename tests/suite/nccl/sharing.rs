//! Ranks that are threads and share a GPU. Some calls of CUDA wait for all work of the process on
//! the GPU and hold back launches meanwhile: to free memory, as NCCL does when it destroys a
//! communicator, and to load a module. The work of one rank waits for the launch of another, so no
//! rank may make such a call then.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use distcollective::comm::Operands;
use distcollective::{Buffer, Communicator, DataType, Determinism, Rank, ReduceOperation, Result};

use super::captures::SUM;
use super::{Child, available_ranks, cuda_stream, is_on_gpu, on_gpus};

/// Plays a role in a child.
pub fn play(name: &str, ranks: u32) {
    let barrier = Arc::new(Barrier::new(ranks as usize));
    match name {
        "memory" => on_gpus(ranks, |communicator| drops_memory(&communicator)),
        "groups" => on_gpus(ranks, |communicator| drops_groups(&communicator)),
        "kernels" => on_gpus(ranks, move |communicator| loads_kernels(&communicator, &barrier)),
        _ => panic!("{name} is no role"),
    }
}

/// Each rank drops memory and enqueues a sum, again and again.
fn drops_memory(communicator: &Communicator) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let mut sum = Operands::in_place(Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?);
    for round in 1..300 {
        drop(Buffer::zeroed_in(communicator.space(), DataType::Float32, [round])?);
        sum = communicator.collective_async(SUM, sum, &stream)?.wait()?;
    }
    Ok(())
}

/// Each rank drops a group and enqueues a sum, again and again.
fn drops_groups(communicator: &Communicator) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let mut sum = Operands::in_place(Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?);
    for _ in 0..20 {
        drop(communicator.split(Some(0), 0)?);
        for _ in 0..20 {
            sum = communicator.collective_async(SUM, sum, &stream)?.wait()?;
        }
    }
    Ok(())
}

/// Rank 0 needs a kernel that is not loaded yet while its sum waits for the others.
fn loads_kernels(communicator: &Communicator, barrier: &Barrier) -> Result<()> {
    let stream = cuda_stream(communicator)?;
    let sum = Operands::in_place(Buffer::zeroed_in(communicator.space(), DataType::Float32, [4])?);
    let mut exact = [1f32; 4];
    barrier.wait();
    if communicator.rank() != Rank(0) {
        // Time for rank 0 to come to the second call.
        std::thread::sleep(Duration::from_millis(200));
    }
    let work = communicator.collective_async(SUM, sum, &stream)?;
    communicator.with_determinism(Determinism::Exact).all_reduce(&mut exact, ReduceOperation::Sum)?;
    assert_eq!(exact, [communicator.world_size() as f32; 4]);
    work.wait()?;
    Ok(())
}

fn plays(name: &str) {
    let settings = &[("FAKE_CUDA_DEVICES", "1"), ("NCCL_MULTI_RANK_GPU_ENABLE", "1")];
    if is_on_gpu() && available_ranks() < 2 {
        println!("skipped: 2 ranks need more GPUs");
        return;
    }
    Child::new(name, 2).with(settings).passes();
}

#[test]
fn dropped_memory_holds_back_no_rank() {
    plays("sharing memory");
}

#[test]
fn dropped_groups_hold_back_no_rank() {
    plays("sharing groups");
}

#[test]
fn kernels_are_loaded_while_no_rank_waits() {
    plays("sharing kernels");
}
