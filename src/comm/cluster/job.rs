//! What the communicators of one process in a job share: the link to other machines, what has come
//! over it, and how they all end.

use std::ops::Deref;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Once, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use super::inbox::{Ended, Inbox};
use super::link::{Bytes, Link, LinkMessage, MessageKind, Tag, WHOLE_JOB};
use crate::comm::backend::{Backend, is_shared};
use crate::comm::backend_kind::BackendKind;
use crate::comm::host::HostBackend;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::mpi;
use crate::rank::Rank;
use crate::stream::Watch;
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::log::event;
use crate::util::text::{printable, start_of};
use crate::util::wait::{POLL, Stopped, Wait, WaitForPeers};

/// How often the thread that moves messages looks whether a process has died.
const TICK: Duration = Duration::from_millis(100);

/// How long the thread that moves messages sleeps while others do so.
const YIELD_TO_POLLERS: Duration = Duration::from_millis(1);

/// How often a thread that waits runs the interrupt hook.
const STEP: Duration = Duration::from_millis(2);

/// The most bytes of a rank's blocks that wait to be sent, unless another rank waits for them.
pub(super) const MOST_UNSENT: usize = 8 << 20;

/// The longest reason that an abort tells other machines, in bytes.
const REASON_BYTES: usize = 2048;

/// The first communicator's number.
pub(super) const FIRST: u32 = 0;

/// The bits of a communicator's number that its first rank counts. The others are that rank.
const COUNT_BITS: u32 = 18;

/// How long the end of the job waits for the thread that moves messages, which may be in the
/// program's code.
const EXIT_TIME: Duration = Duration::from_secs(1);

/// What the error of a communicator says that another rank has ended.
const ENDED: &str = " ended the communicator: ";

const ABORT: Tag = Tag { communicator: FIRST, kind: MessageKind::Abort, number: 0 };

pub(super) struct Job {
    link: Box<dyn Link>,
    pub(super) own: Rank,
    /// The machine of each rank.
    pub(super) machines: Box<[u32]>,
    /// This machine's ranks.
    host: Arc<HostBackend>,
    inbox: Mutex<Inbox>,
    ended: OnceLock<Error>,
    /// How many threads wait, and move messages meanwhile.
    pollers: AtomicUsize,
    /// How many waits have begun.
    waits: AtomicUsize,
    /// How many communicators this rank has made.
    made: AtomicU32,
    /// How many of them live.
    handles: AtomicUsize,
    mover: Mover,
    process: ProcessGuard,
}

/// The thread that moves messages while no other one does, and what ends it.
struct Mover {
    thread: Mutex<Option<JoinHandle<()>>>,
    is_over: AtomicBool,
    /// Wakes it.
    wake: OwnedFd,
}

impl Mover {
    /// Wakes the thread.
    fn call(&self) {
        let _full = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }

    /// Ends the thread, and waits a bounded time for it, unless this is the thread.
    fn stop(&self) {
        self.is_over.store(true, Ordering::Release);
        self.call();
        let Some(thread) = lock(&self.thread).take() else { return };
        if thread.thread().id() == std::thread::current().id() {
            return;
        }
        let deadline = Instant::now() + EXIT_TIME;
        while !thread.is_finished() && Instant::now() < deadline {
            std::thread::sleep(POLL);
        }
    }
}

/// A communicator's share of the job. The last one ends the job.
pub(super) struct Handle(Arc<Job>);

impl Handle {
    pub(super) fn share(&self) -> Self {
        self.0.handles.fetch_add(1, Ordering::Relaxed);
        Handle(Arc::clone(&self.0))
    }
}

impl Deref for Handle {
    type Target = Job;

    fn deref(&self) -> &Job {
        &self.0
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if self.handles.fetch_sub(1, Ordering::AcqRel) > 1 || !self.process.is_current() {
            return;
        }
        self.leave_all();
        self.mover.stop();
    }
}

impl Job {
    pub(super) fn begin(
        link: Box<dyn Link>,
        own: Rank,
        machines: Box<[u32]>,
        host: Arc<HostBackend>,
    ) -> Result<Handle> {
        let no_thread = |e| error!(System, "no thread to move messages between machines").with_source(e);
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = eventfd(0, flags).map_err(|e| no_thread(e.into()))?;
        let job = Arc::new(Job {
            link,
            own,
            machines,
            host,
            inbox: Mutex::default(),
            ended: OnceLock::new(),
            pollers: AtomicUsize::new(0),
            waits: AtomicUsize::new(0),
            made: AtomicU32::new(0),
            handles: AtomicUsize::new(1),
            mover: Mover { thread: Mutex::default(), is_over: AtomicBool::new(false), wake },
            process: ProcessGuard::current(),
        });
        let moved = Arc::clone(&job);
        let builder = std::thread::Builder::new().name("dcl-cluster".to_owned());
        *lock(&job.mover.thread) = Some(builder.spawn(move || move_messages(&moved)).map_err(no_thread)?);
        stop_at_exit(&job);
        Ok(Handle(job))
    }

    /// A number that no other communicator of this rank has.
    pub(super) fn claim_number(&self) -> Result<u32> {
        match self.made.fetch_add(1, Ordering::Relaxed) + 1 {
            number if number < (1 << COUNT_BITS) - 1 => Ok(number),
            number => bail!(System, "this rank has made {number} communicators, and there can be no more"),
        }
    }

    /// The number of a communicator whose first rank has claimed this one.
    pub(super) fn number_of(first: Rank, claimed: u32) -> u32 {
        first.0 << COUNT_BITS | claimed
    }

    /// The backend of the communicators.
    pub(super) fn kind(&self) -> BackendKind {
        self.link.kind()
    }

    fn is_elsewhere(&self, rank: Rank) -> bool {
        self.machines[rank.index()] != self.machines[self.own.index()]
    }

    fn ranks(&self) -> impl Iterator<Item = Rank> {
        (0..self.machines.len() as u32).map(Rank)
    }

    pub(super) fn check_process(&self) -> Result<()> {
        self.process.check("a communicator")
    }

    /// Checks that the communicators work.
    pub(super) fn check(&self) -> Result<()> {
        match self.ended.get() {
            Some(error) => Err(error.clone()),
            None => self.host.check().map_err(|error| self.end(error)),
        }
    }

    /// Ends all communicators because of this rank's error, and returns the first such error.
    pub(super) fn end(&self, error: Error) -> Error {
        if error.kind() == ErrorKind::RunRefused || !self.process.is_current() {
            return error;
        }
        let text = error.to_string();
        self.end_by(error, self.own, &text)
    }

    /// [`end`](Self::end) for another reason than the error's text.
    pub(super) fn abort(&self, kind: ErrorKind, reason: &str) {
        if self.process.is_current() {
            self.end_by(error_of(kind, self.own, reason), self.own, reason);
        }
    }

    fn end_by(&self, error: Error, by: Rank, reason: &str) -> Error {
        let kind = error.kind();
        let mut is_first = false;
        let first = self.ended.get_or_init(|| {
            is_first = true;
            error
        });
        if is_first {
            self.host.abort_by(kind, by, reason);
            let elsewhere = self.ranks().filter(|rank| by == self.own && self.is_elsewhere(*rank));
            send_abort(&*self.link, elsewhere, kind, by, reason);
        }
        first.clone()
    }

    /// A rank of another machine has ended all communicators.
    fn take_abort(&self, bytes: &[u8]) {
        let Some((words, reason)) = bytes.split_first_chunk::<8>() else { return };
        let [kind, by] = [0, 4].map(|at| u32::from_le_bytes(std::array::from_fn(|i| words[at + i])));
        let kind = ErrorKind::ALL.get(kind as usize).copied().unwrap_or(ErrorKind::Aborted);
        let reason = printable(reason);
        self.end_by(error_of(kind, Rank(by), &reason), Rank(by), &reason);
    }

    /// Begins to send a message to another rank of the job, of any machine.
    pub(super) fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        if to == self.own {
            let ends = self.inbox().put(vec![LinkMessage { from: to, tag, bytes }]);
            self.report(ends);
            return Ok(());
        }
        self.link.send(to, tag, bytes).map_err(|error| match error.kind() {
            // A rank that leaves says so, and one that fails says why.
            ErrorKind::PeerLost => self.poll().err().unwrap_or_else(|| self.lost(to, tag.communicator)),
            _ => error,
        })
    }

    /// Lets the thread that moves messages do so now, since this one waits for something else.
    pub(super) fn call_mover(&self) {
        self.mover.call();
    }

    /// How many bytes this rank has yet to send.
    pub(super) fn unsent(&self) -> usize {
        self.link.unsent()
    }

    /// Moves messages along. Returns whether anything has moved.
    pub(super) fn poll(&self) -> Result<bool> {
        let mut arrivals = Vec::new();
        let mut inbox = lock(&self.inbox);
        // With the inbox locked, so that messages stay in their order.
        let moved = self.link.progress(&mut arrivals);
        if arrivals.is_empty() {
            drop(inbox);
        } else {
            let (aborts, others) = arrivals.into_iter().partition::<Vec<_>, _>(|a| a.tag.kind == MessageKind::Abort);
            // Before a message that says that the rank has left.
            aborts.iter().for_each(|abort| self.take_abort(&abort.bytes));
            let ends = inbox.put(others);
            drop(inbox);
            self.report(ends);
        }
        let has_moved = moved.map_err(|error| self.end(error))?;
        self.check().map(|()| has_moved)
    }

    /// The inbox, after it has got what has come.
    pub(super) fn inbox(&self) -> MutexGuard<'_, Inbox> {
        lock(&self.inbox)
    }

    /// Waits until `look` finds something, and moves messages meanwhile. `awaited` says what is
    /// missing.
    pub(super) fn wait<T>(
        &self,
        deadline: Instant,
        awaited: &dyn Fn() -> String,
        mut look: impl FnMut() -> Result<Option<T>>,
    ) -> Result<T> {
        self.pollers.fetch_add(1, Ordering::Relaxed);
        self.waits.fetch_add(1, Ordering::Relaxed);
        let _polling = Polling(&self.pollers);
        let warning = |seconds: u64| format!("rank {} has waited for {seconds} s: {}", self.own, awaited());
        let stopped = |stopped| match stopped {
            Stopped::Late => error!(DeadlineExceeded, "{} before the deadline", awaited()),
            stopped => stopped.error(format_args!("while it waited: {}", awaited()), ""),
        };
        let (mut wait, mut next_step) = (Wait::until(deadline).warning(&warning), Instant::now() + STEP);
        // A look at the network takes longer than to yield.
        let idle_wait = || Wait::until(deadline).yielding();
        let (mut idle, mut measured) = (idle_wait(), None);
        loop {
            let has_moved = self.poll()?;
            if has_moved {
                measured = None;
            }
            if let Some(found) = look()? {
                return Ok(found);
            }
            let now = Instant::now();
            if now >= next_step {
                next_step = now + STEP;
                wait.step().map_err(&stopped)?;
            }
            if has_moved {
                // More of what it waits for may come at once.
                idle = idle_wait();
            } else {
                measured.get_or_insert_with(WaitForPeers::begin);
            }
            idle.pause().map_err(&stopped)?;
        }
    }

    /// Waits for the next message of a rank with a tag. `awaited` says what is missing.
    pub(super) fn receive(
        &self,
        from: Rank,
        tag: Tag,
        deadline: Instant,
        awaited: &dyn Fn() -> String,
    ) -> Result<Bytes> {
        let mut was_gone = false;
        let look = || {
            if let Some(bytes) = self.inbox().take(from, tag) {
                return Ok(Some(bytes));
            }
            // What it sent before may come with the next look.
            let reached = self.link.check_reach(from);
            let is_gone = reached.is_err() || self.is_gone(from, tag.communicator);
            if std::mem::replace(&mut was_gone, is_gone) {
                return Err(reached.err().unwrap_or_else(|| self.lost(from, tag.communicator)));
            }
            Ok(None)
        };
        self.wait(deadline, awaited, look)
    }

    /// Whether a rank has left a communicator, or its process has ended.
    pub(super) fn is_gone(&self, rank: Rank, communicator: u32) -> bool {
        rank != self.own && (self.link.has_died(rank) || self.inbox().has_left(rank, communicator))
    }

    /// The error of a wait for a rank that is gone.
    pub(super) fn lost(&self, rank: Rank, communicator: u32) -> Error {
        self.inbox().lost(rank, communicator)
    }

    /// Tells the members of a communicator that this rank has left it.
    pub(super) fn leave(&self, communicator: u32, members: &[Rank]) {
        if !self.process.is_current() {
            return;
        }
        let tag = Tag { communicator, kind: MessageKind::Leave, number: 0 };
        let _unreachable = self.send_sign(members.iter().copied().filter(|rank| *rank != self.own), tag);
    }

    /// Begins to send a message without bytes to other ranks.
    pub(super) fn send_sign(&self, to: impl Iterator<Item = Rank>, tag: Tag) -> Result<()> {
        self.link.send_to_all(&to.collect::<Vec<_>>(), tag, &[])
    }

    /// Drops what has come and comes for a communicator that this rank has left.
    pub(super) fn forget(&self, communicator: u32) {
        // In a fork, no thread may be there that unlocks the inbox.
        if self.process.is_current() {
            self.inbox().forget(communicator);
        }
    }

    /// Leaves the job, and waits a bounded time until what this rank has sent is on its way.
    fn leave_all(&self) {
        self.host.leave();
        if self.ended.get().is_none() {
            let all: Vec<Rank> = self.ranks().collect();
            self.leave(WHOLE_JOB, &all);
        }
        self.link.flush();
    }

    /// Tells the owners of messages that these have ended. An error ends all communicators.
    pub(super) fn report(&self, ends: Vec<Ended>) {
        for (on_end, delivery) in ends {
            let delivery = delivery.map_err(|error| self.end(error));
            // The owner's code may panic; the thread goes on.
            let _panicked = catch_unwind(AssertUnwindSafe(|| on_end(delivery)));
        }
    }

    /// Ends the receives that wait for what does not come.
    pub(super) fn end_receives(&self) {
        let (failed, died) = (self.check().err(), |rank: Rank| self.link.has_died(rank));
        let ends = self.inbox().take_ends(failed, self.own, &died);
        self.report(ends);
    }

    /// Looks whether a process has died. Ranks that do not wait for it are told too.
    fn check_processes(&self) -> Result<()> {
        if self.handles.load(Ordering::Acquire) == 0 {
            return Ok(());
        }
        self.host.check_peers().map_err(|error| self.end(error))?;
        let dead = self.ranks().find(|rank| self.link.has_died(*rank) && !self.inbox().has_left(*rank, WHOLE_JOB));
        match dead {
            Some(rank) => Err(self.end(error!(PeerLost, "rank {rank} died"))),
            None => Ok(()),
        }
    }
}

/// Tells ranks that `by` ends all communicators.
pub(super) fn send_abort(link: &dyn Link, to: impl Iterator<Item = Rank>, kind: ErrorKind, by: Rank, reason: &str) {
    let number = ErrorKind::ALL.iter().position(|other| *other == kind).unwrap_or_default() as u32;
    let words = [number, by.0].map(u32::to_le_bytes).concat();
    let bytes = [&words[..], start_of(reason, REASON_BYTES).as_bytes()].concat();
    // A rank that cannot be reached has ended.
    let _unreachable = link.send_to_all(&to.collect::<Vec<_>>(), ABORT, &bytes);
}

/// What another rank returns after `by` has ended all communicators.
fn error_of(kind: ErrorKind, by: Rank, reason: &str) -> Error {
    // A rank that only passes on what another one of its machine has said.
    let is_passed_on = kind == ErrorKind::Aborted && reason.contains(ENDED);
    match is_shared(kind) || is_passed_on {
        true => Error::new(kind, reason.to_owned()),
        false => error!(Aborted, "rank {by}{ENDED}{reason}"),
    }
}

struct Polling<'a>(&'a AtomicUsize);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Moves messages along while the job lives: those of asynchronous calls, and what other ranks
/// wait for while this one does something else. It also looks at deadlines and deaths.
fn move_messages(job: &Job) {
    let (mut next_tick, mut waits, mut is_called) = (Instant::now() + TICK, 0, false);
    while !job.mover.is_over.load(Ordering::Acquire) {
        // One that has just waited may do so again at once.
        let begun = job.waits.load(Ordering::Relaxed);
        let have_waited = std::mem::replace(&mut waits, begun) != begun && !is_called;
        let others_poll = have_waited || job.pollers.load(Ordering::Relaxed) > 0;
        let has_moved = !others_poll && job.poll().is_ok_and(|has_moved| has_moved);
        if Instant::now() >= next_tick {
            next_tick = Instant::now() + TICK;
            let _ended = job.check().and_then(|()| job.check_processes());
        }
        job.end_receives();
        is_called = match others_poll {
            true => sleep(job, None, YIELD_TO_POLLERS),
            false if has_moved => false,
            false => match job.link.to_sleep_on() {
                Some(descriptor) => {
                    let is_called = sleep(job, Some(descriptor), TICK);
                    waits = job.waits.load(Ordering::Relaxed);
                    is_called
                }
                None => sleep(job, None, YIELD_TO_POLLERS),
            },
        };
    }
}

/// Has the thread of the job stopped before the process unloads what the link uses. Some programs
/// keep a communicator until then.
fn stop_at_exit(job: &Arc<Job>) {
    static JOBS: Mutex<Vec<Weak<Job>>> = Mutex::new(Vec::new());
    static REGISTERED: Once = Once::new();
    fn stop(is_chosen: impl Fn(&Job) -> bool, error: Error) {
        let jobs: Vec<Arc<Job>> = lock(&JOBS).iter().filter_map(Weak::upgrade).collect();
        let goes_on = |job: &Job| job.process.is_current() && !job.mover.is_over.load(Ordering::Acquire);
        for job in jobs.into_iter().filter(|job| goes_on(job) && is_chosen(job)) {
            if job.kind() == BackendKind::Nccl {
                // NCCL does not tell peers that wait for this rank. To them it has died.
                job.mover.stop();
                job.link.flush();
            } else {
                job.leave_all();
                job.mover.stop();
                // This rank's calls return it, and no other rank's: those may still be in a call.
                let _ended_before = job.ended.set(error.clone());
                job.end_receives();
            }
            // Nothing of the link is freed now.
            std::mem::forget(job);
        }
    }
    extern "C" fn stop_all() {
        stop(|_| true, error!(NotReady, "the process ends"));
    }
    fn stop_over_mpi() {
        stop(|job| job.kind() == BackendKind::Mpi, mpi::finalized());
    }
    let mut jobs = lock(&JOBS);
    jobs.retain(|other| other.strong_count() > 0);
    jobs.push(Arc::downgrade(job));
    REGISTERED.call_once(|| {
        mpi::before_finalize(stop_over_mpi);
        // SAFETY: the function may be called at any time.
        if unsafe { libc::atexit(stop_all) } != 0 {
            event!(WARN, "no memory for an exit handler; the process may end while it uses the link");
        }
    });
}

/// Sleeps until there may be something to move, which the link's descriptor says. Returns whether
/// another thread has called.
fn sleep(job: &Job, descriptor: Option<BorrowedFd<'_>>, longest: Duration) -> bool {
    let wake = job.mover.wake.as_fd();
    let mut descriptors = [wake, descriptor.unwrap_or(wake)].map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN));
    let longest = Timespec { tv_sec: 0, tv_nsec: i64::from(longest.subsec_nanos()) };
    let _interrupted = poll(&mut descriptors, Some(&longest));
    let is_called = !descriptors[0].revents().is_empty();
    if is_called {
        let _empty = rustix::io::read(&job.mover.wake, &mut [0; 8]);
    }
    is_called
}
