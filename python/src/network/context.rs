//! Execution contexts.

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::Duration;

use distcollective::comm::timeout_or;
use distcollective::context::{Bindings, LayerTime, Profiler};
use distcollective::engine::IoMode;
use distcollective::tensor::{Dims, MemorySpace, Shape, TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, DataType, Error, ErrorKind, ExecutionContext, Stream};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyCapsule;

use super::{checked, known_type};
use crate::communicator::{self, cuda_stream};
use crate::errors::{call, check_raised, exception, has_raised, raise_after_call};
use crate::memory::check_apart;
use crate::tensor::{Access, Tensor};

/// How long ranks of a communicator of NCCL wait for each other, unless `DCL_TIMEOUT` says it.
const TIMEOUT: Duration = Duration::from_secs(600);

/// What an engine needs to run.
#[pyclass(frozen, module = "distcollective._core")]
pub(crate) struct Context {
    /// Held by a thread that executes, without the interpreter. So a thread with the interpreter
    /// only tries to lock it.
    state: Mutex<State>,
}

struct State {
    context: ExecutionContext,
    /// What is set for each input and output, in the engine's order.
    set: Vec<Option<Memory>>,
}

/// The memory of an input or output.
enum Memory {
    /// A tensor of Python, which lives as long as this, in this memory.
    Tensor(Tensor, MemorySpace),
    /// An address of the program's, in the memory where the context runs.
    Address(usize),
}

/// The memory of an input or output in a run.
struct Place {
    name: String,
    mode: IoMode,
    data_type: DataType,
    shape: Shape,
    space: MemorySpace,
    address: *mut u8,
}

// SAFETY: the address is used while the tensor that it belongs to is kept.
unsafe impl Send for Place {}

impl Place {
    /// # Safety
    ///
    /// Until the buffer is dropped, only the library uses the memory.
    unsafe fn buffer(&self) -> Result<Buffer, Error> {
        // SAFETY: the caller's promise. Where the library allows it, an input and an output are the
        // same memory: it goes there by addresses.
        let buffer =
            unsafe { Buffer::from_raw_borrowed(self.space, self.address, self.data_type, self.shape.to_dims()) };
        buffer.map_err(|error| error.about(|| format!("tensor {:?}", self.name)))
    }
}

impl Memory {
    /// The CUDA stream on which its elements are made: the default one for an address.
    fn stream(&self) -> Option<usize> {
        match self {
            Memory::Tensor(tensor, _) => tensor.stream(),
            Memory::Address(_) => Some(0),
        }
    }

    /// The memory for a tensor of this shape.
    fn place(&self, context: &ExecutionContext, index: usize, space: MemorySpace) -> Result<Place, Error> {
        let io = &context.engine().io_tensors()[index];
        let shape = context.tensor_shape(&io.name)?;
        let (address, space) = match self {
            Memory::Address(address) => (std::ptr::with_exposed_provenance_mut(*address), space),
            // Memory that is longer than the tensor stays set while shapes change.
            Memory::Tensor(tensor, _) if tensor.element_count() < shape.element_count() => {
                let (given, needed) = (tensor.element_count(), shape.element_count());
                let text = format!("it has {given} elements, and the shape {shape} has {needed}");
                return Err(Error::new(ErrorKind::InvalidBuffer, text).about(|| format!("tensor {:?}", io.name)));
            }
            Memory::Tensor(tensor, space) => (tensor.address(), *space),
        };
        Ok(Place { name: io.name.clone(), mode: io.mode, data_type: io.data_type, shape, space, address })
    }
}

impl State {
    fn index(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        checked(py, self.context.engine().io_index(name))
    }

    /// The tensor of an argument in this memory, which fits an input or output.
    fn tensor(&self, index: usize, object: &Bound<'_, PyAny>, space: MemorySpace) -> PyResult<Tensor> {
        let io = &self.context.engine().io_tensors()[index];
        let access = if io.mode == IoMode::Input { Access::Read } else { Access::Write };
        let tensor = Tensor::of(object, &io.name, access, space)?;
        let data_type = known_type(&tensor, &io.name)?;
        if data_type != io.data_type {
            let text = format!("{}: it is of {data_type}, and the engine has {} there", io.name, io.data_type);
            return Err(PyTypeError::new_err(text));
        }
        Ok(tensor)
    }

    /// Where the context runs.
    fn space(&self) -> MemorySpace {
        self.context.communicator().map_or(MemorySpace::Host, Communicator::space)
    }

    /// Runs on this memory, and waits for the end.
    ///
    /// # Safety
    ///
    /// During the call only the library uses the memory.
    unsafe fn run(&mut self, places: &[Place]) -> Result<(), Error> {
        // SAFETY: the caller's promise. The buffers end with this function.
        let buffers = places.iter().map(|place| unsafe { place.buffer() });
        let mut buffers = buffers.collect::<Result<Vec<Buffer>, Error>>().inspect_err(|error| self.refuse(error))?;
        let (mut inputs, mut outputs) = (Vec::new(), Vec::new());
        for (place, buffer) in places.iter().zip(&mut buffers) {
            match place.mode {
                IoMode::Input => inputs.push((&*place.name, Ok(TensorView::from(&*buffer)))),
                IoMode::Output => outputs.push((&*place.name, Ok(TensorViewMut::from(buffer)))),
            }
        }
        self.context.execute(inputs, outputs)
    }

    /// Bindings to this memory.
    ///
    /// # Safety
    ///
    /// Until the bindings are dropped, only the library uses the memory.
    unsafe fn bindings(&self, places: &[Place]) -> Result<Bindings, Error> {
        let mut bindings = self.context.create_bindings();
        for place in places {
            // SAFETY: the caller's promise.
            let buffer = unsafe { place.buffer()? };
            match place.mode {
                IoMode::Input => bindings.bind_input(&place.name, buffer)?,
                IoMode::Output => bindings.bind_output(&place.name, buffer)?,
            }
        }
        Ok(bindings)
    }

    /// The memory that is set, when what is there has been made, unless the run is enqueued on a
    /// stream.
    fn placed(&self, py: Python<'_>, is_enqueued: bool) -> PyResult<Vec<Place>> {
        let State { context, set } = self;
        let space = self.space();
        for (io, memory) in context.engine().io_tensors().iter().zip(set) {
            if let Some(Memory::Tensor(tensor, _)) = memory
                && tensor.has_moved(py)?
            {
                let text = "it has got other memory since its address was set; set its address again";
                return Err(PyValueError::new_err(format!("{}: {text}", io.name)));
            }
        }
        let mut made_on: Vec<usize> =
            if is_enqueued { Vec::new() } else { set.iter().flatten().filter_map(Memory::stream).collect() };
        made_on.sort_unstable();
        made_on.dedup();
        let set = set.iter().enumerate().filter_map(|(index, memory)| Some((index, memory.as_ref()?)));
        let places = set.map(|(index, memory)| memory.place(context, index, space)).collect::<Result<Vec<_>, _>>();
        let places = checked(py, places)?;
        if let Some(place) = places.iter().find(|place| place.space != space) {
            let text = format!("it is in {}, and the context runs in {space}; set memory there", place.space);
            let error = Error::new(ErrorKind::InvalidBuffer, text).about(|| format!("tensor {:?}", place.name));
            return Err(exception(py, &error));
        }
        if let MemorySpace::Cuda(ordinal) = space {
            call(py, || made_on.iter().try_for_each(|made_on| cuda_stream(*made_on, ordinal)?.synchronize()))?;
        }
        Ok(places)
    }

    /// These tensors of the host's memory, and where they are.
    fn located(&self, py: Python<'_>, tensors: &[(String, Bound<'_, PyAny>)]) -> PyResult<(Vec<Tensor>, Vec<Place>)> {
        let mut kept = Vec::with_capacity(tensors.len());
        let mut places = Vec::with_capacity(tensors.len());
        for (name, object) in tensors {
            let index = self.index(py, name)?;
            let tensor = self.tensor(index, object, MemorySpace::Host)?;
            let memory = Memory::Tensor(tensor, MemorySpace::Host);
            places.push(checked(py, memory.place(&self.context, index, MemorySpace::Host))?);
            let Memory::Tensor(tensor, _) = memory else { continue };
            kept.push(tensor);
        }
        check_apart(&kept)?;
        Ok((kept, places))
    }

    /// Tells the other ranks of a run that cannot begin.
    fn refuse(&mut self, reason: &dyn std::fmt::Display) {
        // If this rank cannot tell them, its communicator has ended.
        let _cannot_tell = self.context.refuse_run(&reason.to_string());
    }

    /// What prepares a run: an exception refuses the run.
    fn prepared<T>(&mut self, py: Python<'_>, prepared: PyResult<T>) -> PyResult<T> {
        if let Err(error) = &prepared {
            let reason = error.value(py).to_string();
            py.detach(|| self.refuse(&reason));
        }
        prepared
    }

    /// Enqueues a run on a CUDA stream of the program, and does not wait for its end.
    ///
    /// # Safety
    ///
    /// - The stream is one of the GPU's primary context.
    /// - Until the run has ended, the stream exists, and only the library uses the memory.
    unsafe fn enqueue(&mut self, places: &[Place], stream: usize, ordinal: u32) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        let stream = unsafe { Stream::from_raw_cuda(std::ptr::with_exposed_provenance_mut(stream), ordinal) };
        // SAFETY: the caller's promise. The work keeps the buffers until it has ended.
        let bound = stream.and_then(|stream| Ok((stream, unsafe { self.bindings(places)? })));
        let (stream, bindings) = bound.inspect_err(|error| self.refuse(error))?;
        // Dropped work goes on.
        drop(self.context.enqueue(bindings, &stream)?);
        Ok(())
    }
}

impl Context {
    pub(super) fn new(context: ExecutionContext) -> Self {
        let set = context.engine().io_tensors().iter().map(|_| None).collect();
        Context { state: Mutex::new(State { context, set }) }
    }

    /// The state, unless another thread uses it.
    fn state(&self, py: Python<'_>) -> PyResult<MutexGuard<'_, State>> {
        match self.state.try_lock() {
            Ok(state) => Ok(state),
            Err(TryLockError::Poisoned(poisoned)) => Ok(poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {
                let text = "another thread uses this execution context; give each thread a context of its own";
                Err(exception(py, &Error::new(ErrorKind::NotReady, text)))
            }
        }
    }
}

#[pymethods]
impl Context {
    /// Sets the communicator of ranks of this package.
    fn set_communicator(&self, py: Python<'_>, communicator: &Bound<'_, communicator::Communicator>) -> PyResult<()> {
        let communicator = communicator.get().library();
        let context = &mut self.state(py)?.context;
        call(py, || context.set_communicator(communicator))
    }

    /// Sets a communicator of NCCL, which a capsule of any name points to.
    fn set_nccl_communicator(&self, py: Python<'_>, capsule: &Bound<'_, PyCapsule>) -> PyResult<()> {
        let name = capsule.name()?;
        // SAFETY: the name is compared with itself, and lives as long as the capsule.
        let pointer = capsule.pointer_checked(name.map(|name| unsafe { name.as_cstr() }))?;
        let address = pointer.as_ptr().expose_provenance();
        let context = &mut self.state(py)?.context;
        call(py, || {
            let pointer: *mut c_void = std::ptr::with_exposed_provenance_mut(address);
            // SAFETY: the program says that it is a communicator of NCCL, and keeps it as long as
            // the context, as with TensorRT.
            let communicator = unsafe { Communicator::from_raw_nccl(pointer, timeout_or(TIMEOUT)?)? };
            context.set_communicator(&communicator)
        })
    }

    /// Sets a function that gets the times of layers, in seconds, or removes it.
    fn set_profiler(&self, py: Python<'_>, profiler: Option<Py<PyAny>>) -> PyResult<()> {
        let profiler = profiler.map(|profiler| -> Profiler {
            Arc::new(move |time| {
                if has_raised() {
                    return;
                }
                let &LayerTime { layer, begin, duration, waited, input_bytes, output_bytes, .. } = time;
                let waited = waited.map(|waited| waited.as_secs_f64());
                let times = (layer, begin.as_secs_f64(), duration.as_secs_f64(), waited, input_bytes, output_bytes);
                let told = Python::try_attach(|py| profiler.bind(py).call1(times).map(drop));
                // The run has ended well, and raises it then.
                told.unwrap_or(Ok(())).unwrap_or_else(raise_after_call);
            })
        });
        self.state(py)?.context.set_profiler(profiler);
        Ok(())
    }

    fn set_profile(&self, py: Python<'_>, profile: usize) -> PyResult<()> {
        let context = &mut self.state(py)?.context;
        call(py, || context.set_optimization_profile(profile))
    }

    fn profile(&self, py: Python<'_>) -> PyResult<usize> {
        Ok(self.state(py)?.context.optimization_profile())
    }

    /// Sets the shapes of several inputs together.
    fn set_input_shapes(&self, py: Python<'_>, shapes: Vec<(String, Vec<i64>)>) -> PyResult<()> {
        let context = &mut self.state(py)?.context;
        call(py, || {
            let dims = shapes.iter().map(|(name, dims)| match Dims::new(dims) {
                Ok(dims) => Ok((name.as_str(), dims)),
                Err(error) => Err(error.about(|| format!("input {name:?}"))),
            });
            context.set_input_shapes(&dims.collect::<Result<Vec<_>, _>>()?)
        })
    }

    /// The shape of an input or output. `None` if an input has no shape yet.
    fn tensor_shape(&self, py: Python<'_>, name: &str) -> PyResult<Option<Vec<usize>>> {
        match self.state(py)?.context.tensor_shape(name) {
            Ok(shape) => Ok(Some(shape.as_slice().to_vec())),
            Err(error) if error.kind() == ErrorKind::NotReady => Ok(None),
            Err(error) => Err(exception(py, &error)),
        }
    }

    /// Sets the memory of an input or output: a tensor, which is kept until another is set.
    fn set_tensor(&self, py: Python<'_>, name: &str, object: &Bound<'_, PyAny>) -> PyResult<()> {
        let mut state = self.state(py)?;
        let index = state.index(py, name)?;
        let space = state.space();
        let tensor = state.tensor(index, object, space)?;
        if tensor.is_strided() {
            let text = "its elements do not lie one after the other, and an address is set; give a contiguous copy";
            return Err(PyValueError::new_err(format!("{name}: {text}")));
        }
        let before = state.set[index].replace(Memory::Tensor(tensor, space));
        // Without the lock: a tensor's end may run code of the program.
        drop(state);
        drop(before);
        Ok(())
    }

    /// Sets the memory of an input or output: an address of the program's; 0 is none.
    fn set_address(&self, py: Python<'_>, name: &str, address: usize) -> PyResult<()> {
        let mut state = self.state(py)?;
        let index = state.index(py, name)?;
        let memory = (address != 0).then_some(Memory::Address(address));
        let before = std::mem::replace(&mut state.set[index], memory);
        drop(state);
        drop(before);
        Ok(())
    }

    /// The address that is set for an input or output; 0 is none.
    fn address(&self, py: Python<'_>, name: &str) -> PyResult<usize> {
        let state = self.state(py)?;
        let index = state.index(py, name)?;
        Ok(match &state.set[index] {
            None => 0,
            Some(Memory::Address(address)) => *address,
            Some(Memory::Tensor(tensor, _)) => tensor.address().expose_provenance(),
        })
    }

    /// Tells the other ranks that this one leaves out its next run.
    fn refuse_run(&self, py: Python<'_>, reason: &str) -> PyResult<()> {
        let context = &mut self.state(py)?.context;
        call(py, || context.refuse_run(reason))
    }

    /// Runs on the memory that is set: on GPUs on the CUDA stream, if one is given, without a wait.
    fn execute(&self, py: Python<'_>, stream: Option<usize>) -> PyResult<()> {
        let mut state = self.state(py)?;
        let state = &mut *state;
        let space = state.space();
        let placed = state.placed(py, stream.is_some());
        let places = state.prepared(py, placed)?;
        call(py, move || match (space, stream) {
            // SAFETY: the tensors are kept while they are set, and the program keeps the memory of
            // addresses and the stream until the run has ended.
            (MemorySpace::Cuda(ordinal), Some(stream)) => unsafe { state.enqueue(&places, stream, ordinal) },
            // SAFETY: as above; the state is locked until the end.
            _ => unsafe { state.run(&places) },
        })?;
        check_raised()
    }

    /// Runs on these tensors of the host's memory, whatever is set, and waits for the end.
    fn run(&self, py: Python<'_>, tensors: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<()> {
        let mut state = self.state(py)?;
        let located = state.located(py, &tensors);
        let (kept, places) = state.prepared(py, located)?;
        let result = {
            let state = &mut *state;
            // SAFETY: the tensors are kept until the end.
            call(py, move || unsafe { state.run(&places) })
        };
        drop(state);
        if result.is_ok() {
            kept.iter().for_each(Tensor::write_back);
        }
        result.and_then(|()| check_raised())
    }
}
