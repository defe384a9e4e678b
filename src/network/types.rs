//! The types of tensors while a network is described. Every tensor has its type with it, and a
//! change of a layer is looked at once, so that adding a layer takes the same time in a long chain
//! as in a short one.

use std::collections::HashSet;

use super::{LayerId, Network, Tensor, TensorId, TensorSource};
use crate::data_type::DataType;
use crate::error::{Error, bail};
use crate::util::text::count_of;

impl Network {
    /// Looks at the layer that the caller was given to change: its name, and whether its outputs
    /// have the types that they had.
    pub(super) fn settle(&mut self) {
        if let Some(layer) = self.handed_out.take() {
            self.note_name(layer);
            self.types_are_stale |= !self.has_known_types(layer);
        }
    }

    /// Brings the types of all tensors up to date.
    pub(super) fn refresh_types(&mut self) {
        self.settle();
        if self.types_are_stale {
            let (types, has_cycle) = self.infer_types();
            self.tensors.iter_mut().zip(types).for_each(|(tensor, data_type)| tensor.data_type = data_type);
            // In a cycle, a type depends on where the inference begins.
            self.types_are_stale = has_cycle;
        }
    }

    /// The type of a tensor, from the layers' current attributes. If a cycle or a mistake prevents
    /// that, it is the type that the tensor had before.
    pub(super) fn current_type(&self, tensor: TensorId) -> DataType {
        if self.types_are_stale || self.handed_out.is_some_and(|layer| !self.has_known_types(layer)) {
            return self.infer_types().0[tensor.index()];
        }
        self.tensors[tensor.index()].data_type
    }

    /// Whether the outputs of a layer have the types that are stored.
    fn has_known_types(&self, layer: LayerId) -> bool {
        let layer = &self.layers[layer.index()];
        let stored = |tensor: &TensorId| self.tensors.get(tensor.index()).map(|tensor| tensor.data_type);
        let inputs: Option<Vec<DataType>> = layer.inputs.iter().map(stored).collect();
        let inputs = inputs.filter(|_| layer.has_right_arity());
        let types = inputs.and_then(|inputs| layer.body.output_types(&inputs).ok());
        types.is_none_or(|types| layer.outputs.iter().map(stored).eq(types.into_iter().map(Some)))
    }

    /// The types of all tensors, and whether layers wait for each other in a cycle. They come last.
    fn infer_types(&self) -> (Vec<DataType>, bool) {
        let mut order = self.schedule(&mut Vec::new());
        let has_cycle = order.len() < self.layers.len();
        if has_cycle {
            let known: HashSet<LayerId> = order.iter().copied().collect();
            order.extend(self.layers().map(|(id, _)| id).filter(|id| !known.contains(id)));
        }
        let known = self.tensors.iter().map(|tensor| Some(tensor.data_type)).collect();
        (self.types_from(&order, known, drop).into_iter().flatten().collect(), has_cycle)
    }

    /// The types of the tensors that layers compute in this order, beside those that are known.
    /// A layer that reads a tensor without a type is not checked: its mistakes would follow from
    /// another one. `report` gets the others.
    pub(crate) fn types_from(
        &self,
        order: &[LayerId],
        mut types: Vec<Option<DataType>>,
        mut report: impl FnMut(Error),
    ) -> Vec<Option<DataType>> {
        for &id in order {
            let layer = &self.layers[id.index()];
            // A layer that the caller has copied in from another network may name tensors that do
            // not exist here. Building refuses it.
            let inputs: Option<Vec<DataType>> =
                layer.inputs.iter().map(|t| types.get(t.index()).copied().flatten()).collect();
            let Some(inputs) = inputs.filter(|_| layer.has_right_arity()) else { continue };
            let found = layer.body.output_types(&inputs).and_then(|found| {
                let then = layer.outputs.len();
                if found.len() != then {
                    let now = count_of(found.len(), "output");
                    bail!(InvalidNetwork, "the plugin has {now} now and had {then} when it was added");
                }
                Ok(found)
            });
            let found = found.unwrap_or_else(|error| {
                report(error.about(|| layer.subject()));
                Vec::new()
            });
            for (tensor, data_type) in layer.outputs.iter().zip(found) {
                let is_own =
                    |tensor: &Tensor| matches!(tensor.source, TensorSource::Layer { layer, .. } if layer == id);
                if self.tensors.get(tensor.index()).is_some_and(is_own) {
                    types[tensor.index()] = Some(data_type);
                }
            }
        }
        types
    }
}
