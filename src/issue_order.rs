//! The issue order: the collective calls of one rank on one communicator run in the order in which
//! the rank makes them, whatever threads and streams they run on.
//!
//! Each call takes a [`IssueTicket`]. It runs when no earlier ticket conflicts with it, and gives the
//! ticket back when it is done. Two tickets conflict if they are for the same communicator, or if one
//! of them is for a run of layers ([`Extent::WithGroups`]) and the other for a group of its
//! communicator. All communicators that were split from one root share one lock, so that a run takes
//! its place in all of them in one step.
//!
//! A worker stream gets its work while that lock is held ([`IssueOrder::issue`]). So the order of a
//! stream's work never contradicts the order of the tickets: if it did, two threads that hand work to
//! two streams could make each stream wait for the other one.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Result, bail};
use crate::fork::Home;
use crate::slow_warning::SlowWarning;
use crate::sync::{AtomicU64, Condvar, Mutex, MutexGuard, Ordering, thread_local};

/// How often a call that waits for its turn looks whether its communicator still works.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

/// The issue order of one rank on one communicator.
pub(crate) struct IssueOrder {
    root: Arc<Root>,
    /// This communicator's number, then those of the communicators that it was split from.
    lineage: Box<[u64]>,
}

/// What the communicators that were split from one root share.
struct Root {
    queue: Mutex<Queue>,
    released: Condvar,
    communicators: AtomicU64,
    home: Home,
}

#[derive(Default)]
struct Queue {
    /// The tickets that have not been given back, in the order of their numbers.
    tickets: VecDeque<Position>,
    issued: u64,
    /// How many threads wait for a turn.
    waiting: usize,
}

/// Which communicators a ticket is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Extent {
    /// One communicator.
    Communicator,
    /// One communicator and all groups that were split from it.
    WithGroups,
}

/// A place in the issue order.
#[derive(Clone)]
pub(crate) struct Position {
    order: Arc<IssueOrder>,
    extent: Extent,
    number: u64,
}

impl Position {
    fn covers(&self, order: &IssueOrder) -> bool {
        match self.extent {
            Extent::Communicator => self.order.id() == order.id(),
            Extent::WithGroups => order.lineage.contains(&self.order.id()),
        }
    }

    fn conflicts_with(&self, other: &Position) -> bool {
        self.covers(&other.order) || other.covers(&self.order)
    }

    /// Whether what has this place waits for what runs on this thread now, so that this thread must
    /// not wait for it.
    pub(crate) fn is_behind_this_thread(&self) -> bool {
        with_running(|running| {
            running.iter().any(|own| {
                Arc::ptr_eq(&own.order.root, &self.order.root) && own.number < self.number && own.conflicts_with(self)
            })
        })
    }
}

thread_local! {
    /// The places of the runs that are on this thread now. A run may begin another one.
    static RUNNING: RefCell<Vec<Position>> = RefCell::default();
}

fn with_running<T: Default>(look: impl FnOnce(&[Position]) -> T) -> T {
    // While a thread ends, nothing runs on it.
    RUNNING.try_with(|running| look(&running.borrow())).unwrap_or_default()
}

impl IssueOrder {
    /// The order of a root communicator.
    pub(crate) fn new() -> Arc<Self> {
        let root = Root {
            queue: Mutex::new(Queue::default()),
            released: Condvar::new(),
            communicators: AtomicU64::new(1),
            home: Home::here(),
        };
        Arc::new(IssueOrder { root: Arc::new(root), lineage: Box::new([0]) })
    }

    /// The order of a communicator that is split from this one.
    pub(crate) fn descendant(&self) -> Arc<Self> {
        let id = self.root.communicators.fetch_add(1, Ordering::Relaxed);
        let lineage = std::iter::once(id).chain(self.lineage.iter().copied()).collect();
        Arc::new(IssueOrder { root: Arc::clone(&self.root), lineage })
    }

    fn id(&self) -> u64 {
        self.lineage[0]
    }

    /// Takes the next place for work that will run on another thread. `hand_over` gives the work and
    /// its ticket to that thread. No other call takes a place meanwhile.
    pub(crate) fn issue<T>(self: &Arc<Self>, extent: Extent, hand_over: impl FnOnce(IssueTicket) -> T) -> T {
        let mut queue = self.root.lock();
        queue.issued += 1;
        let position = Position { order: Arc::clone(self), extent, number: queue.issued };
        queue.tickets.push_back(position.clone());
        hand_over(IssueTicket { position: Some(position) })
    }

    /// Takes the next place for a call on this thread. A call that a plugin makes belongs to the place
    /// of the plugin's run.
    pub(crate) fn issue_here(self: &Arc<Self>, extent: Extent) -> IssueTicket {
        let is_in_run = with_running(|running| {
            running.iter().any(|own| Arc::ptr_eq(&own.order.root, &self.root) && own.covers(self))
        });
        match is_in_run {
            true => IssueTicket { position: None },
            false => self.issue(extent, |ticket| ticket),
        }
    }
}

impl Root {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn is_turn_of(&self, position: &Position) -> bool {
        let earlier = self.tickets.iter().take_while(|other| other.number < position.number);
        !earlier.into_iter().any(|other| other.conflicts_with(position))
    }
}

/// A place in the issue order, kept until the ticket is dropped.
#[must_use = "the call has to wait for its turn"]
pub(crate) struct IssueTicket {
    /// `None` for a call that belongs to the place of the run on this thread.
    position: Option<Position>,
}

impl IssueTicket {
    /// The place, if the ticket has one of its own.
    pub(crate) fn position(&self) -> Option<&Position> {
        self.position.as_ref()
    }

    /// Waits until no earlier ticket conflicts with this one.
    ///
    /// # Errors
    ///
    /// The deadline; what `alive` returns.
    pub(crate) fn wait(&self, deadline: Instant, alive: impl Fn() -> Result<()>) -> Result<()> {
        let Some(position) = &self.position else { return Ok(()) };
        let root = &position.order.root;
        let mut queue = root.lock();
        let mut slow = None;
        while !queue.is_turn_of(position) {
            drop(queue);
            alive()?;
            slow.get_or_insert_with(SlowWarning::new).look(|seconds| {
                format!("a call has waited for {seconds} s: an earlier call of this rank on the same communicator has not ended")
            });
            let now = Instant::now();
            if now >= deadline {
                bail!(
                    DeadlineExceeded,
                    "an earlier call of this rank on the same communicator did not end before the deadline"
                );
            }
            queue = root.lock();
            if !queue.is_turn_of(position) {
                queue.waiting += 1;
                let wait = LOOK_INTERVAL.min(deadline - now);
                (queue, _) = root.released.wait_timeout(queue, wait).unwrap_or_else(PoisonError::into_inner);
                queue.waiting -= 1;
            }
        }
        Ok(())
    }

    /// Runs what the ticket is for, on this thread. In a run of layers, calls of plugins find the place.
    pub(crate) fn run<T>(&self, call: impl FnOnce() -> T) -> T {
        struct End;
        impl Drop for End {
            fn drop(&mut self) {
                let _ = RUNNING.try_with(|running| running.borrow_mut().pop());
            }
        }
        match self.position.as_ref().filter(|position| position.extent == Extent::WithGroups) {
            None => call(),
            Some(position) => {
                // While a thread ends, it has no list of runs. Then a plugin's call gets a place of its own.
                let listed = RUNNING.try_with(|running| running.borrow_mut().push(position.clone()));
                let _end = listed.is_ok().then_some(End);
                call()
            }
        }
    }
}

impl Drop for IssueTicket {
    fn drop(&mut self) {
        let Some(position) = &self.position else { return };
        let root = &position.order.root;
        // In a forked child the lock may have been held at the fork, by a thread that is not there.
        if !root.home.is_here() {
            return;
        }
        let mut queue = root.lock();
        if let Ok(index) = queue.tickets.binary_search_by_key(&position.number, |other| other.number) {
            queue.tickets.remove(index);
        }
        let is_awaited = queue.waiting > 0;
        drop(queue);
        if is_awaited {
            root.released.notify_all();
        }
    }
}

/// The order under a model checker: every way in which threads can interleave. A ticket that is not
/// given back, or a wake that is forgotten, shows as a deadlock, because a wait here has no timeout.
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

    fn run(ticket: &IssueTicket, touched: &Touched) {
        ticket.wait(Instant::now() + Duration::from_secs(3600), || Ok(())).expect("its turn comes");
        ticket.run(|| touched.write(|| ()));
    }

    /// A worker stream: it runs what it is given, one after the other.
    fn stream() -> (Sender<(IssueTicket, Touched)>, thread::JoinHandle<()>) {
        let (sender, work): (_, Receiver<(IssueTicket, Touched)>) = channel();
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

    /// Two threads hand work to two streams. Were the place taken before the work is handed over, each stream could wait for what
    /// is behind the other's work.
    #[test]
    fn two_threads_that_hand_work_to_two_streams_do_not_deadlock() {
        explore(|| {
            let (order, touched) = (IssueOrder::new(), Touched::default());
            let ((first, first_thread), (second, second_thread)) = (stream(), stream());
            let issue = |order: &Arc<IssueOrder>, touched: &Touched, stream: &Sender<_>| {
                let hand_over = |ticket| stream.send((ticket, Arc::clone(touched))).expect("the stream listens");
                order.issue(Extent::Communicator, hand_over);
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
            let [first, second, third] = [(); 3].map(|()| order.issue_here(Extent::Communicator));
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
