//! Memory on the GPU for what one step of a call hands to the next.

use std::sync::{Arc, Weak};

use crate::cuda::{CapturedGraph, CudaStream, DeviceMemory};
use crate::error::Result;

/// Memory for the calls that bring none. Work on one stream runs in order, so one call at a time
/// uses the memory of a stream. Work that a capture records may run at any time later, and beside
/// work that was enqueued or recorded on the same stream, so each capture gets memory of its own.
#[derive(Default)]
pub(super) struct Scratch {
    pieces: Vec<ScratchMemory>,
}

struct ScratchMemory {
    user: User,
    /// Dead when the stream is dropped, or when the graph and all that was made of it are gone.
    alive: Weak<()>,
    memory: DeviceMemory,
}

/// What uses memory in one order.
#[derive(Clone, Copy, PartialEq, Eq)]
struct User {
    stream: u64,
    /// The capture that records the stream's work.
    capture: Option<u64>,
}

impl Scratch {
    /// The memory for the call that is enqueued on this stream next.
    pub(super) fn take(&mut self, byte_len: usize, stream: &CudaStream) -> Result<*mut u8> {
        if byte_len == 0 {
            return Ok(std::ptr::null_mut());
        }
        let graph = stream.captured_graph()?;
        let user = User { stream: stream.id(), capture: graph.as_ref().map(CapturedGraph::id) };
        // The latest is the longest.
        let latest = self.pieces.iter_mut().rev().find(|piece| piece.user == user);
        let before = latest.as_ref().map_or(0, |piece| piece.memory.byte_len());
        if let Some(piece) = latest.filter(|piece| piece.memory.byte_len() >= byte_len) {
            if graph.is_none() {
                // The caller may have made a new `Stream` of the same CUDA stream.
                piece.alive = stream.alive();
            }
            return Ok(piece.memory.address());
        }
        // Freed when the GPU does not use it any more. Only here: to free memory makes the whole
        // GPU wait, and a stream's next call may come with a new `Stream`.
        self.pieces.retain(|piece| piece.user == user || piece.alive.strong_count() > 0);
        // Smaller pieces stay. It grows by doubling, if there is room, so that all pieces of a user
        // together are at most twice the longest.
        let memory = |byte_len| DeviceMemory::new(stream.device(), byte_len);
        let memory = match memory(byte_len.max(2 * before)) {
            Err(_) if byte_len < 2 * before => memory(byte_len),
            memory => memory,
        }?;
        let alive = match graph {
            Some(graph) => {
                let reference = Arc::default();
                let alive = Arc::downgrade(&reference);
                graph.keep(reference)?;
                alive
            }
            None => stream.alive(),
        };
        let address = memory.address();
        self.pieces.push(ScratchMemory { user, alive, memory });
        Ok(address)
    }
}
