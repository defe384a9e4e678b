//! Collectives of a few bytes: each rank's input is in its header, so no rank waits at the end.

use smallvec::SmallVec;

use super::running_call::RunningCall;
use crate::comm::host::protocol::slot::PAYLOAD_BYTES;
use crate::error::Result;

/// The inputs of all ranks, one after the other, each aligned to every element type. Those that
/// this rank does not read from headers are zeros. They are on the stack, unless many ranks give
/// long ones.
type Payloads = SmallVec<[u64; 512]>;

impl RunningCall<'_> {
    /// The bytes of this rank's input. Those of a list are copied to `room`.
    pub(super) fn payload<'r>(&'r self, byte_len: usize, room: &'r mut [u8; PAYLOAD_BYTES]) -> &'r [u8] {
        match byte_len {
            0 => &[],
            // SAFETY: by the contract of `Backend::run` the input holds these bytes until the call
            // returns.
            _ if !self.has_input_list() => unsafe { std::slice::from_raw_parts(self.request.input.pointer, byte_len) },
            _ => {
                // SAFETY: there is room for the longest payload.
                unsafe { self.collect_input(room.as_mut_ptr(), byte_len) };
                &room[..byte_len]
            }
        }
    }

    /// Moves the elements from the peers' headers.
    pub(super) fn inline(&mut self) -> Result<()> {
        let segment = &*self.own.segment;
        let words = self.input_bytes.div_ceil(size_of::<u64>());
        let mut payloads = Payloads::new();
        for peer in segment.ranks() {
            // A header does not change before this rank has finished this collective (invariant 4).
            let header = || self.protocol.header(peer);
            match (self.takes_from(peer) && self.reads_copy_of(peer)).then(header).flatten() {
                Some(header) => payloads.extend(header.payload(self.input_bytes)),
                None => payloads.resize(payloads.len() + words, 0),
            }
        }
        self.take_inputs(|peer| payloads[peer.index() * words..].as_ptr().cast())
    }
}
