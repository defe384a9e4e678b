//! Layers: those of a network, and DistCollective layers by themselves. Attributes are set and got alike.

use std::sync::Arc;

use super::arguments::{
    Bytes, CDims, In, Out, Place, Text, count, data_type, index, operation, positive, ranks, reduce_op, unsigned,
};
use super::copy_out::{BytesOut, BytesRoom, TextOut, TextRoom};
use super::handle::{Guarded, Handle, Object};
use super::network::{CNetwork, CTensor, constant};
use super::status::{Fault, Result, Status, call};
use crate::collective::{Groups, InPlace, Partition, ReduceOperation, Root};
use crate::dist_collective::DistCollectiveLayer;
use crate::memory::Buffer;
use crate::network::{Layer, LayerBody, LayerId, Shuffle};
use crate::rank::{GroupRank, Rank};
use crate::shape::MAX_DIMS;

/// `dcl_layer_t`.
pub(super) struct CLayer {
    home: Home,
}

enum Home {
    InNetwork(Arc<CNetwork>, LayerId),
    /// Without inputs and outputs.
    Alone(Guarded<Layer, CLayer>),
}

impl Object for CLayer {
    const TYPE: &'static str = "dcl_layer_t";
}

impl CLayer {
    pub(super) fn of_network(network: Arc<CNetwork>, id: LayerId) -> Self {
        CLayer { home: Home::InNetwork(network, id) }
    }

    fn alone(layer: DistCollectiveLayer) -> Self {
        let layer = Layer { inputs: Vec::new(), outputs: Vec::new(), body: LayerBody::DistCollective(layer) };
        CLayer { home: Home::Alone(Guarded::new(layer)) }
    }

    /// Reads the layer.
    fn read<R>(&self, act: impl FnOnce(&Layer) -> Result<R>) -> Result<R> {
        match &self.home {
            Home::InNetwork(network, id) => act(network.network.read()?.layer(*id)?),
            Home::Alone(layer) => act(&*layer.read()?),
        }
    }

    /// Changes the layer.
    fn change(&self, act: impl FnOnce(&mut Layer) -> Result<()>) -> Result<()> {
        match &self.home {
            Home::InNetwork(network, id) => act(network.network.write()?.layer_mut(*id)?),
            Home::Alone(layer) => act(&mut *layer.write()?),
        }
    }

    /// The network that the layer belongs to.
    fn network(&self) -> Result<(&Arc<CNetwork>, LayerId)> {
        match &self.home {
            Home::InNetwork(network, id) => Ok((network, *id)),
            Home::Alone(_) => {
                Err(Fault::invalid_argument("the layer belongs to no network, so it has no inputs and outputs"))
            }
        }
    }

    fn read_collective<R>(&self, act: impl FnOnce(&DistCollectiveLayer) -> Result<R>) -> Result<R> {
        self.read(|layer| act(layer.as_dist_collective()?))
    }

    fn change_collective(&self, act: impl FnOnce(&mut DistCollectiveLayer) -> Result<()>) -> Result<()> {
        self.change(|layer| act(layer.as_dist_collective_mut()?))
    }

    fn read_shuffle<R>(&self, act: impl FnOnce(&Shuffle) -> Result<R>) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Shuffle(shuffle) => act(shuffle.shuffle()),
            body => Err(is_not(body, "Shuffle")),
        })
    }

    /// Changes one thing of a Shuffle.
    fn change_shuffle(&self, act: impl FnOnce(&mut Shuffle)) -> Result<()> {
        self.change(|layer| match layer.body_mut() {
            LayerBody::Shuffle(layer) => {
                let mut shuffle = layer.shuffle().clone();
                act(&mut shuffle);
                Ok(layer.set_shuffle(shuffle)?)
            }
            body => Err(is_not(body, "Shuffle")),
        })
    }

    fn read_constant<R>(&self, act: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Constant(constant) => act(constant.value()),
            body => Err(is_not(body, "Constant")),
        })
    }
}

fn is_not(body: &LayerBody, kind: &str) -> Fault {
    Fault::invalid_argument(format!("{} is not a {kind} layer", body.subject()))
}

/// Sets who takes part. C's root is a bare number, which counts as the participants say.
fn set_groups(layer: &mut DistCollectiveLayer, groups: Groups) -> Result<()> {
    let root = layer.root().map(|root| root_of(root.number(), &groups));
    layer.set_groups(groups)?;
    layer.set_root(root);
    Ok(())
}

fn root_of(number: u32, groups: &Groups) -> Root {
    match groups {
        Groups::Partition(_) => Root::GroupRank(GroupRank(number)),
        Groups::All | Groups::Group(_) => Root::Rank(Rank(number)),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_free(layer: Handle<CLayer>) -> Status {
    call(|| {
        if layer.is_null() {
            return Ok(());
        }
        match layer.get()?.home {
            Home::Alone(_) => layer.free(),
            Home::InNetwork(..) => Err(Fault::invalid_argument("the layer belongs to a network, and goes with that")),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_kind(
    layer: Handle<CLayer>,
    buffer: TextRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextOut { buffer, capacity, length }.write(layer.body().kind())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_name(
    layer: Handle<CLayer>,
    buffer: TextRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextOut { buffer, capacity, length }.write(layer.name())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_name(layer: Handle<CLayer>, name: Text) -> Status {
    call(|| {
        let (layer, name) = (layer.get()?, name.get("name")?);
        layer.change(|layer| {
            layer.set_name(name);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_metadata(
    layer: Handle<CLayer>,
    buffer: TextRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextOut { buffer, capacity, length }.write(layer.metadata())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_metadata(layer: Handle<CLayer>, metadata: Text) -> Status {
    call(|| {
        let (layer, metadata) = (layer.get()?, metadata.get("metadata")?);
        layer.change(|layer| {
            layer.set_metadata(metadata);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_rank(layer: Handle<CLayer>, nb_rank: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_rank) = (layer.get()?, nb_rank.place("nb_rank")?);
        nb_rank.set(count(layer.read(|layer| Ok(layer.nb_rank()))? as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_nb_rank(layer: Handle<CLayer>, nb_rank: i32) -> Status {
    call(|| {
        let (layer, nb_rank) = (layer.get()?, positive("nb_rank", nb_rank)?);
        layer.change(|layer| Ok(layer.set_nb_rank(nb_rank)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_inputs(layer: Handle<CLayer>, nb_inputs: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_inputs) = (layer.get()?, nb_inputs.place("nb_inputs")?);
        layer.network()?;
        nb_inputs.set(count(layer.read(|layer| Ok(layer.inputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_input(layer: Handle<CLayer>, index: i32, tensor: Out<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.place("tensor")?);
        let (network, id) = layer.network()?;
        let description = network.network.read()?;
        let inputs = description.layer(id)?.inputs();
        tensor.set(network.tensor(inputs[self::index("input", index, inputs.len())?])?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_input(layer: Handle<CLayer>, index: i32, tensor: Handle<CTensor>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (network, id) = layer.network()?;
        let tensor = network.own(tensor)?;
        let mut description = network.network.write()?;
        let index = self::index("input", index, description.layer(id)?.inputs().len())?;
        description.set_input(id, index, tensor)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_outputs(layer: Handle<CLayer>, nb_outputs: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_outputs) = (layer.get()?, nb_outputs.place("nb_outputs")?);
        layer.network()?;
        nb_outputs.set(count(layer.read(|layer| Ok(layer.outputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_output(layer: Handle<CLayer>, index: i32, tensor: Out<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.place("tensor")?);
        let (network, id) = layer.network()?;
        let description = network.network.read()?;
        let outputs = description.layer(id)?.outputs();
        tensor.set(network.tensor(outputs[self::index("output", index, outputs.len())?])?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_new(
    operation: i32,
    reduce_op: i32,
    root: i64,
    groups: In<i64>,
    group_size: i64,
    layer: Out<Handle<CLayer>>,
) -> Status {
    call(|| {
        let layer = layer.place("layer")?;
        let (operation, reduce_op) = (self::operation(operation)?, self::reduce_op(reduce_op)?);
        let groups = groups.several("groups", group_size)?;
        layer.set(Handle::new(CLayer::alone(DistCollectiveLayer::new(operation, reduce_op, root, &groups)?)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_clone(layer: Handle<CLayer>, clone: Out<Handle<CLayer>>) -> Status {
    call(|| {
        let (layer, clone) = (layer.get()?, clone.place("clone")?);
        let copy = layer.read_collective(|layer| Ok(layer.clone()))?;
        clone.set(Handle::new(CLayer::alone(copy)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_serialize(
    layer: Handle<CLayer>,
    buffer: BytesRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| {
        let bytes = layer.get()?.read_collective(|layer| Ok(layer.serialize()?))?;
        BytesOut { buffer, capacity, length }.write(&bytes)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_deserialize(bytes: Bytes, byte_len: usize, layer: Out<Handle<CLayer>>) -> Status {
    call(|| {
        let layer = layer.place("layer")?;
        let read = DistCollectiveLayer::deserialize(bytes.get("bytes", byte_len)?)?;
        layer.set(Handle::new(CLayer::alone(read)));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_check_type(layer: Handle<CLayer>, data_type: i32) -> Status {
    call(|| {
        let (layer, data_type) = (layer.get()?, self::data_type(data_type)?);
        layer.read_collective(|layer| Ok(layer.check_type(data_type)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_output_dims(
    layer: Handle<CLayer>,
    input: In<CDims>,
    output: Out<CDims>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (input, output) = (input.get("input")?.to_dims()?, output.place("output")?);
        output.set(layer.read_collective(|layer| Ok(layer.output_dims(&input)?))?.into());
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_in_place(
    layer: Handle<CLayer>,
    group_rank: i32,
    input: In<CDims>,
    in_place: Out<i32>,
    element_offset: Out<usize>,
) -> Status {
    call(|| {
        let (layer, rank) = (layer.get()?, GroupRank(unsigned("group_rank", group_rank)?));
        let (input, in_place) = (input.get("input")?.to_shape()?, in_place.place("in_place")?);
        let rule = layer.read_collective(|layer| Ok(layer.in_place(rank, input.as_slice())?))?;
        tell_in_place(rule, in_place, element_offset);
        Ok(())
    })
}

/// Writes a rule as `dcl_in_place_t`.
pub(super) fn tell_in_place(rule: InPlace, in_place: Place<i32>, element_offset: Out<usize>) {
    let (rule, offset) = match rule {
        InPlace::Never => (0, 0),
        InPlace::SameAddress => (1, 0),
        InPlace::InputAt { element_offset } => (2, element_offset),
        InPlace::OutputAt { element_offset } => (3, element_offset),
        InPlace::Unused => (4, 0),
    };
    in_place.set(rule);
    if let Some(element_offset) = element_offset.optional() {
        element_offset.set(offset);
    }
}

/// The layer as it is now, to be bound.
pub(super) fn collective_of(layer: Handle<CLayer>) -> Result<DistCollectiveLayer> {
    layer.get()?.read_collective(|layer| Ok(layer.clone()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_collective_operation(layer: Handle<CLayer>, operation: Out<i32>) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, operation.place("operation")?);
        operation.set(layer.read_collective(|layer| Ok(layer.collective_operation().number()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_collective_operation(layer: Handle<CLayer>, operation: i32) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, self::operation(operation)?);
        layer.change_collective(|layer| {
            layer.set_collective_operation(operation);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_reduce_op(layer: Handle<CLayer>, reduce_op: Out<i32>) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, reduce_op.place("reduce_op")?);
        let found = layer.read_collective(|layer| Ok(layer.reduce_op()))?;
        reduce_op.set(found.map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_reduce_op(layer: Handle<CLayer>, reduce_op: i32) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, self::reduce_op(reduce_op)?);
        layer.change_collective(|layer| {
            layer.set_reduce_op(reduce_op);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_root(layer: Handle<CLayer>, root: Out<i64>) -> Status {
    call(|| {
        let (layer, root) = (layer.get()?, root.place("root")?);
        let found = layer.read_collective(|layer| Ok(layer.root()))?;
        root.set(found.map_or(-1, |root| i64::from(root.number())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_root(layer: Handle<CLayer>, root: i64) -> Status {
    call(|| {
        let layer = layer.get()?;
        let root = if root == -1 { None } else { Some(unsigned("root (-1 is none)", root)?) };
        layer.change_collective(|layer| {
            layer.set_root(root.map(|root| root_of(root, layer.groups())));
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_groups(
    layer: Handle<CLayer>,
    groups: Out<i64>,
    capacity: usize,
    nb_groups: Out<i64>,
    group_size: Out<i64>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (nb_groups, group_size) = (nb_groups.place("nb_groups")?, group_size.place("group_size")?);
        let lists: Vec<Vec<Rank>> = layer.read_collective(|layer| {
            Ok(match layer.groups() {
                Groups::All => Vec::new(),
                Groups::Group(group) => vec![group.clone()],
                Groups::Partition(partition) => partition.groups().to_vec(),
            })
        })?;
        let ranks: Vec<i64> = lists.iter().flatten().map(|rank| i64::from(rank.0)).collect();
        if let Some(groups) = groups.optional() {
            if capacity < ranks.len() {
                let message = format!("groups has room for {capacity} ranks, and there are {}", ranks.len());
                return Err(Fault::new(Status::BUFFER_TOO_SMALL, message));
            }
            groups.set_several(ranks);
        }
        nb_groups.set(lists.len() as i64);
        group_size.set(lists.first().map_or(0, Vec::len) as i64);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_groups(layer: Handle<CLayer>, groups: In<i64>, group_size: i64) -> Status {
    call(|| {
        let layer = layer.get()?;
        let groups = Groups::from_ranks(&groups.several("groups", group_size)?)?;
        layer.change_collective(|layer| set_groups(layer, groups))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_partition(
    layer: Handle<CLayer>,
    groups: In<i64>,
    nb_groups: i64,
    group_size: i64,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        if nb_groups < 1 || group_size < 1 {
            let message = format!("a partition has 1 group or more of 1 rank or more, not {nb_groups} of {group_size}");
            return Err(Fault::invalid_argument(message));
        }
        let ranks = ranks(&groups.several("groups", nb_groups.saturating_mul(group_size))?)?;
        let lists = ranks.chunks(group_size as usize).map(|group| group.iter().map(|rank| rank.0));
        let partition = Partition::new(lists);
        layer.change_collective(|layer| set_groups(layer, Groups::Partition(partition)))
    })
}

/// Writes a transpose of a Shuffle.
fn get_transpose(
    layer: Handle<CLayer>,
    which: impl FnOnce(&Shuffle) -> Option<&[u8]>,
    permutation: Out<i32>,
    nb_dims: Out<i32>,
) -> Result<()> {
    let layer = layer.get()?;
    let (permutation, nb_dims) = (permutation.place("permutation")?, nb_dims.place("nb_dims")?);
    let found = layer.read_shuffle(|shuffle| Ok(which(shuffle).map(<[u8]>::to_vec)))?.unwrap_or_default();
    nb_dims.set(count(found.len()));
    permutation.set_several(found.into_iter().map(i32::from));
    Ok(())
}

/// A transpose from C's numbers.
fn transpose(permutation: &In<i32>, nb_dims: i32) -> Result<Option<Vec<u8>>> {
    if nb_dims == 0 {
        return Ok(None);
    }
    if !(0..=MAX_DIMS as i32).contains(&nb_dims) {
        return Err(Fault::invalid_argument(format!("nb_dims is {nb_dims}; it is 0 to {MAX_DIMS}")));
    }
    let numbers = permutation.several("permutation", nb_dims)?;
    let bytes: std::result::Result<Vec<u8>, _> = numbers.iter().map(|&number| u8::try_from(number)).collect();
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(Fault::invalid_argument(format!("{numbers:?} is not a permutation of 0 to {}", nb_dims - 1))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_first_transpose(
    layer: Handle<CLayer>,
    permutation: Out<i32>,
    nb_dims: Out<i32>,
) -> Status {
    call(|| get_transpose(layer, Shuffle::first_transpose, permutation, nb_dims))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_first_transpose(layer: Handle<CLayer>, permutation: In<i32>, nb_dims: i32) -> Status {
    call(|| {
        let (layer, transpose) = (layer.get()?, transpose(&permutation, nb_dims)?);
        layer.change_shuffle(|shuffle| shuffle.set_first_transpose(transpose))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_reshape_dimensions(layer: Handle<CLayer>, dims: Out<CDims>) -> Status {
    call(|| {
        let (layer, dims) = (layer.get()?, dims.place("dims")?);
        dims.set(layer.read_shuffle(|shuffle| Ok(shuffle.reshape_dims().map_or(CDims::ABSENT, CDims::from)))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_reshape_dimensions(layer: Handle<CLayer>, dims: In<CDims>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let dims = match dims.optional().filter(|dims| !dims.is_absent()) {
            Some(dims) => Some(dims.as_slice()?.to_vec()),
            None => None,
        };
        layer.change_shuffle(|shuffle| shuffle.set_reshape_dims(dims))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_second_transpose(
    layer: Handle<CLayer>,
    permutation: Out<i32>,
    nb_dims: Out<i32>,
) -> Status {
    call(|| get_transpose(layer, Shuffle::second_transpose, permutation, nb_dims))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_second_transpose(layer: Handle<CLayer>, permutation: In<i32>, nb_dims: i32) -> Status {
    call(|| {
        let (layer, transpose) = (layer.get()?, transpose(&permutation, nb_dims)?);
        layer.change_shuffle(|shuffle| shuffle.set_second_transpose(transpose))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_cast_get_to_type(layer: Handle<CLayer>, to_type: Out<i32>) -> Status {
    call(|| {
        let (layer, to_type) = (layer.get()?, to_type.place("to_type")?);
        to_type.set(layer.read(|layer| match layer.body() {
            LayerBody::Cast(cast) => Ok(cast.to().number()),
            body => Err(is_not(body, "Cast")),
        })?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_cast_set_to_type(layer: Handle<CLayer>, to_type: i32) -> Status {
    call(|| {
        let (layer, to_type) = (layer.get()?, data_type(to_type)?);
        layer.change(|layer| match layer.body_mut() {
            LayerBody::Cast(cast) => {
                cast.set_to(to_type);
                Ok(())
            }
            body => Err(is_not(body, "Cast")),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_get_dimensions(layer: Handle<CLayer>, data_type: Out<i32>, dims: Out<CDims>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (number, shape) = layer.read_constant(|value| Ok((value.data_type().number(), value.shape())))?;
        if let Some(data_type) = data_type.optional() {
            data_type.set(number);
        }
        if let Some(dims) = dims.optional() {
            dims.set(shape.into());
        }
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_get_weights(
    layer: Handle<CLayer>,
    buffer: BytesRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        layer.read_constant(|value| BytesOut { buffer, capacity, length }.write(value.as_bytes()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_set_weights(
    layer: Handle<CLayer>,
    data_type: i32,
    dims: In<CDims>,
    weights: Bytes,
    byte_len: usize,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let value = constant(data_type, &dims, &weights, byte_len)?;
        layer.change(|layer| match layer.body_mut() {
            LayerBody::Constant(constant) => {
                constant.set_value(value);
                Ok(())
            }
            body => Err(is_not(body, "Constant")),
        })
    })
}
