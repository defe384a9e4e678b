//! Where rank 0 listens.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::error::{Result, bail, error};
use crate::util::wait::{Stopped, Wait};

/// How long one attempt to find or to reach a host may take.
const ATTEMPT: Duration = Duration::from_secs(2);

/// Where the processes of a job find rank 0, if not on this machine by the job's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    /// Rank 0 listens at this host and port.
    Tcp { host: String, port: u16 },
    /// Rank 0 listens at every address of its machine, on a port that the system chooses, and
    /// writes into this file where. All ranks have to be the same user.
    File(PathBuf),
    /// The ranks are those of `MPI_COMM_WORLD`, by the launcher of this name.
    Mpi(&'static str),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp { host, port } => write!(f, "{host}:{port}"),
            Endpoint::File(path) => write!(f, "the rendezvous of file {path:?}"),
            Endpoint::Mpi(_) => f.write_str("MPI's world"),
        }
    }
}

/// The rendezvous's port where none is set: one beside MASTER_PORT, where torchrun's store listens.
pub(super) fn default_port(master_port: u16) -> u16 {
    master_port.checked_add(1).unwrap_or(u16::MAX - 1)
}

/// A host without the brackets that an IPv6 address may have.
pub(super) fn without_brackets(host: &str) -> &str {
    host.trim_start_matches('[').trim_end_matches(']')
}

/// Whether a host's name or address means this machine's loopback.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = without_brackets(host).parse::<IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The addresses of a host. A thread of its own looks up a name, because the system's look-up has
/// no deadline.
pub(super) fn resolve(host: &str, port: u16, deadline: Instant) -> Result<Vec<SocketAddr>> {
    let name = without_brackets(host).to_owned();
    if let Ok(ip) = name.parse() {
        return Ok(vec![SocketAddr::new(ip, port)]);
    }
    let (sender, addresses) = channel();
    let asked = std::thread::Builder::new().name("dcl-resolve".to_owned()).spawn(move || {
        // The caller may have stopped waiting.
        let _ = sender.send((name.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    });
    asked.map_err(|e| error!(System, "no thread to look up {host}: {e}"))?;
    let mut waiting = Wait::until(attempt_until(deadline));
    let late = || error!(System, "the address of {host} did not come in time");
    loop {
        let sleep = waiting.step().map_err(|stopped| match stopped {
            Stopped::Interrupted(interrupted) => interrupted,
            Stopped::Late => late(),
        })?;
        match addresses.recv_timeout(sleep) {
            Ok(Ok(addresses)) if addresses.is_empty() => bail!(System, "{host} has no address"),
            Ok(Ok(addresses)) => return Ok(addresses),
            Ok(Err(e)) => {
                bail!(System, "{host} has no address here; its name has to be in /etc/hosts or the DNS: {e}")
            }
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(late()),
        }
    }
}

/// When an attempt that begins now has to be over.
pub(super) fn attempt_until(deadline: Instant) -> Instant {
    deadline.min(Instant::now() + ATTEMPT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_beside_the_launchers() {
        assert_eq!([29500, 0, 65534, 65535].map(default_port), [29501, 1, 65535, 65534]);
    }
}
