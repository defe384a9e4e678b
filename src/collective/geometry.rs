//! The buffers of a collective, in one table: which ranks read an input and of how many blocks,
//! which ranks write an output and of how many blocks.
//!
//! A *block* is NCCL's count: what a rank gives to all_gather and gather, what it gets from
//! reduce_scatter and scatter, what it sends to each rank in all_to_all, and the whole buffer in
//! all_reduce, broadcast and reduce. Lengths, shapes and the in-place rule follow from the table.

use super::{Collective, CollectiveOperation};
use crate::rank::GroupRank;

/// One side of a collective: its inputs, or its outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Side {
    /// Whether only the root reads or writes it. Otherwise every rank does.
    pub(crate) is_of_root: bool,
    /// Whether it has one block for each rank. Otherwise it has one block.
    pub(crate) is_per_rank: bool,
}

impl Side {
    /// The number of blocks among `rank_count` ranks.
    pub(crate) const fn blocks(self, rank_count: usize) -> usize {
        if self.is_per_rank { rank_count } else { 1 }
    }
}

/// Both sides of a collective.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    pub(crate) input: Side,
    pub(crate) output: Side,
}

impl Geometry {
    /// Whether one buffer can be both input and output: each has one block.
    pub(crate) const fn can_use_one_buffer(self) -> bool {
        !self.input.is_per_rank && !self.output.is_per_rank
    }
}

impl CollectiveOperation {
    /// The table.
    pub(crate) const fn geometry(self) -> Geometry {
        const BLOCK: Side = Side { is_of_root: false, is_per_rank: false };
        const BLOCKS: Side = Side { is_of_root: false, is_per_rank: true };
        const ROOT_BLOCK: Side = Side { is_of_root: true, is_per_rank: false };
        const ROOT_BLOCKS: Side = Side { is_of_root: true, is_per_rank: true };
        let (input, output) = match self {
            CollectiveOperation::AllReduce => (BLOCK, BLOCK),
            CollectiveOperation::AllGather => (BLOCK, BLOCKS),
            CollectiveOperation::Broadcast => (ROOT_BLOCK, BLOCK),
            CollectiveOperation::Reduce => (BLOCK, ROOT_BLOCK),
            CollectiveOperation::ReduceScatter => (BLOCKS, BLOCK),
            CollectiveOperation::AllToAll => (BLOCKS, BLOCKS),
            CollectiveOperation::Gather => (BLOCK, ROOT_BLOCKS),
            CollectiveOperation::Scatter => (ROOT_BLOCKS, BLOCK),
        };
        Geometry { input, output }
    }

    /// Whether the operation has a root.
    pub const fn has_root(self) -> bool {
        let Geometry { input, output } = self.geometry();
        input.is_of_root || output.is_of_root
    }

    /// The number of blocks of a rank's input among `rank_count` ranks: `rank_count` for
    /// reduce_scatter, all_to_all and scatter, else 1.
    pub const fn input_blocks(self, rank_count: usize) -> usize {
        self.geometry().input.blocks(rank_count)
    }

    /// The number of blocks of a rank's output among `rank_count` ranks: `rank_count` for
    /// all_gather, all_to_all and gather, else 1.
    pub const fn output_blocks(self, rank_count: usize) -> usize {
        self.geometry().output.blocks(rank_count)
    }
}

impl Collective<GroupRank> {
    /// Whether a rank's input is read.
    pub fn reads_input(&self, rank: impl Into<GroupRank>) -> bool {
        !self.operation().geometry().input.is_of_root || self.root() == Some(rank.into())
    }

    /// Whether a rank's output is written.
    pub fn writes_output(&self, rank: impl Into<GroupRank>) -> bool {
        !self.operation().geometry().output.is_of_root || self.root() == Some(rank.into())
    }
}
