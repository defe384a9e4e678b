//! The runs of contexts and bound layers, which ranks compare, so that a run that one rank leaves
//! out is seen.

use std::cell::Cell;
use std::fmt;
use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};

/// A context or bound layer, by the number that it has on every rank, and its run: counted from 1,
/// or in a request the request. The same run has the same id on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RunId(u64);

/// The lowest bits of an id are the count, the highest the number of the context or layer, and
/// between them is one that says whether requests are counted.
const COUNT_BITS: u32 = 47;
const COUNT_MASK: u64 = (1 << COUNT_BITS) - 1;
const IN_REQUEST: u64 = 1 << COUNT_BITS;
const OWNER_SHIFT: u32 = COUNT_BITS + 1;

impl RunId {
    fn new(owner: u64, count: u64) -> Self {
        RunId(owner << OWNER_SHIFT | (count & COUNT_MASK))
    }

    /// Any call in a request, outside of runs. `request` is the request's number, from 1.
    fn of_request(request: u64) -> Self {
        RunId(IN_REQUEST | (request & COUNT_MASK))
    }

    /// Whether a rank that refuses this leaves out `other` too: the same run, or a call in the
    /// request.
    pub(super) fn includes(self, other: Self) -> bool {
        self == other
            || (self.is_request() && other.0 << (u64::BITS - OWNER_SHIFT) == self.0 << (u64::BITS - OWNER_SHIFT))
    }

    /// Whether it is a request as a whole.
    pub(super) fn is_request(self) -> bool {
        self.0 & IN_REQUEST != 0 && self.0 >> OWNER_SHIFT == 0
    }

    /// The id of a word; 0 is none.
    pub(super) fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(RunId(word))
    }

    /// The number of the run or request.
    pub(super) fn count(self) -> u64 {
        self.0 & COUNT_MASK
    }
}

impl fmt::Display for RunId {
    /// `run 3 of context or layer 1`, `request number 2`
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, count) = (self.0 >> OWNER_SHIFT, self.count());
        match (owner, self.0 & IN_REQUEST) {
            (0, _) => write!(f, "request number {count}"),
            (_, 0) => write!(f, "run {count} of context or layer {owner}"),
            _ => write!(f, "a run of context or layer {owner} in request number {count}"),
        }
    }
}

/// Counts the runs of a context on its communicator, or of a bound layer: those that were begun,
/// and those that were refused. Runs in requests are counted only if the network has groups.
#[derive(Debug)]
pub(crate) struct RunCounter {
    /// The number of the context or layer.
    owner: NonZeroU16,
    latest: AtomicU64,
}

impl RunCounter {
    /// `owner` is a number that all ranks agree on, and that no other context or layer on the
    /// communicator has.
    pub(crate) fn new(owner: NonZeroU16) -> Self {
        RunCounter { owner, latest: AtomicU64::new(0) }
    }

    /// The next run. The caller has this rank's turn, so that no other thread is here.
    pub(crate) fn next(&self) -> RunId {
        let count = self.latest.load(Ordering::Relaxed) + 1;
        self.latest.store(count, Ordering::Relaxed);
        RunId::new(self.owner.get().into(), count)
    }
}

/// A run, to its collectives. It is counted with the first of them outside of requests.
pub(crate) struct CountedRun<'a> {
    runs: &'a RunCounter,
    id: Cell<Option<RunId>>,
}

impl<'a> CountedRun<'a> {
    pub(crate) fn new(runs: &'a RunCounter) -> Self {
        CountedRun { runs, id: Cell::new(None) }
    }

    /// Its id outside of requests.
    pub(crate) fn id(&self) -> RunId {
        let id = self.id.get().unwrap_or_else(|| self.runs.next());
        self.id.set(Some(id));
        id
    }

    /// The word of a signature, in a request if one is open.
    pub(super) fn word(run: Option<&Self>, request: Option<u64>) -> u64 {
        match (run, request) {
            (None, None) => 0,
            (Some(run), None) => run.id().0,
            (None, Some(request)) => RunId::of_request(request).0,
            (Some(run), Some(request)) => RunId::of_request(request).0 | u64::from(run.runs.owner.get()) << OWNER_SHIFT,
        }
    }
}
