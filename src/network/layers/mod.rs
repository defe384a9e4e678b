//! The kinds of layers: one file for each, with what a user sees of it and its [`LayerOp`].

mod cast;
mod concatenation;
mod constant;
mod dist_collective;
mod elementwise;
mod identity;
mod layer;
mod plugin;
mod shuffle;
mod slice;

use std::time::Instant;

use serde::{Deserialize, Serialize};

pub use cast::CastLayer;
pub use concatenation::ConcatenationLayer;
pub use constant::ConstantLayer;
pub use elementwise::ElementWiseLayer;
pub use identity::IdentityLayer;
pub use layer::Layer;
pub use plugin::{Plugin, PluginCall, PluginLayer, PluginRegistry};
pub use shuffle::Shuffle;
pub use slice::SliceLayer;

use super::TensorId;
use crate::comm::Request;
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::dist_collective::{DistCollectiveLayer, Role};
use crate::error::{Result, bail};
use crate::executor::Executor;
use crate::memory::{Buffer, RawTensor};
use crate::shape::Shape;

/// What a layer is.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub enum LayerBody {
    /// A collective of several ranks.
    DistCollective(DistCollectiveLayer),
    /// Transpose, reshape, transpose.
    Shuffle(Shuffle),
    /// Conversion to another type.
    Cast(CastLayer),
    /// Arithmetic of two tensors.
    ElementWise(ElementWiseLayer),
    /// Tensors joined along a dimension.
    Concatenation(ConcatenationLayer),
    /// A part of a tensor.
    Slice(SliceLayer),
    /// A copy.
    Identity(IdentityLayer),
    // A plan has its own record of these two. Variants that are skipped have to be the last ones.
    /// A constant.
    #[serde(skip)]
    Constant(ConstantLayer),
    /// A layer that the user implements.
    #[serde(skip)]
    Plugin(PluginLayer),
}

impl LayerBody {
    /// What the library needs of the layer. Besides, it asks only whether a layer is a collective,
    /// and plans have records of their own for two kinds.
    pub(crate) fn op(&self) -> &dyn LayerOp {
        match self {
            LayerBody::DistCollective(layer) => layer,
            LayerBody::Shuffle(layer) => layer,
            LayerBody::Cast(layer) => layer,
            LayerBody::ElementWise(layer) => layer,
            LayerBody::Concatenation(layer) => layer,
            LayerBody::Slice(layer) => layer,
            LayerBody::Identity(layer) => layer,
            LayerBody::Constant(layer) => layer,
            LayerBody::Plugin(layer) => layer,
        }
    }

    /// The types of the outputs, from those of the inputs, if the layer's attributes allow them.
    pub(super) fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        self.op().check()?;
        let types = self.op().output_types(inputs)?;
        types.iter().try_for_each(|data_type| check_layer_type(*data_type))?;
        Ok(types)
    }

    /// See [`Layer::kind`].
    pub fn kind(&self) -> &str {
        self.op().kind()
    }
}

/// Checks that a tensor of a network can have the type.
pub(crate) fn check_layer_type(data_type: DataType) -> Result<()> {
    if !data_type.is_layer_type() {
        let types = DataType::LAYER_TYPES.map(DataType::name).join(", ");
        bail!(Unsupported, "{data_type} is a type of eager calls; a tensor of a network is {types}");
    }
    Ok(())
}

/// What a kind of layer is to the network, the engine and the context.
pub(crate) trait LayerOp {
    /// `cast`: what errors and `inspect` call it.
    fn kind(&self) -> &str;

    /// Whether the layer has so many inputs and outputs.
    fn has_arity(&self, inputs: usize, outputs: usize) -> bool {
        (inputs, outputs) == (1, 1)
    }

    /// Checks the rules that need no input.
    fn check(&self) -> Result<()> {
        Ok(())
    }

    /// The types of the outputs, from those of the inputs.
    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    /// The shapes of the outputs, from those of the inputs.
    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        Ok(inputs.iter().map(|shape| **shape).collect())
    }

    /// The largest index that it takes of any dimension.
    fn largest_index(&self) -> Option<i64> {
        None
    }

    /// The value of a constant.
    fn constant(&self) -> Option<&Buffer> {
        None
    }

    /// Whether the output may lie where its only input lies, which has this type.
    fn works_in_place(&self, _input: DataType) -> bool {
        false
    }

    /// Whether it needs memory as long as its output while it runs.
    fn needs_scratch(&self) -> bool {
        false
    }

    /// The kernels that it needs on a GPU, of which some may be there several times.
    ///
    /// # Errors
    ///
    /// The layer does not run on a GPU.
    fn kernels(&self, _inputs: &[DataType]) -> Result<Vec<Kernel>> {
        Ok(Vec::new())
    }

    /// The attributes, for `inspect`.
    fn attributes(&self) -> Attributes {
        Attributes::default()
    }

    /// Runs the layer, or enqueues it. A run allocates nothing.
    ///
    /// # Safety
    ///
    /// Until this returns, or what it enqueues is done: the run's tensors are in the executor's
    /// memory and as long as their shapes say; inputs are written, and nothing else uses outputs
    /// and scratch memory. They are apart from each other, but the output may lie where the input
    /// lies if the layer [works in place](Self::works_in_place).
    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()>;
}

/// The attributes of a layer, as members of its JSON object, and as text behind its kind.
#[derive(Default)]
pub(crate) struct Attributes {
    pub(crate) json: serde_json::Map<String, serde_json::Value>,
    pub(crate) text: String,
}

impl Attributes {
    fn new<const N: usize>(members: [(&str, serde_json::Value); N], text: String) -> Self {
        Attributes { json: members.map(|(name, value)| (name.to_owned(), value)).into_iter().collect(), text }
    }
}

/// A layer in one run: where its tensors are, and where it computes.
pub(crate) struct LayerRun<'a> {
    pub(crate) layer: &'a Layer,
    pub(crate) locate: &'a dyn Fn(TensorId) -> RawTensor,
    pub(crate) executor: Executor<'a>,
    pub(crate) deadline: Instant,
    /// As long as the output, for a layer that needs it.
    pub(crate) scratch: Option<*mut u8>,
    /// What this rank does in a DistCollective layer.
    pub(crate) collective: Option<(&'a Role, Request<'a>)>,
}

impl LayerRun<'_> {
    fn input(&self, index: usize) -> RawTensor {
        (self.locate)(self.layer.inputs[index])
    }

    fn output(&self) -> RawTensor {
        (self.locate)(self.layer.outputs[0])
    }
}

/// The type that all inputs have.
fn one_type(inputs: &[DataType]) -> Result<DataType> {
    let first = inputs[0];
    if let Some((number, other)) = inputs.iter().enumerate().find(|(_, other)| **other != first) {
        bail!(
            InvalidArgument,
            "input 0 is {first} and input {number} is {other}; inputs have one type, and add_cast converts to it"
        );
    }
    Ok(first)
}
