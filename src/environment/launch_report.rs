//! What a rank tells `distcollective launch`: that it waits for the other ranks, and that it has
//! met them.
//!
//! A rank that ends with exit code 0 has not failed. Where others wait for it in their
//! initialization, only the launcher knows both. It listens on an abstract Unix socket, whose name
//! is in [`VARIABLE`]. While a rank initializes its environment it has a connection there; it says
//! who it is, and before it returns whether it has met the others. It never waits for an answer.

use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SendFlags, SocketAddrUnix, SocketFlags, SocketType, connect, send, socket_with, sockopt,
};

use super::discovery::{Discovery, Launcher};

/// The variable that has the socket's name.
const VARIABLE: &str = "DCL_LAUNCH_SOCKET";

/// How long to try where more ranks come than the launcher's queue holds.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(5);

/// What a rank says at the end.
const MET: &str = "met\n";
const NOT_MET: &str = "not met\n";

/// The connection to the launcher, if this rank is one of its.
pub(super) struct LaunchReport(Option<OwnedFd>);

impl LaunchReport {
    /// Says that this rank waits for the others from now on, until this is dropped.
    pub(super) fn begin(discovery: &Discovery, deadline: Instant) -> Self {
        let Ok(name) = std::env::var(VARIABLE) else { return LaunchReport(None) };
        if discovery.launcher != Launcher::Torch {
            return LaunchReport(None);
        }
        match Self::connect(&name, deadline.min(Instant::now() + CONNECT_TIMEOUT)) {
            Ok(connection) => {
                let report = LaunchReport(Some(connection));
                report.say(&format!("initialize {} {} {}\n", discovery.rank, discovery.world_size, discovery.job));
                report
            }
            Err(e) => {
                crate::util::log::event!(
                    DEBUG,
                    "the launcher does not listen at {name:?}, which {VARIABLE} names: {e}"
                );
                LaunchReport(None)
            }
        }
    }

    /// Says that all ranks have met.
    pub(super) fn met(self) {
        self.say(MET);
    }

    fn connect(name: &str, until: Instant) -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(name.as_bytes())?;
        loop {
            match connect(&socket, &address) {
                Ok(()) => break,
                Err(Errno::AGAIN) if Instant::now() < until => std::thread::sleep(PAUSE),
                Err(e) => return Err(e.into()),
            }
        }
        let launcher = sockopt::socket_peercred(&socket)?;
        if launcher.uid != rustix::process::geteuid() {
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, "another user listens there"));
        }
        Ok(socket)
    }

    fn say(&self, text: &str) {
        // So few bytes fit into the socket at once. If the launcher has ended, the report has no reader.
        if let Some(connection) = &self.0 {
            let _ = send(connection, text.as_bytes(), SendFlags::NOSIGNAL);
        }
    }
}

impl Drop for LaunchReport {
    fn drop(&mut self) {
        // After the other word this one is not read. A forked process may hold the connection open.
        self.say(NOT_MET);
    }
}
