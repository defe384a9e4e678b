//! Collectives in which each rank gives a copy of its input, so that no rank waits at the end: a
//! few bytes in its header, up to a few KiB in its eager memory, where its peers read them.

use smallvec::SmallVec;

use super::running_call::RunningCall;
use crate::comm::host::protocol::slot::PAYLOAD_BYTES;
use crate::compute::{self, Stored};
use crate::error::Result;
use crate::rank::GroupRank;

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
            _ if self.request.input_list().is_none() => unsafe {
                std::slice::from_raw_parts(self.request.input.pointer, byte_len)
            },
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

    /// Copies this rank's input to where peers find it.
    pub(super) fn post_input(&mut self, byte_len: usize) -> Result<()> {
        if byte_len == 0 {
            return Ok(());
        }
        let (own, sequence) = (self.own, self.protocol.progress.sequence);
        if !std::mem::replace(&mut self.protocol.progress.has_eager, true) {
            own.segment.allocate_eager(own.rank, &|| self.check_allocation())?;
        }
        // SAFETY: the place has room for the longest eager input.
        own.segment.write_eager(own.rank, sequence, |place| unsafe { self.collect_input(place, byte_len) });
        Ok(())
    }

    /// Copies this rank's input, whether or not it is a list.
    ///
    /// # Safety
    ///
    /// The target is valid for writes of `byte_len` bytes, the length of the input.
    unsafe fn collect_input(&self, target: *mut u8, byte_len: usize) {
        let part = if self.request.input_list().is_some() { self.request.call.block_bytes() } else { byte_len };
        for index in 0..byte_len / part.max(1) {
            // SAFETY: by the contract of `Backend` the input holds these bytes until the call
            // returns. The caller promises the target.
            unsafe { compute::copy(self.request.input_block(index), target.add(index * part), part) };
        }
    }

    /// Moves the elements from the ranks' eager memory.
    pub(super) fn eager(&mut self) -> Result<()> {
        self.take_inputs(|peer| self.own.segment.read_eager(peer, self.protocol.progress.sequence))
    }

    /// Whether this rank takes a rank's elements from the copy. Its own input, unless that is a
    /// list, it reads where it is: a peer may hold the cache lines of the copy.
    fn reads_copy_of(&self, peer: GroupRank) -> bool {
        peer != self.own.rank || self.request.input_list().is_some()
    }

    /// Moves the elements of which ranks have given copies, so that this rank may write its output.
    /// `copy_of` finds the copy of a rank whose elements this one takes.
    fn take_inputs(&self, copy_of: impl Fn(GroupRank) -> *const u8) -> Result<()> {
        let call = self.request.call;
        let block = call.block_bytes();
        let input_of = |peer| {
            let input = if self.reads_copy_of(peer) { copy_of(peer) } else { self.request.input.pointer };
            input.wrapping_add(self.source_offset(peer))
        };
        match call.collective.reduce_op() {
            _ if !call.writes_output(self.own.rank) || self.request.is_in_place_root(self.own.rank) => Ok(()),
            Some(reduce_op) => self.with_addresses(
                |peer| Ok(input_of(peer)),
                |sources| {
                    let target = self.request.output.pointer;
                    // SAFETY: a rank's copy holds its input, with the block in it, because the rank
                    // made the same call (invariant 5). The output holds the block by the contract
                    // of `Backend`.
                    unsafe { self.reduce_elements(reduce_op, sources, Stored::AsFloat32, target, block) };
                    Ok(())
                },
            ),
            None => {
                for peer in self.own.segment.ranks().filter(|peer| self.takes_from(*peer)) {
                    // SAFETY: as above, for each block of the output.
                    unsafe {
                        self.move_elements(input_of(peer), Stored::AsFloat32, self.request.output_for(peer), block)
                    };
                }
                Ok(())
            }
        }
    }
}
