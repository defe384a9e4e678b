//! What the launcher waits for: ranks that end and signals.

use std::io::{Error, ErrorKind, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};

/// What has happened.
pub enum Event {
    /// A rank, by its number, has ended.
    Ended(usize),
    /// The launcher got this signal.
    Signal(i32),
    /// A rank has reported something.
    Report,
}

/// The kernel's queue of events. It gives them in the order in which they happened.
pub struct Events {
    epoll: OwnedFd,
    /// Kept open, since a closed source says nothing.
    sources: Vec<OwnedFd>,
}

/// Beyond the number of any rank and signal.
const REPORTS: u64 = 1 << 33;

/// Beyond the number of any rank: what is added to a signal's number.
const SIGNALS: u64 = 1 << 32;

impl Events {
    pub fn new() -> Result<Self> {
        Ok(Events { epoll: epoll::create(CreateFlags::CLOEXEC)?, sources: Vec::new() })
    }

    /// Watches a rank.
    pub fn add_rank(&mut self, number: usize, pidfd: OwnedFd) -> Result<()> {
        self.add(number as u64, pidfd)
    }

    /// Catches a signal from now on, unless it is ignored, as `nohup` has it for SIGHUP.
    pub fn add_signal(&mut self, signal: i32) -> Result<()> {
        if is_ignored(signal)? {
            return Ok(());
        }
        let (here, there) = UnixStream::pair()?;
        signal_hook::low_level::pipe::register(signal, there)?;
        self.add(SIGNALS + signal as u64, here.into())
    }

    /// Watches a socket of the ranks' reports, until it is closed.
    pub fn add_report(&self, socket: BorrowedFd<'_>) -> Result<()> {
        let flags = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        Ok(epoll::add(&self.epoll, socket, EventData::new_u64(REPORTS), flags)?)
    }

    fn add(&mut self, source: u64, fd: OwnedFd) -> Result<()> {
        epoll::add(&self.epoll, fd.as_fd(), EventData::new_u64(source), EventFlags::IN | EventFlags::ET)?;
        self.sources.push(fd);
        Ok(())
    }

    /// Waits for the next event, so long at most; for ever without a timeout.
    pub fn next(&self, timeout: Option<Duration>) -> Result<Option<Event>> {
        let timeout = timeout.map(Timespec::try_from).transpose().map_err(Error::other)?;
        let mut event = [MaybeUninit::uninit()];
        match epoll::wait(&self.epoll, &mut event, timeout.as_ref()).map_err(Error::from) {
            Ok((happened, _)) => Ok(happened.first().map(|event| match event.data.u64() {
                number @ ..SIGNALS => Event::Ended(number as usize),
                REPORTS => Event::Report,
                signal => Event::Signal((signal - SIGNALS) as i32),
            })),
            // The signal itself comes as an event.
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(None),
            Err(error) => Err(error),
        }
    }
}

fn is_ignored(signal: i32) -> Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action the call changes nothing, and writes the present one where it has room for it.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the call has succeeded and so has written it.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}
