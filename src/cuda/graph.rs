//! CUDA graphs: work that is recorded once and launched again and again.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUgraphExec, CUstreamCaptureMode};

use super::driver::check;
use super::{CudaStream, Device};
use crate::error::{Result, bail};

/// Recording on a stream. Dropping it without [`finish`](Self::finish) throws away what was recorded.
pub(crate) struct Capture<'a> {
    stream: Option<&'a CudaStream>,
}

/// What was recorded, ready to be launched.
pub(crate) struct Graph {
    device: Arc<Device>,
    executable: CUgraphExec,
}

// SAFETY: a graph may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for Graph {}

impl<'a> Capture<'a> {
    /// From now on, until the end, work enqueued on the stream by this thread is recorded.
    pub(crate) fn begin(stream: &'a CudaStream) -> Result<Self> {
        let _current = stream.device().enter()?;
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        check("cuStreamBeginCapture", unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) })?;
        Ok(Capture { stream: Some(stream) })
    }

    /// Ends the recording.
    pub(crate) fn finish(mut self) -> Result<Graph> {
        let Some(stream) = self.stream.take() else { bail!(System, "a capture ends once") };
        let _current = stream.device().enter()?;
        let mut graph = std::ptr::null_mut();
        // SAFETY: the stream is alive, and capturing.
        check("cuStreamEndCapture", unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) })?;
        let mut executable = std::ptr::null_mut();
        // SAFETY: the graph has just been made; it is not needed once it has been instantiated.
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
        // SAFETY: as in `finish`; a capture that failed gives no graph.
        unsafe {
            let _ = sys::cuStreamEndCapture(stream.raw(), &mut graph);
            if !graph.is_null() {
                let _ = sys::cuGraphDestroy(graph);
            }
        }
    }
}

impl Graph {
    /// Enqueues everything that was recorded.
    ///
    /// # Safety
    ///
    /// The memory that was recorded is good until the work is done.
    pub(crate) unsafe fn launch(&mut self, stream: &CudaStream) -> Result<()> {
        let _current = self.device.enter()?;
        // SAFETY: graph and stream are alive; the caller's promise.
        check("cuGraphLaunch", unsafe { sys::cuGraphLaunch(self.executable, stream.raw()) })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // At once, since NCCL does not let go of a communicator before its graphs are gone; a launch under way goes on.
        let Ok(_current) = self.device.enter() else { return };
        // SAFETY: made by `finish`, and destroyed once.
        if let Err(error) = check("cuGraphExecDestroy", unsafe { sys::cuGraphExecDestroy(self.executable) }) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}
