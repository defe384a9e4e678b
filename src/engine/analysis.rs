//! Validation of a network: every rule that needs the whole description. It finds all mistakes.

use std::collections::HashSet;
use std::ops::Range;

use sha2::{Digest, Sha256};

use super::inference::{ShapeRange, infer_extents, infer_types};
use super::warnings::warnings;
use crate::collective::Call;
use crate::comm::MAX_GROUPED_CALLS;
use crate::data_type::DataType;
use crate::dist_collective::ResolvedLayer;
use crate::error::{Error, Result, error};
use crate::network::{Layer, LayerId, Network, Readers, TensorId, TensorSource};
use crate::util::text::{clipped, count_of};

/// The longest name of a layer, an input or an output, in bytes. TensorRT has the same limit.
const MAX_NAME_BYTES: usize = 4095;

/// The longest name of a tensor inside the network: a layer's name and the number of an output.
const MAX_TENSOR_NAME_BYTES: usize = MAX_NAME_BYTES + ".output4294967295".len();

/// What validation finds out about a valid network.
#[derive(Debug)]
pub(crate) struct Analysis {
    /// All layers, each after those it depends on.
    pub(crate) schedule: Vec<LayerId>,
    /// The schedule in steps: one layer each, or adjacent collectives that do not depend on each
    /// other and may go on together.
    pub(crate) steps: Vec<Range<usize>>,
    /// The type of each tensor.
    pub(crate) types: Vec<DataType>,
    /// The shapes of each tensor at all points of all profiles.
    pub(crate) extents: Vec<ShapeRange>,
    /// For each DistCollective layer, its attributes put together.
    pub(crate) collectives: Vec<Option<ResolvedLayer>>,
    /// The layers that read each tensor.
    pub(crate) readers: Readers,
    /// What is allowed but may be a mistake.
    pub(crate) warnings: Vec<String>,
}

impl Analysis {
    /// The most bytes that a tensor has at a point of a profile.
    pub(crate) fn max_byte_len(&self, tensor: TensorId) -> usize {
        self.extents[tensor.index()].element_count * self.types[tensor.index()].byte_len()
    }

    /// The call of a DistCollective layer at the largest shapes.
    pub(crate) fn largest_call(&self, network: &Network, layer: LayerId) -> Option<Call> {
        let resolved = self.collectives[layer.index()].as_ref()?;
        let input = network.layers[layer.index()].inputs[0].index();
        Some(resolved.call(self.types[input], self.extents[input].element_count, resolved.nb_rank as usize))
    }

    /// A hash of how many collectives are in each step.
    pub(crate) fn collectives_in_steps(&self) -> [u8; 32] {
        let is_collective =
            |id: &LayerId| self.collectives[id.index()].as_ref().is_some_and(|layer| !layer.is_identity());
        let mut hash = Sha256::new();
        for step in self.steps.iter().filter(|step| self.schedule[(*step).clone()].iter().all(is_collective)) {
            hash.update((step.len() as u64).to_le_bytes());
        }
        hash.finalize().into()
    }
}

/// Checks every rule that needs the whole network.
pub(crate) fn analyze(network: &Network) -> Result<Analysis> {
    let mut mistakes = Vec::new();
    network.layers.iter().enumerate().for_each(|(index, layer)| check_ends(network, index, layer, &mut mistakes));
    if !mistakes.is_empty() {
        return Err(Error::from_mistakes(mistakes));
    }
    check_names(network, &mut mistakes);
    let schedule = network.schedule(&mut mistakes);
    let readers = Readers::new(network, &schedule);
    check_uses(network, &mut mistakes);
    let collectives = resolve_collectives(network, &mut mistakes);
    let types = infer_types(network, &schedule, &mut mistakes);
    let extents = infer_extents(network, &schedule, &types, &collectives, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(Error::from_mistakes(mistakes));
    }
    let (types, extents) = (types.into_iter().collect(), extents.into_iter().collect::<Option<Vec<ShapeRange>>>());
    let (Some(types), Some(extents)) = (types, extents) else {
        return Err(error!(InvalidNetwork, "the network has a tensor that nothing computes"));
    };
    let warnings = warnings(network, &collectives, &readers);
    let steps = steps(network, &schedule, &collectives);
    Ok(Analysis { schedule, steps, types, extents, collectives, readers, warnings })
}

/// Checks the inputs and outputs of a layer: the caller may have put another layer in its place.
fn check_ends(network: &Network, index: usize, layer: &Layer, mistakes: &mut Vec<Error>) {
    let mut note = |error: Error| mistakes.push(error.about(|| layer.subject()));
    if !layer.has_right_arity() {
        let (inputs, outputs) = (count_of(layer.inputs.len(), "input"), count_of(layer.outputs.len(), "output"));
        note(error!(InvalidNetwork, "its kind does not have {inputs} and {outputs}"));
    }
    let mut tensors = layer.inputs.iter().chain(&layer.outputs);
    if let Some(error) = tensors.find_map(|t| t.check(network.number, network.tensors.len()).err()) {
        note(error);
    } else if !layer.outputs.iter().enumerate().all(|(number, output)| {
        matches!(network.tensors[output.index()].source,
            TensorSource::Layer { layer, port } if layer.index() == index && port as usize == number)
    }) {
        note(error!(InvalidNetwork, "another layer computes its output"));
    }
}

fn check_names(network: &Network, mistakes: &mut Vec<Error>) {
    let mut seen = HashSet::new();
    for layer in &network.layers {
        if layer.name().len() > MAX_NAME_BYTES {
            mistakes.push(too_long("a layer", layer.name(), MAX_NAME_BYTES));
        } else if layer.name().is_empty() {
            mistakes.push(error!(InvalidNetwork, "a {} layer has no name", layer.body.kind()));
        } else if !seen.insert(layer.name()) {
            mistakes.push(error!(InvalidNetwork, "two layers have this name").about(|| layer.subject()));
        }
    }
    let mut seen = HashSet::new();
    for (kind, tensors) in [("input", &network.inputs), ("output", &network.outputs)] {
        for (number, tensor) in tensors.iter().enumerate() {
            let name = network.tensors[tensor.index()].name.as_str();
            if name.len() > MAX_NAME_BYTES {
                mistakes.push(too_long(&format!("an {kind}"), name, MAX_NAME_BYTES));
            } else if name.is_empty() {
                mistakes.push(error!(InvalidNetwork, "{kind} {number} has no name"));
            } else if !seen.insert(name) {
                let error = error!(InvalidNetwork, "two inputs or outputs have this name");
                mistakes.push(error.about(|| format!("{kind} {name:?}")));
            }
        }
    }
    let inside = network.tensors.iter().filter(|tensor| tensor.output.is_none());
    for tensor in inside.filter(|tensor| tensor.name.len() > MAX_TENSOR_NAME_BYTES) {
        if matches!(tensor.source, TensorSource::Layer { .. }) {
            mistakes.push(too_long("a tensor", &tensor.name, MAX_TENSOR_NAME_BYTES));
        }
    }
    if network.outputs.is_empty() {
        mistakes.push(error!(InvalidNetwork, "the network has no output; mark_output makes one"));
    }
}

fn too_long(what: &str, name: &str, most: usize) -> Error {
    let (len, name) = (name.len(), clipped(name));
    error!(InvalidNetwork, "the name {name:?} of {what} has {len} bytes; at most {most} are allowed")
}

fn steps(network: &Network, schedule: &[LayerId], collectives: &[Option<ResolvedLayer>]) -> Vec<Range<usize>> {
    let is_collective = |id: LayerId| collectives[id.index()].as_ref().is_some_and(|layer| !layer.is_identity());
    let reads_from = |id: LayerId, other: LayerId| {
        let outputs = &network.layers[other.index()].outputs;
        network.layers[id.index()].inputs.iter().any(|input| outputs.contains(input))
    };
    let mut steps: Vec<Range<usize>> = Vec::new();
    for (position, &id) in schedule.iter().enumerate() {
        let joins = |step: &Range<usize>| {
            let others = &schedule[step.clone()];
            is_collective(id)
                && others.len() < MAX_GROUPED_CALLS
                && others.iter().all(|&other| is_collective(other) && !reads_from(id, other))
        };
        match steps.last_mut() {
            Some(step) if joins(step) => step.end = position + 1,
            _ => steps.push(position..position + 1),
        }
    }
    steps
}

/// Every input is read, and every layer has an output that is read or marked.
fn check_uses(network: &Network, mistakes: &mut Vec<Error>) {
    let mut is_used: Vec<bool> = network.tensors.iter().map(|tensor| tensor.output.is_some()).collect();
    network.layers.iter().flat_map(|layer| &layer.inputs).for_each(|input| is_used[input.index()] = true);
    for input in network.inputs.iter().filter(|input| !is_used[input.index()]) {
        let name = &network.tensors[input.index()].name;
        mistakes.push(error!(InvalidNetwork, "no layer reads it").about(|| format!("input {name:?}")));
    }
    for layer in network.layers.iter().filter(|layer| !layer.outputs.iter().any(|output| is_used[output.index()])) {
        let error = error!(InvalidNetwork, "no layer reads its output, and it is not an output of the network");
        mistakes.push(error.about(|| layer.subject()));
    }
}

pub(super) fn resolve_collectives(network: &Network, mistakes: &mut Vec<Error>) -> Vec<Option<ResolvedLayer>> {
    let resolve = |layer: &Layer| layer.collective()?.resolve().map_err(|errors| mistakes.extend(errors)).ok();
    network.layers.iter().map(resolve).collect()
}
