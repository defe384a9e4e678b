//! One run of an engine: its tensors located, its layers done in the order of the schedule.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::collective::{Call, overlap};
use crate::comm::Communicator;
use crate::compute;
use crate::data_type::DataType;
use crate::dist_collective::{Role, Roles, agree};
use crate::engine::{EngineInner, IoMode, Location, Place, Region, infer_shapes};
use crate::error::{Error, Result, bail, error};
use crate::memory::{Buffer, RawTensor};
use crate::network::{Layer, LayerBody, LayerId, PluginCall, ShuffleSteps, Source, TensorId};
use crate::shape::Shape;
use crate::stream::{lock, panic_message};

/// An engine on a communicator, or on none: what every run of a context shares.
pub(super) struct Attached {
    engine: Arc<EngineInner>,
    pub(super) communicator: Option<Communicator>,
    /// This rank's role in each DistCollective layer; empty without a communicator.
    roles: Vec<Option<Role>>,
    /// Whether each input is read and each output written on this rank.
    used: Vec<bool>,
    /// Locked during a run, so that runs of one context follow one another.
    regions: Mutex<Regions>,
}

/// The memory of a context.
struct Regions {
    communicator: Option<Buffer>,
    private: Option<Buffer>,
}

/// The shapes of one setting of the inputs, and what follows from them.
pub(super) struct Shapes {
    pub(super) inputs: Vec<Option<Shape>>,
    /// Of every tensor; empty while an input has none.
    tensors: Vec<Shape>,
    /// The call of each DistCollective layer.
    calls: Vec<Option<Call>>,
    /// The steps of each Shuffle layer.
    shuffles: Vec<Option<ShuffleSteps>>,
}

/// Where the caller's tensors are in one run, in the order of the engine's inputs and outputs.
pub(super) struct RunIo {
    tensors: Box<[Option<RawTensor>]>,
}

// SAFETY: these are addresses; whoever runs with them promises that they are good.
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

    pub(super) fn set(&mut self, index: usize, raw: RawTensor) {
        self.tensors[index] = Some(raw);
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
        self.set(index, raw);
        Ok(())
    }
}

impl Shapes {
    /// Works out every shape, once all inputs have theirs.
    pub(super) fn infer(engine: &EngineInner, inputs: Vec<Option<Shape>>) -> Result<Self> {
        let EngineInner { network, analysis, .. } = engine;
        let mut shapes = Shapes { inputs, tensors: Vec::new(), calls: Vec::new(), shuffles: Vec::new() };
        if shapes.inputs.iter().any(Option::is_none) {
            return Ok(shapes);
        }
        let mut given = vec![None; network.tensors.len()];
        for (tensor, shape) in network.inputs.iter().zip(&shapes.inputs) {
            given[tensor.index()] = *shape;
        }
        let mut first_error = None;
        let types: Vec<Option<DataType>> = analysis.types.iter().copied().map(Some).collect();
        let inferred = infer_shapes(network, &analysis.schedule, &types, &analysis.collectives, given, |_, error| {
            first_error.get_or_insert(error);
        });
        if let Some(error) = first_error {
            return Err(error);
        }
        shapes.tensors = inferred.into_iter().map(Option::unwrap_or_default).collect();
        shapes.check_room(engine)?;
        shapes.calls = (network.layers.iter().zip(&analysis.collectives))
            .map(|(layer, resolved)| {
                let resolved = resolved.as_ref()?;
                let input = layer.inputs[0].index();
                let elements = shapes.tensors[input].element_count();
                Some(Call::new(resolved.collective, analysis.types[input], elements, resolved.nb_rank as usize))
            })
            .collect();
        let steps = |layer: &Layer| match &layer.body {
            LayerBody::Shuffle(shuffle) => shuffle.shuffle.steps(&shapes.tensors[layer.inputs[0].index()]).map(Some),
            _ => Ok(None),
        };
        shapes.shuffles = network.layers.iter().map(steps).collect::<Result<_>>()?;
        Ok(shapes)
    }

    /// Checks that every tensor fits the place that was planned for it. A plugin may make larger outputs between the points of
    /// a profile than at any of them.
    fn check_room(&self, engine: &EngineInner) -> Result<()> {
        let EngineInner { network, analysis, memory, .. } = engine;
        let check = |tensor: usize, place: &Place| {
            let byte_len = self.tensors[tensor].byte_len(analysis.types[tensor]);
            if byte_len <= place.byte_len {
                return Ok(());
            }
            let error = error!(
                InvalidShape,
                "{} {} is larger than at any point of the profile ({byte_len} bytes, {} planned)",
                analysis.types[tensor],
                self.tensors[tensor],
                place.byte_len
            );
            Err(error.about(|| format!("tensor {:?}", network.tensors[tensor].name)))
        };
        for (tensor, location) in memory.locations.iter().enumerate() {
            if let Location::Region(place) = location {
                check(tensor, place)?;
            }
        }
        for (layer, place) in network.layers.iter().zip(&memory.scratch) {
            if let Some(place) = place {
                check(layer.outputs[0].index(), place)?;
            }
        }
        Ok(())
    }

    /// The shape of every tensor.
    pub(super) fn tensors(&self, engine: &EngineInner) -> Result<&[Shape]> {
        if let Some(missing) = self.inputs.iter().position(Option::is_none) {
            let io = &engine.io[missing];
            let error = error!(NotReady, "its shape is not set; it is {} {}", io.data_type, io.dims);
            return Err(error.about(|| format!("input {:?}", io.name)));
        }
        Ok(&self.tensors)
    }
}

impl Attached {
    /// Before a communicator is set: enough for a network whose layers all are the identity.
    pub(super) fn without_communicator(engine: Arc<EngineInner>) -> Result<Self> {
        let regions = if engine.first_collective().is_some() {
            Regions { communicator: None, private: None }
        } else {
            Regions { communicator: None, private: Some(zeroed(engine.memory.private_bytes)?) }
        };
        let used = vec![true; engine.io.len()];
        Ok(Attached { engine, communicator: None, roles: Vec::new(), used, regions: Mutex::new(regions) })
    }

    /// On a communicator. Collective.
    pub(super) fn to(engine: Arc<EngineInner>, communicator: &Communicator) -> Result<Self> {
        let collectives = &engine.analysis.collectives;
        let in_schedule = || engine.analysis.schedule.iter().filter_map(|id| collectives[id.index()].as_ref());
        // What can fail on this rank alone comes first, so that the other ranks learn of it.
        let private = in_schedule()
            .try_for_each(|layer| Roles::check(communicator, layer))
            .and_then(|()| zeroed(engine.memory.private_bytes));
        let calls = private.as_ref().map(|_| engine.planned_calls.as_slice()).map_err(Clone::clone);
        let deadline = communicator.deadline();
        let own_bytes = engine.memory.communicator_bytes;
        let region_bytes = agree(communicator, calls, &engine.fingerprint, own_bytes, deadline)?;
        let mut roles_of = Roles::new(communicator, deadline);
        let mut roles = vec![None; collectives.len()];
        for id in &engine.analysis.schedule {
            if let Some(layer) = &collectives[id.index()] {
                roles[id.index()] = Some(roles_of.role(layer)?);
            }
        }
        let regions = Regions {
            communicator: match region_bytes {
                0 => None,
                bytes => Some(communicator.allocate_bytes(bytes, deadline)?),
            },
            private: Some(private?),
        };
        let mut attached = Attached {
            used: Vec::new(),
            engine: Arc::clone(&engine),
            communicator: Some(communicator.clone()),
            roles,
            regions: Mutex::new(regions),
        };
        attached.used = engine.io.iter().map(|io| attached.is_used(io.tensor)).collect();
        Ok(attached)
    }

    fn role(&self, layer: LayerId) -> &Role {
        // Without a communicator there are only layers that are the identity.
        self.roles.get(layer.index()).and_then(Option::as_ref).unwrap_or(&Role::Identity)
    }

    /// Whether an input is read, or an output written, on this rank.
    fn is_used(&self, tensor: TensorId) -> bool {
        let EngineInner { network, analysis, .. } = &*self.engine;
        // Which sides a call uses depends on its root, not on its shape.
        let call = |layer: LayerId| {
            analysis.collectives[layer.index()].as_ref().map(|c| Call::new(c.collective, DataType::Uint8, 0, 1))
        };
        match network.tensors[tensor.index()].source {
            Source::Input { .. } => analysis.readers[tensor.index()]
                .iter()
                .any(|&reader| call(reader).is_none_or(|call| self.role(reader).reads_input(&call))),
            Source::Layer { layer, .. } => call(layer).is_none_or(|call| self.role(layer).writes_output(&call)),
        }
    }

    pub(super) fn on_rank(&self, error: Error) -> Error {
        match &self.communicator {
            Some(communicator) => error.on_rank(communicator.origin_rank()),
            None => error,
        }
    }

    /// Everything that has to hold before anything moves.
    pub(super) fn check(&self, shapes: &Shapes, io: &RunIo) -> Result<()> {
        let engine = &*self.engine;
        let tensor_shapes = shapes.tensors(engine)?;
        if self.communicator.is_none()
            && let Some(layer) = engine.first_collective()
        {
            return Err(error!(NotReady, "no communicator is set, and the layer needs one").about(|| layer.to_owned()));
        }
        if let Some(communicator) = &self.communicator {
            communicator.check()?;
        }
        for (index, tensor) in engine.io.iter().enumerate() {
            let shape = tensor_shapes[tensor.tensor.index()];
            self.check_tensor(index, &shape, &io.tensors[index]).map_err(|e| {
                e.about(|| {
                    format!("{} {:?}", if tensor.mode == IoMode::Input { "input" } else { "output" }, tensor.name)
                })
            })?;
        }
        self.check_overlap(shapes, io)
    }

    fn check_tensor(&self, index: usize, shape: &Shape, bound: &Option<RawTensor>) -> Result<()> {
        let data_type = self.engine.io[index].data_type;
        let Some(raw) = bound else {
            if self.used[index] && shape.element_count() > 0 {
                bail!(NotReady, "nothing is bound to it; it is {data_type} {shape}");
            }
            return Ok(());
        };
        if raw.data_type != data_type {
            bail!(InvalidBuffer, "it is {data_type} {shape}, and what is bound to it is {}", raw.data_type);
        }
        if let Some(bound) = raw.shape.filter(|bound| bound != shape) {
            bail!(InvalidBuffer, "it is {data_type} {shape}, and what is bound to it is {data_type} {bound}");
        }
        let byte_len = shape.byte_len(data_type);
        if raw.byte_len != byte_len {
            let (want, have) = (shape.element_count(), raw.byte_len / data_type.byte_len());
            bail!(
                InvalidBuffer,
                "it is {data_type} {shape}, {want} elements or {byte_len} bytes; what is bound to it has {have} elements or {} \
                 bytes",
                raw.byte_len
            );
        }
        if byte_len > 0 && raw.address.is_null() {
            bail!(InvalidBuffer, "it is bound to a null address, and has {byte_len} bytes");
        }
        if byte_len > 0 && raw.address.addr() % data_type.byte_len() != 0 {
            bail!(
                InvalidBuffer,
                "{:p} is not aligned to the {} bytes of a {data_type}",
                raw.address,
                data_type.byte_len()
            );
        }
        Ok(())
    }

    /// Outputs share memory with nothing, but for the in-place rules of the collective between an input and an output.
    fn check_overlap(&self, shapes: &Shapes, io: &RunIo) -> Result<()> {
        let engine = &*self.engine;
        let range = |index: usize| {
            let raw = io.tensors[index].as_ref().filter(|raw| self.used[index] && raw.byte_len > 0)?;
            Some(raw.address.addr()..raw.address.addr() + raw.byte_len)
        };
        for output in engine.input_count()..engine.io.len() {
            let Some(out_range) = range(output) else { continue };
            for other in 0..output {
                let Some(other_range) = range(other).filter(|other| overlap(other, &out_range)) else { continue };
                let (a, b) = (&engine.io[other], &engine.io[output]);
                if other >= engine.input_count() {
                    bail!(InvalidBuffer, "outputs {:?} and {:?} are bound to memory that overlaps", a.name, b.name);
                }
                let about = |e: Error| e.about(|| format!("input {:?} and output {:?}", a.name, b.name));
                let Some((layer, call)) = self.collective_between(shapes, a.tensor, b.tensor) else {
                    return Err(about(error!(
                        InvalidBuffer,
                        "they are bound to memory that overlaps; only a collective that reads the one, as its only reader, \
                         and writes the other works in place"
                    )));
                };
                let (start, end) = (other_range.start, out_range.start);
                self.role(layer).check_buffers(call, start, end).map_err(about)?;
            }
        }
        Ok(())
    }

    /// The collective that reads an input, as its only reader, and writes an output.
    fn collective_between<'a>(
        &self,
        shapes: &'a Shapes,
        input: TensorId,
        output: TensorId,
    ) -> Option<(LayerId, &'a Call)> {
        let EngineInner { network, analysis, .. } = &*self.engine;
        let Source::Layer { layer, .. } = network.tensors[output.index()].source else { return None };
        let only_reader = analysis.readers[input.index()] == [layer];
        let call = shapes.calls[layer.index()].as_ref()?;
        only_reader.then_some((layer, call))
    }
}

fn zeroed(byte_len: usize) -> Result<Buffer> {
    Buffer::with_shape(DataType::Uint8, Shape::new(&[byte_len])?)
}

/// Runs the engine. An error ends the communicator, so that the other ranks do not wait for this one.
///
/// # Safety
///
/// [`Attached::check`] has found these shapes and tensors right. Until this returns, the tensors are initialized memory
/// that, as far as this rank uses it, nobody else writes, and for outputs, nobody else reads.
pub(super) unsafe fn run(attached: &Attached, shapes: &Shapes, io: &RunIo, timeout: Option<Duration>) -> Result<()> {
    let mut regions = lock(&attached.regions);
    let base = |buffer: &mut Option<Buffer>| buffer.as_mut().map_or(std::ptr::null_mut(), Buffer::as_mut_ptr);
    let run = Run {
        attached,
        shapes,
        io,
        timeout,
        communicator_memory: base(&mut regions.communicator),
        private_memory: base(&mut regions.private),
    };
    for &layer in &attached.engine.analysis.schedule {
        // SAFETY: the caller's promise; the layers before this one have written what it reads.
        if let Err(error) = unsafe { run.layer(layer) } {
            if let Some(communicator) = &attached.communicator {
                communicator.abort_with(&error);
            }
            return Err(error);
        }
    }
    Ok(())
}

struct Run<'a> {
    attached: &'a Attached,
    shapes: &'a Shapes,
    io: &'a RunIo,
    timeout: Option<Duration>,
    communicator_memory: *mut u8,
    private_memory: *mut u8,
}

impl Run<'_> {
    /// A place of the memory plan. Places that are in use at the same time are apart, and each holds its tensor, because
    /// the plan made it so and `Shapes::infer` compared the lengths.
    fn place(&self, place: &Place) -> *mut u8 {
        let base = match place.region {
            Region::Communicator => self.communicator_memory,
            Region::Private => self.private_memory,
        };
        base.wrapping_add(place.offset)
    }

    /// Where a tensor is; null for one of the caller's that is not bound, and so not used.
    fn address(&self, tensor: TensorId) -> *mut u8 {
        let engine = &*self.attached.engine;
        let bound = |index: usize| self.io.tensors[index].as_ref().map_or(std::ptr::null_mut(), |raw| raw.address);
        match &engine.memory.locations[tensor.index()] {
            Location::Input(number) => bound(*number),
            Location::Output(number) => bound(engine.input_count() + number),
            Location::Region(place) => self.place(place),
            Location::Constant(layer) => match &engine.network.layers[layer.index()].body {
                LayerBody::Constant(constant) => constant.value().as_ptr().cast_mut(),
                _ => std::ptr::null_mut(),
            },
        }
    }

    fn raw(&self, tensor: TensorId) -> RawTensor {
        let data_type = self.attached.engine.analysis.types[tensor.index()];
        let shape = self.shapes.tensors[tensor.index()];
        RawTensor { data_type, address: self.address(tensor), byte_len: shape.byte_len(data_type), shape: Some(shape) }
    }

    /// # Safety
    ///
    /// As [`run`]; the layer's inputs are written.
    unsafe fn layer(&self, id: LayerId) -> Result<()> {
        let engine = &*self.attached.engine;
        let layer = &engine.network.layers[id.index()];
        let mut written = true;
        match &layer.body {
            LayerBody::Constant(_) => {}
            LayerBody::DistCollective(_) => {
                // SAFETY: the caller's promise.
                written = unsafe { self.dist_collective(id, layer.inputs[0], layer.outputs[0])? };
            }
            LayerBody::Shuffle(_) => {
                let (input, output) = (self.raw(layer.inputs[0]), self.raw(layer.outputs[0]));
                let Some(steps) = &self.shapes.shuffles[id.index()] else { return Ok(()) };
                let scratch = engine.memory.scratch[id.index()].as_ref().map(|place| self.place(place));
                // SAFETY: input, output and scratch are places of the plan or tensors of the caller, long enough for the
                // shapes and apart, but for a mere reshape.
                unsafe { run_shuffle(steps, &input, &output, scratch) };
            }
            LayerBody::Cast(cast) => {
                let (input, output) = (self.raw(layer.inputs[0]), self.raw(layer.outputs[0]));
                // SAFETY: as above; in place only between types of one size.
                unsafe {
                    compute::cast(input.data_type, input.address, cast.to, output.address, input.element_count());
                }
            }
            LayerBody::Plugin(plugin) => {
                let inputs = |i: usize| layer.inputs.get(i).map(|&t| self.raw(t));
                let outputs = |i: usize| layer.outputs.get(i).map(|&t| self.raw(t));
                // SAFETY: inputs are written; a plugin's outputs share memory with nothing that is alive.
                let mut call = unsafe { PluginCall::new(&inputs, &outputs) };
                let result = catch_unwind(AssertUnwindSafe(|| plugin.plugin().enqueue(&mut call)));
                let result = result.unwrap_or_else(|panic| {
                    Err(error!(Plugin, "the plugin panicked: {}", panic_message(panic.as_ref())))
                });
                result.map_err(|e| e.about(|| layer.subject()))?;
            }
        }
        for &tensor in &layer.outputs {
            if let Some(output) = engine.memory.copy_out[tensor.index()].filter(|_| written)
                && let Some(bound) = &self.io.tensors[engine.input_count() + output]
            {
                // SAFETY: the caller's output is as long as the tensor, which lies elsewhere.
                unsafe { compute::copy(self.address(tensor), bound.address, bound.byte_len) };
            }
        }
        Ok(())
    }

    /// Runs a DistCollective layer and tells whether its output is written on this rank.
    ///
    /// # Safety
    ///
    /// As [`Run::layer`].
    unsafe fn dist_collective(&self, id: LayerId, input: TensorId, output: TensorId) -> Result<bool> {
        let engine = &*self.attached.engine;
        let (Some(resolved), Some(call)) = (&engine.analysis.collectives[id.index()], &self.shapes.calls[id.index()])
        else {
            return Ok(true);
        };
        let role = self.attached.role(id);
        let deadline = match (&self.attached.communicator, self.timeout) {
            (Some(communicator), Some(timeout)) => communicator.with_timeout(timeout).deadline(),
            (Some(communicator), None) => communicator.deadline(),
            // Only the identity runs without a communicator, and it waits for nobody.
            (None, _) => Instant::now(),
        };
        // SAFETY: the call was made for the shapes of these tensors.
        unsafe { role.run(call, &resolved.subject, self.address(input), self.address(output), deadline)? };
        let written = role.writes_output(call);
        if let Location::Region(place) = &engine.memory.locations[output.index()]
            && !written
        {
            // SAFETY: the place holds the tensor, and no peer is inside the collective any more.
            unsafe { self.place(place).write_bytes(0, self.raw(output).byte_len) };
        }
        Ok(written)
    }
}

/// # Safety
///
/// The tensors and the scratch have the lengths that the shapes say, and are apart, but for a mere reshape, where input and
/// output may be the same.
unsafe fn run_shuffle(steps: &ShuffleSteps, input: &RawTensor, output: &RawTensor, scratch: Option<*mut u8>) {
    let bytes = input.data_type.byte_len();
    let shape = input.shape.unwrap_or_default();
    // SAFETY: the caller's promise.
    unsafe {
        match (&steps.first, &steps.second, scratch) {
            (Some(first), Some(second), Some(scratch)) => {
                compute::transpose(input.address, scratch, &shape, &first[..shape.dim_count()], bytes);
                let second = &second[..steps.reshaped.dim_count()];
                compute::transpose(scratch, output.address, &steps.reshaped, second, bytes);
            }
            (Some(first), _, _) => {
                compute::transpose(input.address, output.address, &shape, &first[..shape.dim_count()], bytes);
            }
            (None, Some(second), _) => {
                let second = &second[..steps.reshaped.dim_count()];
                compute::transpose(input.address, output.address, &steps.reshaped, second, bytes);
            }
            (None, None, _) => compute::copy(input.address, output.address, input.byte_len),
        }
    }
}
