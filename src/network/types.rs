//! The types of tensors while a network is described. Every tensor has its type with it, and a
//! change of a layer is looked at once, so that adding a layer takes the same time in a long chain
//! as in a short one.

use super::{Layer, LayerId, Network, Source, TensorId};
use crate::data_type::DataType;

impl Network {
    /// Remembers a layer that the caller may change.
    pub(super) fn hand_out(&mut self, layer: LayerId) -> &mut Layer {
        self.settle();
        self.handed_out = Some(layer);
        &mut self.layers[layer.index()]
    }

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
            let (types, has_cycle) = self.infer_types((0..self.tensors.len()).rev().collect());
            for (tensor, data_type) in self.tensors.iter_mut().zip(types) {
                tensor.data_type = data_type.unwrap_or(tensor.data_type);
            }
            // In a cycle, a type depends on where the inference begins.
            self.types_are_stale = has_cycle;
        }
    }

    /// The type of a tensor, from the layers' current attributes. If a cycle or a mistake prevents
    /// that, it is the type that the tensor had before.
    pub(super) fn current_type(&self, tensor: TensorId) -> DataType {
        let stored = self.tensors[tensor.index()].data_type;
        if !self.types_are_stale && self.handed_out.is_none_or(|layer| self.has_known_types(layer)) {
            return stored;
        }
        let (types, _) = self.infer_types(vec![tensor.index()]);
        types[tensor.index()].unwrap_or(stored)
    }

    /// Whether the outputs of a layer have the types that are stored.
    fn has_known_types(&self, layer: LayerId) -> bool {
        let layer = &self.layers[layer.index()];
        let stored = |tensor: &TensorId| self.tensors.get(tensor.index()).map(|tensor| tensor.data_type);
        let inputs: Option<Vec<DataType>> = layer.inputs.iter().map(stored).collect();
        let types = inputs.and_then(|inputs| layer.output_types(&inputs));
        types.is_none_or(|types| layer.outputs.iter().map(stored).eq(types.into_iter().map(Some)))
    }

    /// The types of these tensors and of those that they depend on, and whether there is a cycle.
    /// This is a loop, because a recursion over a long chain of layers would overflow the stack.
    fn infer_types(&self, mut path: Vec<usize>) -> (Vec<Option<DataType>>, bool) {
        let mut known = vec![None; self.tensors.len()];
        let mut is_open = vec![false; self.tensors.len()];
        let mut has_cycle = false;
        while let Some(&last) = path.last() {
            is_open[last] = true;
            let tensor = &self.tensors[last];
            let current = match tensor.source {
                Source::Input(_) => tensor.data_type,
                Source::Layer { layer, port } => {
                    let layer = &self.layers[layer.index()];
                    // A layer that the caller has copied in from another network may name tensors
                    // that do not exist here. The builder refuses it.
                    let exists = |input: &usize| *input < self.tensors.len();
                    let inputs = || layer.inputs.iter().map(|input| input.index()).filter(exists);
                    let is_foreign = inputs().count() < layer.inputs.len();
                    if let Some(next) = inputs().find(|&input| known[input].is_none() && !is_open[input]) {
                        path.push(next);
                        continue;
                    }
                    // An input that is open and not known is further down the path.
                    has_cycle |= known[last].is_none() && inputs().any(|input| known[input].is_none());
                    let inputs: Vec<DataType> =
                        inputs().map(|input| known[input].unwrap_or(self.tensors[input].data_type)).collect();
                    let types = if is_foreign { None } else { layer.output_types(&inputs) };
                    types.and_then(|types| types.get(port as usize).copied()).unwrap_or(tensor.data_type)
                }
            };
            known[last] = Some(current);
            path.pop();
        }
        (known, has_cycle)
    }
}
