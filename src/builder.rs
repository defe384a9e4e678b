//! From a network to an engine.

use crate::engine::Engine;
use crate::error::Result;
use crate::network::Network;

/// Builds engines: TensorRT's `IBuilder`.
#[derive(Clone, Debug, Default)]
pub struct Builder {}

impl Builder {
    /// A builder.
    pub fn new() -> Self {
        Builder::default()
    }

    /// Validates a network, plans its memory and gives an immutable engine. What is allowed but
    /// deserves a second look goes to the log and to [`Engine::warnings`].
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`](crate::ErrorKind::InvalidNetwork) with *all* mistakes, each naming its
    /// layer and rule; see [`Error::mistakes`](crate::Error::mistakes). A mistake that only follows
    /// from another is left out.
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
