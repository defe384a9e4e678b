//! The events that the launcher waits for: a rank ends, a signal arrives, a rank reports.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// An event.
pub enum Event {
    /// The rank with this number has ended.
    Ended(usize),
    /// The launcher received this signal.
    Signal(i32),
    /// A rank connected to the socket for reports, or wrote to it.
    Report,
}

/// The kernel's queue of events, in the order in which they happened.
pub struct Events {
    epoll: OwnedFd,
    /// Kept open: the kernel removes a source from the queue when it is closed.
    sources: Vec<OwnedFd>,
}

/// Above every number of a rank or signal.
const REPORTS: u64 = 1 << 33;

/// Added to a signal's number. Above every rank's number.
const SIGNALS: u64 = 1 << 32;

impl Events {
    pub fn new() -> Result<Self> {
        Ok(Events { epoll: epoll::create(CreateFlags::CLOEXEC)?, sources: Vec::new() })
    }

    /// Watches a rank.
    pub fn add_rank(&mut self, number: usize, pidfd: OwnedFd) -> Result<()> {
        self.add(number as u64, pidfd)
    }

    /// Catches a signal from now on, unless it is ignored (`nohup` makes programs ignore SIGHUP).
    pub fn add_signal(&mut self, signal: i32) -> Result<()> {
        if is_ignored(signal)? {
            return Ok(());
        }
        let (here, there) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal, there)?;
        self.add(SIGNALS + signal as u64, here.into())
    }

    /// Watches a socket for ranks' reports until it is closed.
    pub fn add_report(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(REPORTS), flags)?)
    }

    fn add(&mut self, source: u64, fd: OwnedFd) -> Result<()> {
        epoll::add(&self.epoll, fd.as_fd(), EventData::new_u64(source), EventFlags::IN | EventFlags::ET)?;
        self.sources.push(fd);
        Ok(())
    }

    /// Waits for the next event; without a timeout, for ever.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(Error::other)?;
        let mut event = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut event, timeout.as_ref()).map_err(Error::from) {
            Ok((happened, _)) => Ok(happened.first().map(|event| match event.data.u64() {
                number @ ..SIGNALS => Event::Ended(number as usize),
                REPORTS => Event::Report,
                signal => Event::Signal((signal - SIGNALS) as i32),
            })),
            // The next call returns the signal as an event.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_ignored(signal: i32) -> Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the new action is null, so the call only writes the present action, to memory of the
    // right type and size.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it wrote the action.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
