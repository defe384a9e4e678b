//! Collectives of a few bytes: each rank's input is in its header, so no rank waits at the end.

use crate::comm::host::protocol::running_call::{ForEachRank, RunningCall};
use crate::comm::host::protocol::slot::{PAYLOAD_BYTES, PAYLOAD_WORDS};
use crate::error::Result;

/// One rank's input, aligned to every element type.
type Payload = [u64; PAYLOAD_WORDS];

/// Whether an input of this length fits a header.
pub(crate) fn fits(input_bytes: usize) -> bool {
    input_bytes <= PAYLOAD_BYTES
}

impl RunningCall<'_> {
    /// The bytes of this rank's input. Those of a list are copied to `room`.
    pub(crate) fn payload<'r>(&'r self, byte_len: usize, room: &'r mut [u8; PAYLOAD_BYTES]) -> &'r [u8] {
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
    pub(crate) fn inline(&mut self) -> Result<()> {
        let segment = &*self.host.segment;
        let mut payloads = ForEachRank::new();
        for peer in segment.ranks() {
            let mut payload: Payload = [0; PAYLOAD_WORDS];
            // A header does not change before this rank has finished this collective (invariant 4).
            let header = segment.slot(peer).call_header(self.progress.sequence);
            if let Some(header) = header.filter(|_| self.takes_from(peer)) {
                payload.iter_mut().zip(header.payload(self.input_bytes)).for_each(|(to, word)| *to = word);
            }
            payloads.push(payload);
        }
        self.take_inputs(|peer| payloads[peer.index()].as_ptr().cast())
    }
}
