//! The events that wake a job and its threads: a rank ends, reports or writes, another thread has
//! news.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;

pub(super) use rustix::event::epoll::EventFlags;

/// The number of what has none. Above every rank's and every pipe's.
pub(super) const OTHER: u64 = u64::MAX;

/// The kernel's queue of events, in the order in which they happened.
pub(super) struct Events(OwnedFd);

impl Events {
    pub(super) fn new() -> Result<Self> {
        Ok(Events(epoll::create(CreateFlags::CLOEXEC)?))
    }

    /// Watches a descriptor until it is closed.
    pub(super) fn add(&self, number: u64, fd: impl AsFd, flags: EventFlags) -> Result<()> {
        Ok(epoll::add(&self.0, fd, EventData::new_u64(number), flags)?)
    }

    /// Watches a socket or an event counter for news.
    pub(super) fn add_other(&self, fd: impl AsFd) -> Result<()> {
        self.add(OTHER, fd, EventFlags::IN | EventFlags::RDHUP | EventFlags::ET)
    }

    /// Waits for the next event; without a timeout, for ever. Gives its number.
    pub(super) fn next(&self, timeout: Option<Duration>) -> Result<Option<u64>> {
        let until = timeout.map(|timeout| Instant::now() + timeout);
        loop {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            let left = left.map(Timespec::try_from).transpose().map_err(Error::other)?;
            let mut event = [MaybeUninit::uninit()];
            match epoll::wait(&self.0, &mut event, left.as_ref()) {
                Ok((events, _)) => return Ok(events.first().map(|event| event.data.u64())),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// A counter by which one thread wakes another.
pub(super) fn event_counter() -> Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}

/// Wakes the thread that watches the counter.
pub(super) fn wake(counter: &OwnedFd) {
    // The counter holds more than 2^63 calls.
    let _ = rustix::io::write(counter, &1u64.to_ne_bytes());
}
