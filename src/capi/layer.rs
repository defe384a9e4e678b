//! Layers: those of a network, and DistCollective layers by themselves. Attributes are set and got alike.

use std::sync::{Arc, Mutex, TryLockError};

use super::arguments::{
    Bytes, CDims, In, Out, Text, count, data_type, index, operation, positive, ranks, reduce_op, unsigned,
};
use super::copy_out::{BytesOut, BytesRoom, TextOut, TextRoom};
use super::handle::{Handle, Object, busy};
use super::network::{CNetwork, CTensor, constant};
use super::status::{Fault, Result, Status, call};
use crate::collective::{Groups, Partition, ReduceOperation, Root};
use crate::dist_collective::DistCollectiveLayer;
use crate::network::{CastLayer, ConstantLayer, Layer, LayerBody, LayerId, Shuffle, ShuffleLayer};
use crate::rank::{GroupRank, Rank};
use crate::shape::MAX_DIMS;

/// `dcl_layer_t`.
pub(super) struct CLayer {
    place: Place,
}

enum Place {
    InNetwork(Arc<CNetwork>, LayerId),
    /// Without inputs and outputs.
    Alone(Mutex<Layer>),
}

impl Object for CLayer {
    const TYPE: &'static str = "dcl_layer_t";
}

impl CLayer {
    pub(super) fn of_network(network: Arc<CNetwork>, id: LayerId) -> Self {
        CLayer { place: Place::InNetwork(network, id) }
    }

    fn alone(layer: DistCollectiveLayer) -> Self {
        let layer = Layer { inputs: Vec::new(), outputs: Vec::new(), body: LayerBody::DistCollective(layer) };
        CLayer { place: Place::Alone(Mutex::new(layer)) }
    }

    /// Does something with the layer, one thread at a time.
    fn with<R>(&self, act: impl FnOnce(&mut Layer) -> Result<R>) -> Result<R> {
        match &self.place {
            Place::InNetwork(network, id) => act(network.lock()?.network.layer_mut(*id)?),
            Place::Alone(layer) => match layer.try_lock() {
                Ok(mut layer) => act(&mut layer),
                Err(TryLockError::Poisoned(poisoned)) => act(&mut poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => Err(busy::<CLayer>()),
            },
        }
    }

    /// The network that the layer belongs to.
    fn network(&self) -> Result<(&Arc<CNetwork>, LayerId)> {
        match &self.place {
            Place::InNetwork(network, id) => Ok((network, *id)),
            Place::Alone(_) => {
                Err(Fault::invalid_argument("the layer belongs to no network, so it has no inputs and outputs"))
            }
        }
    }

    fn with_collective<R>(&self, act: impl FnOnce(&mut DistCollectiveLayer) -> Result<R>) -> Result<R> {
        self.with(|layer| act(layer.as_dist_collective_mut()?))
    }

    fn with_shuffle<R>(&self, act: impl FnOnce(&mut ShuffleLayer) -> Result<R>) -> Result<R> {
        self.with(|layer| match layer.body_mut() {
            LayerBody::Shuffle(shuffle) => act(shuffle),
            body => Err(is_not(body, "Shuffle")),
        })
    }

    /// Changes one thing of a Shuffle.
    fn set_shuffle(&self, change: impl FnOnce(&mut Shuffle)) -> Result<()> {
        self.with_shuffle(|layer| {
            let mut shuffle = layer.shuffle().clone();
            change(&mut shuffle);
            Ok(layer.set_shuffle(shuffle)?)
        })
    }

    fn with_cast<R>(&self, act: impl FnOnce(&mut CastLayer) -> Result<R>) -> Result<R> {
        self.with(|layer| match layer.body_mut() {
            LayerBody::Cast(cast) => act(cast),
            body => Err(is_not(body, "Cast")),
        })
    }

    fn with_constant<R>(&self, act: impl FnOnce(&mut ConstantLayer) -> Result<R>) -> Result<R> {
        self.with(|layer| match layer.body_mut() {
            LayerBody::Constant(constant) => act(constant),
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
        match layer.get()?.place {
            Place::Alone(_) => layer.free(),
            Place::InNetwork(..) => Err(Fault::invalid_argument("the layer belongs to a network, and goes with that")),
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
    call(|| layer.get()?.with(|layer| TextOut { buffer, capacity, length }.write(layer.body().kind())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_name(
    layer: Handle<CLayer>,
    buffer: TextRoom,
    capacity: usize,
    length: Out<usize>,
) -> Status {
    call(|| layer.get()?.with(|layer| TextOut { buffer, capacity, length }.write(layer.name())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_name(layer: Handle<CLayer>, name: Text) -> Status {
    call(|| {
        let (layer, name) = (layer.get()?, name.get("name")?);
        layer.with(|layer| {
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
    call(|| layer.get()?.with(|layer| TextOut { buffer, capacity, length }.write(layer.metadata())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_metadata(layer: Handle<CLayer>, metadata: Text) -> Status {
    call(|| {
        let (layer, metadata) = (layer.get()?, metadata.get("metadata")?);
        layer.with(|layer| {
            layer.set_metadata(metadata);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_rank(layer: Handle<CLayer>, nb_rank: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_rank) = (layer.get()?, nb_rank.place("nb_rank")?);
        nb_rank.set(count(layer.with(|layer| Ok(layer.nb_rank()))? as usize));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_nb_rank(layer: Handle<CLayer>, nb_rank: i32) -> Status {
    call(|| {
        let (layer, nb_rank) = (layer.get()?, positive("nb_rank", nb_rank)?);
        layer.with(|layer| Ok(layer.set_nb_rank(nb_rank)?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_inputs(layer: Handle<CLayer>, nb_inputs: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_inputs) = (layer.get()?, nb_inputs.place("nb_inputs")?);
        layer.network()?;
        nb_inputs.set(count(layer.with(|layer| Ok(layer.inputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_input(layer: Handle<CLayer>, index: i32, tensor: Out<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.place("tensor")?);
        let (network, id) = layer.network()?;
        let mut state = network.lock()?;
        let inputs = state.network.layer(id)?.inputs();
        let input = inputs[self::index("input", index, inputs.len())?];
        tensor.set(state.tensor(network, input));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_input(layer: Handle<CLayer>, index: i32, tensor: Handle<CTensor>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (network, id) = layer.network()?;
        let tensor = network.own(tensor)?;
        let mut state = network.lock()?;
        let index = self::index("input", index, state.network.layer(id)?.inputs().len())?;
        state.network.set_input(id, index, tensor)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_outputs(layer: Handle<CLayer>, nb_outputs: Out<i32>) -> Status {
    call(|| {
        let (layer, nb_outputs) = (layer.get()?, nb_outputs.place("nb_outputs")?);
        layer.network()?;
        nb_outputs.set(count(layer.with(|layer| Ok(layer.outputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_output(layer: Handle<CLayer>, index: i32, tensor: Out<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.place("tensor")?);
        let (network, id) = layer.network()?;
        let mut state = network.lock()?;
        let outputs = state.network.layer(id)?.outputs();
        let output = outputs[self::index("output", index, outputs.len())?];
        tensor.set(state.tensor(network, output));
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
        let copy = layer.with_collective(|layer| Ok(layer.clone()))?;
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
        let bytes = layer.get()?.with_collective(|layer| Ok(layer.serialize()?))?;
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
        layer.with_collective(|layer| Ok(layer.check_type(data_type)?))
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
        output.set(layer.with_collective(|layer| Ok(layer.output_dims(&input)?))?.into());
        Ok(())
    })
}

/// The layer as it is now, to be bound.
pub(super) fn collective_of(layer: Handle<CLayer>) -> Result<DistCollectiveLayer> {
    layer.get()?.with_collective(|layer| Ok(layer.clone()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_collective_operation(layer: Handle<CLayer>, operation: Out<i32>) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, operation.place("operation")?);
        operation.set(layer.with_collective(|layer| Ok(layer.collective_operation().number()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_collective_operation(layer: Handle<CLayer>, operation: i32) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, self::operation(operation)?);
        layer.with_collective(|layer| {
            layer.set_collective_operation(operation);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_reduce_op(layer: Handle<CLayer>, reduce_op: Out<i32>) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, reduce_op.place("reduce_op")?);
        let found = layer.with_collective(|layer| Ok(layer.reduce_op()))?;
        reduce_op.set(found.map_or(ReduceOperation::NONE_NUMBER, ReduceOperation::number));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_reduce_op(layer: Handle<CLayer>, reduce_op: i32) -> Status {
    call(|| {
        let (layer, reduce_op) = (layer.get()?, self::reduce_op(reduce_op)?);
        layer.with_collective(|layer| {
            layer.set_reduce_op(reduce_op);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_get_root(layer: Handle<CLayer>, root: Out<i64>) -> Status {
    call(|| {
        let (layer, root) = (layer.get()?, root.place("root")?);
        let found = layer.with_collective(|layer| Ok(layer.root()))?;
        root.set(found.map_or(-1, |root| i64::from(root.number())));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_dist_collective_set_root(layer: Handle<CLayer>, root: i64) -> Status {
    call(|| {
        let layer = layer.get()?;
        let root = if root == -1 { None } else { Some(unsigned("root (-1 is none)", root)?) };
        layer.with_collective(|layer| {
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
        let lists: Vec<Vec<Rank>> = layer.with_collective(|layer| {
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
        layer.with_collective(|layer| set_groups(layer, groups))
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
        layer.with_collective(|layer| set_groups(layer, Groups::Partition(partition)))
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
    let found = layer.with_shuffle(|layer| Ok(which(layer.shuffle()).map(<[u8]>::to_vec)))?.unwrap_or_default();
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
        layer.set_shuffle(|shuffle| shuffle.set_first_transpose(transpose))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_reshape_dimensions(layer: Handle<CLayer>, dims: Out<CDims>) -> Status {
    call(|| {
        let (layer, dims) = (layer.get()?, dims.place("dims")?);
        dims.set(layer.with_shuffle(|layer| Ok(layer.shuffle().reshape_dims().map_or(CDims::ABSENT, CDims::from)))?);
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
        layer.set_shuffle(|shuffle| shuffle.set_reshape_dims(dims))
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
        layer.set_shuffle(|shuffle| shuffle.set_second_transpose(transpose))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_cast_get_to_type(layer: Handle<CLayer>, to_type: Out<i32>) -> Status {
    call(|| {
        let (layer, to_type) = (layer.get()?, to_type.place("to_type")?);
        to_type.set(layer.with_cast(|layer| Ok(layer.to().number()))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_cast_set_to_type(layer: Handle<CLayer>, to_type: i32) -> Status {
    call(|| {
        let (layer, to_type) = (layer.get()?, data_type(to_type)?);
        layer.with_cast(|layer| {
            layer.set_to(to_type);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_get_dimensions(layer: Handle<CLayer>, data_type: Out<i32>, dims: Out<CDims>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (number, shape) =
            layer.with_constant(|layer| Ok((layer.value().data_type().number(), layer.value().shape())))?;
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
        layer.with_constant(|layer| BytesOut { buffer, capacity, length }.write(layer.value().as_bytes()?))
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
        layer.with_constant(|layer| {
            layer.set_value(value);
            Ok(())
        })
    })
}
