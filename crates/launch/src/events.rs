//! The events that a job waits for: a rank ends, a rank reports, another thread has news.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An event.
pub(super) enum Event {
    /// The rank with this number has ended.
    Ended(usize),
    /// A rank connected to the socket for reports, or wrote to it.
    Report,
    /// A [`JobControl`](super::JobControl) was used, or a thread that forwards output got further.
    News,
}

/// The kernel's queue of events, in the order in which they happened.
pub(super) struct Events {
    epoll: OwnedFd,
    /// Kept open: the kernel removes a source from the queue when it is closed.
    ranks: Vec<OwnedFd>,
}

/// Above every rank's number.
const REPORTS: u64 = 1 << 32;
const NEWS: u64 = REPORTS + 1;

impl Events {
    pub(super) fn new() -> Result<Self> {
        Ok(Events { epoll: epoll::create(CreateFlags::CLOEXEC)?, ranks: Vec::new() })
    }

    /// Watches a rank.
    pub(super) fn add_rank(&mut self, number: usize, pidfd: OwnedFd) -> Result<()> {
        self.add(number as u64, pidfd.as_fd(), EventFlags::IN)?;
        self.ranks.push(pidfd);
        Ok(())
    }

    /// Watches a socket for ranks' reports until it is closed.
    pub(super) fn add_report(&self, socket: BorrowedFd<'_>) -> Result<()> {
        self.add(REPORTS, socket, EventFlags::IN | EventFlags::RDHUP)
    }

    /// Watches an event counter.
    pub(super) fn add_news(&self, counter: BorrowedFd<'_>) -> Result<()> {
        self.add(NEWS, counter, EventFlags::IN)
    }

    fn add(&self, source: u64, fd: BorrowedFd<'_>, flags: EventFlags) -> Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(source), flags | EventFlags::ET)?)
    }

    /// Waits for the next event; without a timeout, for ever.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(Error::other)?;
        let mut event = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut event, timeout.as_ref()).map_err(Error::from) {
            Ok((happened, _)) => Ok(happened.first().map(|event| match event.data.u64() {
                REPORTS => Event::Report,
                NEWS => Event::News,
                number => Event::Ended(number as usize),
            })),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}
