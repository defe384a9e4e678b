//! The issue order: the collective calls of one rank on one communicator run in the order in which
//! the rank makes them, whatever threads and streams they run on.
//!
//! Each call takes an [`IssueTicket`]. The call runs when no earlier ticket conflicts with its own.
//! When the call ends, it drops the ticket. Two tickets conflict
//!
//! - if both are for the same communicator, or
//! - if one is for a run of layers ([`Extent::WithGroups`]) and the other for a group that was
//!   split from the run's communicator.
//!
//! All communicators that were split from one root communicator share one lock. So a run takes one
//! ticket for its communicator and all groups in one step.
//!
//! A worker stream gets its work while that lock is held ([`IssueOrder::issue`]). So the order of
//! the work in a stream is the order of its tickets. If it were not, two threads that give work to
//! two streams could make each stream wait for the other one.
//!
//! A plugin may make calls on the thread of its run. If the run's ticket covers the call's
//! communicator, the call needs no ticket of its own. Otherwise the call takes one, and does not
//! wait for tickets that cannot begin before the run ends: these wait for the run, or for the
//! stream that the run is on.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, error};
use crate::sync::{Condvar, Mutex, MutexGuard, thread_local};
use crate::util::fork::ProcessGuard;
use crate::util::interrupt;
use crate::util::slow_warning::SlowWarning;

/// How often a call that waits for its turn checks that its communicator still works.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

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
    state: Mutex<OrderState>,
    released: Condvar,
    process: ProcessGuard,
}

#[derive(Default)]
struct OrderState {
    /// The tickets that exist, in the order of their numbers.
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
    number: u64,
    /// The address of the worker stream that has the work.
    stream: Option<usize>,
}

impl OrderState {
    fn add_communicator(&mut self, ancestors: Box<[CommunicatorId]>) -> CommunicatorId {
        self.communicators += 1;
        self.ancestors.insert(self.communicators, ancestors);
        self.communicators
    }

    fn covers(&self, entry: &TicketEntry, communicator: CommunicatorId) -> bool {
        let is_group = || self.ancestors.get(&communicator).is_some_and(|all| all.contains(&entry.communicator));
        entry.communicator == communicator || (entry.extent == Extent::WithGroups && is_group())
    }

    fn conflict(&self, one: &TicketEntry, other: &TicketEntry) -> bool {
        self.covers(one, other.communicator) || self.covers(other, one.communicator)
    }

    fn before(&self, entry: &TicketEntry) -> impl Iterator<Item = &TicketEntry> {
        self.entries.iter().take_while(|other| other.number < entry.number)
    }

    /// Whether no earlier ticket conflicts with this one.
    fn is_turn_of(&self, entry: &TicketEntry) -> bool {
        self.is_first(entry) || !self.before(entry).any(|other| self.conflict(other, entry))
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
                passed.push(*other);
            }
            is_own || waits || !self.conflict(other, entry)
        })
    }

    fn is_first(&self, entry: &TicketEntry) -> bool {
        self.entries.front().is_some_and(|first| first.number == entry.number)
    }

    fn remove(&mut self, entry: &TicketEntry) {
        if self.is_first(entry) {
            self.entries.pop_front();
        } else if let Ok(index) = self.entries.binary_search_by_key(&entry.number, |other| other.number) {
            self.entries.remove(index);
        }
    }
}

impl SharedOrder {
    fn lock(&self) -> MutexGuard<'_, OrderState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The runs of layers that are on this thread now, each with the address of its `SharedOrder`.
    /// There are several if a plugin runs an engine.
    static RUNNING: RefCell<Vec<(usize, TicketEntry)>> = RefCell::default();
}

/// The tickets of the runs on this thread, as far as they belong to the `SharedOrder` at this
/// address.
fn runs_of(shared: usize) -> Vec<TicketEntry> {
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
        let shared = SharedOrder { state: Mutex::new(state), released: Condvar::new(), process };
        Arc::new(IssueOrder { shared: Arc::new(shared), communicator })
    }

    /// The order of a communicator that is split from this one.
    pub(crate) fn descendant(&self) -> Arc<Self> {
        let mut state = self.shared.lock();
        let own = state.ancestors.get(&self.communicator).into_iter().flatten().copied();
        let ancestors = std::iter::once(self.communicator).chain(own).collect();
        let communicator = state.add_communicator(ancestors);
        Arc::new(IssueOrder { shared: Arc::clone(&self.shared), communicator })
    }

    fn shared_address(&self) -> usize {
        Arc::as_ptr(&self.shared).addr()
    }

    fn add_entry(&self, state: &mut OrderState, extent: Extent, stream: Option<usize>) -> TicketEntry {
        state.issued += 1;
        let entry = TicketEntry { communicator: self.communicator, extent, number: state.issued, stream };
        state.entries.push_back(entry);
        entry
    }

    /// Checks that this is the process of the communicator. Callers check before they take a
    /// ticket: in a child that was forked, a thread that is not there may hold the lock.
    ///
    /// # Errors
    ///
    /// This process was forked from that of the communicator.
    pub(crate) fn check_process(&self) -> Result<()> {
        self.shared.process.check("a communicator")
    }

    /// Whether the ticket of a run on this thread covers this communicator.
    pub(crate) fn is_in_run(&self) -> bool {
        let has_runs = RUNNING.try_with(|running| !running.borrow().is_empty()).unwrap_or_default();
        has_runs && runs_of(self.shared_address()).iter().any(|run| self.shared.lock().covers(run, self.communicator))
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

    /// Waits for this call's turn. `label` adds to an error or a warning which call it is.
    ///
    /// # Errors
    ///
    /// `deadline` passes before the turn comes; the interrupt hook ends the wait; the error of
    /// `alive`, which says whether the communicator still works.
    pub(crate) fn wait(
        &self,
        deadline: Instant,
        alive: impl Fn() -> Result<()>,
        label: impl Fn(Error) -> Error,
    ) -> Result<()> {
        let Some(entry) = self.entry.as_ref().filter(|_| !self.is_next) else { return Ok(()) };
        let shared = &self.order().shared;
        let runs = runs_of(self.order().shared_address());
        let is_turn = |state: &OrderState| match runs.as_slice() {
            [] => state.is_turn_of(entry),
            runs => state.is_turn_within(runs, entry),
        };
        let mut state = shared.lock();
        let mut slow = None;
        while !is_turn(&state) {
            drop(state);
            alive()?;
            interrupt::check().map_err(|e| label(interrupt::ended(&e, "while an earlier call of this rank ran")))?;
            slow.get_or_insert_with(SlowWarning::new).look(|seconds| {
                let waits = format!("it has waited for {seconds} s: an earlier call of this rank has not ended");
                label(Error::new(ErrorKind::DeadlineExceeded, waits)).to_string()
            });
            let now = Instant::now();
            if now >= deadline {
                return Err(label(missed_turn()));
            }
            state = shared.lock();
            if !is_turn(&state) {
                state.waiting += 1;
                let wait = CHECK_INTERVAL.min(deadline - now);
                (state, _) = shared.released.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner);
                state.waiting -= 1;
            }
        }
        Ok(())
    }

    /// Makes the call on this thread. If it is a run of layers, calls of its plugins find the run's
    /// ticket.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
            }
        }
        match self.entry.filter(|entry| entry.extent == Extent::WithGroups) {
            None => call(),
            Some(entry) => {
                let run = (self.order().shared_address(), entry);
                // The list is gone while the thread ends. Then a plugin's call takes a ticket.
                let listed = RUNNING.try_with(|running| running.borrow_mut().push(run));
                let _end = listed.is_ok().then_some(End);
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
        let mut state = shared.lock();
        state.remove(entry);
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
        let runs = runs_of(Arc::as_ptr(&self.shared).addr());
        runs.iter().any(|run| run.number < self.entry.number && self.shared.lock().conflict(run, &self.entry))
    }
}

/// The error of a call whose deadline passes before its turn.
pub(crate) fn missed_turn() -> Error {
    error!(DeadlineExceeded, "an earlier call of this rank did not end before the deadline of this one")
}

/// The order under the model checker loom, which tries every way in which threads can interleave. A
/// ticket that is never dropped, or a missing notification, shows as a deadlock: waits have no
/// timeout here.
#[cfg(all(test, loom))]
mod model {
    use loom::sync::mpsc::{Receiver, Sender, channel};
    use loom::thread;

    use super::*;
    use crate::sync::Tracked;

    fn explore(body: impl Fn() + Send + Sync + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(3);
        builder.check(body);
    }

    /// What two calls must not write at the same time.
    type Touched = Arc<Tracked>;

    fn run(ticket: &IssueTicket<'_>, touched: &Touched) {
        let deadline = Instant::now() + Duration::from_secs(3600);
        ticket.wait(deadline, || Ok(()), |error| error).expect("its turn comes");
        ticket.run(|| touched.write(|| ()));
    }

    /// A worker stream: a thread that runs two pieces of work, one after the other.
    fn stream() -> (Sender<(IssueTicket<'static>, Touched)>, thread::JoinHandle<()>) {
        let (sender, work): (_, Receiver<(IssueTicket<'static>, Touched)>) = channel();
        let work = move || {
            for _ in 0..2 {
                let (ticket, touched) = work.recv().expect("two pieces of work");
                run(&ticket, &touched);
            }
        };
        (sender, thread::spawn(work))
    }

    #[test]
    fn calls_of_two_threads_follow_one_another() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let other = thread::spawn({
                let (order, touched) = (Arc::clone(&order), Arc::clone(&touched));
                move || run(&order.issue_here(Extent::Communicator), &touched)
            });
            run(&order.issue_here(Extent::Communicator), &touched);
            other.join().expect("no panic");
        });
    }

    #[test]
    fn a_run_excludes_the_groups_of_its_communicator() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let group = order.descendant();
            let other = thread::spawn({
                let touched = Arc::clone(&touched);
                move || run(&group.issue_here(Extent::Communicator), &touched)
            });
            run(&order.issue_here(Extent::WithGroups), &touched);
            other.join().expect("no panic");
        });
    }

    /// If a thread took the ticket before it gives the work to a stream, not in one step, each
    /// stream could wait for work that is behind the other stream's work.
    #[test]
    fn two_threads_that_give_work_to_two_streams_do_not_deadlock() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let ((first, first_thread), (second, second_thread)) = (stream(), stream());
            let issue = |order: &Arc<IssueOrder>, touched: &Touched, stream: &Sender<_>| {
                let enqueue = |ticket| stream.send((ticket, Arc::clone(touched))).expect("the stream listens");
                order.issue(Extent::Communicator, 1, enqueue);
            };
            let other = thread::spawn({
                let (order, touched) = (Arc::clone(&order), Arc::clone(&touched));
                let (first, second) = (first.clone(), second.clone());
                move || {
                    issue(&order, &touched, &second);
                    issue(&order, &touched, &first);
                }
            });
            issue(&order, &touched, &first);
            issue(&order, &touched, &second);
            other.join().expect("no panic");
            first_thread.join().expect("no panic");
            second_thread.join().expect("no panic");
        });
    }

    /// A call that ends before its turn drops its ticket.
    #[test]
    fn a_ticket_that_is_dropped_before_its_turn_blocks_no_other() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let [first, second, third] = [(); 3].map(|()| order.issue(Extent::Communicator, 1, |ticket| ticket));
            let waiting = thread::spawn({
                let touched = Arc::clone(&touched);
                move || run(&third, &touched)
            });
            drop(second);
            run(&first, &touched);
            drop(first);
            waiting.join().expect("no panic");
        });
    }
}
