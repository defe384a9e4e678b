//! The control communicator of ranks on GPUs: the same ranks on the host. There the ranks of each
//! machine compare what NCCL does not: which calls they make, and whether a run of a context is
//! recorded into a CUDA graph, replayed or neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::backend::{Backend, Checked, Control, Request, gather_numbers};
use super::message::MessageRequest;
use super::run_id::CountedRun;
use super::signature::Signature;
use super::split::SplitGroup;
use crate::collective::{Call, Purpose, PurposeKind};
use crate::error::{Result, bail};
use crate::rank::Rank;

const CHOOSE_GRAPH: Purpose = Purpose::new("a run with the buffers of no CUDA graph, or of several", PurposeKind::Run);
const REPLAY: Purpose = Purpose::new("a run that replays CUDA graph % of context #", PurposeKind::RunNote);
const CAPTURE: Purpose = Purpose::new("run #, in a capture of the caller's", PurposeKind::RunNote);
const PLAIN_RUN: Purpose = Purpose::new("run #, in no capture", PurposeKind::RunNote);

/// The number of a note, or a vote: a run or a context, and graphs of the context.
fn word_of(number: u64, graphs: u8) -> usize {
    (number as usize) << u8::BITS | usize::from(graphs)
}

/// What ranks say to [`Control::choose_graph`]: one bit for each graph that they could replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Votes {
    /// The graphs that every rank could replay.
    pub(crate) every: u8,
    /// The graphs that some rank could replay.
    pub(crate) some: u8,
}

impl Control {
    /// Collective.
    pub(super) fn new(host: Arc<dyn Backend>, deadline: Instant) -> Result<Self> {
        let log = host.call_log()?;
        let control = Control { host, log, counted: AtomicU64::new(0), runs: AtomicU64::new(0) };
        // A rank reads no log that is not allocated.
        // SAFETY: without elements no buffer is used.
        unsafe { control.run_on_host(&Request::barrier(Purpose::INITIALIZE, deadline))? };
        Ok(control)
    }

    /// The control communicator of a group's members. Collective.
    pub(super) fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Self>> {
        self.host.split(group, deadline)?.map(|host| Control::new(Arc::from(host), deadline)).transpose()
    }

    /// Says that this rank, which has its turn, is about to make a call.
    pub(super) fn note_call(&self, call: Call, run: Option<&CountedRun<'_>>) {
        // No other thread counts meanwhile.
        let counted = self.counted.load(Ordering::Relaxed);
        self.counted.store(counted + u64::from(call.purpose.is_counted()), Ordering::Relaxed);
        self.log.add(Signature::new(call, CountedRun::word(run, None)), counted + 1);
    }

    /// Says that this rank, which has its turn, is about to begin a message.
    pub(super) fn note_message(&self, message: &MessageRequest) {
        self.log.add_message(message);
    }

    /// Says what becomes of the next run.
    fn note_run(&self, purpose: Purpose, number: usize) {
        self.note_call(Call::without_buffers(purpose, number), None);
    }

    /// Compares what the ranks have said so far. Cheap: waits ask it often.
    pub(crate) fn compare_calls(&self) -> Result<()> {
        self.log.compare()
    }

    /// Begins a run for which every rank asks which graph it replays. Waits for all ranks.
    /// Collective.
    pub(crate) fn choose_graph(&self, context: u32, could_replay: u8, deadline: Instant) -> Result<Votes> {
        let own = word_of(context.into(), could_replay) as i64;
        // SAFETY: the buffers of the request are as long as it says.
        let run = |request: &Request<'_>| unsafe { self.run_noted(request) };
        let all = gather_numbers(self.host.world_size() as usize, CHOOSE_GRAPH, own, deadline, run)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        let context_of = |vote: i64| vote >> u8::BITS;
        if let Some(other) = all.iter().position(|vote| context_of(*vote) != i64::from(context)) {
            let (rank, own_rank) = (self.host.origin(Rank(other as u32)), self.host.origin(self.host.rank()));
            let other = context_of(all[other]);
            bail!(Disagreement, "rank {rank} runs context {other}, and rank {own_rank} context {context}");
        }
        let none = Votes { every: u8::MAX, some: 0 };
        let graphs = all.iter().map(|vote| *vote as u8);
        Ok(graphs.fold(none, |votes, vote| Votes { every: votes.every & vote, some: votes.some | vote }))
    }

    /// Begins a run that replays a graph.
    pub(crate) fn replay(&self, context: u32, graph: u8) {
        self.note_run(REPLAY, word_of(context.into(), graph));
        self.runs.fetch_add(1, Ordering::Relaxed);
    }

    /// Begins a run that is neither recorded nor replayed.
    pub(crate) fn plain_run(&self) {
        self.note_run(PLAIN_RUN, word_of(self.runs.fetch_add(1, Ordering::Relaxed) + 1, 0));
    }

    /// Begins a run in a capture of the caller's. Waits until all ranks of this machine capture.
    /// Collective.
    pub(crate) fn capture(&self, deadline: Instant) -> Result<()> {
        let number = self.runs.fetch_add(1, Ordering::Relaxed) + 1;
        self.note_run(CAPTURE, word_of(number, 0));
        self.log.wait_for_peers(&format_args!("run {number}, in a capture of the caller's"), deadline)
    }

    /// Whether all ranks are on one machine. If not, calls of other machines are compared later,
    /// and no call waits for the host.
    pub(crate) fn is_one_machine(&self) -> bool {
        self.host.is_one_machine()
    }

    /// Makes a call that ranks of GPUs make on the host, which the log has too: a rank on the GPU
    /// that makes another call finds the difference.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    pub(super) unsafe fn run_noted(&self, request: &Request<'_>) -> Result<()> {
        self.note_call(request.call, request.run);
        // SAFETY: the caller's promise.
        unsafe { self.run_on_host(request)? };
        self.compare_calls()
    }

    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_on_host(&self, request: &Request<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Checked { backend: Some(&*self.host), request }.run() }
    }

    /// A barrier whose error names the ranks that have not come. Collective.
    pub(super) fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        self.note_call(Call::without_buffers(Purpose::MONITORED_BARRIER, 0), None);
        self.host.monitored_barrier(deadline)?;
        self.compare_calls()
    }
}
