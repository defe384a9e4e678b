//! Watches the other processes, and marks the ranks of one that has ended as dead.

use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::net::{Shutdown, shutdown};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::protocol::abort_domain::AbortDomain;
use crate::error::{ErrorKind, Result, error};
use crate::rank::Rank;
use crate::util::caused_by;
use crate::util::descriptors::make_room_for_processes;
use crate::util::interrupt;
use crate::util::log::event;

/// The index of the hub, the process of rank 0.
const HUB: usize = 0;

/// A process of the job and its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RankProcess {
    pub(crate) pid: i32,
    pub(crate) first_rank: u32,
    pub(crate) rank_count: u32,
}

impl RankProcess {
    pub(crate) fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank + self.rank_count
    }
}

/// The monitor thread of this process, which runs until the last handle is dropped. It learns of
/// the end of a process from its pidfd and from the end of its connection.
///
/// The hub's thread continues until all connections have ended. Only the hub sees each process end,
/// whatever PID namespace the process is in.
pub(crate) struct ProcessMonitor {
    /// Readable when the thread is to end.
    stop: Arc<OwnedFd>,
    domain: Arc<AbortDomain>,
}

impl ProcessMonitor {
    /// Watches the other processes from now on. `processes` are in the order of their ranks; `own`
    /// is the index of this process. `connections` has the index of the process at the other end:
    /// on the hub one for each other process, elsewhere the one to the hub. `pids_are_ours` says
    /// whether the process ids are of this process's PID namespace.
    pub(crate) fn start(
        processes: Vec<RankProcess>,
        own: usize,
        connections: Vec<(usize, OwnedFd)>,
        domain: Arc<AbortDomain>,
        pids_are_ours: bool,
    ) -> Result<Self> {
        make_room_for_processes(processes.len());
        let refused = |call| move |e| caused_by(error!(System, "no monitor of the other processes"), call, e);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| refused("eventfd")(e.into()))?);
        let sign = |(process, fd)| EndSign { process, fd, is_connection: true };
        let signs = connections.into_iter().map(sign).collect();
        let mut thread = MonitorThread { processes, own, domain: Arc::clone(&domain), stop: Arc::clone(&stop), signs };
        thread.open_pidfds(pids_are_ours);
        let builder = std::thread::Builder::new().name("dcl-watch".to_owned());
        builder.spawn(move || thread.run()).map_err(refused("clone"))?;
        Ok(ProcessMonitor { stop, domain })
    }
}

impl Drop for ProcessMonitor {
    fn drop(&mut self) {
        if self.domain.process.is_current() {
            // This wakes the thread from poll. It is not joined: it may be inside a log callback.
            let _ = rustix::io::write(&*self.stop, &1u64.to_ne_bytes());
        }
    }
}

struct MonitorThread {
    processes: Vec<RankProcess>,
    own: usize,
    domain: Arc<AbortDomain>,
    stop: Arc<OwnedFd>,
    /// What has not told of an end yet.
    signs: Vec<EndSign>,
}

/// What becomes readable when another process ends: its pidfd, or the connection to it. That also
/// when the process has dropped all its handles, because nothing comes over it.
struct EndSign {
    /// The index of the process.
    process: usize,
    fd: OwnedFd,
    is_connection: bool,
}

impl EndSign {
    /// Ends a connection. Closing the descriptor would not where a forked child has a copy of it.
    fn hang_up(&self) {
        if self.is_connection {
            let _ = shutdown(&self.fd, Shutdown::Both);
        }
    }
}

impl MonitorThread {
    fn open_pidfds(&mut self, pids_are_ours: bool) {
        for process in (0..self.processes.len()).filter(|process| *process != self.own) {
            let pid = self.processes[process].pid;
            // In another namespace the id means another process, or none. The hub sees the end of
            // the connection.
            let Some(known) = Pid::from_raw(pid).filter(|_| pids_are_ours) else {
                event!(DEBUG, "process {pid} is in another namespace; its connection tells of its end");
                continue;
            };
            match pidfd_open(known, PidfdFlags::empty()) {
                Ok(fd) => self.signs.push(EndSign { process, fd, is_connection: false }),
                Err(Errno::SRCH) => self.mark_dead(process),
                Err(error) => {
                    event!(DEBUG, "its connection tells of the end of process {pid}: pidfd_open: {error}");
                }
            }
        }
    }

    fn run(mut self) {
        let _mask = interrupt::mask();
        let mut is_stopping = false;
        loop {
            // After a failure no rank waits for another process.
            let is_connected = self.signs.iter().any(|sign| sign.is_connection);
            let is_needed = self.own == HUB && is_connected && !self.domain.is_aborted();
            if is_stopping && !is_needed {
                return self.signs.iter().for_each(EndSign::hang_up);
            }
            let stop_events = if is_stopping { PollFlags::empty() } else { PollFlags::IN };
            let mut fds = vec![PollFd::new(&*self.stop, stop_events)];
            fds.extend(self.signs.iter().map(|sign| PollFd::new(&sign.fd, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    // Without this thread no death would be seen.
                    let reason = format!("the monitor of the other processes failed: poll: {error}");
                    event!(ERROR, "{reason}");
                    let rank = Rank(self.processes[self.own].first_rank);
                    return self.domain.abort(ErrorKind::System, rank, &reason);
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            is_stopping |= ready[0];
            self.take_ends(&ready[1..]);
        }
    }

    /// Marks the ranks of processes whose signs are readable as dead.
    fn take_ends(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let ended: Vec<_> = self.signs.extract_if(.., |_| ready.next() == Some(&true)).collect();
        for sign in ended {
            self.mark_dead(sign.process);
            sign.hang_up();
            // A forked child may keep the connection of a process that has ended.
            self.signs.iter().filter(|other| other.process == sign.process).for_each(EndSign::hang_up);
        }
    }

    fn mark_dead(&self, process: usize) {
        self.processes[process].ranks().for_each(|rank| self.domain.mark_dead(Rank(rank)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::{Duration, Instant};

    use super::*;
    use crate::comm::host::protocol::segment::Segment;

    /// The hub of three processes of one rank, whose handles are dropped, watches until its last
    /// connection has ended.
    #[test]
    fn a_hub_without_handles_still_sees_a_death() {
        // No process has the id 0, so that only the connections can end.
        let processes = (0..3).map(|first_rank| RankProcess { pid: 0, first_rank, rank_count: 1 }).collect();
        let (near, far) = UnixStream::pair().expect("sockets");
        let domain = Arc::clone(&Segment::in_process(3, None).expect("memory").domain);
        let connections = vec![(1, near.into())];
        let monitor =
            ProcessMonitor::start(processes, HUB, connections, Arc::clone(&domain), true).expect("a monitor thread");
        drop(monitor);
        drop(far);
        let end = Instant::now() + Duration::from_secs(10);
        // The thread drops its reference to the domain when it ends.
        while Arc::strong_count(&domain) > 1 {
            assert!(Instant::now() < end, "the monitor thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(domain.is_dead(Rank(1)) && !domain.is_dead(Rank(2)));
    }
}
