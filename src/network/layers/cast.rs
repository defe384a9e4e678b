//! The Cast layer: TensorRT's `ICastLayer`.

use serde::{Deserialize, Serialize};

use super::{LayerBody, LayerOp, LayerRun};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::error::Result;
use crate::network::{Network, TensorId};

/// See [`Network::add_cast`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct CastLayer {
    /// The type to convert to.
    pub to: DataType,
}

impl LayerOp for CastLayer {
    fn kind(&self) -> &str {
        "cast"
    }

    fn output_types(&self, _inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![self.to])
    }

    fn works_in_place(&self, input: DataType) -> bool {
        self.to.byte_len() == input.byte_len()
    }

    fn kernels(&self, inputs: &[DataType]) -> Result<Vec<Kernel>> {
        Ok(Kernel::of_cast(inputs[0], self.to).into_iter().collect())
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let (input, output) = (run.input(0), run.output());
        // SAFETY: the caller's promise; in place only between types of one size.
        unsafe { run.executor.cast(input.data_type, input.address, self.to, output.address, input.element_count()) }
    }
}

impl Network {
    /// Adds a Cast layer, which converts every element to `to`:
    /// - to a float, rounding to nearest even; to float8, saturating too;
    /// - from a float to an integer, truncating and saturating, and NaN to 0;
    /// - to a narrower integer, wrapping;
    /// - to bool, whether it is not zero.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn add_cast(&mut self, input: TensorId, to: DataType) -> Result<TensorId> {
        self.add_layer(LayerBody::Cast(CastLayer { to }), &[input])
    }
}
