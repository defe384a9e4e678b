//! Layers and their attributes.

use distcollective::network::{self, ElementWiseOperation, LayerBody};
use distcollective::{DataType, Error, ErrorKind, Groups, ReduceOperation};
use pyo3::prelude::*;

use super::{LayerId, Network, TensorId, checked, data_type};

/// A layer of a network.
#[pyclass(frozen, module = "distcollective._core")]
pub(crate) struct Layer {
    network: Py<Network>,
    id: LayerId,
}

/// A Shuffle's first transpose, reshape and second transpose.
type Shuffle = (Option<Vec<i64>>, Option<Vec<i64>>, Option<Vec<i64>>);

/// A permutation of the library. What is no dimension becomes one that no permutation has.
fn permutation(dims: Option<Vec<i64>>) -> Option<Vec<u8>> {
    dims.map(|dims| dims.into_iter().map(|d| u8::try_from(d).unwrap_or(u8::MAX)).collect())
}

fn dims_of(permutation: Option<&[u8]>) -> Option<Vec<i64>> {
    permutation.map(|dims| dims.iter().map(|&d| d.into()).collect())
}

/// The error of a layer that is of another kind than the caller says.
fn other_kind<R>(layer: &network::Layer) -> Result<R, Error> {
    Err(Error::new(ErrorKind::InvalidArgument, format!("{} is of another kind", layer.subject())))
}

impl Layer {
    /// Reads the layer.
    fn read<R>(&self, py: Python<'_>, act: impl FnOnce(&network::Layer) -> Result<R, Error>) -> PyResult<R> {
        let network = self.network.try_borrow(py)?;
        checked(py, network.network.layer(self.id.0).and_then(act))
    }

    /// Changes the layer.
    fn change<R>(&self, py: Python<'_>, act: impl FnOnce(&mut network::Layer) -> Result<R, Error>) -> PyResult<R> {
        let mut network = self.network.try_borrow_mut(py)?;
        checked(py, network.network.layer_mut(self.id.0).and_then(act))
    }
}

#[pymethods]
impl Layer {
    #[new]
    fn new(network: Py<Network>, id: LayerId) -> Self {
        Layer { network, id }
    }

    fn id(&self) -> LayerId {
        self.id
    }

    fn name(&self, py: Python<'_>) -> PyResult<String> {
        self.read(py, |layer| Ok(layer.name().to_owned()))
    }

    fn set_name(&self, py: Python<'_>, name: &str) -> PyResult<()> {
        self.change(py, |layer| {
            layer.set_name(name);
            Ok(())
        })
    }

    fn metadata(&self, py: Python<'_>) -> PyResult<String> {
        self.read(py, |layer| Ok(layer.metadata().to_owned()))
    }

    fn set_metadata(&self, py: Python<'_>, metadata: &str) -> PyResult<()> {
        self.change(py, |layer| {
            layer.set_metadata(metadata);
            Ok(())
        })
    }

    /// What kind of layer it is: a member of `LayerType`.
    fn kind(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.read(py, |layer| {
            Ok(match layer.body() {
                LayerBody::DistCollective(_) => "DIST_COLLECTIVE",
                LayerBody::Shuffle(_) => "SHUFFLE",
                LayerBody::Cast(_) => "CAST",
                LayerBody::Constant(_) => "CONSTANT",
                LayerBody::ElementWise(_) => "ELEMENTWISE",
                LayerBody::Concatenation(_) => "CONCATENATION",
                LayerBody::Slice(_) => "SLICE",
                LayerBody::Identity(_) => "IDENTITY",
                _ => "PLUGIN",
            })
        })
    }

    fn inputs(&self, py: Python<'_>) -> PyResult<Vec<TensorId>> {
        self.read(py, |layer| Ok(layer.inputs().iter().copied().map(TensorId).collect()))
    }

    fn outputs(&self, py: Python<'_>) -> PyResult<Vec<TensorId>> {
        self.read(py, |layer| Ok(layer.outputs().iter().copied().map(TensorId).collect()))
    }

    fn set_input(&self, py: Python<'_>, index: usize, tensor: TensorId) -> PyResult<()> {
        let mut network = self.network.try_borrow_mut(py)?;
        checked(py, network.network.set_input(self.id.0, index, tensor.0))
    }

    fn rank_count(&self, py: Python<'_>) -> PyResult<u32> {
        self.read(py, |layer| Ok(layer.nb_rank()))
    }

    fn set_rank_count(&self, py: Python<'_>, count: u32) -> PyResult<()> {
        self.change(py, |layer| layer.set_nb_rank(count))
    }

    /// Operation, reduction, root and groups of a collective.
    fn dist_collective(&self, py: Python<'_>) -> PyResult<(i32, i32, i64, Vec<Vec<u32>>)> {
        self.read(py, |layer| {
            let layer = layer.as_dist_collective()?;
            let groups = match layer.groups() {
                Groups::All => Vec::new(),
                Groups::Group(group) => vec![group.iter().map(|rank| rank.0).collect()],
                Groups::Partition(partition) => {
                    partition.groups().iter().map(|group| group.iter().map(|rank| rank.0).collect()).collect()
                }
            };
            let reduce_op = layer.reduce_op().map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number);
            let root = layer.root().map_or(-1, |root| root.number().into());
            Ok((layer.collective_operation().number(), reduce_op, root, groups))
        })
    }

    fn shuffle(&self, py: Python<'_>) -> PyResult<Shuffle> {
        self.read(py, |layer| match layer.body() {
            LayerBody::Shuffle(shuffle) => {
                let reshape = shuffle.reshape_dims.clone();
                Ok((dims_of(shuffle.first_transpose.as_deref()), reshape, dims_of(shuffle.second_transpose.as_deref())))
            }
            _ => other_kind(layer),
        })
    }

    fn set_shuffle(&self, py: Python<'_>, steps: Shuffle) -> PyResult<()> {
        let (first, reshape, second) = steps;
        self.change(py, |layer| match layer.body_mut() {
            LayerBody::Shuffle(layer) => {
                let mut shuffle = layer.clone();
                shuffle.first_transpose = permutation(first);
                shuffle.reshape_dims = reshape;
                shuffle.second_transpose = permutation(second);
                shuffle.check()?;
                *layer = shuffle;
                Ok(())
            }
            _ => other_kind(layer),
        })
    }

    fn cast_type(&self, py: Python<'_>) -> PyResult<i32> {
        self.read(py, |layer| match layer.body() {
            LayerBody::Cast(layer) => Ok(layer.to.number()),
            _ => other_kind(layer),
        })
    }

    fn set_cast_type(&self, py: Python<'_>, to: i32) -> PyResult<()> {
        let to: DataType = data_type(py, to)?;
        self.change(py, |layer| match layer.body_mut() {
            LayerBody::Cast(layer) => {
                layer.to = to;
                Ok(())
            }
            _ => other_kind(layer),
        })
    }

    fn elementwise_operation(&self, py: Python<'_>) -> PyResult<i32> {
        self.read(py, |layer| match layer.body() {
            LayerBody::ElementWise(layer) => Ok(layer.operation.number()),
            _ => other_kind(layer),
        })
    }

    fn set_elementwise_operation(&self, py: Python<'_>, operation: i32) -> PyResult<()> {
        self.change(py, |layer| match layer.body_mut() {
            LayerBody::ElementWise(layer) => {
                layer.operation = ElementWiseOperation::from_number(operation)?;
                Ok(())
            }
            _ => other_kind(layer),
        })
    }

    fn axis(&self, py: Python<'_>) -> PyResult<usize> {
        self.read(py, |layer| match layer.body() {
            LayerBody::Concatenation(layer) => Ok(layer.axis()),
            _ => other_kind(layer),
        })
    }

    fn set_axis(&self, py: Python<'_>, axis: usize) -> PyResult<()> {
        self.change(py, |layer| match layer.body_mut() {
            LayerBody::Concatenation(layer) => layer.set_axis(axis),
            _ => other_kind(layer),
        })
    }

    /// A Slice's start, size and stride.
    fn slice(&self, py: Python<'_>) -> PyResult<[Vec<i64>; 3]> {
        self.read(py, |layer| match layer.body() {
            LayerBody::Slice(layer) => Ok([layer.start(), layer.size(), layer.stride()].map(<[i64]>::to_vec)),
            _ => other_kind(layer),
        })
    }

    fn set_slice(&self, py: Python<'_>, slice: [Vec<i64>; 3]) -> PyResult<()> {
        let [start, size, stride] = slice;
        self.change(py, |layer| match layer.body_mut() {
            LayerBody::Slice(layer) => {
                layer.set_start(&start)?;
                layer.set_size(&size)?;
                layer.set_stride(&stride)
            }
            _ => other_kind(layer),
        })
    }
}
