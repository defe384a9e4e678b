//! Copies between the host's memory and a GPU's, through pinned memory in pieces, so that copying a piece by the processor and
//! by the GPU overlap.

use std::sync::Arc;
use std::time::Instant;

use cudarc::driver::sys::{self, CUdeviceptr};

use super::driver::check;
use super::memory::PinnedMemory;
use super::{CudaStream, Device, Event};
use crate::error::Result;

/// The length of a piece, in bytes.
const PIECE: usize = 4 << 20;

/// Two pieces of pinned memory in turn.
pub(crate) struct Transfer {
    pieces: [Piece; 2],
}

struct Piece {
    memory: PinnedMemory,
    /// After which the GPU does not use the piece any more.
    in_use: Option<Event>,
}

impl Piece {
    /// Waits until the GPU is through with the piece.
    fn wait(&mut self, deadline: Instant, alive: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        // An error leaves the event where it is: the piece may still be in use.
        if let Some(event) = &self.in_use {
            event.wait(deadline, alive)?;
        }
        self.in_use = None;
        Ok(())
    }
}

impl Transfer {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self> {
        let piece = || Ok::<_, crate::Error>(Piece { memory: PinnedMemory::new(device, PIECE)?, in_use: None });
        Ok(Transfer { pieces: [piece()?, piece()?] })
    }

    /// Enqueues a copy to the GPU. When it returns, the host's memory is not needed any more.
    ///
    /// # Safety
    ///
    /// `from` is valid for reads, and `to` on the stream's GPU for writes when the stream comes to it, of `byte_len` bytes.
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
            let address = piece.memory.address();
            let _current = stream.device().enter()?;
            // SAFETY: the caller's promise; the piece is as long, and nobody uses it.
            unsafe {
                address.copy_from_nonoverlapping(from.add(start), len);
                let to = to.wrapping_add(start) as CUdeviceptr;
                check("cuMemcpyHtoDAsync", sys::cuMemcpyHtoDAsync_v2(to, address.cast(), len, stream.raw()))?;
            }
            piece.in_use = Some(stream.record()?);
        }
        Ok(())
    }

    /// Copies from the GPU, after everything that has been enqueued so far, and waits for it.
    ///
    /// # Safety
    ///
    /// `from` on the stream's GPU is valid for reads when the stream comes to it, and `to` for writes, of `byte_len` bytes.
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
        // Each turn enqueues the copy of one piece and takes in the one before.
        for turn in 0..=pieces {
            if turn < pieces {
                let piece = &mut self.pieces[turn % 2];
                piece.wait(deadline, alive)?;
                let from = from.wrapping_add(turn * PIECE) as CUdeviceptr;
                let _current = stream.device().enter()?;
                // SAFETY: the caller's promise; the piece is as long, and nobody uses it.
                let result =
                    unsafe { sys::cuMemcpyDtoHAsync_v2(piece.memory.address().cast(), from, len(turn), stream.raw()) };
                check("cuMemcpyDtoHAsync", result)?;
                piece.in_use = Some(stream.record()?);
            }
            if let Some(before) = turn.checked_sub(1) {
                let piece = &mut self.pieces[before % 2];
                piece.wait(deadline, alive)?;
                // SAFETY: the caller's promise; the copy into the piece is done.
                unsafe { to.add(before * PIECE).copy_from_nonoverlapping(piece.memory.address(), len(before)) };
            }
        }
        Ok(())
    }
}
