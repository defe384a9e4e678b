//! Memory on the GPU for what one step of a call hands to the next.

use std::sync::{Arc, Weak};

use crate::cuda::{CudaStream, Device, DeviceMemory};
use crate::error::{Result, bail};

/// Memory for each stream on which calls need some. Work on one stream runs in order, so one call
/// at a time uses it. If it grows, the smaller piece is kept, because a graph may have recorded it.
/// It grows by doubling, so all pieces of a stream together are at most twice the largest.
#[derive(Default)]
pub(super) struct Scratch {
    pieces: Vec<Piece>,
}

struct Piece {
    stream: u64,
    /// Dead when the stream is dropped.
    alive: Weak<()>,
    /// A graph of the caller's uses it, which may be launched as long as the communicator lives.
    is_recorded: bool,
    memory: DeviceMemory,
}

impl Scratch {
    /// Drops the memory of dropped streams. It is freed when the GPU does not use it any more.
    pub(super) fn prune(&mut self) {
        self.pieces.retain(|piece| piece.is_recorded || piece.alive.strong_count() > 0);
    }

    /// Makes a stream's memory at least this long. Drops nothing: a capture may follow at once.
    pub(super) fn reserve(&mut self, device: &Arc<Device>, byte_len: usize, stream: &CudaStream) -> Result<()> {
        let before = self.of(stream).map_or(0, |piece| piece.memory.byte_len());
        if byte_len > before {
            let memory = DeviceMemory::new(device, byte_len.max(2 * before))?;
            self.pieces.push(Piece { stream: stream.id(), alive: stream.alive(), is_recorded: false, memory });
        }
        Ok(())
    }

    /// The latest piece of a stream.
    fn of(&mut self, stream: &CudaStream) -> Option<&mut Piece> {
        self.pieces.iter_mut().rev().find(|piece| piece.stream == stream.id())
    }

    /// The memory for the call that is enqueued on this stream next.
    pub(super) fn take(&mut self, byte_len: usize, stream: &CudaStream) -> Result<*mut u8> {
        if byte_len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let is_capturing = stream.is_capturing()?;
        if self.of(stream).is_none_or(|piece| piece.memory.byte_len() < byte_len) {
            if is_capturing {
                bail!(
                    NotReady,
                    "the first call of this size on a stream needs memory, which a capture does not allow; run it once before"
                );
            }
            self.prune();
            self.reserve(stream.device(), byte_len, stream)?;
        }
        Ok(self.of(stream).map_or(std::ptr::null_mut(), |piece| {
            // The caller may have made a new `Stream` of the same CUDA stream.
            piece.alive = stream.alive();
            piece.is_recorded |= is_capturing;
            piece.memory.address()
        }))
    }
}
