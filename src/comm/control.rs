//! The control communicator of ranks on GPUs: the same ranks on the host, if they are on one
//! machine. There they compare what NCCL does not: whether a run of a context is recorded into a
//! CUDA graph, replayed or neither.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use super::backend::{Backend, Checked, Control, Request};
use super::split::SplitGroup;
use crate::collective::{Call, Collective, Purpose, PurposeKind};
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::memory::Address;
use crate::rank::Rank;
use crate::util::deadline_after;
use crate::util::settings::DEFAULT_TIMEOUT;

const CHOOSE_GRAPH: Purpose = Purpose::new("a run with the buffers of no CUDA graph, or of several", PurposeKind::Run);
const REPLAY: Purpose = Purpose::new("a run that replays CUDA graph % of context #", PurposeKind::Announcement);
const CAPTURE: Purpose = Purpose::new("run #, in a capture of the caller's", PurposeKind::AwaitedAnnouncement);
const PLAIN_RUN: Purpose = Purpose::new("run #, in no capture", PurposeKind::Announcement);

/// The number of an announcement, or a vote: a run or a context, and graphs of the context.
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
    pub(super) fn new(host: Arc<dyn Backend>) -> Self {
        Control { host, runs: AtomicU64::new(0) }
    }

    /// The control communicator of a group's members. Collective.
    pub(super) fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Self>> {
        Ok(self.host.split(group, deadline)?.map(|host| Control::new(Arc::from(host))))
    }

    /// Begins a run for which every rank asks which graph it replays. Waits for all ranks.
    /// Collective.
    pub(crate) fn choose_graph(&self, context: u32, could_replay: u8, deadline: Instant) -> Result<Votes> {
        let own = word_of(context.into(), could_replay) as i64;
        let mut all = vec![0i64; self.host.world_size() as usize];
        let call = Call::of_blocks(Collective::AllGather, DataType::Int64, 1).for_purpose(CHOOSE_GRAPH);
        let sides = [Address::host((&raw const own).cast()), Address::host(all.as_mut_ptr().cast())];
        // SAFETY: the input holds one element, and the output one for each rank. Both are locals.
        unsafe { self.run(Request::new(call, sides, deadline))? };
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

    /// Begins a run that replays a graph. Waits for no rank; one that does something else is an
    /// error of a later call, or of [`check`](Self::check). Collective.
    pub(crate) fn replay(&self, context: u32, graph: u8, deadline: Instant) -> Result<()> {
        self.announce(REPLAY, word_of(context.into(), graph), deadline)?;
        self.runs.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// Begins a run in a capture of the caller's. Waits until all ranks capture. Collective.
    pub(crate) fn capture(&self, deadline: Instant) -> Result<()> {
        let number = self.runs.load(Ordering::Relaxed) + 1;
        self.announce(CAPTURE, word_of(number, 0), deadline)?;
        self.runs.store(number, Ordering::Release);
        Ok(())
    }

    /// Begins a run that is neither recorded nor replayed. Tells no rank of it, so that it costs
    /// nothing; a rank that captures the run finds out by [`check`](Self::check).
    pub(crate) fn plain_run(&self) -> Result<()> {
        self.runs.fetch_add(1, Ordering::Relaxed);
        self.check()
    }

    /// A barrier whose error names the ranks that have not come. Collective.
    pub(super) fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        self.host.monitored_barrier(deadline)
    }

    /// Whether a peer captures a run that this rank has begun without a capture. It would wait for
    /// this rank, and this rank for the peer's part of the run. Cheap: waits ask it often.
    pub(crate) fn check(&self) -> Result<()> {
        // The runs first: a capture of this rank that is awaited may end in between.
        let runs = self.runs.load(Ordering::Acquire) as usize;
        let Some(Call { purpose: CAPTURE, block_elements: number, .. }) = self.host.awaited() else { return Ok(()) };
        if number >> u8::BITS > runs {
            return Ok(());
        }
        // An announcement waits for no rank. This one is an error on every rank.
        self.announce(PLAIN_RUN, number, deadline_after(DEFAULT_TIMEOUT))
    }

    fn announce(&self, purpose: Purpose, number: usize, deadline: Instant) -> Result<()> {
        // SAFETY: an announcement uses no buffer.
        unsafe { self.run(Request::without_buffers(purpose, number, deadline)) }
    }

    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run(&self, request: Request<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { Checked { backend: Some(&*self.host), request: &request }.run() }
    }
}
