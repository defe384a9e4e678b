//! Runs that are recorded into a CUDA graph and then replayed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::recordings::{MAX_RECORDINGS, Recordings, Step};
use super::run::RunIo;
use super::shapes::Shapes;
use crate::comm::{Communicator, Control, SharedGraph, Votes};
use crate::cuda::{Capture, CudaStream, Graph};
use crate::error::{Result, error};
use crate::util::lock;

/// The CUDA graphs of a context; see
/// [`ExecutionContext::cuda_graphs`](super::ExecutionContext::cuda_graphs).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct CudaGraphs {
    /// How many graphs the context keeps at most. The one that was used longest ago leaves.
    pub capacity: usize,
    /// How many runs were recorded into a graph.
    pub recorded: u64,
    /// How many runs replayed a graph that was there.
    pub replayed: u64,
    /// How many runs did neither.
    pub plain: u64,
}

/// How many runs were recorded, were replayed, and were neither.
#[derive(Default)]
pub(super) struct RunCounts([AtomicU64; 3]);

impl RunCounts {
    fn count(&self, step: Step) {
        let counter = match step {
            Step::Record(_) => 0,
            Step::Replay(_) => 1,
            Step::Plain(_) => 2,
        };
        self.0[counter].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn report(&self) -> CudaGraphs {
        let [recorded, replayed, plain] = self.0.each_ref().map(|count| count.load(Ordering::Relaxed));
        CudaGraphs { capacity: MAX_RECORDINGS, recorded, replayed, plain }
    }
}

/// Which ranks decide on a run.
#[derive(Clone, Copy)]
pub(super) enum Deciders<'a> {
    /// This rank alone.
    Own,
    /// All ranks. The number is that of the context.
    All(&'a Control, u32),
}

/// One recording's graph, and what it is for.
#[derive(Default)]
struct Kept {
    shapes: Option<Arc<Shapes>>,
    /// Each tensor's address, and its memory's generation, which differs if other memory has come
    /// to that address.
    memory: Vec<(usize, u64)>,
    /// Shared with the communicator, which destroys it before it ends.
    graph: SharedGraph,
}

impl Kept {
    fn is_for(&self, shapes: &Arc<Shapes>, io: &RunIo) -> bool {
        let has_shapes = |own: &Arc<Shapes>| Arc::ptr_eq(own, shapes) || own.inputs == shapes.inputs;
        self.shapes.as_ref().is_some_and(has_shapes) && memory_of(io).eq(self.memory.iter().copied())
    }

    /// From now on it is for this run.
    fn begin(&mut self, shapes: &Arc<Shapes>, io: &RunIo) {
        *lock(&self.graph) = None;
        self.shapes = Some(Arc::clone(shapes));
        self.memory.clear();
        self.memory.extend(memory_of(io));
    }
}

fn memory_of(io: &RunIo) -> impl Iterator<Item = (usize, u64)> {
    io.tensors.iter().map(|raw| raw.as_ref().map_or((0, 0), |raw| (raw.address.addr(), raw.generation)))
}

/// A context's recorded runs.
#[derive(Default)]
pub(super) struct Replays {
    recordings: Recordings,
    kept: [Kept; MAX_RECORDINGS],
    /// Where runs are recorded. No other work is enqueued on this stream.
    stream: Option<Arc<CudaStream>>,
}

impl Replays {
    /// Destroys the graphs. For the context of a communicator that has ended.
    pub(super) fn clear(&mut self) {
        self.kept.iter_mut().for_each(|kept| *lock(&kept.graph) = None);
    }

    /// Enqueues a run: plainly, recorded, or replayed.
    ///
    /// # Safety
    ///
    /// `layers` enqueues the run on the stream it is given, on memory that is valid until the run
    /// is done.
    pub(super) unsafe fn run(
        &mut self,
        (communicator, deciders, counts): (&Communicator, Deciders<'_>, &RunCounts),
        (shapes, io): (&Arc<Shapes>, &RunIo),
        (stream, deadline): (&Arc<CudaStream>, Instant),
        layers: impl Fn(&Arc<CudaStream>) -> Result<()>,
    ) -> Result<()> {
        let step = self.step(deciders, (shapes, io), deadline)?;
        counts.count(step);
        let number = match step {
            Step::Plain(number) => {
                self.kept[number].begin(shapes, io);
                return layers(stream);
            }
            Step::Record(number) => {
                let recorded = self.record(communicator, stream, layers)?;
                *lock(&self.kept[number].graph) = Some(recorded);
                number
            }
            Step::Replay(number) => number,
        };
        let mut graph = lock(&self.kept[number].graph);
        let graph = graph.as_mut().ok_or_else(|| error!(System, "the communicator has destroyed its graphs"))?;
        // SAFETY: the same memory was recorded.
        unsafe { graph.launch(stream) }
    }

    /// Decides on a run. All ranks decide alike, or it is an error on each of them.
    fn step(
        &mut self,
        deciders: Deciders<'_>,
        (shapes, io): (&Arc<Shapes>, &RunIo),
        deadline: Instant,
    ) -> Result<Step> {
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| kept.is_for(shapes, io));
        let could_replay = fitting.fold(0, |mask, (number, _)| mask | 1 << number);
        if let Some(number) = self.recordings.certain(could_replay) {
            if let Deciders::All(control, context) = deciders {
                control.replay(context, number as u8, deadline)?;
            }
            return Ok(Step::Replay(number));
        }
        let votes = match deciders {
            Deciders::Own => Votes { every: could_replay, some: could_replay },
            Deciders::All(control, context) => control.choose_graph(context, could_replay, deadline)?,
        };
        Ok(self.recordings.decide(votes))
    }

    fn record(
        &mut self,
        communicator: &Communicator,
        stream: &Arc<CudaStream>,
        layers: impl Fn(&Arc<CudaStream>) -> Result<()>,
    ) -> Result<Graph> {
        let own = match &self.stream {
            Some(own) => own,
            None => {
                self.kept.iter().for_each(|kept| communicator.track_graph(&kept.graph));
                self.stream.insert(Arc::new(CudaStream::new(stream.device())?))
            }
        };
        let capture = Capture::begin(own)?;
        {
            let _visit = own.visit()?;
            layers(own)?;
        }
        capture.finish()
    }
}
