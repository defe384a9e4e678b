//! Where enqueued work runs, and the handle on it: [`Stream`], [`Work`].

mod launch;
mod task;
mod work;
mod worker;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use task::{Task, Watch};
pub use work::{EnqueueError, Work};
pub(crate) use worker::TaskCell;

use crate::cuda::{CudaStream, Device};
use crate::error::{Result, bail};
use task::{run_in_turn, wait_for_turn};
use work::WorkState;
use worker::Worker;

/// How long [`Stream::synchronize`] waits for a GPU.
const SYNCHRONIZE_TIMEOUT: Duration = Duration::from_secs(600);

/// Where enqueued work runs.
///
/// The inline stream runs it on the caller's thread, and the [`Work`] it gives is finished. A worker stream is one thread
/// that runs what it is given in order; it lets a rank compute while a collective goes on, and costs a wake-up for each
/// piece of work. A CUDA stream, for communicators on GPUs, takes work without waiting for anything; tensors are then in the
/// GPU's memory. Clones are the same stream.
///
/// Dropping a worker stream does not wait: its thread does what was enqueued, then ends. Nor does dropping a CUDA stream.
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
    /// The caller's thread.
    pub const fn inline() -> Self {
        Stream { kind: Kind::Inline }
    }

    /// A new CUDA stream of the GPU with this number among those that the process sees. It does not wait for the default stream.
    ///
    /// # Errors
    ///
    /// No CUDA, or no such GPU.
    pub fn cuda(ordinal: u32) -> Result<Self> {
        let stream = CudaStream::new(&Device::open(ordinal)?)?;
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// The caller's CUDA stream: a `CUstream` or `cudaStream_t`; null is the default stream. What is enqueued while it is being
    /// captured is recorded into the caller's graph; the [`Work`] of that is finished at once.
    ///
    /// # Safety
    ///
    /// It is a stream of that GPU's primary context, the one that the CUDA runtime uses, and it is destroyed only when all clones of
    /// this and all work enqueued through them are gone. Buffers, contexts and communicators outlive the caller's graphs of what was
    /// enqueued on them, and launches of those graphs do not overlap other work of the same contexts.
    ///
    /// # Errors
    ///
    /// No CUDA, no such GPU, a stream of another one; CUDA's "per-thread" stream, which is another one on each thread.
    pub unsafe fn from_raw_cuda(stream: *mut c_void, ordinal: u32) -> Result<Self> {
        const PER_THREAD: usize = 2;
        if stream.addr() == PER_THREAD {
            bail!(Unsupported, "CUDA's per-thread default stream is another one on each thread; make one of your own");
        }
        // SAFETY: the caller's promise.
        let stream = unsafe { CudaStream::borrowed(&Device::open(ordinal)?, stream)? };
        Ok(Stream { kind: Kind::Cuda(Arc::new(stream)) })
    }

    /// The `CUstream`, where it is a CUDA stream.
    pub fn as_raw_cuda(&self) -> Option<*mut c_void> {
        match &self.kind {
            Kind::Cuda(stream) => Some(stream.as_ptr()),
            _ => None,
        }
    }

    /// A thread of its own.
    ///
    /// # Errors
    ///
    /// The operating system gives no thread.
    pub fn worker() -> Result<Self> {
        Ok(Stream { kind: Kind::Worker(Arc::new(Worker::start()?)) })
    }

    /// Blocks until everything enqueued so far is done. On a CUDA stream that is whatever anybody has enqueued, and the wait is
    /// bounded: see [`Work::wait`] for how a collective that fails is found.
    ///
    /// # Errors
    ///
    /// On a CUDA stream: it is not done within 600 s, or the GPU has failed. On a worker stream:
    /// what runs on it calls this, or a plugin does whose run is ahead of that work in the issue
    /// order; it would wait for itself.
    pub fn synchronize(&self) -> Result<()> {
        self.check_wait()?;
        match &self.kind {
            Kind::Inline => Ok(()),
            Kind::Worker(worker) => {
                worker.wait_for_enqueued();
                Ok(())
            }
            Kind::Cuda(stream) => {
                stream.synchronize(Instant::now() + SYNCHRONIZE_TIMEOUT, || Ok(()))?;
                // Work that nobody waited for is let go of; it may hold the stream itself.
                stream.sweep();
                Ok(())
            }
        }
    }

    /// Whether this thread may wait for the stream.
    pub(crate) fn check_wait(&self) -> Result<()> {
        match &self.kind {
            Kind::Worker(worker) => worker.check_wait(),
            _ => Ok(()),
        }
    }

    /// Runs a task, here or on the stream's thread, or enqueues what it does. `cell` is where a worker puts it, if it has been on
    /// one before.
    pub(crate) fn submit<T: Task>(&self, mut task: T, cell: Option<Arc<TaskCell<T>>>) -> Work<T> {
        let state = match &self.kind {
            Kind::Worker(worker) => worker.submit(task, cell),
            kind => {
                // Where a worker is not wanted now, it may be the next time.
                if let Some(cell) = cell {
                    task.keep_cell(cell);
                }
                let order = task.order();
                let ticket = order.as_ref().map(|(order, extent)| order.issue_here(*extent));
                match kind {
                    Kind::Cuda(stream) => launch::launch(task, ticket, stream),
                    _ => {
                        let turn = wait_for_turn(&task, ticket.as_ref());
                        let result = turn.and_then(|()| run_in_turn(&mut task, ticket, None));
                        WorkState::Done(task, result)
                    }
                }
            }
        };
        Work::new(state, T::finish)
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
