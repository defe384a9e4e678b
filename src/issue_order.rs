//! The issue order: the collective calls of one rank on one communicator run in the order in which
//! the rank makes them, whatever threads and streams they run on.
//!
//! Each call takes an [`IssueTicket`]. The call runs when no earlier ticket conflicts with its own.
//! When the call ends, it drops the ticket. Two tickets conflict
//!
//! - if both are for the same communicator, or
//! - if one is for a layer or a run of layers ([`Extent::WithGroups`], [`Extent::Run`]) and the
//!   other for a group that was split from its communicator.
//!
//! All communicators that were split from one root communicator share one lock. So a run takes one
//! ticket for its communicator and all groups in one step.
//!
//! A worker stream gets its work while that lock is held ([`IssueOrder::issue`]). So the order of
//! the work in a stream is the order of its tickets. If it were not, two threads that give work to
//! two streams could make each stream wait for the other one.
//!
//! A call that finds no other ticket takes and drops its own without the lock. Then only the word
//! [`SharedOrder::sole`] knows the ticket, and the next call that finds it enters it in the list.
//!
//! A plugin may make calls on the thread of its run. If the run's ticket covers the call's
//! communicator, the call needs no ticket of its own. Otherwise the call takes one, and does not
//! wait for tickets that cannot begin before the run ends: these wait for the run, or for the
//! stream that the run is on.

#[cfg(all(test, loom))]
mod model;
#[cfg(all(test, not(loom)))]
mod tests;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::Instant;

use crate::error::{Error, ErrorKind, Result};
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, thread_local};
use crate::util::fork::ProcessGuard;
use crate::util::wait::{LOOK, Wait};

/// The issue order of one rank on one communicator.
pub(crate) struct IssueOrder {
    shared: Arc<SharedOrder>,
    communicator: CommunicatorId,
}

/// The number of a communicator among those that were split from one root communicator.
type CommunicatorId = u64;

/// Which communicators a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One communicator.
    Communicator,
    /// One communicator and all groups that were split from it.
    WithGroups,
    /// The same for a run of layers. Calls that its plugins make on the thread of the run belong to
    /// it.
    Run,
}

/// A call's right to run when its turn comes, until the ticket is dropped.
#[must_use = "the call has to wait for its turn"]
pub(crate) struct IssueTicket<'a> {
    order: OrderRef<'a>,
    /// `None` for a call of a plugin that the ticket of its run covers.
    entry: Option<TicketEntry>,
    /// Whether the turn had come when the ticket was issued.
    is_next: bool,
}

/// The position of a ticket in the order, for threads that do not have the ticket.
///
/// Dropping it takes no lock.
#[derive(Clone)]
pub(crate) struct TicketPosition {
    shared: Arc<SharedOrder>,
    entry: TicketEntry,
}

enum OrderRef<'a> {
    Borrowed(&'a IssueOrder),
    Owned(Arc<IssueOrder>),
}

/// What all communicators that were split from one root communicator share. On cache lines of its
/// own, because each call writes some of it.
#[repr(align(128))]
struct SharedOrder {
    /// [`NO_TICKET`], [`LISTED`], or the [word](TicketEntry::to_word) of the only ticket.
    sole: AtomicU64,
    state: Mutex<OrderState>,
    released: Condvar,
    process: ProcessGuard,
}

/// No ticket exists.
const NO_TICKET: u64 = 0;

/// The list has all tickets that exist, and at least one.
const LISTED: u64 = 1;

#[derive(Default)]
struct OrderState {
    /// The tickets that exist, in the order of their numbers, except a sole one.
    entries: VecDeque<TicketEntry>,
    /// How many tickets were issued: the number of the latest one.
    issued: u64,
    /// How many threads wait for a turn.
    waiting: usize,
    /// For each communicator those that it was split from, over all steps.
    ancestors: BTreeMap<CommunicatorId, Box<[CommunicatorId]>>,
    /// How many communicators were made: the number of the latest one.
    communicators: CommunicatorId,
}

/// What the order knows of a ticket.
#[derive(Clone, Copy)]
struct TicketEntry {
    communicator: CommunicatorId,
    extent: Extent,
    /// 0 for a ticket that was issued while there was no other. There is at most one such ticket,
    /// and it is the earliest one.
    number: u64,
    /// The address of the worker stream that has the work.
    stream: Option<usize>,
}

impl TicketEntry {
    fn sole(communicator: CommunicatorId, extent: Extent) -> Self {
        TicketEntry { communicator, extent, number: 0, stream: None }
    }

    /// A sole ticket as a word. Communicators count from 1, so it is neither [`NO_TICKET`] nor
    /// [`LISTED`].
    fn to_word(self) -> u64 {
        self.communicator << 2 | self.extent as u64
    }

    /// The sole ticket of a word; `None` if the word is of none.
    fn from_word(word: u64) -> Option<Self> {
        let extents = [Extent::Communicator, Extent::WithGroups, Extent::Run];
        let extent = extents.into_iter().find(|extent| *extent as u64 == word & 3)?;
        (word > LISTED).then(|| Self::sole(word >> 2, extent))
    }
}

impl OrderState {
    fn add_communicator(&mut self, ancestors: Box<[CommunicatorId]>) -> CommunicatorId {
        self.communicators += 1;
        self.ancestors.insert(self.communicators, ancestors);
        self.communicators
    }

    fn covers(&self, entry: &TicketEntry, communicator: CommunicatorId) -> bool {
        let is_group = || self.ancestors.get(&communicator).is_some_and(|all| all.contains(&entry.communicator));
        entry.communicator == communicator || (entry.extent != Extent::Communicator && is_group())
    }

    fn conflict(&self, one: &TicketEntry, other: &TicketEntry) -> bool {
        self.covers(one, other.communicator) || self.covers(other, one.communicator)
    }

    fn before(&self, entry: &TicketEntry) -> impl Iterator<Item = &TicketEntry> {
        self.entries.iter().take_while(|other| other.number < entry.number)
    }

    /// Whether no earlier ticket conflicts with this one.
    fn is_turn_of(&self, entry: &TicketEntry) -> bool {
        !self.before(entry).any(|other| self.conflict(other, entry))
    }

    /// Whether it is the turn of a call that a plugin makes in these runs: no earlier ticket
    /// conflicts with the call's, except the runs' own tickets and those that wait for a run.
    fn is_turn_within(&self, runs: &[TicketEntry], entry: &TicketEntry) -> bool {
        let mut passed = runs.to_vec();
        self.before(entry).all(|other| {
            let is_own = passed.iter().any(|own| own.number == other.number);
            let waits = passed.iter().any(|own| {
                let is_behind = other.stream.is_some() && other.stream == own.stream;
                own.number < other.number && (is_behind || self.conflict(own, other))
            });
            if waits {
                // What waits for this one waits for the run too.
                passed.push(*other);
            }
            is_own || waits || !self.conflict(other, entry)
        })
    }

    fn index_of(&self, entry: &TicketEntry) -> Option<usize> {
        self.entries.binary_search_by_key(&entry.number, |other| other.number).ok()
    }
}

impl SharedOrder {
    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Issues a ticket without the lock, if no other exists.
    fn issue_sole(&self, entry: &TicketEntry) -> bool {
        let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
        self.sole.compare_exchange(NO_TICKET, entry.to_word(), acquire, relaxed).is_ok()
    }

    /// Drops a ticket without the lock, if it is not in the list.
    fn drop_sole(&self, entry: &TicketEntry) -> bool {
        let (release, relaxed) = (Ordering::Release, Ordering::Relaxed);
        entry.number == 0 && self.sole.compare_exchange(entry.to_word(), NO_TICKET, release, relaxed).is_ok()
    }

    /// Adds a ticket to the list, behind the one that is not in it yet.
    fn add(&self, state: &mut OrderState, ticket: impl FnOnce(u64) -> TicketEntry) -> TicketEntry {
        state.entries.extend(TicketEntry::from_word(self.sole.swap(LISTED, Ordering::AcqRel)));
        state.issued += 1;
        let entry = ticket(state.issued);
        state.entries.push_back(entry);
        entry
    }

    /// Removes a ticket from the list.
    fn remove(&self, state: &mut OrderState, entry: &TicketEntry) {
        state.index_of(entry).and_then(|index| state.entries.remove(index));
        if state.entries.is_empty() {
            self.sole.store(NO_TICKET, Ordering::Release);
        }
    }
}

thread_local! {
    /// The runs of layers that are on this thread now, each with the address of its `SharedOrder`.
    /// There are several if a plugin runs an engine.
    static RUNNING: RefCell<Vec<(usize, TicketEntry)>> = RefCell::default();
}

/// The tickets of the runs on this thread, as far as they belong to this order.
fn runs_of(shared: &Arc<SharedOrder>) -> Vec<TicketEntry> {
    let shared = Arc::as_ptr(shared).addr();
    let of_shared = |(other, entry): &(usize, TicketEntry)| (*other == shared).then_some(*entry);
    // The list is gone only while the thread ends, when no run is on it.
    RUNNING.try_with(|running| running.borrow().iter().filter_map(of_shared).collect()).unwrap_or_default()
}

impl IssueOrder {
    /// The order of a root communicator.
    pub(crate) fn new() -> Arc<Self> {
        let mut state = OrderState::default();
        let communicator = state.add_communicator(Box::default());
        let process = ProcessGuard::current();
        let (sole, state) = (AtomicU64::new(NO_TICKET), Mutex::new(state));
        let shared = SharedOrder { sole, state, released: Condvar::new(), process };
        Arc::new(IssueOrder { shared: Arc::new(shared), communicator })
    }

    /// Whether communicators live that were split from this one.
    pub(crate) fn has_descendants(&self) -> bool {
        self.shared.lock().ancestors.values().any(|ancestors| ancestors.contains(&self.communicator))
    }

    /// The order of a communicator that is split from this one.
    pub(crate) fn descendant(&self) -> Arc<Self> {
        let mut state = self.shared.lock();
        let own = state.ancestors.get(&self.communicator).into_iter().flatten().copied();
        let ancestors = std::iter::once(self.communicator).chain(own).collect();
        let communicator = state.add_communicator(ancestors);
        Arc::new(IssueOrder { shared: Arc::clone(&self.shared), communicator })
    }

    fn add_entry(&self, state: &mut OrderState, extent: Extent, stream: Option<usize>) -> TicketEntry {
        self.shared.add(state, |number| TicketEntry { communicator: self.communicator, extent, number, stream })
    }

    /// Checks that this is the process of the communicator. Callers check before they take a
    /// ticket: in a child that was forked, a thread that is not there may hold the lock.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.shared.process.check("a communicator")
    }

    /// Whether the ticket of a run on this thread covers this communicator.
    pub(crate) fn is_in_run(&self) -> bool {
        let has_runs = RUNNING.try_with(|running| !running.borrow().is_empty()).unwrap_or_default();
        has_runs && runs_of(&self.shared).iter().any(|run| self.shared.lock().covers(run, self.communicator))
    }

    /// Takes the next ticket for work on the worker stream at the address `stream`.
    ///
    /// `enqueue` gives the work and its ticket to the stream. No other call takes a ticket before
    /// it returns.
    pub(crate) fn issue<T>(
        self: &Arc<Self>,
        extent: Extent,
        stream: usize,
        enqueue: impl FnOnce(IssueTicket<'static>) -> T,
    ) -> T {
        let mut state = self.shared.lock();
        let entry = self.add_entry(&mut state, extent, Some(stream));
        enqueue(IssueTicket { order: OrderRef::Owned(Arc::clone(self)), entry: Some(entry), is_next: false })
    }

    /// Takes the next ticket for a call on this thread.
    pub(crate) fn issue_here(&self, extent: Extent) -> IssueTicket<'_> {
        if self.is_in_run() {
            return IssueTicket { order: OrderRef::Borrowed(self), entry: None, is_next: true };
        }
        let sole = TicketEntry::sole(self.communicator, extent);
        if self.shared.issue_sole(&sole) {
            return IssueTicket { order: OrderRef::Borrowed(self), entry: Some(sole), is_next: true };
        }
        let mut state = self.shared.lock();
        let entry = self.add_entry(&mut state, extent, None);
        let is_next = state.is_turn_of(&entry);
        IssueTicket { order: OrderRef::Borrowed(self), entry: Some(entry), is_next }
    }
}

impl Drop for IssueOrder {
    fn drop(&mut self) {
        // See the drop of a ticket.
        if self.shared.process.is_current() {
            self.shared.lock().ancestors.remove(&self.communicator);
        }
    }
}

impl IssueTicket<'_> {
    fn order(&self) -> &IssueOrder {
        match &self.order {
            OrderRef::Borrowed(order) => order,
            OrderRef::Owned(order) => order,
        }
    }

    /// Whether the turn had come when the ticket was issued.
    pub(crate) fn is_next(&self) -> bool {
        self.is_next
    }

    /// Waits for this call's turn, as long as `alive` says that the communicator still works.
    /// `label` adds to an error or a warning which call it is.
    pub(crate) fn wait(
        &self,
        deadline: Instant,
        alive: impl Fn() -> Result<()>,
        label: impl Fn(Error) -> Error,
    ) -> Result<()> {
        let Some(entry) = self.entry.as_ref().filter(|_| !self.is_next) else { return Ok(()) };
        let shared = &self.order().shared;
        let runs = runs_of(shared);
        let is_turn = |state: &OrderState| match runs.as_slice() {
            [] => state.is_turn_of(entry),
            runs => state.is_turn_within(runs, entry),
        };
        let mut state = shared.lock();
        let warning = |seconds| {
            let waits = format!("it has waited for {seconds} s: an earlier call of this rank has not ended");
            label(Error::new(ErrorKind::DeadlineExceeded, waits)).to_string()
        };
        let mut wait = Wait::until(deadline).warning(&warning);
        while !is_turn(&state) {
            drop(state);
            alive()?;
            let meanwhile = "while an earlier call of this rank ran";
            let sleep = wait.step().map_err(|stopped| label(stopped.error(meanwhile, MISSED_TURN)))?;
            state = shared.lock();
            if !is_turn(&state) {
                state.waiting += 1;
                (state, _) =
                    shared.released.wait_timeout(state, sleep.min(LOOK)).unwrap_or_else(PoisonError::into_inner);
                state.waiting -= 1;
            }
        }
        Ok(())
    }

    /// Makes the call on this thread. If it is a run of layers, calls of its plugins find the run's
    /// ticket.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        struct RunEnd;
        impl Drop for RunEnd {
            fn drop(&mut self) {
                let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
            }
        }
        match self.entry.filter(|entry| entry.extent == Extent::Run) {
            None => call(),
            Some(entry) => {
                let run = (Arc::as_ptr(&self.order().shared).addr(), entry);
                // The list is gone while the thread ends. Then a plugin's call takes a ticket.
                let listed = RUNNING.try_with(|running| running.borrow_mut().push(run));
                let _end = listed.is_ok().then_some(RunEnd);
                call()
            }
        }
    }

    /// The position of a ticket that another thread gets.
    pub(crate) fn position(&self) -> Option<TicketPosition> {
        let entry = self.entry?;
        match &self.order {
            OrderRef::Owned(order) => Some(TicketPosition { shared: Arc::clone(&order.shared), entry }),
            OrderRef::Borrowed(_) => None,
        }
    }
}

impl Drop for IssueTicket<'_> {
    fn drop(&mut self) {
        let shared = &self.order().shared;
        // In a child that was forked, a thread that is not there may hold the lock.
        let Some(entry) = self.entry.as_ref().filter(|_| shared.process.is_current()) else { return };
        if shared.drop_sole(entry) {
            return;
        }
        let mut state = shared.lock();
        shared.remove(&mut state, entry);
        let is_awaited = state.waiting > 0;
        drop(state);
        if is_awaited {
            shared.released.notify_all();
        }
    }
}

impl TicketPosition {
    /// Whether the work waits for a run on this thread, so that this thread must not wait for the
    /// work. Takes the lock of the order; a thread that also takes a stream's lock takes it after.
    pub(crate) fn is_behind_this_thread(&self) -> bool {
        let runs = runs_of(&self.shared);
        let waits_for = |run: &TicketEntry| {
            let state = self.shared.lock();
            // Work whose ticket is dropped has run, whatever the run's number is.
            run.number < self.entry.number && state.index_of(&self.entry).is_some() && state.conflict(run, &self.entry)
        };
        runs.iter().any(waits_for)
    }
}

/// The error of a call whose deadline passes before its turn.
pub(crate) const MISSED_TURN: &str = "an earlier call of this rank did not end before the deadline of this one";
