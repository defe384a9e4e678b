//! Runs that are recorded into a CUDA graph and then replayed.

use std::collections::HashSet;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::Instant;

use super::ContextOptions;
use super::profile::RunProfile;
use super::recordings::{Decision, MAX_RECORDINGS, Recordings};
use super::run::RunIo;
use super::shapes::Shapes;
use crate::comm::{Communicator, Control, SharedGraph, Votes};
use crate::cuda::{CudaStream, Graph};
use crate::dist_collective::SET_COMMUNICATOR;
use crate::engine::EngineInner;
use crate::error::{Result, bail, error};
use crate::memory::RawTensor;
use crate::tensor::MemorySpace;
use crate::util::lock;
use crate::util::log::event;

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

/// Whether a context on a communicator records its runs.
#[derive(Default)]
pub(super) struct GraphPolicy {
    pub(super) is_recording: bool,
    /// Whether a run waits for peers: ranks then have to do the same with it.
    pub(super) is_collective: bool,
    /// The number of the context, the same on every rank.
    context: u32,
    /// How many runs were recorded, were replayed, and were neither.
    counts: [AtomicU64; 3],
}

impl GraphPolicy {
    /// What the ranks' options, which are the same, and the communicator allow. Collective.
    pub(super) fn agree(
        engine: &EngineInner,
        communicator: &Communicator,
        options: ContextOptions,
        deadline: Instant,
    ) -> Result<Self> {
        static CONTEXTS: AtomicU32 = AtomicU32::new(1);
        // No other process has this number.
        static PROCESS: LazyLock<u64> = LazyLock::new(|| RandomState::new().build_hasher().finish());
        let ContextOptions { cuda_graph, graphs_without_agreement } = options;
        let wanted = (cuda_graph, graphs_without_agreement);
        let own = CONTEXTS.fetch_add(1, Ordering::Relaxed);
        let gpu = match communicator.space() {
            MemorySpace::Cuda(ordinal) => Some((*PROCESS, ordinal)),
            _ => None,
        };
        let all = communicator.exchange(SET_COMMUNICATOR, &(wanted, own, gpu), deadline)?;
        if all.iter().any(|(other, ..)| *other != wanted) {
            bail!(
                Disagreement,
                "contexts of some ranks record CUDA graphs (`cuda_graph`, `graphs_without_agreement`), and of others \
                 do not"
            );
        }
        // Rank 0's number is that of the context.
        let (_, context, _) = all[0];
        // A rank need not run a context all of whose layers are for other ranks. One that records
        // has to run on every rank, so that they can agree.
        let mut layers = engine.analysis.collectives.iter().flatten();
        let is_for_all = layers.any(|layer| layer.nb_rank == communicator.world_size());
        let has_peers = communicator.world_size() > 1 && engine.first_collective().is_some();
        let is_collective = has_peers && (is_for_all || cuda_graph);
        let can_agree = !is_collective || communicator.as_backend().control().is_some_and(Control::is_one_machine);
        if cuda_graph && !can_agree && !graphs_without_agreement {
            event!(
                WARN,
                "plan {} is not recorded into CUDA graphs: the ranks cannot agree on it, because they are not \
                 known to be on one machine; `graphs_without_agreement` records all the same",
                engine.fingerprint
            );
        }
        // A graph has branches, because NCCL orders graphs and plain calls by events. Graphs of two
        // ranks of one CUDA context then hold back each other's branches, and cuGraphInstantiate
        // may wait for the work of the other rank (seen with driver 580; not if
        // NCCL_GRAPH_MIXING_SUPPORT is 0).
        let mut gpus = HashSet::new();
        let shares_gpu = all.iter().filter_map(|(.., gpu)| *gpu).any(|gpu| !gpus.insert(gpu));
        if cuda_graph && shares_gpu {
            event!(
                WARN,
                "plan {} is not recorded into CUDA graphs: ranks of one process share a GPU",
                engine.fingerprint
            );
        }
        let is_recording = cuda_graph && (can_agree || graphs_without_agreement) && !shares_gpu;
        Ok(GraphPolicy { is_recording, is_collective, context, counts: Default::default() })
    }

    pub(super) fn counts(&self) -> CudaGraphs {
        let [recorded, replayed, plain] = self.counts.each_ref().map(|count| count.load(Ordering::Relaxed));
        CudaGraphs { capacity: MAX_RECORDINGS, recorded, replayed, plain }
    }
}

/// One recording's graph, and what it is for.
#[derive(Default)]
struct KeptGraph {
    shapes: Option<Arc<Shapes>>,
    /// Each tensor's address, and its memory's generation, which differs if other memory has come
    /// to that address.
    memory: Vec<(usize, u64)>,
    /// Shared with the communicator, which destroys it before it ends.
    graph: SharedGraph,
}

impl KeptGraph {
    fn is_for(&self, shapes: &Arc<Shapes>, io: &RunIo) -> bool {
        let has_shapes = |own: &Arc<Shapes>| Arc::ptr_eq(own, shapes) || own.inputs == shapes.inputs;
        self.shapes.as_ref().is_some_and(has_shapes) && memory_of(io).eq(self.memory.iter().copied())
    }

    /// From now on it is for this run, or for none if other memory may come to the run's addresses
    /// unnoticed.
    fn begin(&mut self, shapes: &Arc<Shapes>, io: &RunIo) {
        *lock(&self.graph) = None;
        self.memory.clear();
        self.memory.extend(memory_of(io));
        let is_known = self.memory.iter().all(|(_, generation)| *generation != RawTensor::UNKNOWN);
        self.shapes = is_known.then(|| Arc::clone(shapes));
    }
}

fn memory_of(io: &RunIo) -> impl Iterator<Item = (usize, u64)> {
    io.tensors.iter().map(|raw| raw.as_ref().map_or((0, 0), |raw| (raw.address.addr(), raw.generation)))
}

/// A context's recorded runs.
#[derive(Default)]
pub(super) struct Replays {
    recordings: Recordings,
    kept: [KeptGraph; MAX_RECORDINGS],
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
        (communicator, policy, control): (&Communicator, &GraphPolicy, Option<&Control>),
        (shapes, io): (&Arc<Shapes>, &RunIo),
        (stream, deadline): (&Arc<CudaStream>, Instant),
        profile: Option<&RunProfile>,
        layers: impl Fn(&Arc<CudaStream>) -> Result<()>,
    ) -> Result<()> {
        let decision = self.decide((policy, control), (shapes, io), deadline)?;
        let [recorded, replayed, plain] = &policy.counts;
        let (number, count) = match decision {
            Decision::Plain(number) => {
                plain.fetch_add(1, Ordering::Relaxed);
                self.kept[number].begin(shapes, io);
                return layers(stream);
            }
            Decision::Record(number) => {
                let graph = self.record(communicator, stream, layers)?;
                *lock(&self.kept[number].graph) = Some(graph);
                // A domain that ended earlier has not destroyed this graph. The caller does so
                // after the error.
                communicator.check()?;
                (number, recorded)
            }
            Decision::Replay(number) => (number, replayed),
        };
        count.fetch_add(1, Ordering::Relaxed);
        let mut graph = lock(&self.kept[number].graph);
        let graph = graph.as_mut().ok_or_else(|| error!(System, "the communicator has destroyed its graphs"))?;
        let begin = profile.map(|profile| profile.begin(Some(stream)));
        // SAFETY: the same memory was recorded.
        unsafe { graph.launch(stream)? };
        if let Some((profile, begin)) = profile.zip(begin) {
            profile.end(begin, &[], Some(stream));
        }
        Ok(())
    }

    /// Decides on a run. All ranks decide alike, or it is an error on each of them. Without
    /// `control` this rank decides alone.
    fn decide(
        &mut self,
        (policy, control): (&GraphPolicy, Option<&Control>),
        (shapes, io): (&Arc<Shapes>, &RunIo),
        deadline: Instant,
    ) -> Result<Decision> {
        let fitting = self.kept.iter().enumerate().filter(|(_, kept)| kept.is_for(shapes, io));
        let could_replay = fitting.fold(0, |mask, (number, _)| mask | 1 << number);
        if let Some(number) = self.recordings.certain(could_replay) {
            if let Some(control) = control {
                control.replay(policy.context, number as u8);
            }
            return Ok(Decision::Replay(number));
        }
        let votes = match control {
            Some(control) => control.choose_graph(policy.context, could_replay, deadline)?,
            None => Votes { every: could_replay, some: could_replay },
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
                self.kept.iter().for_each(|kept| communicator.as_backend().track_graph(&kept.graph));
                self.stream.insert(Arc::new(CudaStream::new(stream.device())?))
            }
        };
        Graph::record(own, || {
            let _visit = own.visit()?;
            layers(own)
        })
    }
}
