//! What ends together: a communicator of NCCL's and everything that was split from it.

use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::super::backend::{Backend, Control, SharedGraph};
use super::handle::{ABORT_TIMEOUT, NcclHandle};
use crate::cuda::{Graph, RankOnGpu, Visit, helper};
use crate::error::{Error, ErrorKind, Result};
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::poller::Poller;
use crate::util::wait::LOOK;

/// How long a thread may take to come out of NCCL when NCCL's abort flags are set.
const COME_OUT_TIMEOUT: Duration = Duration::from_secs(2);

/// How long the watchdog leaves an error to the threads that wait, which say what they waited for.
/// It leaves the death of a peer to them for longer: this process may be about to end too.
const FIND_TIMEOUT: Duration = Duration::from_millis(50);

/// The thread that looks after threads inside NCCL, compares the calls of ranks, and asks NCCL for
/// errors.
///
/// On a communicator that blocks, NCCL keeps a thread that enqueues a call until the call has its
/// place, which may depend on other ranks. That thread can look at nothing meanwhile: not at its
/// deadline, and not at whether a peer has failed. So it says until when it may stay, and the
/// watchdog looks for it. What asks CUDA something has another thread, because the answer may wait
/// for a lock that the thread inside NCCL holds.
static WATCHDOG: Poller = Poller::new("dcl-watchdog", LOOK);

/// A communicator and everything that was split from it. An error of one ends all.
pub(super) struct NcclDomain {
    ended: OnceLock<End>,
    /// Since when the watchdog has seen that the domain has to end, and why.
    must_end: Mutex<Option<(Instant, Error)>>,
    handles: Mutex<Vec<Weak<NcclHandle>>>,
    /// Recorded runs of these communicators. NCCL does not destroy a communicator before its
    /// graphs.
    graphs: Mutex<Vec<Weak<Mutex<Option<Graph>>>>>,
    /// What the ranks of each communicator agree on over the host.
    controls: Mutex<Vec<Weak<Control>>>,
    /// The control communicator: the same ranks on the host. NCCL does not tell a rank that a peer
    /// has failed or died; the control communicator does.
    control: Option<Arc<dyn Backend>>,
    /// Counts among the ranks of the process on its GPU. A rank with borrowed communicators may
    /// have several domains, and does not count.
    _rank: Option<RankOnGpu>,
    /// Whether this library made the first communicator, and did not borrow it.
    is_own: bool,
    process: ProcessGuard,
}

/// The end of a domain on this rank.
struct End {
    error: Error,
    since: Instant,
    /// Whether the thread that ended it was recording work into a graph.
    in_capture: bool,
}

impl NcclDomain {
    pub(super) fn new(control: Option<Arc<dyn Backend>>, rank: Option<RankOnGpu>, is_own: bool) -> Self {
        NcclDomain {
            ended: OnceLock::new(),
            must_end: Mutex::default(),
            handles: Mutex::default(),
            graphs: Mutex::default(),
            controls: Mutex::default(),
            control,
            _rank: rank,
            is_own,
            process: ProcessGuard::current(),
        }
    }

    pub(super) fn is_own(&self) -> bool {
        self.is_own
    }

    /// The error that ended the domain, here or on a peer.
    pub(super) fn check(&self) -> Result<()> {
        // In a forked child, threads that do not exist there may hold NCCL's locks and ours.
        self.process.check("a communicator")?;
        if let Some(error) = self.ended() {
            return Err(error.clone());
        }
        let Some(control) = &self.control else { return Ok(()) };
        // Peers get the error as it is. Later it names this rank's call.
        control.check_peers().inspect_err(|error| control.abort(error.kind(), &error.to_string()))
    }

    /// The error that ended the domain on this rank.
    pub(super) fn ended(&self) -> Option<&Error> {
        self.ended.get().map(|end| &end.error)
    }

    /// The error that NCCL has met on any of the communicators. Only the watchdog asks for it: a
    /// wait would ask each communicator, and often. The caller's communicators it does not touch.
    fn asynchronous_error(&self) -> Result<()> {
        living(&self.handles).try_for_each(|handle| handle.asynchronous_error())
    }

    /// [`asynchronous_error`](Self::asynchronous_error), if the caller owns the communicators.
    pub(super) fn borrowed_error(&self) -> Result<()> {
        if self.is_own { Ok(()) } else { self.asynchronous_error() }
    }

    /// Has the watchdog look after a communicator of the domain.
    pub(super) fn add(self: &Arc<Self>, handle: &Arc<NcclHandle>, control: Option<&Arc<Control>>) {
        if let Some(control) = control {
            push(&self.controls, control);
        }
        let is_first = push(&self.handles, handle) == 1;
        if is_first && self.is_own {
            let domain = Arc::downgrade(self);
            let added = WATCHDOG.add(move || domain.upgrade().inspect(|domain| domain.watch()).is_some());
            if let Err(error) = added {
                crate::util::log::event!(WARN, "no thread to look after calls of NCCL: {error}");
            }
        }
        // The domain may have ended while the communicator was made.
        if let Some(error) = self.ended() {
            handle.begin_abort(error);
        }
    }

    /// Has a graph destroyed before the communicators are.
    pub(super) fn track_graph(&self, graph: &SharedGraph) {
        push(&self.graphs, graph);
    }

    /// Ends all communicators because of this error or an earlier one, and waits, for a bounded
    /// time, until they are aborted. A thread that records work into a graph does not wait: NCCL
    /// frees no communicator of which a capture has recorded a call.
    pub(super) fn end(&self, error: Error) {
        self.abandon(error);
        // Whichever thread has begun the aborts.
        if let Some(End { since, in_capture: false, .. }) = self.ended.get()
            && !Visit::is_recording()
            && self.process.is_current()
            && since.elapsed() < ABORT_TIMEOUT
        {
            living(&self.handles).for_each(|handle| handle.wait_for_abort(*since + ABORT_TIMEOUT));
        }
    }

    /// [`end`](Self::end) for a drop: waits for nothing. Helper threads abort the communicators,
    /// and stay behind if an abort hangs. Memory that a communicator may still use is freed by the
    /// device's thread for deferred release, which waits for the GPU first. (Together: one may wait
    /// for what another communicator still does on the GPU.)
    pub(super) fn abandon(&self, error: Error) {
        let end = End { error: error.clone(), since: Instant::now(), in_capture: Visit::is_recording() };
        let is_first = self.ended.set(end).is_ok();
        // Afterwards, so that a thread of this rank does not take the error for another rank's.
        if let (Some(control), Some(error)) = (&self.control, self.ended()) {
            control.abort(error.kind(), &error.to_string());
        }
        // A forked child has none of its parent's communicators and graphs.
        if !is_first || !self.process.is_current() {
            return;
        }
        // Before the graphs: a thread that is stuck in the launch of one may hold the driver's
        // lock.
        living(&self.handles).for_each(|handle| handle.begin_abort(&error));
        let graphs: Vec<_> = lock(&self.graphs).drain(..).filter_map(|graph| graph.upgrade()).collect();
        if graphs.is_empty() {
            return;
        }
        helper::detach("the graphs of a communicator that has ended", move || {
            for graph in graphs {
                // A graph that is being launched is destroyed with its context.
                if let Ok(mut graph) = graph.try_lock() {
                    *graph = None;
                }
            }
        });
    }

    /// For the watchdog: if a thread stays too long inside one of the communicators, or a peer has
    /// failed or made another call meanwhile, has it come out. The call then fails, which ends the
    /// domain. If the thread does not come out, ends the domain here; also if no thread is inside,
    /// because what a peer does not do may keep the GPU busy forever, and if NCCL has met an error.
    fn watch(&self) {
        let alive =
            || self.check().and_then(|()| living(&self.controls).try_for_each(|control| control.compare_calls()));
        let mut is_inside = false;
        for handle in living(&self.handles) {
            let Some((error, since)) = handle.throw_out(alive) else {
                continue;
            };
            is_inside = true;
            if since.elapsed() >= COME_OUT_TIMEOUT {
                self.abandon(error.clone());
            }
        }
        let (error, patience) = match (alive(), self.asynchronous_error()) {
            (Err(error), _) if error.kind() == ErrorKind::PeerLost => (error, COME_OUT_TIMEOUT),
            (Err(error), _) | (Ok(()), Err(error)) => (error, FIND_TIMEOUT),
            (Ok(()), Ok(())) => return,
        };
        if is_inside || self.ended.get().is_some() {
            return;
        }
        let mut must_end = lock(&self.must_end);
        let (since, first) = must_end.get_or_insert_with(|| (Instant::now(), error.clone()));
        // A difference may be too far back to be named when ranks go on.
        if first.kind() != error.kind() {
            *first = error;
        }
        if since.elapsed() >= patience {
            let first = first.clone();
            drop(must_end);
            self.abandon(first);
        }
    }
}

/// Adds to a list, takes out what is gone, and says how many are there.
fn push<T>(list: &Mutex<Vec<Weak<T>>>, value: &Arc<T>) -> usize {
    let mut list = lock(list);
    list.retain(|value| value.strong_count() > 0);
    list.push(Arc::downgrade(value));
    list.len()
}

/// Those of a list that are there, without a lock between them and without an allocation. If the
/// list changes meanwhile, one may be left out.
fn living<T>(list: &Mutex<Vec<Weak<T>>>) -> impl Iterator<Item = Arc<T>> {
    (0..).map_while(|index| lock(list).get(index).cloned()).filter_map(|weak| weak.upgrade())
}
