//! A layer of a network: its name, its inputs and outputs, and what it is.

use super::LayerBody;
use crate::dist_collective::{DistCollectiveLayer, Info};
use crate::error::{Result, bail, error};
use crate::network::TensorId;
use crate::util::text::on_one_line;

/// A layer of a network, of any kind.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Name and metadata, unless `body` has them: a DistCollective layer also stands by itself.
    pub(crate) info: Info,
    pub(crate) inputs: Vec<TensorId>,
    pub(crate) outputs: Vec<TensorId>,
    pub(crate) body: LayerBody,
}

impl From<DistCollectiveLayer> for Layer {
    /// A layer of no network: it has no inputs and outputs.
    fn from(layer: DistCollectiveLayer) -> Self {
        Layer { info: Info::default(), inputs: Vec::new(), outputs: Vec::new(), body: LayerBody::DistCollective(layer) }
    }
}

impl Layer {
    /// Whether the layer has as many inputs and outputs as its kind needs.
    pub(crate) fn has_right_arity(&self) -> bool {
        self.body.op().has_arity(self.inputs.len(), self.outputs.len())
    }

    fn info(&self) -> &Info {
        self.collective().map_or(&self.info, |layer| &layer.info)
    }

    fn info_mut(&mut self) -> &mut Info {
        match &mut self.body {
            LayerBody::DistCollective(layer) => &mut layer.info,
            _ => &mut self.info,
        }
    }

    /// `layer "grad_sync" (all_reduce)`: what errors are about.
    pub fn subject(&self) -> String {
        format!("layer {:?} ({})", self.name(), on_one_line(self.kind()))
    }

    /// What kind of layer it is: `all_reduce` and the other operations, `shuffle`, `cast`,
    /// `elementwise`, `concatenation`, `slice`, `identity`, `constant`, or the
    /// [`type_name`](super::Plugin::type_name) of a plugin.
    pub fn kind(&self) -> &str {
        self.body.kind()
    }

    /// The name, which error messages and `inspect` use.
    pub fn name(&self) -> &str {
        &self.info().name
    }

    /// Sets the name. Layers of a network have different names.
    pub fn set_name(&mut self, name: impl Into<String>) {
        self.info_mut().name = name.into();
    }

    /// Text of the user's, which is kept with the layer and has no effect.
    pub fn metadata(&self) -> &str {
        &self.info().metadata
    }

    /// Sets the metadata.
    pub fn set_metadata(&mut self, metadata: impl Into<String>) {
        self.info_mut().metadata = metadata.into();
    }

    /// The number of ranks. It is 1 for a layer that is no collective, and for a collective without
    /// groups whose number is not set.
    pub fn nb_rank(&self) -> u32 {
        self.collective().map_or(1, DistCollectiveLayer::rank_count)
    }

    /// Sets the number of ranks; see [`DistCollectiveLayer::set_nb_rank`].
    ///
    /// # Errors
    ///
    /// `nb_rank` is 0, or more than 1 for a layer that is not a collective.
    pub fn set_nb_rank(&mut self, nb_rank: u32) -> Result<()> {
        match &mut self.body {
            LayerBody::DistCollective(layer) => layer.set_nb_rank(nb_rank),
            _ if nb_rank == 1 => Ok(()),
            _ => {
                Err(error!(InvalidArgument, "nb_rank is {nb_rank}; only a DistCollective layer has more than one rank")
                    .about(|| self.subject()))
            }
        }
    }

    /// What the layer is.
    pub fn body(&self) -> &LayerBody {
        &self.body
    }

    /// What the layer is, to change its attributes.
    pub fn body_mut(&mut self) -> &mut LayerBody {
        &mut self.body
    }

    /// The DistCollective layer, to read its attributes.
    ///
    /// # Errors
    ///
    /// The layer is of another kind.
    pub fn as_dist_collective(&self) -> Result<&DistCollectiveLayer> {
        let other = || error!(InvalidArgument, "{} is not a DistCollective layer", self.subject());
        self.collective().ok_or_else(other)
    }

    /// The DistCollective layer, if it is one.
    pub(crate) fn collective(&self) -> Option<&DistCollectiveLayer> {
        match &self.body {
            LayerBody::DistCollective(layer) => Some(layer),
            _ => None,
        }
    }

    /// The DistCollective layer, to change its attributes.
    ///
    /// # Errors
    ///
    /// The layer is of another kind.
    pub fn as_dist_collective_mut(&mut self) -> Result<&mut DistCollectiveLayer> {
        let subject = self.subject();
        match &mut self.body {
            LayerBody::DistCollective(layer) => Ok(layer),
            _ => bail!(InvalidArgument, "{subject} is not a DistCollective layer"),
        }
    }

    /// The tensors that the layer reads.
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// The tensors that the layer computes.
    pub fn outputs(&self) -> &[TensorId] {
        &self.outputs
    }
}
