//! Layers that a user implements.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::{LayerBody, LayerOp, LayerRun};
use crate::cuda::{Kernel, call_out};
use crate::data_type::DataType;
use crate::dist_collective::Info;
use crate::error::{Result, bail, error};
use crate::memory::{RawTensor, TensorView, TensorViewMut};
use crate::network::{Network, TensorId};
use crate::shape::Shape;
use crate::util::panic_message;

/// A layer that the user implements: it infers shapes and computes, so that a model's own layers
/// can run between collectives.
///
/// The library calls `output_types` and `output_shapes` when a network is described and built, and
/// when shapes are set. If they panic, that call panics. If `enqueue` panics, the run returns an
/// error. All contexts of an engine share its plugins, so several threads may call one at a time.
///
/// ```
/// use distcollective::network::{Plugin, PluginCall};
/// use distcollective::{DataType, Network, Result};
/// use distcollective::{inputs, outputs};
///
/// #[derive(Debug)]
/// struct Scale(f32);
///
/// impl Plugin for Scale {
///     fn type_name(&self) -> &str {
///         "scale"
///     }
///
///     fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
///         let x = call.input(0)?;
///         let mut y = call.output(0)?;
///         for (y, x) in y.as_mut_slice::<f32>()?.iter_mut().zip(x.as_slice::<f32>()?) {
///             *y = self.0 * x;
///         }
///         Ok(())
///     }
/// }
///
/// let mut network = Network::new();
/// let x = network.add_input("x", DataType::Float32, [2])?;
/// let y = network.add_plugin("double", Scale(2.0), &[x])?;
/// network.mark_output(y, "y")?;
/// let mut context = network.build()?.create_execution_context()?;
/// let mut y = [0f32; 2];
/// context.execute(inputs!["x" => &[1f32, 2.0]], outputs!["y" => &mut y])?;
/// assert_eq!(y, [2.0, 4.0]);
/// # Ok::<(), distcollective::Error>(())
/// ```
pub trait Plugin: fmt::Debug + Send + Sync + 'static {
    /// The kind of layer. A plan, a [`PluginRegistry`] and error messages name the plugin by it.
    fn type_name(&self) -> &str;

    /// The version of the plugin. Only the same version reads a plan back.
    fn version(&self) -> &str {
        "1"
    }

    /// The types of the outputs, from the types of the inputs. There is at least one output. By
    /// default there is one, of the type of the first input.
    ///
    /// # Errors
    ///
    /// The plugin does not take these inputs.
    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.iter().take(1).copied().collect())
    }

    /// The shapes of the outputs, from the shapes of the inputs. By default there is one, that of
    /// the first input.
    ///
    /// # Errors
    ///
    /// The plugin does not take these inputs.
    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(inputs.iter().take(1).copied().collect())
    }

    /// Computes the outputs. On a GPU it enqueues that on the stream and does not wait.
    ///
    /// # Errors
    ///
    /// The plugin fails. That ends the communicator: the other ranks get an error that names this
    /// layer.
    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()>;

    /// Whether [`enqueue`](Self::enqueue) can compute on a GPU: on the stream of
    /// [`PluginCall::cuda_stream`], with tensors in the GPU's memory. A network with another plugin
    /// does not run on GPUs.
    fn runs_on_cuda(&self) -> bool {
        false
    }

    /// The plugin as bytes in a plan, from which [`PluginRegistry`] makes it again.
    ///
    /// # Errors
    ///
    /// The plugin cannot be serialized. The default implementation returns this error.
    fn serialize(&self) -> Result<Vec<u8>> {
        Err(error!(Unsupported, "plugin {:?} does not say how it is serialized", self.type_name()))
    }
}

/// The tensors of one run of a plugin.
pub struct PluginCall<'a> {
    /// Of [`PluginLayer::run`], which alone makes a call. Its caller promises, for as long as the
    /// call exists or until the stream has done its work: tensors are initialized memory, aligned
    /// to their element size; inputs are not written; outputs are used through this call only, and
    /// overlap neither each other nor the inputs.
    run: &'a LayerRun<'a>,
}

impl<'a> PluginCall<'a> {
    /// The CUDA stream (a `CUstream`) on which to compute. `None` on the host.
    pub fn cuda_stream(&self) -> Option<*mut c_void> {
        self.run.executor.0.map(|stream| stream.as_ptr())
    }

    fn raw(&self, tensors: &[TensorId], index: usize) -> Option<RawTensor> {
        tensors.get(index).map(|&tensor| (self.run.locate)(tensor))
    }

    /// An input.
    ///
    /// # Errors
    ///
    /// No input has this index.
    pub fn input(&self, index: usize) -> Result<TensorView<'a>> {
        match self.raw(&self.run.layer.inputs, index) {
            // SAFETY: the promise of `run`.
            Some(raw) => Ok(unsafe { TensorView::from_raw(raw) }),
            None => bail!(Plugin, "there is no input {index}"),
        }
    }

    /// All inputs.
    pub fn inputs(&self) -> impl Iterator<Item = TensorView<'a>> {
        // SAFETY: the promise of `run`.
        (0..).map_while(|index| self.raw(&self.run.layer.inputs, index)).map(|raw| unsafe { TensorView::from_raw(raw) })
    }

    /// An output. The plugin writes all of it; its contents before are not defined.
    ///
    /// # Errors
    ///
    /// No output has this index.
    pub fn output(&mut self, index: usize) -> Result<TensorViewMut<'_>> {
        match self.raw(&self.run.layer.outputs, index) {
            // SAFETY: the promise of `run`; `self` is borrowed mutably, so there is one view of an
            // output at a time.
            Some(raw) => Ok(unsafe { TensorViewMut::from_raw(raw) }),
            None => bail!(Plugin, "there is no output {index}"),
        }
    }

    /// All outputs.
    pub fn outputs(&mut self) -> impl Iterator<Item = TensorViewMut<'_>> {
        let outputs = (0..).map_while(|index| self.raw(&self.run.layer.outputs, index));
        // SAFETY: the promise of `run`: outputs are apart from each other; each index comes once.
        outputs.map(|raw| unsafe { TensorViewMut::from_raw(raw) })
    }
}

impl fmt::Debug for PluginCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = |ids: &[TensorId]| ids.iter().map(|&id| (self.run.locate)(id)).collect::<Vec<_>>();
        f.debug_struct("PluginCall")
            .field("inputs", &tensors(&self.run.layer.inputs))
            .field("outputs", &tensors(&self.run.layer.outputs))
            .field("cuda_stream", &self.cuda_stream())
            .finish()
    }
}

type PluginCreator = Box<dyn Fn(&[u8]) -> Result<Arc<dyn Plugin>> + Send + Sync>;

/// How plugins are made from the bytes in a plan, by name and version.
///
/// ```
/// # use distcollective::network::{Plugin, PluginCall};
/// # use distcollective::{DataType, Result};
/// use distcollective::network::PluginRegistry;
/// use distcollective::{Error, ErrorKind};
///
/// # #[derive(Debug)]
/// struct Scale(f32);
///
/// impl Plugin for Scale {
///     // …
///     fn serialize(&self) -> Result<Vec<u8>> {
///         Ok(self.0.to_le_bytes().to_vec())
///     }
/// #   fn type_name(&self) -> &str { "scale" }
/// #   fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> { Ok(()) }
/// }
///
/// let mut plugins = PluginRegistry::new();
/// plugins.register("scale", "1", |bytes| {
///     let wrong = || Error::new(ErrorKind::InvalidPlan, "a scale is 4 bytes");
///     Ok(Scale(f32::from_le_bytes(bytes.try_into().map_err(|_| wrong())?)))
/// })?;
/// # let path = std::env::temp_dir().join(format!("dcl-doc-{}.plan", std::process::id()));
/// # let mut network = distcollective::Network::new();
/// # let x = network.add_input("x", DataType::Float32, [2])?;
/// # let y = network.add_plugin("double", Scale(2.0), &[x])?;
/// # network.mark_output(y, "y")?;
/// # network.build()?.save(&path)?;
/// let engine = distcollective::Engine::load_with(&path, &plugins)?;
/// # std::fs::remove_file(&path).expect("the file");
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Default)]
pub struct PluginRegistry {
    creators: HashMap<(String, String), PluginCreator>,
}

impl PluginRegistry {
    /// A registry without plugins.
    pub fn new() -> Self {
        PluginRegistry::default()
    }

    /// Registers how a plugin is made from the bytes of [`Plugin::serialize`].
    ///
    /// # Errors
    ///
    /// The name and version are registered already.
    pub fn register<P: Plugin>(
        &mut self,
        name: &str,
        version: &str,
        create: impl Fn(&[u8]) -> Result<P> + Send + Sync + 'static,
    ) -> Result<()> {
        let key = (name.to_owned(), version.to_owned());
        if self.creators.contains_key(&key) {
            bail!(InvalidArgument, "plugin {name:?} version {version:?} is registered already");
        }
        self.creators.insert(key, Box::new(move |bytes| Ok(Arc::new(create(bytes)?) as Arc<dyn Plugin>)));
        Ok(())
    }

    pub(crate) fn create(&self, name: &str, version: &str, bytes: &[u8]) -> Result<Arc<dyn Plugin>> {
        match self.creators.get(&(name.to_owned(), version.to_owned())) {
            Some(create) => create(bytes),
            None => {
                let mut known: Vec<String> = self.creators.keys().map(|(n, v)| format!("{n:?} {v:?}")).collect();
                known.sort();
                let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
                bail!(InvalidPlan, "plugin {name:?} version {version:?} is not registered; registered: {known}")
            }
        }
    }
}

impl fmt::Debug for PluginRegistry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.creators.keys()).finish()
    }
}

/// See [`Network::add_plugin`].
#[derive(Clone, Debug)]
pub struct PluginLayer {
    pub(crate) plugin: Arc<dyn Plugin>,
}

impl LayerOp for PluginLayer {
    fn kind(&self) -> &str {
        self.plugin.type_name()
    }

    fn has_arity(&self, _inputs: usize, outputs: usize) -> bool {
        outputs > 0
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        let outputs = self.plugin.output_types(inputs)?;
        if outputs.is_empty() {
            bail!(InvalidArgument, "a plugin has at least one output");
        }
        Ok(outputs)
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        self.plugin.output_shapes(&inputs.iter().map(|shape| **shape).collect::<Vec<_>>())
    }

    fn kernels(&self, _inputs: &[DataType]) -> Result<Vec<Kernel>> {
        if !self.plugin.runs_on_cuda() {
            bail!(Unsupported, "the plugin does not say that it runs on CUDA, and the communicator is on GPUs");
        }
        Ok(Vec::new())
    }

    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let mut call = PluginCall { run };
        let enqueue = || catch_unwind(AssertUnwindSafe(|| self.plugin.enqueue(&mut call)));
        let result = call_out(enqueue)?
            .unwrap_or_else(|panic| Err(error!(Plugin, "the plugin panicked: {}", panic_message(panic.as_ref()))));
        result.map_err(|e| e.about(|| run.layer.subject()))
    }
}

impl Network {
    /// Adds a layer that the user implements, and gives its first output. All outputs are
    /// [`layer_outputs`](Self::layer_outputs) of its [`producer`](Self::producer).
    ///
    /// # Errors
    ///
    /// - The network does not have the tensor.
    /// - The plugin does not take the types of the inputs.
    /// - The plugin has no outputs.
    pub fn add_plugin(&mut self, name: &str, plugin: impl Plugin, inputs: &[TensorId]) -> Result<TensorId> {
        let body = LayerBody::Plugin(PluginLayer { plugin: Arc::new(plugin) });
        self.add_named_layer(Info { name: name.to_owned(), metadata: String::new() }, body, inputs)
    }
}
