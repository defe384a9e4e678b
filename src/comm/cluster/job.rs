//! What the communicators of one process in a job share: the link to other machines, what has come
//! over it, and how they all end.

use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::inbox::{Ended, Inbox};
use super::link::{Arrival, Bytes, Channel, Link, MAX_COMMUNICATOR, Tag};
use crate::comm::backend::Backend;
use crate::comm::host::{HostBackend, is_shared};
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::rank::Rank;
use crate::stream::Watch;
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::text::{count_of, printable};
use crate::util::wait::{Stopped, Wait};

/// How often the thread that moves messages looks whether a process has died.
const TICK: Duration = Duration::from_millis(100);

/// How long that thread sleeps while other threads move messages themselves.
const YIELD_TO_POLLERS: Duration = Duration::from_millis(1);

/// The most bytes of a rank's blocks that wait to be sent, unless another rank waits for them.
pub(super) const MOST_UNSENT: usize = 8 << 20;

/// The longest reason that an abort tells other machines, in bytes.
const REASON_BYTES: usize = 2048;

/// The first communicator's number.
pub(super) const FIRST: u32 = 0;

const ABORT: Tag = Tag { communicator: FIRST, channel: Channel::Abort, number: 0 };

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
    next_communicator: AtomicU32,
    process: ProcessGuard,
}

impl Job {
    pub(super) fn new(
        link: Box<dyn Link>,
        own: Rank,
        machines: Box<[u32]>,
        host: Arc<HostBackend>,
    ) -> Result<Arc<Self>> {
        let job = Arc::new(Job {
            link,
            own,
            machines,
            host,
            inbox: Mutex::default(),
            ended: OnceLock::new(),
            pollers: AtomicUsize::new(0),
            next_communicator: AtomicU32::new(FIRST + 1),
            process: ProcessGuard::current(),
        });
        let weak = Arc::downgrade(&job);
        let builder = std::thread::Builder::new().name("dcl-cluster".to_owned());
        builder
            .spawn(move || move_messages(&weak))
            .map_err(|e| error!(System, "no thread to move messages between machines").with_source(e))?;
        Ok(job)
    }

    /// The number that the next communicator can have on this rank.
    pub(super) fn next_communicator(&self) -> u32 {
        self.next_communicator.load(Ordering::Relaxed)
    }

    /// Reserves numbers up to `end`, which it does not include.
    pub(super) fn reserve_communicators(&self, end: u32) -> Result<()> {
        if end > MAX_COMMUNICATOR {
            bail!(System, "the job has made {}, and there can be no more", count_of(end as usize, "communicator"));
        }
        self.next_communicator.fetch_max(end, Ordering::Relaxed);
        Ok(())
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
            let number = ErrorKind::ALL.iter().position(|other| *other == kind).unwrap_or_default() as u32;
            let reason = crate::util::text::start_of(reason, REASON_BYTES).as_bytes();
            let words = [number, by.0].map(u32::to_le_bytes).concat();
            let bytes = [&words[..], reason].concat();
            for rank in self.ranks().filter(|rank| by == self.own && self.is_elsewhere(*rank)) {
                // A rank that cannot be reached has ended.
                let _unreachable = self.link.send(rank, ABORT, Bytes::copy_of(&bytes));
            }
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
            let arrival = Arrival { from: to, tag, bytes };
            let ends = lock(&self.inbox).put(vec![arrival]);
            report(ends);
            return Ok(());
        }
        self.link.send(to, tag, bytes).map_err(|error| self.check().err().unwrap_or(error))
    }

    /// How many bytes this rank has yet to send.
    pub(super) fn unsent(&self) -> usize {
        self.link.unsent()
    }

    /// Moves messages along.
    pub(super) fn poll(&self) -> Result<()> {
        let mut arrivals = Vec::new();
        let mut inbox = lock(&self.inbox);
        // With the inbox locked, so that messages stay in their order.
        let moved = self.link.progress(&mut arrivals);
        if arrivals.is_empty() {
            drop(inbox);
            moved.map_err(|error| self.end(error))?;
            return self.check();
        }
        let (aborts, others) = arrivals.into_iter().partition::<Vec<_>, _>(|a| a.tag.channel == Channel::Abort);
        let ends = inbox.put(others);
        drop(inbox);
        report(ends);
        aborts.iter().for_each(|abort| self.take_abort(&abort.bytes));
        moved.map_err(|error| self.end(error))?;
        self.check()
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
        let _polling = Polling(&self.pollers);
        let warning = |seconds: u64| format!("rank {} has waited for {seconds} s: {}", self.own, awaited());
        let mut wait = Wait::until(deadline).warning(&warning);
        loop {
            self.poll()?;
            if let Some(found) = look()? {
                return Ok(found);
            }
            wait.pause().map_err(|stopped| match stopped {
                Stopped::Late => error!(DeadlineExceeded, "{} before the deadline", awaited()),
                stopped => stopped.error(format_args!("while it waited: {}", awaited()), ""),
            })?;
        }
    }

    /// Waits for the next message of a rank with a tag. `name` is the rank's in errors.
    pub(super) fn receive(&self, from: Rank, tag: Tag, deadline: Instant) -> Result<Bytes> {
        let mut was_gone = false;
        let look = || {
            if let Some(bytes) = self.inbox().take(from, tag) {
                return Ok(Some(bytes));
            }
            // What it sent before may come with the next look.
            if std::mem::replace(&mut was_gone, self.is_gone(from, tag.communicator)) {
                return Err(self.lost(from, tag.communicator));
            }
            Ok(None)
        };
        self.wait(deadline, &|| format!("rank {from} did not send its part"), look)
    }

    /// Whether a rank has left a communicator, or its process has ended.
    pub(super) fn is_gone(&self, rank: Rank, communicator: u32) -> bool {
        rank != self.own && (self.link.has_died(rank) || self.inbox().has_left(rank, communicator))
    }

    /// The error of a wait for a rank that is gone.
    pub(super) fn lost(&self, rank: Rank, communicator: u32) -> Error {
        let how = if self.inbox().has_left(rank, communicator) { "left the communicator" } else { "died" };
        error!(PeerLost, "rank {rank} {how} while this rank waited")
    }

    /// Tells the members of a communicator that this rank has left it.
    pub(super) fn leave(&self, communicator: u32, members: &[Rank]) {
        if !self.process.is_current() {
            return;
        }
        let tag = Tag { communicator, channel: Channel::Leave, number: 0 };
        for rank in members.iter().filter(|rank| **rank != self.own) {
            let _unreachable = self.link.send(*rank, tag, Bytes::default());
        }
        self.link.flush();
    }

    /// Looks whether a process has died. Ranks that do not wait for it are told too.
    fn check_processes(&self) -> Result<()> {
        self.host.check_peers().map_err(|error| self.end(error))?;
        let dead = self.ranks().find(|rank| self.link.has_died(*rank) && !self.inbox().has_left(*rank, FIRST));
        match dead {
            Some(rank) => Err(self.end(error!(PeerLost, "rank {rank} died"))),
            None => Ok(()),
        }
    }
}

/// What another rank returns after `by` has ended all communicators.
fn error_of(kind: ErrorKind, by: Rank, reason: &str) -> Error {
    match is_shared(kind) {
        true => Error::new(kind, reason.to_owned()),
        false => error!(Aborted, "rank {by} ended the communicator: {reason}"),
    }
}

struct Polling<'a>(&'a AtomicUsize);

impl Drop for Polling<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

pub(super) fn report(ends: Vec<Ended>) {
    ends.into_iter().for_each(|(on_end, delivery)| on_end(delivery));
}

/// Moves messages along while the job lives: those of asynchronous calls, and what other ranks
/// wait for while this one does something else.
fn move_messages(job: &Weak<Job>) {
    let mut next_tick = Instant::now() + TICK;
    while let Some(job) = job.upgrade() {
        if Arc::strong_count(&job) == 1 {
            return;
        }
        if job.pollers.load(Ordering::Relaxed) > 0 {
            drop(job);
            std::thread::sleep(YIELD_TO_POLLERS);
            continue;
        }
        let moved = job.poll();
        let now = Instant::now();
        if moved.is_ok() && now >= next_tick {
            next_tick = now + TICK;
            let _ended = job.check_processes();
        }
        let failed = job.check().err();
        let ends = job.inbox().take_ends(failed, now);
        let has_failed = ends.iter().find_map(|(_, delivery)| delivery.as_ref().err().cloned());
        report(ends);
        if let Some(error) = has_failed {
            job.end(error);
        }
        sleep(&job);
    }
}

/// Sleeps until there may be something to move.
fn sleep(job: &Job) {
    let Some(descriptor) = job.link.to_sleep_on() else {
        std::thread::sleep(YIELD_TO_POLLERS);
        return;
    };
    let mut descriptors = [rustix::event::PollFd::new(&descriptor, rustix::event::PollFlags::IN)];
    let tick = rustix::event::Timespec { tv_sec: 0, tv_nsec: i64::from(TICK.subsec_nanos()) };
    let _interrupted = rustix::event::poll(&mut descriptors, Some(&tick));
}
