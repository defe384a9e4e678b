//! The engine: a network that has been validated, with its schedule and memory plan.

mod analysis;
mod dims;
mod inference;
mod inspect;
mod memory;
mod placement;
mod plan;
mod warnings;

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use serde::Serialize;
use sha2::{Digest, Sha256};

pub(crate) use analysis::Analysis;
use inference::{infer_shapes, input_shapes};
pub use inspect::Inspection;
pub(crate) use memory::{Location, MemoryPlan, Place, Region};

use crate::data_type::DataType;
use crate::dist_collective::PlannedCall;
use crate::error::{Result, bail, error};
use crate::network::{LayerId, Network, PluginRegistry, TensorId, TensorSource};
use crate::shape::{Dims, Shape};
use crate::util::new_file::NewFile;
use crate::util::text::count_of;
use crate::util::{lock, log};

/// A network that is ready to run: TensorRT's `ICudaEngine`. It never changes, and clones are the
/// same engine.
///
/// ```
/// use distcollective::{DataType, DistCollective, Engine, Network, ReduceOperation};
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float32, [4, 8])?;
/// let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x)?;
/// network.mark_output(y, "y")?;
/// let engine = network.build()?;
/// println!("{}", engine.inspect());
///
/// let plan = engine.serialize()?; // or `save` into a file
/// let same = Engine::deserialize(&plan)?;
/// assert_eq!(same.fingerprint(), engine.fingerprint());
/// assert_eq!(same.io_tensor("y")?.dims.as_slice(), [4, 8]);
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone)]
pub struct Engine {
    pub(crate) inner: Arc<EngineInner>,
}

pub(crate) struct EngineInner {
    pub(crate) network: Network,
    pub(crate) analysis: Analysis,
    pub(crate) memory: MemoryPlan,
    pub(crate) io: Vec<IoTensor>,
    /// The collective calls, as ranks compare them.
    pub(crate) planned_calls: Vec<PlannedCall>,
    pub(crate) fingerprint: String,
    /// The shapes of inputs and outputs at the points of the profiles that were asked for.
    profile_shapes: Mutex<BTreeMap<usize, Arc<IoShapes>>>,
}

/// The shape of each input and output at min, opt and max of a profile.
type IoShapes = [Vec<Shape>; 3];

/// Whether a tensor is an input or an output. There is no third kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum IoMode {
    /// The caller binds a tensor to read.
    Input,
    /// The caller binds a tensor to write.
    Output,
}

impl IoMode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            IoMode::Input => "input",
            IoMode::Output => "output",
        }
    }
}

/// A tensor that the caller binds.
#[derive(Clone, Debug, Serialize)]
#[non_exhaustive]
pub struct IoTensor {
    /// The name.
    pub name: String,
    /// Whether it is an input or an output.
    pub mode: IoMode,
    /// The type of the elements.
    #[serde(serialize_with = "inspect::as_text")]
    pub data_type: DataType,
    /// The dimensions. Those that depend on input shapes are -1.
    pub dims: Dims,
    #[serde(skip)]
    pub(crate) tensor: TensorId,
}

impl Network {
    /// Validates the network and plans its memory. What is allowed but may be a mistake goes to the
    /// log and to [`Engine::warnings`].
    ///
    /// ```
    /// use distcollective::{DataType, DistCollective, ErrorKind, Network, ReduceOperation};
    ///
    /// let mut network = Network::new();
    /// let x = network.add_input("x", DataType::Float32, [10, 8])?;
    /// let sum = DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(4);
    /// let y = network.add(sum.named("grad_sync"), x)?;
    /// network.mark_output(y, "y")?;
    /// let error = network.build().unwrap_err();
    /// assert_eq!(error.kind(), ErrorKind::InvalidNetwork);
    /// let rule = "dimension 0 is 10, which is not a multiple of 4 ranks";
    /// assert!(error.to_string().contains(rule));
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// [`InvalidNetwork`](crate::ErrorKind::InvalidNetwork) with all mistakes. Each names its layer
    /// and rule; see [`Error::mistakes`](crate::Error::mistakes). A mistake that only follows from
    /// another is left out.
    pub fn build(&self) -> Result<Engine> {
        let engine = Engine::new(self.clone())?;
        log::event!(DEBUG, "an engine of {} layers, plan {}", self.layers().count(), engine.fingerprint());
        for warning in engine.warnings() {
            log::event!(WARN, "{warning}");
        }
        Ok(engine)
    }
}

impl Engine {
    pub(crate) fn new(mut network: Network) -> Result<Self> {
        let analysis = analysis::analyze(&network)?;
        // The same network gives the same bytes, whatever it was while it was described.
        for (tensor, data_type) in network.tensors.iter_mut().zip(&analysis.types) {
            tensor.data_type = *data_type;
        }
        Ok(Engine { inner: Arc::new(EngineInner::new(network, analysis)?) })
    }

    /// The engine as plan bytes, which [`deserialize`](Self::deserialize) reads. The same network
    /// gives the same bytes.
    ///
    /// # Errors
    ///
    /// A plugin cannot be serialized.
    pub fn serialize(&self) -> Result<Vec<u8>> {
        plan::write(&self.inner.network)
    }

    /// Writes the plan into a file, which [`load`](Self::load) reads. It takes the place of one of
    /// that name when it is complete.
    ///
    /// # Errors
    ///
    /// - A plugin cannot be serialized.
    /// - [`System`](crate::ErrorKind::System): the file cannot be written.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        NewFile::save(path, self.serialize()?)
            .map_err(|e| error!(System, "the plan cannot be written to {}: {e}", path.display()).with_source(e))
    }

    /// Reads a file of [`save`](Self::save): the plan of a network without plugins.
    ///
    /// # Errors
    ///
    /// - [`System`](crate::ErrorKind::System): the file cannot be read.
    /// - The errors of [`deserialize`](Self::deserialize).
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        Self::load_with(path, &PluginRegistry::new())
    }

    /// [`load`](Self::load), with the plugins of a registry.
    ///
    /// # Errors
    ///
    /// - [`System`](crate::ErrorKind::System): the file cannot be read.
    /// - The errors of [`deserialize_with`](Self::deserialize_with).
    pub fn load_with(path: impl AsRef<Path>, plugins: &PluginRegistry) -> Result<Self> {
        let path = path.as_ref();
        let plan = plan::read_file(path)?;
        Self::deserialize_with(&plan, plugins).map_err(|e| e.about(|| format!("plan {}", path.display())))
    }

    /// Reads plan bytes of a network without plugins.
    ///
    /// # Errors
    ///
    /// See [`deserialize_with`](Self::deserialize_with).
    pub fn deserialize(plan: &[u8]) -> Result<Self> {
        Self::deserialize_with(plan, &PluginRegistry::new())
    }

    /// Reads plan bytes of a network with plugins, which the registry makes.
    ///
    /// # Errors
    ///
    /// - [`InvalidPlan`](crate::ErrorKind::InvalidPlan): the bytes are no plan, a plan of another
    ///   format, or were cut or changed; a plugin is not registered.
    /// - The errors of [`Network::build`]: reading a plan validates it.
    /// - The errors of a plugin's constructor.
    pub fn deserialize_with(plan: &[u8], registry: &PluginRegistry) -> Result<Self> {
        Self::new(plan::read(plan, Some(registry))?)
    }

    /// The inputs, then the outputs, each in the order in which they were added.
    pub fn io_tensors(&self) -> &[IoTensor] {
        &self.inner.io
    }

    /// The input or output with a name.
    ///
    /// # Errors
    ///
    /// No input or output has this name. The error lists the names.
    pub fn io_tensor(&self, name: &str) -> Result<&IoTensor> {
        self.inner.io_index(name).map(|index| &self.inner.io[index])
    }

    /// The index in [`io_tensors`](Self::io_tensors) of the input or output with a name.
    ///
    /// # Errors
    ///
    /// No input or output has this name. The error lists the names.
    pub fn io_index(&self, name: &str) -> Result<usize> {
        self.inner.io_index(name)
    }

    /// The number of optimization profiles. It is 1 for a network to which none was added.
    pub fn optimization_profile_count(&self) -> usize {
        self.inner.network.implied_profile_count()
    }

    /// The shapes of an input or output at min, opt and max of a profile. Those of an output follow
    /// from those of the inputs.
    ///
    /// # Errors
    ///
    /// No input or output has this name, no profile this index, or a plugin gives no shape.
    pub fn profile_shapes(&self, name: &str, profile: usize) -> Result<[Shape; 3]> {
        let index = self.io_index(name)?;
        self.inner.check_profile(profile)?;
        Ok(self.inner.io_shapes(profile)?.each_ref().map(|shapes| shapes[index]))
    }

    /// A short text that differs between engines that compute different things, such as `8c1f02aa`.
    pub fn fingerprint(&self) -> &str {
        &self.inner.fingerprint
    }

    /// What is allowed but may be a mistake, as text.
    pub fn warnings(&self) -> &[String] {
        &self.inner.analysis.warnings
    }

    /// Tensors, layers, schedule and memory, as text, as JSON or as a graph.
    pub fn inspect(&self) -> Inspection {
        Inspection(inspect::Subject::Engine(self.clone()))
    }
}

impl fmt::Debug for Engine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names: Vec<&str> = self.inner.io.iter().map(|t| t.name.as_str()).collect();
        write!(f, "Engine({}, {names:?})", self.inner.fingerprint)
    }
}

impl EngineInner {
    fn new(network: Network, analysis: Analysis) -> Result<Self> {
        let memory = memory::plan(&network, &analysis)?;
        let io_tensor = |mode: IoMode, tensor: TensorId| {
            let dims = match &network.tensors[tensor.index()].source {
                TensorSource::Input(input) => input.dims,
                TensorSource::Layer { .. } => analysis.extents[tensor.index()].dims(),
            };
            IoTensor {
                name: network.tensors[tensor.index()].name.clone(),
                mode,
                data_type: analysis.types[tensor.index()],
                dims,
                tensor,
            }
        };
        let inputs = network.inputs.iter().map(|&t| io_tensor(IoMode::Input, t));
        let outputs = network.outputs.iter().map(|&t| io_tensor(IoMode::Output, t));
        let io = inputs.chain(outputs).collect();
        let planned_calls = planned_calls(&network, &analysis);
        let fingerprint = plan::fingerprint(&network);
        let profile_shapes = Mutex::default();
        Ok(EngineInner { network, analysis, memory, io, planned_calls, fingerprint, profile_shapes })
    }

    pub(crate) fn input_count(&self) -> usize {
        self.network.inputs.len()
    }

    /// A hash of where the operands of the collectives are in the communicator's region.
    pub(crate) fn places_of_operands(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        let is_collective = |id: &&LayerId| self.analysis.collectives[id.index()].is_some();
        for id in self.analysis.schedule.iter().filter(is_collective) {
            let layer = &self.network.layers[id.index()];
            for tensor in layer.inputs.iter().chain(&layer.outputs) {
                let offset = match self.memory.locations[tensor.index()] {
                    Location::Region(Place { region: Region::Communicator, offset, .. }) => offset as u64,
                    _ => u64::MAX,
                };
                hash.update(offset.to_le_bytes());
            }
        }
        hash.finalize().into()
    }

    /// Checks that there is a profile with this index.
    pub(crate) fn check_profile(&self, profile: usize) -> Result<()> {
        let count = self.network.implied_profile_count();
        if profile >= count {
            let count = count_of(count, "optimization profile");
            bail!(InvalidArgument, "there is no optimization profile {profile}; the engine has {count}");
        }
        Ok(())
    }

    /// The shapes of an input at min, opt and max of a profile; an error for an output.
    pub(crate) fn input_points(&self, io: &IoTensor, profile: usize) -> Result<[Shape; 3]> {
        let points = match &self.network.tensors[io.tensor.index()].source {
            TensorSource::Input(input) => input.points(profile)?,
            TensorSource::Layer { .. } => {
                bail!(InvalidArgument, "it is an output; its shape follows from those of the inputs")
            }
        };
        points.ok_or_else(|| error!(InvalidArgument, "optimization profile {profile} has no shapes for it"))
    }

    /// The shapes of inputs and outputs at the points of a profile. They are inferred once.
    fn io_shapes(&self, profile: usize) -> Result<Arc<IoShapes>> {
        if let Some(known) = lock(&self.profile_shapes).get(&profile) {
            return Ok(Arc::clone(known));
        }
        // A plugin may ask for other shapes, so nothing is locked here.
        let of_io = |shapes: Vec<Shape>| self.io.iter().map(|io| shapes[io.tensor.index()]).collect();
        let shapes = [0, 1, 2].map(|point| self.infer_shapes(input_shapes(&self.network, profile, point)).map(of_io));
        let [min, opt, max] = shapes;
        let shapes = Arc::new([min?, opt?, max?]);
        Ok(Arc::clone(lock(&self.profile_shapes).entry(profile).or_insert(shapes)))
    }

    /// The shape of every tensor, from those of the inputs, or the first rule that these break.
    pub(crate) fn infer_shapes(&self, given: Vec<Option<Shape>>) -> Result<Vec<Shape>> {
        let EngineInner { network, analysis, .. } = self;
        let types: Vec<Option<DataType>> = analysis.types.iter().copied().map(Some).collect();
        let mut result = Ok(());
        let shapes = infer_shapes(network, &analysis.schedule, &types, &analysis.collectives, given, |_, error| {
            if result.is_ok() {
                result = Err(error);
            }
        });
        result.map(|()| shapes.into_iter().map(Option::unwrap_or_default).collect())
    }

    /// See [`Engine::io_index`].
    pub(crate) fn io_index(&self, name: &str) -> Result<usize> {
        self.io.iter().position(|t| t.name == name).ok_or_else(|| {
            let list = |mode| {
                let names: Vec<String> =
                    self.io.iter().filter(|t| t.mode == mode).map(|t| format!("{:?}", t.name)).collect();
                if names.is_empty() { "none".to_owned() } else { names.join(", ") }
            };
            error!(
                InvalidArgument,
                "{name:?} is not an input or output; inputs are {}; outputs are {}",
                list(IoMode::Input),
                list(IoMode::Output)
            )
        })
    }

    /// The first layer that cannot run without a communicator.
    pub(crate) fn first_collective(&self) -> Option<&str> {
        let mut collectives =
            self.analysis.schedule.iter().filter_map(|id| self.analysis.collectives[id.index()].as_ref());
        collectives.find(|c| !c.is_identity()).map(|c| &*c.subject)
    }
}

fn planned_calls(network: &Network, analysis: &Analysis) -> Vec<PlannedCall> {
    let call = |id: &LayerId| {
        let resolved = analysis.collectives[id.index()].as_ref().filter(|c| !c.is_identity())?;
        let input = network.layers[id.index()].inputs[0].index();
        let extent = &analysis.extents[input];
        let dims = extent.dims();
        let range = match dims.is_dynamic() {
            true => format!(" (from {} to {})", extent.min, extent.max),
            false => String::new(),
        };
        Some(PlannedCall::new(resolved, analysis.types[input], Some((&dims, &range))))
    };
    analysis.schedule.iter().filter_map(call).collect()
}
