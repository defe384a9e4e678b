//! The layers of a network.

use std::sync::Arc;

use super::concatenation::{ConcatenationLayer, check_axis};
use super::elementwise::ElementWiseLayer;
use super::plugin::Plugin;
use super::shuffle::Shuffle;
use super::slice::SliceLayer;
use super::{Network, TensorId};
use crate::data_type::DataType;
use crate::dist_collective::DistCollectiveLayer;
use crate::error::{Error, Result, bail, error};
use crate::memory::Buffer;

/// A layer of a network, of any kind.
#[derive(Clone, Debug)]
pub struct Layer {
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) body: LayerBody,
}

/// What a layer is.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum LayerBody {
    /// A collective of several ranks.
    DistCollective(DistCollectiveLayer),
    /// Transpose, reshape, transpose.
    Shuffle(ShuffleLayer),
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
    /// A constant.
    Constant(ConstantLayer),
    /// A layer that the user implements.
    Plugin(PluginLayer),
}

/// Name and metadata, which every layer has.
#[derive(Clone, Debug, Default, serde::Serialize, serde::Deserialize)]
pub(crate) struct Info {
    pub(crate) name: String,
    pub(crate) metadata: String,
}

impl Info {
    pub(super) fn named(name: String) -> Self {
        Info { name, metadata: String::new() }
    }
}

/// See [`Shuffle`].
#[derive(Clone, Debug)]
pub struct ShuffleLayer {
    pub(crate) info: Info,
    pub(crate) shuffle: Shuffle,
}

/// See [`Network::add_cast`].
#[derive(Clone, Debug)]
pub struct CastLayer {
    pub(crate) info: Info,
    pub(crate) to: DataType,
}

/// See [`Network::add_identity`].
#[derive(Clone, Debug)]
pub struct IdentityLayer {
    pub(crate) info: Info,
}

/// See [`Network::add_constant`].
#[derive(Clone, Debug)]
pub struct ConstantLayer {
    pub(crate) info: Info,
    pub(crate) value: Arc<Buffer>,
}

/// See [`Network::add_plugin`].
#[derive(Clone, Debug)]
pub struct PluginLayer {
    pub(crate) info: Info,
    pub(crate) plugin: Arc<dyn Plugin>,
}

impl PluginLayer {
    pub(crate) fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        let about = |e: Error| e.about(|| format!("layer {:?} ({})", self.info.name, self.plugin.type_name()));
        let outputs = self.plugin.output_types(inputs).map_err(about)?;
        if outputs.is_empty() {
            return Err(about(error!(InvalidArgument, "a plugin has at least one output")));
        }
        Ok(outputs)
    }
}

impl ShuffleLayer {
    /// What the layer does.
    pub fn shuffle(&self) -> &Shuffle {
        &self.shuffle
    }

    /// Sets what the layer does.
    ///
    /// # Errors
    ///
    /// A transpose that is not a permutation; a reshape with more than one -1.
    pub fn set_shuffle(&mut self, shuffle: Shuffle) -> Result<()> {
        shuffle.check()?;
        self.shuffle = shuffle;
        Ok(())
    }
}

impl CastLayer {
    /// The type to convert to.
    pub fn to(&self) -> DataType {
        self.to
    }

    /// Sets the type to convert to.
    pub fn set_to(&mut self, to: DataType) {
        self.to = to;
    }
}

impl ConstantLayer {
    /// The value.
    pub fn value(&self) -> &Buffer {
        &self.value
    }

    /// Sets the value. Its type and shape may differ from those of the value before.
    pub fn set_value(&mut self, value: Buffer) {
        self.value = Arc::new(value);
    }
}

impl PluginLayer {
    /// The plugin.
    pub fn plugin(&self) -> &dyn Plugin {
        self.plugin.as_ref()
    }
}

impl LayerBody {
    pub(crate) fn name(&self) -> &str {
        match self {
            LayerBody::DistCollective(layer) => layer.name(),
            LayerBody::Shuffle(layer) => &layer.info.name,
            LayerBody::Cast(layer) => &layer.info.name,
            LayerBody::ElementWise(layer) => &layer.info.name,
            LayerBody::Concatenation(layer) => &layer.info.name,
            LayerBody::Slice(layer) => &layer.info.name,
            LayerBody::Identity(layer) => &layer.info.name,
            LayerBody::Constant(layer) => &layer.info.name,
            LayerBody::Plugin(layer) => &layer.info.name,
        }
    }

    /// `all_reduce`, `shuffle`, `cast`, `elementwise`, `concatenation`, `slice`, `identity`,
    /// `constant`, or a plugin's name.
    pub fn kind(&self) -> &str {
        match self {
            LayerBody::DistCollective(layer) => layer.collective_operation().name(),
            LayerBody::Shuffle(_) => "shuffle",
            LayerBody::Cast(_) => "cast",
            LayerBody::ElementWise(_) => "elementwise",
            LayerBody::Concatenation(_) => "concatenation",
            LayerBody::Slice(_) => "slice",
            LayerBody::Identity(_) => "identity",
            LayerBody::Constant(_) => "constant",
            LayerBody::Plugin(layer) => layer.plugin.type_name(),
        }
    }

    /// `layer "grad_sync" (all_reduce)`: what errors are about.
    pub fn subject(&self) -> String {
        format!("layer {:?} ({})", self.name(), self.kind())
    }

    /// Checks the rules that need no input.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            LayerBody::Shuffle(layer) => layer.shuffle.check(),
            LayerBody::Concatenation(layer) => check_axis(layer.axis),
            LayerBody::Slice(layer) => layer.slice.check(),
            _ => Ok(()),
        }
    }

    /// The types of the outputs, from the types of the inputs.
    pub(crate) fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        match self {
            LayerBody::DistCollective(layer) => {
                layer.check_type(inputs[0])?;
                Ok(inputs.to_vec())
            }
            LayerBody::Shuffle(_) | LayerBody::Slice(_) | LayerBody::Identity(_) => Ok(inputs.to_vec()),
            LayerBody::Cast(layer) => Ok(vec![layer.to]),
            LayerBody::ElementWise(layer) => layer.output_type(inputs).map(|data_type| vec![data_type]),
            LayerBody::Concatenation(layer) => layer.output_type(inputs).map(|data_type| vec![data_type]),
            LayerBody::Constant(layer) => Ok(vec![layer.value.data_type()]),
            LayerBody::Plugin(layer) => layer.output_types(inputs),
        }
    }
}

impl From<DistCollectiveLayer> for Layer {
    /// A layer of no network: it has no inputs and outputs.
    fn from(layer: DistCollectiveLayer) -> Self {
        Layer { inputs: Vec::new(), outputs: Vec::new(), body: LayerBody::DistCollective(layer) }
    }
}

impl Layer {
    /// Whether the layer has as many inputs and outputs as its kind needs.
    pub(crate) fn has_right_arity(&self) -> bool {
        match &self.body {
            LayerBody::Constant(_) => self.inputs.is_empty() && self.outputs.len() == 1,
            LayerBody::Plugin(_) => !self.outputs.is_empty(),
            LayerBody::ElementWise(_) => self.inputs.len() == 2 && self.outputs.len() == 1,
            LayerBody::Concatenation(_) => !self.inputs.is_empty() && self.outputs.len() == 1,
            _ => self.inputs.len() == 1 && self.outputs.len() == 1,
        }
    }

    /// The types of the outputs, from the types of the inputs. `None` if the layer cannot have such
    /// inputs.
    pub(super) fn output_types(&self, inputs: &[DataType]) -> Option<Vec<DataType>> {
        self.has_right_arity().then(|| self.body.output_types(inputs).ok()).flatten()
    }

    fn info_mut(&mut self) -> Option<&mut Info> {
        match &mut self.body {
            LayerBody::DistCollective(_) => None,
            LayerBody::Shuffle(layer) => Some(&mut layer.info),
            LayerBody::Cast(layer) => Some(&mut layer.info),
            LayerBody::ElementWise(layer) => Some(&mut layer.info),
            LayerBody::Concatenation(layer) => Some(&mut layer.info),
            LayerBody::Slice(layer) => Some(&mut layer.info),
            LayerBody::Identity(layer) => Some(&mut layer.info),
            LayerBody::Constant(layer) => Some(&mut layer.info),
            LayerBody::Plugin(layer) => Some(&mut layer.info),
        }
    }

    /// `layer "grad_sync" (all_reduce)`: what errors are about.
    pub(crate) fn subject(&self) -> String {
        self.body.subject()
    }

    /// What kind of layer it is: `all_reduce` and the other operations, `shuffle`, `cast`,
    /// `elementwise`, `concatenation`, `slice`, `identity`, `constant`, or the
    /// [`type_name`](Plugin::type_name) of a plugin.
    pub fn kind(&self) -> &str {
        self.body.kind()
    }

    /// The name, which error messages and `inspect` use.
    pub fn name(&self) -> &str {
        self.body.name()
    }

    /// Sets the name. Layers of a network have different names.
    pub fn set_name(&mut self, name: impl Into<String>) {
        match &mut self.body {
            LayerBody::DistCollective(layer) => layer.set_name(name),
            _ => {
                if let Some(info) = self.info_mut() {
                    info.name = name.into();
                }
            }
        }
    }

    /// Text of the user's, which is kept with the layer and has no effect.
    pub fn metadata(&self) -> &str {
        match &self.body {
            LayerBody::DistCollective(layer) => layer.metadata(),
            LayerBody::Shuffle(layer) => &layer.info.metadata,
            LayerBody::Cast(layer) => &layer.info.metadata,
            LayerBody::ElementWise(layer) => &layer.info.metadata,
            LayerBody::Concatenation(layer) => &layer.info.metadata,
            LayerBody::Slice(layer) => &layer.info.metadata,
            LayerBody::Identity(layer) => &layer.info.metadata,
            LayerBody::Constant(layer) => &layer.info.metadata,
            LayerBody::Plugin(layer) => &layer.info.metadata,
        }
    }

    /// Sets the metadata.
    pub fn set_metadata(&mut self, metadata: impl Into<String>) {
        match &mut self.body {
            LayerBody::DistCollective(layer) => layer.set_metadata(metadata),
            _ => {
                if let Some(info) = self.info_mut() {
                    info.metadata = metadata.into();
                }
            }
        }
    }

    /// The number of ranks. It is 1 for a layer that is no collective, and for a collective without
    /// groups whose number is not set.
    pub fn nb_rank(&self) -> u32 {
        match &self.body {
            LayerBody::DistCollective(layer) => {
                layer.nb_rank().or(layer.groups().group_len().map(|len| len as u32)).unwrap_or(1)
            }
            _ => 1,
        }
    }

    /// Sets the number of ranks; see [`DistCollectiveLayer::set_nb_rank`].
    ///
    /// # Errors
    ///
    /// Zero, or more than one for a layer that is no collective.
    pub fn set_nb_rank(&mut self, nb_rank: u32) -> Result<()> {
        match &mut self.body {
            LayerBody::DistCollective(layer) => layer.set_nb_rank(nb_rank),
            _ if nb_rank == 1 => Ok(()),
            _ => {
                Err(error!(InvalidArgument, "nb_rank is {nb_rank}; only a DistCollective layer has more than one rank")
                    .about(|| self.subject()))
            }
        }
    }

    /// What the layer is.
    pub fn body(&self) -> &LayerBody {
        &self.body
    }

    /// What the layer is, to change its attributes.
    pub fn body_mut(&mut self) -> &mut LayerBody {
        &mut self.body
    }

    /// The DistCollective layer, to read its attributes.
    ///
    /// # Errors
    ///
    /// The layer is of another kind.
    pub fn as_dist_collective(&self) -> Result<&DistCollectiveLayer> {
        match &self.body {
            LayerBody::DistCollective(layer) => Ok(layer),
            _ => bail!(InvalidArgument, "{} is not a DistCollective layer", self.subject()),
        }
    }

    /// The DistCollective layer, to change its attributes.
    ///
    /// # Errors
    ///
    /// The layer is of another kind.
    pub fn as_dist_collective_mut(&mut self) -> Result<&mut DistCollectiveLayer> {
        let subject = self.subject();
        match &mut self.body {
            LayerBody::DistCollective(layer) => Ok(layer),
            _ => bail!(InvalidArgument, "{subject} is not a DistCollective layer"),
        }
    }

    /// The tensors that the layer reads.
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// The tensors that the layer computes.
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }
}

impl Network {
    /// Adds an Identity layer, which copies its input: TensorRT's `addIdentity`. TensorRT's layer
    /// also converts, if its output is given another type. Here [`add_cast`](Self::add_cast) does
    /// that, and an Identity layer changes no byte.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have.
    pub fn add_identity(&mut self, input: TensorId) -> Result<TensorId> {
        self.add_typed("identity", &[input], |info| LayerBody::Identity(IdentityLayer { info }))
    }
}
