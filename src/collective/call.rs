//! The description of one collective that every door hands to a backend.

use std::fmt;

use super::{Collective, CollectiveOperation};
use crate::data_type::DataType;
use crate::rank::GroupRank;

/// One collective of one group: what it does, on which type and how many elements. It has passed every rule of shapes and
/// types; a backend moves and reduces, and does not check again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// The operation with its reduction and root.
    pub(crate) collective: Collective<GroupRank>,
    /// The type of the elements.
    pub(crate) data_type: DataType,
    /// The number of elements of a block: what a rank gives to all_gather and gather, what it gets from reduce_scatter and
    /// scatter, what it sends each rank in all_to_all, and the whole buffer in all_reduce, broadcast and reduce.
    pub(crate) block_elements: usize,
}

impl Call {
    /// The call on an input of `input_elements` elements among `rank_count` ranks.
    pub(crate) fn new(
        collective: Collective<GroupRank>,
        data_type: DataType,
        input_elements: usize,
        rank_count: usize,
    ) -> Self {
        let block_elements = match collective.operation() {
            CollectiveOperation::ReduceScatter | CollectiveOperation::AllToAll | CollectiveOperation::Scatter => {
                input_elements / rank_count
            }
            _ => input_elements,
        };
        Call { collective, data_type, block_elements }
    }

    /// The call as it is among one rank, where every operation is the identity: all_to_all may be in place too.
    pub(crate) fn of_one_rank(&self) -> Self {
        Call { collective: Collective::Broadcast { root: GroupRank(0) }, ..*self }
    }

    /// The number of bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_elements * self.data_type.byte_len()
    }

    /// The number of bytes of a rank's input.
    pub(crate) fn input_bytes(&self, rank_count: usize) -> usize {
        match self.collective.operation() {
            CollectiveOperation::ReduceScatter | CollectiveOperation::AllToAll | CollectiveOperation::Scatter => {
                self.block_bytes() * rank_count
            }
            _ => self.block_bytes(),
        }
    }

    /// The number of bytes of a rank's output.
    pub(crate) fn output_bytes(&self, rank_count: usize) -> usize {
        match self.collective.operation() {
            CollectiveOperation::AllGather | CollectiveOperation::AllToAll | CollectiveOperation::Gather => {
                self.block_bytes() * rank_count
            }
            _ => self.block_bytes(),
        }
    }

    /// Whether a rank's input is read.
    pub(crate) fn reads_input(&self, rank: GroupRank) -> bool {
        match self.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => rank == root,
            _ => true,
        }
    }

    /// Whether a rank's output is written.
    pub(crate) fn writes_output(&self, rank: GroupRank) -> bool {
        match self.collective {
            Collective::Reduce { root, .. } | Collective::Gather { root } => rank == root,
            _ => true,
        }
    }
}

impl fmt::Display for Call {
    /// `all_reduce(sum) of 12 float32`, `scatter from 1 of 4 int8`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.collective.operation())?;
        if let Some(reduce_op) = self.collective.reduce_op() {
            write!(f, "({reduce_op})")?;
        }
        match self.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => write!(f, " from group rank {root}")?,
            Collective::Reduce { root, .. } | Collective::Gather { root } => write!(f, " to group rank {root}")?,
            _ => {}
        }
        write!(f, " of {} {}", self.block_elements, self.data_type)
    }
}
