//! Collectives of a few KiB: each rank copies its input into its eager memory before it posts its
//! header. Its peers read it there, so no rank waits at the end.

use super::running_call::RunningCall;
use crate::collective::{Collective, ReduceOperation};
use crate::comm::host::memory::check_allocation;
use crate::compute;
use crate::error::Result;
use crate::rank::GroupRank;

impl RunningCall<'_> {
    /// Copies this rank's input to where peers find it.
    pub(super) fn post_input(&self, byte_len: usize) -> Result<()> {
        if byte_len == 0 {
            return Ok(());
        }
        let (own, sequence) = (self.own, self.protocol.sequence());
        let keep_going = || own.segment.domain.check().and_then(|()| check_allocation(self.request.deadline));
        own.segment.allocate_eager(own.rank, &keep_going)?;
        // SAFETY: the place has room for the longest eager input.
        own.segment.write_eager(own.rank, sequence, |place| unsafe { self.collect_input(place, byte_len) });
        Ok(())
    }

    /// Copies this rank's input, whether or not it is a list.
    ///
    /// # Safety
    ///
    /// The target is valid for writes of `byte_len` bytes, the length of the input.
    pub(super) unsafe fn collect_input(&self, target: *mut u8, byte_len: usize) {
        let part = if self.has_input_list() { self.request.call.block_bytes() } else { byte_len };
        for index in 0..byte_len / part.max(1) {
            let source = if self.has_input_list() { self.input_block(index) } else { self.request.input.pointer };
            // SAFETY: by the contract of `Backend` the input holds these bytes until the call
            // returns. The caller promises the target.
            unsafe { compute::copy(source, target.add(index * part), part) };
        }
    }

    /// Moves the elements from the ranks' eager memory.
    pub(super) fn eager(&mut self) -> Result<()> {
        self.take_inputs(|peer| self.own.segment.read_eager(peer, self.protocol.sequence()))
    }

    /// Whether this rank takes a rank's elements from the copy. Its own input, unless that is a
    /// list, it reads where it is: a peer may hold the cache lines of the copy.
    pub(super) fn reads_copy_of(&self, peer: GroupRank) -> bool {
        peer != self.own.rank || self.has_input_list()
    }

    /// Moves the elements of which ranks have given copies, so that this rank may write its output.
    /// `copy_of` finds the copy of a rank whose elements this one takes.
    pub(super) fn take_inputs(&self, copy_of: impl Fn(GroupRank) -> *const u8) -> Result<()> {
        let call = self.request.call;
        let (rank, block) = (self.own.rank, call.block_bytes());
        let input_of = |peer| if self.reads_copy_of(peer) { copy_of(peer) } else { self.request.input.pointer };
        let own_block = rank.index() * block;
        let take = |peer: GroupRank, offset: usize, target_block: usize| {
            // SAFETY: a rank's copy holds its input, with the block in it, because the rank made
            // the same call (invariant 5). The output holds the block by the contract of `Backend`.
            unsafe { self.move_elements(input_of(peer).wrapping_add(offset), self.output_block(target_block), block) };
        };
        let take_all = |offset: usize| self.own.segment.ranks().for_each(|peer| take(peer, offset, peer.index()));
        let reduce = |reduce_op: ReduceOperation, offset: usize| {
            let block_of = |peer| Ok(input_of(peer).wrapping_add(offset));
            self.with_addresses(block_of, |sources| {
                // SAFETY: as above, for each rank.
                unsafe { self.reduce_elements(reduce_op, sources, self.request.output.pointer, block) };
                Ok(())
            })
        };
        match call.collective {
            Collective::AllReduce { reduce_op } => reduce(reduce_op, 0)?,
            Collective::Reduce { reduce_op, root } if root == rank => reduce(reduce_op, 0)?,
            Collective::ReduceScatter { reduce_op } => reduce(reduce_op, own_block)?,
            Collective::AllGather => take_all(0),
            Collective::Gather { root } if root == rank => take_all(0),
            Collective::AllToAll => take_all(own_block),
            Collective::Broadcast { .. } if self.request.is_in_place_root(rank) => {}
            Collective::Broadcast { root } => take(root, 0, 0),
            Collective::Scatter { root } => take(root, own_block, 0),
            Collective::Reduce { .. } | Collective::Gather { .. } => {}
        }
        Ok(())
    }
}
