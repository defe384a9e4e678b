//! Watches the other processes, and marks the ranks of one that has ended as dead.

use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::memory::broker::{LONGEST_SHARE_MESSAGE, MemoryBroker};
use super::peer_processes::{PeerProcesses, hang_up};
use super::protocol::abort_domain::AbortDomain;
use super::system::caused_by;
use super::wire;
use crate::error::{ErrorKind, Result, error};
use crate::rank::Rank;
use crate::util::descriptors::make_room_for_processes;
use crate::util::interrupt;
use crate::util::log::event;

/// How long one message to or from another process may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// The monitor thread of this process, which runs until the last handle is dropped. It learns of
/// the end of a process from its pidfd and from the end of its connection, and takes messages with
/// shared memory in.
///
/// The hub's thread continues until all connections have ended. Only the hub sees each process end,
/// whatever PID namespace the process is in, and it forwards memory between the others.
pub(crate) struct ProcessMonitor {
    /// Readable when the thread is to end.
    stop: Arc<OwnedFd>,
    domain: Arc<AbortDomain>,
}

impl ProcessMonitor {
    /// Watches the other processes from now on. `pids_are_ours` says whether their process ids are
    /// of this process's PID namespace.
    pub(crate) fn start(
        peers: Arc<PeerProcesses>,
        broker: Arc<MemoryBroker>,
        domain: Arc<AbortDomain>,
        pids_are_ours: bool,
    ) -> Result<Self> {
        make_room_for_processes(peers.all().len());
        let refused = |call| move |e| caused_by(error!(System, "no monitor of the other processes"), call, e);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|e| refused("eventfd")(e.into()))?);
        let connections = peers.connections();
        for (_, stream) in &connections {
            let bounded = stream.set_write_timeout(Some(MESSAGE_TIMEOUT));
            bounded.map_err(|e| caused_by(error!(System, "a connection takes no timeout"), "setsockopt", e))?;
        }
        let mut thread = MonitorThread {
            peers,
            broker,
            domain: Arc::clone(&domain),
            stop: Arc::clone(&stop),
            pidfds: Vec::new(),
            connections,
        };
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
    peers: Arc<PeerProcesses>,
    broker: Arc<MemoryBroker>,
    domain: Arc<AbortDomain>,
    stop: Arc<OwnedFd>,
    /// The running processes that can be watched, by their indices.
    pidfds: Vec<(usize, OwnedFd)>,
    /// The open connections, by the indices of their processes.
    connections: Vec<(usize, Arc<UnixStream>)>,
}

/// Which file descriptors have something to read.
struct Ready {
    stop: bool,
    pidfds: Vec<bool>,
    connections: Vec<bool>,
}

impl MonitorThread {
    fn open_pidfds(&mut self, pids_are_ours: bool) {
        let own = self.peers.own();
        for (index, process) in self.peers.all().iter().enumerate().filter(|(index, _)| *index != own) {
            // In another namespace the id means another process, or none. The hub sees the end of
            // the connection.
            let Some(pid) = Pid::from_raw(process.pid).filter(|_| pids_are_ours) else {
                event!(DEBUG, "process {} is in another namespace; its connection tells of its end", process.pid);
                continue;
            };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => self.pidfds.push((index, pidfd)),
                Err(Errno::SRCH) => self.mark_dead(index),
                Err(error) => {
                    let pid = process.pid;
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
            let is_needed = self.peers.is_hub() && !self.connections.is_empty() && !self.domain.is_aborted();
            if is_stopping && !is_needed {
                return self.connections.iter().for_each(|(_, stream)| hang_up(stream));
            }
            let ready = match self.wait(is_stopping) {
                Ok(ready) => ready,
                Err(error) => {
                    // Without this thread no death would be seen.
                    let reason = format!("the monitor of the other processes failed: poll: {error}");
                    event!(ERROR, "{reason}");
                    let rank = Rank(self.peers.all()[self.peers.own()].first_rank);
                    return self.domain.abort(ErrorKind::System, rank, &reason);
                }
            };
            is_stopping |= ready.stop;
            self.read_connections(&ready.connections);
            self.take_ended_processes(&ready.pidfds);
        }
    }

    /// Waits until a descriptor has something to read.
    fn wait(&self, is_stopping: bool) -> rustix::io::Result<Ready> {
        let stop_events = if is_stopping { PollFlags::empty() } else { PollFlags::IN };
        let mut fds = vec![PollFd::new(&*self.stop, stop_events)];
        fds.extend(self.pidfds.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
        fds.extend(self.connections.iter().map(|(_, stream)| PollFd::new(&**stream, PollFlags::IN)));
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let mut ready = fds.iter().map(|fd| !fd.revents().is_empty());
        Ok(Ready {
            stop: ready.next() == Some(true),
            pidfds: ready.by_ref().take(self.pidfds.len()).collect(),
            connections: ready.collect(),
        })
    }

    /// Reads one message from each connection that has something to read. A connection ends when
    /// its process has ended, or has dropped all its handles and has said so.
    fn read_connections(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let mut connections = std::mem::take(&mut self.connections);
        connections.retain(|(index, stream)| {
            let is_open = ready.next() != Some(&true) || self.read(stream);
            if !is_open {
                self.peers.disconnect(*index);
                self.mark_dead(*index);
            }
            is_open
        });
        self.connections = connections;
    }

    /// Reads one message, and returns whether there was one.
    fn read(&self, stream: &UnixStream) -> bool {
        match wire::receive(stream, LONGEST_SHARE_MESSAGE, Instant::now() + MESSAGE_TIMEOUT) {
            Ok(Some((message, file))) => {
                if let Err(error) = self.broker.accept(message, file) {
                    event!(WARN, "{error}");
                }
                return true;
            }
            Ok(None) => {}
            Err(error) => event!(WARN, "a message from another process is broken: {error}"),
        }
        false
    }

    /// Marks the ranks of processes whose pidfds are readable as dead.
    fn take_ended_processes(&mut self, ready: &[bool]) {
        let mut ready = ready.iter();
        let mut pidfds = std::mem::take(&mut self.pidfds);
        pidfds.retain(|(index, _)| {
            let has_ended = ready.next() == Some(&true);
            if has_ended {
                self.mark_dead(*index);
                // A forked child may keep the connection open.
                self.connections.iter().filter(|(of, _)| of == index).for_each(|(_, stream)| hang_up(stream));
            }
            !has_ended
        });
        self.pidfds = pidfds;
    }

    fn mark_dead(&self, process: usize) {
        self.peers.all()[process].ranks().for_each(|rank| self.domain.mark_dead(Rank(rank)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::comm::host::memory::broker::AllocationKey;
    use crate::comm::host::peer_processes::Process;
    use crate::comm::host::protocol::segment::Segment;

    /// What one of three processes of one rank has, and the other end of its connection to the hub
    /// or of the hub's to rank 1. All of them are this process.
    struct OneOfThree {
        monitor: ProcessMonitor,
        broker: Arc<MemoryBroker>,
        domain: Arc<AbortDomain>,
        far: UnixStream,
    }

    fn one_of_three(own: usize) -> OneOfThree {
        // No process has the id 0, so that only the connections can end.
        let processes = (0..3).map(|first_rank| Process { pid: 0, first_rank, rank_count: 1 }).collect();
        let (near, far) = UnixStream::pair().expect("sockets");
        let mut connections = [None, None, None];
        connections[if own == 0 { 1 } else { 0 }] = Some(near);
        let peers = Arc::new(PeerProcesses::new(processes, own, connections.into()));
        let broker = Arc::new(MemoryBroker::new(Arc::clone(&peers)));
        let domain = Arc::clone(&Segment::in_process(3).expect("memory").domain);
        let monitor =
            ProcessMonitor::start(peers, Arc::clone(&broker), Arc::clone(&domain), true).expect("a monitor thread");
        OneOfThree { monitor, broker, domain, far }
    }

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// The hub would forward rank 2's memory, and ends before it has.
    #[test]
    fn a_rank_that_waits_for_memory_sees_the_hub_end() {
        let OneOfThree { monitor: _monitor, broker, domain: _, far: hub } = one_of_three(1);
        let key = AllocationKey { segment: 0, sequence: 1, color: 0 };
        std::thread::scope(|scope| {
            let receiving = scope.spawn(|| broker.receive(key, Rank(2), soon(), || Ok(())).map(|_| ()));
            drop(hub);
            let error = receiving.join().expect("no panic").expect_err("the hub ended");
            assert_eq!(error.kind(), ErrorKind::PeerLost);
            assert_eq!(error.to_string(), "the process of rank 0 died or left; it passes memory on");
        });
    }

    /// A hub whose handles are dropped watches until its last connection has ended.
    #[test]
    fn a_hub_without_handles_still_sees_a_death() {
        let OneOfThree { monitor, broker, domain, far: peer } = one_of_three(0);
        drop(monitor);
        drop(peer);
        let end = soon();
        // The thread drops its reference to the broker when it ends.
        while Arc::strong_count(&broker) > 1 {
            assert!(Instant::now() < end, "the monitor thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(domain.is_dead(Rank(1)) && !domain.is_dead(Rank(2)));
    }
}
