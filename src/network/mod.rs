//! The description of a network: inputs, layers, outputs. A method checks what its arguments show.
//! The builder checks the rest.

mod id;
mod layers;
mod profile;
mod schedule;
mod types;

use std::collections::HashSet;
use std::fmt;

pub(crate) use id::NetworkNumber;
pub use id::{LayerId, TensorId};
pub(crate) use layers::LayerRun;
pub(crate) use layers::check_layer_type;
pub use layers::{
    CastLayer, ConcatenationLayer, ConstantLayer, ElementWiseLayer, IdentityLayer, Layer, LayerBody, Plugin,
    PluginCall, PluginLayer, PluginRegistry, Shuffle, SliceLayer,
};
use profile::InputProfile;
pub use profile::MAX_PROFILES;
pub(crate) use schedule::Readers;

use crate::data_type::DataType;
use crate::dist_collective::Info;
#[doc(inline)]
pub use crate::element::ElementWiseOperation;
use crate::error::{Error, Result, bail, error};
use crate::rank::Rank;
use crate::shape::Dims;

/// The description of a network: TensorRT's `INetworkDefinition`.
///
/// ```
/// use distcollective::network::Shuffle;
/// use distcollective::{DataType, DistCollective, Network, ReduceOperation};
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float16, [-1, 8])?;
/// network.set_optimization_profile(x, [1, 8], [4, 8], [64, 8])?; // min, opt, max
/// let x = network.add_shuffle(x, Shuffle::transpose([1, 0]))?;
/// let x = network.add_cast(x, DataType::Float32)?;
/// let y = network.add(DistCollective::all_reduce(ReduceOperation::Avg).nb_rank(2), x)?;
/// network.layer_of_mut(y)?.set_name("grad_sync");
/// network.mark_output(y, "y")?;
/// assert_eq!(network.layers().count(), 3);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// Tensors and layers have ids. A network refuses the ids of another network; a clone takes those
/// of the original.
#[derive(Clone, Debug, Default)]
pub struct Network {
    pub(crate) number: NetworkNumber,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) profile_count: usize,
    pub(crate) made_for: Option<MadeFor>,
    /// The layer that the caller was given last to change, until the network has looked at it.
    handed_out: Option<LayerId>,
    /// Whether a layer was changed such that the types of tensors may be others.
    types_are_stale: bool,
    /// Names of layers that [`default_name`](Self::default_name) might come upon.
    taken_names: HashSet<String>,
}

/// The rank that a network was made for, and the number of ranks.
#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct MadeFor {
    pub(crate) rank: Rank,
    pub(crate) world_size: u32,
}

impl MadeFor {
    pub(crate) fn check(self) -> Result<Self> {
        let MadeFor { rank, world_size } = self;
        match rank.0 < world_size {
            true => Ok(self),
            false => bail!(InvalidArgument, "there is no rank {rank} of {world_size}"),
        }
    }
}

impl fmt::Display for MadeFor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "rank {} of {}", self.rank, self.world_size)
    }
}

/// A tensor of the description.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// The type as far as the network has looked at its layers. See
    /// [`Network::tensor_data_type`] for the current one.
    pub(crate) data_type: DataType,
    pub(crate) source: TensorSource,
    /// Which output of the network it is.
    pub(crate) output: Option<u32>,
}

/// What computes a tensor.
#[derive(Clone, Debug)]
pub(crate) enum TensorSource {
    Input(Box<NetworkInput>),
    Layer { layer: LayerId, port: u32 },
}

/// What the caller binds: dimensions, and the shapes in each profile that has some for it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct NetworkInput {
    pub(crate) dims: Dims,
    pub(crate) profiles: Vec<Option<Box<InputProfile>>>,
}

impl Network {
    /// A network without tensors.
    pub fn new() -> Self {
        Network::default()
    }

    /// Says which rank of how many the network is for, because its constants or plugins have that
    /// rank's weights. [`set_communicator`](crate::ExecutionContext::set_communicator) then refuses
    /// a communicator on which this process is another rank, or which has another number of ranks.
    /// Plans keep it. Without this a network is for every rank.
    ///
    /// # Errors
    ///
    /// There is no such rank.
    pub fn for_rank(&mut self, rank: impl Into<Rank>, world_size: u32) -> Result<()> {
        self.made_for = Some(MadeFor { rank: rank.into(), world_size }.check()?);
        Ok(())
    }

    fn add_tensor(&mut self, name: String, data_type: DataType, source: TensorSource) -> TensorId {
        self.tensors.push(Tensor { name, data_type, source, output: None });
        TensorId::new(self.number, self.tensors.len() - 1)
    }

    fn check_tensor(&self, tensor: TensorId) -> Result<&Tensor> {
        tensor.check(self.number, self.tensors.len())?;
        Ok(&self.tensors[tensor.index()])
    }

    pub(crate) fn has_plugins(&self) -> bool {
        self.layers.iter().any(|layer| matches!(layer.body, LayerBody::Plugin(_)))
    }

    /// The inputs, with what the caller said of them.
    pub(crate) fn described_inputs(&self) -> impl Iterator<Item = (TensorId, &NetworkInput)> {
        self.inputs.iter().filter_map(|&id| match &self.tensors[id.index()].source {
            TensorSource::Input(input) => Some((id, &**input)),
            TensorSource::Layer { .. } => None,
        })
    }

    /// The type of a tensor that a new layer reads.
    fn input_type(&mut self, tensor: TensorId) -> Result<DataType> {
        self.check_tensor(tensor)?;
        self.refresh_types();
        Ok(self.tensors[tensor.index()].data_type)
    }

    /// Adds an input. A dimension of -1 is dynamic:
    /// [`set_optimization_profile`](Self::set_optimization_profile) gives its range, and
    /// [`set_input_shape`](crate::ExecutionContext::set_input_shape) its value.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: the type is no [layer's type](DataType::LAYER_TYPES).
    /// - `InvalidShape`: more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions, or one below
    ///   -1.
    pub fn add_input(
        &mut self,
        name: &str,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
    ) -> Result<TensorId> {
        let about = |error: Error| error.about(|| format!("input {name:?}"));
        check_layer_type(data_type).map_err(about)?;
        let dims = dims.try_into().map_err(|e| about(e.into()))?;
        let source = TensorSource::Input(Box::new(NetworkInput { dims, profiles: Vec::new() }));
        let tensor = self.add_tensor(name.to_owned(), data_type, source);
        self.inputs.push(tensor);
        Ok(tensor)
    }

    /// Adds a layer, with a name that no other has, and gives its output.
    fn add_layer(&mut self, body: LayerBody, inputs: &[TensorId]) -> Result<TensorId> {
        let name = self.default_name(body.kind());
        self.add_named_layer(Info { name, metadata: String::new() }, body, inputs)
    }

    /// Adds a layer, and gives its first output.
    fn add_named_layer(&mut self, info: Info, body: LayerBody, inputs: &[TensorId]) -> Result<TensorId> {
        let types: Vec<DataType> = inputs.iter().map(|&t| self.input_type(t)).collect::<Result<_>>()?;
        let mut layer = Layer { info, inputs: inputs.to_vec(), outputs: Vec::new(), body };
        let types = layer.body.output_types(&types).map_err(|e| e.about(|| layer.subject()))?;
        let id = LayerId::new(self.number, self.layers.len());
        for (port, data_type) in types.into_iter().enumerate() {
            let source = TensorSource::Layer { layer: id, port: port as u32 };
            layer.outputs.push(self.add_tensor(format!("{}.output{port}", layer.name()), data_type, source));
        }
        self.layers.push(layer);
        self.note_name(id);
        self.output(id)
    }

    /// A name that no layer has.
    fn default_name(&mut self, kind: &str) -> String {
        self.settle();
        let mut names = (self.layers.len()..).map(|number| format!("{kind}_{number}"));
        names.find(|name| !self.taken_names.contains(name)).unwrap_or_default()
    }

    /// Remembers a layer's name, if [`default_name`](Self::default_name) might come upon it: its
    /// numbers begin with the number of layers.
    fn note_name(&mut self, layer: LayerId) {
        let name = self.layers[layer.index()].name();
        let number = name.rsplit_once('_').and_then(|(_, number)| number.parse::<usize>().ok());
        if number.is_some_and(|number| number >= self.layers.len()) {
            self.taken_names.insert(name.to_owned());
        }
    }

    /// Makes a tensor an output and names it.
    ///
    /// # Errors
    ///
    /// An input, or a tensor that is an output already.
    pub fn mark_output(&mut self, tensor: TensorId, name: &str) -> Result<()> {
        let about = |e: Error| e.about(|| format!("output {name:?}"));
        self.check_tensor(tensor)?;
        self.add_output(tensor).map_err(about)?;
        self.tensors[tensor.index()].name = name.to_owned();
        Ok(())
    }

    /// Makes a tensor of this network an output.
    pub(crate) fn add_output(&mut self, tensor: TensorId) -> Result<()> {
        let Tensor { source, output, .. } = &mut self.tensors[tensor.index()];
        if matches!(source, TensorSource::Input(_)) {
            bail!(InvalidArgument, "an input cannot be an output; no layer computes it");
        }
        if output.is_some() {
            bail!(InvalidArgument, "the tensor is an output already");
        }
        *output = Some(self.outputs.len() as u32);
        self.outputs.push(tensor);
        Ok(())
    }

    /// Names a tensor. A context finds inputs and outputs by their names.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn set_tensor_name(&mut self, tensor: TensorId, name: &str) -> Result<()> {
        self.check_tensor(tensor)?;
        self.tensors[tensor.index()].name = name.to_owned();
        Ok(())
    }

    /// The name of a tensor.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn tensor_name(&self, tensor: TensorId) -> Result<&str> {
        Ok(&self.check_tensor(tensor)?.name)
    }

    /// The type of a tensor's elements.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn tensor_data_type(&self, tensor: TensorId) -> Result<DataType> {
        self.check_tensor(tensor)?;
        Ok(self.current_type(tensor))
    }

    /// The layers, in the order in which they were added.
    pub fn layers(&self) -> impl Iterator<Item = (LayerId, &Layer)> {
        self.layers.iter().enumerate().map(|(i, layer)| (LayerId::new(self.number, i), layer))
    }

    /// A layer.
    ///
    /// # Errors
    ///
    /// The network does not have the layer.
    pub fn layer(&self, layer: LayerId) -> Result<&Layer> {
        layer.check(self.number, self.layers.len())?;
        Ok(&self.layers[layer.index()])
    }

    /// A layer, to change its attributes.
    ///
    /// # Errors
    ///
    /// The network does not have the layer.
    pub fn layer_mut(&mut self, layer: LayerId) -> Result<&mut Layer> {
        layer.check(self.number, self.layers.len())?;
        self.settle();
        self.handed_out = Some(layer);
        Ok(&mut self.layers[layer.index()])
    }

    /// The layer that computes a tensor, to change its attributes or name it:
    /// `network.layer_of_mut(tensor)?.set_name("softmax")`.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have, or an input.
    pub fn layer_of_mut(&mut self, tensor: TensorId) -> Result<&mut Layer> {
        match self.producer(tensor)? {
            Some(layer) => self.layer_mut(layer),
            None => bail!(InvalidArgument, "{:?} is an input; no layer computes it", self.tensors[tensor.index()].name),
        }
    }

    /// The inputs of the network, in the order in which they were added.
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// The outputs of the network, in the order in which they were marked.
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }

    /// The first output of a layer.
    ///
    /// # Errors
    ///
    /// The network does not have the layer.
    pub fn output(&self, layer: LayerId) -> Result<TensorId> {
        let outputs = self.layer_outputs(layer)?;
        outputs.first().copied().ok_or_else(|| error!(InvalidArgument, "{layer:?} has no outputs"))
    }

    /// The outputs of a layer.
    ///
    /// # Errors
    ///
    /// The network does not have the layer.
    pub fn layer_outputs(&self, layer: LayerId) -> Result<&[TensorId]> {
        Ok(&self.layer(layer)?.outputs)
    }

    /// The layer that computes a tensor. `None` for an input.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn producer(&self, tensor: TensorId) -> Result<Option<LayerId>> {
        Ok(match self.check_tensor(tensor)?.source {
            TensorSource::Input(_) => None,
            TensorSource::Layer { layer, .. } => Some(layer),
        })
    }

    /// Gives a layer another input, as TensorRT's `ILayer::setInput`. Types, shapes and cycles are
    /// checked at build.
    ///
    /// # Errors
    ///
    /// The network does not have the layer or the tensor, or the layer does not have the input.
    pub fn set_input(&mut self, layer: LayerId, index: usize, tensor: TensorId) -> Result<()> {
        self.check_tensor(tensor)?;
        let layer = self.layer_mut(layer)?;
        let count = layer.inputs.len();
        let Some(input) = layer.inputs.get_mut(index) else {
            let subject = layer.subject();
            return Err(error!(InvalidArgument, "there is no input {index}; the layer has {count}").about(|| subject));
        };
        *input = tensor;
        Ok(())
    }
}
