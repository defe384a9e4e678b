//! What an engine consists of, as text, as JSON and as a graph.

mod dot;

use std::collections::BTreeMap;
use std::fmt;

use serde::{Serialize, Serializer};

use super::memory::{Location, Region};
use super::{EngineInner, IoTensor};
use crate::collective::{Determinism, Groups};
use crate::network::{LayerBody, Source, TensorId};
use crate::shape::Dims;
use crate::util::text::{clipped, count_of};

/// The widest column of names in the text. Longer names stand out of it.
const WIDEST_NAME: usize = 40;

/// Tensors, layers in the order of the schedule, and memory of an [`Engine`](crate::Engine).
/// `Display` is for people, [`to_json`](Self::to_json) for programs, [`to_dot`](Self::to_dot) for
/// Graphviz.
#[derive(Clone, Debug, Serialize)]
pub struct Inspection {
    fingerprint: String,
    io: Vec<IoTensor>,
    /// The shapes of the dynamic inputs in each profile, by the inputs' names.
    profiles: Vec<BTreeMap<String, ProfileInspection>>,
    layers: Vec<LayerInspection>,
    tensors: Vec<TensorInspection>,
    memory: MemoryInspection,
    warnings: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
struct ProfileInspection {
    min: Dims,
    opt: Dims,
    max: Dims,
}

#[derive(Clone, Debug, Serialize)]
struct LayerInspection {
    step: usize,
    name: String,
    kind: String,
    metadata: String,
    /// Names of tensors; long ones are shortened.
    inputs: Vec<String>,
    outputs: Vec<String>,
    /// The indices of the inputs in [`Inspection::tensors`].
    #[serde(skip)]
    input_indices: Vec<usize>,
    /// The same for the outputs.
    #[serde(skip)]
    output_indices: Vec<usize>,
    #[serde(skip_serializing_if = "Option::is_none")]
    collective: Option<CollectiveInspection>,
    #[serde(flatten)]
    attributes: Option<AttributesInspection>,
}

/// The attributes of layers that are no collectives.
#[derive(Clone, Debug, Serialize)]
#[serde(untagged)]
enum AttributesInspection {
    ElementWise { operation: &'static str },
    Concatenation { axis: usize },
    Slice { start: Vec<i64>, size: Vec<i64>, stride: Vec<i64> },
}

#[derive(Clone, Debug, Serialize)]
struct CollectiveInspection {
    reduce_op: Option<&'static str>,
    root_group_rank: Option<u32>,
    nb_rank: u32,
    groups: Option<Vec<Vec<u32>>>,
    /// Of a reduction.
    determinism: Option<&'static str>,
    /// The type in which float32 elements travel, if that is another one.
    wire_type: Option<&'static str>,
}

#[derive(Clone, Debug, Serialize)]
struct TensorInspection {
    name: String,
    data_type: &'static str,
    dims: Dims,
    /// Bytes at the largest shape of all profiles.
    max_byte_len: usize,
    place: PlaceInspection,
    /// Whether the tensor may not be written on some rank. There, an output keeps its bytes, and a
    /// layer that reads the tensor reads zeros.
    may_be_unwritten: bool,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum PlaceInspection {
    Input,
    Output,
    Constant,
    Region { region: Region, offset: usize, copied_to_output: bool },
}

#[derive(Clone, Debug, Serialize)]
struct MemoryInspection {
    communicator_bytes: usize,
    private_bytes: usize,
    /// Of collectives in exact mode or with a transport type, on GPUs only.
    step_scratch_bytes: usize,
    constant_bytes: usize,
}

pub(super) fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

pub(super) fn inspect(engine: &EngineInner) -> Inspection {
    let EngineInner { network, analysis, memory, .. } = engine;
    // Clipped, because a tensor may have many readers. Its entry has the whole name.
    let name = |t: &TensorId| clipped(&network.tensors[t.index()].name).into_owned();
    let names = |ids: &[TensorId]| ids.iter().map(name).collect();
    let layers = analysis.schedule.iter().enumerate().map(|(step, id)| {
        let layer = &network.layers[id.index()];
        LayerInspection {
            step,
            name: layer.name().to_owned(),
            kind: layer.body.kind().to_owned(),
            metadata: layer.metadata().to_owned(),
            inputs: names(&layer.inputs),
            outputs: names(&layer.outputs),
            input_indices: layer.inputs.iter().map(|t| t.index()).collect(),
            output_indices: layer.outputs.iter().map(|t| t.index()).collect(),
            collective: analysis.collectives[id.index()].as_ref().map(|c| CollectiveInspection {
                reduce_op: c.collective.reduce_op().map(|op| op.name()),
                root_group_rank: c.collective.root().map(|root| root.0),
                nb_rank: c.nb_rank,
                groups: match &c.groups {
                    Groups::All => None,
                    Groups::Group(group) => Some(vec![group.iter().map(|r| r.0).collect()]),
                    Groups::Partition(partition) => {
                        Some(partition.groups().iter().map(|g| g.iter().map(|r| r.0).collect()).collect())
                    }
                },
                determinism: c.collective.reduce_op().map(|_| c.determinism.name()),
                wire_type: c.wire_type.filter(|_| c.nb_rank > 1).map(|wire_type| wire_type.name()),
            }),
            attributes: attributes(&layer.body),
        }
    });
    let may_be_unwritten = |source: &Source| match source {
        Source::Input(_) => false,
        Source::Layer { layer, .. } => {
            analysis.collectives[layer.index()].as_ref().is_some_and(|c| c.may_leave_output_unwritten())
        }
    };
    let tensors = network.tensors.iter().enumerate().map(|(i, tensor)| {
        let id = TensorId::new(network.number, i);
        TensorInspection {
            name: tensor.name.clone(),
            data_type: analysis.types[i].name(),
            dims: analysis.extents[i].dims(),
            max_byte_len: analysis.max_byte_len(id),
            place: match memory.locations[i] {
                Location::Input(_) => PlaceInspection::Input,
                Location::Output(_) => PlaceInspection::Output,
                Location::Constant(_) => PlaceInspection::Constant,
                Location::Region(place) => PlaceInspection::Region {
                    region: place.region,
                    offset: place.offset,
                    copied_to_output: memory.copy_out[i].is_some(),
                },
            },
            may_be_unwritten: may_be_unwritten(&tensor.source),
        }
    });
    let constant_bytes = network.layers.iter().map(|layer| match &layer.body {
        LayerBody::Constant(constant) => constant.value().byte_len(),
        _ => 0,
    });
    Inspection {
        fingerprint: engine.fingerprint.clone(),
        io: engine.io.clone(),
        profiles: (0..network.profile_count).map(|profile| profile_shapes(engine, profile)).collect(),
        layers: layers.collect(),
        tensors: tensors.collect(),
        memory: MemoryInspection {
            communicator_bytes: memory.communicator_bytes,
            private_bytes: memory.private_bytes,
            step_scratch_bytes: memory.step_scratch_bytes,
            constant_bytes: constant_bytes.sum(),
        },
        warnings: analysis.warnings.clone(),
    }
}

fn attributes(body: &LayerBody) -> Option<AttributesInspection> {
    Some(match body {
        LayerBody::ElementWise(layer) => AttributesInspection::ElementWise { operation: layer.operation().name() },
        LayerBody::Concatenation(layer) => AttributesInspection::Concatenation { axis: layer.axis() },
        LayerBody::Slice(layer) => {
            let [start, size, stride] = [layer.start(), layer.size(), layer.stride()].map(<[i64]>::to_vec);
            AttributesInspection::Slice { start, size, stride }
        }
        _ => return None,
    })
}

fn profile_shapes(engine: &EngineInner, profile: usize) -> BTreeMap<String, ProfileInspection> {
    let shapes = |tensor: &TensorId| {
        let tensor = &engine.network.tensors[tensor.index()];
        let Source::Input(input) = &tensor.source else { return None };
        let [min, opt, max] = input.points(profile).ok().flatten()?.map(|shape| shape.to_dims());
        input.dims.is_dynamic().then(|| (tensor.name.clone(), ProfileInspection { min, opt, max }))
    };
    engine.network.inputs.iter().filter_map(shapes).collect()
}

impl Inspection {
    /// The inspection as JSON.
    pub fn to_json(&self) -> serde_json::Value {
        serde_json::to_value(self).unwrap_or_default()
    }
}

impl fmt::Display for CollectiveInspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "among {}", count_of(self.nb_rank as usize, "rank"))?;
        if let Some(groups) = &self.groups {
            write!(f, " of {groups:?}")?;
        }
        if let Some(reduce_op) = self.reduce_op {
            write!(f, ", {reduce_op}")?;
        }
        if let Some(root) = self.root_group_rank {
            write!(f, ", root {root}")?;
        }
        if self.determinism == Some(Determinism::Exact.name()) {
            f.write_str(", exact")?;
        }
        if let Some(wire_type) = self.wire_type {
            write!(f, ", sent as {wire_type}")?;
        }
        Ok(())
    }
}

impl fmt::Display for AttributesInspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            AttributesInspection::ElementWise { operation } => f.write_str(operation),
            AttributesInspection::Concatenation { axis } => write!(f, "along dimension {axis}"),
            AttributesInspection::Slice { start, size, stride } => {
                write!(f, "from {start:?}, size {size:?}, stride {stride:?}")
            }
        }
    }
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "engine {}", self.fingerprint)?;
        writeln!(f, "\ntensors")?;
        let width = self.tensors.iter().map(|t| t.name.len()).max().unwrap_or(0).min(WIDEST_NAME);
        for t in &self.tensors {
            let place = match &t.place {
                PlaceInspection::Input => "input".to_owned(),
                PlaceInspection::Output => "output".to_owned(),
                PlaceInspection::Constant => "constant".to_owned(),
                PlaceInspection::Region { region, offset, copied_to_output } => {
                    let region = match region {
                        Region::Communicator => "communicator memory",
                        Region::Private => "private memory",
                    };
                    let copied = if *copied_to_output { ", copied to the output" } else { "" };
                    format!("{region} at {offset}{copied}")
                }
            };
            let unwritten = if t.may_be_unwritten { ", not written on every rank" } else { "" };
            writeln!(
                f,
                "  {:width$}  {} {}, {} bytes, {place}{unwritten}",
                t.name, t.data_type, t.dims, t.max_byte_len
            )?;
        }
        for (index, profile) in self.profiles.iter().enumerate() {
            writeln!(f, "\noptimization profile {index}")?;
            for (name, ProfileInspection { min, opt, max }) in profile {
                writeln!(f, "  {name}: from {min} to {max}, usually {opt}")?;
            }
        }
        writeln!(f, "\nschedule")?;
        for layer in &self.layers {
            write!(f, "  {:3}  {} ({})", layer.step, layer.name, layer.kind)?;
            if let Some(collective) = &layer.collective {
                write!(f, " {collective}")?;
            }
            if let Some(attributes) = &layer.attributes {
                write!(f, " {attributes}")?;
            }
            writeln!(f, ": {} -> {}", layer.inputs.join(", "), layer.outputs.join(", "))?;
        }
        let MemoryInspection { communicator_bytes, private_bytes, step_scratch_bytes, constant_bytes } = self.memory;
        writeln!(f, "\nmemory")?;
        writeln!(f, "  {communicator_bytes} bytes that the communicator owns")?;
        writeln!(f, "  {private_bytes} bytes that only this rank uses")?;
        if step_scratch_bytes > 0 {
            writeln!(
                f,
                "  {step_scratch_bytes} bytes between the steps of collectives in exact mode or with a transport type, on GPUs only"
            )?;
        }
        writeln!(f, "  {constant_bytes} bytes of constants")?;
        for warning in &self.warnings {
            writeln!(f, "\nwarning: {warning}")?;
        }
        Ok(())
    }
}
