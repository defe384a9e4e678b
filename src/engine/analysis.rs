//! Validation of a network: every rule that needs the whole description. It finds all mistakes.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashSet};
use std::ops::Range;

use crate::comm::MAX_GROUPED_CALLS;
use crate::data_type::DataType;
use crate::dist_collective::ResolvedLayer;
use crate::error::{Error, Result, error};
use crate::network::{LayerBody, LayerId, Network, Source, TensorId};
use crate::shape::{Dims, Shape};
use crate::util::text::count_of;

/// The points of a profile, in the order in which shapes are kept.
pub(crate) const POINTS: [&str; 3] = ["min", "opt", "max"];

/// What validation finds out about a valid network.
#[derive(Debug)]
pub(crate) struct Analysis {
    /// The layers, each after those it depends on.
    pub(crate) schedule: Vec<LayerId>,
    /// The schedule in steps: one layer each, or adjacent collectives that do not depend on each
    /// other and may go on together.
    pub(crate) steps: Vec<Range<usize>>,
    /// The type of each tensor.
    pub(crate) types: Vec<DataType>,
    /// The shape of each tensor at min, opt and max of the profiles.
    pub(crate) shapes: [Vec<Shape>; 3],
    /// For each DistCollective layer, its attributes put together.
    pub(crate) collectives: Vec<Option<ResolvedLayer>>,
    /// The layers that read each tensor, in the order of the schedule.
    pub(crate) readers: Vec<Vec<LayerId>>,
    /// What is allowed but may be a mistake.
    pub(crate) warnings: Vec<String>,
}

impl Analysis {
    /// The dimensions of a tensor: -1 where the points of the profile differ.
    pub(crate) fn dims(&self, tensor: TensorId) -> Dims {
        let [min, opt, max] = [0, 1, 2].map(|point| self.shapes[point][tensor.index()].to_dims());
        let dims = min.as_slice().iter().zip(opt.as_slice()).zip(max.as_slice());
        let dims: Vec<i64> = dims.map(|((&a, &b), &c)| if a == b && b == c { a } else { -1 }).collect();
        Dims::new(&dims).unwrap_or(max)
    }
}

/// Checks every rule that needs the whole network.
pub(crate) fn analyze(network: &Network) -> Result<Analysis> {
    let mut mistakes = Vec::new();
    for layer in network.layers.iter().filter(|layer| !layer.has_right_arity()) {
        let (inputs, outputs) = (count_of(layer.inputs.len(), "input"), count_of(layer.outputs.len(), "output"));
        mistakes
            .push(error!(InvalidNetwork, "its kind does not have {inputs} and {outputs}").about(|| layer.subject()));
    }
    if !mistakes.is_empty() {
        return Err(Error::from_mistakes(mistakes));
    }
    check_names(network, &mut mistakes);
    let schedule = schedule(network, &mut mistakes);
    let readers = readers(network, &schedule);
    check_uses(network, &readers, &mut mistakes);
    let collectives = resolve_collectives(network, &mut mistakes);
    let types = infer_types(network, &schedule, &mut mistakes);
    let shapes = infer_profile_shapes(network, &schedule, &types, &collectives, &mut mistakes);
    if !mistakes.is_empty() {
        return Err(Error::from_mistakes(mistakes));
    }
    let types: Option<Vec<DataType>> = types.into_iter().collect();
    let [min, opt, max] = shapes.map(|point| point.into_iter().collect::<Option<Vec<Shape>>>());
    let (Some(types), Some(min), Some(opt), Some(max)) = (types, min, opt, max) else {
        return Err(error!(InvalidNetwork, "the network has a tensor that nothing computes"));
    };
    let warnings = warnings(network, &collectives, &readers);
    let steps = steps(network, &schedule, &collectives);
    Ok(Analysis { schedule, steps, types, shapes: [min, opt, max], collectives, readers, warnings })
}

fn check_names(network: &Network, mistakes: &mut Vec<Error>) {
    let mut seen = HashSet::new();
    for layer in &network.layers {
        if layer.name().is_empty() {
            mistakes.push(error!(InvalidNetwork, "a {} layer has no name", layer.body.kind()));
        } else if !seen.insert(layer.name()) {
            mistakes.push(error!(InvalidNetwork, "two layers have this name").about(|| layer.subject()));
        }
    }
    let mut seen = HashSet::new();
    for (kind, tensors) in [("input", &network.inputs), ("output", &network.outputs)] {
        for (number, tensor) in tensors.iter().enumerate() {
            let name = network.tensors[tensor.index()].name.as_str();
            if name.is_empty() {
                mistakes.push(error!(InvalidNetwork, "{kind} {number} has no name"));
            } else if !seen.insert(name) {
                let error = error!(InvalidNetwork, "two inputs or outputs have this name");
                mistakes.push(error.about(|| format!("{kind} {name:?}")));
            }
        }
    }
    if network.outputs.is_empty() {
        mistakes.push(error!(InvalidNetwork, "the network has no output; mark_output makes one"));
    }
}

/// The layers, each after those it depends on, and otherwise in the order of their addition.
fn schedule(network: &Network, mistakes: &mut Vec<Error>) -> Vec<LayerId> {
    let layer_inputs = |i: usize| {
        network.layers[i].inputs.iter().filter_map(|input| match network.tensors[input.index()].source {
            Source::Input { .. } => None,
            Source::Layer { layer, .. } => Some(layer.index()),
        })
    };
    let mut waits_for: Vec<usize> = (0..network.layers.len()).map(|i| layer_inputs(i).count()).collect();
    let mut followers = vec![Vec::new(); network.layers.len()];
    for i in 0..network.layers.len() {
        layer_inputs(i).for_each(|before| followers[before].push(i));
    }
    let mut ready: BinaryHeap<Reverse<usize>> =
        waits_for.iter().enumerate().filter(|(_, waits)| **waits == 0).map(|(i, _)| Reverse(i)).collect();
    let mut order = Vec::with_capacity(network.layers.len());
    while let Some(Reverse(i)) = ready.pop() {
        order.push(LayerId(i as u32));
        for &follower in &followers[i] {
            waits_for[follower] -= 1;
            if waits_for[follower] == 0 {
                ready.push(Reverse(follower));
            }
        }
    }
    let stuck: Vec<String> = network
        .layers
        .iter()
        .zip(&waits_for)
        .filter(|(_, waits)| **waits > 0)
        .map(|(layer, _)| format!("{:?}", layer.name()))
        .collect();
    if !stuck.is_empty() {
        mistakes.push(error!(InvalidNetwork, "layers wait for each other in a cycle: {}", stuck.join(", ")));
    }
    order
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

fn readers(network: &Network, schedule: &[LayerId]) -> Vec<Vec<LayerId>> {
    let mut readers = vec![Vec::new(); network.tensors.len()];
    for &id in schedule {
        for input in &network.layers[id.index()].inputs {
            readers[input.index()].push(id);
        }
    }
    readers
}

/// Every input is read, and every layer has an output that is read or marked.
fn check_uses(network: &Network, readers: &[Vec<LayerId>], mistakes: &mut Vec<Error>) {
    let read_by_any: HashSet<TensorId> = network.layers.iter().flat_map(|layer| layer.inputs.iter().copied()).collect();
    for input in &network.inputs {
        if readers[input.index()].is_empty() && !read_by_any.contains(input) {
            let name = &network.tensors[input.index()].name;
            mistakes.push(error!(InvalidNetwork, "no layer reads it").about(|| format!("input {name:?}")));
        }
    }
    for layer in &network.layers {
        if !layer.outputs.iter().any(|t| read_by_any.contains(t) || network.outputs.contains(t)) {
            let error = error!(InvalidNetwork, "no layer reads its output, and it is not an output of the network");
            mistakes.push(error.about(|| layer.subject()));
        }
    }
}

fn resolve_collectives(network: &Network, mistakes: &mut Vec<Error>) -> Vec<Option<ResolvedLayer>> {
    let resolve = |layer: &crate::network::Layer| match &layer.body {
        LayerBody::DistCollective(layer) => layer.resolve().map_err(|errors| mistakes.extend(errors)).ok(),
        _ => None,
    };
    network.layers.iter().map(resolve).collect()
}

fn infer_types(network: &Network, schedule: &[LayerId], mistakes: &mut Vec<Error>) -> Vec<Option<DataType>> {
    let mut types = vec![None; network.tensors.len()];
    for input in &network.inputs {
        types[input.index()] = Some(network.tensors[input.index()].data_type);
    }
    for &id in schedule {
        let layer = &network.layers[id.index()];
        let inputs: Option<Vec<DataType>> = layer.inputs.iter().map(|t| types[t.index()]).collect();
        // A layer that depends on a mistake is not checked: its errors would follow from that one.
        let Some(inputs) = inputs else { continue };
        match layer.body.output_types(&inputs) {
            Ok(outputs) if outputs.len() == layer.outputs.len() => {
                for (tensor, data_type) in layer.outputs.iter().zip(outputs) {
                    types[tensor.index()] = Some(data_type);
                }
            }
            Ok(outputs) => {
                let (now, then) = (count_of(outputs.len(), "output"), layer.outputs.len());
                let error = error!(InvalidNetwork, "the plugin has {now} now and had {then} when it was added");
                mistakes.push(error.about(|| layer.subject()));
            }
            Err(error) => mistakes.push(error.about(|| layer.subject())),
        }
    }
    types
}

fn infer_profile_shapes(
    network: &Network,
    schedule: &[LayerId],
    types: &[Option<DataType>],
    collectives: &[Option<ResolvedLayer>],
    mistakes: &mut Vec<Error>,
) -> [Vec<Option<Shape>>; 3] {
    let mut inputs = vec![None; network.tensors.len()];
    for input in &network.inputs {
        let tensor = &network.tensors[input.index()];
        let Source::Input { dims, profile } = &tensor.source else { continue };
        let points = match profile {
            Some(profile) => profile.points(),
            None if dims.is_dynamic() => Err(error!(
                InvalidNetwork,
                "{dims} has a dimension of -1 and no optimization profile says between which values it lies"
            )),
            None => dims.to_shape().map(|shape| [shape; 3]),
        };
        match points {
            Ok(points) => inputs[input.index()] = Some(points),
            Err(error) => mistakes.push(error.about(|| format!("input {:?}", tensor.name))),
        }
    }
    // A mistake at all points is reported once, without the point.
    let mut found: BTreeMap<usize, Vec<(usize, Error)>> = BTreeMap::new();
    let shapes = [0, 1, 2].map(|point| {
        let given: Vec<Option<Shape>> = inputs.iter().map(|points| points.map(|points| points[point])).collect();
        infer_shapes(network, schedule, types, collectives, given, |position, error| {
            found.entry(position).or_default().push((point, error));
        })
    });
    for errors in found.into_values() {
        let shared =
            errors.len() == POINTS.len() && errors.iter().all(|(_, e)| e.to_string() == errors[0].1.to_string());
        if shared {
            mistakes.extend(errors.into_iter().next().map(|(_, error)| error));
            continue;
        }
        for (point, error) in errors {
            mistakes.push(error.followed_by(&format!(" (at {} of the profile)", POINTS[point])));
        }
    }
    shapes
}

/// Infers the shape of every tensor from those of the inputs. A tensor that depends on a mistake
/// gets none. `report` gets each mistake with its position in the schedule.
pub(crate) fn infer_shapes(
    network: &Network,
    schedule: &[LayerId],
    types: &[Option<DataType>],
    collectives: &[Option<ResolvedLayer>],
    mut shapes: Vec<Option<Shape>>,
    mut report: impl FnMut(usize, Error),
) -> Vec<Option<Shape>> {
    for (position, &id) in schedule.iter().enumerate() {
        let layer = &network.layers[id.index()];
        let inputs: Option<Vec<Shape>> = layer.inputs.iter().map(|t| shapes[t.index()]).collect();
        let Some(inputs) = inputs else { continue };
        let outputs = match &layer.body {
            LayerBody::DistCollective(_) => match (&collectives[id.index()], types[layer.inputs[0].index()]) {
                (Some(resolved), Some(data_type)) => {
                    resolved.output_shape(data_type, &inputs[0]).map(|shape| vec![shape])
                }
                _ => continue,
            },
            LayerBody::Shuffle(shuffle) => shuffle.shuffle.steps(&inputs[0]).map(|steps| vec![steps.output]),
            LayerBody::Cast(_) => Ok(inputs),
            LayerBody::Constant(constant) => Ok(vec![constant.value.shape()]),
            LayerBody::Plugin(plugin) => plugin.plugin.output_shapes(&inputs),
        };
        match outputs {
            Ok(outputs) if outputs.len() == layer.outputs.len() => {
                for (tensor, shape) in layer.outputs.iter().zip(outputs) {
                    shapes[tensor.index()] = Some(shape);
                }
            }
            Ok(outputs) => {
                let (given, wanted) = (count_of(outputs.len(), "shape"), count_of(layer.outputs.len(), "output"));
                let error = error!(InvalidShape, "the plugin gave {given} for {wanted}");
                report(position, error.about(|| layer.subject()));
            }
            Err(error) => report(position, error.about(|| layer.subject())),
        }
    }
    shapes
}

fn warnings(network: &Network, collectives: &[Option<ResolvedLayer>], readers: &[Vec<LayerId>]) -> Vec<String> {
    let mut warnings = Vec::new();
    for (layer, resolved) in network.layers.iter().zip(collectives) {
        let Some(resolved) = resolved.as_ref().filter(|r| r.may_leave_output_unwritten()) else { continue };
        for reader in &readers[layer.outputs[0].index()] {
            warnings.push(format!(
                "{} reads the output of {}, which is not written on every rank and reads as zeros there",
                network.layers[reader.index()].subject(),
                resolved.subject
            ));
        }
    }
    warnings
}
