//! Runs that are recorded into a CUDA graph and then replayed.

use std::sync::Arc;

use super::run::RunIo;
use super::shapes::Shapes;
use crate::comm::{Communicator, SharedGraph};
use crate::cuda::{Capture, CudaStream};
use crate::error::Result;
use crate::util::lock;

/// The last run, and its graph once there is one. A run is done as usual the first time, so that everything it needs is there;
/// recorded the second time; and replayed from then on, as long as shapes and memory stay the same.
#[derive(Default)]
pub(super) struct Recording {
    shapes: Option<Arc<Shapes>>,
    /// Each tensor's address, and what tells its memory from other memory there.
    memory: Vec<(usize, u64)>,
    /// Shared with the communicator, which destroys it before it ends.
    graph: SharedGraph,
    /// Where runs are recorded: nobody else's work comes between on this one.
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
    /// `layers` enqueues it on the stream it is given, on memory that is good until it is done; `prepare` makes what it needs there.
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
