//! The guard: a process that kills a job's processes if the process that runs the job dies.
//!
//! A parent death signal reaches a rank, but not the processes that the rank has started. The guard
//! holds one end of a socket pair. When this process has ended in any way, the kernel closes the
//! other end, and the guard kills what it was told of.

use std::io::{Error, Result};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};
use std::os::unix::net::UnixStream;

use rustix::io::Errno;
use rustix::net::SendFlags;
use rustix::param::clock_ticks_per_second;
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};

use crate::processes::{kill_job, now_in_ticks};

/// What the guard reads instead of a target when the job has ended.
const DISMISSED: i32 = 0;

/// The guard of one job. Dropping it dismisses it.
pub(super) struct Guard {
    pid: Pid,
    socket: UnixStream,
}

impl Guard {
    /// Starts the guard of a job of this many ranks, whose processes have this text in their
    /// environments.
    pub(super) fn start(mark: &[u8], rank_count: usize) -> Result<Self> {
        let (theirs, socket) = UnixStream::pair()?;
        let targets = Vec::with_capacity(rank_count);
        let ticks_per_second = clock_ticks_per_second();
        // A handler of this program would run in the guard too.
        let mask = block_all_signals()?;
        // SAFETY: the child runs `watch` only. That makes system calls and writes to memory of its
        // own; it allocates nothing, takes no lock and never returns.
        let child = unsafe { libc::fork() };
        if child == 0 {
            watch(theirs.as_raw_fd(), targets, mark, ticks_per_second);
        }
        let error = Error::last_os_error();
        set_signal_mask(&mask)?;
        match child {
            ..=0 => Err(error),
            pid => Ok(Guard { pid: Pid::from_raw(pid).ok_or(Errno::SRCH)?, socket }),
        }
    }

    /// Tells the guard of a target, by its number, or that the job has ended.
    pub(super) fn tell(&self, number: i32) -> Result<()> {
        let bytes = number.to_ne_bytes();
        Ok(rustix::io::retry_on_intr(|| rustix::net::send(&self.socket, &bytes, SendFlags::NOSIGNAL)).map(drop)?)
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // An error means that the guard was killed.
        let _ = self.tell(DISMISSED);
        let _ = rustix::io::retry_on_intr(|| waitid(WaitId::Pid(self.pid), WaitIdOptions::EXITED));
    }
}

/// What the guard does. `targets` has room for all ranks.
fn watch(socket: RawFd, mut targets: Vec<i32>, mark: &[u8], ticks_per_second: u64) -> ! {
    leave(socket);
    // SAFETY: `leave` made the socket descriptor 0, which stays open.
    let socket = unsafe { BorrowedFd::borrow_raw(0) };
    loop {
        let mut bytes = [0; size_of::<i32>()];
        match rustix::io::read(socket, &mut bytes) {
            Ok(count) if count == bytes.len() => match i32::from_ne_bytes(bytes) {
                DISMISSED => exit(),
                target => targets.push(target),
            },
            Err(Errno::INTR) => {}
            _ => break,
        }
    }
    kill_job(mark, &targets, now_in_ticks(ticks_per_second));
    exit();
}

/// Leaves what this process shares with its parent: the terminal, the folder, all descriptors but
/// the socket, which becomes number 0. So nothing waits for the guard, such as the reader of a pipe
/// that both had open.
fn leave(socket: RawFd) {
    let _ = rustix::process::setsid();
    let _ = rustix::process::chdir(c"/");
    // SAFETY: no value of this process uses a descriptor from here on, except the socket.
    unsafe {
        libc::dup2(socket, 0);
        // Kernels before 5.9 do not have the call.
        if libc::syscall(libc::SYS_close_range, 1, libc::c_uint::MAX, 0) != 0 {
            for fd in 1..libc::sysconf(libc::_SC_OPEN_MAX) as RawFd {
                libc::close(fd);
            }
        }
    }
}

fn exit() -> ! {
    // SAFETY: the call ends the process, without the exit handlers of the parent.
    unsafe { libc::_exit(0) }
}

/// Blocks all signals for this thread. Returns the mask before.
fn block_all_signals() -> Result<libc::sigset_t> {
    let mut all = MaybeUninit::uninit();
    // SAFETY: the call writes the set.
    let all = unsafe {
        libc::sigfillset(all.as_mut_ptr());
        all.assume_init()
    };
    set_signal_mask(&all)
}

/// Sets this thread's mask. Returns the one before.
fn set_signal_mask(mask: &libc::sigset_t) -> Result<libc::sigset_t> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: the call reads the first set and writes the second.
    match unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, before.as_mut_ptr()) } {
        // SAFETY: the call succeeded, so it wrote the set.
        0 => Ok(unsafe { before.assume_init() }),
        code => Err(Error::from_raw_os_error(code)),
    }
}
