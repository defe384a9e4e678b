//! The processes of a job, and the connections of this process to others.

use std::net::Shutdown;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use serde::{Deserialize, Serialize};

use super::system::caused_by;
use super::wire;
use crate::error::{Result, error};
use crate::rank::Rank;
use crate::util::lock;
use crate::util::text::list_ranks;

/// The index of the hub, the process of rank 0.
pub(crate) const HUB: usize = 0;

/// A process of the job and its ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Process {
    pub(crate) pid: i32,
    pub(crate) first_rank: u32,
    pub(crate) rank_count: u32,
}

impl Process {
    pub(crate) fn ranks(&self) -> Range<u32> {
        self.first_rank..self.first_rank + self.rank_count
    }

    pub(crate) fn has(&self, rank: Rank) -> bool {
        self.ranks().contains(&rank.0)
    }
}

/// All processes of a job. The connections form a star: the hub has one to each other process, and
/// each other process has one to the hub.
pub(crate) struct PeerProcesses {
    processes: Vec<Process>,
    own: usize,
    /// One entry for each process. `None` where there is no connection, or where it has ended.
    connections: Mutex<Vec<Option<Arc<UnixStream>>>>,
}

impl PeerProcesses {
    /// This process is the only one, and has all ranks.
    pub(crate) fn none(world_size: u32) -> Self {
        Self::new(vec![Process { pid: 0, first_rank: 0, rank_count: world_size }], 0, vec![None])
    }

    /// `processes` are in the order of their ranks; `own` is the index of this process.
    pub(crate) fn new(processes: Vec<Process>, own: usize, connections: Vec<Option<UnixStream>>) -> Self {
        let connections = connections.into_iter().map(|connection| connection.map(Arc::new)).collect();
        PeerProcesses { processes, own, connections: Mutex::new(connections) }
    }

    pub(crate) fn all(&self) -> &[Process] {
        &self.processes
    }

    /// The index of this process.
    pub(crate) fn own(&self) -> usize {
        self.own
    }

    pub(crate) fn is_hub(&self) -> bool {
        self.own == HUB
    }

    /// The open connections, each with the index of its process.
    pub(crate) fn connections(&self) -> Vec<(usize, Arc<UnixStream>)> {
        let connections = lock(&self.connections);
        connections
            .iter()
            .enumerate()
            .filter_map(|(index, stream)| Some((index, Arc::clone(stream.as_ref()?))))
            .collect()
    }

    pub(crate) fn is_connected(&self, process: usize) -> bool {
        lock(&self.connections)[process].is_some()
    }

    /// Ends the connection to a process.
    pub(crate) fn disconnect(&self, process: usize) {
        if let Some(stream) = lock(&self.connections)[process].take() {
            hang_up(&stream);
        }
    }

    /// Sends a message to a process. Away from the hub it goes to the hub, which forwards it.
    pub(crate) fn send(&self, process: usize, message: &impl Serialize, file: Option<BorrowedFd<'_>>) -> Result<()> {
        let next = if self.is_hub() { process } else { HUB };
        let lost = || {
            let ranks = list_ranks(self.processes.get(next).into_iter().flat_map(Process::ranks));
            error!(PeerLost, "the process of {ranks} died or left; memory goes to it or through it")
        };
        let mut connections = lock(&self.connections);
        let Some(Some(stream)) = connections.get(next) else { return Err(lost()) };
        let sent = wire::send(stream, message, file);
        if sent.is_err() {
            // Part of the message may have been sent. The peer could not parse anything after it.
            hang_up(stream);
            connections[next] = None;
        }
        sent.map_err(|e| caused_by(lost(), "sendmsg", e))
    }
}

/// Ends a connection. Closing the descriptor would not where a forked child has a copy of it. What
/// has arrived can still be read.
pub(crate) fn hang_up(stream: &UnixStream) {
    let _ = stream.shutdown(Shutdown::Both);
}
