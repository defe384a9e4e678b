//! A long all_reduce through staging memory, whose work the ranks share: each of them reduces one
//! part of each chunk for all.
//!
//! A rank gives its contributions to a chunk in one round, and in a later one the result of its
//! part. It is one chunk ahead with its contributions, and one behind with the results that it
//! takes:
//!
//! ```text
//! round   1         2         3         4         5         6         7
//! gives   chunk 1   chunk 2   result 1  chunk 3   result 2  chunk 4   result 3
//! ```
//!
//! The last result has the number that it would have if another chunk followed.
//!
//! A rank reads or writes four to five blocks, however many ranks there are. Where each rank
//! reduces all elements, it is three more than the ranks are. Two ranks move about the same either
//! way, and wait once more if they share.

use std::ops::Range;

use super::running_call::RunningCall;
use crate::collective::{Collective, ReduceOperation};
use crate::comm::host::protocol::segment::{Milestone, STAGE_BYTES};
use crate::compute::Stored;
use crate::error::Result;
use crate::rank::GroupRank;

/// The bytes of a cache line. That many elements of any type are whole lines.
const LINE: usize = if cfg!(loom) { 8 } else { 64 };

/// The fewest ranks that share. The model has two.
const FEWEST: usize = if cfg!(loom) { 2 } else { 3 };

/// How a block is divided: into chunks, which fit into a stage, and these into a part for each
/// rank.
#[derive(Clone, Copy)]
pub(super) struct Chunks {
    /// The last round before this call.
    before: u64,
    count: u64,
    /// The elements of a part.
    part: usize,
    ranks: usize,
    block: usize,
    element_bytes: usize,
}

impl Chunks {
    /// The round in which a rank gives its contributions to a chunk, and whose stage has them.
    fn given(self, chunk: u64) -> u64 {
        self.before + if chunk == 1 { 1 } else { 2 * chunk - 2 }
    }

    /// The round in which a rank gives its result, and whose stage has it.
    fn reduced(self, chunk: u64) -> u64 {
        self.before + 2 * chunk + 1
    }

    /// The bytes of some ranks' parts, from the beginning of the block.
    fn parts(self, chunk: u64, ranks: Range<usize>) -> Range<usize> {
        let first = (chunk - 1) as usize * self.ranks;
        let at = |rank: usize| ((first + rank) * self.part).min(self.block) * self.element_bytes;
        at(ranks.start)..at(ranks.end)
    }
}

impl RunningCall<'_> {
    /// Whether the ranks share the work, if the transfer is staged. They all find the same
    /// (invariant 6). In a shorter all_reduce, or of two ranks, each reduces all, and they wait
    /// once less.
    pub(super) fn shares_staged(&self) -> bool {
        let call = &self.request.call;
        let is_all_reduce = matches!(call.collective, Collective::AllReduce { .. });
        let is_long = self.own.segment.len() >= FEWEST && call.block_bytes() >= STAGE_BYTES;
        // Results do not have the transport type.
        is_all_reduce && call.wire_type.is_none() && is_long
    }

    /// How the block of this call is divided.
    pub(super) fn chunks(&self) -> Chunks {
        let call = &self.request.call;
        let (ranks, element_bytes) = (self.own.segment.len(), call.data_type.byte_len());
        let part = STAGE_BYTES / ranks / LINE * LINE / element_bytes;
        let count = call.block_elements.div_ceil(part * ranks) as u64;
        let before = self.protocol.progress.round;
        Chunks { before, count, part, ranks, block: call.block_elements, element_bytes }
    }

    /// Reduces a block that all ranks give, for all ranks.
    pub(super) fn staged_all_reduce(&mut self, reduce_op: ReduceOperation) -> Result<()> {
        let rank = self.own.rank;
        let chunks = self.chunks();
        let mut given = u64::from(self.has_first_piece);
        for chunk in 1..=chunks.count + 1 {
            while given < chunks.count.min(chunk + 1) {
                given += 1;
                self.protocol.wait_for_stage(chunks.given(given))?;
                self.give_chunk(chunks, given);
                self.own.segment.publish(rank, |slot| &slot.round, chunks.given(given));
            }
            if chunk <= chunks.count {
                self.protocol.before_moving(3 * chunks.parts(chunk, 0..chunks.ranks).len())?;
                self.wait_for_round(chunks.given(chunk), chunk == 1)?;
                self.protocol.wait_for_stage(chunks.reduced(chunk))?;
                self.reduce_part(chunks, chunk, reduce_op)?;
                self.own.segment.publish(rank, |slot| &slot.round, chunks.reduced(chunk));
            }
            let mut taken = chunks.given(1);
            if chunk > 1 {
                taken = chunks.reduced(chunk - 1);
                self.wait_for_round(taken, false)?;
                self.take_results(chunks, chunk - 1);
            }
            self.own.segment.publish(rank, |slot| &slot.taken, taken);
        }
        self.protocol.progress.round = chunks.reduced(chunks.count);
        Ok(())
    }

    /// Waits until all peers have come to a round.
    fn wait_for_round(&mut self, round: u64, is_first: bool) -> Result<()> {
        self.protocol.peers().try_for_each(|peer| match is_first && self.has_first_piece_of(peer) {
            true => Ok(()),
            false => self.protocol.wait_for(peer, Milestone::Round(round)),
        })
    }

    /// Copies this rank's contributions to the other ranks' parts of a chunk into a stage.
    pub(super) fn give_chunk(&self, chunks: Chunks, chunk: u64) {
        let (own, input) = (self.own.rank.index(), self.request.input.pointer);
        let start = chunks.parts(chunk, 0..0).start;
        for ranks in [0..own, own + 1..chunks.ranks] {
            let bytes = chunks.parts(chunk, ranks);
            self.own.segment.write_stage(self.own.rank, chunks.given(chunk), |stage| {
                // SAFETY: the input holds the block by the contract of `Backend::run`. The stage
                // holds a chunk, and no peer reads it before this rank publishes the round, or its
                // header with the first one (invariants 7 and 8).
                unsafe {
                    let target = stage.wrapping_add(bytes.start - start);
                    self.protocol.progress.stage_stores.copy(input.wrapping_add(bytes.start), target, bytes.len());
                }
            });
        }
    }

    /// Reduces this rank's part of a chunk into its output, and copies the result into a stage.
    fn reduce_part(&self, chunks: Chunks, chunk: u64, reduce_op: ReduceOperation) -> Result<()> {
        let (rank, request, segment) = (self.own.rank, self.request, &self.own.segment);
        let bytes = chunks.parts(chunk, rank.index()..rank.index() + 1);
        let offset = bytes.start - chunks.parts(chunk, 0..0).start;
        let given = |giver: GroupRank| match giver == rank {
            true => request.input.pointer.wrapping_add(bytes.start),
            false => segment.read_stage(giver, chunks.given(chunk)).wrapping_add(offset),
        };
        let target = request.output.pointer.wrapping_add(bytes.start);
        self.with_addresses(
            |giver| Ok(given(giver)),
            |sources| {
                // SAFETY: the input and the output hold the block by the contract of
                // `Backend::run`, whose in-place rules let the rank's own part be the target. A
                // peer wrote its contributions before it published them (invariant 7), and writes
                // this stage again only after this rank has published a later round (invariant 8).
                unsafe { self.reduce_elements(reduce_op, sources, Stored::AsFloat32, target, bytes.len()) };
                Ok(())
            },
        )?;
        segment.write_stage(rank, chunks.reduced(chunk), |stage| {
            // SAFETY: the stage holds a part, and no peer reads it before this rank publishes the
            // round (invariants 7 and 8).
            unsafe { self.protocol.progress.stage_stores.copy(target, stage, bytes.len()) };
        });
        Ok(())
    }

    /// Copies the results of the other ranks' parts of a chunk into the output.
    fn take_results(&self, chunks: Chunks, chunk: u64) {
        for peer in self.protocol.peers() {
            let bytes = chunks.parts(chunk, peer.index()..peer.index() + 1);
            let stage = self.own.segment.read_stage(peer, chunks.reduced(chunk));
            let target = self.request.output.pointer.wrapping_add(bytes.start);
            // SAFETY: as in `reduce_part`. This rank has given its contributions to the chunk, so
            // that its input may be its output.
            unsafe { self.take_elements(stage, Stored::AsFloat32, target, bytes.len()) };
        }
    }
}
