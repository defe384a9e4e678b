//! `dcl_layer_*`: what layers of all kinds have.

use dcl::DistCollectiveLayer;

use super::arguments::{OutPointer, TextPointer, count, index, positive};
use super::copy_out::{TextBuffer, TextDestination};
use super::handle::Handle;
use super::network_objects::{CLayer, CTensor, Owner};
use super::status::{CallError, Result, Status, call};

impl CLayer {
    pub(super) fn read_collective<R>(&self, act: impl FnOnce(&DistCollectiveLayer) -> Result<R>) -> Result<R> {
        self.read(|layer| act(layer.as_dist_collective()?))
    }

    pub(super) fn change_collective(&self, act: impl FnOnce(&mut DistCollectiveLayer) -> Result<()>) -> Result<()> {
        self.change(|layer| act(layer.as_dist_collective_mut()?))
    }
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
