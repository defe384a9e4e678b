//! A run on a GPU: enqueued on the caller's stream, or done on the communicator's default stream
//! with tensors in host memory copied to the GPU and back.

use std::sync::Arc;
use std::time::Instant;

use super::checks::Setup;
use super::communicator_binding::CommunicatorBinding;
use super::profile::RunProfile;
use super::regions::Regions;
use super::run::{Addresses, EngineRun, RunIo};
use crate::comm::Communicator;
use crate::cuda::CudaStream;
use crate::engine::IoMode;
use crate::error::Result;
use crate::executor::Executor;
use crate::memory::{MemorySpace, RawTensor};

/// # Safety
///
/// As [`run`](super::run::run).
pub(super) unsafe fn run(
    setup: &Setup,
    (communicator, default_stream): (&Communicator, &Arc<CudaStream>),
    regions: &mut Regions,
    io: &RunIo,
    deadline: Instant,
    stream: Option<&Arc<CudaStream>>,
    profile: Option<&RunProfile>,
) -> Result<()> {
    let Setup { binding, shapes, .. } = setup;
    let is_done_here = stream.is_none();
    let stream = stream.unwrap_or(default_stream);
    let device = stream.device();
    let is_capturing = stream.is_capturing()?;
    let profile = profile.filter(|_| !is_capturing);
    let has_host = io.tensors.iter().flatten().any(|raw| raw.space == MemorySpace::Host);
    if has_host {
        locate(binding, regions, io)?;
    }
    // The tensors that the caller bound in host memory and this rank uses.
    let on_host = |mode: IoMode| {
        let tensors = io.tensors.iter().enumerate().filter(|_| has_host);
        tensors.filter_map(move |(index, raw)| {
            let raw = raw.as_ref().filter(|raw| raw.space == MemorySpace::Host && raw.byte_len > 0)?;
            (binding.engine.io[index].mode == mode && binding.used[index]).then_some((index, raw))
        })
    };
    let mirror = |located: &RunIo, index: usize| located.tensors[index].map_or(std::ptr::null_mut(), |raw| raw.address);
    let alive = &mut || communicator.as_backend().check();
    for (index, raw) in on_host(IoMode::Input) {
        let to = mirror(&regions.located, index);
        // SAFETY: the caller's promise; the mirror is as long.
        unsafe { regions.transfer(device)?.upload(raw.address, to, raw.byte_len, stream, deadline, alive)? };
    }
    let Regions { replays, memory, located, .. } = regions;
    let located = if has_host { &*located } else { io };
    let addresses = Addresses::of(memory);
    let layers = |on: &Arc<CudaStream>| {
        // A graph is recorded on another stream.
        let profile = profile.filter(|_| Arc::ptr_eq(on, stream));
        // SAFETY: the caller's promise.
        unsafe { EngineRun::new(setup, located, deadline, Executor(Some(on)), addresses, profile).layers() }
    };
    // Where ranks tell each other what becomes of the run.
    let control = communicator.as_backend().control().filter(|_| binding.graphs.is_collective);
    if binding.graphs.is_recording && !is_capturing {
        let decided = (communicator, &binding.graphs, control.filter(|control| control.is_one_machine()));
        // SAFETY: the caller's promise.
        unsafe { replays.run(decided, (shapes, located), (stream, deadline), profile, layers)? };
    } else {
        match control {
            Some(control) if is_capturing => control.capture(deadline)?,
            Some(control) => control.plain_run(),
            None => {}
        }
        layers(stream)?;
    }
    for (index, raw) in on_host(IoMode::Output) {
        let from = mirror(&regions.located, index);
        // SAFETY: the caller's promise; the mirror is as long.
        unsafe { regions.transfer(device)?.download(from, raw.address, raw.byte_len, stream, deadline, alive)? };
    }
    if let Some(profile) = profile {
        communicator.synchronize(stream, deadline)?;
        profile.mark(stream);
    }
    if is_done_here || profile.is_some() { communicator.synchronize(stream, deadline) } else { Ok(()) }
}

/// Writes where each tensor is on the GPU: where the caller bound it, or in a mirror of host
/// memory.
fn locate(binding: &CommunicatorBinding, regions: &mut Regions, io: &RunIo) -> Result<()> {
    let space = binding.space();
    for (index, raw) in io.tensors.iter().enumerate() {
        let located = match *raw {
            Some(raw) if raw.space == MemorySpace::Host && binding.used[index] => {
                Some(RawTensor { address: regions.mirror(index, space, raw.byte_len)?, space, ..raw })
            }
            // A tensor in host memory that this rank does not use has no mirror.
            Some(raw) if raw.space == MemorySpace::Host => None,
            raw => raw,
        };
        regions.located.tensors[index] = located;
    }
    Ok(())
}
