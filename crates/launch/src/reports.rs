//! The reports of ranks that initialize their environment: that they wait for the other ranks, and
//! that all have connected.

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use distcollective::Rank;
use rustix::process::Pid;

use crate::events::Events;

/// The longest report, in bytes.
const LONGEST_REPORT: usize = 4096;

/// The socket for reports, and what ranks have reported.
pub(super) struct Reports {
    /// `None` after a rank's reports could not be read: then nothing is certain about the other
    /// ranks.
    listener: Option<UnixListener>,
    connections: Vec<Connection>,
    /// The name of the ranks' job.
    job: String,
    /// For each rank, the number of environments that it has initialized.
    met: Vec<u64>,
}

/// A connection of a rank that initializes an environment.
struct Connection {
    stream: BufReader<UnixStream>,
    pid: Pid,
    /// A line whose end has not come.
    text: Vec<u8>,
    rank: Option<usize>,
}

impl Reports {
    /// Listens at this name for `rank_count` ranks of this job, with events of connections.
    pub(super) fn listen(name: &str, job: String, rank_count: u32, events: &Events) -> Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        events.add_other(&listener)?;
        Ok(Reports { listener: Some(listener), connections: Vec::new(), job, met: vec![0; rank_count as usize] })
    }

    /// Reads all reports that have arrived. Further ones are events. `is_rank` says whether a
    /// process is that of a rank, or of its group.
    pub(super) fn read(&mut self, events: &Events, is_rank: impl Fn(Pid, usize) -> bool) {
        while let Some(listener) = &self.listener {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(_) => return self.close(),
            };
            let Ok((pid, user)) = peer_of(&stream) else { return self.close() };
            if user != rustix::process::geteuid().as_raw() {
                continue;
            }
            // A rank in another PID namespace is none of the processes that were started.
            let Some(pid) = pid else { return self.close() };
            if stream.set_nonblocking(true).and_then(|()| events.add_other(&stream)).is_err() {
                return self.close();
            }
            self.connections.push(Connection { stream: BufReader::new(stream), pid, text: Vec::new(), rank: None });
        }
        let Reports { met, job, .. } = self;
        self.connections.retain_mut(|connection| connection.read(job, met));
        // A rank may be a process outside the group that was started for it (a daemon, a
        // container). Then the end of that group does not mean the end of the rank.
        let is_elsewhere = |connection: &Connection| connection.rank.is_some_and(|rank| !is_rank(connection.pid, rank));
        if self.connections.iter().any(is_elsewhere) {
            self.close();
        }
    }

    fn close(&mut self) {
        self.listener = None;
        self.connections.clear();
    }

    /// Whether a rank waits for others to initialize its environment.
    pub(super) fn has_waiting(&self) -> bool {
        self.connections.iter().any(|connection| connection.rank.is_some())
    }

    /// A rank that has ended, and the ranks that wait for it in vain: they initialize an
    /// environment that it never joined, since they have already initialized at least as many as it
    /// has.
    pub(super) fn missed(&self, has_ended: impl Fn(usize) -> bool) -> Option<(Rank, BTreeSet<Rank>)> {
        let waiting: Vec<usize> = self.connections.iter().filter_map(|connection| connection.rank).collect();
        (0..self.met.len()).filter(|&rank| has_ended(rank)).find_map(|ended| {
            let misses = |rank: &&usize| !has_ended(**rank) && self.met[ended] <= self.met[**rank];
            let missing: BTreeSet<Rank> = waiting.iter().filter(misses).map(|rank| Rank(*rank as u32)).collect();
            (!missing.is_empty()).then_some((Rank(ended as u32), missing))
        })
    }
}

/// The process at the other end of a connection, and its user. The process is `None` if it is in a
/// PID namespace that this process does not see.
fn peer_of(stream: &UnixStream) -> Result<(Option<Pid>, u32)> {
    let mut credentials = libc::ucred { pid: 0, uid: u32::MAX, gid: u32::MAX };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    let target: *mut libc::ucred = &mut credentials;
    // SAFETY: the option writes at most `len` bytes to `target`, which is a `ucred`, all of whose
    // bit patterns are values. (rustix's form of this call has a process id that cannot be 0.)
    let result =
        unsafe { libc::getsockopt(stream.as_raw_fd(), libc::SOL_SOCKET, libc::SO_PEERCRED, target.cast(), &mut len) };
    match result {
        0 => Ok((Pid::from_raw(credentials.pid), credentials.uid)),
        _ => Err(Error::last_os_error()),
    }
}

impl Connection {
    /// Reads what has arrived. Returns false if the rank no longer waits, or does not belong to
    /// this job.
    fn read(&mut self, job: &str, met: &mut [u64]) -> bool {
        loop {
            match self.stream.read_until(b'\n', &mut self.text) {
                Ok(_) if self.text.ends_with(b"\n") => {
                    let line = std::mem::take(&mut self.text);
                    if !self.parse(&line, job, met) {
                        return false;
                    }
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.text.len() <= LONGEST_REPORT,
                _ => return false,
            }
        }
    }

    /// Returns false as [`read`](Self::read) does.
    fn parse(&mut self, line: &[u8], job: &str, met: &mut [u64]) -> bool {
        let words: Vec<&str> = std::str::from_utf8(line).unwrap_or_default().trim_end().splitn(4, ' ').collect();
        match (words.as_slice(), self.rank) {
            (["initialize", rank, world_size, their_job], None) => {
                self.rank = rank.parse().ok().filter(|rank| *rank < met.len());
                // A rank of this job may have started a rank of another job.
                self.rank.is_some() && their_job == &job && world_size.parse() == Ok(met.len())
            }
            (["met"], Some(rank)) => {
                met[rank] += 1;
                false
            }
            // The rank failed to initialize, or is not a rank of this job.
            _ => false,
        }
    }
}
