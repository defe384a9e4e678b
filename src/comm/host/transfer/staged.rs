//! Collectives between processes that cannot reach each other's buffers: the elements go through
//! staging memory, which is shared.
//!
//! A collective has several rounds. In each round a rank copies a piece of what its peers take into
//! one half of its staging memory, publishes the round, waits for the peers whose elements it
//! takes, and reads their staging memory. The next round uses the other half. No rank waits at the
//! end, because a rank touches its own buffers and shared memory only.

use crate::collective::{Collective, ReduceOperation};
use crate::comm::host::memory::check_allocation;
use crate::comm::host::protocol::running_call::RunningCall;
use crate::comm::host::protocol::segment::{Milestone, STAGING_HALF_BYTES};
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

impl RunningCall<'_> {
    /// Moves the elements through staging memory.
    pub(crate) fn staged(&mut self) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let (rank, block) = (self.host.rank, call.block_bytes());
        // A half holds one piece for all peers, or one for each.
        let parts = call.input().blocks(n);
        let most = self.piece_bytes(parts);
        if call.reads_input(rank) {
            let keep_going = || self.host.check().and_then(|()| check_allocation(self.request.deadline));
            self.host.segment.allocate_staging(rank, &keep_going)?;
        }
        for start in (0..block).step_by(most) {
            let piece = Piece { start, len: most.min(block - start) };
            self.before_moving(parts * piece.len)?;
            self.progress.round += 1;
            if call.reads_input(rank) {
                // Then no peer reads this half any more (invariant 8).
                self.wait_for_all(Milestone::Round(self.progress.round - 1))?;
                (0..parts).for_each(|part| self.stage(part, part * block, piece));
            }
            self.publish_round();
            let round = Milestone::Round(self.progress.round);
            for peer in self.host.segment.ranks().filter(|peer| self.takes_from(*peer)) {
                self.wait_for(peer, round)?;
            }
            self.take_piece(piece)?;
        }
        Ok(())
    }

    /// Moves what this rank takes in one round into its output.
    fn take_piece(&self, piece: Piece) -> Result<()> {
        let call = self.request.signature.call;
        let (rank, block) = (self.host.rank, call.block_bytes());
        let take_all = |part| {
            let peers = self.host.segment.ranks();
            peers.for_each(|peer| self.take(peer, part, peer.index() * block, piece));
        };
        match call.collective {
            Collective::AllReduce { reduce_op } => self.reduce_staging(reduce_op, 0, piece)?,
            Collective::Reduce { reduce_op, root } if rank == root => self.reduce_staging(reduce_op, 0, piece)?,
            Collective::ReduceScatter { reduce_op } => self.reduce_staging(reduce_op, rank.index(), piece)?,
            Collective::AllGather => take_all(0),
            Collective::Gather { root } if rank == root => take_all(0),
            Collective::AllToAll => take_all(rank.index()),
            Collective::Broadcast { .. } if self.request.is_in_place_root(rank) => {}
            Collective::Broadcast { root } => self.take(root, 0, 0, piece),
            Collective::Scatter { root } => self.take(root, rank.index(), 0, piece),
            Collective::Reduce { .. } | Collective::Gather { .. } => {}
        }
        Ok(())
    }

    /// The most bytes of a piece: whole cache lines, and whole elements with them.
    fn piece_bytes(&self, parts: usize) -> usize {
        const LINE: usize = 64;
        // At most 1024 ranks, and a half has 4096 lines.
        assert!(parts * LINE <= STAGING_HALF_BYTES);
        STAGING_HALF_BYTES / parts / LINE * LINE
    }

    /// Copies a piece of this rank's input, of the block that begins at `offset`, into a part of
    /// its staging memory.
    fn stage(&self, part: usize, offset: usize, piece: Piece) {
        let source = self.request.input.pointer.wrapping_add(offset + piece.start);
        self.host.segment.write_staging(self.host.rank, self.progress.round, |half| {
            // SAFETY: the input holds the block by the contract of `Backend::run`. The half holds
            // all parts, and no peer reads it before this rank publishes the round (invariants 7
            // and 8).
            unsafe { compute::copy(source, half.wrapping_add(part * piece.len), piece.len) };
        });
    }

    /// Copies a part of a peer's staging memory into this rank's output, into the block that begins
    /// at `offset`.
    fn take(&self, peer: GroupRank, part: usize, offset: usize, piece: Piece) {
        let target = self.request.output.pointer.wrapping_add(offset + piece.start);
        self.host.segment.read_staging(peer, self.progress.round, |half| {
            // SAFETY: the output holds the block by the contract of `Backend::run`. The peer wrote
            // the part before it published the round (invariant 7), and writes this half again only
            // after this rank has published the next one (invariant 8).
            unsafe { compute::copy(half.wrapping_add(part * piece.len), target, piece.len) };
        });
    }

    /// Reduces a part of all ranks' staging memory, in rank order, into this rank's output.
    fn reduce_staging(&self, reduce_op: ReduceOperation, part: usize, piece: Piece) -> Result<()> {
        let data_type = self.request.signature.call.data_type;
        let target = self.request.output.pointer.wrapping_add(piece.start);
        let part_of = |peer| {
            let part = part * piece.len;
            Ok(self.host.segment.read_staging(peer, self.progress.round, |half| half.wrapping_add(part)))
        };
        self.with_addresses(part_of, |sources| {
            // SAFETY: as in `take`, for every source. Staging memory does not overlap the output.
            unsafe { compute::reduce(reduce_op, data_type, sources, target, piece.len / data_type.byte_len()) };
            Ok(())
        })
    }
}
