//! The issue order: the collective calls of one rank on one communicator run in the order in which
//! the rank makes them, whatever threads and streams they run on.
//!
//! Each call takes an [`IssueTicket`]. It runs when no earlier ticket conflicts with it, and gives
//! the ticket back when it is done. Two tickets conflict if they are for the same communicator, or
//! if one of them is for a run of layers ([`Extent::WithGroups`]) and the other for a group of its
//! communicator. All communicators that were split from one root share one lock, so that a run
//! takes its place in all of them in one step.
//!
//! A worker stream gets its work while that lock is held ([`IssueOrder::issue`]). So the order of a
//! stream's work never contradicts the order of the tickets: if it did, two threads that hand work
//! to two streams could make each stream wait for the other one.
//!
//! A call that a plugin makes on the thread of its run belongs to the run's place. If the run's
//! place is in the call's communicator, the call needs no other. Otherwise it takes a place, and
//! passes those that cannot begin before the run ends: they wait for the run, or for its stream.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, error};
use crate::sync::{Condvar, Mutex, MutexGuard, thread_local};
use crate::util::fork::ProcessGuard;
use crate::util::slow_warning::SlowWarning;

/// How often a call that waits for its turn looks whether its communicator still works.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The issue order of one rank on one communicator.
pub(crate) struct IssueOrder {
    root: Arc<Root>,
    communicator: CommunicatorId,
}

/// A communicator's number among those of its root.
type CommunicatorId = u64;

/// What the communicators that were split from one root share.
struct Root {
    queue: Mutex<Queue>,
    released: Condvar,
    process: ProcessGuard,
}

#[derive(Default)]
struct Queue {
    /// The places that have not been given back, in the order of their numbers.
    places: VecDeque<Place>,
    issued: u64,
    /// How many threads wait for a turn.
    waiting: usize,
    /// What each communicator was split from, over all steps.
    ancestors: BTreeMap<CommunicatorId, Box<[CommunicatorId]>>,
    communicators: CommunicatorId,
}

/// Which communicators a place is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One communicator.
    Communicator,
    /// One communicator and all groups that were split from it.
    WithGroups,
}

#[derive(Clone, Copy)]
struct Place {
    communicator: CommunicatorId,
    extent: Extent,
    number: u64,
    /// The address of the worker stream that has the work.
    stream: Option<usize>,
}

impl Queue {
    fn add_communicator(&mut self, ancestors: Box<[CommunicatorId]>) -> CommunicatorId {
        self.communicators += 1;
        self.ancestors.insert(self.communicators, ancestors);
        self.communicators
    }

    fn covers(&self, place: &Place, communicator: CommunicatorId) -> bool {
        let is_group = || self.ancestors.get(&communicator).is_some_and(|all| all.contains(&place.communicator));
        place.communicator == communicator || (place.extent == Extent::WithGroups && is_group())
    }

    fn conflict(&self, one: &Place, other: &Place) -> bool {
        self.covers(one, other.communicator) || self.covers(other, one.communicator)
    }

    fn before(&self, place: &Place) -> impl Iterator<Item = &Place> {
        self.places.iter().take_while(|other| other.number < place.number)
    }

    /// Whether no earlier place conflicts with this one.
    fn is_turn_of(&self, place: &Place) -> bool {
        !self.before(place).any(|other| self.conflict(other, place))
    }

    /// Whether it is the turn of a call that a plugin makes in these runs: no earlier place
    /// conflicts with it but for the runs and what waits for them.
    fn is_turn_within(&self, runs: &[Place], place: &Place) -> bool {
        let mut passed = runs.to_vec();
        self.before(place).all(|other| {
            let is_own = passed.iter().any(|own| own.number == other.number);
            let waits = passed.iter().any(|own| {
                let is_behind = other.stream.is_some() && other.stream == own.stream;
                own.number < other.number && (is_behind || self.conflict(own, other))
            });
            if waits {
                passed.push(*other);
            }
            is_own || waits || !self.conflict(other, place)
        })
    }

    fn remove(&mut self, place: &Place) {
        if let Ok(index) = self.places.binary_search_by_key(&place.number, |other| other.number) {
            self.places.remove(index);
        }
    }
}

impl Root {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

thread_local! {
    /// The runs of layers that are on this thread now, each with the address of its root. A run may
    /// begin another one.
    static RUNNING: RefCell<Vec<(usize, Place)>> = RefCell::default();
}

/// The runs on this thread that have a place among the communicators of this root.
fn runs_of(root: usize) -> Vec<Place> {
    let of_root = |(other, place): &(usize, Place)| (*other == root).then_some(*place);
    // While a thread ends, nothing runs on it.
    RUNNING.try_with(|running| running.borrow().iter().filter_map(of_root).collect()).unwrap_or_default()
}

impl IssueOrder {
    /// The order of a root communicator.
    pub(crate) fn new() -> Arc<Self> {
        let mut queue = Queue::default();
        let communicator = queue.add_communicator(Box::default());
        let root = Root { queue: Mutex::new(queue), released: Condvar::new(), process: ProcessGuard::current() };
        Arc::new(IssueOrder { root: Arc::new(root), communicator })
    }

    /// The order of a communicator that is split from this one.
    pub(crate) fn descendant(&self) -> Arc<Self> {
        let mut queue = self.root.lock();
        let own = queue.ancestors.get(&self.communicator).into_iter().flatten().copied();
        let ancestors = std::iter::once(self.communicator).chain(own).collect();
        let communicator = queue.add_communicator(ancestors);
        Arc::new(IssueOrder { root: Arc::clone(&self.root), communicator })
    }

    fn root_address(&self) -> usize {
        Arc::as_ptr(&self.root).addr()
    }

    fn take_place(&self, queue: &mut Queue, extent: Extent, stream: Option<usize>) -> Place {
        queue.issued += 1;
        let place = Place { communicator: self.communicator, extent, number: queue.issued, stream };
        queue.places.push_back(place);
        place
    }

    /// Whether a run on this thread has its place in this communicator.
    pub(crate) fn is_in_run(&self) -> bool {
        runs_of(self.root_address()).iter().any(|run| self.root.lock().covers(run, self.communicator))
    }

    /// Takes the next place for work that a worker stream will run, the one at this address.
    /// `hand_over` gives the work and its ticket to the stream. No other call takes a place
    /// meanwhile.
    pub(crate) fn issue<T>(
        self: &Arc<Self>,
        extent: Extent,
        stream: usize,
        hand_over: impl FnOnce(IssueTicket<'static>) -> T,
    ) -> T {
        if !self.root.process.is_current() {
            return hand_over(IssueTicket { order: OrderRef::Owned(Arc::clone(self)), place: None, is_next: true });
        }
        let mut queue = self.root.lock();
        let place = self.take_place(&mut queue, extent, Some(stream));
        hand_over(IssueTicket { order: OrderRef::Owned(Arc::clone(self)), place: Some(place), is_next: false })
    }

    /// Takes the next place for a call on this thread.
    pub(crate) fn issue_here(&self, extent: Extent) -> IssueTicket<'_> {
        if !self.root.process.is_current() || self.is_in_run() {
            return IssueTicket { order: OrderRef::Borrowed(self), place: None, is_next: true };
        }
        let mut queue = self.root.lock();
        let place = self.take_place(&mut queue, extent, None);
        let is_next = queue.is_turn_of(&place);
        IssueTicket { order: OrderRef::Borrowed(self), place: Some(place), is_next }
    }
}

impl Drop for IssueOrder {
    fn drop(&mut self) {
        // As for tickets, not in a forked child.
        if self.root.process.is_current() {
            self.root.lock().ancestors.remove(&self.communicator);
        }
    }
}

enum OrderRef<'a> {
    Borrowed(&'a IssueOrder),
    Owned(Arc<IssueOrder>),
}

/// A place in the issue order, kept until the ticket is dropped.
#[must_use = "the call has to wait for its turn"]
pub(crate) struct IssueTicket<'a> {
    order: OrderRef<'a>,
    /// `None` for a call that belongs to the place of the run on this thread. In a forked child,
    /// too, which is refused later: the lock may have been held at the fork, by a thread that is
    /// not there.
    place: Option<Place>,
    /// Whether the turn had come when the ticket was issued.
    is_next: bool,
}

impl IssueTicket<'_> {
    fn order(&self) -> &IssueOrder {
        match &self.order {
            OrderRef::Borrowed(order) => order,
            OrderRef::Owned(order) => order,
        }
    }

    /// Waits until it is this call's turn. `label` says in an error or a warning which call it is.
    ///
    /// # Errors
    ///
    /// The deadline is over before the turn comes; what `alive` returns.
    pub(crate) fn wait(
        &self,
        deadline: Instant,
        alive: impl Fn() -> Result<()>,
        label: impl Fn(Error) -> Error,
    ) -> Result<()> {
        let Some(place) = self.place.as_ref().filter(|_| !self.is_next) else { return Ok(()) };
        let root = &self.order().root;
        let runs = runs_of(self.order().root_address());
        let is_turn = |queue: &Queue| match runs.as_slice() {
            [] => queue.is_turn_of(place),
            runs => queue.is_turn_within(runs, place),
        };
        let mut queue = root.lock();
        let mut slow = None;
        while !is_turn(&queue) {
            drop(queue);
            alive()?;
            slow.get_or_insert_with(SlowWarning::new).look(|seconds| {
                let waits = format!("it has waited for {seconds} s: an earlier call of this rank has not ended");
                label(Error::new(ErrorKind::DeadlineExceeded, waits)).to_string()
            });
            let now = Instant::now();
            if now >= deadline {
                return Err(label(missed_turn()));
            }
            queue = root.lock();
            if !is_turn(&queue) {
                queue.waiting += 1;
                let wait = LOOK_INTERVAL.min(deadline - now);
                (queue, _) = root.released.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner);
                queue.waiting -= 1;
            }
        }
        Ok(())
    }

    /// Runs what the ticket is for, on this thread. In a run of layers, calls of plugins find its
    /// place.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
            }
        }
        match self.place.filter(|place| place.extent == Extent::WithGroups) {
            None => call(),
            Some(place) => {
                let run = (self.order().root_address(), place);
                // While a thread ends, it has no list of runs. Then a plugin's call gets a place of
                // its own.
                let listed = RUNNING.try_with(|running| running.borrow_mut().push(run));
                let _end = listed.is_ok().then_some(End);
                call()
            }
        }
    }

    /// What tells a thread that it must not wait for this ticket's work.
    pub(crate) fn position(&self) -> Option<Position> {
        let place = self.place?;
        match &self.order {
            OrderRef::Owned(order) => Some(Position { root: Arc::clone(&order.root), place }),
            OrderRef::Borrowed(_) => None,
        }
    }
}

impl Drop for IssueTicket<'_> {
    fn drop(&mut self) {
        let root = &self.order().root;
        let Some(place) = self.place.as_ref().filter(|_| root.process.is_current()) else { return };
        let mut queue = root.lock();
        queue.remove(place);
        let is_awaited = queue.waiting > 0;
        drop(queue);
        if is_awaited {
            root.released.notify_all();
        }
    }
}

/// The error of a call whose deadline is over before its turn.
pub(crate) fn missed_turn() -> Error {
    error!(DeadlineExceeded, "an earlier call of this rank did not end before the deadline of this one")
}

/// The place of work that another thread has. Dropping it takes no lock.
#[derive(Clone)]
pub(crate) struct Position {
    root: Arc<Root>,
    place: Place,
}

impl Position {
    /// Whether the work waits for what runs on this thread now, so that this thread must not wait
    /// for it. Takes the lock of the order, which comes before a stream's.
    pub(crate) fn is_behind_this_thread(&self) -> bool {
        let runs = runs_of(Arc::as_ptr(&self.root).addr());
        runs.iter().any(|run| run.number < self.place.number && self.root.lock().conflict(run, &self.place))
    }
}

/// The order under a model checker: every way in which threads can interleave. A ticket that is not
/// given back, or a wake that is forgotten, shows as a deadlock, because a wait here has no
/// timeout.
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

    /// What two calls must not do at once.
    type Touched = Arc<Tracked>;

    fn run(ticket: &IssueTicket<'_>, touched: &Touched) {
        let deadline = Instant::now() + Duration::from_secs(3600);
        ticket.wait(deadline, || Ok(()), |error| error).expect("its turn comes");
        ticket.run(|| touched.write(|| ()));
    }

    /// A worker stream: it runs what it is given, one after the other.
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

    /// Two threads hand work to two streams. Were the place taken before the work is handed over,
    /// each stream could wait for what is behind the other's work.
    #[test]
    fn two_threads_that_hand_work_to_two_streams_do_not_deadlock() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let ((first, first_thread), (second, second_thread)) = (stream(), stream());
            let issue = |order: &Arc<IssueOrder>, touched: &Touched, stream: &Sender<_>| {
                let hand_over = |ticket| stream.send((ticket, Arc::clone(touched))).expect("the stream listens");
                order.issue(Extent::Communicator, 1, hand_over);
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

    /// A call that gives up gives its place back.
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
