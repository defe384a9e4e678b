//! Collectives between processes that cannot reach each other's buffers: the elements go through
//! staging memory, which is shared.
//!
//! A collective has several rounds. In each round a rank copies a piece of what its peers take into
//! the next stage of its staging memory, publishes the round (the first one with its header, if it
//! can), waits for the peers whose elements it takes, and reads their stages. It writes a stage
//! again when all peers have read it, so a rank that only gives runs ahead by the number of stages.
//! One that also takes is a few rounds ahead. What a rank gives to itself goes through no stage. No
//! rank waits at the end, because a rank touches its own buffers and shared memory only.
//!
//! With a transport type a stage has elements of that type. The copying into the stage rounds them,
//! and what a rank gives to its own reduction goes through its stage too.

use super::running_call::RunningCall;
use crate::collective::ReduceOperation;
use crate::comm::host::protocol::segment::{Milestone, STAGE_BYTES, stage_count};
use crate::comm::host::protocol::slot::CallHeader;
use crate::compute::{self, Stored};
use crate::error::Result;
use crate::rank::GroupRank;

/// By how many rounds a rank that also takes fills its stages ahead. What it gives to itself, or
/// reduces with what it takes, is then still in its cache: a broadcast of 4 MiB takes two thirds of
/// the time that it takes without a limit.
const MOST_AHEAD: u64 = 4;

/// With a longer input a transfer is long, in bytes.
const LONG_INPUT: usize = 256 << 10;

/// After how many rounds a rank publishes what it has taken. Less than the number of stages, so
/// that a rank that waits for a peer's stage withholds nothing that this peer waits for.
fn taken_batch(members: usize) -> u64 {
    (stage_count(members) as u64 / 4).max(1)
}

/// The part of a block that one round moves.
#[derive(Clone, Copy)]
struct BlockPiece {
    round: u64,
    /// Where it begins in the block, in elements.
    start: usize,
    /// Its length in elements, if the block is long enough.
    most: usize,
}

impl BlockPiece {
    /// The length of the piece in a block of this length.
    fn len_in(self, block: usize) -> usize {
        block.saturating_sub(self.start).min(self.most)
    }
}

/// The rounds of one staged transfer.
#[derive(Clone, Copy)]
struct Rounds {
    /// The last round before it.
    before: u64,
    last: u64,
    /// How many pieces a stage has: one for all takers, or one for each.
    parts: usize,
    /// The elements of a piece.
    most: usize,
}

impl Rounds {
    fn piece(self, round: u64) -> BlockPiece {
        let start = (round - self.before - 1) as usize * self.most;
        BlockPiece { round, start, most: self.most }
    }
}

impl RunningCall<'_> {
    /// The rounds of this call, if its transfer is staged.
    fn rounds(&self) -> Rounds {
        let call = &self.request.call;
        let n = self.own.segment.len();
        let parts = call.input().blocks(if self.stages_own() { n } else { n - 1 });
        let most = piece_bytes(parts) / call.moved_type().byte_len();
        let before = self.protocol.progress.round;
        Rounds { before, last: before + call.block_elements.div_ceil(most) as u64, parts, most }
    }

    /// Writes what this rank gives in the first round before it posts its header, so that a peer
    /// that has the header need not wait for the round. Not if this rank would have to wait for the
    /// stage, or to allocate it. Returns whether it has.
    pub(super) fn stage_first_piece(&mut self) -> bool {
        let first = self.protocol.progress.round + 1;
        if self.request.call.block_elements == 0 || !self.protocol.progress.has_staging {
            return false;
        }
        let slot_of = |number: usize| {
            let peer = self.protocol.peers().nth(number % (self.own.segment.len() - 1));
            self.own.segment.slot(peer.unwrap_or(self.own.rank))
        };
        self.protocol.progress.stage_stores.look(self.input_bytes > LONG_INPUT, slot_of);
        let has_room = self.protocol.has_room_for(first);
        match self.shares_staged() {
            _ if !has_room => {}
            true => self.give_chunk(self.chunks(), 1),
            false => self.fill_stage(self.rounds().piece(first)),
        }
        has_room
    }

    /// Moves the elements through staging memory.
    pub(super) fn staged(&mut self) -> Result<()> {
        let call = self.request.call;
        let (rank, n) = (self.own.rank, self.own.segment.len());
        let gives =
            self.protocol.peers().any(|peer| call.moves(rank, peer)) || self.stages_own() && call.writes_output(rank);
        if gives && !std::mem::replace(&mut self.protocol.progress.has_staging, true) {
            self.own.segment.allocate_staging(rank, &|| self.check_allocation())?;
        }
        if self.has_first_piece {
            // For peers that look whether this rank left before it came so far. Not with the
            // header: after a refused run the next call has the same round.
            self.own.segment.slot(rank).round.store(self.protocol.progress.round + 1);
        }
        if let (true, Some(reduce_op)) = (self.shares_staged(), call.collective.reduce_op()) {
            return self.staged_all_reduce(reduce_op);
        }
        let rounds = self.rounds();
        let Rounds { before, last, parts, .. } = rounds;
        // A rank that reads its own stages does not write one again before it has read it.
        let most_ahead = match call.writes_output(rank) {
            true => MOST_AHEAD.min(stage_count(n) as u64 - 1),
            false => u64::MAX,
        };
        let mut staged = if gives { before + u64::from(self.has_first_piece) } else { last };
        for round in before + 1..=last {
            let piece = rounds.piece(round);
            self.protocol.before_moving(parts * piece.len_in(call.block_elements) * call.data_type.byte_len())?;
            // Peers may wait for the stage of this round, so this rank waits for room for it. It
            // gives later rounds as far as it has room.
            while staged < last
                && (staged < round || staged - round < most_ahead && self.protocol.has_room_for(staged + 1))
            {
                staged += 1;
                self.protocol.wait_for_stage(staged)?;
                self.fill_stage(rounds.piece(staged));
                self.own.segment.publish(rank, |slot| &slot.round, staged);
            }
            for peer in self.protocol.peers() {
                if self.takes_from(peer) && !(round == before + 1 && self.has_first_piece_of(peer)) {
                    self.protocol.wait_for(peer, Milestone::Round(round))?;
                }
            }
            self.take_piece(piece)?;
            if round == last || (round - before).is_multiple_of(taken_batch(n)) {
                self.own.segment.publish(rank, |slot| &slot.taken, round);
            }
        }
        self.protocol.progress.round = last;
        Ok(())
    }

    /// Whether a peer had written its first piece when it posted its header.
    pub(super) fn has_first_piece_of(&self, peer: GroupRank) -> bool {
        self.protocol.header(peer).is_some_and(CallHeader::has_first_piece)
    }

    /// Whether what a rank gives to itself goes through its stage: a reduction reads elements of
    /// one type.
    fn stages_own(&self) -> bool {
        let call = self.request.call;
        call.wire_type.is_some() && call.collective.reduce_op().is_some()
    }

    /// Writes what peers take in this round into this rank's stage.
    fn fill_stage(&self, piece: BlockPiece) {
        if !self.request.call.input().is_per_rank {
            return self.stage(0, 0, piece);
        }
        let stage_for = |taker: GroupRank| self.stage(self.part_for(taker, self.own.rank), taker.index(), piece);
        match self.stages_own() {
            true => self.own.segment.ranks().for_each(stage_for),
            false => self.protocol.peers().for_each(stage_for),
        }
    }

    /// Moves what this rank takes in one round into its output.
    fn take_piece(&self, piece: BlockPiece) -> Result<()> {
        let call = self.request.call;
        match call.collective.reduce_op() {
            _ if !call.writes_output(self.own.rank) => {}
            Some(reduce_op) => self.reduce_stages(reduce_op, piece)?,
            None => {
                let givers = self.own.segment.ranks().filter(|peer| self.takes_from(*peer));
                givers.for_each(|giver| self.take(giver, piece));
            }
        }
        Ok(())
    }

    /// Copies a piece of a block of this rank's input into a part of its stage.
    fn stage(&self, part: usize, block: usize, piece: BlockPiece) {
        let call = self.request.call;
        let source = self.request.input_block(block).wrapping_add(piece.start * call.data_type.byte_len());
        let len = piece.len_in(self.input_block_len(block));
        self.own.segment.write_stage(self.own.rank, piece.round, |stage| {
            let target = stage.wrapping_add(part * piece.most * call.moved_type().byte_len());
            // SAFETY: the input holds the block by the contract of `Backend::run`. The stage holds
            // all parts, and no peer reads it before this rank publishes the round, or its header
            // with the first piece (invariants 7 and 8).
            unsafe {
                match call.wire_type {
                    None => self.protocol.progress.stage_stores.copy(source, target, len * call.data_type.byte_len()),
                    Some(wire_type) => compute::narrow(wire_type, source, target, len),
                }
            }
        });
    }

    /// The part of the giver's stage that is for `taker`. There is none for the giver itself,
    /// unless its own goes through its stage.
    fn part_for(&self, taker: GroupRank, giver: GroupRank) -> usize {
        taker.index() - usize::from(taker > giver && !self.stages_own())
    }

    /// Where the piece is that `giver` gives to this rank in this round: in its stage, or in this
    /// rank's own input.
    fn piece_from(&self, giver: GroupRank, piece: BlockPiece) -> *const u8 {
        let (call, rank) = (self.request.call, self.own.rank);
        let is_per_rank = call.input().is_per_rank;
        if giver == rank && !self.stages_own() {
            let block = self.request.input_block(if is_per_rank { rank.index() } else { 0 });
            return block.wrapping_add(piece.start * call.data_type.byte_len());
        }
        let part = if is_per_rank { self.part_for(rank, giver) } else { 0 };
        let offset = part * piece.most * call.moved_type().byte_len();
        self.own.segment.read_stage(giver, piece.round).wrapping_add(offset)
    }

    /// Copies the piece that `giver` gives to this rank into the output.
    fn take(&self, giver: GroupRank, piece: BlockPiece) {
        let element = self.request.call.data_type.byte_len();
        let len = piece.len_in(self.request.block_len(giver, self.own.rank));
        let (source, byte_len) = (self.piece_from(giver, piece), len * element);
        let target = self.request.output_for(giver).wrapping_add(piece.start * element);
        let stored = if giver == self.own.rank { Stored::AsFloat32 } else { Stored::AsWireType };
        // SAFETY: the output holds the block by the contract of `Backend::run`, whose in-place
        // rules let the rank's own piece be the target. A peer wrote its piece before it published
        // the round (invariant 7), and writes this stage again only after this rank has published a
        // later one (invariant 8).
        unsafe {
            match source == target {
                true => self.move_elements(source, stored, target, byte_len),
                false => self.take_elements(source, stored, target, byte_len),
            }
        }
    }

    /// Reduces the pieces that all ranks give to this one, in rank order, into the output.
    fn reduce_stages(&self, reduce_op: ReduceOperation, piece: BlockPiece) -> Result<()> {
        let element = self.request.call.data_type.byte_len();
        let rank = self.own.rank;
        let target = self.request.output_for(rank).wrapping_add(piece.start * element);
        let byte_len = piece.len_in(self.request.block_len(rank, rank)) * element;
        self.with_addresses(
            |giver| Ok(self.piece_from(giver, piece)),
            |sources| {
                // SAFETY: as in `take`, for every source. Stages do not overlap the output.
                unsafe { self.reduce_elements(reduce_op, sources, Stored::AsWireType, target, byte_len) };
                Ok(())
            },
        )
    }
}

/// The most bytes of a piece, if a stage holds `parts` of them: whole cache lines, and whole
/// elements with them.
fn piece_bytes(parts: usize) -> usize {
    const LINE: usize = 64;
    // At most 1024 ranks, and a stage has 1024 lines.
    assert!(parts * LINE <= STAGE_BYTES);
    STAGE_BYTES / parts / LINE * LINE
}
