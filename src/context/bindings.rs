//! Tensors bound for enqueued runs.

use std::fmt;
use std::ptr;
use std::sync::{Arc, Weak};
use std::time::Instant;

use super::ExecutionContext;
use super::checks::Setup;
use super::run::{RunIo, run};
use crate::cuda::CudaStream;
use crate::engine::{EngineInner, IoMode};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::Extent;
use crate::memory::{Buffer, RawTensor, TensorView, TensorViewMut};
use crate::stream::{EnqueueError, Stream, Task, TaskCell, Watch, Work};
use crate::util::fork::ProcessGuard;

/// The buffers that the inputs and outputs of an enqueued run are bound to.
/// [`ExecutionContext::enqueue`](super::ExecutionContext::enqueue) takes the bindings, and
/// [`Work::wait`] returns them with the buffers in them.
pub struct Bindings {
    inner: Box<BindingsInner>,
}

struct BindingsInner {
    engine: Arc<EngineInner>,
    /// The buffers, in the order of the engine's inputs and outputs.
    bound: Vec<Option<BoundMemory>>,
    io: RunIo,
    /// Which checks `bound` and `io` have passed. `None` after a change of `bound`.
    checked: Option<PassedChecks>,
    run: Option<PendingRun>,
    /// The place on a worker stream, kept from run to run.
    cell: Option<Arc<TaskCell<Bindings>>>,
}

/// What the checks of a run have to do with, besides what is bound.
struct PassedChecks {
    /// Kept, so that no other setup comes to its address.
    setup: Weak<Setup>,
    is_cuda: bool,
    /// In a child that was forked, a buffer may move when its address is asked for.
    process: ProcessGuard,
}

impl PassedChecks {
    fn is_for(&self, setup: &Arc<Setup>, is_cuda: bool) -> bool {
        let is_same_setup = ptr::eq(self.setup.as_ptr(), Arc::as_ptr(setup));
        is_same_setup && self.is_cuda == is_cuda && self.process.is_current()
    }
}

enum BoundMemory {
    Input(Arc<Buffer>),
    Output(Buffer),
    /// Memory that the caller of `bind_address` keeps valid.
    Raw {
        address: *mut u8,
        byte_len: usize,
    },
}

// SAFETY: buffers may be sent, and the caller of `bind_address` promises that raw addresses may be
// used from any thread.
unsafe impl Send for Bindings {}
// SAFETY: a shared reference gives no way to a raw address, and of buffers only what may be shared.
unsafe impl Sync for Bindings {}

/// What a run needs beside the bindings.
struct PendingRun {
    setup: Arc<Setup>,
    deadline: Instant,
    /// Says to the context that there is a run. `None` once it has ended on the host.
    running: Option<Arc<()>>,
}

impl Bindings {
    pub(super) fn new(engine: Arc<EngineInner>) -> Self {
        let bound = engine.io.iter().map(|_| None).collect();
        let io = RunIo::for_engine(&engine);
        Bindings { inner: Box::new(BindingsInner { engine, bound, io, checked: None, run: None, cell: None }) }
    }

    /// What a tensor is bound to, for a change.
    fn bound_mut(&mut self, index: usize) -> &mut Option<BoundMemory> {
        self.inner.checked = None;
        &mut self.inner.bound[index]
    }

    fn bind(&mut self, name: &str, mode: IoMode, bound: BoundMemory) -> Result<()> {
        let index = self.inner.engine.io_index(name)?;
        let found = self.inner.engine.io[index].mode;
        if found != mode {
            bail!(InvalidArgument, "{name:?} is an {}", found.name());
        }
        *self.bound_mut(index) = Some(bound);
        Ok(())
    }

    /// Binds an input: a buffer, or one that others share. What was bound before is dropped.
    ///
    /// # Errors
    ///
    /// No input has this name.
    pub fn bind_input(&mut self, name: &str, buffer: impl Into<Arc<Buffer>>) -> Result<()> {
        self.bind(name, IoMode::Input, BoundMemory::Input(buffer.into()))
    }

    /// Binds an output. What was bound before is dropped.
    ///
    /// # Errors
    ///
    /// No output has this name.
    pub fn bind_output(&mut self, name: &str, buffer: Buffer) -> Result<()> {
        self.bind(name, IoMode::Output, BoundMemory::Output(buffer))
    }

    /// Binds an input or output to memory of the caller's: TensorRT's `setTensorAddress`. It is in
    /// the memory that the context runs in: the host's, or that of the communicator's GPU. It may
    /// be longer than the tensor, whose elements are at its beginning, so that memory for the
    /// longest shape stays bound. A null address unbinds.
    ///
    /// A context does not record runs on GPU memory that cudaMalloc has not made, because other
    /// pages may come to its address.
    ///
    /// # Safety
    ///
    /// The memory is `byte_len` initialized bytes until the tensor is bound again or the bindings
    /// are dropped while they are not enqueued; for ever if a run of them is leaked. During a run
    /// no other code writes it, and none reads an output's. It may be used from any thread.
    ///
    /// # Errors
    ///
    /// No input or output has this name.
    pub unsafe fn bind_address(&mut self, name: &str, address: *mut u8, byte_len: usize) -> Result<()> {
        let index = self.inner.engine.io_index(name)?;
        *self.bound_mut(index) = if address.is_null() { None } else { Some(BoundMemory::Raw { address, byte_len }) };
        Ok(())
    }

    /// Unbinds a tensor and returns its buffer; `None` if none is bound, or others share it.
    ///
    /// # Errors
    ///
    /// No input or output has this name.
    pub fn take(&mut self, name: &str) -> Result<Option<Buffer>> {
        let index = self.inner.engine.io_index(name)?;
        Ok(match self.bound_mut(index).take() {
            Some(BoundMemory::Input(buffer)) => Arc::into_inner(buffer),
            Some(BoundMemory::Output(buffer)) => Some(buffer),
            _ => None,
        })
    }

    /// A bound buffer.
    ///
    /// # Errors
    ///
    /// No input or output has this name, or no buffer is bound to it.
    pub fn get(&self, name: &str) -> Result<&Buffer> {
        match &self.inner.bound[self.inner.engine.io_index(name)?] {
            Some(BoundMemory::Input(buffer)) => Ok(buffer),
            Some(BoundMemory::Output(buffer)) => Ok(buffer),
            _ => Err(error!(NotReady, "no buffer is bound to {name:?}")),
        }
    }

    /// A bound buffer that is not shared, for writing.
    ///
    /// # Errors
    ///
    /// No input or output has this name, or no buffer of its own is bound to it.
    pub fn get_mut(&mut self, name: &str) -> Result<&mut Buffer> {
        let index = self.inner.engine.io_index(name)?;
        // The caller may put another buffer in its place.
        let buffer = match self.bound_mut(index) {
            Some(BoundMemory::Input(buffer)) => Arc::get_mut(buffer),
            Some(BoundMemory::Output(buffer)) => Some(buffer),
            _ => None,
        };
        buffer.ok_or_else(|| error!(NotReady, "no buffer of its own is bound to {name:?}"))
    }

    pub(super) fn enqueue(
        mut self,
        context: &ExecutionContext,
        stream: &Stream,
    ) -> Result<Work<Bindings>, EnqueueError<Bindings>> {
        let ExecutionContext { engine, setup, runs, timeout, .. } = context;
        if let Err(error) = self.check(&engine.inner, setup, stream) {
            context.refused(&error, stream);
            return Err(EnqueueError::new(setup.binding.on_rank(error), self));
        }
        let deadline = setup.binding.deadline(*timeout);
        let order = setup.binding.communicator.as_ref().map(|communicator| communicator.order(Extent::Run));
        // On the inline stream the run has ended before the caller can use the context again.
        let running = (!stream.is_inline()).then(|| Arc::clone(runs));
        self.inner.run = Some(PendingRun { setup: Arc::clone(setup), deadline, running });
        let cell = self.inner.cell.take();
        Ok(stream.submit(self, order, cell))
    }

    /// Checks that a run may begin, with what is bound in `io`. What has not changed since the last
    /// run is not checked again.
    fn check(&mut self, engine: &Arc<EngineInner>, setup: &Arc<Setup>, stream: &Stream) -> Result<()> {
        let is_cuda = stream.as_cuda().is_some();
        if self.inner.checked.as_ref().is_some_and(|checked| checked.is_for(setup, is_cuda)) {
            return setup.check_communicator();
        }
        self.inner.checked = None;
        self.fill(engine, setup)?;
        setup.check(&mut self.inner.io, stream)?;
        let (setup, process) = (Arc::downgrade(setup), ProcessGuard::current());
        self.inner.checked = Some(PassedChecks { setup, is_cuda, process });
        Ok(())
    }

    /// Writes the bound addresses to `io`, which a run reads.
    fn fill(&mut self, engine: &Arc<EngineInner>, setup: &Setup) -> Result<()> {
        let BindingsInner { engine: own, bound, io, .. } = &mut *self.inner;
        if !Arc::ptr_eq(engine, own) {
            bail!(InvalidArgument, "the bindings are for another engine");
        }
        let (shapes, space) = (setup.shapes.tensors(engine)?, setup.binding.space());
        io.clear();
        for (index, bound) in bound.iter_mut().enumerate() {
            let raw = match bound {
                None => continue,
                Some(BoundMemory::Input(buffer)) => *TensorView::from(&**buffer).raw(),
                Some(BoundMemory::Output(buffer)) => *TensorViewMut::from(buffer).raw(),
                Some(BoundMemory::Raw { address, byte_len }) => {
                    let io = &own.io[index];
                    RawTensor {
                        data_type: io.data_type,
                        address: *address,
                        space,
                        generation: 0,
                        // Memory that is longer than the tensor stays bound while shapes change.
                        byte_len: shapes[io.tensor.index()].byte_len(io.data_type).min(*byte_len),
                        shape: None,
                    }
                }
            };
            io.tensors[index] = Some(raw);
        }
        Ok(())
    }
}

impl Task for Bindings {
    fn run(&mut self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        // Enqueued work needs `run` until it is done, so it is not taken out here.
        let BindingsInner { run: pending, io, .. } = &mut *self.inner;
        let Some(PendingRun { setup, deadline, running }) = pending else { return Ok(()) };
        // SAFETY: buffers are owned or shared by these bindings; raw addresses have the promise of
        // `bind_address`.
        let result = unsafe { run(setup, io, *deadline, stream) };
        if stream.is_none() {
            *running = None;
        }
        result.map_err(|e: Error| setup.binding.on_rank(e))
    }

    fn label(&self, error: Error) -> Error {
        match &self.inner.run {
            Some(run) => run.setup.binding.on_rank(error),
            None => error,
        }
    }

    fn watch(&self) -> Option<(Arc<dyn Watch>, Instant)> {
        let PendingRun { setup, deadline, .. } = self.inner.run.as_ref()?;
        Some((setup.binding.communicator.as_ref()?.watch(), *deadline))
    }

    /// Bindings that the caller keeps must not keep the run's communicator and memory alive.
    fn finish(&mut self) {
        self.inner.run = None;
    }

    fn keep_cell(&mut self, cell: Arc<TaskCell<Self>>) {
        self.inner.cell = Some(cell);
    }
}

impl fmt::Debug for Bindings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut map = f.debug_map();
        for (io, bound) in self.inner.engine.io.iter().zip(&self.inner.bound) {
            match bound {
                None => map.entry(&io.name, &"unbound"),
                Some(BoundMemory::Input(buffer)) => map.entry(&io.name, buffer),
                Some(BoundMemory::Output(buffer)) => map.entry(&io.name, buffer),
                Some(BoundMemory::Raw { address, byte_len }) => map.entry(&io.name, &(address, byte_len)),
            };
        }
        map.finish()
    }
}
