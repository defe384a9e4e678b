//! Copies this process's standard input, a terminal, to a rank.

use std::fs::File;
use std::io::{Result, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdin;
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, poll};

use crate::events::{event_counter, wake};

/// What a pipe takes without a wait, if it takes anything.
const PIECE: usize = 4096;

/// The thread that copies the input. Dropping it ends the thread. From then on it reads nothing, so
/// that the next line is for the next run of the job, or for this program.
pub(super) struct InputCopy {
    stop: OwnedFd,
    thread: Option<JoinHandle<()>>,
}

impl InputCopy {
    /// Starts the thread. It also ends with the input, or when the rank no longer reads.
    pub(super) fn copy_to(pipe: ChildStdin) -> Result<Self> {
        let stop = event_counter()?;
        let (terminal, stopped) = (std::io::stdin().as_fd().try_clone_to_owned()?, stop.try_clone()?);
        // An error means that the terminal or the rank's end of the pipe is gone.
        let copy = move || drop(copy(&terminal, OwnedFd::from(pipe).into(), &stopped));
        let thread = std::thread::Builder::new().name("dcl-input".to_owned()).spawn(copy)?;
        Ok(InputCopy { stop, thread: Some(thread) })
    }
}

impl Drop for InputCopy {
    fn drop(&mut self) {
        wake(&self.stop);
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Reads the terminal only while the pipe has room for a piece, so that nothing read is lost while
/// the rank runs, and the thread waits for the events of `stop` too whenever it waits.
fn copy(terminal: &OwnedFd, mut pipe: File, stop: &OwnedFd) -> Result<()> {
    let mut piece = [0; PIECE];
    loop {
        if !wait_for(&pipe, PollFlags::OUT, &pipe, stop)? || !wait_for(terminal, PollFlags::IN, &pipe, stop)? {
            return Ok(());
        }
        match rustix::io::retry_on_intr(|| rustix::io::read(terminal, &mut piece[..]))? {
            0 => return Ok(()),
            count => pipe.write_all(&piece[..count])?,
        }
    }
}

/// Waits until a descriptor is ready. Returns false if the thread is to end, or the rank has closed
/// its end of the pipe.
fn wait_for(fd: &impl AsFd, ready: PollFlags, pipe: &File, stop: &OwnedFd) -> Result<bool> {
    let mut fds = [PollFd::new(stop, PollFlags::IN), PollFd::new(pipe, PollFlags::empty()), PollFd::new(fd, ready)];
    rustix::io::retry_on_intr(|| poll(&mut fds, None))?;
    Ok(fds[0].revents().is_empty() && !fds[1].revents().intersects(PollFlags::ERR))
}
