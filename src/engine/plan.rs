//! Plan bytes: an engine as a file.
//!
//! A plan holds the description of the network and nothing that is derived from it. Reading a plan
//! validates it and plans memory anew, so that bytes from any source break no rule.
//! [`crate::framing`] has the layout.

use std::fmt;
use std::fs::File;
use std::marker::PhantomData;
use std::path::Path;
use std::sync::Arc;

use serde::de::{SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest, Sha256};

use crate::data_type::DataType;
use crate::dist_collective::Info;
use crate::error::{Error, Result, bail, error};
use crate::framing::StoredFormat;
use crate::memory::Buffer;
use crate::network::{
    ConstantLayer, Layer, LayerBody, LayerId, MadeFor, Network, NetworkInput, Plugin, PluginCall, PluginLayer,
    PluginRegistry, Tensor, TensorId, TensorSource,
};
use crate::shape::{Dims, Shape};
use crate::util::text::on_one_line;

const FORMAT: StoredFormat = StoredFormat { magic: *b"DCLPLAN\0", version: 1, noun: "plan" };

#[derive(Serialize, Deserialize)]
struct PlanBody {
    made_for: Option<MadeFor>,
    profile_count: u32,
    #[serde(deserialize_with = "as_they_come")]
    tensors: Vec<TensorRecord>,
    #[serde(deserialize_with = "as_they_come")]
    layers: Vec<LayerRecord>,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
}

#[derive(Serialize, Deserialize)]
struct TensorRecord {
    name: String,
    data_type: DataType,
    source: SourceRecord,
}

#[derive(Serialize, Deserialize)]
enum SourceRecord {
    Input(Box<NetworkInput>),
    Layer { layer: u32, port: u32 },
}

#[derive(Serialize, Deserialize)]
struct LayerRecord {
    info: Info,
    inputs: Vec<u32>,
    outputs: Vec<u32>,
    body: BodyRecord,
}

/// What a layer is, and what its type cannot say.
#[derive(Serialize, Deserialize)]
enum BodyRecord {
    Plain(LayerBody),
    Constant { data_type: DataType, dims: Dims, bytes: Vec<u8> },
    Plugin { type_name: String, version: String, bytes: Vec<u8> },
}

/// Reads a list without room for more elements than have come. A record is much larger in memory
/// than in a plan, so a wrong number of records must not decide how much memory is allocated.
fn as_they_come<'de, D: Deserializer<'de>, T: Deserialize<'de>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    struct AsTheyCome<T>(PhantomData<T>);

    impl<'de, T: Deserialize<'de>> Visitor<'de> for AsTheyCome<T> {
        type Value = Vec<T>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a list")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = list.next_element()? {
                elements.push(element);
            }
            Ok(elements)
        }
    }

    deserializer.deserialize_seq(AsTheyCome(PhantomData))
}

/// Writes a network as a plan.
pub(crate) fn write(network: &Network) -> Result<Vec<u8>> {
    let body = PlanBody {
        made_for: network.made_for,
        profile_count: network.profile_count as u32,
        tensors: network.tensors.iter().map(tensor_record).collect(),
        layers: network.layers.iter().map(layer_record).collect::<Result<_>>()?,
        inputs: numbers(&network.inputs),
        outputs: numbers(&network.outputs),
    };
    FORMAT.write(&body)
}

/// The bytes of a file that may be a plan.
pub(super) fn read_file(path: &Path) -> Result<Vec<u8>> {
    let unreadable = |e| error!(System, "the plan {} cannot be read: {e}", path.display()).with_source(e);
    FORMAT.bytes_of(File::open(path).map_err(unreadable)?, unreadable)
}

/// Reads a plan. Without a registry every plugin is an [`UnknownPlugin`].
pub(super) fn read(plan: &[u8], registry: Option<&PluginRegistry>) -> Result<Network> {
    to_network(FORMAT.read(plan)?, registry)
}

fn numbers(tensors: &[TensorId]) -> Vec<u32> {
    tensors.iter().map(|tensor| tensor.index() as u32).collect()
}

fn tensor_record(tensor: &Tensor) -> TensorRecord {
    let source = match &tensor.source {
        TensorSource::Input(input) => SourceRecord::Input(input.clone()),
        TensorSource::Layer { layer, port } => SourceRecord::Layer { layer: layer.index() as u32, port: *port },
    };
    TensorRecord { name: tensor.name.clone(), data_type: tensor.data_type, source }
}

fn layer_record(layer: &Layer) -> Result<LayerRecord> {
    let body = match &layer.body {
        LayerBody::Constant(layer) => BodyRecord::Constant {
            data_type: layer.value.data_type(),
            dims: layer.value.shape().to_dims(),
            bytes: layer.value.as_bytes()?.to_vec(),
        },
        LayerBody::Plugin(plugin) => BodyRecord::Plugin {
            type_name: plugin.plugin.type_name().to_owned(),
            version: plugin.plugin.version().to_owned(),
            bytes: plugin.plugin.serialize().map_err(|e| e.about(|| layer.subject()))?,
        },
        body => BodyRecord::Plain(body.clone()),
    };
    let info = layer.info.clone();
    Ok(LayerRecord { info, inputs: numbers(&layer.inputs), outputs: numbers(&layer.outputs), body })
}

/// The network. Checks that each number is in range, and that each tensor has one source.
fn to_network(body: PlanBody, registry: Option<&PluginRegistry>) -> Result<Network> {
    let damaged = |what: &str| error!(InvalidPlan, "the plan contradicts itself: {what}");
    let mut network = Network::new();
    let number = network.number;
    let tensor_count = body.tensors.len();
    let ids = |numbers: Vec<u32>| -> Result<Vec<TensorId>> {
        if numbers.iter().any(|&n| n as usize >= tensor_count) {
            return Err(damaged("a tensor's number is out of range"));
        }
        Ok(numbers.into_iter().map(|n| TensorId::new(number, n as usize)).collect())
    };
    for record in body.layers {
        let (inputs, outputs) = (ids(record.inputs)?, ids(record.outputs)?);
        let body = to_body(record.body, &record.info.name, registry)?;
        let layer = Layer { info: record.info, inputs, outputs, body };
        layer.body.op().check().map_err(in_plan)?;
        if !layer.has_right_arity() {
            return Err(damaged("a layer has a wrong number of inputs or outputs"));
        }
        network.layers.push(layer);
    }
    network.inputs = ids(body.inputs)?;
    let mut input_uses = vec![0u32; tensor_count];
    network.inputs.iter().for_each(|input| input_uses[input.index()] += 1);
    for (index, record) in body.tensors.into_iter().enumerate() {
        let id = TensorId::new(number, index);
        let source = match record.source {
            SourceRecord::Input(input) if input_uses[index] == 1 => TensorSource::Input(input),
            SourceRecord::Layer { layer, port }
                if network.layers.get(layer as usize).and_then(|l| l.outputs.get(port as usize)) == Some(&id) =>
            {
                TensorSource::Layer { layer: LayerId::new(number, layer as usize), port }
            }
            _ => return Err(damaged("a tensor's source does not know it")),
        };
        network.tensors.push(Tensor { name: record.name, data_type: record.data_type, source, output: None });
    }
    let layer_outputs: usize = network.layers.iter().map(|layer| layer.outputs.len()).sum();
    if network.inputs.len() + layer_outputs != tensor_count {
        return Err(damaged("a tensor has two sources"));
    }
    for tensor in ids(body.outputs)? {
        network.add_output(tensor).map_err(in_plan)?;
    }
    network.made_for = body.made_for.map(|made_for| made_for.check().map_err(in_plan)).transpose()?;
    network.profile_count = body.profile_count as usize;
    network.check_profiles().map_err(in_plan)?;
    Ok(network)
}

/// A plugin of a plan that is only shown.
#[derive(Debug)]
struct UnknownPlugin {
    type_name: String,
    version: String,
    bytes: Vec<u8>,
}

impl Plugin for UnknownPlugin {
    fn type_name(&self) -> &str {
        &self.type_name
    }

    fn version(&self) -> &str {
        &self.version
    }

    fn output_types(&self, _inputs: &[DataType]) -> Result<Vec<DataType>> {
        bail!(Unsupported, "plugin {:?} is unknown", self.type_name)
    }

    fn output_shapes(&self, _inputs: &[Shape]) -> Result<Vec<Shape>> {
        bail!(Unsupported, "plugin {:?} is unknown", self.type_name)
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        bail!(Unsupported, "plugin {:?} is unknown", self.type_name)
    }

    fn serialize(&self) -> Result<Vec<u8>> {
        Ok(self.bytes.clone())
    }
}

fn in_plan(error: Error) -> Error {
    error!(InvalidPlan, "the plan breaks a rule: {error}")
}

fn to_body(record: BodyRecord, name: &str, registry: Option<&PluginRegistry>) -> Result<LayerBody> {
    Ok(match record {
        BodyRecord::Plain(body) => body,
        BodyRecord::Constant { data_type, dims, bytes } => {
            let shape = dims.to_shape().map_err(in_plan)?;
            if shape.byte_len(data_type) != bytes.len() {
                let len = bytes.len();
                bail!(InvalidPlan, "constant {name:?} has {len} bytes, and {data_type} {shape} does not");
            }
            let mut value = Buffer::with_shape(data_type, shape)?;
            value.as_mut_bytes()?.copy_from_slice(&bytes);
            LayerBody::Constant(ConstantLayer { value: Arc::new(value) })
        }
        BodyRecord::Plugin { type_name, version, bytes } => {
            let plugin = match registry {
                Some(registry) => registry.create(&type_name, &version, &bytes),
                None => Ok(Arc::new(UnknownPlugin { type_name: type_name.clone(), version, bytes }) as Arc<dyn Plugin>),
            };
            let plugin = plugin.map_err(|e| e.about(|| format!("layer {name:?} ({})", on_one_line(&type_name))))?;
            LayerBody::Plugin(PluginLayer { plugin })
        }
    })
}

/// A short name for what an engine computes: the beginning of a hash over its description. A plugin
/// that cannot be serialized counts by its name.
pub(crate) fn fingerprint(network: &Network) -> String {
    let mut hash = Sha256::new();
    hash.update([network.profile_count as u8]);
    for tensor in &network.tensors {
        hash.update(postcard::to_stdvec(&tensor_record(tensor)).unwrap_or_default());
    }
    for layer in &network.layers {
        match layer_record(layer).and_then(|record| {
            postcard::to_stdvec(&record).map_err(|e| error!(System, "the layer cannot be written").with_source(e))
        }) {
            Ok(bytes) => hash.update(bytes),
            Err(_) => hash.update(layer.subject()),
        }
    }
    hash.finalize().iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::Partition;
    use crate::network::{ElementWiseOperation, Shuffle};
    use crate::{DistCollective, Engine, Rank, ReduceOperation};

    fn body_of(network: &Network) -> Vec<u8> {
        let plan = write(network).expect("a plan");
        FORMAT.open(&plan).expect("a plan").to_vec()
    }

    /// A plan with this body whose header and checksum are right.
    fn plan_of(body: &[u8]) -> Vec<u8> {
        FORMAT.seal(body)
    }

    fn network() -> Result<Network> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 4])?;
        network.set_optimization_profile(x, [2, 4], [4, 4], [8, 4])?;
        let a = network.add(DistCollective::all_reduce(ReduceOperation::Avg).nb_rank(2), x)?;
        let b = network.add(DistCollective::all_gather().partition(Partition::new([[0], [1]])), a)?;
        let c = network.add_shuffle(b, Shuffle::transpose([1, 0]).then_reshape([0, -1]))?;
        let d = network.add(DistCollective::scatter(Rank(1)).group([Rank(1), Rank(0)]), c)?;
        let k = network.add_constant(&[1i64, 2], [2])?;
        let k = network.add_cast(k, DataType::Float8E4M3)?;
        let e = network.add_elementwise(x, x, ElementWiseOperation::Div)?;
        let e = network.add_concatenation(&[x, e], 1)?;
        let e = network.add_slice(e, &[0, 7], &[2, 3], &[1, -2])?;
        let e = network.add_identity(e)?;
        network.mark_output(e, "e")?;
        network.mark_output(d, "d")?;
        network.mark_output(k, "k")?;
        Ok(network)
    }

    /// Anybody can compute the checksum, so any body may come. Reading it gives an error or an
    /// engine, and never panics.
    #[test]
    fn a_body_that_was_made_up_is_an_error_or_valid() {
        let network = network().expect("a network");
        let body = body_of(&network);
        assert!(Engine::deserialize(&plan_of(&body)).is_ok(), "the unaltered body");
        let mut outcomes = [0, 0];
        for at in 0..body.len() {
            for value in
                [0, 1, 2, 0x7f, 0x80, 0xff, body[at].wrapping_add(1), body[at].wrapping_sub(1), body[at] ^ 0x40]
            {
                let mut altered = body.clone();
                altered[at] = value;
                outcomes[usize::from(Engine::deserialize(&plan_of(&altered)).is_ok())] += 1;
            }
            let mut cut = body.clone();
            cut.truncate(at);
            assert!(Engine::deserialize(&plan_of(&cut)).is_err(), "cut at {at}");
        }
        assert!(outcomes[0] > 100 && outcomes[1] > 100, "{outcomes:?}");
    }
}
