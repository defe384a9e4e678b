//! The DistCollective layer in a network. [`DistCollectiveLayer`] has its attributes and rules.

use serde_json::json;

use super::{Attributes, LayerBody, LayerOp, LayerRun};
use crate::collective::{CollectiveOperation, Determinism, Groups, ReduceOperation, output_shape};
use crate::data_type::DataType;
use crate::dist_collective::{DistCollectiveLayer, Info, ResolvedLayer};
use crate::error::{Result, bail};
use crate::network::{LayerId, Network, TensorId};
use crate::rank::Rank;
use crate::shape::Shape;
use crate::util::text::count_of;

impl LayerOp for DistCollectiveLayer {
    fn kind(&self) -> &str {
        self.collective_operation().name()
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        self.check_type(inputs[0])?;
        if let Some(reduce_op) = self.reduce_op().filter(|reduce_op| reduce_op.is_bitwise()) {
            let operations = ReduceOperation::LAYER_OPERATIONS.map(ReduceOperation::name).join(", ");
            bail!(Unsupported, "{reduce_op} is a reduction of eager calls; a layer of a network has {operations}");
        }
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        output_shape(self.collective_operation(), self.rank_count() as usize, inputs[0]).map(|shape| vec![shape])
    }

    /// all_gather can too, but at an offset that depends on the rank. Plans do not depend on it.
    fn works_in_place(&self, _input: DataType) -> bool {
        self.is_identity() || self.collective_operation().geometry().can_use_one_buffer()
    }

    fn attributes(&self) -> Attributes {
        self.resolve().map_or_else(|_| Attributes::default(), |layer| attributes(&layer))
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let Some((role, mut request)) = run.collective else { return Ok(()) };
        // SAFETY: the caller's promise; the call was made for the shapes of these tensors.
        unsafe { role.check(&mut request)?.run() }
    }
}

fn attributes(layer: &ResolvedLayer) -> Attributes {
    let ranks = |group: &Vec<Rank>| group.iter().map(|rank| rank.0).collect::<Vec<u32>>();
    let groups: Option<Vec<Vec<u32>>> = match &layer.groups {
        Groups::All => None,
        Groups::Group(group) => Some(vec![ranks(group)]),
        Groups::Partition(partition) => Some(partition.groups().iter().map(ranks).collect()),
    };
    let (reduce_op, root) = (layer.collective.reduce_op(), layer.collective.root());
    let wire_type = layer.wire_type.filter(|_| layer.nb_rank > 1);
    let mut text = format!("among {}", count_of(layer.nb_rank as usize, "rank"));
    if let Some(groups) = &groups {
        text += &format!(" of {groups:?}");
    }
    if let Some(reduce_op) = reduce_op {
        text += &format!(", {reduce_op}");
    }
    if let Some(root) = root {
        text += &format!(", root {root}");
    }
    if reduce_op.is_some() && layer.determinism == Determinism::Exact {
        text += ", exact";
    }
    if let Some(wire_type) = wire_type {
        text += &format!(", sent as {wire_type}");
    }
    let collective = json!({
        "reduce_op": reduce_op.map(ReduceOperation::name),
        "root_group_rank": root.map(|root| root.0),
        "nb_rank": layer.nb_rank,
        "groups": groups,
        "determinism": reduce_op.map(|_| layer.determinism.name()),
        "wire_type": wire_type.map(|wire_type| wire_type.name()),
    });
    Attributes::new([("collective", collective)], text)
}

impl Network {
    /// Adds a DistCollective layer from a typed constructor, and gives its output.
    ///
    /// # Errors
    ///
    /// - A rank occurs twice, a group is empty, or groups have different lengths.
    /// - `nb_rank` is 0.
    /// - bool is averaged; bits are reduced.
    /// - The network does not have the tensor.
    pub fn add(&mut self, collective: impl Into<DistCollectiveLayer>, input: TensorId) -> Result<TensorId> {
        let mut layer = collective.into();
        if layer.name().is_empty() {
            layer.set_name(self.default_name(layer.collective_operation().name()));
        }
        layer.check_arguments().map_err(|e| e.about(|| layer.subject()))?;
        self.add_named_layer(Info::default(), LayerBody::DistCollective(layer), &[input])
    }

    /// Adds a DistCollective layer from the arguments of TensorRT's `addDistCollective`:
    /// - `reduce_op`: `None` (TensorRT's `kNONE`) if the operation does not reduce.
    /// - `root`: a rank of the communicator, or -1 if the operation has no root.
    /// - `groups`: the ranks that take part, in group order; empty for all ranks.
    ///
    /// As in TensorRT, the number of ranks is set on the layer that it adds:
    ///
    /// ```
    /// # use distcollective::{CollectiveOperation, DataType, Network, ReduceOperation};
    /// # let mut network = Network::new();
    /// # let x = network.add_input("x", DataType::Float32, [4, 8])?;
    /// let sum = CollectiveOperation::AllReduce;
    /// let layer = network.add_dist_collective(x, sum, Some(ReduceOperation::Sum), -1, &[])?;
    /// network.layer_mut(layer)?.set_nb_rank(2)?;
    /// network.mark_output(network.output(layer)?, "y")?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - The errors of [`DistCollectiveLayer::new`].
    /// - bool is averaged; bits are reduced.
    /// - The network does not have the tensor.
    pub fn add_dist_collective(
        &mut self,
        input: TensorId,
        operation: CollectiveOperation,
        reduce_op: Option<ReduceOperation>,
        root: i64,
        groups: &[i64],
    ) -> Result<LayerId> {
        self.add(DistCollectiveLayer::new(operation, reduce_op, root, groups)?, input)?;
        Ok(LayerId::new(self.number, self.layers.len() - 1))
    }
}
