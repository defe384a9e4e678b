//! ElementWise, Concatenation, Slice and Identity layers: adding them, and their attributes.

use dcl::network::{ConcatenationLayer, ElementWiseLayer, ElementWiseOperation, LayerBody, SliceLayer, TensorId};

use super::arguments::{CDims, InPointer, OutPointer};
use super::handle::Handle;
use super::layer::is_not;
use super::network_objects::{CLayer, CNetwork, CTensor};
use super::status::{CallError, Result, Status, call};

/// Parses the number of a dimension.
fn axis(number: i32) -> Result<usize> {
    usize::try_from(number)
        .map_err(|_| CallError::invalid_argument(format!("axis is {number}; dimensions are counted from 0 on")))
}

impl CLayer {
    fn read_elementwise<R>(&self, act: impl FnOnce(&ElementWiseLayer) -> R) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::ElementWise(layer) => Ok(act(layer)),
            _ => Err(is_not(layer, "an ElementWise layer")),
        })
    }

    fn read_concatenation<R>(&self, act: impl FnOnce(&ConcatenationLayer) -> R) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Concatenation(layer) => Ok(act(layer)),
            _ => Err(is_not(layer, "a Concatenation layer")),
        })
    }

    fn read_slice<R>(&self, act: impl FnOnce(&SliceLayer) -> R) -> Result<R> {
        self.read(|layer| match layer.body() {
            LayerBody::Slice(layer) => Ok(act(layer)),
            _ => Err(is_not(layer, "a Slice layer")),
        })
    }

    fn change_slice(&self, act: impl FnOnce(&mut SliceLayer) -> dcl::Result<()>) -> Result<()> {
        self.change(|layer| match layer.body_mut() {
            LayerBody::Slice(layer) => Ok(act(layer)?),
            _ => Err(is_not(layer, "a Slice layer")),
        })
    }
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
extern "C" fn dcl_elementwise_get_operation(layer: Handle<CLayer>, operation: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, operation.check("operation")?);
        operation.set(layer.read_elementwise(|layer| layer.operation.number())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_elementwise_set_operation(layer: Handle<CLayer>, operation: i32) -> Status {
    call(|| {
        let (layer, operation) = (layer.get()?, ElementWiseOperation::from_number(operation)?);
        layer.change(|layer| match layer.body_mut() {
            LayerBody::ElementWise(layer) => {
                layer.operation = operation;
                Ok(())
            }
            _ => Err(is_not(layer, "an ElementWise layer")),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_concatenation_get_axis(layer: Handle<CLayer>, axis: OutPointer<i32>) -> Status {
    call(|| {
        let (layer, axis) = (layer.get()?, axis.check("axis")?);
        axis.set(layer.read_concatenation(|layer| layer.axis() as i32)?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_concatenation_set_axis(layer: Handle<CLayer>, axis: i32) -> Status {
    call(|| {
        let (layer, axis) = (layer.get()?, self::axis(axis)?);
        layer.change(|layer| match layer.body_mut() {
            LayerBody::Concatenation(layer) => Ok(layer.set_axis(axis)?),
            _ => Err(is_not(layer, "a Concatenation layer")),
        })
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_get_start(layer: Handle<CLayer>, start: OutPointer<CDims>) -> Status {
    call(|| {
        let (layer, start) = (layer.get()?, start.check("start")?);
        start.set(layer.read_slice(|slice| slice.start().into())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_set_start(layer: Handle<CLayer>, start: InPointer<CDims>) -> Status {
    call(|| {
        let (layer, start) = (layer.get()?, start.get("start")?);
        let start = start.as_slice()?;
        layer.change_slice(|slice| slice.set_start(start))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_get_size(layer: Handle<CLayer>, size: OutPointer<CDims>) -> Status {
    call(|| {
        let (layer, size) = (layer.get()?, size.check("size")?);
        size.set(layer.read_slice(|slice| slice.size().into())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_set_size(layer: Handle<CLayer>, size: InPointer<CDims>) -> Status {
    call(|| {
        let (layer, size) = (layer.get()?, size.get("size")?);
        let size = size.as_slice()?;
        layer.change_slice(|slice| slice.set_size(size))
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_get_stride(layer: Handle<CLayer>, stride: OutPointer<CDims>) -> Status {
    call(|| {
        let (layer, stride) = (layer.get()?, stride.check("stride")?);
        stride.set(layer.read_slice(|slice| slice.stride().into())?);
        Ok(())
    })
}

#[unsafe(no_mangle)]
extern "C" fn dcl_slice_set_stride(layer: Handle<CLayer>, stride: InPointer<CDims>) -> Status {
    call(|| {
        let (layer, stride) = (layer.get()?, stride.get("stride")?);
        let stride = stride.as_slice()?;
        layer.change_slice(|slice| slice.set_stride(stride))
    })
}
