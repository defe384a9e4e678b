//! The order of the layers, and which layers read a tensor.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::{LayerId, Network, TensorId, TensorSource};
use crate::error::{Error, error};

/// The layers that read each tensor, in the order in which they are given.
#[derive(Debug)]
pub(crate) struct Readers {
    /// For each tensor where its layers begin, and the end of the last.
    starts: Vec<u32>,
    layers: Vec<LayerId>,
}

impl Readers {
    pub(crate) fn new(network: &Network, layers: &[LayerId]) -> Self {
        let inputs = |id: &LayerId| {
            let id = *id;
            network.layers[id.index()].inputs.iter().map(move |input| (input.index() as u32, id))
        };
        let mut reads: Vec<(u32, LayerId)> = layers.iter().flat_map(inputs).collect();
        // A layer that the caller has copied in from another network may name tensors that do not
        // exist here. Building refuses it.
        reads.retain(|(tensor, _)| (*tensor as usize) < network.tensors.len());
        reads.sort_by_key(|(tensor, _)| *tensor);
        let mut starts = vec![0; network.tensors.len() + 1];
        reads.iter().for_each(|(tensor, _)| starts[*tensor as usize + 1] += 1);
        for tensor in 0..network.tensors.len() {
            starts[tensor + 1] += starts[tensor];
        }
        Readers { starts, layers: reads.into_iter().map(|(_, id)| id).collect() }
    }

    pub(crate) fn of(&self, tensor: TensorId) -> &[LayerId] {
        let [start, end] = [0, 1].map(|more| self.starts.get(tensor.index() + more).map_or(0, |start| *start as usize));
        self.layers.get(start..end).unwrap_or_default()
    }
}

impl Network {
    /// The layers, each after those it depends on, and otherwise in the order of their addition.
    /// Layers that wait for each other in a cycle are left out: a mistake.
    pub(crate) fn schedule(&self, mistakes: &mut Vec<Error>) -> Vec<LayerId> {
        let ids: Vec<LayerId> = self.layers().map(|(id, _)| id).collect();
        let is_computed = |input: &&TensorId| {
            self.tensors.get(input.index()).is_some_and(|t| matches!(t.source, TensorSource::Layer { .. }))
        };
        let mut waits_for: Vec<usize> =
            self.layers.iter().map(|layer| layer.inputs.iter().filter(is_computed).count()).collect();
        let readers = Readers::new(self, &ids);
        let mut ready: BinaryHeap<Reverse<LayerId>> =
            ids.iter().filter(|id| waits_for[id.index()] == 0).map(|id| Reverse(*id)).collect();
        let mut order = Vec::with_capacity(ids.len());
        while let Some(Reverse(id)) = ready.pop() {
            order.push(id);
            for follower in self.layers[id.index()].outputs.iter().flat_map(|output| readers.of(*output)) {
                let waits = &mut waits_for[follower.index()];
                // A layer that was copied computes a tensor twice. Building refuses it.
                if *waits == 1 {
                    ready.push(Reverse(*follower));
                }
                *waits = waits.saturating_sub(1);
            }
        }
        let stuck = self.layers.iter().zip(&waits_for).filter(|(_, waits)| **waits > 0);
        let stuck: Vec<String> = stuck.map(|(layer, _)| format!("{:?}", layer.name())).collect();
        if !stuck.is_empty() {
            mistakes.push(error!(InvalidNetwork, "layers wait for each other in a cycle: {}", stuck.join(", ")));
        }
        order
    }
}
