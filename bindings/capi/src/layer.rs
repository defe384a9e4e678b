//! `dcl_layer_*`, `dcl_shuffle_*`, `dcl_cast_*` and `dcl_constant_*`: the attributes of layers.

use dcl::network::{Layer, LayerBody, Shuffle};
use dcl::tensor::MAX_DIMS;
use dcl::{Buffer, DistCollectiveLayer};

use super::arguments::{
    CDims, ConstVoidPointer, InPointer, OutPointer, TextPointer, count, data_type, index, positive,
};
use super::copy_out::{ByteBuffer, ByteDestination, TextBuffer, TextDestination};
use super::handle::Handle;
use super::network::constant;
use super::network_objects::{CLayer, CTensor, Owner};
use super::status::{CallError, Result, Status, call};

impl CLayer {
    pub(super) fn read_collective<R>(&self, act: impl FnOnce(&DistCollectiveLayer) -> Result<R>) -> Result<R> {
        self.read(|layer| act(layer.as_dist_collective()?))
    }

    pub(super) fn change_collective(&self, act: impl FnOnce(&mut DistCollectiveLayer) -> Result<()>) -> Result<()> {
        self.change(|layer| act(layer.as_dist_collective_mut()?))
    }

    fn read_shuffle<R>(&self, act: impl FnOnce(&Shuffle) -> Result<R>) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Shuffle(shuffle) => act(shuffle),
            _ => Err(is_not(layer, "a Shuffle layer")),
        })
    }

    /// Changes an attribute of a Shuffle layer.
    fn change_shuffle(&self, act: impl FnOnce(&mut Shuffle)) -> Result<()> {
        self.change(|layer| match layer.body_mut() {
            LayerBody::Shuffle(shuffle) => {
                let mut changed = shuffle.clone();
                act(&mut changed);
                changed.check()?;
                *shuffle = changed;
                Ok(())
            }
            _ => Err(is_not(layer, "a Shuffle layer")),
        })
    }

    fn read_constant<R>(&self, act: impl FnOnce(&Buffer) -> Result<R>) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Constant(constant) => act(&constant.value),
            _ => Err(is_not(layer, "a Constant layer")),
        })
    }
}

pub(super) fn is_not(layer: &Layer, kind: &str) -> CallError {
    CallError::invalid_argument(format!("{} is not {kind}", layer.subject()))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_free(layer: Handle<CLayer>) -> Status {
    call(|| {
        if layer.is_null() {
            return Ok(());
        }
        match layer.get()?.owner {
            Owner::Handle(_) => layer.free(),
            Owner::Network(..) => Err(CallError::invalid_argument("the layer belongs to a network, which frees it")),
        }
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_kind(
    layer: Handle<CLayer>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextDestination { buffer, capacity, length }.write(layer.body().kind())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_name(
    layer: Handle<CLayer>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextDestination { buffer, capacity, length }.write(layer.name())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_name(layer: Handle<CLayer>, name: TextPointer) -> Status {
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
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| layer.get()?.read(|layer| TextDestination { buffer, capacity, length }.write(layer.metadata())))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_metadata(layer: Handle<CLayer>, metadata: TextPointer) -> Status {
    call(|| {
        let (layer, metadata) = (layer.get()?, metadata.get("metadata")?);
        layer.change(|layer| {
            layer.set_metadata(metadata);
            Ok(())
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_rank(layer: Handle<CLayer>, nb_rank: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, nb_rank) = (layer.get()?, nb_rank.check("nb_rank")?);
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
extern "C" fn dcl_layer_get_nb_inputs(layer: Handle<CLayer>, nb_inputs: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, nb_inputs) = (layer.get()?, nb_inputs.check("nb_inputs")?);
        layer.network()?;
        nb_inputs.set(count(layer.read(|layer| Ok(layer.inputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_input(layer: Handle<CLayer>, index: i32, tensor: OutPointer<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.check("tensor")?);
        let (network, id) = layer.network()?;
        let description = network.network.read()?;
        let inputs = description.layer(id)?.inputs();
        tensor.set(network.tensor(inputs[self::index("input", index, inputs.len())?]));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_set_input(layer: Handle<CLayer>, index: i32, tensor: Handle<CTensor>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let (network, id) = layer.network()?;
        let tensor = network.own_tensor(tensor)?;
        let mut description = network.network.write()?;
        let index = self::index("input", index, description.layer(id)?.inputs().len())?;
        description.set_input(id, index, tensor)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_nb_outputs(layer: Handle<CLayer>, nb_outputs: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, nb_outputs) = (layer.get()?, nb_outputs.check("nb_outputs")?);
        layer.network()?;
        nb_outputs.set(count(layer.read(|layer| Ok(layer.outputs().len()))?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_layer_get_output(layer: Handle<CLayer>, index: i32, tensor: OutPointer<Handle<CTensor>>) -> Status {
    call(|| {
        let (layer, tensor) = (layer.get()?, tensor.check("tensor")?);
        let (network, id) = layer.network()?;
        let description = network.network.read()?;
        let outputs = description.layer(id)?.outputs();
        tensor.set(network.tensor(outputs[self::index("output", index, outputs.len())?]));
        Ok(())
    })
}

/// Writes a transpose of a Shuffle layer.
fn get_transpose(
    layer: Handle<CLayer>,
    which: impl FnOnce(&Shuffle) -> Option<&[u8]>,
    permutation: OutPointer<i32>,
    nb_dims: OutPointer<i32>,
) -> Result<()> {
    let layer = layer.get()?;
    let (permutation, nb_dims) = (permutation.check("permutation")?, nb_dims.check("nb_dims")?);
    let found = layer.read_shuffle(|shuffle| Ok(which(shuffle).map(<[u8]>::to_vec)))?.unwrap_or_default();
    nb_dims.set(count(found.len()));
    permutation.set_array(found.into_iter().map(i32::from));
    Ok(())
}

/// Parses a transpose. `None` means that there is none.
fn transpose(permutation: &InPointer<i32>, nb_dims: i32) -> Result<Option<Vec<u8>>> {
    if nb_dims == 0 {
        return Ok(None);
    }
    if !(0..=MAX_DIMS as i32).contains(&nb_dims) {
        return Err(CallError::invalid_argument(format!("nb_dims is {nb_dims}; it is 0 to {MAX_DIMS}")));
    }
    let numbers = permutation.array("permutation", nb_dims)?;
    let bytes: std::result::Result<Vec<u8>, _> = numbers.iter().map(|&number| u8::try_from(number)).collect();
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(_) => Err(CallError::invalid_argument(format!("{numbers:?} is not a permutation of 0 to {}", nb_dims - 1))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_first_transpose(
    layer: Handle<CLayer>,
    permutation: OutPointer<i32>,
    nb_dims: OutPointer<i32>,
) -> Status {
    call(|| get_transpose(layer, |shuffle| shuffle.first_transpose.as_deref(), permutation, nb_dims))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_first_transpose(
    layer: Handle<CLayer>,
    permutation: InPointer<i32>,
    nb_dims: i32,
) -> Status {
    call(|| {
        let (layer, transpose) = (layer.get()?, transpose(&permutation, nb_dims)?);
        layer.change_shuffle(|shuffle| shuffle.first_transpose = transpose)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_reshape_dimensions(layer: Handle<CLayer>, dims: OutPointer<CDims>) -> Status {
    call(|| {
        let (layer, dims) = (layer.get()?, dims.check("dims")?);
        dims.set(layer.read_shuffle(|shuffle| Ok(shuffle.reshape_dims.as_deref().map_or(CDims::ABSENT, CDims::from)))?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_reshape_dimensions(layer: Handle<CLayer>, dims: InPointer<CDims>) -> Status {
    call(|| {
        let layer = layer.get()?;
        let dims = match dims.optional().filter(|dims| !dims.is_absent()) {
            Some(dims) => Some(dims.as_slice()?.to_vec()),
            None => None,
        };
        layer.change_shuffle(|shuffle| shuffle.reshape_dims = dims)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_get_second_transpose(
    layer: Handle<CLayer>,
    permutation: OutPointer<i32>,
    nb_dims: OutPointer<i32>,
) -> Status {
    call(|| get_transpose(layer, |shuffle| shuffle.second_transpose.as_deref(), permutation, nb_dims))
}

#[unsafe(no_mangle)]
extern "C" fn dcl_shuffle_set_second_transpose(
    layer: Handle<CLayer>,
    permutation: InPointer<i32>,
    nb_dims: i32,
) -> Status {
    call(|| {
        let (layer, transpose) = (layer.get()?, transpose(&permutation, nb_dims)?);
        layer.change_shuffle(|shuffle| shuffle.second_transpose = transpose)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_cast_get_to_type(layer: Handle<CLayer>, to_type: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, to_type) = (layer.get()?, to_type.check("to_type")?);
        to_type.set(layer.read(|layer| match layer.body() {
            LayerBody::Cast(cast) => Ok(cast.to.number()),
            _ => Err(is_not(layer, "a Cast layer")),
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
                cast.to = to_type;
                Ok(())
            }
            _ => Err(is_not(layer, "a Cast layer")),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_get_dimensions(
    layer: Handle<CLayer>,
    data_type: OutPointer<i32>,
    dims: OutPointer<CDims>,
) -> Status {
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
    buffer: ByteBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        layer.read_constant(|value| ByteDestination { buffer, capacity, length }.write(value.as_bytes()?))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_constant_set_weights(
    layer: Handle<CLayer>,
    data_type: i32,
    dims: InPointer<CDims>,
    weights: ConstVoidPointer,
    byte_len: usize,
) -> Status {
    call(|| {
        let layer = layer.get()?;
        let value = constant(data_type, &dims, &weights, byte_len)?;
        layer.change(|layer| match layer.body_mut() {
            LayerBody::Constant(constant) => {
                constant.value = value.into();
                Ok(())
            }
            _ => Err(is_not(layer, "a Constant layer")),
        })
    })
}
