//! The Constant layer: TensorRT's `IConstantLayer`.

use std::sync::Arc;

use super::{LayerBody, LayerOp, LayerRun};
use crate::data_type::DataType;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::network::{Network, TensorId};
use crate::shape::{Dims, Shape};

/// See [`Network::add_constant`].
#[derive(Clone, Debug)]
pub struct ConstantLayer {
    /// The value. Another one may have another type and shape.
    pub value: Arc<Buffer>,
}

impl LayerOp for ConstantLayer {
    fn kind(&self) -> &str {
        "constant"
    }

    fn has_arity(&self, inputs: usize, outputs: usize) -> bool {
        (inputs, outputs) == (0, 1)
    }

    fn output_types(&self, _inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![self.value.data_type()])
    }

    fn output_shapes(&self, _inputs: &[&Shape]) -> Result<Vec<Shape>> {
        Ok(vec![self.value.shape()])
    }

    fn constant(&self) -> Option<&Buffer> {
        Some(&self.value)
    }

    unsafe fn run(&self, _run: &LayerRun<'_>) -> Result<()> {
        Ok(())
    }
}

impl Network {
    /// Adds a constant with a copy of `elements`.
    ///
    /// # Errors
    ///
    /// The product of the dimensions is not the number of elements.
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
    /// At present the call always succeeds.
    pub fn add_constant_buffer(&mut self, buffer: Buffer) -> Result<TensorId> {
        self.add_layer(LayerBody::Constant(ConstantLayer { value: Arc::new(buffer) }), &[])
    }
}
