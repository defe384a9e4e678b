//! Runs that are recorded into a CUDA graph and then replayed.

use std::sync::Arc;

use super::run::RunIo;
use super::shapes::Shapes;
use crate::comm::{Communicator, SharedGraph};
use crate::cuda::{Capture, CudaStream};
use crate::error::Result;
use crate::util::lock;

/// The last run, and its graph if it was recorded. The first run with some shapes and memory is
/// plain, so that everything it needs is allocated. The second is recorded, and later ones replay
/// it.
#[derive(Default)]
pub(super) struct Recording {
    shapes: Option<Arc<Shapes>>,
    /// Each tensor's address, and its memory's generation, which differs if other memory has come
    /// to that address.
    memory: Vec<(usize, u64)>,
    /// Shared with the communicator, which destroys it before it ends.
    graph: SharedGraph,
    /// Where runs are recorded. No other work is enqueued on this stream.
    stream: Option<Arc<CudaStream>>,
}

impl Recording {
    /// Forgets what was recorded.
    pub(super) fn clear(&mut self) {
        *lock(&self.graph) = None;
        self.shapes = None;
    }

    /// Whether the last run was of these shapes and this memory; from now on it is.
    fn is_again(&mut self, shapes: &Arc<Shapes>, io: &RunIo) -> bool {
        let memory =
            || io.tensors.iter().map(|raw| raw.as_ref().map_or((0, 0), |raw| (raw.address.addr(), raw.generation)));
        let same_shapes = self.shapes.as_ref().is_some_and(|last| Arc::ptr_eq(last, shapes));
        if same_shapes && memory().eq(self.memory.iter().copied()) {
            return true;
        }
        *lock(&self.graph) = None;
        self.shapes = Some(Arc::clone(shapes));
        self.memory.clear();
        self.memory.extend(memory());
        false
    }

    /// Enqueues a run: as usual, recorded, or replayed.
    ///
    /// # Safety
    ///
    /// `layers` enqueues the run on the stream it is given, on memory that is valid until the run
    /// is done. `prepare` makes what the run needs on a stream.
    pub(super) unsafe fn run(
        &mut self,
        communicator: &Communicator,
        (shapes, io): (&Arc<Shapes>, &RunIo),
        stream: &Arc<CudaStream>,
        prepare: impl FnOnce(&Arc<CudaStream>) -> Result<()>,
        layers: impl Fn(&Arc<CudaStream>) -> Result<()>,
    ) -> Result<()> {
        if !self.is_again(shapes, io) {
            return layers(stream);
        }
        let mut graph = lock(&self.graph);
        let graph = match &mut *graph {
            Some(graph) => graph,
            none => {
                let own = match &self.stream {
                    Some(own) => own,
                    None => {
                        communicator.track_graph(&self.graph);
                        self.stream.insert(Arc::new(CudaStream::new(stream.device())?))
                    }
                };
                prepare(own)?;
                let capture = Capture::begin(own)?;
                layers(own)?;
                none.insert(capture.finish()?)
            }
        };
        // SAFETY: the same memory was recorded.
        unsafe { graph.launch(stream) }
    }
}
