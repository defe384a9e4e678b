//! Dictionaries of tensors on GPUs: where what arrives lies, and where it comes from.

use distcollective::tensor::MemorySpace;
use distcollective::tensor_dict::{BroadcastOptions, Tensor};
use distcollective::{Communicator, ErrorKind, Rank, Result, TensorDict};

use super::{Child, needs_more_gpus, on_gpus};
use crate::tensor_dict::{assert_has, weights};

fn spaces(dict: &TensorDict) -> Vec<MemorySpace> {
    let mut spaces: Vec<MemorySpace> = dict.iter().map(|(_, tensor)| tensor.space()).collect();
    spaces.dedup();
    spaces
}

pub fn play(ranks: u32) {
    on_gpus(ranks, |communicator| {
        arrive_on_the_gpu(&communicator)?;
        arrive_where_the_options_say(&communicator)?;
        refuse_pinned_memory_of_a_gpu(&communicator)?;
        #[cfg(feature = "safetensors")]
        come_from_a_mapped_file(&communicator)?;
        communicator.finalize()
    });
}

fn arrive_on_the_gpu(communicator: &Communicator) -> Result<()> {
    let (rank, own) = (communicator.rank(), communicator.space());
    let mut dict = if rank == Rank(0) { weights(0) } else { TensorDict::new() };
    communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new())?;
    assert_eq!(spaces(&dict), [if rank == Rank(0) { MemorySpace::Host } else { own }]);
    assert_has(&dict, &weights(0), 0);

    // Each is filled where it lies, from the memory of a GPU.
    let last = communicator.world_size() - 1;
    let addresses = |dict: &TensorDict| -> Vec<_> {
        dict.iter().filter_map(|(_, tensor)| tensor.as_buffer()).map(|buffer| buffer.as_ptr()).collect()
    };
    let before = addresses(&dict);
    if rank == Rank(last) {
        // The pattern of another seed, written into the tensors that came.
        for (name, tensor) in weights(7).iter() {
            let mut bytes = vec![0; tensor.byte_len()];
            tensor.read(0, &mut bytes)?;
            match dict.get_mut(name).and_then(Tensor::as_mut_buffer) {
                Some(buffer) => buffer.write(0, &bytes)?,
                None => drop(dict.insert(name, weights(7).remove(name).expect("it is there"))),
            }
        }
        *dict.metadata_mut() = weights(7).metadata().clone();
    }
    communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new().src(last))?;
    assert_has(&dict, &weights(7), 0);
    assert!(addresses(&dict).starts_with(&before) || last == 0);
    Ok(())
}

fn arrive_where_the_options_say(communicator: &Communicator) -> Result<()> {
    let (rank, own) = (communicator.rank(), communicator.space());
    let mut dict = if rank == Rank(0) { weights(1) } else { TensorDict::new() };
    let to_cpu = BroadcastOptions::new().device(MemorySpace::Host).pin_memory(true);
    communicator.broadcast_tensor_dict(&mut dict, &to_cpu)?;
    assert_eq!(spaces(&dict), [MemorySpace::Host]);
    assert_has(&dict, &weights(1), 0);
    communicator.broadcast_tensor_dict(&mut dict, &BroadcastOptions::new().device(own))?;
    assert_eq!(spaces(&dict), [if rank == Rank(0) { MemorySpace::Host } else { own }]);
    assert_has(&dict, &weights(1), 0);
    Ok(())
}

fn refuse_pinned_memory_of_a_gpu(communicator: &Communicator) -> Result<()> {
    let refused = communicator.broadcast_tensor_dict(&mut TensorDict::new(), &BroadcastOptions::new().pin_memory(true));
    let error = refused.expect_err("what arrives lies on the GPU");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument);
    assert!(error.to_string().contains("pin_memory is for tensors in host memory"), "{error}");
    communicator.check()
}

/// The source's memory cannot be written.
#[cfg(feature = "safetensors")]
fn come_from_a_mapped_file(communicator: &Communicator) -> Result<()> {
    let path = std::env::temp_dir().join(format!("dcl-nccl-{}.safetensors", std::process::id()));
    if communicator.rank() == Rank(0) {
        weights(2).save(&path)?;
    }
    communicator.barrier()?;
    // SAFETY: the file is removed, and not changed.
    let file = unsafe { TensorDict::map(&path)? };
    communicator.barrier()?;
    if communicator.rank() == Rank(0) {
        std::fs::remove_file(&path).expect("it is there");
    }
    let (mut source, mut received) = (file, TensorDict::new());
    let dict = if communicator.rank() == Rank(0) { &mut source } else { &mut received };
    communicator.broadcast_tensor_dict(dict, &BroadcastOptions::new())?;
    if communicator.rank() != Rank(0) {
        assert_has(&received, &source, 0);
    }
    Ok(())
}

#[test]
fn dictionaries_arrive_on_gpus_and_on_the_host() {
    for ranks in [1, 2] {
        if needs_more_gpus(ranks) {
            return;
        }
        Child::new("dicts", ranks).passes();
    }
}
