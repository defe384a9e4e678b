//! Copies between memory of the host and of a GPU. They go through pinned memory in pieces, so that
//! the processor copies one piece while the GPU copies another.

use std::sync::Arc;
use std::time::Instant;

use super::driver::check;
use super::event::Event;
use super::memory::PinnedMemory;
use super::sys::{self, CUdeviceptr};
use super::{CudaStream, Device};
use crate::error::Result;

/// The length of a piece, in bytes.
const PIECE: usize = 4 << 20;

/// Two pieces of pinned memory, which are used alternately.
pub(crate) struct Transfer {
    pieces: [PinnedPiece; 2],
}

struct PinnedPiece {
    memory: PinnedMemory,
    /// The end of the GPU's last copy from or to the piece.
    in_use: Option<Event>,
}

impl PinnedPiece {
    /// Waits until the GPU does not use the piece.
    fn wait(&mut self, deadline: Instant, alive: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        // After an error the GPU may still use the piece, so the event stays.
        if let Some(event) = &self.in_use {
            event.wait(deadline, alive)?;
        }
        self.in_use = None;
        Ok(())
    }
}

impl Transfer {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let piece = || Ok::<_, crate::Error>(PinnedPiece { memory: PinnedMemory::new(device, PIECE)?, in_use: None });
        Ok(Transfer { pieces: [piece()?, piece()?] })
    }

    /// Enqueues a copy to the GPU. The memory of the host is free when the call returns.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads of `byte_len` bytes. `to`, on the stream's GPU, is valid for
    /// writes of as many bytes until the stream has done the copy.
    pub(crate) unsafe fn upload(
        &mut self,
        from: *const u8,
        to: *mut u8,
        byte_len: usize,
        stream: &CudaStream,
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        for (turn, start) in (0..byte_len).step_by(PIECE).enumerate() {
            let len = PIECE.min(byte_len - start);
            let piece = &mut self.pieces[turn % 2];
            piece.wait(deadline, alive)?;
            let address = piece.memory.start().as_ptr();
            let _current = stream.device().enter()?;
            // SAFETY: the caller promises both ranges; the piece is at least as long, and the GPU
            // does not use it.
            unsafe {
                address.copy_from_nonoverlapping(from.add(start), len);
                let to = to.wrapping_add(start) as CUdeviceptr;
                check("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(to, address.cast(), len, stream.raw()))?;
            }
            piece.in_use = Some(stream.record()?);
        }
        Ok(())
    }

    /// Copies from the GPU, after everything that was enqueued so far, and waits for the copy.
    ///
    /// # Safety
    ///
    /// `from`, on the stream's GPU, is valid for reads of `byte_len` bytes when the stream reaches
    /// the copy. `to` is valid for writes of as many bytes.
    pub(crate) unsafe fn download(
        &mut self,
        from: *const u8,
        to: *mut u8,
        byte_len: usize,
        stream: &CudaStream,
        deadline: Instant,
        alive: &mut dyn FnMut() -> Result<()>,
    ) -> Result<()> {
        let pieces = byte_len.div_ceil(PIECE);
        let len = |turn: usize| PIECE.min(byte_len - turn * PIECE);
        // Each step enqueues the copy of one piece, and copies the piece before it to `to`.
        for turn in 0..=pieces {
            if turn < pieces {
                let piece = &mut self.pieces[turn % 2];
                piece.wait(deadline, alive)?;
                let from = from.wrapping_add(turn * PIECE) as CUdeviceptr;
                let _current = stream.device().enter()?;
                // SAFETY: the caller promises both ranges; the piece is at least as long, and the
                // GPU does not
                // use it.
                let result = unsafe {
                    sys::cuMemcpyDtoHAsync_v2(piece.memory.start().as_ptr().cast(), from, len(turn), stream.raw())
                };
                check("cuMemcpyDtoHAsync", result)?;
                piece.in_use = Some(stream.record()?);
            }
            if let Some(before) = turn.checked_sub(1) {
                let piece = &mut self.pieces[before % 2];
                piece.wait(deadline, alive)?;
                // SAFETY: the caller promises `to`; the GPU's copy into the piece has ended.
                unsafe { to.add(before * PIECE).copy_from_nonoverlapping(piece.memory.start().as_ptr(), len(before)) };
            }
        }
        Ok(())
    }
}
