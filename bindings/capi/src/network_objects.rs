//! The objects behind the handles of a network: itself, its tensors and its layers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use dcl::network::{Layer, LayerId, TensorId};
use dcl::{DistCollectiveLayer, Network};

use super::handle::{Handle, Object, TryRwLock};
use super::status::{CallError, Result, Status, lock};

/// `dcl_network_t`.
#[derive(Default)]
pub(super) struct CNetwork {
    pub(super) network: TryRwLock<Network, CNetwork>,
    /// No call holds this lock while it works, so freeing does not wait for calls.
    pub(super) children: Mutex<Children>,
}

/// The handles of a network's tensors and layers. Each holds the network.
#[derive(Default)]
pub(super) struct Children {
    pub(super) tensors: HashMap<TensorId, Handle<CTensor>>,
    pub(super) layers: HashMap<LayerId, Handle<CLayer>>,
    pub(super) is_freed: bool,
}

impl Object for CNetwork {
    const TYPE: &'static str = "dcl_network_t";
}

/// `dcl_tensor_t`: a tensor of a network.
pub(super) struct CTensor {
    pub(super) network: Arc<CNetwork>,
    pub(super) id: TensorId,
}

impl Object for CTensor {
    const TYPE: &'static str = "dcl_tensor_t";
}

impl CNetwork {
    /// The tensor's id, if it belongs to this network.
    pub(super) fn own_tensor(self: &Arc<Self>, tensor: Handle<CTensor>) -> Result<TensorId> {
        let tensor = tensor.get()?;
        match Arc::ptr_eq(&tensor.network, self) {
            true => Ok(tensor.id),
            false => Err(CallError::invalid_argument("the tensor is one of another network")),
        }
    }

    /// The handle of a tensor. Each call returns the same one.
    pub(super) fn tensor(self: &Arc<Self>, id: TensorId) -> Handle<CTensor> {
        let Children { tensors, is_freed, .. } = &mut *lock(&self.children);
        *tensors.entry(id).or_insert_with(|| new_child(CTensor { network: Arc::clone(self), id }, *is_freed))
    }

    /// The handle of a layer. Each call returns the same one.
    pub(super) fn layer(self: &Arc<Self>, id: LayerId) -> Handle<CLayer> {
        let Children { layers, is_freed, .. } = &mut *lock(&self.children);
        *layers.entry(id).or_insert_with(|| new_child(CLayer::of_network(Arc::clone(self), id), *is_freed))
    }

    /// The handle of the layer that computes a tensor.
    pub(super) fn layer_of(self: &Arc<Self>, network: &Network, tensor: TensorId) -> Result<Handle<CLayer>> {
        match network.producer(tensor)? {
            Some(layer) => Ok(self.layer(layer)),
            None => Err(CallError::new(Status::INTERNAL, "no layer computes the output of a layer")),
        }
    }
}

/// Creates the handle of a tensor or layer. If the network was freed during this call, the handle
/// is freed too, as if the caller had freed the network a moment later.
fn new_child<T: Object>(object: T, is_freed: bool) -> Handle<T> {
    let handle = Handle::new(object);
    if is_freed {
        // This cannot fail: the handle was added above.
        let _ = handle.free();
    }
    handle
}

/// `dcl_layer_t`.
pub(super) struct CLayer {
    pub(super) owner: Owner,
}

/// The owner of a layer.
pub(super) enum Owner {
    Network(Arc<CNetwork>, LayerId),
    /// The layer belongs to no network. It has no inputs and outputs.
    Handle(Box<TryRwLock<Layer, CLayer>>),
}

impl Object for CLayer {
    const TYPE: &'static str = "dcl_layer_t";
}

impl CLayer {
    pub(super) fn of_network(network: Arc<CNetwork>, id: LayerId) -> Self {
        CLayer { owner: Owner::Network(network, id) }
    }

    pub(super) fn without_network(layer: DistCollectiveLayer) -> Self {
        CLayer { owner: Owner::Handle(Box::new(TryRwLock::new(layer.into()))) }
    }

    /// Calls `act` with the layer.
    pub(super) fn read<R>(&self, act: impl FnOnce(&Layer) -> Result<R>) -> Result<R> {
        match &self.owner {
            Owner::Network(network, id) => act(network.network.read()?.layer(*id)?),
            Owner::Handle(layer) => act(&*layer.read()?),
        }
    }

    /// Calls `act` with the layer, to change it.
    pub(super) fn change(&self, act: impl FnOnce(&mut Layer) -> Result<()>) -> Result<()> {
        match &self.owner {
            Owner::Network(network, id) => act(network.network.write()?.layer_mut(*id)?),
            Owner::Handle(layer) => act(&mut *layer.write()?),
        }
    }

    /// The network that owns the layer.
    pub(super) fn network(&self) -> Result<(&Arc<CNetwork>, LayerId)> {
        match &self.owner {
            Owner::Network(network, id) => Ok((network, *id)),
            Owner::Handle(_) => {
                Err(CallError::invalid_argument("the layer belongs to no network, so it has no inputs and outputs"))
            }
        }
    }
}
