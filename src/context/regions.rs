//! The memory of a context, on the host or on a GPU.

use std::sync::Arc;

use super::replay::Replays;
use super::run::RunIo;
use crate::comm::RegionPart;
use crate::cuda::{CudaStream, Device, Point, Transfer};
use crate::data_type::DataType;
use crate::engine::EngineInner;
use crate::error::Result;
use crate::memory::{Buffer, MemorySpace};

/// What runs of a context use one after the other.
pub(super) struct Regions {
    /// The recorded runs.
    pub(super) replays: Replays,
    pub(super) memory: ContextMemory,
    /// Memory on the GPU for each input and output that the caller binds in host memory,
    /// made when it is first needed.
    pub(super) mirrors: Vec<Option<Buffer>>,
    /// Where a run's tensors are on the GPU, if the caller bound some in host memory.
    pub(super) located: RunIo,
    /// Copies from and to host memory; made for the first one.
    transfer: Option<Transfer>,
    /// The stream of the last run, and the run's end.
    last: Option<(u64, Point)>,
}

/// The memory of the tensors inside the network.
#[derive(Default)]
pub(super) struct ContextMemory {
    /// Operands of collectives.
    pub(super) communicator: Option<Buffer>,
    /// What keeps them with the communicators of this rank's groups.
    pub(super) parts: Vec<RegionPart>,
    /// What only this rank uses.
    pub(super) private: Option<Buffer>,
    /// What collectives use between their steps, on a GPU.
    pub(super) scratch: Option<Buffer>,
    /// The constants on the GPU, by layer; on the host they are the engine's own.
    pub(super) constants: Vec<Option<Buffer>>,
}

impl Regions {
    /// Of a context that cannot run yet.
    pub(super) fn none(engine: &EngineInner) -> Self {
        Regions {
            replays: Replays::default(),
            memory: ContextMemory::default(),
            mirrors: engine.io.iter().map(|_| None).collect(),
            located: RunIo::for_engine(engine),
            transfer: None,
            last: None,
        }
    }

    /// All but the communicator's.
    pub(super) fn new(engine: &EngineInner, space: MemorySpace) -> Result<Self> {
        let mut regions = Self::none(engine);
        regions.memory.private = Some(Buffer::zeroed_in(space, DataType::Uint8, [engine.memory.private_bytes as i64])?);
        if space != MemorySpace::Host {
            let upload = |value: &Buffer| {
                let mut copy = Buffer::zeroed_in(space, value.data_type(), value.shape())?;
                copy.write(0, value.as_bytes()?)?;
                Ok(copy)
            };
            let constants = engine.network.layers.iter().map(|layer| layer.body.op().constant());
            regions.memory.constants = constants.map(|value| value.map(upload).transpose()).collect::<Result<_>>()?;
        }
        Ok(regions)
    }

    /// Makes work that is enqueued on this stream next wait for the last run, which may have been
    /// on another stream. A capture must not wait for work outside it; there the caller keeps the
    /// order.
    ///
    /// # Errors
    ///
    /// `NotReady`: the last run's stream is being captured.
    pub(super) fn follow(&mut self, stream: &CudaStream) -> Result<()> {
        if stream.is_capturing()? {
            return Ok(());
        }
        if let Some((last, end)) = &self.last
            && *last != stream.id()
        {
            stream.wait_for(end)?;
        }
        self.last = None;
        Ok(())
    }

    /// Says that the last run has been enqueued on this stream just now.
    pub(super) fn set_last(&mut self, stream: &CudaStream) {
        self.last = Some((stream.id(), stream.point()));
    }

    /// Copies host tensors.
    pub(super) fn transfer(&mut self, device: &Arc<Device>) -> Result<&mut Transfer> {
        match &mut self.transfer {
            Some(transfer) => Ok(transfer),
            none => Ok(none.insert(Transfer::new(device)?)),
        }
    }

    /// Memory on the GPU for an input or output of this many bytes.
    pub(super) fn mirror(&mut self, index: usize, space: MemorySpace, byte_len: usize) -> Result<*mut u8> {
        let mirror = &mut self.mirrors[index];
        if mirror.as_ref().is_none_or(|mirror| mirror.byte_len() < byte_len) {
            *mirror = Some(Buffer::zeroed_in(space, DataType::Uint8, [byte_len as i64])?);
        }
        Ok(mirror.as_mut().map_or(std::ptr::null_mut(), Buffer::as_mut_ptr))
    }
}
