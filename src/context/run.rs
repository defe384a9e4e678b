//! One run of an engine: its tensors located, its layers done in the order of the schedule.

use std::cell::Cell;
use std::ptr;
use std::sync::Arc;
use std::time::Instant;

use smallvec::SmallVec;

use super::checks::Setup;
use super::communicator_binding::CommunicatorBinding;
use super::gpu;
use super::profile::RunProfile;
use super::regions::ContextMemory;
use super::shapes::Shapes;
use crate::comm::{Checked, CountedRun, MAX_GROUPED_CALLS, Request};
use crate::cuda::CudaStream;
use crate::dist_collective::Role;
use crate::engine::{EngineInner, IoMode, Location, Place, Region};
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::executor::Executor;
use crate::memory::{Address, Buffer, MemorySpace, RawTensor};
use crate::network::{LayerId, LayerRun, TensorId};

/// Where the caller's tensors are in one run, in the order of the engine's inputs and outputs.
pub(super) struct RunIo {
    pub(super) tensors: Box<[Option<RawTensor>]>,
}

// SAFETY: these are addresses; a caller that runs with them promises that they are valid.
unsafe impl Send for RunIo {}
// SAFETY: as above; nothing is reached through a shared reference.
unsafe impl Sync for RunIo {}

impl RunIo {
    pub(super) fn for_engine(engine: &EngineInner) -> Self {
        RunIo { tensors: engine.io.iter().map(|_| None).collect() }
    }

    pub(super) fn clear(&mut self) {
        self.tensors.fill(None);
    }

    pub(super) fn bind(&mut self, engine: &EngineInner, name: &str, mode: IoMode, raw: RawTensor) -> Result<()> {
        let index = engine.io_index(name)?;
        if engine.io[index].mode != mode {
            let (given, listed) = if mode == IoMode::Input { ("an output", "inputs") } else { ("an input", "outputs") };
            bail!(InvalidArgument, "{name:?} is {given} and stands among the {listed}");
        }
        if self.tensors[index].is_some() {
            bail!(InvalidArgument, "{name:?} is given twice");
        }
        self.tensors[index] = Some(raw);
        Ok(())
    }
}

/// Runs the engine, or enqueues the run on a CUDA stream. An error ends the communicator, so that
/// the other ranks do not wait for this one. Four errors do not, because nothing runs of which a
/// part was left out: another rank refused the run, a plugin tried to run the context that runs it,
/// a capture needs what it cannot make, or the stream of the last run is being captured.
///
/// # Safety
///
/// These tensors have passed [`Setup::check`]. Until this returns, or what
/// it enqueues is done, the tensors that this rank uses are initialized memory that no other code
/// writes, and outputs are memory that no other code reads.
pub(super) unsafe fn run(setup: &Setup, io: &RunIo, deadline: Instant, stream: Option<&Arc<CudaStream>>) -> Result<()> {
    let Setup { binding, profilers, .. } = setup;
    let profile = profilers.begin();
    let mut guard = binding.lock_regions(deadline)?;
    let regions = &mut *guard.regions;
    let gpu = binding
        .communicator
        .as_ref()
        .and_then(|communicator| Some((communicator, communicator.as_backend().default_stream()?)));
    let followed = gpu.map_or(Ok(()), |(_, default_stream)| regions.follow(stream.unwrap_or(default_stream)));
    if followed.as_ref().is_err_and(|error| error.kind() == ErrorKind::NotReady) {
        // Nothing has been enqueued.
        return followed;
    }
    let mut can_go_on = false;
    // SAFETY: the caller's promise.
    let result = followed.and_then(|()| unsafe {
        match gpu {
            None => {
                let addresses = Addresses::of(&mut regions.memory);
                let run = EngineRun::new(setup, io, deadline, Executor(None), addresses, profile.as_ref());
                run.layers().inspect_err(|error| can_go_on = run.leave(error))
            }
            Some(on_gpu) => gpu::run(setup, on_gpu, regions, io, deadline, stream, profile.as_ref()),
        }
    });
    let Err(mut error) = result else {
        if let Some(stream) = stream.filter(|stream| !stream.is_capturing().unwrap_or(true)) {
            regions.set_last(stream);
        }
        if let Some(profile) = profile {
            profile.tell(setup);
        }
        return Ok(());
    };
    let is_capturing = stream.is_some_and(|stream| stream.is_capturing().unwrap_or(true));
    if is_capturing && error.kind() == ErrorKind::NotReady {
        // The run needs something that a capture cannot make. Layers before it may have been
        // recorded, so the caller drops what the capture gives.
        return Err(error);
    }
    if can_go_on {
        return Err(error);
    }
    if error.kind() == ErrorKind::RunRefused {
        error = error!(Aborted, "this rank had begun a run that another one left out: {error}");
    }
    // Graphs have to be destroyed before its communicator.
    regions.replays.clear();
    if let Some(communicator) = &binding.communicator {
        communicator.abort_with(&error);
        if !is_capturing {
            // Parts of the run may still use the caller's memory.
            communicator.as_backend().drain(stream);
        }
    }
    Err(error)
}

/// One run, and where its tensors are.
pub(super) struct EngineRun<'a> {
    binding: &'a CommunicatorBinding,
    shapes: &'a Shapes,
    io: &'a RunIo,
    deadline: Instant,
    executor: Executor<'a>,
    space: MemorySpace,
    addresses: Addresses<'a>,
    run: CountedRun<'a>,
    /// Whether this rank has done a collective.
    has_begun: Cell<bool>,
    profile: Option<&'a RunProfile>,
}

/// Where the memory of the tensors inside the network is.
#[derive(Clone, Copy)]
pub(super) struct Addresses<'a> {
    communicator: *mut u8,
    private: *mut u8,
    /// For the collectives, one after the other.
    scratch: *mut [u8],
    /// The constants, if they are not the engine's own.
    constants: &'a [Option<Buffer>],
}

impl<'a> Addresses<'a> {
    pub(super) fn of(memory: &'a mut ContextMemory) -> Self {
        let base = |buffer: &mut Option<Buffer>| buffer.as_mut().map_or(ptr::null_mut(), Buffer::as_mut_ptr);
        let (communicator, private) = (base(&mut memory.communicator), base(&mut memory.private));
        let scratch_bytes = memory.scratch.as_ref().map_or(0, Buffer::byte_len);
        let scratch = ptr::slice_from_raw_parts_mut(base(&mut memory.scratch), scratch_bytes);
        Addresses { communicator, private, scratch, constants: &memory.constants }
    }
}

impl<'a> EngineRun<'a> {
    pub(super) fn new(
        setup: &'a Setup,
        io: &'a RunIo,
        deadline: Instant,
        executor: Executor<'a>,
        addresses: Addresses<'a>,
        profile: Option<&'a RunProfile>,
    ) -> Self {
        let Setup { binding, shapes, .. } = setup;
        let (space, run, has_begun) = (binding.space(), CountedRun::new(&binding.runs), Cell::default());
        if binding.has_groups {
            // Groups do not know of a request, so all ranks count each run, also those outside of
            // the groups.
            run.id();
        }
        EngineRun { binding, shapes, io, deadline, executor, space, addresses, run, has_begun, profile }
    }

    /// After a run that failed. Returns whether the ranks go on to the next run: in a request; and
    /// if another rank has refused the run and this rank has done nothing of it, so that the ranks
    /// of its other collectives leave it out too.
    fn leave(&self, error: &Error) -> bool {
        let Some(communicator) = &self.binding.communicator else { return false };
        let leaves_out = match error.kind() {
            // In a request, all ranks know how far they have come.
            ErrorKind::RunRefused => communicator.is_in_request() || !self.has_begun.get(),
            _ => communicator.is_in_request() && communicator.check().is_ok(),
        };
        let refused = self.binding.refused_run(error.to_string(), self.deadline).filter(|_| leaves_out);
        refused.is_some_and(|refused| refused.tell_of(&self.run).is_ok() && communicator.check().is_ok())
    }

    /// Runs the layers in the order of the schedule.
    ///
    /// # Safety
    ///
    /// As [`run`]; tensors are in the executor's memory.
    pub(super) unsafe fn layers(&self) -> Result<()> {
        let analysis = &self.binding.engine.analysis;
        for step in &analysis.steps {
            let layers = &analysis.schedule[step.clone()];
            // SAFETY: the caller's promise; the layers before these have written what they read.
            unsafe {
                match layers.len() > 1 && self.may_group(layers) {
                    true => self.measured(layers, || self.group(layers))?,
                    false => {
                        layers.iter().try_for_each(|&layer| self.measured(&[layer], || self.layer(layer)))?;
                    }
                }
            }
        }
        Ok(())
    }

    fn measured(&self, layers: &[LayerId], run: impl FnOnce() -> Result<()>) -> Result<()> {
        let all = &self.binding.engine.network.layers;
        // A constant does nothing in a run.
        let is_measured = || layers.iter().any(|id| all[id.index()].body.op().constant().is_none());
        let profile = self.profile.filter(|_| is_measured());
        let begin = profile.map(|profile| profile.begin(self.executor.0));
        run()?;
        if let Some((profile, begin)) = profile.zip(begin) {
            profile.end(begin, layers, self.executor.0);
        }
        Ok(())
    }

    /// Whether the backend takes these layers as one group of calls. Every rank finds the same,
    /// also one that takes part in some of them only, because a backend may wait for a group as a
    /// whole.
    fn may_group(&self, layers: &[LayerId]) -> bool {
        let communicator = self.binding.communicator.as_ref().filter(|_| self.binding.has_equal_steps);
        let Some(communicator) = communicator else { return false };
        let collectives = &self.binding.engine.analysis.collectives;
        layers.iter().all(|id| match (&collectives[id.index()], &self.shapes.calls[id.index()]) {
            (Some(resolved), Some(call)) => communicator.can_group(call, resolved.nb_rank as usize),
            _ => false,
        })
    }

    /// Runs collectives that do not depend on each other as one group.
    ///
    /// # Safety
    ///
    /// As [`layers`](Self::layers).
    unsafe fn group(&self, layers: &[LayerId]) -> Result<()> {
        let calls = layers.iter().filter_map(|id| match self.binding.role(*id) {
            role @ Role::Member(_) => Some((role, self.request(*id)?)),
            _ => None,
        });
        let mut calls: SmallVec<[_; MAX_GROUPED_CALLS]> = calls.collect();
        let group = calls.iter_mut().map(|(role, request)| role.check(request));
        let group = group.collect::<Result<SmallVec<[Checked<'_>; MAX_GROUPED_CALLS]>>>()?;
        // SAFETY: the caller's promise; the calls were made for the shapes of these tensors.
        unsafe {
            Checked::run_group(&group)?;
            layers.iter().try_for_each(|&id| self.finish(id))
        }
    }

    /// This rank's part in the call of a DistCollective layer.
    fn request(&self, id: LayerId) -> Option<Request<'_>> {
        let engine = &*self.binding.engine;
        let (resolved, call) = (engine.analysis.collectives[id.index()].as_ref()?, self.shapes.calls[id.index()]?);
        let layer = &engine.network.layers[id.index()];
        let sides = [self.located(layer.inputs[0]), self.located(layer.outputs[0])];
        Some(Request {
            run: Some(&self.run),
            label: Some(&resolved.subject),
            scratch: Some(self.addresses.scratch),
            stream: self.executor.0,
            ..Request::new(call, sides, self.deadline)
        })
    }

    /// The address of a place of the memory plan. The plan keeps places apart that are in use at
    /// the same time, and `Shapes::infer` has checked that each holds its tensor.
    fn place(&self, place: &Place) -> *mut u8 {
        let base = match place.region {
            Region::Communicator => self.addresses.communicator,
            Region::Private => self.addresses.private,
        };
        base.wrapping_add(place.offset)
    }

    /// Where a tensor is; null for a tensor of the caller's that is not bound, and so not used.
    fn address(&self, tensor: TensorId) -> *mut u8 {
        let engine = &*self.binding.engine;
        let bound = |index: usize| self.io.tensors[index].as_ref().map_or(ptr::null_mut(), |raw| raw.address);
        match &engine.memory.locations[tensor.index()] {
            Location::Input(number) => bound(*number),
            Location::Output(number) => bound(engine.input_count() + number),
            Location::Region(place) => self.place(place),
            Location::Constant(layer) => {
                let copy = self.addresses.constants.get(layer.index()).and_then(Option::as_ref);
                let value = copy.or_else(|| engine.network.layers[layer.index()].body.op().constant());
                value.map_or(ptr::null_mut(), |value| value.as_ptr().cast_mut())
            }
        }
    }

    fn raw(&self, tensor: TensorId) -> RawTensor {
        let data_type = self.binding.engine.analysis.types[tensor.index()];
        let shape = self.shapes.all[tensor.index()];
        let Address { pointer, space } = self.located(tensor);
        RawTensor {
            data_type,
            address: pointer,
            space,
            generation: 0,
            byte_len: shape.byte_len(data_type),
            shape: Some(shape),
        }
    }

    fn located(&self, tensor: TensorId) -> Address {
        Address { pointer: self.address(tensor), space: self.space }
    }

    /// # Safety
    ///
    /// As [`run`]; the layer's inputs are written.
    unsafe fn layer(&self, id: LayerId) -> Result<()> {
        let engine = &*self.binding.engine;
        let layer = &engine.network.layers[id.index()];
        let layer_run = LayerRun {
            layer,
            locate: &|tensor| self.raw(tensor),
            executor: self.executor,
            deadline: self.deadline,
            scratch: engine.memory.scratch[id.index()].as_ref().map(|place| self.place(place)),
            collective: self.request(id).map(|request| (self.binding.role(id), request)),
        };
        // SAFETY: tensors and scratch are places of the memory plan, which keeps apart what is in
        // use at the same time, or tensors of the caller, which `Setup::check` has found right.
        unsafe { layer.body.op().run(&layer_run)? };
        if matches!(layer_run.collective, Some((Role::Member(_), _))) {
            self.has_begun.set(true);
        }
        // SAFETY: the layer is done.
        unsafe { self.finish(id) }
    }

    /// Completes a layer: outputs that this rank does not write become zeros if a layer reads them,
    /// and outputs that the caller bound are copied there.
    ///
    /// # Safety
    ///
    /// As [`EngineRun::layer`]; the layer is done.
    unsafe fn finish(&self, id: LayerId) -> Result<()> {
        let engine = &*self.binding.engine;
        let layer = &engine.network.layers[id.index()];
        let call = self.shapes.calls[id.index()].as_ref();
        let written = call.is_none_or(|call| self.binding.role(id).writes_output(call));
        for &tensor in &layer.outputs {
            match &engine.memory.locations[tensor.index()] {
                Location::Region(place) if !written => {
                    // SAFETY: the place holds the tensor, and no peer is inside the collective any
                    // more.
                    unsafe { self.executor.zero(self.place(place), self.raw(tensor).byte_len)? };
                }
                _ => {}
            }
            if let Some(output) = engine.memory.copy_out[tensor.index()].filter(|_| written)
                && let Some(bound) = &self.io.tensors[engine.input_count() + output]
            {
                // SAFETY: the caller's output is as long as the tensor, which lies elsewhere.
                unsafe { self.executor.copy(self.located(tensor), bound.located(), bound.byte_len, self.deadline)? };
            }
        }
        Ok(())
    }
}
