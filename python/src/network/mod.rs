//! Networks, for `distcollective.tensorrt`, which has TensorRT's classes.

mod context;
mod engine;
mod layers;
mod plugin;

use distcollective::collective::GroupRank;
use distcollective::comm::TransferType;
use distcollective::network::{self, ElementWiseOperation};
use distcollective::tensor::{Dims, MemorySpace};
use distcollective::{
    Buffer, CollectiveOperation, DataType, DistCollectiveLayer, Error, Groups, ReduceOperation, Root,
};
use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;

pub(super) use context::Context;
pub(super) use engine::Engine;
pub(super) use layers::Layer;
use plugin::PythonPlugin;

use super::errors::{call, exception};
use super::tensor::{Access, Tensor};

/// Which tensor of a network.
#[pyclass(frozen, eq, hash, from_py_object, module = "distcollective._core")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct TensorId(network::TensorId);

/// Which layer of a network.
#[pyclass(frozen, eq, hash, from_py_object, module = "distcollective._core")]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct LayerId(network::LayerId);

/// The description of a network.
#[pyclass(module = "distcollective._core")]
pub(super) struct Network {
    network: distcollective::Network,
}

/// The shapes of inputs in a profile: the input's name; min, opt and max.
type Profile = Vec<(String, [Vec<i64>; 3])>;

/// Gives the library's error as an exception.
fn checked<R>(py: Python<'_>, result: Result<R, Error>) -> PyResult<R> {
    result.map_err(|error| exception(py, &error))
}

fn data_type(py: Python<'_>, number: i32) -> PyResult<DataType> {
    checked(py, DataType::from_number(number))
}

impl Network {
    /// The layer that computes a new tensor.
    fn layer_of(&self, py: Python<'_>, tensor: Result<network::TensorId, Error>) -> PyResult<LayerId> {
        let layer = tensor.and_then(|tensor| self.network.producer(tensor));
        let missing = || Error::new(distcollective::ErrorKind::InvalidArgument, "no layer computes the tensor");
        checked(py, layer.and_then(|layer| layer.ok_or_else(missing))).map(LayerId)
    }
}

#[pymethods]
impl Network {
    #[new]
    fn new() -> Self {
        Network { network: distcollective::Network::new() }
    }

    fn for_rank(&mut self, py: Python<'_>, rank: u32, world_size: u32) -> PyResult<()> {
        checked(py, self.network.for_rank(rank, world_size))
    }

    fn add_input(&mut self, py: Python<'_>, name: &str, data_type: i32, dims: Vec<i64>) -> PyResult<TensorId> {
        let data_type = self::data_type(py, data_type)?;
        checked(py, self.network.add_input(name, data_type, &dims[..])).map(TensorId)
    }

    /// Adds a collective. With a group size the ranks are those of all groups of a partition, and
    /// the root is a number within each group.
    fn add_dist_collective(
        &mut self,
        py: Python<'_>,
        input: TensorId,
        operations: (i32, i32),
        root: i64,
        ranks: Vec<i64>,
        group_size: Option<usize>,
    ) -> PyResult<LayerId> {
        let layer = || {
            let operation = CollectiveOperation::from_number(operations.0)?;
            let reduce_op = ReduceOperation::from_number(operations.1)?;
            let Some(group_size) = group_size else {
                return DistCollectiveLayer::new(operation, reduce_op, root, &ranks);
            };
            let mut layer = DistCollectiveLayer::new(operation, reduce_op, root, &[])?;
            layer.set_groups(Groups::from_partition(&ranks, group_size)?)?;
            layer.set_root(layer.root().map(|root| Root::GroupRank(GroupRank(root.number()))));
            Ok(layer)
        };
        let output = layer().and_then(|layer| self.network.add(layer, input.0));
        self.layer_of(py, output)
    }

    fn add_shuffle(&mut self, py: Python<'_>, input: TensorId) -> PyResult<LayerId> {
        let output = self.network.add_shuffle(input.0, network::Shuffle::default());
        self.layer_of(py, output)
    }

    fn add_cast(&mut self, py: Python<'_>, input: TensorId, to: i32) -> PyResult<LayerId> {
        let output = self.network.add_cast(input.0, data_type(py, to)?);
        self.layer_of(py, output)
    }

    fn add_elementwise(&mut self, py: Python<'_>, a: TensorId, b: TensorId, operation: i32) -> PyResult<LayerId> {
        let operation = checked(py, ElementWiseOperation::from_number(operation))?;
        let output = self.network.add_elementwise(a.0, b.0, operation);
        self.layer_of(py, output)
    }

    fn add_concatenation(&mut self, py: Python<'_>, inputs: Vec<TensorId>, axis: usize) -> PyResult<LayerId> {
        let inputs: Vec<network::TensorId> = inputs.iter().map(|input| input.0).collect();
        let output = self.network.add_concatenation(&inputs, axis);
        self.layer_of(py, output)
    }

    fn add_slice(
        &mut self,
        py: Python<'_>,
        input: TensorId,
        start: Vec<i64>,
        size: Vec<i64>,
        stride: Vec<i64>,
    ) -> PyResult<LayerId> {
        let output = self.network.add_slice(input.0, &start, &size, &stride);
        self.layer_of(py, output)
    }

    fn add_identity(&mut self, py: Python<'_>, input: TensorId) -> PyResult<LayerId> {
        let output = self.network.add_identity(input.0);
        self.layer_of(py, output)
    }

    /// Adds a constant with a copy of a tensor of Python.
    fn add_constant(&mut self, py: Python<'_>, dims: Vec<i64>, weights: &Bound<'_, PyAny>) -> PyResult<LayerId> {
        let buffer = constant(py, &dims, weights)?;
        let output = self.network.add_constant_buffer(buffer);
        self.layer_of(py, output)
    }

    fn add_plugin(
        &mut self,
        py: Python<'_>,
        name: &str,
        plugin: &Bound<'_, PyAny>,
        inputs: Vec<TensorId>,
    ) -> PyResult<LayerId> {
        let inputs: Vec<network::TensorId> = inputs.iter().map(|input| input.0).collect();
        let output = self.network.add_plugin(name, PythonPlugin::new(plugin)?, &inputs);
        self.layer_of(py, output)
    }

    fn mark_output(&mut self, py: Python<'_>, tensor: TensorId) -> PyResult<()> {
        let name = checked(py, self.network.tensor_name(tensor.0))?.to_owned();
        checked(py, self.network.mark_output(tensor.0, &name))
    }

    fn inputs(&self) -> Vec<TensorId> {
        self.network.inputs().iter().copied().map(TensorId).collect()
    }

    fn outputs(&self) -> Vec<TensorId> {
        self.network.outputs().iter().copied().map(TensorId).collect()
    }

    fn layers(&self) -> Vec<LayerId> {
        self.network.layers().map(|(layer, _)| LayerId(layer)).collect()
    }

    fn layer_count(&self) -> usize {
        self.network.layers().count()
    }

    fn tensor_name(&self, py: Python<'_>, tensor: TensorId) -> PyResult<String> {
        checked(py, self.network.tensor_name(tensor.0)).map(str::to_owned)
    }

    fn set_tensor_name(&mut self, py: Python<'_>, tensor: TensorId, name: &str) -> PyResult<()> {
        checked(py, self.network.set_tensor_name(tensor.0, name))
    }

    fn tensor_data_type(&self, py: Python<'_>, tensor: TensorId) -> PyResult<i32> {
        checked(py, self.network.tensor_data_type(tensor.0)).map(DataType::number)
    }

    fn tensor_dims(&self, py: Python<'_>, tensor: TensorId) -> PyResult<Vec<i64>> {
        checked(py, self.network.tensor_dims(tensor.0)).map(|dims| dims.as_slice().to_vec())
    }

    /// Builds an engine of the network with these profiles.
    fn build(slf: &Bound<'_, Self>, profiles: Vec<Profile>) -> PyResult<Engine> {
        // The network itself stays without profiles, which TensorRT has in the configuration.
        let mut network = slf.try_borrow()?.network.clone();
        let engine = call(slf.py(), move || {
            for shapes in profiles {
                let profile = network.add_optimization_profile()?;
                for (name, points) in shapes {
                    let input = input_of(&network, &name)?;
                    let [min, opt, max] = points.map(|dims| Dims::new(&dims));
                    network.set_profile_shapes(profile, input, min?, opt?, max?)?;
                }
            }
            network.build()
        });
        engine.map(Engine::new)
    }
}

/// The input with a name.
fn input_of(network: &distcollective::Network, name: &str) -> Result<network::TensorId, Error> {
    let names =
        || network.inputs().iter().filter_map(|&input| network.tensor_name(input).ok().map(|name| (input, name)));
    names().find(|input| input.1 == name).map(|input| input.0).ok_or_else(|| {
        let names: Vec<String> = names().map(|input| format!("{:?}", input.1)).collect();
        let text = format!("a profile has shapes for {name:?}, which is no input; inputs are {}", names.join(", "));
        Error::new(distcollective::ErrorKind::InvalidArgument, text)
    })
}

/// A copy of a tensor of Python, as a constant of these dimensions.
fn constant(py: Python<'_>, dims: &[i64], weights: &Bound<'_, PyAny>) -> PyResult<Buffer> {
    let tensor = Tensor::of(weights, "weights", Access::Read, MemorySpace::Host)?;
    let data_type = known_type(&tensor, "weights")?;
    let mut buffer = checked(py, Buffer::zeroed(data_type, dims))?;
    let (given, needed) = (tensor.element_count(), buffer.shape().element_count());
    if given != needed {
        let text = format!("weights has {given} elements, and the shape {dims:?} has {needed}");
        return checked(py, Err(Error::new(distcollective::ErrorKind::InvalidShape, text)));
    }
    let byte_len = buffer.byte_len();
    // SAFETY: the tensor has so many bytes, and keeps them while it is borrowed.
    checked(py, unsafe { buffer.copy_from(0, tensor.address(), byte_len) })?;
    Ok(buffer)
}

/// The library's type of a tensor of Python.
fn known_type(tensor: &Tensor, name: &str) -> PyResult<DataType> {
    match tensor.transfer_type() {
        TransferType::Data(data_type) if data_type.is_layer_type() => Ok(data_type),
        _ => {
            let (found, types) = (tensor.element.name, DataType::LAYER_TYPES.map(DataType::name).join(", "));
            Err(PyTypeError::new_err(format!("{name}: {found} is no type of a network; these are: {types}")))
        }
    }
}
