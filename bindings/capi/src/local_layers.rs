//! `dcl_network_add_shuffle` to `dcl_network_add_constant`: the layers without a collective.

use dcl::network::{ElementWiseOperation, Shuffle, TensorId};
use dcl::{Buffer, Error, ErrorKind};

use super::arguments::{CDims, ConstVoidPointer, InPointer, OutPointer, data_type};
use super::handle::Handle;
use super::network_objects::{CLayer, CNetwork, CTensor};
use super::status::{CallError, Result, Status, call};

/// Parses the number of a dimension.
fn axis(number: i32) -> Result<usize> {
    usize::try_from(number)
        .map_err(|_| CallError::invalid_argument(format!("axis is {number}; dimensions are counted from 0 on")))
}

/// Parses a transpose. `None` means that there is none.
fn transpose(permutation: &InPointer<CDims>) -> Result<Option<Vec<u8>>> {
    let Some(permutation) = permutation.optional() else { return Ok(None) };
    let dims = permutation.as_slice()?;
    match dims.iter().map(|&dim| u8::try_from(dim)).collect() {
        Ok(permutation) => Ok(Some(permutation)),
        Err(_) => Err(CallError::invalid_argument(format!("{dims:?} is not a permutation"))),
    }
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_shuffle(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    first_transpose: InPointer<CDims>,
    reshape: InPointer<CDims>,
    second_transpose: InPointer<CDims>,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (input, layer) = (network.own_tensor(input)?, layer.check("layer")?);
        let (first_transpose, second_transpose) = (transpose(&first_transpose)?, transpose(&second_transpose)?);
        let reshape_dims = match reshape.optional() {
            Some(dims) => Some(dims.as_slice()?.to_vec()),
            None => None,
        };
        let shuffle = Shuffle { first_transpose, reshape_dims, second_transpose };
        let mut description = network.network.write()?;
        let output = description.add_shuffle(input, shuffle)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_cast(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    to_type: i32,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (input, layer, to_type) = (network.own_tensor(input)?, layer.check("layer")?, data_type(to_type)?);
        let mut description = network.network.write()?;
        let output = description.add_cast(input, to_type)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_elementwise(
    network: Handle<CNetwork>,
    a: Handle<CTensor>,
    b: Handle<CTensor>,
    operation: i32,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (a, b, layer) = (network.own_tensor(a)?, network.own_tensor(b)?, layer.check("layer")?);
        let operation = ElementWiseOperation::from_number(operation)?;
        let mut description = network.network.write()?;
        let output = description.add_elementwise(a, b, operation)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_concatenation(
    network: Handle<CNetwork>,
    inputs: InPointer<Handle<CTensor>>,
    nb_inputs: i32,
    axis: i32,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (layer, axis) = (layer.check("layer")?, self::axis(axis)?);
        let inputs = inputs.array("inputs", nb_inputs)?;
        let inputs: Vec<TensorId> = inputs.into_iter().map(|input| network.own_tensor(input)).collect::<Result<_>>()?;
        let mut description = network.network.write()?;
        let output = description.add_concatenation(&inputs, axis)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_slice(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    start: InPointer<CDims>,
    size: InPointer<CDims>,
    stride: InPointer<CDims>,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (input, layer) = (network.own_tensor(input)?, layer.check("layer")?);
        let (start, size, stride) = (start.get("start")?, size.get("size")?, stride.get("stride")?);
        let mut description = network.network.write()?;
        let output = description.add_slice(input, start.as_slice()?, size.as_slice()?, stride.as_slice()?)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_identity(
    network: Handle<CNetwork>,
    input: Handle<CTensor>,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let (input, layer) = (network.own_tensor(input)?, layer.check("layer")?);
        let mut description = network.network.write()?;
        let output = description.add_identity(input)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_network_add_constant(
    network: Handle<CNetwork>,
    data_type: i32,
    dims: InPointer<CDims>,
    weights: ConstVoidPointer,
    byte_len: usize,
    layer: OutPointer<Handle<CLayer>>,
) -> Status {
    call(|| {
        let network = network.get()?;
        let layer = layer.check("layer")?;
        let value = constant(data_type, &dims, &weights, byte_len)?;
        let mut description = network.network.write()?;
        let output = description.add_constant_buffer(value)?;
        layer.set(network.layer_of(&description, output)?);
        Ok(())
    })
}

/// The value of a constant.
fn constant(data_type: i32, dims: &InPointer<CDims>, weights: &ConstVoidPointer, byte_len: usize) -> Result<Buffer> {
    let data_type = self::data_type(data_type)?;
    let shape = dims.get("dims")?.to_shape()?;
    let wanted = shape.byte_len(data_type);
    if wanted != byte_len {
        let message = format!("{data_type} {shape} has {wanted} bytes, and not {byte_len}");
        return Err(Error::new(ErrorKind::InvalidBuffer, message).into());
    }
    let mut value = Buffer::zeroed(data_type, shape)?;
    value.write(0, weights.get("weights", byte_len)?)?;
    Ok(value)
}
