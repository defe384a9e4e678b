//! Collectives among threads of one process: ranks read each other's buffers.

use super::Run;
use crate::collective::{Collective, ReduceOperation};
use crate::compute;
use crate::error::Result;
use crate::rank::GroupRank;

/// The most bytes that are read inside one access window.
const WINDOW_BYTES: usize = 64 << 10;

impl Run<'_> {
    /// Moves the elements, and returns when no peer reads this rank's buffers any more.
    pub(super) fn direct(&mut self) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let rank = self.host.rank;
        let block = call.block_bytes();
        match call.collective {
            Collective::AllReduce { reduce_op } => self.all_reduce(reduce_op)?,
            Collective::AllGather => self.fetch_all(|_| 0, block)?,
            Collective::AllToAll => self.fetch_all(|_| rank.index() * block, block)?,
            Collective::Broadcast { root } => self.fetch(root, 0, 0, block)?,
            Collective::Scatter { root } => self.fetch(root, rank.index() * block, 0, block)?,
            Collective::Gather { root } if root == rank => self.fetch_all(|_| 0, block)?,
            Collective::Reduce { reduce_op, root } if root == rank => {
                self.reduce(reduce_op, 0, 0, call.block_elements)?;
            }
            Collective::Gather { .. } | Collective::Reduce { .. } => {}
            Collective::ReduceScatter { reduce_op } => {
                self.reduce(reduce_op, rank.index() * call.block_elements, 0, call.block_elements)?;
            }
        }
        // With one rank there is nobody to say it to; otherwise nobody returns while a peer reads.
        if n > 1 { self.next_phase() } else { Ok(()) }
    }

    fn input_of(&self, peer: GroupRank) -> *const u8 {
        self.host.segment.slot(peer).posting(self.progress.sequence).input()
    }

    fn output_of(&self, peer: GroupRank) -> *const u8 {
        self.host.segment.slot(peer).posting(self.progress.sequence).output()
    }

    /// Copies `len` bytes from a peer's memory into this rank's output, window by window.
    fn copy_in(&self, source: *const u8, target_offset: usize, len: usize) -> Result<()> {
        let target = self.request.output.wrapping_add(target_offset);
        if source == target.cast_const() {
            return Ok(());
        }
        let mut done = 0;
        while done < len {
            let part = WINDOW_BYTES.min(len - done);
            self.host.segment.window(self.host.rank, || {
                // SAFETY: the peer posted a buffer that holds these bytes, and keeps it until its windows are closed; the
                // output holds them by the contract of `run`; the in-place rules keep the two apart.
                unsafe { target.add(done).copy_from_nonoverlapping(source.add(done), part) }
            })?;
            done += part;
        }
        Ok(())
    }

    /// Copies a part of one peer's input into this rank's output.
    fn fetch(&self, peer: GroupRank, source_offset: usize, target_offset: usize, len: usize) -> Result<()> {
        self.copy_in(self.input_of(peer).wrapping_add(source_offset), target_offset, len)
    }

    /// Copies a block of every rank's input into the output, in rank order.
    fn fetch_all(&self, source_offset: impl Fn(GroupRank) -> usize, block: usize) -> Result<()> {
        // Each rank begins with its own block, so that not all read the same memory at once.
        let n = self.host.segment.len();
        for i in 0..n {
            let peer = GroupRank(((self.host.rank.index() + i) % n) as u32);
            self.fetch(peer, source_offset(peer), peer.index() * block, block)?;
        }
        Ok(())
    }

    /// Reduces a range of elements of all inputs into this rank's output, window by window.
    fn reduce(
        &self,
        reduce_op: ReduceOperation,
        source_start: usize,
        target_start: usize,
        element_count: usize,
    ) -> Result<()> {
        let data_type = self.request.signature.call.data_type;
        let bytes = data_type.byte_len();
        let n = self.host.segment.len();
        let mut target = self.request.output.wrapping_add(target_start * bytes);
        let window = (WINDOW_BYTES / bytes / n).max(1);
        let source_of = |peer: usize| self.input_of(GroupRank(peer as u32)).wrapping_add(source_start * bytes);
        self.with_sources(source_of, |sources| {
            let mut left = element_count;
            while left > 0 {
                let part = window.min(left);
                self.host.segment.window(self.host.rank, || {
                    // SAFETY: as in `copy_in`, for every source; in place the target is one of the sources.
                    unsafe { compute::reduce(reduce_op, data_type, sources, target, part) }
                })?;
                for source in sources.iter_mut() {
                    *source = source.wrapping_add(part * bytes);
                }
                target = target.wrapping_add(part * bytes);
                left -= part;
            }
            Ok(())
        })
    }

    /// Each rank reduces its share of the elements, then fetches the others' shares.
    fn all_reduce(&mut self, reduce_op: ReduceOperation) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let bytes = call.data_type.byte_len();
        // Shares of whole cache lines, so that two ranks do not write the same one.
        const LINE: usize = 64;
        let share = call.block_elements.div_ceil(n).next_multiple_of(LINE);
        let range = |r: usize| {
            let start = (r * share).min(call.block_elements);
            (start, share.min(call.block_elements - start))
        };
        let (start, len) = range(self.host.rank.index());
        self.reduce(reduce_op, start, start, len)?;
        if n == 1 {
            return Ok(());
        }
        self.next_phase()?;
        for i in 1..n {
            let peer = (self.host.rank.index() + i) % n;
            let (start, len) = range(peer);
            let source = self.output_of(GroupRank(peer as u32)).wrapping_add(start * bytes);
            self.copy_in(source, start * bytes, len * bytes)?;
        }
        Ok(())
    }
}
