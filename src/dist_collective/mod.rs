//! The DistCollective layer: its attributes and their rules, typed constructors, and running it on
//! a communicator, in a network or by itself.

mod agreement;
mod bound;
mod typed;

use serde::{Deserialize, Serialize};

pub(crate) use agreement::{PlannedCall, agree};
pub use bound::{BoundLayer, RawCall};
pub(crate) use bound::{Role, Roles};
pub use typed::{DistCollective, Unrooted};

use crate::collective::{
    Call, Collective, CollectiveOperation, Groups, InPlace, ReduceOperation, Root, check_type, output_dims,
    output_shape,
};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail, error};
use crate::framing::Format;
use crate::rank::{GroupRank, Rank};
use crate::shape::{Dims, Shape};
use crate::util::text::count_of;

/// The attributes as bytes.
const FORMAT: Format = Format { magic: *b"DCLLAYER", version: 1, noun: "layer" };

/// A DistCollective layer: TensorRT's `IDistCollectiveLayer`, and the shape of a plugin for engines
/// with a graph of their own (attributes → output dims → in-place rules → [`bind`](Self::bind) to a
/// communicator → execute).
///
/// Built from loose attributes with [`new`](Self::new), or with [`DistCollective`], where a wrong
/// combination cannot be written. What the arguments alone show is checked here; how `nb_rank`,
/// `groups`, `root` and shapes fit together is checked when the network is built, or at `bind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistCollectiveLayer {
    name: String,
    metadata: String,
    operation: CollectiveOperation,
    reduce_op: Option<ReduceOperation>,
    root: Option<Root>,
    nb_rank: Option<u32>,
    groups: Groups,
}

impl DistCollectiveLayer {
    /// A layer from TensorRT's loose arguments (`INetworkDefinition::addDistCollective`):
    /// `reduce_op` is `None` where the operation does not reduce; `root` is -1 where it has none
    /// (another value is ignored, with a warning in the log); `groups` is empty for all ranks.
    ///
    /// # Errors
    ///
    /// A reduction missing or given against the operation; a negative root where one is needed; a
    /// negative or repeated rank in `groups`.
    pub fn new(
        operation: CollectiveOperation,
        reduce_op: Option<ReduceOperation>,
        root: i64,
        groups: &[i64],
    ) -> Result<Self> {
        let about = |e: Error| e.about(|| operation.to_string());
        let root = match u32::try_from(root) {
            _ if !operation.has_root() => {
                if root != -1 {
                    crate::util::log::event!(
                        WARN,
                        "{operation} has no root: {root} is ignored; -1 says that there is none"
                    );
                }
                None
            }
            Ok(root) => Some(Root::Rank(Rank(root))),
            Err(_) => {
                return Err(about(error!(InvalidArgument, "root is {root}; it needs a rank, 0 or more")));
            }
        };
        let groups = Groups::from_ranks(groups).map_err(about)?;
        let layer = DistCollectiveLayer::from_parts(operation, reduce_op, root, groups);
        layer.check_arguments().map_err(about)?;
        Ok(layer)
    }

    fn from_parts(
        operation: CollectiveOperation,
        reduce_op: Option<ReduceOperation>,
        root: Option<Root>,
        groups: Groups,
    ) -> Self {
        DistCollectiveLayer {
            name: String::new(),
            metadata: String::new(),
            operation,
            reduce_op,
            root,
            nb_rank: None,
            groups,
        }
    }

    /// The name, which error messages and `inspect` use.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Sets the name. A network needs different names for its layers, and gives one to a layer
    /// without.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.name = name.into();
    }

    /// Text of the user's that goes with the layer and means nothing to it.
    pub fn metadata(&self) -> &str {
        &self.metadata
    }

    /// Sets the metadata.
    pub fn set_metadata(&mut self, metadata: impl Into<String>) {
        self.metadata = metadata.into();
    }

    /// What the layer does.
    pub fn collective_operation(&self) -> CollectiveOperation {
        self.operation
    }

    /// Sets what the layer does. Reduction and root stay, and are checked against it at build.
    pub fn set_collective_operation(&mut self, operation: CollectiveOperation) {
        self.operation = operation;
    }

    /// The reduction; `None` is TensorRT's `kNONE`.
    pub fn reduce_op(&self) -> Option<ReduceOperation> {
        self.reduce_op
    }

    /// Sets the reduction.
    pub fn set_reduce_op(&mut self, reduce_op: Option<ReduceOperation>) {
        self.reduce_op = reduce_op;
    }

    /// The root; `None` is TensorRT's -1.
    pub fn root(&self) -> Option<Root> {
        self.root
    }

    /// Sets the root: a [`Rank`] of the communicator, or with a partition a [`GroupRank`].
    pub fn set_root(&mut self, root: Option<Root>) {
        self.root = root;
    }

    /// The number of ranks as it was set. Unset, it is the length of a group, or 1 without groups.
    pub fn nb_rank(&self) -> Option<u32> {
        self.nb_rank
    }

    /// Sets the number of ranks. Explicitly 1, without groups, makes the layer the identity on
    /// every rank.
    ///
    /// # Errors
    ///
    /// Zero.
    pub fn set_nb_rank(&mut self, nb_rank: u32) -> Result<()> {
        check_nb_rank(nb_rank).map_err(|e| self.label(e))?;
        self.nb_rank = Some(nb_rank);
        Ok(())
    }

    /// Who takes part.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Sets who takes part.
    ///
    /// # Errors
    ///
    /// A rank that occurs twice, an empty group, groups of different lengths.
    pub fn set_groups(&mut self, groups: Groups) -> Result<()> {
        groups.check().map_err(|e| self.label(e))?;
        self.groups = groups;
        Ok(())
    }

    /// `layer "grad_sync" (all_reduce)`: what errors are about.
    pub(crate) fn subject(&self) -> String {
        if self.name.is_empty() {
            return format!("layer ({})", self.operation);
        }
        format!("layer {:?} ({})", self.name, self.operation)
    }

    fn label(&self, error: Error) -> Error {
        error.about(|| self.subject())
    }

    /// What the attributes alone show.
    pub(crate) fn check_arguments(&self) -> Result<()> {
        let operation = self.operation;
        match self.reduce_op {
            None if operation.reduces() => {
                bail!(InvalidArgument, "it needs a reduce operation: sum, prod, max, min or avg");
            }
            Some(reduce_op) if !operation.reduces() => {
                bail!(InvalidArgument, "it does not reduce, so its reduce operation is none, not {reduce_op}");
            }
            _ => {}
        }
        if operation.has_root() && self.root.is_none() {
            bail!(InvalidArgument, "it needs a root");
        }
        self.nb_rank.map_or(Ok(()), check_nb_rank)?;
        self.groups.check()
    }

    /// Checks the type of the input.
    ///
    /// # Errors
    ///
    /// The average of bool.
    pub fn check_type(&self, data_type: DataType) -> Result<()> {
        check_type(self.reduce_op, data_type).map_err(|e| self.label(e))
    }

    /// Checks how the attributes fit together and puts them into one value. All mistakes are found.
    pub(crate) fn resolve(&self) -> Result<ResolvedLayer, Vec<Error>> {
        let mut mistakes = Vec::new();
        let mut note = |result: Result<()>| {
            if let Err(error) = result {
                mistakes.push(self.label(error));
            }
        };
        note(self.check_arguments());
        let group_len = self.groups.group_len().map(|len| len as u32);
        let nb_rank = self.nb_rank.or(group_len).unwrap_or(1);
        if let Some(group_len) = group_len.filter(|len| *len != nb_rank) {
            let (groups, ranks) = (&self.groups, count_of(group_len as usize, "rank"));
            note(Err(error!(InvalidNetwork, "nb_rank is {nb_rank}, but each group has {ranks}; groups is {groups}")));
        }
        let root = match self.root.filter(|_| self.operation.has_root()) {
            None => None,
            Some(root) => match self.group_root(root, nb_rank) {
                Ok(root) => Some(root),
                Err(error) => {
                    note(Err(error));
                    None
                }
            },
        };
        let reduce_op = self.reduce_op.filter(|_| self.operation.reduces());
        match Collective::from_parts(self.operation, reduce_op, root) {
            Some(collective) if mistakes.is_empty() => Ok(ResolvedLayer {
                collective,
                nb_rank,
                nb_rank_is_set: self.nb_rank.is_some(),
                groups: self.groups.clone(),
                subject: self.subject(),
            }),
            _ => Err(mistakes),
        }
    }

    /// The root as a number in the group.
    fn group_root(&self, root: Root, nb_rank: u32) -> Result<GroupRank> {
        match (&self.groups, root) {
            (Groups::All, Root::Rank(rank)) if rank.0 < nb_rank => Ok(GroupRank(rank.0)),
            (Groups::All, Root::Rank(rank)) => {
                let ranks = count_of(nb_rank as usize, "rank");
                let unset = if self.nb_rank.is_none() { " (nb_rank is not set and counts as 1)" } else { "" };
                bail!(InvalidNetwork, "root {rank} is not one of {ranks}{unset}")
            }
            (Groups::Group(group), Root::Rank(rank)) => match group.iter().position(|member| *member == rank) {
                Some(place) => Ok(GroupRank(place as u32)),
                None => bail!(InvalidNetwork, "root {rank} is not a member of the group; groups is {}", self.groups),
            },
            (Groups::Partition(_), Root::GroupRank(rank)) => {
                let len = self.groups.group_len().unwrap_or(0);
                if rank.index() >= len {
                    bail!(
                        InvalidNetwork,
                        "root {rank} is not a group rank of groups of {len}; with a partition the root counts within each \
                         group; groups is {}",
                        self.groups
                    );
                }
                Ok(rank)
            }
            (Groups::Partition(_), Root::Rank(_)) => bail!(
                InvalidNetwork,
                "with a partition the root is a GroupRank, counted within each group, not a Rank of the communicator"
            ),
            (_, Root::GroupRank(_)) => {
                bail!(InvalidNetwork, "the root is a Rank of the communicator; a GroupRank goes with a partition only")
            }
        }
    }

    fn resolve_one(&self) -> Result<ResolvedLayer> {
        self.resolve().map_err(Error::from_mistakes)
    }

    /// The attributes as bytes, for a plugin that is kept in an engine's own file.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        FORMAT.write(self)
    }

    /// Reads those bytes, which may come from anywhere.
    ///
    /// # Errors
    ///
    /// Bytes that are not a layer, not one of this version, or damaged; attributes that no call
    /// could have set.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        let layer: Self = FORMAT.read(bytes)?;
        layer.nb_rank.map_or(Ok(()), check_nb_rank).and_then(|()| layer.groups.check()).map_err(|e| layer.label(e))?;
        Ok(layer)
    }

    /// The dimensions of the output, from those of the input; a dynamic dimension stays so.
    ///
    /// # Errors
    ///
    /// Attributes that do not fit together, and shapes that the operation cannot take.
    pub fn output_dims(&self, input: &Dims) -> Result<Dims> {
        let resolved = self.resolve_one()?;
        output_dims(self.operation, resolved.nb_rank as usize, input).map_err(|e| self.label(e))
    }
}

impl DistCollectiveLayer {
    /// The in-place rule on a rank of the group, for an input of these dimensions; see
    /// [`BoundLayer::in_place`] for a rank of a communicator.
    ///
    /// # Errors
    ///
    /// Attributes that do not fit together; a shape that the operation cannot take; a rank that is
    /// not one of the group's.
    pub fn in_place(&self, rank: impl Into<GroupRank>, input: &[usize]) -> Result<InPlace> {
        let rank = rank.into();
        let layer = self.resolve_one()?;
        let (shape, n) = (Shape::new(input)?, layer.nb_rank as usize);
        output_shape(self.operation, n, &shape).map_err(|e| self.label(e))?;
        if rank.index() >= n {
            return Err(self.label(error!(InvalidArgument, "{rank} is not a group rank of {}", count_of(n, "rank"))));
        }
        if n == 1 {
            return Ok(InPlace::SameAddress);
        }
        // The rule counts elements, of whichever type.
        Ok(Call::new(layer.collective, DataType::Uint8, shape.element_count(), n).in_place(rank))
    }
}

fn check_nb_rank(nb_rank: u32) -> Result<()> {
    if nb_rank == 0 {
        bail!(InvalidArgument, "nb_rank is 0; a collective has at least one rank");
    }
    Ok(())
}

/// A layer whose attributes fit together.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedLayer {
    pub(crate) collective: Collective<GroupRank>,
    pub(crate) nb_rank: u32,
    pub(crate) nb_rank_is_set: bool,
    pub(crate) groups: Groups,
    /// `layer "grad_sync" (all_reduce)`.
    pub(crate) subject: String,
}

impl ResolvedLayer {
    /// Whether the layer is the identity on every rank: one rank, and no groups of which a rank may
    /// not be a member.
    pub(crate) fn is_identity(&self) -> bool {
        self.nb_rank == 1 && self.groups == Groups::All
    }

    /// Whether there may be a rank on which the output is not written.
    pub(crate) fn may_leave_output_unwritten(&self) -> bool {
        let only_root_writes = self.collective.operation().geometry().output.is_of_root;
        !self.is_identity() && (only_root_writes || self.groups != Groups::All)
    }

    /// The shape of the output, with the input in the error.
    pub(crate) fn output_shape(&self, data_type: DataType, input: &Shape) -> Result<Shape> {
        output_shape(self.collective.operation(), self.nb_rank as usize, input).map_err(|e| {
            Error::new(e.kind(), format!("{e}; input is {data_type} {input}")).about(|| self.subject.clone())
        })
    }
}
