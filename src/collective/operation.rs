//! The eight operations, with TensorRT's names and numbers.

use distcollective_elements::numbered;
use serde::{Deserialize, Serialize};

use super::{ReduceOperation, WireType};
use crate::error::{Result, bail};
use crate::rank::GroupRank;

/// What a DistCollective layer does. The numbers are those of TensorRT's `CollectiveOperation`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[repr(i32)]
#[non_exhaustive]
pub enum CollectiveOperation {
    /// Every rank gets the reduction of all inputs.
    AllReduce = 0,
    /// Every rank gets all inputs, concatenated along dimension 0.
    AllGather = 1,
    /// Every rank gets the root's input.
    Broadcast = 2,
    /// The root gets the reduction of all inputs.
    Reduce = 3,
    /// Every rank gets its block, along dimension 0, of the reduction of all inputs.
    ReduceScatter = 4,
    /// Every rank gets its block of each input, along dimension 0.
    AllToAll = 5,
    /// The root gets all inputs, concatenated along dimension 0.
    Gather = 6,
    /// Every rank gets its block, along dimension 0, of the root's input.
    Scatter = 7,
}

numbered! {
    CollectiveOperation, "a collective operation":
    AllReduce "all_reduce",
    AllGather "all_gather",
    Broadcast "broadcast",
    Reduce "reduce",
    ReduceScatter "reduce_scatter",
    AllToAll "all_to_all",
    Gather "gather",
    Scatter "scatter",
}

impl CollectiveOperation {
    /// Whether the operation reduces, and so needs a [`ReduceOperation`].
    pub const fn reduces(self) -> bool {
        matches!(
            self,
            CollectiveOperation::AllReduce | CollectiveOperation::Reduce | CollectiveOperation::ReduceScatter
        )
    }
}

/// One collective, with the attributes that its operation has and no others.
///
/// `R` is how the root is counted: as a [`Rank`](crate::Rank) of a communicator, or as a
/// [`GroupRank`] of the ranks that take part.
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::{CollectiveOperation, Rank, ReduceOperation};
///
/// let collective = Collective::Reduce { reduce_op: ReduceOperation::Sum, root: Rank(1) };
/// assert_eq!(collective.operation(), CollectiveOperation::Reduce);
/// assert_eq!(collective.root(), Some(Rank(1)));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Collective<R = GroupRank> {
    /// See [`CollectiveOperation::AllReduce`].
    AllReduce {
        /// How elements are reduced.
        reduce_op: ReduceOperation,
    },
    /// See [`CollectiveOperation::AllGather`].
    AllGather,
    /// See [`CollectiveOperation::Broadcast`].
    Broadcast {
        /// The rank whose input every rank gets.
        root: R,
    },
    /// See [`CollectiveOperation::Reduce`].
    Reduce {
        /// How elements are reduced.
        reduce_op: ReduceOperation,
        /// The rank that gets the reduction.
        root: R,
    },
    /// See [`CollectiveOperation::ReduceScatter`].
    ReduceScatter {
        /// How elements are reduced.
        reduce_op: ReduceOperation,
    },
    /// See [`CollectiveOperation::AllToAll`].
    AllToAll,
    /// See [`CollectiveOperation::Gather`].
    Gather {
        /// The rank that gets all inputs.
        root: R,
    },
    /// See [`CollectiveOperation::Scatter`].
    Scatter {
        /// The rank whose input is divided among the ranks.
        root: R,
    },
}

impl<R: Copy> Collective<R> {
    /// A collective from attributes. `None` if the operation needs one that is absent.
    pub(crate) fn from_parts(
        operation: CollectiveOperation,
        reduce_op: Option<ReduceOperation>,
        root: Option<R>,
    ) -> Option<Self> {
        Some(match operation {
            CollectiveOperation::AllReduce => Collective::AllReduce { reduce_op: reduce_op? },
            CollectiveOperation::AllGather => Collective::AllGather,
            CollectiveOperation::Broadcast => Collective::Broadcast { root: root? },
            CollectiveOperation::Reduce => Collective::Reduce { reduce_op: reduce_op?, root: root? },
            CollectiveOperation::ReduceScatter => Collective::ReduceScatter { reduce_op: reduce_op? },
            CollectiveOperation::AllToAll => Collective::AllToAll,
            CollectiveOperation::Gather => Collective::Gather { root: root? },
            CollectiveOperation::Scatter => Collective::Scatter { root: root? },
        })
    }

    /// The same collective with its root counted in another way.
    pub(crate) fn with_root<S: Copy>(self, convert: impl FnOnce(R) -> S) -> Collective<S> {
        match self {
            Collective::AllReduce { reduce_op } => Collective::AllReduce { reduce_op },
            Collective::AllGather => Collective::AllGather,
            Collective::Broadcast { root } => Collective::Broadcast { root: convert(root) },
            Collective::Reduce { reduce_op, root } => Collective::Reduce { reduce_op, root: convert(root) },
            Collective::ReduceScatter { reduce_op } => Collective::ReduceScatter { reduce_op },
            Collective::AllToAll => Collective::AllToAll,
            Collective::Gather { root } => Collective::Gather { root: convert(root) },
            Collective::Scatter { root } => Collective::Scatter { root: convert(root) },
        }
    }

    /// The operation.
    pub fn operation(&self) -> CollectiveOperation {
        match self {
            Collective::AllReduce { .. } => CollectiveOperation::AllReduce,
            Collective::AllGather => CollectiveOperation::AllGather,
            Collective::Broadcast { .. } => CollectiveOperation::Broadcast,
            Collective::Reduce { .. } => CollectiveOperation::Reduce,
            Collective::ReduceScatter { .. } => CollectiveOperation::ReduceScatter,
            Collective::AllToAll => CollectiveOperation::AllToAll,
            Collective::Gather { .. } => CollectiveOperation::Gather,
            Collective::Scatter { .. } => CollectiveOperation::Scatter,
        }
    }

    /// The reduction, for operations that reduce.
    pub fn reduce_op(&self) -> Option<ReduceOperation> {
        match *self {
            Collective::AllReduce { reduce_op }
            | Collective::Reduce { reduce_op, .. }
            | Collective::ReduceScatter { reduce_op } => Some(reduce_op),
            _ => None,
        }
    }

    /// The root, for operations that have one.
    pub fn root(&self) -> Option<R> {
        match *self {
            Collective::Broadcast { root }
            | Collective::Reduce { root, .. }
            | Collective::Gather { root }
            | Collective::Scatter { root } => Some(root),
            _ => None,
        }
    }
}

/// The rule of operations: those that have a transport type.
pub(crate) fn check_wire_type(operation: CollectiveOperation, wire_type: Option<WireType>) -> Result<()> {
    use CollectiveOperation::{AllToAll, Gather, Scatter};
    if let (AllToAll | Gather | Scatter, Some(wire_type)) = (operation, wire_type) {
        bail!(
            InvalidArgument,
            "it has no transport type, and {wire_type} is set; all_reduce, reduce, reduce_scatter, broadcast and \
             all_gather have one"
        );
    }
    Ok(())
}
