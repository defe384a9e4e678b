//! The events that wake a job: a rank ends, a rank reports, another thread has news.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// The kernel's queue of events, in the order in which they happened.
pub(super) struct Events {
    epoll: OwnedFd,
    /// Kept open: the kernel removes a source from the queue when it is closed.
    ranks: Vec<OwnedFd>,
}

/// The number of what is no rank. Above every rank's.
const NO_RANK: u64 = u64::MAX;

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

    /// Watches a socket or an event counter until it is closed.
    pub(super) fn add_other(&self, fd: BorrowedFd<'_>) -> Result<()> {
        self.add(NO_RANK, fd, EventFlags::IN | EventFlags::RDHUP)
    }

    fn add(&self, number: u64, fd: BorrowedFd<'_>, flags: EventFlags) -> Result<()> {
        Ok(epoll::add(&self.epoll, fd, EventData::new_u64(number), flags | EventFlags::ET)?)
    }

    /// Waits for the next event; without a timeout, for ever. Gives the number of the rank if one
    /// has ended.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Option<usize>> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(Error::other)?;
        let mut event = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut event, timeout.as_ref()).map_err(Error::from) {
            Ok((events, _)) => {
                let number = events.first().map(|event| event.data.u64());
                Ok(number.filter(|number| *number != NO_RANK).map(|number| number as usize))
            }
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}
