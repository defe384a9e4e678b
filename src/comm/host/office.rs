//! What the ranks of one process share beside memory: the other processes, and memory on its way to those who will use it.

use std::collections::HashMap;
use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use serde::{Deserialize, Serialize};

use super::family::Family;
use super::segment::Segment;
use super::shared_memory::{Extent, SharedMemory};
use super::system::caused_by;
use super::wire;
use crate::error::{ErrorKind, Result, bail, error};
use crate::rank::Rank;
use crate::sync::{AtomicU64, Ordering};
use crate::util::descriptors::make_room_for_processes;
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::text::list_ranks;

/// Which call some memory is for: the communicator's id, the number of the collective, and of a split the color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(super) struct Ticket {
    pub(super) segment: u64,
    pub(super) sequence: u64,
    pub(super) color: u32,
}

/// A process of the job and its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Process {
    pub(super) pid: i32,
    pub(super) first_rank: u32,
    pub(super) rank_count: u32,
}

impl Process {
    pub(super) fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank + self.rank_count
    }

    pub(super) fn has(&self, rank: Rank) -> bool {
        self.ranks().contains(&rank.0)
    }
}

/// One process's office. Its monitor thread watches the other processes and takes memory in;
/// without other processes there is no thread.
///
/// When the last handle of the process is dropped, the thread ends. The hub's goes on until each
/// other process has ended its connection: the hub alone sees every end, whatever namespace a
/// process is in, and passes memory on.
pub(super) struct Office {
    shared: Arc<Shared>,
    /// Tells the thread to end.
    stop: Option<Arc<OwnedFd>>,
    process: ProcessGuard,
}

struct Shared {
    /// All processes; the first is the hub, which forwards what the others send each other.
    processes: Vec<Process>,
    own: usize,
    /// To each other process on the hub, to the hub alone elsewhere; `None` where there is no connection, or no longer.
    links: Mutex<Vec<Option<Arc<UnixStream>>>>,
    arrivals: Mutex<HashMap<Ticket, Result<Arrival>>>,
    arrived: Condvar,
    /// Where deaths are told.
    family: Arc<Family>,
    next_id: AtomicU64,
}

/// Memory that waits for its users in this process.
struct Arrival {
    memory: Arc<SharedMemory>,
    id: u64,
    takers: u32,
}

/// Memory on its way to another process, as a file descriptor that goes along.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct Parcel {
    destination: u32,
    ticket: Ticket,
    /// A number that no other memory of the family has; that of its first is 0.
    id: u64,
    takers: u32,
    byte_len: u64,
}

/// The longest message, in bytes, about memory on its way: six numbers.
const LONGEST_PARCEL: usize = 64;

/// How many bits of a number of memory are the publisher's own count; above them is its process.
const ID_BITS: u32 = 40;

/// How long one message to another process may take.
const MESSAGE_TIMEOUT: Duration = Duration::from_secs(5);

/// How often a waiting rank looks whether its communicator still lives.
const LOOK_INTERVAL: Duration = Duration::from_millis(20);

impl Office {
    /// An office for ranks that are all threads of this process.
    pub(super) fn in_process(root: &Segment) -> Self {
        let process = Process { pid: 0, first_rank: 0, rank_count: root.len() as u32 };
        Office {
            shared: Arc::new(Shared::new(vec![process], 0, vec![None], root)),
            stop: None,
            process: ProcessGuard::current(),
        }
    }

    /// An office that watches the other processes from now on. `numbers_are_ours` says whether the
    /// numbers of the processes are those of this process's namespace.
    pub(super) fn between(
        processes: Vec<Process>,
        own: usize,
        links: Vec<Option<UnixStream>>,
        numbers_are_ours: bool,
        root: &Segment,
    ) -> Result<Self> {
        make_room_for_processes(processes.len());
        let mut pidfds = Vec::new();
        let mut dead = Vec::new();
        for (index, process) in processes.iter().enumerate().filter(|(index, _)| *index != own) {
            // Elsewhere the number means another process, or none. The hub tells of the end then:
            // its connection ends too.
            let Some(pid) = Pid::from_raw(process.pid).filter(|_| numbers_are_ours) else {
                crate::util::log::event!(
                    DEBUG,
                    "process {} is in another namespace; its connection tells of its end",
                    process.pid
                );
                continue;
            };
            match pidfd_open(pid, PidfdFlags::empty()) {
                Ok(pidfd) => pidfds.push((index, pidfd)),
                Err(rustix::io::Errno::SRCH) => dead.push(index),
                Err(error) => {
                    crate::util::log::event!(
                        DEBUG,
                        "its connection tells of the end of process {}: pidfd_open: {error}",
                        process.pid
                    );
                }
            }
        }
        let refused = |e| caused_by(error!(System, "no monitor of the other processes"), "eventfd", e);
        let stop = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(refused)?);
        let links: Vec<Option<Arc<UnixStream>>> = links.into_iter().map(|link| link.map(Arc::new)).collect();
        let readers = links.clone();
        for link in links.iter().flatten() {
            let bounded =
                link.set_write_timeout(Some(MESSAGE_TIMEOUT)).and(link.set_read_timeout(Some(MESSAGE_TIMEOUT)));
            bounded.map_err(|e| caused_by(error!(System, "a connection takes no timeout"), "setsockopt", e))?;
        }
        let shared = Arc::new(Shared::new(processes, own, links, root));
        dead.into_iter().for_each(|index| shared.mark_dead(index));
        let watching = std::thread::Builder::new().name("dcl-watch".to_owned()).spawn({
            let (shared, stop) = (Arc::clone(&shared), Arc::clone(&stop));
            move || shared.watch(&stop, pidfds, readers)
        });
        let refused = |e| caused_by(error!(System, "no monitor of the other processes"), "clone", e);
        watching.map_err(refused)?;
        Ok(Office { shared, stop: Some(stop), process: ProcessGuard::current() })
    }

    /// Makes memory that `users` will take, and sends it to their processes. Called by the first of them; those that are all in
    /// this process get memory of its own.
    /// Before each step of allocating it, `keep_going` is asked whether to.
    pub(super) fn publish(
        &self,
        ticket: Ticket,
        users: &[Rank],
        extent: Extent,
        keep_going: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let shared = &self.shared;
        let takers: Vec<u32> = (shared.processes.iter())
            .map(|process| users.iter().filter(|rank| process.has(**rank)).count() as u32)
            .collect();
        let destinations = || (0..takers.len()).filter(|&p| takers[p] > 0 && p != shared.own);
        let spans_processes = destinations().next().is_some();
        let (memory, file) = if spans_processes {
            let (memory, file) = SharedMemory::of_processes(extent, keep_going)?;
            (memory, Some(file))
        } else {
            (SharedMemory::of_process(extent.byte_len)?, None)
        };
        // Numbers of different processes never meet.
        let id = (shared.own as u64) << ID_BITS | shared.next_id.fetch_add(1, Ordering::Relaxed);
        for destination in destinations() {
            let parcel = Parcel {
                destination: destination as u32,
                ticket,
                id,
                takers: takers[destination],
                byte_len: extent.byte_len as u64,
            };
            let Some(file) = &file else { bail!(System, "shared memory has no file") };
            shared.send(&parcel, Some(file.as_fd()))?;
        }
        let takers = takers[shared.own];
        if takers > 0 {
            shared.deliver(ticket, Ok(Arrival { memory: Arc::new(memory), id, takers }));
        }
        Ok(())
    }

    /// Waits for memory that this rank is a user of, and gives it with its number. Each of its users takes it once.
    pub(super) fn take(
        &self,
        ticket: Ticket,
        publisher: Rank,
        deadline: Instant,
        alive: impl Fn() -> Result<()>,
    ) -> Result<(Arc<SharedMemory>, u64)> {
        let shared = &self.shared;
        let by_way_of_hub = shared.own != 0 && !shared.processes[shared.own].has(publisher);
        let mut arrivals = lock(&self.shared.arrivals);
        loop {
            if let Some(arrival) = arrivals.get_mut(&ticket) {
                let arrival = arrival.as_mut().map_err(|error| error.clone())?;
                let taken = (Arc::clone(&arrival.memory), arrival.id);
                arrival.takers -= 1;
                if arrival.takers == 0 {
                    arrivals.remove(&ticket);
                }
                return Ok(taken);
            }
            alive()?;
            if by_way_of_hub && lock(&shared.links)[0].is_none() {
                bail!(PeerLost, "the process of rank 0 died or left; it passes memory on");
            }
            let now = Instant::now();
            if now >= deadline {
                bail!(DeadlineExceeded, "rank {publisher} did not send its memory before the deadline");
            }
            let wait = LOOK_INTERVAL.min(deadline - now);
            (arrivals, _) = self.shared.arrived.wait_timeout(arrivals, wait).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for Office {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.as_ref().filter(|_| self.process.is_current()) {
            // The monitor thread sleeps in poll, and sees this. It is not waited for: it may be
            // inside a callback for the log.
            let _ = rustix::io::write(&**stop, &1u64.to_ne_bytes());
        }
    }
}

/// Ends a connection, whoever else has a copy of it: closing would not, where a child was forked. What has come can be read still.
fn hang_up(link: &UnixStream) {
    let _ = link.shutdown(Shutdown::Both);
}

impl Shared {
    fn new(processes: Vec<Process>, own: usize, links: Vec<Option<Arc<UnixStream>>>, root: &Segment) -> Self {
        Shared {
            processes,
            own,
            links: Mutex::new(links),
            arrivals: Mutex::default(),
            arrived: Condvar::new(),
            family: Arc::clone(&root.family),
            next_id: AtomicU64::new(1),
        }
    }

    /// Lays memory out for its users in this process, or the reason why there is none.
    fn deliver(&self, ticket: Ticket, arrival: Result<Arrival>) {
        lock(&self.arrivals).insert(ticket, arrival);
        self.arrived.notify_all();
    }

    /// Sends a parcel to its destination, or to the hub, which forwards it.
    fn send(&self, parcel: &Parcel, file: Option<BorrowedFd<'_>>) -> Result<()> {
        let link = if self.own == 0 { parcel.destination as usize } else { 0 };
        let lost = || {
            let ranks = list_ranks(self.processes.get(link).into_iter().flat_map(Process::ranks));
            error!(PeerLost, "the process of {ranks} died or left; memory goes to it or through it")
        };
        let mut links = lock(&self.links);
        let Some(Some(stream)) = links.get(link) else { return Err(lost()) };
        let sent = wire::send(stream, parcel, file);
        if sent.is_err() {
            // A message may have gone in part: nothing that follows would be understood.
            hang_up(stream);
            links[link] = None;
        }
        sent.map_err(|e| caused_by(lost(), "sendmsg", e))
    }

    /// Checks what another process wrote in a parcel. Its memory is checked when it is opened.
    fn check_parcel(&self, parcel: &Parcel) -> Result<()> {
        let Some(destination) = self.processes.get(parcel.destination as usize) else {
            bail!(System, "memory came for process {}, of {}", parcel.destination, self.processes.len());
        };
        if self.own != 0 && parcel.destination as usize != self.own {
            bail!(System, "memory came that is for another process");
        }
        if parcel.takers == 0 || parcel.takers > destination.rank_count {
            bail!(System, "memory came for {} ranks of a process of {}", parcel.takers, destination.rank_count);
        }
        let (publisher, number) = (parcel.id >> ID_BITS, parcel.id & ((1 << ID_BITS) - 1));
        if publisher >= self.processes.len() as u64 || number == 0 {
            bail!(System, "memory came with number {:#x}, which no process gives", parcel.id);
        }
        Ok(())
    }

    /// Takes in what came for this process, and sends on what came for another. A file is missing where a process on the way had
    /// no descriptor left for it.
    fn accept(&self, parcel: Parcel, file: Option<OwnedFd>) -> Result<()> {
        self.check_parcel(&parcel)?;
        if parcel.destination as usize != self.own {
            return self.send(&parcel, file.as_ref().map(AsFd::as_fd));
        }
        let memory = match (file, usize::try_from(parcel.byte_len)) {
            (Some(file), Ok(byte_len)) => SharedMemory::open(file, byte_len),
            _ => Err(error!(System, "shared memory came without its file; perhaps there is no descriptor left for it")),
        };
        let arrival = memory.map(|memory| Arrival { memory: Arc::new(memory), id: parcel.id, takers: parcel.takers });
        self.deliver(parcel.ticket, arrival);
        Ok(())
    }

    /// The monitor thread: notices processes that end and takes parcels in, until it is told to
    /// stop. The hub's goes on then until all connections have ended, unless the communicator has
    /// failed: then no rank waits for another one.
    fn watch(&self, stop: &OwnedFd, mut pidfds: Vec<(usize, OwnedFd)>, mut streams: Vec<Option<Arc<UnixStream>>>) {
        let mut is_stopping = false;
        loop {
            if is_stopping && (self.own != 0 || self.family.is_aborted() || streams.iter().all(Option::is_none)) {
                return streams.iter().flatten().for_each(|link| hang_up(link));
            }
            let stop_events = if is_stopping { PollFlags::empty() } else { PollFlags::IN };
            let mut fds = vec![PollFd::new(stop, stop_events)];
            fds.extend(pidfds.iter().map(|(_, fd)| PollFd::new(fd, PollFlags::IN)));
            let open: Vec<usize> = (0..streams.len()).filter(|&i| streams[i].is_some()).collect();
            fds.extend(open.iter().filter_map(|&i| streams[i].as_ref()).map(|s| PollFd::new(s, PollFlags::IN)));
            match poll(&mut fds, None) {
                Ok(_) | Err(rustix::io::Errno::INTR) => {}
                Err(error) => {
                    // From now on no death would be told.
                    let reason = format!("the monitor of the other processes failed: poll: {error}");
                    crate::util::log::event!(ERROR, "{reason}");
                    self.family.abort(ErrorKind::System, Rank(self.processes[self.own].first_rank), &reason);
                    return;
                }
            }
            let ready: Vec<bool> = fds.iter().map(|fd| !fd.revents().is_empty()).collect();
            drop(fds);
            is_stopping |= ready[0];
            let (dead, talking) = ready[1..].split_at(pidfds.len());
            for (&index, _) in open.iter().zip(talking).filter(|(_, ready)| **ready) {
                let Some(stream) = &streams[index] else { continue };
                match wire::receive(stream, LONGEST_PARCEL) {
                    Ok(Some((parcel, file))) => {
                        if let Err(error) = self.accept(parcel, file) {
                            crate::util::log::event!(WARN, "{error}");
                        }
                        continue;
                    }
                    Ok(None) => {}
                    Err(error) => crate::util::log::event!(WARN, "a message from another process is broken: {error}"),
                }
                // A process that closes its end has dropped all its handles, which said so, or has
                // ended.
                hang_up(stream);
                streams[index] = None;
                lock(&self.links)[index] = None;
                self.mark_dead(index);
            }
            let mut dead = dead.iter();
            pidfds.retain(|(index, _)| {
                let ended = dead.next().is_some_and(|ready| *ready);
                if ended {
                    self.mark_dead(*index);
                    // A child of that process may have a copy of its end.
                    streams[*index].iter().for_each(|link| hang_up(link));
                }
                !ended
            });
        }
    }

    /// Tells all ranks that a process has ended.
    fn mark_dead(&self, process: usize) {
        self.processes[process].ranks().for_each(|rank| self.family.mark_dead(Rank(rank)));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// The office of one of three processes of one rank, all of them this one, and the other end of
    /// its connection to the hub.
    fn office(own: usize) -> (Office, UnixStream) {
        // No process has the number 0, so that only connections tell of an end.
        let processes = (0..3).map(|first_rank| Process { pid: 0, first_rank, rank_count: 1 }).collect();
        let (near, far) = UnixStream::pair().expect("sockets");
        let mut links = [None, None, None];
        links[if own == 0 { 1 } else { 0 }] = Some(near);
        let root = Segment::in_process(3).expect("memory");
        (Office::between(processes, own, links.into(), true, &root).expect("a monitor"), far)
    }

    const TICKET: Ticket = Ticket { segment: 0, sequence: 1, color: 0 };

    fn soon() -> Instant {
        Instant::now() + Duration::from_secs(10)
    }

    /// Rank 2's memory comes by way of the hub, which ends before it has passed it on.
    #[test]
    fn a_rank_that_waits_for_memory_sees_the_hub_end() {
        let (office, hub) = office(1);
        std::thread::scope(|scope| {
            let taking = scope.spawn(|| office.take(TICKET, Rank(2), soon(), || Ok(())).map(|_| ()));
            drop(hub);
            let error = taking.join().expect("no panic").expect_err("the hub ended");
            assert_eq!(error.kind(), ErrorKind::PeerLost);
            assert_eq!(error.to_string(), "the process of rank 0 died or left; it passes memory on");
        });
    }

    #[test]
    fn memory_of_any_numbers_is_refused() {
        let good = Parcel { destination: 1, ticket: TICKET, id: 2 << ID_BITS | 1, takers: 1, byte_len: 1 };
        let (office, _hub) = office(1);
        office.shared.check_parcel(&good).expect("it fits");
        let bad = [
            Parcel { destination: 0, ..good },
            Parcel { destination: 3, ..good },
            Parcel { destination: u32::MAX, ..good },
            Parcel { takers: 0, ..good },
            Parcel { takers: 2, ..good },
            Parcel { id: 0, ..good },
            Parcel { id: 2 << ID_BITS, ..good },
            Parcel { id: 3 << ID_BITS | 1, ..good },
            Parcel { id: u64::MAX, ..good },
        ];
        for parcel in bad {
            let error = office.shared.check_parcel(&parcel).expect_err("it does not fit");
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
        }
        // A length that the file does not have is seen when it is opened.
        for byte_len in [0, 2, 1 << 63, u64::MAX] {
            let (_, file) = SharedMemory::of_processes(Extent::whole(1), &|| Ok(())).expect("memory");
            office.shared.accept(Parcel { byte_len, ..good }, Some(file)).expect("it is delivered as an error");
            let error = office.take(TICKET, Rank(2), soon(), || Ok(())).map(|_| ()).expect_err("a wrong length");
            assert_eq!(error.kind(), ErrorKind::System);
            lock(&office.shared.arrivals).clear();
        }
    }

    /// A hub whose handles are dropped goes on until its last connection has ended, and tells
    /// deaths until then.
    #[test]
    fn a_hub_without_handles_still_tells_of_a_death() {
        let (office, peer) = office(0);
        let shared = Arc::clone(&office.shared);
        drop(office);
        drop(peer);
        let end = soon();
        // The monitor thread has ended when it has let go of what it shares.
        while Arc::strong_count(&shared) > 1 {
            assert!(Instant::now() < end, "the monitor thread goes on");
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(shared.family.is_dead(Rank(1)) && !shared.family.is_dead(Rank(2)));
    }
}
