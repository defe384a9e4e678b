//! The description of a network: inputs, layers, outputs. A method checks what its arguments show.
//! The builder checks the rest.

mod concatenation;
mod elementwise;
mod id;
mod layer;
mod plugin;
mod profile;
mod shuffle;
mod slice;
mod types;

use std::collections::HashSet;
use std::sync::Arc;

pub use concatenation::ConcatenationLayer;
pub use elementwise::ElementWiseLayer;
pub(crate) use elementwise::broadcast;
pub(crate) use id::NetworkNumber;
pub use id::{LayerId, TensorId};
pub(crate) use layer::Info;
pub use layer::{CastLayer, ConstantLayer, IdentityLayer, Layer, LayerBody, PluginLayer, ShuffleLayer};
pub use plugin::{Plugin, PluginCall, PluginRegistry};
pub use profile::MAX_PROFILES;
use profile::Profile;
pub use shuffle::Shuffle;
pub(crate) use shuffle::ShuffleSteps;
pub(crate) use slice::Slice;
pub use slice::SliceLayer;

use crate::collective::{CollectiveOperation, ReduceOperation};
use crate::data_type::DataType;
use crate::dist_collective::DistCollectiveLayer;
use crate::element::Element;
#[doc(inline)]
pub use crate::element::ElementWiseOperation;
use crate::error::{Error, Result, bail, error};
use crate::memory::Buffer;
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
#[derive(Clone, Debug)]
pub struct Network {
    pub(crate) number: NetworkNumber,
    pub(crate) tensors: Vec<Tensor>,
    pub(crate) layers: Vec<Layer>,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) profile_count: usize,
    /// The layer that the caller was given last to change, until the network has looked at it.
    handed_out: Option<LayerId>,
    /// Whether a layer was changed such that the types of tensors may be others.
    types_are_stale: bool,
    /// Names of layers that [`default_name`](Self::default_name) might come upon.
    taken_names: HashSet<String>,
}

impl Default for Network {
    fn default() -> Self {
        Network {
            number: NetworkNumber::next(),
            tensors: Vec::new(),
            layers: Vec::new(),
            inputs: Vec::new(),
            outputs: Vec::new(),
            profile_count: 0,
            handed_out: None,
            types_are_stale: false,
            taken_names: HashSet::new(),
        }
    }
}

/// A tensor of the description.
#[derive(Clone, Debug)]
pub(crate) struct Tensor {
    pub(crate) name: String,
    /// The type as far as the network has looked at its layers. See
    /// [`Network::tensor_data_type`] for the current one.
    pub(crate) data_type: DataType,
    pub(crate) source: Source,
    /// Which output of the network it is.
    pub(crate) output: Option<u32>,
}

/// What computes a tensor.
#[derive(Clone, Debug)]
pub(crate) enum Source {
    Input(Box<Input>),
    Layer { layer: LayerId, port: u32 },
}

/// What the caller binds: dimensions, and the shapes in each profile that has some for it.
#[derive(Clone, Debug, serde::Serialize, serde::Deserialize)]
pub(crate) struct Input {
    pub(crate) dims: Dims,
    pub(crate) profiles: Vec<Option<Box<Profile>>>,
}

impl Network {
    /// A network without tensors.
    pub fn new() -> Self {
        Network::default()
    }

    fn add_tensor(&mut self, name: String, data_type: DataType, source: Source) -> TensorId {
        self.tensors.push(Tensor { name, data_type, source, output: None });
        TensorId::new(self.number, self.tensors.len() - 1)
    }

    fn check_tensor(&self, tensor: TensorId) -> Result<&Tensor> {
        tensor.check(self.number, self.tensors.len())?;
        Ok(&self.tensors[tensor.index()])
    }

    fn check_layer(&self, layer: LayerId) -> Result<()> {
        layer.check(self.number, self.layers.len())
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
    /// More than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions, or one below -1.
    pub fn add_input(
        &mut self,
        name: &str,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
    ) -> Result<TensorId> {
        let dims = dims.try_into().map_err(|e| e.into().about(|| format!("input {name:?}")))?;
        let tensor =
            self.add_tensor(name.to_owned(), data_type, Source::Input(Box::new(Input { dims, profiles: Vec::new() })));
        self.inputs.push(tensor);
        Ok(tensor)
    }

    /// Adds a DistCollective layer from a typed constructor, and gives its output.
    ///
    /// # Errors
    ///
    /// - A rank occurs twice, a group is empty, or groups have different lengths.
    /// - `nb_rank` is 0.
    /// - bool is averaged.
    /// - A tensor that this network does not have.
    pub fn add(&mut self, collective: impl Into<DistCollectiveLayer>, input: TensorId) -> Result<TensorId> {
        let layer = self.add_collective_layer(collective.into(), input)?;
        self.output(layer)
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
    /// - bool is averaged.
    /// - A tensor that this network does not have.
    pub fn add_dist_collective(
        &mut self,
        input: TensorId,
        operation: CollectiveOperation,
        reduce_op: Option<ReduceOperation>,
        root: i64,
        groups: &[i64],
    ) -> Result<LayerId> {
        let layer = DistCollectiveLayer::new(operation, reduce_op, root, groups)?;
        self.add_collective_layer(layer, input)
    }

    fn add_collective_layer(&mut self, mut layer: DistCollectiveLayer, input: TensorId) -> Result<LayerId> {
        let data_type = self.input_type(input)?;
        if layer.name().is_empty() {
            layer.set_name(self.default_name(layer.collective_operation().name()));
        }
        layer.check_arguments().map_err(|e| e.about(|| layer.subject()))?;
        layer.check_type(data_type)?;
        Ok(self.add_layer(LayerBody::DistCollective(layer), &[input], &[data_type]))
    }

    /// Adds a [`Shuffle`] layer: transpose, reshape, transpose.
    ///
    /// # Errors
    ///
    /// - A tensor that this network does not have.
    /// - A transpose that is not a permutation, or a reshape with more than one -1.
    pub fn add_shuffle(&mut self, input: TensorId, shuffle: Shuffle) -> Result<TensorId> {
        self.add_typed("shuffle", &[input], |info| LayerBody::Shuffle(ShuffleLayer { info, shuffle }))
    }

    /// Adds a Cast layer, which converts every element to `to`:
    /// - to a float, rounding to nearest even; to float8, saturating too;
    /// - from a float to an integer, truncating and saturating, and NaN to 0;
    /// - to a narrower integer, wrapping;
    /// - to bool, whether it is not zero.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have.
    pub fn add_cast(&mut self, input: TensorId, to: DataType) -> Result<TensorId> {
        self.add_typed("cast", &[input], |info| LayerBody::Cast(CastLayer { info, to }))
    }

    /// Adds a constant with a copy of `elements`.
    ///
    /// # Errors
    ///
    /// Dimensions whose product is not the number of elements.
    pub fn add_constant<T: Element>(
        &mut self,
        elements: &[T],
        dims: impl TryInto<Dims, Error: Into<Error>>,
    ) -> Result<TensorId> {
        self.add_constant_buffer(Buffer::from_slice(elements, dims)?)
    }

    /// Adds a constant that a buffer holds.
    ///
    /// # Errors
    ///
    /// None so far.
    pub fn add_constant_buffer(&mut self, buffer: Buffer) -> Result<TensorId> {
        let data_type = buffer.data_type();
        let info = Info::named(self.default_name("constant"));
        let body = LayerBody::Constant(ConstantLayer { info, value: Arc::new(buffer) });
        let layer = self.add_layer(body, &[], &[data_type]);
        self.output(layer)
    }

    /// Adds a layer that the user implements, and gives its first output. All outputs are
    /// [`layer_outputs`](Self::layer_outputs) of its [`producer`](Self::producer).
    ///
    /// # Errors
    ///
    /// - A tensor that this network does not have.
    /// - The plugin does not take the types of the inputs.
    /// - The plugin has no outputs.
    pub fn add_plugin(&mut self, name: &str, plugin: impl Plugin, inputs: &[TensorId]) -> Result<TensorId> {
        let types: Vec<DataType> = inputs.iter().map(|&t| self.input_type(t)).collect::<Result<_>>()?;
        let info = Info::named(name.to_owned());
        let body = PluginLayer { info, plugin: Arc::new(plugin) };
        let outputs = body.output_types(&types)?;
        let layer = self.add_layer(LayerBody::Plugin(body), inputs, &outputs);
        self.output(layer)
    }

    /// Adds a layer with one output, whose type follows from those of the inputs.
    fn add_typed(&mut self, kind: &str, inputs: &[TensorId], body: impl FnOnce(Info) -> LayerBody) -> Result<TensorId> {
        let types: Vec<DataType> = inputs.iter().map(|&t| self.input_type(t)).collect::<Result<_>>()?;
        let body = body(Info::named(self.default_name(kind)));
        let outputs = body.check().and_then(|()| body.output_types(&types)).map_err(|e| e.about(|| body.subject()))?;
        let layer = self.add_layer(body, inputs, &outputs);
        self.output(layer)
    }

    fn add_layer(&mut self, body: LayerBody, inputs: &[TensorId], output_types: &[DataType]) -> LayerId {
        let id = LayerId::new(self.number, self.layers.len());
        let name = body.name().to_owned();
        let outputs = output_types
            .iter()
            .enumerate()
            .map(|(port, &data_type)| {
                let source = Source::Layer { layer: id, port: port as u32 };
                self.add_tensor(format!("{name}.output{port}"), data_type, source)
            })
            .collect();
        self.layers.push(Layer { inputs: inputs.to_vec(), outputs, body });
        self.note_name(id);
        id
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
        if matches!(source, Source::Input(_)) {
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
    /// A tensor that this network does not have.
    pub fn set_tensor_name(&mut self, tensor: TensorId, name: &str) -> Result<()> {
        self.check_tensor(tensor)?;
        self.tensors[tensor.index()].name = name.to_owned();
        Ok(())
    }

    /// The name of a tensor.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have.
    pub fn tensor_name(&self, tensor: TensorId) -> Result<&str> {
        Ok(&self.check_tensor(tensor)?.name)
    }

    /// The type of a tensor's elements.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have.
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
    /// A layer that this network does not have.
    pub fn layer(&self, layer: LayerId) -> Result<&Layer> {
        self.check_layer(layer)?;
        Ok(&self.layers[layer.index()])
    }

    /// A layer, to change its attributes.
    ///
    /// # Errors
    ///
    /// A layer that this network does not have.
    pub fn layer_mut(&mut self, layer: LayerId) -> Result<&mut Layer> {
        self.check_layer(layer)?;
        Ok(self.hand_out(layer))
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
    /// A layer that this network does not have.
    pub fn output(&self, layer: LayerId) -> Result<TensorId> {
        let outputs = self.layer_outputs(layer)?;
        outputs.first().copied().ok_or_else(|| error!(InvalidArgument, "{layer:?} has no outputs"))
    }

    /// The outputs of a layer.
    ///
    /// # Errors
    ///
    /// A layer that this network does not have.
    pub fn layer_outputs(&self, layer: LayerId) -> Result<&[TensorId]> {
        Ok(&self.layer(layer)?.outputs)
    }

    /// The layer that computes a tensor. `None` for an input.
    ///
    /// # Errors
    ///
    /// A tensor that this network does not have.
    pub fn producer(&self, tensor: TensorId) -> Result<Option<LayerId>> {
        Ok(match self.check_tensor(tensor)?.source {
            Source::Input(_) => None,
            Source::Layer { layer, .. } => Some(layer),
        })
    }

    /// Gives a layer another input, as TensorRT's `ILayer::setInput`. Types, shapes and cycles are
    /// checked at build.
    ///
    /// # Errors
    ///
    /// A layer or tensor that this network does not have; an input that the layer does not have.
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
