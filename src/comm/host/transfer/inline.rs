//! Small collectives: each rank's input is the payload of its header, so no rank waits at the end.

use std::mem::MaybeUninit;

use crate::collective::{Call, Collective, ReduceOperation};
use crate::comm::host::protocol::running_call::{MAX_STACK_RANKS, RunningCall};
use crate::comm::host::protocol::slot::{CallHeader, PAYLOAD_BYTES, PAYLOAD_WORDS};
use crate::compute;
use crate::error::Result;
use crate::rank::GroupRank;

/// One rank's input, aligned to every element type.
type Payload = [u64; PAYLOAD_WORDS];

/// Whether each rank's input fits its header.
pub(crate) fn fits(call: &Call, rank_count: usize) -> bool {
    call.input_bytes(rank_count) <= PAYLOAD_BYTES
}

impl RunningCall<'_> {
    /// The bytes of this rank's input. Those of a list are copied to `room`.
    pub(crate) fn payload<'r>(&'r self, byte_len: usize, room: &'r mut [u8; PAYLOAD_BYTES]) -> &'r [u8] {
        let block = self.request.signature.call.block_bytes();
        match byte_len {
            0 => &[],
            // SAFETY: by the contract of `Backend::run` the input holds these bytes until the call
            // returns.
            _ if !self.has_input_list() => unsafe { std::slice::from_raw_parts(self.request.input.pointer, byte_len) },
            _ => {
                for (index, to) in room[..byte_len].chunks_exact_mut(block).enumerate() {
                    // SAFETY: by the contract of `Backend::run_list` each block holds that many
                    // bytes until the call returns.
                    unsafe { compute::copy(self.input_block(index), to.as_mut_ptr(), block) };
                }
                &room[..byte_len]
            }
        }
    }

    /// Moves the elements from the peers' headers.
    pub(crate) fn inline(&mut self) -> Result<()> {
        let call = self.request.signature.call;
        let (rank, block) = (self.host.rank, call.block_bytes());
        let own_block = rank.index() * block;
        match call.collective {
            Collective::AllReduce { reduce_op } => self.reduce_payloads(reduce_op, 0)?,
            Collective::Reduce { reduce_op, root } if root == rank => self.reduce_payloads(reduce_op, 0)?,
            Collective::ReduceScatter { reduce_op } => self.reduce_payloads(reduce_op, own_block)?,
            Collective::AllGather => self.take_payloads(0),
            Collective::Gather { root } if root == rank => self.take_payloads(0),
            Collective::AllToAll => self.take_payloads(own_block),
            Collective::Broadcast { .. } if self.request.is_in_place_root(rank) => {}
            Collective::Broadcast { root } => self.take_payload(root, 0, 0),
            Collective::Scatter { root } => self.take_payload(root, own_block, 0),
            Collective::Reduce { .. } | Collective::Gather { .. } => {}
        }
        Ok(())
    }

    /// A peer's input. The header does not change before this rank has finished this collective
    /// (invariant 4).
    fn payload_of(&self, peer: GroupRank) -> Payload {
        let mut payload = [0; PAYLOAD_WORDS];
        let input_bytes = self.request.signature.call.input_bytes(self.host.segment.len());
        let header = self.host.segment.slot(peer).call_header(self.progress.sequence).into_iter();
        payload
            .iter_mut()
            .zip(header.flat_map(|header: &CallHeader| header.payload(input_bytes)))
            .for_each(|(to, word)| *to = word);
        payload
    }

    /// Copies a block of a peer's input into a block of the output.
    fn take_payload(&self, peer: GroupRank, source_offset: usize, target_block: usize) {
        let payload = self.payload_of(peer);
        let source = payload.as_ptr().cast::<u8>().wrapping_add(source_offset);
        let target = self.output_block(target_block);
        // SAFETY: the payload holds a peer's input, with the block in it, because the peer made the
        // same call (invariant 5). The output holds the block by the contract of `Backend::run`.
        unsafe { self.move_elements(source, target, self.request.signature.call.block_bytes()) };
    }

    fn take_payloads(&self, source_offset: usize) {
        self.host.segment.ranks().for_each(|peer| self.take_payload(peer, source_offset, peer.index()));
    }

    /// Reduces a block of all inputs, in rank order, into the output.
    fn reduce_payloads(&self, reduce_op: ReduceOperation, source_offset: usize) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let mut few = [const { MaybeUninit::<Payload>::uninit() }; MAX_STACK_RANKS];
        let mut many = Vec::new();
        let payloads = if n <= MAX_STACK_RANKS {
            &mut few[..n]
        } else {
            many.resize_with(n, MaybeUninit::uninit);
            &mut many[..]
        };
        for (peer, payload) in self.host.segment.ranks().zip(payloads.iter_mut()) {
            payload.write(self.payload_of(peer));
        }
        let block_of = |peer: GroupRank| Ok(payloads[peer.index()].as_ptr().cast::<u8>().wrapping_add(source_offset));
        self.with_addresses(block_of, |sources| {
            // SAFETY: the loop above wrote every payload, and each holds the block (invariant 5).
            // The output holds the block by the contract of `Backend::run`.
            unsafe { self.reduce_elements(reduce_op, sources, self.request.output.pointer, call.block_bytes()) };
            Ok(())
        })
    }
}
