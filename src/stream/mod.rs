//! Where enqueued work runs ([`Stream`]), and the handle on it ([`Work`]).

mod launched_work;
mod queued_work;
mod task;
mod work;
mod work_future;
mod worker;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use queued_work::TaskCell;
pub(crate) use task::{Task, Watch};
pub(crate) use work::WorkEnd;
pub use work::{EnqueueError, Work, WorkError};
pub use work_future::WorkFuture;

use crate::cuda::{CudaStream, Device, Owner};
use crate::error::{Result, bail};
use crate::issue_order::{Extent, IssueOrder};
use crate::util::interrupt;
use task::{run_in_turn, wait_for_turn};
use work::WorkKind;
use worker::Worker;

/// How long [`Stream::synchronize`] waits for a GPU.
const SYNCHRONIZE_TIMEOUT: Duration = Duration::from_secs(600);

/// Where enqueued work runs.
///
/// | stream | where work runs | when the enqueueing call returns | tensors |
/// |---|---|---|---|
/// | [`inline`](Self::inline) | on the caller's thread | the work is done | host or GPU |
/// | [`worker`](Self::worker) | on a thread of the stream, in order | the work is in the stream's queue | host or GPU |
/// | [`cuda`](Self::cuda), `from_raw_cuda…` | on the GPU, in order | the work is enqueued on the GPU | GPU |
///
/// A worker stream lets a rank compute while a collective runs. It costs a wake-up of its thread
/// for each piece of work. CUDA streams are for communicators on GPUs.
///
/// Clones are the same stream. Dropping the last clone does not wait: what was enqueued still runs.
///
/// # Examples
///
/// ```
/// use distcollective::collective::Collective;
/// use distcollective::comm::Operands;
/// use distcollective::{Buffer, Communicator, ReduceOperation, Stream};
///
/// let communicator = Communicator::builder().in_process(1)?.remove(0);
/// let stream = Stream::worker()?;
/// let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
/// let buffer = || Buffer::from_slice(&[1.0f32, 2.0], [2]);
/// let first = communicator.collective_async(sum, Operands::in_place(buffer()?), &stream)?;
/// let second = communicator.collective_async(sum, Operands::in_place(buffer()?), &stream)?;
/// // This thread is free to compute. Both have ended when `synchronize` returns.
/// stream.synchronize()?;
/// assert!(first.is_done() && second.is_done());
/// # first.wait()?;
/// # second.wait()?;
/// # Ok::<(), distcollective::Error>(())
/// ```
#[derive(Clone, Default)]
pub struct Stream {
    kind: Kind,
}

#[derive(Clone, Default)]
enum Kind {
    #[default]
    Inline,
    Worker(Arc<Worker>),
    Cuda(Arc<CudaStream>),
}

impl Stream {
    /// The stream that runs work on the caller's thread. [`Work`] that it gives is done.
    pub const fn inline() -> Self {
        Stream { kind: Kind::Inline }
    }

    /// A new CUDA stream on GPU `ordinal`, counted from 0 among the GPUs that the process sees.
    ///
    /// It does not wait for the default stream.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: there is no CUDA driver or no such GPU, or the process was forked from the
    ///   one that opened the GPU.
    /// - `System`: CUDA reports an error.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        let stream = CudaStream::new(&Device::open(ordinal)?)?;
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// The caller's CUDA stream on GPU `ordinal`: a `CUstream` or `cudaStream_t`. Null is the
    /// default stream. The library borrows the stream and never destroys it.
    ///
    /// While the stream is being captured, enqueued work is recorded into the caller's graph, and
    /// its [`Work`] is done at once.
    ///
    /// # Safety
    ///
    /// - `stream` belongs to the GPU's primary context, which the CUDA runtime uses.
    /// - The caller destroys it only after all clones of this `Stream` and all [`Work`] that was
    ///   enqueued through them are dropped or waited for, and all that work has ended.
    /// - If the last of these is dropped while the stream is being captured, all work that was
    ///   enqueued through them before the capture has ended.
    /// - Buffers, contexts and communicators outlive the caller's graphs of work on them. Launches
    ///   of those graphs do not overlap other work of the same contexts.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: there is no CUDA driver or no such GPU; the process was forked from the one
    ///   that opened the GPU; `stream` is CUDA's "per-thread" stream, which is another stream on
    ///   each thread.
    /// - `InvalidArgument`: `stream` belongs to another GPU or another context.
    /// - `System`: CUDA reports an error.
    pub unsafe fn from_raw_cuda(stream: *mut c_void, ordinal: u32) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::borrowed_cuda(stream, ordinal, None) }
    }

    /// The CUDA stream of another library on GPU `ordinal`, which exists until `owner` is dropped.
    /// The library drops `owner` on a thread of its own, after all clones of this `Stream` and
    /// after the end of all work that was enqueued through them.
    ///
    /// If the stream is being captured, a call on it is an error: the library does not know whether
    /// the graph outlives the memory.
    ///
    /// # Safety
    ///
    /// `stream` belongs to the GPU's primary context, and exists until `owner` is dropped.
    ///
    /// # Errors
    ///
    /// Those of [`from_raw_cuda`](Self::from_raw_cuda).
    pub unsafe fn from_raw_cuda_with_owner(
        stream: *mut c_void,
        ordinal: u32,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::borrowed_cuda(stream, ordinal, Some(Owner::new(owner))) }
    }

    /// # Safety
    ///
    /// That of [`CudaStream::borrowed`].
    unsafe fn borrowed_cuda(stream: *mut c_void, ordinal: u32, owner: Option<Owner>) -> Result<Self> {
        const PER_THREAD: usize = 2;
        if stream.addr() == PER_THREAD {
            bail!(Unsupported, "CUDA's per-thread default stream is another one on each thread; make one of your own");
        }
        // SAFETY: the caller promises what `borrowed` asks for.
        let stream = unsafe { CudaStream::borrowed(&Device::open(ordinal)?, stream, owner)? };
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// A CUDA stream as a stream.
    pub(crate) fn of_cuda(stream: &Arc<CudaStream>) -> Self {
        Stream { kind: Kind::Cuda(Arc::clone(stream)) }
    }

    /// Whether work runs on the caller's thread.
    pub(crate) fn is_inline(&self) -> bool {
        matches!(self.kind, Kind::Inline)
    }

    /// The CUDA stream, if it is one.
    pub(crate) fn as_cuda(&self) -> Option<&Arc<CudaStream>> {
        match &self.kind {
            Kind::Cuda(stream) => Some(stream),
            _ => None,
        }
    }

    /// The `CUstream` of a CUDA stream; `None` for other streams.
    pub fn as_raw_cuda(&self) -> Option<*mut c_void> {
        self.as_cuda().map(|stream| stream.as_ptr())
    }

    /// A new stream with a thread of its own.
    ///
    /// # Errors
    ///
    /// `System`: the operating system gives no thread.
    pub fn worker() -> Result<Self> {
        Ok(Stream { kind: Kind::Worker(Arc::new(Worker::start()?)) })
    }

    /// Blocks until everything that was enqueued so far has ended, well or not. [`Work::wait`] says
    /// how it ended.
    ///
    /// On a CUDA stream this includes work of other libraries.
    ///
    /// # Errors
    ///
    /// - `DeadlineExceeded`: a CUDA stream has not ended its work within 600 s.
    /// - `NotReady`: a CUDA stream is being captured.
    /// - `Interrupted`: the [interrupt hook](crate::interrupt) ended the wait. The work goes on.
    /// - `System`: CUDA reports an error.
    /// - `InvalidArgument`: the call would wait for itself. It is made by work on the same worker
    ///   stream, or by a plugin in a run that the stream's work waits for. Or the interrupt hook
    ///   makes it.
    /// - `Unsupported`: this process was forked from the one that made the stream.
    pub fn synchronize(&self) -> Result<()> {
        self.check_wait()?;
        match &self.kind {
            Kind::Inline => Ok(()),
            Kind::Worker(worker) => worker.wait_for_enqueued(),
            Kind::Cuda(stream) => {
                stream.synchronize(Instant::now() + SYNCHRONIZE_TIMEOUT, || Ok(()))?;
                // The stream keeps work whose `Work` was dropped, and that work may hold the
                // stream.
                stream.sweep();
                Ok(())
            }
        }
    }

    /// Checks that this thread may wait for the stream: that
    /// [`synchronize`](Self::synchronize) would not wait for this thread itself.
    ///
    /// # Errors
    ///
    /// - This thread is the stream's worker.
    /// - This thread is in a plugin's call, and the stream has work that was issued after its run.
    /// - This thread is in the [interrupt hook](crate::interrupt).
    /// - The worker belongs to the process that this one was forked from.
    pub fn check_wait(&self) -> Result<()> {
        interrupt::check_may_wait()?;
        match &self.kind {
            Kind::Worker(worker) => worker.check_wait(),
            _ => Ok(()),
        }
    }

    /// Runs a task on this thread, gives it to the stream's thread, or enqueues it on the GPU.
    ///
    /// `order` is the issue order that the task takes a ticket in, and for which communicators.
    /// `cell` is the cell that the task got back after an earlier submit, if there was one.
    pub(crate) fn submit<T: Task>(
        &self,
        mut task: T,
        order: Option<(&Arc<IssueOrder>, Extent)>,
        cell: Option<Arc<TaskCell<T>>>,
    ) -> Work<T> {
        let result = match (self.check_caller(&task, order.map(|(order, _)| &**order)), &self.kind) {
            (Err(error), _) => Err(error),
            (Ok(()), Kind::Worker(worker)) => return Work::new(worker.submit(task, order, cell)),
            (Ok(()), kind) => {
                // The task may go to a worker stream the next time.
                if let Some(cell) = cell {
                    task.keep_cell(cell);
                }
                let ticket = order.map(|(order, extent)| order.issue_here(extent));
                if let Kind::Cuda(stream) = kind {
                    let launched = launched_work::launch(task, ticket, stream);
                    return Work::new(
                        launched.map_or_else(|(task, result)| WorkKind::Done(task, result), WorkKind::Launched),
                    );
                }
                wait_for_turn(&task, ticket.as_ref()).and_then(|()| run_in_turn(&mut task, ticket, None))
            }
        };
        Work::new(WorkKind::Done(task, result))
    }

    /// Checks that this process made the stream and the communicator of the task, and that this
    /// thread may wait.
    fn check_caller<T: Task>(&self, task: &T, order: Option<&IssueOrder>) -> Result<()> {
        interrupt::check_may_wait()?;
        if let Kind::Worker(worker) = &self.kind {
            worker.check_process()?;
        }
        order.map_or(Ok(()), IssueOrder::check_process).map_err(|error| task.label(error))
    }
}

impl fmt::Debug for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Inline => f.write_str("Stream::inline"),
            Kind::Worker(_) => f.write_str("Stream::worker"),
            Kind::Cuda(stream) => stream.fmt(f),
        }
    }
}
