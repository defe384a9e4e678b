//! Shared memory on its way to the processes whose ranks will use it.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{SharedMemory, SharedMemorySize};
use crate::comm::host::peer_processes::{HUB, PeerProcesses};
use crate::error::{Result, bail, error};
use crate::rank::Rank;
use crate::sync::{AtomicU64, Ordering};
use crate::util::lock;
use crate::util::wait::{LOOK, Wait};

/// Names the call that allocates some memory: the communicator's id, the number of the collective,
/// and for a split the color.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub(crate) struct AllocationKey {
    pub(crate) segment: u64,
    pub(crate) sequence: u64,
    pub(crate) color: u32,
}

/// Hands out the memory of groups and of symmetric blocks. One rank allocates it and shares it;
/// each of its users receives it. Between processes a message carries its file descriptor, by way
/// of the hub.
pub(crate) struct MemoryBroker {
    peers: Arc<PeerProcesses>,
    /// `None` after a failure: no rank receives memory any more.
    arrived: Mutex<Option<HashMap<AllocationKey, Result<Arrived>>>>,
    arrival: Condvar,
    next_id: AtomicU64,
}

/// Memory that users in this process have not received yet.
struct Arrived {
    memory: Arc<SharedMemory>,
    id: u64,
    users_left: u32,
}

/// Shared memory for the users in one process. Its file descriptor goes along.
#[derive(Clone, Copy, Serialize, Deserialize)]
pub(crate) struct ShareMessage {
    destination: u32,
    key: AllocationKey,
    /// Unique in the abort domain. The memory of its first communicator has the id 0.
    id: u64,
    user_count: u32,
    byte_len: u64,
}

/// The longest [`ShareMessage`], in bytes: seven numbers.
pub(crate) const LONGEST_SHARE_MESSAGE: usize = 64;

/// An id's lower bits count the memory that one process shared; its upper bits are that process.
const ID_BITS: u32 = 40;

impl MemoryBroker {
    pub(crate) fn new(peers: Arc<PeerProcesses>) -> Self {
        let arrived = Mutex::new(Some(HashMap::new()));
        MemoryBroker { peers, arrived, arrival: Condvar::new(), next_id: AtomicU64::new(1) }
    }

    /// Frees the memory that no rank has received, and what comes later, after a failure.
    pub(crate) fn close(&self) {
        let freed = lock(&self.arrived).take();
        // The memory is unmapped without the lock.
        drop(freed);
    }

    /// Allocates memory and sends it to the processes of `users`. The first of `users` calls this.
    /// `keep_going` is called before each step of the allocation; its error ends it.
    pub(crate) fn share(
        &self,
        key: AllocationKey,
        users: &[Rank],
        size: SharedMemorySize,
        keep_going: &dyn Fn() -> Result<()>,
    ) -> Result<()> {
        let own = self.peers.own();
        let user_counts: Vec<u32> = (self.peers.all().iter())
            .map(|process| users.iter().filter(|rank| process.has(**rank)).count() as u32)
            .collect();
        let destinations = || (0..user_counts.len()).filter(|&p| user_counts[p] > 0 && p != own);
        let spans_processes = destinations().next().is_some();
        let (memory, file) = if spans_processes {
            let (memory, file) = SharedMemory::for_processes(size, keep_going)?;
            (memory, Some(file))
        } else {
            (SharedMemory::for_threads(size.byte_len)?, None)
        };
        let id = (own as u64) << ID_BITS | self.next_id.fetch_add(1, Ordering::Relaxed);
        for destination in destinations() {
            let message = ShareMessage {
                destination: destination as u32,
                key,
                id,
                user_count: user_counts[destination],
                byte_len: size.byte_len as u64,
            };
            let Some(file) = &file else { bail!(System, "shared memory has no file") };
            self.peers.send(destination, &message, Some(file.as_fd()))?;
        }
        let users_left = user_counts[own];
        if users_left > 0 {
            self.deliver(key, Ok(Arrived { memory: Arc::new(memory), id, users_left }));
        }
        Ok(())
    }

    /// Waits for memory of which this rank is a user, and returns it with its id. Each user
    /// receives it once.
    pub(crate) fn receive(
        &self,
        key: AllocationKey,
        sender: Rank,
        deadline: Instant,
        check_alive: impl Fn() -> Result<()>,
    ) -> Result<(Arc<SharedMemory>, u64)> {
        let comes_through_hub = !self.peers.is_hub() && !self.peers.all()[self.peers.own()].has(sender);
        let mut wait = Wait::until(deadline);
        loop {
            if let Some(received) = self.take(key)? {
                return Ok(received);
            }
            check_alive()?;
            if comes_through_hub && !self.peers.is_connected(HUB) {
                bail!(PeerLost, "the process of rank 0 died or left; it passes memory on");
            }
            let sleep = wait.step().map_err(|stopped| {
                let late = format_args!("rank {sender} did not send its memory before the deadline");
                stopped.error(format_args!("while it waited for rank {sender}"), late)
            })?;
            let arrived = lock(&self.arrived);
            if !arrived.as_ref().is_some_and(|arrived| arrived.contains_key(&key)) {
                drop(self.arrival.wait_timeout(arrived, sleep.min(LOOK)).unwrap_or_else(PoisonError::into_inner));
            }
        }
    }

    /// The memory of this key, if it has arrived, for one of its users.
    fn take(&self, key: AllocationKey) -> Result<Option<(Arc<SharedMemory>, u64)>> {
        let mut arrived = lock(&self.arrived);
        let Some(arrived) = &mut *arrived else { return Ok(None) };
        let Some(found) = arrived.get_mut(&key) else { return Ok(None) };
        let found = found.as_mut().map_err(|error| error.clone())?;
        let received = (Arc::clone(&found.memory), found.id);
        found.users_left -= 1;
        if found.users_left == 0 {
            arrived.remove(&key);
        }
        Ok(Some(received))
    }

    /// Takes a message of another process: memory for users in this process, or on the hub for
    /// those in another one. There is no file where a process on the way had no descriptor left.
    pub(crate) fn accept(&self, message: ShareMessage, file: Option<OwnedFd>) -> Result<()> {
        self.check(&message)?;
        if message.destination as usize != self.peers.own() {
            return self.peers.send(message.destination as usize, &message, file.as_ref().map(AsFd::as_fd));
        }
        let memory = match (file, usize::try_from(message.byte_len)) {
            (Some(file), Ok(byte_len)) => SharedMemory::open(file, byte_len),
            _ => Err(error!(System, "shared memory came without its file; perhaps there is no descriptor left for it")),
        };
        let arrived =
            memory.map(|memory| Arrived { memory: Arc::new(memory), id: message.id, users_left: message.user_count });
        self.deliver(message.key, arrived);
        Ok(())
    }

    /// Checks what another process wrote into a message. `SharedMemory::open` checks the memory.
    fn check(&self, message: &ShareMessage) -> Result<()> {
        let processes = self.peers.all();
        let Some(destination) = processes.get(message.destination as usize) else {
            bail!(System, "memory came for process {}, of {}", message.destination, processes.len());
        };
        if !self.peers.is_hub() && message.destination as usize != self.peers.own() {
            bail!(System, "memory came that is for another process");
        }
        if message.user_count == 0 || message.user_count > destination.rank_count {
            bail!(
                System,
                "memory came for {} of this process's ranks, and it has {}",
                message.user_count,
                destination.rank_count
            );
        }
        let (sender, number) = (message.id >> ID_BITS, message.id & ((1 << ID_BITS) - 1));
        if sender >= processes.len() as u64 || number == 0 {
            bail!(System, "memory came with number {:#x}, which no process gives", message.id);
        }
        Ok(())
    }

    /// How many pieces of memory wait for their users.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        lock(&self.arrived).as_ref().map_or(0, HashMap::len)
    }

    /// Keeps memory for its users in this process, or the error that they get instead.
    fn deliver(&self, key: AllocationKey, arrived: Result<Arrived>) {
        if let Some(all) = &mut *lock(&self.arrived) {
            all.insert(key, arrived);
        }
        self.arrival.notify_all();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    use super::*;
    use crate::comm::host::peer_processes::Process;
    use crate::error::ErrorKind;

    const KEY: AllocationKey = AllocationKey { segment: 0, sequence: 1, color: 0 };

    /// What was there at a failure is freed, and what comes afterwards too.
    #[test]
    fn a_closed_broker_keeps_no_memory() {
        let processes = vec![Process { pid: 0, first_rank: 0, rank_count: 2 }];
        let broker = MemoryBroker::new(Arc::new(PeerProcesses::new(processes, 0, vec![None])));
        let share = |sequence| {
            let key = AllocationKey { sequence, ..KEY };
            broker.share(key, &[Rank(0), Rank(1)], SharedMemorySize::fully_resident(1), &|| Ok(())).expect("memory");
            key
        };
        let first = share(1);
        let soon = Instant::now() + Duration::from_secs(10);
        let (received, _) = broker.receive(first, Rank(0), soon, || Ok(())).expect("it is there");
        assert_eq!((broker.waiting(), Arc::strong_count(&received)), (1, 2));
        broker.close();
        assert_eq!((broker.waiting(), Arc::strong_count(&received)), (0, 1));
        let second = share(2);
        let failed = || Err(error!(Aborted, "on purpose"));
        let error = broker.receive(second, Rank(0), soon, failed).map(drop).expect_err("nothing is kept");
        assert_eq!((error.kind(), broker.waiting()), (ErrorKind::Aborted, 0));
    }

    #[test]
    fn a_message_of_any_numbers_is_refused() {
        let good = ShareMessage { destination: 1, key: KEY, id: 2 << ID_BITS | 1, user_count: 1, byte_len: 1 };
        let (to_hub, _hub) = UnixStream::pair().expect("sockets");
        let processes = (0..3).map(|first_rank| Process { pid: 0, first_rank, rank_count: 1 }).collect();
        let broker = MemoryBroker::new(Arc::new(PeerProcesses::new(processes, 1, vec![Some(to_hub), None, None])));
        broker.check(&good).expect("it fits");
        let bad = [
            ShareMessage { destination: 0, ..good },
            ShareMessage { destination: 3, ..good },
            ShareMessage { destination: u32::MAX, ..good },
            ShareMessage { user_count: 0, ..good },
            ShareMessage { user_count: 2, ..good },
            ShareMessage { id: 0, ..good },
            ShareMessage { id: 2 << ID_BITS, ..good },
            ShareMessage { id: 3 << ID_BITS | 1, ..good },
            ShareMessage { id: u64::MAX, ..good },
        ];
        for message in bad {
            let error = broker.check(&message).expect_err("it does not fit");
            assert_eq!(error.kind(), ErrorKind::System, "{error}");
        }
        // Opening the file finds a length that is not the file's.
        for byte_len in [0, 2, 1 << 63, u64::MAX] {
            let (_, file) =
                SharedMemory::for_processes(SharedMemorySize::fully_resident(1), &|| Ok(())).expect("memory");
            broker.accept(ShareMessage { byte_len, ..good }, Some(file)).expect("it is delivered as an error");
            let soon = Instant::now() + Duration::from_secs(10);
            let error = broker.receive(KEY, Rank(2), soon, || Ok(())).map(|_| ()).expect_err("a wrong length");
            assert_eq!(error.kind(), ErrorKind::System);
            lock(&broker.arrived).as_mut().expect("it is open").clear();
        }
    }
}
