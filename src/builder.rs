//! From a network to an engine.

use crate::engine::Engine;
use crate::error::Result;
use crate::network::Network;

/// Builds engines: TensorRT's `IBuilder`.
///
/// ```
/// use distcollective::{Builder, DataType, DistCollective, ErrorKind, Network, ReduceOperation};
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float32, [10, 8])?;
/// let sum = DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(4).named("grad_sync");
/// let y = network.add(sum, x)?;
/// network.mark_output(y, "y")?;
/// let error = Builder::new().build(&network).unwrap_err();
/// assert_eq!(error.kind(), ErrorKind::InvalidNetwork);
/// assert!(error.to_string().contains("dimension 0 is 10, which is not a multiple of 4 ranks"));
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Builder {}

impl Builder {
    /// A builder.
    pub fn new() -> Self {
        Builder::default()
    }

    /// Validates a network and plans its memory. What is allowed but may be a mistake goes to the
    /// log and to [`Engine::warnings`].
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`](crate::ErrorKind::InvalidNetwork) with all mistakes. Each names its layer
    /// and rule; see [`Error::mistakes`](crate::Error::mistakes). A mistake that only follows from
    /// another is left out.
    pub fn build(&self, network: &Network) -> Result<Engine> {
        let engine = Engine::new(network.clone())?;
        crate::util::log::event!(
            DEBUG,
            "an engine of {} layers, plan {}",
            network.layers().count(),
            engine.fingerprint()
        );
        for warning in engine.warnings() {
            crate::util::log::event!(WARN, "{warning}");
        }
        Ok(engine)
    }
}
