//! CUDA graphs: work that is recorded once and launched many times.

use std::ffi::c_void;
use std::ptr;
use std::sync::Arc;

use super::driver::check;
use super::sys::{self, CUgraph, CUgraphExec, CUstreamCaptureMode, CUstreamCaptureStatus};
use super::{CudaStream, Device};
use crate::error::{Result, bail};

/// Recorded work that can be launched.
pub(crate) struct Graph {
    device: Arc<Device>,
    executable: CUgraphExec,
}

// SAFETY: CUDA allows any thread to use a graph, one at a time; `launch` takes `&mut self`.
unsafe impl Send for Graph {}

/// The graph into which a stream's work is being recorded, by the caller or by the library.
pub(crate) struct CapturedGraph {
    id: u64,
    raw: CUgraph,
}

impl CapturedGraph {
    /// The graph of a stream that is being captured.
    pub(super) fn of(stream: &CudaStream) -> Result<Self> {
        let _current = stream.device().enter()?;
        let mut status = CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
        let (mut id, mut raw, null) = (0, ptr::null_mut(), ptr::null_mut());
        // SAFETY: the stream is alive; writes three values, and not the others, which are null.
        let result = unsafe {
            sys::cuStreamGetCaptureInfo_v2(stream.raw(), &mut status, &mut id, &mut raw, null, ptr::null_mut())
        };
        check("cuStreamGetCaptureInfo", result)?;
        if status != CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_ACTIVE {
            bail!(InvalidArgument, "the stream's capture has ended or has been invalidated");
        }
        Ok(CapturedGraph { id, raw })
    }

    /// A number that no other capture of the process has.
    pub(crate) fn id(&self) -> u64 {
        self.id
    }

    /// Keeps a reference until the graph and all that was made of it are destroyed, and do not run
    /// any more. If the driver does not take it, the reference may stay for ever.
    pub(crate) fn keep(&self, reference: Arc<()>) -> Result<()> {
        // The driver does not allow calls of its own here.
        unsafe extern "C" fn release(reference: *mut c_void) {
            // SAFETY: `keep` has made the pointer, and the driver passes it on once.
            drop(unsafe { Arc::from_raw(reference.cast_const().cast::<()>()) });
        }
        let mut object = ptr::null_mut();
        let flags = sys::CU_USER_OBJECT_NO_DESTRUCTOR_SYNC;
        let reference = Arc::into_raw(reference).cast_mut().cast();
        // SAFETY: writes one pointer; `release` takes the reference.
        check("cuUserObjectCreate", unsafe { sys::cuUserObjectCreate(&mut object, reference, release, 1, flags) })?;
        // SAFETY: the capture goes on, so the graph exists; the object is this thread's.
        let result = unsafe { sys::cuGraphRetainUserObject(self.raw, object, 1, sys::CU_GRAPH_USER_OBJECT_MOVE) };
        check("cuGraphRetainUserObject", result)
    }
}

impl Graph {
    /// Records what `work`, on this thread, enqueues on a stream. After an error that work is lost.
    pub(crate) fn record(stream: &CudaStream, work: impl FnOnce() -> Result<()>) -> Result<Self> {
        let _current = stream.device().enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
        let worked = work();
        let mut graph = ptr::null_mut();
        // SAFETY: the stream is alive, and its capture has begun.
        let ended = check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) });
        let mut executable = ptr::null_mut();
        let made = worked.and(ended).and_then(|()| {
            // SAFETY: the capture made the graph.
            check("cuGraphInstantiate", unsafe { sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0) })
        });
        if !graph.is_null() {
            // SAFETY: the capture made the graph, which is not used any more.
            let _ = unsafe { sys::cuGraphDestroy(graph) };
        }
        made.map(|()| Graph { device: Arc::clone(stream.device()), executable })
    }

    /// Enqueues the recorded work.
    ///
    /// # Safety
    ///
    /// The memory that the recorded work uses is valid until the work has ended, and nothing else
    /// uses it until then.
    pub(crate) unsafe fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: graph and stream are alive; the caller promises the memory.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // Not deferred: NCCL cannot destroy a communicator before its graphs. A launch that runs
        // goes on.
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: `record` made the graph, and it is destroyed once.
        if let Err(error) = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.executable) }) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}
