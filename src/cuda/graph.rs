//! CUDA graphs: work that is recorded once and launched many times.

use std::sync::Arc;

use super::driver::check;
use super::sys::{self, CUgraphExec, CUstreamCaptureMode};
use super::{CudaStream, Device};
use crate::error::{Result, bail};

/// A capture of a stream. If it is dropped without [`finish`](Self::finish), the recorded work is
/// lost.
pub(crate) struct Capture<'a> {
    stream: Option<&'a CudaStream>,
}

/// Recorded work that can be launched.
pub(crate) struct Graph {
    device: Arc<Device>,
    executable: CUgraphExec,
}

// SAFETY: CUDA allows any thread to use a graph, one at a time; `launch` takes `&mut self`.
unsafe impl Send for Graph {}

impl<'a> Capture<'a> {
    /// Begins to record the work that this thread enqueues on the stream.
    pub(crate) fn begin(stream: &'a CudaStream) -> Result<Self> {
        let _current = stream.device().enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
        Ok(Capture { stream: Some(stream) })
    }

    /// Ends the capture.
    pub(crate) fn finish(mut self) -> Result<Graph> {
        let Some(stream) = self.stream.take() else { bail!(System, "a capture ends once") };
        let _current = stream.device().enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive, and `begin` has begun a capture of it.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the capture made the graph; it is not used after it was instantiated.
        let result = unsafe {
            let result = sys::cuGraphInstantiateWithFlags(&mut executable, graph, 0);
            let _ = sys::cuGraphDestroy(graph);
            result
        };
        check("cuGraphInstantiate", result)?;
        Ok(Graph { device: Arc::clone(stream.device()), executable })
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        let Some(stream) = self.stream else { return };
        let Ok(_current) = stream.device().enter() else { return };
        let mut graph = std::ptr::null_mut();
        // SAFETY: as in `finish`; the graph is null if the capture failed.
        unsafe {
            let _ = sys::cuStreamEndCapture(stream.raw(), &mut graph);
            if !graph.is_null() {
                let _ = sys::cuGraphDestroy(graph);
            }
        }
    }
}

impl Graph {
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
        // SAFETY: `finish` made the graph, and it is destroyed once.
        if let Err(error) = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.executable) }) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}
