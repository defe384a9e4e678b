//! What an engine consists of, as text, as JSON and as a graph.

mod dot;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::Serializer;
use serde_json::{Value, json};

use super::memory::{Location, Region};
use super::{Engine, EngineInner, plan};
use crate::error::{Error, Result};
use crate::network::{Layer, LayerBody, LayerId, Network, TensorId, TensorSource};
use crate::shape::Dims;
use crate::util::text::{clipped, on_one_line};

/// The widest column of names in the text. Longer names stand out of it.
const WIDEST_NAME: usize = 40;

/// What the inspection of a network with unknown plugins says.
const UNKNOWN: &str =
    "the plugins of the plan are unknown here, so shapes and memory are not known, and rules were not checked";

/// Tensors, layers in the order of the schedule, and memory of an [`Engine`].
/// `Display` is for people, [`to_json`](Self::to_json) for programs, [`to_dot`](Self::to_dot) for
/// Graphviz.
#[derive(Clone, Debug)]
pub struct Inspection(pub(super) Subject);

/// What is inspected.
#[derive(Clone, Debug)]
pub(super) enum Subject {
    Engine(Engine),
    /// A network whose plugins are unknown, and its schedule.
    Network(Network, Vec<LayerId>),
}

pub(super) fn as_text<T: fmt::Display, S: Serializer>(
    value: &T,
    serializer: S,
) -> std::result::Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Inspection {
    /// Inspects a file of [`Engine::save`]. If the plan has plugins, they are shown as unknown
    /// layers, and what depends on shapes is left out.
    ///
    /// # Errors
    ///
    /// Those of [`Engine::load`], except that plugins are not registered.
    pub fn of_plan(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = plan::read_file(path)?;
        let subject = || {
            let network = plan::read(&bytes, None)?;
            if !network.layers.iter().any(is_plugin) {
                return Ok(Subject::Engine(Engine::new(network)?));
            }
            let mut mistakes = Vec::new();
            let schedule = network.schedule(&mut mistakes);
            if mistakes.is_empty() {
                Ok(Subject::Network(network, schedule))
            } else {
                Err(Error::from_mistakes(mistakes))
            }
        };
        subject().map(Inspection).map_err(|e: Error| e.about(|| format!("plan {}", path.display())))
    }

    fn network(&self) -> &Network {
        match &self.0 {
            Subject::Engine(engine) => &engine.inner.network,
            Subject::Network(network, _) => network,
        }
    }

    fn engine(&self) -> Option<&EngineInner> {
        match &self.0 {
            Subject::Engine(engine) => Some(&engine.inner),
            Subject::Network(..) => None,
        }
    }

    fn schedule(&self) -> &[LayerId] {
        match &self.0 {
            Subject::Engine(engine) => &engine.inner.analysis.schedule,
            Subject::Network(_, schedule) => schedule,
        }
    }

    fn fingerprint(&self) -> String {
        self.engine().map_or_else(|| plan::fingerprint(self.network()), |engine| engine.fingerprint.clone())
    }

    fn warnings(&self) -> Vec<&str> {
        match self.engine() {
            Some(engine) => engine.analysis.warnings.iter().map(String::as_str).collect(),
            None => vec![UNKNOWN],
        }
    }

    /// The dimensions of a tensor, if they are known.
    fn dims(&self, tensor: TensorId) -> Option<Dims> {
        match (self.engine(), &self.network().tensors[tensor.index()].source) {
            (Some(engine), _) => Some(engine.analysis.extents[tensor.index()].dims()),
            (None, TensorSource::Input(input)) => Some(input.dims),
            (None, TensorSource::Layer { .. }) => None,
        }
    }

    /// The type of a tensor, and its dimensions if they are known: `float32 [4, 8]`.
    fn type_of(&self, tensor: TensorId) -> String {
        let dims = self.dims(tensor).map_or(String::new(), |dims| format!(" {dims}"));
        format!("{}{dims}", self.network().tensors[tensor.index()].data_type)
    }

    /// The kind of a layer, on one line.
    fn kind(&self, layer: &Layer) -> String {
        let unknown = if self.is_unknown(layer) { ", unknown plugin" } else { "" };
        format!("{}{unknown}", on_one_line(layer.kind()))
    }

    fn is_unknown(&self, layer: &Layer) -> bool {
        self.engine().is_none() && is_plugin(layer)
    }

    /// The inspection as JSON.
    pub fn to_json(&self) -> Value {
        let (network, engine) = (self.network(), self.engine());
        let points = |(name, [min, opt, max]): (&str, [Dims; 3])| {
            (name.to_owned(), json!({ "min": min, "opt": opt, "max": max }))
        };
        let profiles = (0..network.profile_count)
            .map(|profile| Value::Object(self.profile(profile).into_iter().map(points).collect()));
        let layers = self.schedule().iter().enumerate().map(|(step, id)| self.layer(step, *id));
        json!({
            "fingerprint": self.fingerprint(),
            "for_rank": network.made_for,
            "io": engine.map(|engine| &engine.io),
            "profiles": profiles.collect::<Vec<_>>(),
            "layers": layers.collect::<Vec<_>>(),
            "tensors": self.tensors().map(|tensor| self.tensor(tensor)).collect::<Vec<_>>(),
            "memory": engine.map(|EngineInner { memory, .. }| json!({
                "communicator_bytes": memory.communicator_bytes,
                "private_bytes": memory.private_bytes,
                "step_scratch_bytes": memory.step_scratch_bytes,
                "constant_bytes": self.constant_bytes(),
            })),
            "warnings": self.warnings(),
        })
    }

    /// The dimensions of the dynamic inputs at min, opt and max of a profile, by the inputs' names.
    fn profile(&self, profile: usize) -> BTreeMap<&str, [Dims; 3]> {
        let network = self.network();
        let dynamic = network.described_inputs().filter(|(_, input)| input.dims.is_dynamic());
        let points = dynamic.filter_map(|(id, input)| {
            let points = input.points(profile).ok().flatten()?.map(|shape| shape.to_dims());
            Some((network.tensors[id.index()].name.as_str(), points))
        });
        points.collect()
    }

    fn layer(&self, step: usize, id: LayerId) -> Value {
        let layer = &self.network().layers[id.index()];
        let mut value = json!({
            "step": step,
            "name": layer.name(),
            "kind": layer.kind(),
            "metadata": layer.metadata(),
            "inputs": self.names(&layer.inputs),
            "outputs": self.names(&layer.outputs),
            "unknown": self.is_unknown(layer),
        });
        value.as_object_mut().into_iter().for_each(|members| members.extend(layer.body.op().attributes().json));
        value
    }

    fn tensor(&self, id: TensorId) -> Value {
        let tensor = &self.network().tensors[id.index()];
        let place = |EngineInner { memory, .. }: &EngineInner| match memory.locations[id.index()] {
            Location::Input(_) => json!("input"),
            Location::Output(_) => json!("output"),
            Location::Constant(_) => json!("constant"),
            Location::Region(place) => {
                let copied = memory.copy_out[id.index()].is_some();
                json!({ "region": { "region": place.region, "offset_bytes": place.offset, "copied_to_output": copied } })
            }
        };
        json!({
            "name": tensor.name,
            "data_type": tensor.data_type.name(),
            "dims": self.dims(id),
            "max_bytes": self.engine().map(|engine| engine.analysis.max_byte_len(id)),
            "place": self.engine().map(place),
            "may_be_unwritten": self.may_be_unwritten(id),
        })
    }

    fn tensors(&self) -> impl Iterator<Item = TensorId> {
        let network = self.network();
        (0..network.tensors.len()).map(|index| TensorId::new(network.number, index))
    }

    /// Clipped, because a tensor may have many readers. Its entry has the whole name.
    fn names(&self, tensors: &[TensorId]) -> Vec<String> {
        let name = |t: &TensorId| clipped(&self.network().tensors[t.index()].name).into_owned();
        tensors.iter().map(name).collect()
    }

    /// Whether a tensor may not be written on some rank. There, an output keeps its bytes, and a
    /// layer that reads the tensor reads zeros.
    fn may_be_unwritten(&self, tensor: TensorId) -> bool {
        let Some(EngineInner { network, analysis, .. }) = self.engine() else { return false };
        matches!(network.tensors[tensor.index()].source, TensorSource::Layer { layer, .. }
            if analysis.collectives[layer.index()].as_ref().is_some_and(|c| c.may_leave_output_unwritten()))
    }

    fn constant_bytes(&self) -> usize {
        let constants = self.network().layers.iter().filter_map(|layer| layer.body.op().constant());
        constants.map(|value| value.byte_len()).sum()
    }

    fn write_tensors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<String> = self.network().tensors.iter().map(|tensor| on_one_line(&tensor.name)).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0).min(WIDEST_NAME);
        for id in self.tensors() {
            let (name, type_of) = (&names[id.index()], self.type_of(id));
            let Some(EngineInner { analysis, memory, .. }) = self.engine() else {
                writeln!(f, "  {name:width$}  {type_of}")?;
                continue;
            };
            let place = match memory.locations[id.index()] {
                Location::Input(_) => "input".to_owned(),
                Location::Output(_) => "output".to_owned(),
                Location::Constant(_) => "constant".to_owned(),
                Location::Region(place) => {
                    let region = match place.region {
                        Region::Communicator => "communicator memory",
                        Region::Private => "private memory",
                    };
                    let copied = memory.copy_out[id.index()].map_or("", |_| ", copied to the output");
                    format!("{region} at {}{copied}", place.offset)
                }
            };
            let bytes = analysis.max_byte_len(id);
            let unwritten = if self.may_be_unwritten(id) { ", not written on every rank" } else { "" };
            writeln!(f, "  {name:width$}  {type_of}, {bytes} bytes, {place}{unwritten}")?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(EngineInner { memory, .. }) = self.engine() else { return Ok(()) };
        writeln!(f, "\nmemory")?;
        writeln!(f, "  {} bytes that the communicator owns", memory.communicator_bytes)?;
        writeln!(f, "  {} bytes that only this rank uses", memory.private_bytes)?;
        if memory.step_scratch_bytes > 0 {
            writeln!(
                f,
                "  {} bytes between the steps of collectives in exact mode or with a transport type, on GPUs only",
                memory.step_scratch_bytes
            )?;
        }
        writeln!(f, "  {} bytes of constants", self.constant_bytes())
    }
}

fn is_plugin(layer: &Layer) -> bool {
    matches!(layer.body, LayerBody::Plugin(_))
}

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (network, fingerprint) = (self.network(), self.fingerprint());
        match network.made_for {
            Some(made_for) => writeln!(f, "engine {fingerprint}, for {made_for}")?,
            None => writeln!(f, "engine {fingerprint}")?,
        }
        writeln!(f, "\ntensors")?;
        self.write_tensors(f)?;
        for profile in 0..network.profile_count {
            writeln!(f, "\noptimization profile {profile}")?;
            for (name, [min, opt, max]) in self.profile(profile) {
                writeln!(f, "  {}: from {min} to {max}, usually {opt}", on_one_line(name))?;
            }
        }
        writeln!(f, "\nschedule")?;
        for (step, id) in self.schedule().iter().enumerate() {
            let layer = &network.layers[id.index()];
            let [inputs, outputs] =
                [&layer.inputs, &layer.outputs].map(|tensors| on_one_line(&self.names(tensors).join(", ")));
            let text = layer.body.op().attributes().text;
            let space = if text.is_empty() { "" } else { " " };
            let (name, kind) = (on_one_line(layer.name()), self.kind(layer));
            writeln!(f, "  {step:3}  {name} ({kind}){space}{text}: {inputs} -> {outputs}")?;
        }
        self.write_memory(f)?;
        for warning in self.warnings() {
            writeln!(f, "\nwarning: {}", on_one_line(warning))?;
        }
        Ok(())
    }
}
