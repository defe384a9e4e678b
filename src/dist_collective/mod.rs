//! The DistCollective layer: its attributes and their rules, typed constructors, the agreement of
//! ranks, and the layer on a communicator.

mod agreement;
mod bound;
mod typed;

use std::sync::Arc;

use serde::{Deserialize, Serialize};

pub(crate) use agreement::{Needs, PlanAgreement, PlannedCall, SET_COMMUNICATOR, agree};
pub use bound::BoundLayer;
pub(crate) use bound::{Role, Roles};
pub use typed::{DistCollective, NoRoot};

use crate::collective::{
    Call, Collective, CollectiveOperation, Determinism, Groups, InPlace, ReduceOperation, Root, WireType, check_type,
    check_wire_type, output_dims, output_shape,
};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail, error};
use crate::framing::StoredFormat;
use crate::rank::{GroupRank, Rank};
use crate::shape::{Dims, Shape};
use crate::util::text::count_of;

/// The attributes as bytes.
const FORMAT: StoredFormat = StoredFormat { magic: *b"DCLLAYER", version: 1, noun: "layer" };

/// Name and metadata, which every layer has.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) metadata: String,
}

/// A DistCollective layer: TensorRT's `IDistCollectiveLayer`.
///
/// It is part of a [`Network`](crate::Network), or stands by itself in an engine with a graph of
/// its own: the engine asks for the output's dimensions and the in-place rule, [binds](Self::bind)
/// the layer to a communicator, and executes it.
///
/// ```
/// use distcollective::collective::InPlace;
/// use distcollective::tensor::Dims;
/// use distcollective::{CollectiveOperation, DistCollectiveLayer};
///
/// let mut layer = DistCollectiveLayer::new(CollectiveOperation::AllGather, None, -1, &[])?;
/// layer.set_name("gather_logits");
/// layer.set_nb_rank(4)?;
/// assert_eq!(layer.output_dims(&Dims::new(&[-1, 8])?)?.as_slice(), [-1, 8]);
/// assert_eq!(layer.output_dims(&Dims::new(&[2, 8])?)?.as_slice(), [8, 8]);
/// assert_eq!(layer.in_place(1, &[2, 8])?, InPlace::InputAt { element_offset: 16 });
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// [`DistCollective`] makes the same layer, and a wrong combination of attributes does not compile.
/// The methods here check what their arguments show. How `nb_rank`, `groups`, `root` and shapes fit
/// together is checked when the network is built, or at `bind`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DistCollectiveLayer {
    pub(crate) info: Info,
    operation: CollectiveOperation,
    reduce_op: Option<ReduceOperation>,
    root: Option<Root>,
    nb_rank: Option<u32>,
    groups: Groups,
    determinism: Determinism,
    wire_type: Option<WireType>,
}

impl DistCollectiveLayer {
    /// A layer from the arguments of TensorRT's `addDistCollective`:
    /// - `reduce_op`: `None` (TensorRT's `kNONE`) if the operation does not reduce.
    /// - `root`: a rank of the communicator, or -1 if the operation has no root. For such an
    ///   operation another value is ignored, with a warning in the log.
    /// - `groups`: the ranks that take part, in group order; empty for all ranks.
    ///
    /// # Errors
    ///
    /// - The operation reduces and `reduce_op` is `None`, or it does not and `reduce_op` is given.
    /// - The operation has a root, and `root` is negative or above `u32::MAX`.
    /// - A rank in `groups` is negative, above `u32::MAX`, or occurs twice.
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
                return Err(about(error!(
                    InvalidArgument,
                    "it has a root, and root is {root}; give a rank, 0 or more"
                )));
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
            info: Info::default(),
            operation,
            reduce_op,
            root,
            nb_rank: None,
            groups,
            determinism: Determinism::default(),
            wire_type: None,
        }
    }

    /// The name, which errors and `inspect` use.
    pub fn name(&self) -> &str {
        &self.info.name
    }

    /// Sets the name. Layers of a network have different names. A network names a layer that has
    /// none.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.info.name = name.into();
    }

    /// Text of the user's, which is kept with the layer and has no effect.
    pub fn metadata(&self) -> &str {
        &self.info.metadata
    }

    /// Sets the metadata.
    pub fn set_metadata(&mut self, metadata: impl Into<String>) {
        self.info.metadata = metadata.into();
    }

    /// What the layer does.
    pub fn collective_operation(&self) -> CollectiveOperation {
        self.operation
    }

    /// Sets what the layer does. Reduction and root stay; the build checks them against it.
    pub fn set_collective_operation(&mut self, operation: CollectiveOperation) {
        self.operation = operation;
    }

    /// The reduction. `None` is TensorRT's `kNONE`.
    pub fn reduce_op(&self) -> Option<ReduceOperation> {
        self.reduce_op
    }

    /// Sets the reduction.
    pub fn set_reduce_op(&mut self, reduce_op: Option<ReduceOperation>) {
        self.reduce_op = reduce_op;
    }

    /// The root. `None` is TensorRT's -1.
    pub fn root(&self) -> Option<Root> {
        self.root
    }

    /// Sets the root: a [`Rank`] of the communicator, or with a partition a [`GroupRank`].
    pub fn set_root(&mut self, root: Option<Root>) {
        self.root = root;
    }

    /// The number of ranks, if it is set. If not, it is the length of a group, or 1 without groups.
    pub fn nb_rank(&self) -> Option<u32> {
        self.nb_rank
    }

    /// Sets the number of ranks. 1, without groups, makes the layer the identity on every rank.
    ///
    /// # Errors
    ///
    /// `nb_rank` is 0.
    pub fn set_nb_rank(&mut self, nb_rank: u32) -> Result<()> {
        check_nb_rank(nb_rank).map_err(|e| self.label(e))?;
        self.nb_rank = Some(nb_rank);
        Ok(())
    }

    /// The number of ranks, set or not.
    pub(crate) fn rank_count(&self) -> u32 {
        self.nb_rank.or(self.groups.group_len().map(|len| len as u32)).unwrap_or(1)
    }

    /// See [`ResolvedLayer::is_identity`].
    pub(crate) fn is_identity(&self) -> bool {
        self.rank_count() == 1 && self.groups == Groups::All
    }

    /// How far the bits of the layer's reduction are determined.
    pub fn determinism(&self) -> Determinism {
        self.determinism
    }

    /// Sets how far the bits of the reduction are determined. On a communicator with a stricter
    /// [determinism](crate::Communicator::determinism), the communicator's counts. It has no effect
    /// on an operation that does not reduce.
    pub fn set_determinism(&mut self, determinism: Determinism) {
        self.determinism = determinism;
    }

    /// The type in which float32 elements travel, if that is another one.
    pub fn wire_type(&self) -> Option<WireType> {
        self.wire_type
    }

    /// Sets the type in which float32 elements travel; [`WireType`] says what it means. `None` is
    /// none. The build checks that the operation has one and that the tensor is float32. TensorRT
    /// has no such attribute.
    pub fn set_wire_type(&mut self, wire_type: impl Into<Option<WireType>>) {
        self.wire_type = wire_type.into();
    }

    /// The ranks that take part.
    pub fn groups(&self) -> &Groups {
        &self.groups
    }

    /// Sets the ranks that take part.
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
        match self.name() {
            "" => format!("layer ({})", self.operation),
            name => format!("layer {name:?} ({})", self.operation),
        }
    }

    fn label(&self, error: Error) -> Error {
        error.about(|| self.subject())
    }

    /// Checks the rules that need neither type nor shape.
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
        check_wire_type(operation, self.wire_type)?;
        if operation.has_root() && self.root.is_none() {
            bail!(InvalidArgument, "it needs a root");
        }
        self.nb_rank.map_or(Ok(()), check_nb_rank)?;
        self.groups.check()
    }

    /// Checks the type of the input. A network takes only the
    /// [layer types](DataType::LAYER_TYPES).
    ///
    /// # Errors
    ///
    /// The average of bool; bits of floats; a transport type, and the type is not float32.
    pub fn check_type(&self, data_type: DataType) -> Result<()> {
        check_type(self.reduce_op, self.wire_type, data_type).map_err(|e| self.label(e))
    }

    /// Checks that the attributes fit together, and puts them into one value. Finds all mistakes.
    pub(crate) fn resolve(&self) -> Result<ResolvedLayer, Vec<Error>> {
        let nb_rank = self.rank_count();
        let mut mistakes: Vec<Error> = self.check_arguments().err().into_iter().collect();
        if let Some(group_len) = self.groups.group_len().filter(|len| *len as u32 != nb_rank) {
            let (groups, ranks) = (&self.groups, count_of(group_len, "rank"));
            mistakes
                .push(error!(InvalidNetwork, "nb_rank is {nb_rank}, but each group has {ranks}; groups is {groups}"));
        }
        let root = self.root.filter(|_| self.operation.has_root());
        let root = root.map(|root| self.group_root(root, nb_rank)).transpose().unwrap_or_else(|error| {
            mistakes.push(error);
            None
        });
        let reduce_op = self.reduce_op.filter(|_| self.operation.reduces());
        match Collective::from_parts(self.operation, reduce_op, root) {
            Some(collective) if mistakes.is_empty() => Ok(ResolvedLayer {
                collective,
                nb_rank,
                nb_rank_is_set: self.nb_rank.is_some(),
                groups: self.groups.clone(),
                determinism: self.determinism,
                wire_type: self.wire_type,
                subject: self.subject().into(),
            }),
            _ => Err(mistakes.into_iter().map(|error| self.label(error)).collect()),
        }
    }

    /// The root as a rank of the group.
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

    /// The attributes as bytes, for an engine that keeps the layer in a file of its own.
    ///
    /// # Errors
    ///
    /// At present the call always succeeds.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        FORMAT.write(self)
    }

    /// Reads the bytes of [`serialize`](Self::serialize). They need not be trusted.
    ///
    /// # Errors
    ///
    /// The bytes are no layer, a layer of another version, or damaged.
    pub fn deserialize(bytes: &[u8]) -> Result<Self> {
        let layer: Self = FORMAT.read(bytes)?;
        layer.nb_rank.map_or(Ok(()), check_nb_rank).and_then(|()| layer.groups.check()).map_err(|e| layer.label(e))?;
        Ok(layer)
    }

    /// The dimensions of the output, from those of the input. A dynamic dimension stays dynamic.
    ///
    /// # Errors
    ///
    /// - The attributes do not fit together.
    /// - The operation cannot take the dimensions; see [`output_shape`].
    pub fn output_dims(&self, input: &Dims) -> Result<Dims> {
        let resolved = self.resolve_one()?;
        output_dims(self.operation, resolved.nb_rank as usize, input).map_err(|e| self.label(e))
    }
}

impl DistCollectiveLayer {
    /// The in-place rule on a rank of the group, for an input of these dimensions.
    /// [`BoundLayer::in_place`] gives it for a rank of a communicator.
    ///
    /// # Errors
    ///
    /// - The attributes do not fit together.
    /// - The operation cannot take the shape; see [`output_shape`].
    /// - The group has no such rank.
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
        // The rule counts elements, so the type does not matter.
        Ok(Call::new(layer.collective, DataType::Uint8, shape.element_count(), n).in_place(rank))
    }
}

fn check_nb_rank(nb_rank: u32) -> Result<()> {
    if nb_rank == 0 {
        bail!(InvalidArgument, "nb_rank is 0; a collective has at least one rank");
    }
    Ok(())
}

/// The attributes of a layer, which fit together.
#[derive(Clone, Debug)]
pub(crate) struct ResolvedLayer {
    pub(crate) collective: Collective<GroupRank>,
    pub(crate) nb_rank: u32,
    pub(crate) nb_rank_is_set: bool,
    pub(crate) groups: Groups,
    pub(crate) determinism: Determinism,
    pub(crate) wire_type: Option<WireType>,
    /// `layer "grad_sync" (all_reduce)`.
    pub(crate) subject: Arc<str>,
}

impl ResolvedLayer {
    /// Whether the layer is the identity on every rank: one rank and no groups. (With groups, a
    /// rank may be no member.)
    pub(crate) fn is_identity(&self) -> bool {
        self.nb_rank == 1 && self.groups == Groups::All
    }

    /// The call on an input of `input_elements` elements among `rank_count` ranks.
    pub(crate) fn call(&self, data_type: DataType, input_elements: usize, rank_count: usize) -> Call {
        Call::new(self.collective, data_type, input_elements, rank_count)
            .at_least(self.determinism)
            .sent_as(self.wire_type, rank_count)
    }

    /// Whether some rank may not write the output.
    pub(crate) fn may_leave_output_unwritten(&self) -> bool {
        let only_root_writes = self.collective.operation().geometry().output.is_of_root;
        !self.is_identity() && (only_root_writes || self.groups != Groups::All)
    }

    /// The shape of the output, with the input in the error.
    pub(crate) fn output_shape(&self, data_type: DataType, input: &Shape) -> Result<Shape> {
        output_shape(self.collective.operation(), self.nb_rank as usize, input)
            .map_err(|e| e.followed_by(&format!("; input is {data_type} {input}")).about(|| self.subject.to_string()))
    }
}
