//! Collectives between processes: what others need goes over stages in shared memory.
//!
//! A collective is done in rounds. In each, a rank writes its piece into one half of its stage, raises its phase, waits for
//! all, and reads what it needs from the others' stages. The next round uses the other half. When a rank has seen everybody in
//! round k + 1, everybody has read round k, and the half of round k is free for round k + 2. The posting of the next
//! collective does the same for the last round of this one; so nobody waits at the end.

use super::Run;
use super::segment::STAGE_BYTES;
use crate::collective::{Collective, ReduceOperation};
use crate::compute;
use crate::error::Result;
use crate::rank::GroupRank;

/// The part of a block that one round moves.
#[derive(Clone, Copy)]
struct Piece {
    round: usize,
    /// Where it begins in the block, in bytes.
    start: usize,
    /// Its length in bytes.
    len: usize,
}

impl Run<'_> {
    /// Moves the elements by way of stages.
    pub(super) fn staged(&mut self) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let (rank, block) = (self.host.rank, call.block_bytes());
        match call.collective {
            Collective::AllReduce { reduce_op } => self.rounds(1, |run, piece| {
                run.give(0, 0, piece);
                run.next_phase()?;
                run.reduce_stages(reduce_op, 0, piece);
                Ok(())
            }),
            Collective::Reduce { reduce_op, root } => self.rounds(1, |run, piece| {
                run.give(0, 0, piece);
                run.next_phase()?;
                if rank == root {
                    run.reduce_stages(reduce_op, 0, piece);
                }
                Ok(())
            }),
            Collective::ReduceScatter { reduce_op } => self.rounds(n, |run, piece| {
                (0..n).for_each(|part| run.give(part, part * block, piece));
                run.next_phase()?;
                run.reduce_stages(reduce_op, rank.index(), piece);
                Ok(())
            }),
            Collective::AllGather => self.rounds(1, |run, piece| {
                run.give(0, 0, piece);
                run.next_phase()?;
                (0..n).for_each(|peer| run.take(peer, 0, peer * block, piece));
                Ok(())
            }),
            Collective::Gather { root } => self.rounds(1, |run, piece| {
                run.give(0, 0, piece);
                run.next_phase()?;
                if rank == root {
                    (0..n).for_each(|peer| run.take(peer, 0, peer * block, piece));
                }
                Ok(())
            }),
            Collective::AllToAll => self.rounds(n, |run, piece| {
                (0..n).for_each(|part| run.give(part, part * block, piece));
                run.next_phase()?;
                (0..n).for_each(|peer| run.take(peer, rank.index(), peer * block, piece));
                Ok(())
            }),
            Collective::Broadcast { root } => self.rounds(1, |run, piece| {
                if rank == root {
                    run.give(0, 0, piece);
                }
                run.next_phase()?;
                run.take(root.index(), 0, 0, piece);
                Ok(())
            }),
            Collective::Scatter { root } => self.rounds(n, |run, piece| {
                if rank == root {
                    (0..n).for_each(|part| run.give(part, part * block, piece));
                }
                run.next_phase()?;
                run.take(root.index(), rank.index(), 0, piece);
                Ok(())
            }),
        }
    }

    /// Does the block piece by piece, so that `parts` pieces fit a half of a stage.
    fn rounds(&mut self, parts: usize, mut round: impl FnMut(&mut Self, Piece) -> Result<()>) -> Result<()> {
        let block = self.request.signature.call.block_bytes();
        let most = self.piece_bytes(parts);
        for (number, start) in (0..block).step_by(most).enumerate() {
            round(self, Piece { round: number, start, len: most.min(block - start) })?;
        }
        Ok(())
    }

    /// The most bytes of a piece: whole cache lines, and whole elements with them.
    fn piece_bytes(&self, parts: usize) -> usize {
        const LINE: usize = 64;
        // A communicator between processes has at most 1024 ranks, far fewer than a half has lines.
        assert!(parts * LINE <= STAGE_BYTES);
        STAGE_BYTES / parts / LINE * LINE
    }

    fn part_of_stage(&self, rank: usize, part: usize, piece: Piece) -> *mut u8 {
        let parts_before = part * piece.len;
        self.host.segment.stage(GroupRank(rank as u32), piece.round).wrapping_add(parts_before)
    }

    /// Copies a piece of this rank's input, of the block that begins at `offset`, into a part of its stage.
    fn give(&self, part: usize, offset: usize, piece: Piece) {
        let source = self.request.input.wrapping_add(offset + piece.start);
        let target = self.part_of_stage(self.host.rank.index(), part, piece);
        // SAFETY: the input holds the block by the contract of `run`; the part lies in this rank's half of its stage, which
        // nobody reads in this round before this rank raises its phase.
        unsafe { compute::copy(source, target, piece.len) };
    }

    /// Copies a part of a peer's stage into this rank's output, into the block that begins at `offset`.
    fn take(&self, peer: usize, part: usize, offset: usize, piece: Piece) {
        let source = self.part_of_stage(peer, part, piece);
        let target = self.request.output.wrapping_add(offset + piece.start);
        // SAFETY: the output holds the block by the contract of `run`; the peer has written its part before it raised its
        // phase, and writes this half again only when this rank has come to a later round.
        unsafe { compute::copy(source, target, piece.len) };
    }

    /// Reduces a part of all stages, in rank order, into this rank's output.
    fn reduce_stages(&self, reduce_op: ReduceOperation, part: usize, piece: Piece) {
        let data_type = self.request.signature.call.data_type;
        let target = self.request.output.wrapping_add(piece.start);
        self.with_sources(
            |peer| self.part_of_stage(peer, part, piece).cast_const(),
            |sources| {
                // SAFETY: as in `take`, for every source; stages are apart from the output.
                unsafe { compute::reduce(reduce_op, data_type, sources, target, piece.len / data_type.byte_len()) }
            },
        );
    }
}
