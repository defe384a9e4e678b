//! Typed constructors: a wrong combination of operation, reduction, root and groups does not
//! compile.

use std::marker::PhantomData;

use super::DistCollectiveLayer;
use crate::collective::{Collective, Determinism, Groups, Partition, ReduceOperation, Root, WireType};
use crate::rank::{GroupRank, Rank};

/// A DistCollective layer that [`Network::add`](crate::Network::add) adds.
///
/// ```
/// use distcollective::collective::Partition;
/// use distcollective::{DataType, DistCollective, Network, ReduceOperation};
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float32, [4, 8])?;
/// let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(4).named("grad_sync");
/// let x = network.add(sum, x)?;
/// let x = network.add(DistCollective::broadcast(2).group([0, 2]), x)?; // rank 2 is the root
/// let pairs = || Partition::new([[0, 1], [2, 3]]);
/// let x = network.add(DistCollective::all_gather().partition(pairs()), x)?;
/// let x = network.add(pairs().broadcast(1), x)?; // ranks 1 and 3 are the roots
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// `R` is how the root is counted:
/// - [`NoRoot`]: the operation has no root, and takes any groups.
/// - [`Rank`]: a rank of the communicator, with all ranks or one group.
/// - [`GroupRank`]: a rank of each group of a partition. [`Partition`] has the constructors.
///
/// ```compile_fail
/// # use distcollective::collective::Partition;
/// # use distcollective::DistCollective;
/// // Only one of the groups has rank 1.
/// DistCollective::broadcast(1).partition(Partition::new([[0, 1], [2, 3]]));
/// ```
#[derive(Clone, Debug)]
#[must_use = "a layer does nothing until it is added to a network"]
pub struct DistCollective<R> {
    layer: DistCollectiveLayer,
    root: PhantomData<R>,
}

/// Marks an operation that has no root.
#[derive(Clone, Copy, Debug)]
pub enum NoRoot {}

impl<R> DistCollective<R> {
    /// The layer of a collective among all ranks.
    fn new(collective: Collective<Root>) -> Self {
        Self::of(collective, Groups::All)
    }

    fn of(collective: Collective<Root>, groups: Groups) -> Self {
        let (reduce_op, root) = (collective.reduce_op(), collective.root());
        let layer = DistCollectiveLayer::from_parts(collective.operation(), reduce_op, root, groups);
        DistCollective { layer, root: PhantomData }
    }

    /// Sets the number of ranks; see [`DistCollectiveLayer::set_nb_rank`]. If it is 0, adding the
    /// layer is an error.
    pub fn nb_rank(mut self, nb_rank: u32) -> Self {
        self.layer.nb_rank = Some(nb_rank);
        self
    }

    /// Sets how far the bits of the reduction are determined; see
    /// [`DistCollectiveLayer::set_determinism`].
    pub fn determinism(mut self, determinism: Determinism) -> Self {
        self.layer.determinism = determinism;
        self
    }

    /// Sets the type in which float32 elements travel; see [`DistCollectiveLayer::set_wire_type`].
    /// If the operation has none, building the network is an error.
    pub fn wire_type(mut self, wire_type: WireType) -> Self {
        self.layer.set_wire_type(wire_type);
        self
    }

    /// Names the layer.
    pub fn named(mut self, name: impl Into<String>) -> Self {
        self.layer.set_name(name);
        self
    }

    /// Sets the layer's metadata.
    pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
        self.layer.set_metadata(metadata);
        self
    }

    /// The layer by itself, for engines with a graph of their own.
    pub fn into_layer(self) -> DistCollectiveLayer {
        self.layer
    }
}

impl DistCollective<NoRoot> {
    /// Every rank gets the reduction of all inputs.
    pub fn all_reduce(reduce_op: ReduceOperation) -> Self {
        Self::new(Collective::AllReduce { reduce_op })
    }

    /// Every rank gets all inputs, concatenated along dimension 0.
    pub fn all_gather() -> Self {
        Self::new(Collective::AllGather)
    }

    /// Every rank gets its block, along dimension 0, of the reduction of all inputs.
    pub fn reduce_scatter(reduce_op: ReduceOperation) -> Self {
        Self::new(Collective::ReduceScatter { reduce_op })
    }

    /// Every rank gets its block of each input, along dimension 0.
    pub fn all_to_all() -> Self {
        Self::new(Collective::AllToAll)
    }

    /// Each group of the partition does the operation by itself.
    pub fn partition(mut self, partition: Partition) -> Self {
        self.layer.groups = Groups::Partition(partition);
        self
    }

    /// These ranks take part, in this order. The others skip the layer.
    pub fn group(mut self, ranks: impl IntoIterator<Item: Into<Rank>>) -> Self {
        self.layer.groups = Groups::Group(ranks.into_iter().map(Into::into).collect());
        self
    }
}

impl DistCollective<Rank> {
    /// Every rank gets the root's input.
    pub fn broadcast(root: impl Into<Rank>) -> Self {
        Self::new(Collective::Broadcast { root: Root::Rank(root.into()) })
    }

    /// The root gets the reduction of all inputs.
    pub fn reduce(reduce_op: ReduceOperation, root: impl Into<Rank>) -> Self {
        Self::new(Collective::Reduce { reduce_op, root: Root::Rank(root.into()) })
    }

    /// The root gets all inputs, concatenated along dimension 0.
    pub fn gather(root: impl Into<Rank>) -> Self {
        Self::new(Collective::Gather { root: Root::Rank(root.into()) })
    }

    /// Every rank gets its block, along dimension 0, of the root's input.
    pub fn scatter(root: impl Into<Rank>) -> Self {
        Self::new(Collective::Scatter { root: Root::Rank(root.into()) })
    }

    /// These ranks take part, in this order. The root is one of them. The others skip the layer.
    pub fn group(mut self, ranks: impl IntoIterator<Item: Into<Rank>>) -> Self {
        self.layer.groups = Groups::Group(ranks.into_iter().map(Into::into).collect());
        self
    }
}

/// Operations with a root in each group of a partition.
impl Partition {
    /// In each group, every rank gets the root's input.
    pub fn broadcast(self, root: impl Into<GroupRank>) -> DistCollective<GroupRank> {
        DistCollective::of(Collective::Broadcast { root: Root::GroupRank(root.into()) }, Groups::Partition(self))
    }

    /// In each group, the root gets the reduction of all inputs.
    pub fn reduce(self, reduce_op: ReduceOperation, root: impl Into<GroupRank>) -> DistCollective<GroupRank> {
        DistCollective::of(
            Collective::Reduce { reduce_op, root: Root::GroupRank(root.into()) },
            Groups::Partition(self),
        )
    }

    /// In each group, the root gets all inputs, concatenated along dimension 0.
    pub fn gather(self, root: impl Into<GroupRank>) -> DistCollective<GroupRank> {
        DistCollective::of(Collective::Gather { root: Root::GroupRank(root.into()) }, Groups::Partition(self))
    }

    /// In each group, every rank gets its block, along dimension 0, of the root's input.
    pub fn scatter(self, root: impl Into<GroupRank>) -> DistCollective<GroupRank> {
        DistCollective::of(Collective::Scatter { root: Root::GroupRank(root.into()) }, Groups::Partition(self))
    }
}

impl<R> From<DistCollective<R>> for DistCollectiveLayer {
    fn from(collective: DistCollective<R>) -> Self {
        collective.layer
    }
}
