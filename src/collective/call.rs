//! The description of one collective, as a backend gets it.

use std::fmt;

use super::geometry::Side;
use super::{Collective, Determinism, Purpose, ReduceOperation, WireType};
use crate::data_type::DataType;
use crate::moved_type::{MovedType, TransferType};
use crate::rank::GroupRank;

/// One collective of one group: what it does, on which type and on how many elements. The rules of
/// shapes and types have been checked; a backend moves and reduces, and does not check them again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Call {
    /// Which of the library's calls it belongs to.
    pub(crate) purpose: Purpose,
    /// The operation with its reduction and root.
    pub(crate) collective: Collective<GroupRank>,
    /// The type of the elements.
    pub(crate) data_type: DataType,
    /// The number of elements of a [block](super::geometry).
    pub(crate) block_elements: usize,
    /// Whether a reduction has the host's bits. `Backend` if nothing is reduced.
    pub(crate) determinism: Determinism,
    /// The type in which float32 elements travel, if that is another one. `None` among one rank.
    pub(crate) wire_type: Option<WireType>,
    /// The caller's type, if the elements are bytes of a type that only moves.
    pub(crate) only_moved: Option<MovedType>,
}

/// The ranks that give elements to one rank in a call, itself included.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Givers {
    None,
    Root(GroupRank),
    All,
}

impl Givers {
    pub(crate) fn contains(self, rank: GroupRank) -> bool {
        match self {
            Givers::None => false,
            Givers::Root(root) => root == rank,
            Givers::All => true,
        }
    }

    /// Whether no rank but this one gives.
    pub(crate) fn has_no_peer_of(self, rank: GroupRank) -> bool {
        self == Givers::None || self == Givers::Root(rank)
    }
}

/// Where input and output may share memory, exactly as NCCL has it (`nccl.h`, "In-place operation
/// will happen if …").
///
/// The list of variants is complete: a program that places buffers has to handle each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InPlace {
    /// Both are at the same address.
    SameAddress,
    /// The input is a block of the output, this many elements from its start.
    InputAt {
        /// The distance in elements.
        element_offset: usize,
    },
    /// The output is a block of the input, this many elements from its start.
    OutputAt {
        /// The distance in elements.
        element_offset: usize,
    },
    /// They may not share memory.
    Never,
    /// This rank uses only one of the two, or neither, so they may overlap in any way: gather and
    /// scatter on other ranks than the root, and a rank that does not take part.
    Unused,
}

impl Call {
    /// The call on blocks of this length, in the backend's own mode, without a transport type.
    pub(crate) fn of_blocks(collective: Collective<GroupRank>, data_type: DataType, block_elements: usize) -> Self {
        Call {
            purpose: Purpose::COLLECTIVE,
            collective,
            data_type,
            block_elements,
            determinism: Determinism::Backend,
            wire_type: None,
            only_moved: None,
        }
    }

    /// A barrier, or a note with a number.
    pub(crate) fn without_buffers(purpose: Purpose, number: usize) -> Self {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Call::of_blocks(collective, DataType::Uint8, number).for_purpose(purpose)
    }

    /// The call as a part of another one.
    pub(crate) fn for_purpose(self, purpose: Purpose) -> Self {
        Call { purpose, ..self }
    }

    /// The call on an input of `input_elements` elements among `rank_count` ranks.
    pub(crate) fn new(
        collective: Collective<GroupRank>,
        data_type: DataType,
        input_elements: usize,
        rank_count: usize,
    ) -> Self {
        let block_elements = input_elements / collective.operation().input_blocks(rank_count);
        Call::of_blocks(collective, data_type, block_elements)
    }

    /// The call in a mode that is at least as strict as this one.
    pub(crate) fn at_least(mut self, determinism: Determinism) -> Self {
        self.raise_to(determinism);
        self
    }

    /// Makes the call's mode at least as strict as this one.
    pub(crate) fn raise_to(&mut self, determinism: Determinism) {
        if self.collective.reduce_op().is_some() {
            self.determinism = self.determinism.max(determinism);
        }
    }

    /// The call with a transport type. Among one rank it has none.
    pub(crate) fn sent_as(self, wire_type: Option<WireType>, rank_count: usize) -> Self {
        Call { wire_type: wire_type.filter(|_| rank_count > 1), ..self }
    }

    /// The type in which the elements travel.
    pub(crate) fn moved_type(&self) -> DataType {
        self.wire_type.map_or(self.data_type, WireType::data_type)
    }

    /// Whether every backend reduces the ranks' elements in rank order.
    pub(crate) fn reduces_in_rank_order(&self) -> bool {
        // NCCL would accumulate in the transport type.
        let is_special = self.determinism == Determinism::Exact || self.wire_type.is_some();
        is_special && self.collective.reduce_op().is_some()
    }

    /// The type of the caller's elements.
    pub(crate) fn transfer_type(&self) -> TransferType {
        self.only_moved.map_or(TransferType::Data(self.data_type), TransferType::Moved)
    }

    /// The call among one rank, where every operation is the identity and may be in place.
    pub(crate) fn of_one_rank(&self) -> Self {
        Call { collective: Collective::Broadcast { root: GroupRank(0) }, ..*self }
    }

    /// The inputs.
    pub(crate) fn input(&self) -> Side {
        self.collective.operation().geometry().input
    }

    /// The outputs.
    pub(crate) fn output(&self) -> Side {
        self.collective.operation().geometry().output
    }

    /// The number of bytes of a block.
    pub(crate) fn block_bytes(&self) -> usize {
        self.block_elements * self.data_type.byte_len()
    }

    /// The number of bytes of a rank's input.
    pub(crate) fn input_bytes(&self, rank_count: usize) -> usize {
        self.block_bytes() * self.input().blocks(rank_count)
    }

    /// The number of bytes of a rank's output.
    pub(crate) fn output_bytes(&self, rank_count: usize) -> usize {
        self.block_bytes() * self.output().blocks(rank_count)
    }

    /// How many bytes of its input and its output a rank uses; 0 for a buffer that it does not use.
    pub(crate) fn used_bytes(&self, rank: GroupRank, rank_count: usize) -> [usize; 2] {
        let (geometry, is_root) = (self.collective.operation().geometry(), self.collective.root() == Some(rank));
        let used =
            |side: Side| if side.is_of_root && !is_root { 0 } else { self.block_bytes() * side.blocks(rank_count) };
        [used(geometry.input), used(geometry.output)]
    }

    /// Whether a rank's input is read.
    pub(crate) fn reads_input(&self, rank: GroupRank) -> bool {
        self.collective.reads_input(rank)
    }

    /// Whether a rank's output is written.
    pub(crate) fn writes_output(&self, rank: GroupRank) -> bool {
        self.collective.writes_output(rank)
    }

    /// Whether the output of another rank depends on a rank's input.
    pub(crate) fn gives_to_peers(&self, rank: GroupRank) -> bool {
        let is_only_receiver = self.collective.operation().geometry().output.is_of_root && self.writes_output(rank);
        self.reads_input(rank) && !is_only_receiver
    }

    /// What errors say where a rank has no buffer that it uses. `name` is `input` or `output`.
    pub(crate) fn lacks(&self, rank: Option<GroupRank>, name: &str) -> String {
        let is_root = self.collective.root().is_some_and(|root| Some(root) == rank);
        format!("this rank{} needs an {name}", if is_root { ", the root," } else { "" })
    }

    /// Whether the output of `to` depends on the input of `from`.
    pub(crate) fn moves(&self, from: GroupRank, to: GroupRank) -> bool {
        self.givers_to(to).contains(from)
    }

    /// The ranks on whose inputs the output of `to` depends.
    pub(crate) fn givers_to(&self, to: GroupRank) -> Givers {
        match self.collective.root() {
            _ if !self.writes_output(to) => Givers::None,
            Some(root) if self.input().is_of_root => Givers::Root(root),
            _ => Givers::All,
        }
    }

    /// The in-place rule of this call on one rank. It follows from the numbers of blocks: the side
    /// with one block is the rank's own block of the other side.
    pub(crate) fn in_place(&self, rank: GroupRank) -> InPlace {
        let element_offset = rank.index() * self.block_elements;
        match (self.input().is_per_rank, self.output().is_per_rank) {
            (false, false) => InPlace::SameAddress,
            _ if !self.moves(rank, rank) => InPlace::Unused,
            (false, true) => InPlace::InputAt { element_offset },
            (true, false) => InPlace::OutputAt { element_offset },
            (true, true) => InPlace::Never,
        }
    }

    /// `all_reduce(sum)`, `scatter from group rank 1`.
    pub(crate) fn collective_name(&self) -> String {
        let reduction = self.collective.reduce_op().map_or(String::new(), |reduce_op| format!("({reduce_op})"));
        let root = match self.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => format!(" from group rank {root}"),
            Collective::Reduce { root, .. } | Collective::Gather { root } => format!(" to group rank {root}"),
            _ => String::new(),
        };
        format!("{}{reduction}{root}", self.collective.operation())
    }

    /// `all_reduce(sum) of 12 float32 in exact mode`, `scatter from 1 of 4 int8`.
    fn write_collective(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transfer_type = self.transfer_type();
        let most = if self.purpose == Purpose::UNEVEN { "at most " } else { "" };
        let elements = self.block_elements / transfer_type.carrier_count(self.collective.reduce_op());
        write!(f, "{} of {most}{elements} {transfer_type}", self.collective_name())?;
        if let Some(wire_type) = self.wire_type {
            write!(f, " sent as {wire_type}")?;
        }
        match self.determinism {
            Determinism::Backend => Ok(()),
            Determinism::Exact => f.write_str(" in exact mode"),
        }
    }
}

impl fmt::Display for Call {
    /// `all_reduce(sum) of 12 float32`, `split`, `broadcast_bytes (broadcast from 1 of 4 uint8)`:
    /// ranks that make the same call may give it different roots.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.purpose {
            Purpose::COLLECTIVE | Purpose::UNEVEN => return self.write_collective(f),
            Purpose::LIST => {
                self.write_collective(f)?;
                return f.write_str(" as a list of blocks");
            }
            _ => {}
        }
        self.purpose.write(f, self.block_elements)?;
        if self.collective.root().is_some() || self.purpose.is_bulk() {
            f.write_str(" (")?;
            self.write_collective(f)?;
            f.write_str(")")?;
        }
        Ok(())
    }
}
