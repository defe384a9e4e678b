//! Collectives between processes: what others need goes over stages in shared memory.
//!
//! A collective is done in rounds. In each, a rank writes its piece into one half of its stage, says that it has come to this
//! round, waits for those from whom it takes, and reads their stages. The next round uses the other half. Whoever has come to
//! round k + 1 has read all of round k; so a half is free again when everybody has come to the round after the one that used
//! it last. Nobody waits at the end.

use super::in_time;
use super::run::Run;
use super::segment::{Mark, STAGE_BYTES};
use crate::collective::{Collective, ReduceOperation};
use crate::compute;
use crate::error::Result;
use crate::rank::GroupRank;
use crate::stream::Watch;

/// The part of a block that one round moves.
#[derive(Clone, Copy)]
struct Piece {
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
        // A stage holds one piece for everybody, or one for each rank.
        let parts = call.input().blocks(n);
        let most = self.piece_bytes(parts);
        if call.reads_input(rank) {
            let keep_going = || self.host.check().and_then(|()| in_time(self.request.deadline));
            self.host.segment.make_stage(rank, &keep_going)?;
        }
        for start in (0..block).step_by(most) {
            let piece = Piece { start, len: most.min(block - start) };
            self.before_moving(parts * piece.len)?;
            self.progress.round += 1;
            if call.reads_input(rank) {
                self.wait_for_all(Mark::Round(self.progress.round - 1))?;
                (0..parts).for_each(|part| self.give(part, part * block, piece));
            }
            self.raise_round();
            let round = Mark::Round(self.progress.round);
            for peer in self.host.segment.ranks().filter(|peer| self.takes_from(*peer)) {
                self.wait_for(peer, round)?;
            }
            self.take_piece(piece)?;
        }
        Ok(())
    }

    /// Takes what this rank takes in one round.
    fn take_piece(&self, piece: Piece) -> Result<()> {
        let call = self.request.signature.call;
        let (rank, block) = (self.host.rank, call.block_bytes());
        let take_all = |part| {
            let peers = self.host.segment.ranks();
            peers.for_each(|peer| self.take(peer, part, peer.index() * block, piece));
        };
        match call.collective {
            Collective::AllReduce { reduce_op } => self.reduce_stages(reduce_op, 0, piece)?,
            Collective::Reduce { reduce_op, root } if rank == root => self.reduce_stages(reduce_op, 0, piece)?,
            Collective::ReduceScatter { reduce_op } => self.reduce_stages(reduce_op, rank.index(), piece)?,
            Collective::AllGather => take_all(0),
            Collective::Gather { root } if rank == root => take_all(0),
            Collective::AllToAll => take_all(rank.index()),
            Collective::Broadcast { root } => self.take(root, 0, 0, piece),
            Collective::Scatter { root } => self.take(root, rank.index(), 0, piece),
            Collective::Reduce { .. } | Collective::Gather { .. } => {}
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

    /// Copies a piece of this rank's input, of the block that begins at `offset`, into a part of its stage.
    fn give(&self, part: usize, offset: usize, piece: Piece) {
        let source = self.request.input.pointer.wrapping_add(offset + piece.start);
        self.host.segment.write_stage(self.host.rank, self.progress.round, |stage| {
            // SAFETY: the input holds the block by the contract of `run`; the part lies in this rank's half of its stage,
            // which nobody reads in this round before this rank says that it has come to it.
            unsafe { compute::copy(source, stage.wrapping_add(part * piece.len), piece.len) };
        });
    }

    /// Copies a part of a peer's stage into this rank's output, into the block that begins at `offset`.
    fn take(&self, peer: GroupRank, part: usize, offset: usize, piece: Piece) {
        let target = self.request.output.pointer.wrapping_add(offset + piece.start);
        self.host.segment.read_stage(peer, self.progress.round, |stage| {
            // SAFETY: the output holds the block by the contract of `run`; the peer has written its part before it said that
            // it has come to this round, and writes this half again only when this rank has come to the next.
            unsafe { compute::copy(stage.wrapping_add(part * piece.len), target, piece.len) };
        });
    }

    /// Reduces a part of all stages, in rank order, into this rank's output.
    fn reduce_stages(&self, reduce_op: ReduceOperation, part: usize, piece: Piece) -> Result<()> {
        let data_type = self.request.signature.call.data_type;
        let target = self.request.output.pointer.wrapping_add(piece.start);
        let part_of = |peer| {
            let part = part * piece.len;
            Ok(self.host.segment.read_stage(peer, self.progress.round, |stage| stage.wrapping_add(part)))
        };
        self.with_addresses(part_of, |sources| {
            // SAFETY: as in `take`, for every source; stages are apart from the output.
            unsafe { compute::reduce(reduce_op, data_type, sources, target, piece.len / data_type.byte_len()) };
            Ok(())
        })
    }
}
