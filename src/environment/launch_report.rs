//! What a rank reports to `distcollective launch`: that it waits for the other ranks, and that all
//! ranks have met.
//!
//! A rank that ends with exit code 0 has not failed. If other ranks wait for it in their
//! initialization, only the launcher knows both. The launcher listens on an abstract Unix socket,
//! whose name is in [`LAUNCH_SOCKET`]. A rank connects to it while it initializes its environment.
//! It sends its rank, and before it returns whether all ranks have met. It never waits for a reply.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, socket_with};

use super::discovery::{Discovery, LAUNCH_SOCKET, Launcher};
use crate::handshake::Peer;
use crate::util::log;
use crate::util::wait::RETRY;

/// How long to try to connect while the launcher's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What a rank sends at the end.
const MET: &str = "met\n";
const NOT_MET: &str = "not met\n";

/// The connection to the launcher, if `distcollective launch` started this rank.
pub(super) struct LaunchReport(Option<OwnedFd>);

impl LaunchReport {
    /// Reports that this rank waits for the others, until this is dropped.
    pub(super) fn begin(discovery: &Discovery, deadline: Instant) -> Self {
        let may_be_ours = matches!(discovery.launcher, Launcher::DistCollective | Launcher::Torch);
        let name = std::env::var(LAUNCH_SOCKET).ok().filter(|_| may_be_ours);
        let connect = |name: String| {
            let connected = Self::connect(&name, deadline.min(Instant::now() + CONNECT_TIMEOUT));
            let warn = |e: &io::Error| {
                log::event!(DEBUG, "the launcher does not listen at {name:?}, which {LAUNCH_SOCKET} names: {e}")
            };
            connected.inspect_err(warn).ok()
        };
        let report = LaunchReport(name.and_then(connect));
        report.send(&format!("initialize {} {} {}\n", discovery.rank, discovery.world_size, discovery.job));
        report
    }

    /// Reports that all ranks have met.
    pub(super) fn met(self) {
        self.send(MET);
    }

    fn connect(name: &str, until: Instant) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(RETRY),
                Err(e) => return Err(e.into()),
            }
        }
        if !Peer::of(&socket)?.is_same_user() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
        }
        Ok(socket)
    }

    fn send(&self, text: &str) {
        // The socket has room for so few bytes. If the launcher has ended, the report has no
        // reader.
        if let Some(connection) = &self.0 {
            let _ = rustix::net::send(connection, text.as_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for LaunchReport {
    fn drop(&mut self) {
        // After "met" the launcher ignores this. Closing the connection would not be enough: a
        // forked process may hold it open.
        self.send(NOT_MET);
    }
}
