//! What a rank does with elements that it takes: it moves or reduces them, and with a transport
//! type it rounds each contribution as it reads it.

use super::running_call::RunningCall;
use crate::collective::ReduceOperation;
use crate::comm::host::system::CACHE_BYTES;
use crate::compute::{self, Stored};

/// Which part of the processor's cache an output fills if it is not left there. The cache has the
/// inputs and outputs of other ranks too, and often those of other programs.
const LONG_OUTPUT: usize = 8;

/// The same for one of many parts of a call.
const LONG_PART: usize = 1 << 20;

impl RunningCall<'_> {
    /// Copies elements of a rank's input, or rounds them. Both addresses may be the same. `stored`
    /// says how the source has elements of a call with a transport type.
    ///
    /// # Safety
    ///
    /// The target is valid for writes of `byte_len` bytes, which are whole elements, and the source
    /// for reads of as many elements. Nothing else writes them during the call. They are the same
    /// or do not overlap.
    pub(super) unsafe fn move_elements(&self, source: *const u8, stored: Stored, target: *mut u8, byte_len: usize) {
        let call = self.request.call;
        // SAFETY: the caller's promise.
        unsafe {
            match call.wire_type {
                None => compute::copy(source, target, byte_len),
                Some(wire_type) => {
                    compute::round(wire_type, stored, source, target, byte_len / call.data_type.byte_len());
                }
            }
        }
    }

    /// [`move_elements`](Self::move_elements), past the cache if the output is that long.
    ///
    /// # Safety
    ///
    /// As [`move_elements`](Self::move_elements). The two do not overlap.
    pub(super) unsafe fn take_elements(&self, source: *const u8, stored: Stored, target: *mut u8, byte_len: usize) {
        let call = &self.request.call;
        // All weights of a model together are longer than caches are.
        let long = if call.purpose.is_bulk() { LONG_PART } else { *CACHE_BYTES / LONG_OUTPUT };
        // SAFETY: the caller's promise.
        unsafe {
            match call.wire_type {
                None if call.output_bytes(self.own.segment.len()) >= long => {
                    compute::copy_past_cache(source, target, byte_len)
                }
                _ => self.move_elements(source, stored, target, byte_len),
            }
        }
    }

    /// Reduces elements of the ranks' inputs, in rank order.
    ///
    /// # Safety
    ///
    /// As [`move_elements`](Self::move_elements), for each source.
    pub(super) unsafe fn reduce_elements(
        &self,
        reduce_op: ReduceOperation,
        sources: &[*const u8],
        stored: Stored,
        target: *mut u8,
        byte_len: usize,
    ) {
        let call = self.request.call;
        let count = byte_len / call.data_type.byte_len();
        // SAFETY: the caller's promise.
        unsafe {
            match call.wire_type {
                None => compute::reduce(reduce_op, call.data_type, sources, target, count),
                Some(wire_type) => {
                    compute::reduce_rounded(reduce_op, wire_type, stored, sources, target, count);
                }
            }
        }
    }

    /// With a transport type, rounds what this rank gives itself where it lies, if its input is in
    /// its output. No peer reads it any more, and the peers' calls may have ended, so neither the
    /// deadline nor the interrupt hook ends this.
    pub(super) fn round_in_place(&self) {
        let (call, rank) = (self.request.call, self.own.rank);
        if call.wire_type.is_none() || call.collective.reduce_op().is_some() || !call.moves(rank, rank) {
            return;
        }
        let own = self.request.output_for(rank);
        if self.request.input.pointer == own {
            // SAFETY: the output holds the block by the contract of `Backend::run`.
            unsafe { self.move_elements(own, Stored::AsFloat32, own, call.block_bytes()) };
        }
    }
}
