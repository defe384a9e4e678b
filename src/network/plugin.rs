//! Layers that a user implements.

use std::collections::HashMap;
use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;

use crate::data_type::DataType;
use crate::error::{Result, bail, error};
use crate::memory::{RawTensor, TensorView, TensorViewMut};
use crate::shape::Shape;

/// A layer of the user's own: a shape function and a computation, so that a real model's compute
/// can stand between collectives.
///
/// `output_types` and `output_shapes` are called while a network is described and built and when
/// shapes are set; a panic in them goes through to the caller of those. A panic in `enqueue` is an
/// error of the run.
///
/// A plugin is shared by every context of an engine and may be called from several threads at once.
pub trait Plugin: fmt::Debug + Send + Sync + 'static {
    /// The kind of layer: how a plan and a [`PluginRegistry`] know it, and error messages call it.
    fn type_name(&self) -> &str;

    /// The version of the plugin: a plan is read back by the same version only.
    fn version(&self) -> &str {
        "1"
    }

    /// The types of the outputs, from those of the inputs. There is at least one output.
    ///
    /// # Errors
    ///
    /// Inputs that the plugin does not take.
    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>>;

    /// The shapes of the outputs, from those of the inputs.
    ///
    /// # Errors
    ///
    /// Inputs that the plugin does not take.
    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>>;

    /// Computes the outputs. On a GPU it enqueues what computes them, and waits for nothing.
    ///
    /// # Errors
    ///
    /// Whatever the plugin cannot do. It ends the communicator: the other ranks get an error that
    /// names this layer.
    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()>;

    /// Whether [`enqueue`](Self::enqueue) can compute on a GPU: on the stream of
    /// [`PluginCall::cuda_stream`], with tensors in the GPU's memory. Others cannot stand in a
    /// network that runs on GPUs.
    fn runs_on_cuda(&self) -> bool {
        false
    }

    /// What a plan keeps of the plugin, for [`PluginRegistry`] to make it again.
    ///
    /// # Errors
    ///
    /// A plugin that cannot be kept.
    fn serialize(&self) -> Result<Vec<u8>> {
        Err(error!(Unsupported, "plugin {:?} does not say how it is serialized", self.type_name()))
    }
}

/// The tensors of one run of a plugin.
pub struct PluginCall<'a> {
    inputs: &'a dyn Fn(usize) -> Option<RawTensor>,
    outputs: &'a dyn Fn(usize) -> Option<RawTensor>,
    stream: Option<*mut c_void>,
}

impl<'a> PluginCall<'a> {
    /// # Safety
    ///
    /// During `'a`, or when the stream comes to it, the inputs are initialized memory that nobody
    /// writes; the outputs are initialized memory that nobody else uses, apart from each other and
    /// from the inputs; all are aligned to their element size.
    pub(crate) unsafe fn new(
        inputs: &'a dyn Fn(usize) -> Option<RawTensor>,
        outputs: &'a dyn Fn(usize) -> Option<RawTensor>,
        stream: Option<*mut c_void>,
    ) -> Self {
        PluginCall { inputs, outputs, stream }
    }

    /// The CUDA stream, a `CUstream`, on which to compute; none on the host.
    pub fn cuda_stream(&self) -> Option<*mut c_void> {
        self.stream
    }

    /// An input.
    ///
    /// # Errors
    ///
    /// There is no such input.
    pub fn input(&self, index: usize) -> Result<TensorView<'a>> {
        match (self.inputs)(index) {
            // SAFETY: the promise of `new`.
            Some(raw) => Ok(unsafe { TensorView::from_raw(raw) }),
            None => bail!(Plugin, "there is no input {index}"),
        }
    }

    /// All inputs.
    pub fn inputs(&self) -> impl Iterator<Item = TensorView<'a>> {
        // SAFETY: the promise of `new`.
        (0..).map_while(|index| (self.inputs)(index)).map(|raw| unsafe { TensorView::from_raw(raw) })
    }

    /// An output, to be written whole. What it holds before is not defined.
    ///
    /// # Errors
    ///
    /// There is no such output.
    pub fn output(&mut self, index: usize) -> Result<TensorViewMut<'_>> {
        match (self.outputs)(index) {
            // SAFETY: the promise of `new`; `self` is borrowed mutably, so there is one view of an
            // output at a time.
            Some(raw) => Ok(unsafe { TensorViewMut::from_raw(raw) }),
            None => bail!(Plugin, "there is no output {index}"),
        }
    }

    /// All outputs, to be written together.
    pub fn outputs(&mut self) -> impl Iterator<Item = TensorViewMut<'_>> {
        // SAFETY: the promise of `new`: outputs are apart from each other; each index comes once.
        (0..).map_while(|index| (self.outputs)(index)).map(|raw| unsafe { TensorViewMut::from_raw(raw) })
    }
}

impl fmt::Debug for PluginCall<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tensors = |side: &dyn Fn(usize) -> Option<RawTensor>| (0..).map_while(side).collect::<Vec<_>>();
        f.debug_struct("PluginCall")
            .field("inputs", &tensors(self.inputs))
            .field("outputs", &tensors(self.outputs))
            .field("cuda_stream", &self.stream)
            .finish()
    }
}

type Creator = Box<dyn Fn(&[u8]) -> Result<Arc<dyn Plugin>> + Send + Sync>;

/// How plugins are made again from what a plan keeps of them, by name and version.
#[derive(Default)]
pub struct PluginRegistry {
    creators: HashMap<(String, String), Creator>,
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
