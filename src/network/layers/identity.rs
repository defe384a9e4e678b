//! The Identity layer: TensorRT's `IIdentityLayer`.

use serde::{Deserialize, Serialize};

use super::{LayerBody, LayerOp, LayerRun};
use crate::data_type::DataType;
use crate::error::Result;
use crate::network::{Network, TensorId};

/// See [`Network::add_identity`].
#[derive(Clone, Debug, Serialize, Deserialize)]
#[non_exhaustive]
pub struct IdentityLayer {}

impl LayerOp for IdentityLayer {
    fn kind(&self) -> &str {
        "identity"
    }

    fn works_in_place(&self, _input: DataType) -> bool {
        true
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let (input, output) = (run.input(0), run.output());
        // SAFETY: the caller's promise; input and output may be the same.
        unsafe { run.executor.copy(input.located(), output.located(), input.byte_len, run.deadline) }
    }
}

impl Network {
    /// Adds an Identity layer, which copies its input: TensorRT's `addIdentity`. TensorRT's layer
    /// also converts, if its output is given another type. Here [`add_cast`](Self::add_cast) does
    /// that, and an Identity layer changes no byte.
    ///
    /// # Errors
    ///
    /// The network does not have the tensor.
    pub fn add_identity(&mut self, input: TensorId) -> Result<TensorId> {
        self.add_layer(LayerBody::Identity(IdentityLayer {}), &[input])
    }
}
