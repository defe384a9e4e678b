//! Memory on the GPU for what lies between the steps of one call.

use std::sync::Arc;

use crate::cuda::{CudaStream, Device, DeviceMemory};
use crate::error::{Result, bail};

/// One piece of memory, used by one call after the other. What it was before it grew is kept, since a graph may have recorded it;
/// it grows by doubling, so all of them together are at most twice the largest.
#[derive(Default)]
pub(super) struct Scratch {
    pieces: Vec<DeviceMemory>,
    /// The stream that has used it last.
    last: Option<Arc<CudaStream>>,
}

impl Scratch {
    /// Makes it at least so long.
    pub(super) fn reserve(&mut self, device: &Arc<Device>, byte_len: usize) -> Result<()> {
        if byte_len > self.byte_len() {
            let grown = DeviceMemory::new(device, byte_len.max(2 * self.byte_len()))?;
            self.pieces.push(grown);
        }
        Ok(())
    }

    fn byte_len(&self) -> usize {
        self.pieces.last().map_or(0, DeviceMemory::byte_len)
    }

    /// The memory, for what is enqueued on this stream next. What another stream still does with it comes first.
    pub(super) fn take(&mut self, byte_len: usize, stream: &Arc<CudaStream>) -> Result<*mut u8> {
        if byte_len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let is_capturing = stream.is_capturing()?;
        if byte_len > self.byte_len() {
            if is_capturing {
                bail!(
                    NotReady,
                    "the first call of this size needs memory, which cannot be had during a capture; run it once before"
                );
            }
            self.reserve(stream.device(), byte_len)?;
        }
        // A capture must not wait for what is not captured.
        if !is_capturing {
            if let Some(last) = self.last.as_ref().filter(|last| !last.is_same(stream)) {
                stream.wait_for(&last.record()?)?;
            }
            self.last = Some(Arc::clone(stream));
        }
        Ok(self.pieces.last().map_or(std::ptr::null_mut(), DeviceMemory::address))
    }
}
