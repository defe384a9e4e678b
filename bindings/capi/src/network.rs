//! `dcl_network_*` and `dcl_tensor_*`.

use dcl::network::{LayerId, TensorId};

use super::arguments::{
    CDims, InPointer, OutPointer, TextPointer, count, data_type, index, operation, positive, reduce_op, unsigned,
};
use super::copy_out::{TextBuffer, TextDestination};
use super::handle::Handle;
use super::network_objects::{CLayer, CNetwork, CTensor, Children};
use super::plugin::{CPlugin, CallbackPlugin};
use super::status::{Result, Status, call, lock};

#[unsafe(no_mangle)]
extern "C" fn dcl_network_new(network: OutPointer<Handle<CNetwork>>) -> Status {
    call(|| {
        let network = network.check("network")?;
        network.set(Handle::new(CNetwork::default()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_free(network: Handle<CNetwork>) -> Status {
    call(|| {
        if network.is_null() {
            return Ok(());
        }
        let network = network.take()?;
        // A call of another thread may still hold the network; `is_freed` tells it.
        let freed = Children { is_freed: true, ..Children::default() };
        let Children { tensors, layers, .. } = std::mem::replace(&mut *lock(&network.children), freed);
        tensors.into_values().try_for_each(Handle::free)?;
        layers.into_values().try_for_each(Handle::free)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_for_rank(network: Handle<CNetwork>, rank: i32, world_size: i32) -> Status {
    call(|| {
        let network = network.get()?;
        let (rank, world_size) = (unsigned("rank", rank)?, positive("world_size", world_size)?);
        network.network.write()?.for_rank(rank, world_size)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_input(
    network: Handle<CNetwork>,
    name: TextPointer,
    data_type: i32,
    dims: InPointer<CDims>,
    tensor: OutPointer<Handle<CTensor>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (tensor, name, dims) = (tensor.check("tensor")?, name.get("name")?, dims.get("dims")?.to_dims()?);
        let data_type = self::data_type(data_type)?;
        let mut description = network.network.write()?;
        let id = description.add_input(name, data_type, dims)?;
        tensor.set(network.tensor(id));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_set_optimization_profile(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    min: InPointer<CDims>,
    opt: InPointer<CDims>,
    max: InPointer<CDims>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let input = network.own_tensor(input)?;
        let [min, opt, max] = [min.get("min")?, opt.get("opt")?, max.get("max")?].map(CDims::to_dims);
        network.network.write()?.set_optimization_profile(input, min?, opt?, max?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_optimization_profile(
    network: Handle<CNetwork>,
    profile_index: OutPointer<i32>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let profile_index = profile_index.check("profile_index")?;
        profile_index.set(count(network.network.write()?.add_optimization_profile()?));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_set_profile_shapes(
    network: Handle<CNetwork>,
    profile_index: i32,
    input: Handle<CTensor>,
    min: InPointer<CDims>,
    opt: InPointer<CDims>,
    max: InPointer<CDims>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let input = network.own_tensor(input)?;
        let [min, opt, max] = [min.get("min")?, opt.get("opt")?, max.get("max")?].map(CDims::to_dims);
        let mut description = network.network.write()?;
        let profile = index("optimization profile", profile_index, description.optimization_profile_count())?;
        description.set_profile_shapes(profile, input, min?, opt?, max?)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_nb_optimization_profiles(
    network: Handle<CNetwork>,
    nb_profiles: OutPointer<i32>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let nb_profiles = nb_profiles.check("nb_profiles")?;
        nb_profiles.set(count(network.network.read()?.optimization_profile_count()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_dist_collective(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    operation: i32,
    reduce_op: i32,
    root: i64,
    groups: InPointer<i64>,
    group_size: i64,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (input, layer) = (network.own_tensor(input)?, layer.check("layer")?);
        let (operation, reduce_op) = (self::operation(operation)?, self::reduce_op(reduce_op)?);
        let groups = groups.array("groups", group_size)?;
        let mut description = network.network.write()?;
        let id = description.add_dist_collective(input, operation, reduce_op, root, &groups)?;
        layer.set(network.layer(id));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_plugin(
    network: Handle<CNetwork>,
    name: TextPointer,
    inputs: InPointer<Handle<CTensor>>,
    nb_inputs: i32,
    plugin: InPointer<CPlugin>,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (name, layer) = (name.get("name")?, layer.check("layer")?);
        let inputs = inputs.array("inputs", nb_inputs)?;
        let inputs: Vec<TensorId> = inputs.into_iter().map(|input| network.own_tensor(input)).collect::<Result<_>>()?;
        let plugin = CallbackPlugin::new(plugin.required("plugin")?)?;
        let ownership = plugin.ownership();
        let mut description = network.network.write()?;
        let output = description.add_plugin(name, plugin, &inputs)?;
        let handle = network.layer_of(&description, output)?;
        ownership.take();
        layer.set(handle);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_mark_output(network: Handle<CNetwork>, tensor: Handle<CTensor>, name: TextPointer) -> Status {
    call(|| {
        let network = network.get()?;
        let (tensor, name) = (network.own_tensor(tensor)?, name.get("name")?);
        network.network.write()?.mark_output(tensor, name)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_nb_layers(network: Handle<CNetwork>, nb_layers: OutPointer<i32>) -> Status {
    call(|| {
        let network = network.get()?;
        let nb_layers = nb_layers.check("nb_layers")?;
        nb_layers.set(count(network.network.read()?.layers().count()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_layer(
    network: Handle<CNetwork>,
    index: i32,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let layer = layer.check("layer")?;
        let description = network.network.read()?;
        let ids: Vec<LayerId> = description.layers().map(|(id, _)| id).collect();
        layer.set(network.layer(ids[self::index("layer", index, ids.len())?]));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_nb_inputs(network: Handle<CNetwork>, nb_inputs: OutPointer<i32>) -> Status {
    call(|| {
        let network = network.get()?;
        let nb_inputs = nb_inputs.check("nb_inputs")?;
        nb_inputs.set(count(network.network.read()?.inputs().len()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_input(
    network: Handle<CNetwork>,
    index: i32,
    tensor: OutPointer<Handle<CTensor>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let tensor = tensor.check("tensor")?;
        let description = network.network.read()?;
        let inputs = description.inputs();
        let id = inputs[self::index("input", index, inputs.len())?];
        tensor.set(network.tensor(id));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_nb_outputs(network: Handle<CNetwork>, nb_outputs: OutPointer<i32>) -> Status {
    call(|| {
        let network = network.get()?;
        let nb_outputs = nb_outputs.check("nb_outputs")?;
        nb_outputs.set(count(network.network.read()?.outputs().len()));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_get_output(
    network: Handle<CNetwork>,
    index: i32,
    tensor: OutPointer<Handle<CTensor>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let tensor = tensor.check("tensor")?;
        let description = network.network.read()?;
        let outputs = description.outputs();
        let id = outputs[self::index("output", index, outputs.len())?];
        tensor.set(network.tensor(id));
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_get_name(
    tensor: Handle<CTensor>,
    buffer: TextBuffer,
    capacity: usize,
    length: OutPointer<usize>,
) -> Status {
    call(|| {
        let tensor = tensor.get()?;
        let network = tensor.network.network.read()?;
        TextDestination { buffer, capacity, length }.write(network.tensor_name(tensor.id)?)
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_set_name(tensor: Handle<CTensor>, name: TextPointer) -> Status {
    call(|| {
        let tensor = tensor.get()?;
        let name = name.get("name")?;
        tensor.network.network.write()?.set_tensor_name(tensor.id, name)?;
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_tensor_get_type(tensor: Handle<CTensor>, data_type: OutPointer<i32>) -> Status {
    call(|| {
        let tensor = tensor.get()?;
        let data_type = data_type.check("data_type")?;
        let found = tensor.network.network.read()?.tensor_data_type(tensor.id)?;
        data_type.set(found.number());
        Ok(())
    })
}
