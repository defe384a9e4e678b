//! The execution context: shapes, a communicator, and running an engine on bound tensors.

mod bindings;
mod checks;
mod communicator_binding;
mod gpu;
mod profile;
mod profile_file;
mod recordings;
mod regions;
mod replay;
mod run;
mod shapes;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

pub use bindings::Bindings;
use checks::Setup;
use communicator_binding::CommunicatorBinding;
use profile::Profilers;
pub use profile::{LayerTime, Profiler};
use profile_file::ProfileFile;
pub use replay::CudaGraphs;
use run::{RunIo, run};
use shapes::Shapes;

use crate::comm::Communicator;
use crate::engine::{Engine, IoMode};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{TensorView, TensorViewMut};
use crate::shape::Dims;
use crate::shape::Shape;
use crate::stream::{EnqueueError, Stream, Work};

/// What an engine needs to run: shapes, a communicator and memory. TensorRT's `IExecutionContext`.
///
/// 1. [`set_communicator`](Self::set_communicator), if the network has collectives of several
///    ranks.
/// 2. [`set_optimization_profile`](Self::set_optimization_profile), if it has several, and
///    [`set_input_shape`](Self::set_input_shape), if it has dynamic inputs.
/// 3. Any number of runs: [`execute`](Self::execute) borrows tensors and blocks;
///    [`enqueue`](Self::enqueue) owns buffers and returns a [`Work`].
///
/// Leaking or dropping a context during a run is sound: the work keeps what it needs.
pub struct ExecutionContext {
    engine: Engine,
    setup: Arc<Setup>,
    /// The index of the optimization profile.
    profile: usize,
    /// Each run on a worker or CUDA stream has a reference until it has ended; on a CUDA stream
    /// until its work is waited for, or was dropped and has ended.
    runs: Arc<()>,
    timeout: Option<Duration>,
    options: ContextOptions,
    /// What `execute` binds, kept so that it allocates nothing.
    scratch: RunIo,
}

/// How a context runs; see
/// [`Engine::create_execution_context_with`](crate::Engine::create_execution_context_with).
#[derive(Clone, Copy, Debug, Default)]
pub struct ContextOptions {
    cuda_graph: bool,
    graphs_without_agreement: bool,
}

impl ContextOptions {
    /// On GPUs, the second run with the same shapes and memory is recorded into a CUDA graph, and
    /// later ones replay it. A context keeps several graphs, so that buffers may alternate; see
    /// [`cuda_graphs`](ExecutionContext::cuda_graphs). Plugins have to enqueue the same work every
    /// time. It changes nothing on the host, and where ranks of one process share a GPU.
    ///
    /// Every rank of the communicator runs the context, and ranks agree over the host on what
    /// becomes of a run. A run of buffers that are new, or that several graphs have, waits for all
    /// ranks before it is enqueued. A rank that knows the graph by its own buffers replays it
    /// without waiting; if another rank has bound new buffers for that run, every rank gets a
    /// [`Disagreement`](crate::ErrorKind::Disagreement). So bind the same buffers again in the same
    /// runs on every rank.
    pub fn cuda_graph(mut self, cuda_graph: bool) -> Self {
        self.cuda_graph = cuda_graph;
        self
    }

    /// Records runs also where ranks do not agree on it: on several machines, and on a borrowed
    /// communicator. Ranks that do not bind the same buffers again in the same runs then get a
    /// [`Disagreement`](crate::ErrorKind::Disagreement), wait for each other until the deadline, or
    /// compute wrong results. Without this option such a context records nothing.
    pub fn graphs_without_agreement(mut self, graphs_without_agreement: bool) -> Self {
        self.graphs_without_agreement = graphs_without_agreement;
        self
    }
}

impl Engine {
    /// A context to run the engine in. An engine may have several, each with its own memory.
    ///
    /// # Errors
    ///
    /// There is not enough memory; the file of `DCL_PROFILE` cannot be opened, or another of
    /// [the library's variables](crate::comm::timeout_or) has a value that it cannot have.
    pub fn create_execution_context(&self) -> Result<ExecutionContext> {
        self.create_execution_context_with(ContextOptions::default())
    }

    /// [`create_execution_context`](Self::create_execution_context) with options.
    ///
    /// # Errors
    ///
    /// There is not enough memory; the file of `DCL_PROFILE` cannot be opened, or another of
    /// [the library's variables](crate::comm::timeout_or) has a value that it cannot have.
    pub fn create_execution_context_with(&self, options: ContextOptions) -> Result<ExecutionContext> {
        ExecutionContext::new(self.clone(), options)
    }
}

impl ExecutionContext {
    fn new(engine: Engine, options: ContextOptions) -> Result<Self> {
        let binding = Arc::new(CommunicatorBinding::without_communicator(Arc::clone(&engine.inner))?);
        let shapes = Arc::new(Shapes::of_static_inputs(&engine.inner)?);
        let scratch = RunIo::for_engine(&engine.inner);
        let profilers = Profilers { own: None, file: ProfileFile::of_environment()? };
        let (setup, profile, runs) = (Arc::new(Setup { binding, shapes, profilers }), 0, Arc::new(()));
        Ok(ExecutionContext { engine, setup, profile, runs, timeout: None, options, scratch })
    }

    /// The engine.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Sets the communicator on which the layers run. Collective: every rank of the communicator
    /// calls it, each on its own thread. Ranks compare the collective calls of their plans, once.
    /// Layers, their weights and their names may differ; operations, reductions, roots,
    /// participants, types and shapes may not. Work that was enqueued before keeps the old
    /// communicator.
    ///
    /// # Errors
    ///
    /// After the first two, no rank has set the communicator, and it still works.
    /// - [`InvalidCommunicator`](crate::ErrorKind::InvalidCommunicator): a layer's `nb_rank` or
    ///   groups do not fit, here or on another rank.
    /// - [`Disagreement`](crate::ErrorKind::Disagreement): the plans differ. The error names the
    ///   first differing layer and all sides.
    /// - See the contract of [`Communicator`].
    pub fn set_communicator(&mut self, communicator: &Communicator) -> Result<()> {
        let deadline = communicator.deadline();
        let bind = || CommunicatorBinding::to(Arc::clone(&self.engine.inner), communicator, self.options, deadline);
        let binding = communicator.in_turn(Extent::Communicator, &"set_communicator", deadline, bind);
        self.setup = Arc::new(Setup { binding: Arc::new(binding?), ..Setup::clone(&self.setup) });
        Ok(())
    }

    /// The communicator that is set.
    pub fn communicator(&self) -> Option<&Communicator> {
        self.setup.binding.communicator.as_ref()
    }

    /// How many runs on the communicator that is set were recorded into CUDA graphs or replayed
    /// them, and how many graphs are kept. A run that keeps being plain shows buffers that do not
    /// come again.
    pub fn cuda_graphs(&self) -> CudaGraphs {
        self.setup.binding.graphs.counts()
    }

    /// Sets the time that a run may take, from the moment of issue. Without one it is the
    /// communicator's timeout. A collective that still waits for other ranks then is an error.
    pub fn set_timeout(&mut self, timeout: impl Into<Option<Duration>>) {
        self.timeout = timeout.into();
    }

    /// Sets a function that is told how long each layer took, after each run on this rank that
    /// succeeds: TensorRT's `setProfiler` and `IProfiler`. `None` ends that. Runs that were
    /// enqueued before keep the old one. `DCL_PROFILE` writes the same times into a file.
    ///
    /// The function is called on the thread that runs the layers, and must not use the context or
    /// its communicator. A panic of it is logged. On GPUs the times are those of the GPU, and a
    /// call that enqueues a run waits for its end, as TensorRT's does; a run that the caller
    /// captures is not measured.
    ///
    /// ```
    /// # use std::sync::Arc;
    /// # use distcollective::{Communicator, DataType, DistCollective, Network};
    /// # use distcollective::{ReduceOperation, inputs, outputs};
    /// # let mut network = Network::new();
    /// # let x = network.add_input("x", DataType::Float32, [2])?;
    /// # let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1), x)?;
    /// # network.mark_output(y, "y")?;
    /// # let mut context = network.build()?.create_execution_context()?;
    /// context.set_profiler(Some(Arc::new(|time| {
    ///     println!("{}: {:?}", time.layer, time.duration);
    /// })));
    /// # let mut y = [0.0f32; 2];
    /// context.execute(inputs!["x" => &[1.0f32, 2.0]], outputs!["y" => &mut y])?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn set_profiler(&mut self, profiler: Option<Profiler>) {
        let profilers = Profilers { own: profiler, ..self.setup.profilers.clone() };
        self.setup = Arc::new(Setup { profilers, ..Setup::clone(&self.setup) });
    }

    /// Chooses the optimization profile by its index, and forgets the shapes of the dynamic inputs:
    /// TensorRT's `setOptimizationProfileAsync`. A new context has profile 0. The call is local:
    /// ranks may choose different profiles, and each collective compares the ranks' shapes as
    /// always. The context's memory is long enough for every profile.
    ///
    /// # Errors
    ///
    /// - No profile has this index.
    /// - [`NotReady`](crate::ErrorKind::NotReady): enqueued work of the context runs. On a CUDA
    ///   stream, work counts until it has been waited for, or if it was dropped until it has ended.
    pub fn set_optimization_profile(&mut self, profile: usize) -> Result<()> {
        self.engine.inner.check_profile(profile)?;
        if Arc::strong_count(&self.runs) > 1 {
            bail!(NotReady, "enqueued work of the context is not done; wait for it before you choose another profile");
        }
        self.set_shapes(Shapes::of_static_inputs(&self.engine.inner)?);
        self.profile = profile;
        Ok(())
    }

    /// The index of the optimization profile.
    pub fn optimization_profile(&self) -> usize {
        self.profile
    }

    /// Sets the shape of an input, within its profile. Work that was enqueued before keeps its
    /// shapes.
    ///
    /// # Errors
    ///
    /// No input has this name; the shape is outside the profile; once all inputs have shapes, every
    /// shape rule that they break. After an error the shapes are as they were. To change two inputs
    /// together, see [`set_input_shapes`](Self::set_input_shapes).
    pub fn set_input_shape(&mut self, name: &str, dims: impl TryInto<Dims, Error: Into<Error>>) -> Result<()> {
        let dims = dims.try_into().map_err(|e| e.into().about(|| format!("input {name:?}")))?;
        self.set_input_shapes(&[(name, dims)])
    }

    /// Sets the shapes of several inputs together.
    ///
    /// # Errors
    ///
    /// As [`set_input_shape`](Self::set_input_shape).
    pub fn set_input_shapes(&mut self, shapes: &[(&str, Dims)]) -> Result<()> {
        let engine = &self.engine.inner;
        let mut inputs = self.setup.shapes.inputs.clone();
        for (name, dims) in shapes {
            let about = |e: Error| e.about(|| format!("input {name:?}"));
            let index = engine.io_index(name)?;
            let points = engine.input_points(&engine.io[index], self.profile).map_err(about)?;
            let shape = dims.to_shape().map_err(about)?;
            if !is_in(&shape, &points) {
                let [min, _, max] = points;
                let profile = match engine.network.profile_count {
                    0 | 1 => "its profile".to_owned(),
                    _ => format!("optimization profile {}", self.profile),
                };
                let limits = if min == max { format!("{min}") } else { format!("between {min} and {max}") };
                let fits = |other: &usize| {
                    engine.input_points(&engine.io[index], *other).is_ok_and(|other| is_in(&shape, &other))
                };
                let other = (0..engine.network.profile_count).find(fits);
                let hint = other.map_or(String::new(), |other| {
                    format!("; it is in optimization profile {other}, which set_optimization_profile chooses")
                });
                return Err(about(error!(InvalidShape, "{dims} is not in {profile}, which is {limits}{hint}")));
            }
            inputs[index] = Some(shape);
        }
        self.set_shapes(Shapes::infer(engine, inputs)?);
        Ok(())
    }

    fn set_shapes(&mut self, shapes: Shapes) {
        self.setup = Arc::new(Setup { shapes: Arc::new(shapes), ..Setup::clone(&self.setup) });
    }

    /// The shape of an input or output, once the shapes of all inputs are known.
    ///
    /// # Errors
    ///
    /// No input or output has this name; a dynamic input has no shape.
    pub fn tensor_shape(&self, name: &str) -> Result<Shape> {
        let io = self.engine.io_tensor(name)?;
        Ok(self.setup.shapes.tensors(&self.engine.inner)?[io.tensor.index()])
    }

    /// Empty bindings for [`enqueue`](Self::enqueue), for any number of runs. With several
    /// bindings, runs can be enqueued before the first has ended.
    pub fn create_bindings(&self) -> Bindings {
        Bindings::new(Arc::clone(&self.engine.inner))
    }

    /// Runs the engine on borrowed tensors, on this thread, and blocks. An input that is not read
    /// on this rank, and an output that is not written on it, may be absent.
    ///
    /// ```
    /// # use distcollective::{Communicator, DataType, DistCollective, Network};
    /// # use distcollective::{ReduceOperation, inputs, outputs};
    /// # let mut network = Network::new();
    /// # let x = network.add_input("x", DataType::Float32, [2])?;
    /// # let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1), x)?;
    /// # network.mark_output(y, "y")?;
    /// # let engine = network.build()?;
    /// let mut context = engine.create_execution_context()?;
    /// let mut y = [0.0f32; 2];
    /// context.execute(inputs!["x" => &[1.0f32, 2.0]], outputs!["y" => &mut y])?;
    /// assert_eq!(y, [1.0, 2.0]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// Before anything moves: a missing shape or communicator, an unknown name, a tensor of another
    /// type, shape or length, a missing tensor, buffers that overlap. Afterwards: an error of a
    /// collective or a plugin, which ends the communicator.
    pub fn execute<'i, 'o>(
        &mut self,
        inputs: impl IntoIterator<Item = (&'i str, Result<TensorView<'i>>)>,
        outputs: impl IntoIterator<Item = (&'o str, Result<TensorViewMut<'o>>)>,
    ) -> Result<()> {
        // An earlier call may have panicked in one of its iterators.
        self.scratch.clear();
        let bound = self.bind_views(inputs, outputs);
        let setup = &self.setup;
        let checked = bound.and_then(|()| setup.check(&mut self.scratch, &Stream::inline()));
        let result = checked.inspect_err(|error| self.refused(error, &Stream::inline())).and_then(|()| {
            let deadline = setup.binding.deadline(self.timeout);
            // SAFETY: just checked, and the views borrow their memory until this function returns.
            let run = || unsafe { run(setup, &self.scratch, deadline, None) };
            match &setup.binding.communicator {
                Some(communicator) => communicator.in_turn(Extent::Run, &"execute", deadline, run),
                None => run(),
            }
        });
        self.scratch.clear();
        result.map_err(|e| self.setup.binding.on_rank(e))
    }

    /// Refuses the next run of this rank, before it begins. Call it if the program cannot make the
    /// run. On the other ranks the run is a [`RunRefused`](crate::ErrorKind::RunRefused) with the
    /// reason, from the run's first collective in which this rank takes part, and all ranks go on
    /// to the next run. In a [`request`](Communicator::request), this rank leaves the request.
    /// Every error of [`execute`](Self::execute) and [`enqueue`](Self::enqueue) about what is bound
    /// does the same.
    ///
    /// The communicator ends in three cases: on GPUs; if the network has plugins, which may make
    /// calls of their own; if a rank that gets the error has done another collective of the run.
    /// The last two are not so in a request.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn refuse_run(&mut self, reason: &str) -> Result<()> {
        let binding = &self.setup.binding;
        let refused = binding.refused_run(reason.to_owned(), binding.deadline(self.timeout));
        refused.map_or(Ok(()), |run| run.tell(&"refuse_run"))
    }

    /// Tells the other ranks of a run that cannot begin.
    fn refused(&self, error: &Error, stream: &Stream) {
        let binding = &self.setup.binding;
        if let Some(run) = binding.refused_run(error.to_string(), binding.deadline(self.timeout)) {
            run.tell_on(stream, &"execute");
        }
    }

    fn bind_views<'i, 'o>(
        &mut self,
        inputs: impl IntoIterator<Item = (&'i str, Result<TensorView<'i>>)>,
        outputs: impl IntoIterator<Item = (&'o str, Result<TensorViewMut<'o>>)>,
    ) -> Result<()> {
        for (name, view) in inputs {
            let raw = *view.map_err(|e| e.about(|| format!("input {name:?}")))?.raw();
            self.scratch.bind(&self.engine.inner, name, IoMode::Input, raw)?;
        }
        for (name, view) in outputs {
            let raw = *view.map_err(|e| e.about(|| format!("output {name:?}")))?.raw();
            self.scratch.bind(&self.engine.inner, name, IoMode::Output, raw)?;
        }
        Ok(())
    }

    /// Runs the engine on bound tensors, on a stream. The work owns the bindings and returns them.
    ///
    /// On the inline stream the work is done when this returns. Runs of one context do not overlap,
    /// also if they are enqueued on several streams. The run takes its place in the communicator's
    /// order now; see the contract of [`Communicator`].
    ///
    /// # Errors
    ///
    /// As [`execute`](Self::execute), with the bindings. Errors before anything moves come from
    /// this function, all others from [`Work::wait`].
    pub fn enqueue(&mut self, bindings: Bindings, stream: &Stream) -> Result<Work<Bindings>, EnqueueError<Bindings>> {
        bindings.enqueue(self, stream)
    }
}

/// Whether a shape is between the first and the last point of a profile.
fn is_in(shape: &Shape, [min, _, max]: &[Shape; 3]) -> bool {
    let (dims, min, max) = (shape.as_slice(), min.as_slice(), max.as_slice());
    dims.len() == min.len() && (0..dims.len()).all(|i| (min[i]..=max[i]).contains(&dims[i]))
}

impl fmt::Debug for ExecutionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutionContext({}, {:?})", self.engine.fingerprint(), self.setup.binding.communicator)
    }
}

/// Lists inputs for [`ExecutionContext::execute`]: `inputs!["x" => &array, "mask" => &slice]`.
/// Values are references to slices, vectors, [`ndarray`] arrays or buffers.
#[macro_export]
macro_rules! inputs {
    ($($name:expr => $value:expr),* $(,)?) => {
        [$(($name, $crate::tensor::TensorView::try_from($value).map_err($crate::Error::from))),*]
    };
}

/// Lists outputs for [`ExecutionContext::execute`]: `outputs!["y" => &mut array]`. Values are
/// mutable references to slices, vectors, [`ndarray`] arrays or buffers.
#[macro_export]
macro_rules! outputs {
    ($($name:expr => $value:expr),* $(,)?) => {
        [$(($name, $crate::tensor::TensorViewMut::try_from($value).map_err($crate::Error::from))),*]
    };
}
