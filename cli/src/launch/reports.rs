//! What ranks report while they initialize their environment: that they wait for the others, and
//! that they have met them.

use std::collections::BTreeSet;
use std::io::{Error, ErrorKind, Read, Result};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

use rustix::net::sockopt;
use rustix::process::{Pid, getpgid};

/// The variable that tells ranks the socket's name.
pub const VARIABLE: &str = "DCL_LAUNCH_SOCKET";

/// The longest report, in bytes.
const LONGEST_REPORT: usize = 4096;

/// The socket where ranks report, and what they have said.
pub struct Reports {
    /// `None` once a rank could not be heard: what is not known of one rank says nothing about
    /// others.
    listener: Option<UnixListener>,
    connections: Vec<Connection>,
    /// The name of the ranks' job.
    job: String,
    /// By rank, how many environments it has initialized.
    met: Vec<u64>,
}

/// A rank that initializes an environment.
struct Connection {
    stream: UnixStream,
    pid: Pid,
    text: Vec<u8>,
    rank: Option<usize>,
}

impl Reports {
    /// Listens at this name for so many ranks of this job.
    pub fn listen(name: &str, job: String, rank_count: u32) -> Result<Self> {
        let listener = UnixListener::bind_addr(&SocketAddr::from_abstract_name(name)?)?;
        listener.set_nonblocking(true)?;
        Ok(Reports { listener: Some(listener), connections: Vec::new(), job, met: vec![0; rank_count as usize] })
    }

    pub fn listener(&self) -> Option<BorrowedFd<'_>> {
        self.listener.as_ref().map(AsFd::as_fd)
    }

    /// Takes in everything that ranks have said until now. `watch` gets each new connection, and
    /// `group` is the process group of a rank.
    pub fn take_in(
        &mut self,
        mut watch: impl FnMut(BorrowedFd<'_>) -> Result<()>,
        group: impl Fn(usize) -> Option<Pid>,
    ) {
        while let Some(listener) = &self.listener {
            let stream = match listener.accept() {
                Ok((stream, _)) => stream,
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) if matches!(e.kind(), ErrorKind::Interrupted | ErrorKind::ConnectionAborted) => continue,
                Err(_) => return self.give_up(),
            };
            let Ok(peer) = sockopt::socket_peercred(&stream) else { return self.give_up() };
            if peer.uid != rustix::process::geteuid() {
                continue;
            }
            if stream.set_nonblocking(true).and_then(|()| watch(stream.as_fd())).is_err() {
                return self.give_up();
            }
            self.connections.push(Connection { stream, pid: peer.pid, text: Vec::new(), rank: None });
        }
        let Reports { met, job, .. } = self;
        self.connections.retain_mut(|connection| connection.take_in(job, met));
        // A rank that is none of the processes which this launcher started for it (a daemon, a
        // container) may go on when those have ended. Then their end says nothing.
        let is_elsewhere = |connection: &Connection| {
            connection.rank.is_some_and(|rank| getpgid(Some(connection.pid)).ok() != group(rank))
        };
        if self.connections.iter().any(is_elsewhere) {
            self.give_up();
        }
    }

    fn give_up(&mut self) {
        self.listener = None;
        self.connections.clear();
    }

    /// Whether a rank waits for the others in its initialization.
    pub fn has_waiting(&self) -> bool {
        self.connections.iter().any(|connection| connection.rank.is_some())
    }

    /// A rank that has ended, and the ranks that wait for it and never meet it: they have
    /// initialized as many environments as it has, and initialize a further one.
    pub fn missed(&self, has_ended: impl Fn(usize) -> bool) -> Option<(usize, BTreeSet<u32>)> {
        let waiting: Vec<usize> = self.connections.iter().filter_map(|connection| connection.rank).collect();
        (0..self.met.len()).filter(|&rank| has_ended(rank)).find_map(|ended| {
            let misses = |rank: &&usize| !has_ended(**rank) && self.met[ended] <= self.met[**rank];
            let missing: BTreeSet<u32> = waiting.iter().filter(misses).map(|rank| *rank as u32).collect();
            (!missing.is_empty()).then_some((ended, missing))
        })
    }
}

impl Connection {
    /// Takes in what has come. False where the rank waits no more, or is none of ours.
    fn take_in(&mut self, job: &str, met: &mut [u64]) -> bool {
        let mut bytes = [0; LONGEST_REPORT];
        loop {
            match self.stream.read(&mut bytes) {
                Ok(0) => return false,
                Ok(count) => self.text.extend_from_slice(&bytes[..count]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return self.text.len() <= LONGEST_REPORT,
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(_) => return false,
            }
            while let Some(end) = self.text.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.text.drain(..=end).collect();
                if self.understand(&line, job, met).is_err() {
                    return false;
                }
            }
        }
    }

    fn understand(&mut self, line: &[u8], job: &str, met: &mut [u64]) -> Result<()> {
        let words: Vec<&str> = std::str::from_utf8(line).map_err(Error::other)?.trim_end().splitn(4, ' ').collect();
        match (words.as_slice(), self.rank) {
            (["initialize", rank, world_size, their_job], None) => {
                let rank = rank.parse().map_err(Error::other)?;
                // A rank of another world, which a rank of ours may have started.
                if their_job != &job || world_size.parse() != Ok(met.len()) || rank >= met.len() {
                    return Err(ErrorKind::InvalidInput.into());
                }
                self.rank = Some(rank);
                Ok(())
            }
            (["met"], Some(rank)) => {
                met[rank] += 1;
                // It waits no more.
                Err(ErrorKind::UnexpectedEof.into())
            }
            // It gave up, or is none of ours.
            _ => Err(ErrorKind::InvalidData.into()),
        }
    }
}
