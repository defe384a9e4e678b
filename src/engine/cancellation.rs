//! Shuffles that undo each other around layers that work element by element. Such layers give the
//! same elements in whatever order they are, so that neither Shuffle has to move any.
//!
//! Everything that a caller or a peer sees stays as it was described: tensors, shapes, calls. Only
//! the order of elements in memory inside the network is another one. All ranks of a collective
//! need the same order, so they compare it ([`Cancellation::order_of_elements`]), and run all
//! shuffles if it differs.

use sha2::{Digest, Sha256};

use super::analysis::Readers;
use super::inference::Extent;
use crate::collective::Mark;
use crate::dist_collective::{ElementOrder, ResolvedLayer};
use crate::network::{LayerBody, LayerId, Network, Shuffle, Source, TensorId};

/// Which shuffles of a network move nothing.
#[derive(Clone, Debug)]
pub(crate) struct Cancellation {
    /// For each layer, whether it is a Shuffle that moves nothing.
    is_canceled: Vec<bool>,
    /// For each tensor, the tensor in whose memory it is: another one if it is the output of a
    /// Shuffle that does not run.
    holders: Vec<TensorId>,
    /// The shuffles that do not run, each with the one that it undoes or that undoes it.
    pub(super) pairs: Vec<[LayerId; 2]>,
    /// The order in which the collectives find elements, if it is not the one that was described.
    pub(crate) order_of_elements: Option<ElementOrder>,
    /// The same for each layer's call alone.
    marks: Vec<Option<Mark>>,
}

impl Cancellation {
    /// All shuffles run.
    pub(super) fn none(network: &Network) -> Self {
        Cancellation {
            is_canceled: vec![false; network.layers.len()],
            holders: (0..network.tensors.len()).map(|index| TensorId::new(network.number, index)).collect(),
            pairs: Vec::new(),
            order_of_elements: None,
            marks: vec![None; network.layers.len()],
        }
    }

    /// Finds the shuffles that undo each other. `order` has each layer after those it depends on.
    pub(super) fn find(
        network: &Network,
        order: &[LayerId],
        extents: &[Extent],
        collectives: &[Option<ResolvedLayer>],
        readers: &Readers,
    ) -> Self {
        let mut found = Cancellation::none(network);
        // The last Shuffle before each tensor that is not undone, if layers that work element by
        // element lead from it to the tensor. Its own input leads to the one before.
        let mut open: Vec<Option<LayerId>> = vec![None; network.tensors.len()];
        // The next layer may see a tensor's elements in another order if no other sees them.
        let before = |open: &[Option<LayerId>], tensor: TensorId| {
            let is_inside = network.tensors[tensor.index()].output.is_none() && readers.of(tensor).len() == 1;
            open[tensor.index()].filter(|_| is_inside)
        };
        let input_of = |shuffle: LayerId| network.layers[shuffle.index()].inputs[0];
        let dims_are_known = dims_follow_from_points(network);
        // The dimensions of a Shuffle's input. `None` is one that may vary.
        let dims_before = |shuffle: LayerId| {
            let Extent { min, max, .. } = &extents[input_of(shuffle).index()];
            let dims = min.as_slice().iter().zip(max.as_slice());
            dims.map(|(&min, &max)| (dims_are_known && min == max).then_some(min)).collect::<Vec<_>>()
        };
        let is_undone = |shuffle: LayerId, by: &Shuffle| match &network.layers[shuffle.index()].body {
            LayerBody::Shuffle(layer) => layer.shuffle.is_undone_by(by, &dims_before(shuffle)),
            _ => false,
        };
        // Ranks of a collective compare how many elements they have. That has to decide the
        // dimensions, and with them the order of elements. (A Shuffle that is undone has as many
        // dimensions that vary behind it as before it, so that the last one tells for all.)
        let count_decides_dims =
            |shuffle: &LayerId| dims_before(*shuffle).iter().filter(|dim| dim.is_none()).count() <= 1;
        for &id in order {
            let layer = &network.layers[id.index()];
            let ([input], [output]) = (&layer.inputs[..], &layer.outputs[..]) else { continue };
            let last = before(&open, *input);
            open[output.index()] = match &layer.body {
                LayerBody::Shuffle(layer) => match last.filter(|last| is_undone(*last, &layer.shuffle)) {
                    Some(last) => {
                        found.pairs.push([last, id]);
                        [last, id].iter().for_each(|shuffle| found.is_canceled[shuffle.index()] = true);
                        before(&open, input_of(last))
                    }
                    None => Some(id),
                },
                LayerBody::Cast(_) | LayerBody::Identity(_) => last,
                LayerBody::DistCollective(_) => match &collectives[id.index()] {
                    Some(layer) if layer.is_identity() => last,
                    Some(layer) if works_element_by_element(layer) => last.filter(count_decides_dims),
                    _ => None,
                },
                _ => None,
            };
        }
        found.share_memory(network, order, collectives);
        found.note_order(network, order, extents, collectives, |tensor| before(&open, tensor));
        found
    }

    /// Gives the outputs of canceled shuffles the memory of their inputs, where that is possible.
    fn share_memory(&mut self, network: &Network, order: &[LayerId], collectives: &[Option<ResolvedLayer>]) {
        let mut has_output: Vec<bool> = network.tensors.iter().map(|tensor| tensor.output.is_some()).collect();
        for &id in order.iter().filter(|id| self.is_canceled[id.index()]) {
            let layer = &network.layers[id.index()];
            let (holder, output) = (self.holder(layer.inputs[0]), layer.outputs[0]);
            if network.tensors[output.index()].output.is_some() {
                // The holder is then computed in the caller's memory. A rank that does not write it
                // would leave zeros out that the described Shuffle writes.
                let can_be_output = match network.tensors[holder.index()].source {
                    Source::Input(_) => false,
                    Source::Layer { layer, .. } => {
                        collectives[layer.index()].as_ref().is_none_or(|layer| !layer.may_leave_output_unwritten())
                    }
                };
                if !can_be_output || std::mem::replace(&mut has_output[holder.index()], true) {
                    continue;
                }
            }
            self.holders[output.index()] = holder;
        }
    }

    /// Notes in which order the collectives find elements.
    fn note_order(
        &mut self,
        network: &Network,
        order: &[LayerId],
        extents: &[Extent],
        collectives: &[Option<ResolvedLayer>],
        last_open: impl Fn(TensorId) -> Option<LayerId>,
    ) {
        // What is between the described order and the actual one, after each Shuffle.
        let mut orders: Vec<Option<[u8; 32]>> = vec![None; network.layers.len()];
        let mut all = Sha256::new();
        let mut is_another = false;
        for &id in order {
            let layer = &network.layers[id.index()];
            let Some(&input) = layer.inputs.first() else { continue };
            let of_input = last_open(input).and_then(|shuffle| orders[shuffle.index()]);
            match (&layer.body, &collectives[id.index()]) {
                (LayerBody::Shuffle(shuffle), _) if self.is_canceled[id.index()] => {
                    let Extent { min, max, .. } = &extents[input.index()];
                    let step = format!("{:?} of {min} to {max} after {of_input:?}", shuffle.shuffle);
                    orders[id.index()] = Some(Sha256::digest(step).into());
                }
                (_, Some(collective)) if !collective.is_identity() => {
                    is_another |= of_input.is_some();
                    self.marks[id.index()] =
                        of_input.map(|[a, b, ..]| Mark::Order(u16::from_le_bytes([a, b]) & Mark::MAX));
                    all.update(of_input.unwrap_or_default());
                }
                _ => {}
            }
        }
        self.order_of_elements = is_another.then(|| all.finalize().into());
    }

    /// What tells a collective's call from those that find their elements in another order.
    pub(crate) fn mark(&self, layer: LayerId) -> Option<Mark> {
        self.marks[layer.index()]
    }

    /// Whether a layer is a Shuffle that moves nothing.
    pub(crate) fn is_canceled(&self, layer: LayerId) -> bool {
        self.is_canceled[layer.index()]
    }

    /// The tensor in whose memory a tensor is.
    pub(crate) fn holder(&self, tensor: TensorId) -> TensorId {
        self.holders[tensor.index()]
    }

    /// Whether a layer runs. A canceled Shuffle does not, unless it has to copy.
    pub(crate) fn runs(&self, network: &Network, layer: LayerId) -> bool {
        let outputs = &network.layers[layer.index()].outputs;
        !self.is_canceled(layer) || self.holder(outputs[0]) == outputs[0]
    }
}

/// Whether each element of the output of a collective depends on the elements at one index of the
/// inputs alone, and in the same way at every index.
fn works_element_by_element(layer: &ResolvedLayer) -> bool {
    layer.collective.operation().geometry().can_use_one_buffer()
}

/// Whether a dimension that is the same at all points of the profiles is the same everywhere. All
/// layers but plugins give larger outputs for larger inputs.
fn dims_follow_from_points(network: &Network) -> bool {
    let is_dynamic = |input: &TensorId| match &network.tensors[input.index()].source {
        Source::Input(input) => input.dims.is_dynamic(),
        Source::Layer { .. } => false,
    };
    let is_plugin = |body: &LayerBody| matches!(body, LayerBody::Plugin(_));
    !network.inputs.iter().any(is_dynamic) || !network.layers.iter().any(|layer| is_plugin(&layer.body))
}

#[cfg(test)]
mod tests {
    use crate::collective::ReduceOperation;
    use crate::data_type::DataType;
    use crate::dist_collective::DistCollective;
    use crate::engine::Engine;
    use crate::error::Result;
    use crate::network::{Network, Shuffle};

    /// Collectives with no layer left between them still run one after the other if the second
    /// reads what the first writes.
    #[test]
    fn a_collective_waits_for_the_one_behind_a_canceled_shuffle() -> Result<()> {
        let mut network = Network::new();
        let turned = || Shuffle::transpose([1, 0]);
        let sum = || DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
        let x = network.add_input("x", DataType::Float32, [2, 3])?;
        let first = network.add_shuffle(x, turned())?;
        let first = network.add(sum(), first)?;
        let first = network.add_shuffle(first, turned())?;
        let second = network.add(sum(), first)?;
        let other = network.add(sum(), x)?;
        network.mark_output(second, "second")?;
        network.mark_output(other, "other")?;
        let engine = Engine::new(network)?;
        assert_eq!(engine.inner.analysis.steps, [0..1, 1..3]);
        let described = engine.inner.described.as_ref().expect("a collective is between canceled shuffles");
        assert_eq!(described.analysis.schedule.len(), 5);
        Ok(())
    }
}
