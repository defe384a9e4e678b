//! What has to hold before a run: the communicator, and the tensors that the caller bound.

use std::ops::Range;
use std::sync::Arc;

use super::communicator_binding::CommunicatorBinding;
use super::profile::Profilers;
use super::run::RunIo;
use super::shapes::Shapes;
use crate::collective::{Call, overlap};
use crate::comm::Communicator;
use crate::engine::EngineInner;
use crate::error::{Error, Result, bail, error};
use crate::memory::{Address, MemorySpace, RawTensor};
use crate::network::{LayerId, TensorId, TensorSource};
use crate::shape::Shape;
use crate::stream::Stream;

/// What the runs of a context share until the caller sets another communicator, other shapes or
/// another profiler.
#[derive(Clone)]
pub(super) struct Setup {
    pub(super) binding: Arc<CommunicatorBinding>,
    pub(super) shapes: Arc<Shapes>,
    pub(super) profilers: Profilers,
}

impl Setup {
    /// Checks that the communicator works.
    pub(super) fn check_communicator(&self) -> Result<()> {
        self.binding.communicator.as_ref().map_or(Ok(()), Communicator::check_ended)
    }

    /// Checks what the caller bound, before anything moves.
    pub(super) fn check(&self, io: &mut RunIo, stream: &Stream) -> Result<()> {
        let engine = &*self.binding.engine;
        let shapes = self.shapes.tensors(engine)?;
        if self.binding.communicator.is_none()
            && let Some(layer) = engine.first_collective()
        {
            let error = error!(NotReady, "no communicator is set, and the layer needs one; call set_communicator");
            return Err(error.about(|| layer.to_owned()));
        }
        self.check_communicator()?;
        let space = self.binding.space();
        let is_enqueued = stream.as_raw_cuda().is_some();
        if is_enqueued && space == MemorySpace::Host {
            bail!(
                Unsupported,
                "a CUDA stream is for contexts whose communicator is on GPUs; this one runs on the host"
            );
        }
        for (index, tensor) in engine.io.iter().enumerate() {
            let shape = shapes[tensor.tensor.index()];
            self.check_tensor(index, &shape, &io.tensors[index], (space, is_enqueued))
                .map_err(|e| e.about(|| format!("{} {:?}", tensor.mode.name(), tensor.name)))?;
        }
        self.check_overlap(io)?;
        self.find_unknown(io);
        Ok(())
    }

    /// Finds, for graphs, the caller's memory whose pages he may replace by others. NCCL registers
    /// such memory by its addresses in a capture, and reaches the old pages later.
    fn find_unknown(&self, io: &mut RunIo) {
        let Some(communicator) = self.binding.communicator.as_ref().filter(|_| self.binding.graphs.is_recording) else {
            return;
        };
        for (raw, used) in io.tensors.iter_mut().zip(&self.binding.used) {
            let raw = raw.as_mut().filter(|raw| *used && raw.space != MemorySpace::Host && raw.generation == 0);
            if let Some(raw) = raw.filter(|raw| raw.byte_len > 0 && !communicator.as_backend().keeps(raw.address)) {
                raw.generation = RawTensor::UNKNOWN;
            }
        }
    }

    fn check_tensor(
        &self,
        index: usize,
        shape: &Shape,
        bound: &Option<RawTensor>,
        (space, is_enqueued): (MemorySpace, bool),
    ) -> Result<()> {
        let data_type = self.binding.engine.io[index].data_type;
        let Some(raw) = bound else {
            if self.binding.used[index] && shape.element_count() > 0 {
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
        if byte_len == 0 {
            return Ok(());
        }
        if raw.address.is_null() {
            bail!(InvalidBuffer, "it is bound to a null address, and has {byte_len} bytes");
        }
        if raw.address.addr() % data_type.byte_len() != 0 {
            bail!(
                InvalidBuffer,
                "{:p} is not aligned to the {} bytes of a {data_type}",
                raw.address,
                data_type.byte_len()
            );
        }
        match raw.space {
            bound if bound == space || !self.binding.used[index] => Ok(()),
            // It is copied to the GPU and back.
            MemorySpace::Host if !is_enqueued => Ok(()),
            MemorySpace::Host => bail!(
                InvalidBuffer,
                "it is bound to host memory; on a CUDA stream tensors are in {space}, such as `Communicator::allocate` gives"
            ),
            bound => bail!(InvalidBuffer, "it is bound to {bound}, and the context runs on {space}"),
        }
    }

    /// Outputs share memory with nothing, except for the in-place rules of the collective between
    /// an input and an output.
    fn check_overlap(&self, io: &RunIo) -> Result<()> {
        let engine = &*self.binding.engine;
        let range = |index: usize| {
            let raw = io.tensors[index].as_ref().filter(|raw| self.binding.used[index] && raw.byte_len > 0)?;
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
                let Some((layer, call)) = self.collective_between(a.tensor, b.tensor) else {
                    return Err(about(error!(
                        InvalidBuffer,
                        "they are bound to memory that overlaps; only a collective that reads the one, as its only reader, \
                         and writes the other works in place"
                    )));
                };
                let at = |range: &Range<usize>| Address::host(std::ptr::without_provenance(range.start));
                self.binding.role(layer).check_buffers(call, [at(&other_range), at(&out_range)]).map_err(about)?;
            }
        }
        Ok(())
    }

    /// The collective that reads an input, as its only reader, and writes an output.
    fn collective_between(&self, input: TensorId, output: TensorId) -> Option<(LayerId, &Call)> {
        let EngineInner { network, analysis, .. } = &*self.binding.engine;
        let TensorSource::Layer { layer, .. } = network.tensors[output.index()].source else { return None };
        let only_reader = analysis.readers.of(input) == [layer];
        let call = self.shapes.calls[layer.index()].as_ref()?;
        only_reader.then_some((layer, call))
    }
}
