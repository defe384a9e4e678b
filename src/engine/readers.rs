//! Which layers read a tensor.

use crate::network::{LayerId, Network, TensorId};

/// The layers that read each tensor, in the order in which they are given.
#[derive(Debug)]
pub(crate) struct Readers {
    /// For each tensor where its layers begin, and the end of the last.
    starts: Vec<u32>,
    layers: Vec<LayerId>,
}

impl Readers {
    pub(super) fn new(network: &Network, layers: &[LayerId]) -> Self {
        let inputs = |id: &LayerId| {
            let id = *id;
            network.layers[id.index()].inputs.iter().map(move |input| (input.index() as u32, id))
        };
        let mut reads: Vec<(u32, LayerId)> = layers.iter().flat_map(inputs).collect();
        reads.sort_by_key(|(tensor, _)| *tensor);
        let mut starts = vec![0; network.tensors.len() + 1];
        reads.iter().for_each(|(tensor, _)| starts[*tensor as usize + 1] += 1);
        for tensor in 0..network.tensors.len() {
            starts[tensor + 1] += starts[tensor];
        }
        Readers { starts, layers: reads.into_iter().map(|(_, id)| id).collect() }
    }

    pub(crate) fn of(&self, tensor: TensorId) -> &[LayerId] {
        let [start, end] = [0, 1].map(|more| self.starts[tensor.index() + more] as usize);
        &self.layers[start..end]
    }
}
