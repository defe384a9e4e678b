//! What an engine consists of, as text, as JSON and as a graph.

mod dot;

use std::collections::BTreeMap;
use std::fmt;

use serde::Serializer;
use serde_json::{Value, json};

use super::memory::{Location, Region};
use super::{Engine, EngineInner};
use crate::network::{LayerId, TensorId, TensorSource};
use crate::shape::Dims;
use crate::util::text::{clipped, on_one_line};

/// The widest column of names in the text. Longer names stand out of it.
const WIDEST_NAME: usize = 40;

/// Tensors, layers in the order of the schedule, and memory of an [`Engine`].
/// `Display` is for people, [`to_json`](Self::to_json) for programs, [`to_dot`](Self::to_dot) for
/// Graphviz.
#[derive(Clone, Debug)]
pub struct Inspection(pub(super) Engine);

pub(super) fn as_text<T: fmt::Display, S: Serializer>(value: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

impl Inspection {
    /// The inspection as JSON.
    pub fn to_json(&self) -> Value {
        let EngineInner { network, analysis, memory, io, fingerprint, .. } = &*self.0.inner;
        let points = |(name, [min, opt, max]): (&str, [Dims; 3])| {
            (name.to_owned(), json!({ "min": min, "opt": opt, "max": max }))
        };
        let profiles = (0..network.profile_count)
            .map(|profile| Value::Object(self.profile(profile).into_iter().map(points).collect()));
        let layers = analysis.schedule.iter().enumerate().map(|(step, id)| self.layer(step, *id));
        json!({
            "fingerprint": fingerprint,
            "for_rank": network.made_for,
            "io": io,
            "profiles": profiles.collect::<Vec<_>>(),
            "layers": layers.collect::<Vec<_>>(),
            "tensors": self.tensors().map(|tensor| self.tensor(tensor)).collect::<Vec<_>>(),
            "memory": {
                "communicator_bytes": memory.communicator_bytes,
                "private_bytes": memory.private_bytes,
                "step_scratch_bytes": memory.step_scratch_bytes,
                "constant_bytes": self.constant_bytes(),
            },
            "warnings": analysis.warnings,
        })
    }

    /// The dimensions of the dynamic inputs at min, opt and max of a profile, by the inputs' names.
    fn profile(&self, profile: usize) -> BTreeMap<&str, [Dims; 3]> {
        let network = &self.0.inner.network;
        let dynamic = network.described_inputs().filter(|(_, input)| input.dims.is_dynamic());
        let points = dynamic.filter_map(|(id, input)| {
            let points = input.points(profile).ok().flatten()?.map(|shape| shape.to_dims());
            Some((network.tensors[id.index()].name.as_str(), points))
        });
        points.collect()
    }

    fn layer(&self, step: usize, id: LayerId) -> Value {
        let layer = &self.0.inner.network.layers[id.index()];
        let mut value = json!({
            "step": step,
            "name": layer.name(),
            "kind": layer.kind(),
            "metadata": layer.metadata(),
            "inputs": self.names(&layer.inputs),
            "outputs": self.names(&layer.outputs),
        });
        value.as_object_mut().into_iter().for_each(|members| members.extend(layer.body.op().attributes().json));
        value
    }

    fn tensor(&self, id: TensorId) -> Value {
        let EngineInner { network, analysis, memory, .. } = &*self.0.inner;
        let place = match memory.locations[id.index()] {
            Location::Input(_) => json!("input"),
            Location::Output(_) => json!("output"),
            Location::Constant(_) => json!("constant"),
            Location::Region(place) => {
                let copied = memory.copy_out[id.index()].is_some();
                json!({ "region": { "region": place.region, "offset": place.offset, "copied_to_output": copied } })
            }
        };
        json!({
            "name": network.tensors[id.index()].name,
            "data_type": analysis.types[id.index()].name(),
            "dims": analysis.extents[id.index()].dims(),
            "max_byte_len": analysis.max_byte_len(id),
            "place": place,
            "may_be_unwritten": self.may_be_unwritten(id),
        })
    }

    fn tensors(&self) -> impl Iterator<Item = TensorId> {
        let network = &self.0.inner.network;
        (0..network.tensors.len()).map(|index| TensorId::new(network.number, index))
    }

    /// Clipped, because a tensor may have many readers. Its entry has the whole name.
    fn names(&self, tensors: &[TensorId]) -> Vec<String> {
        let name = |t: &TensorId| clipped(&self.0.inner.network.tensors[t.index()].name).into_owned();
        tensors.iter().map(name).collect()
    }

    /// Whether a tensor may not be written on some rank. There, an output keeps its bytes, and a
    /// layer that reads the tensor reads zeros.
    fn may_be_unwritten(&self, tensor: TensorId) -> bool {
        let EngineInner { network, analysis, .. } = &*self.0.inner;
        matches!(network.tensors[tensor.index()].source, TensorSource::Layer { layer, .. }
            if analysis.collectives[layer.index()].as_ref().is_some_and(|c| c.may_leave_output_unwritten()))
    }

    fn constant_bytes(&self) -> usize {
        let constants = self.0.inner.network.layers.iter().filter_map(|layer| layer.body.op().constant());
        constants.map(|value| value.byte_len()).sum()
    }

    fn write_tensors(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EngineInner { network, analysis, memory, .. } = &*self.0.inner;
        let names: Vec<String> = network.tensors.iter().map(|tensor| on_one_line(&tensor.name)).collect();
        let width = names.iter().map(String::len).max().unwrap_or(0).min(WIDEST_NAME);
        for id in self.tensors() {
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
            let (name, data_type) = (&names[id.index()], analysis.types[id.index()].name());
            let (dims, bytes) = (analysis.extents[id.index()].dims(), analysis.max_byte_len(id));
            let unwritten = if self.may_be_unwritten(id) { ", not written on every rank" } else { "" };
            writeln!(f, "  {name:width$}  {data_type} {dims}, {bytes} bytes, {place}{unwritten}")?;
        }
        Ok(())
    }

    fn write_memory(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let memory = &self.0.inner.memory;
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

impl fmt::Display for Inspection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let EngineInner { network, analysis, fingerprint, .. } = &*self.0.inner;
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
        for (step, id) in analysis.schedule.iter().enumerate() {
            let layer = &network.layers[id.index()];
            let [inputs, outputs] =
                [&layer.inputs, &layer.outputs].map(|tensors| on_one_line(&self.names(tensors).join(", ")));
            let text = layer.body.op().attributes().text;
            let space = if text.is_empty() { "" } else { " " };
            let [name, kind] = [layer.name(), layer.kind()].map(on_one_line);
            writeln!(f, "  {step:3}  {name} ({kind}){space}{text}: {inputs} -> {outputs}")?;
        }
        self.write_memory(f)?;
        for warning in &analysis.warnings {
            writeln!(f, "\nwarning: {}", on_one_line(warning))?;
        }
        Ok(())
    }
}
