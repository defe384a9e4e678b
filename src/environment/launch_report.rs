//! What a rank reports to `distcollective launch`: that it waits for the other ranks, and that all
//! ranks have met.
//!
//! A rank that ends with exit code 0 has not failed. If other ranks wait for it in their
//! initialization, only the launcher knows both. A rank connects to the launcher's socket while it
//! initializes. It sends its rank, and at the end whether all ranks have met. It never waits for a
//! reply.

use std::io::{Error, ErrorKind};
use std::time::{Duration, Instant};

use super::discovery::{Discovery, LAUNCH_SOCKET, Launcher};
use crate::handshake::{Channel, connect_abstract};
use crate::util::log;
use crate::util::wait::RETRY;

/// How long to try to connect while the launcher's queue is full.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);

/// What a rank sends at the end.
const MET: &str = "met\n";
const NOT_MET: &str = "not met\n";

/// The connection to the launcher, if `distcollective launch` started this rank.
pub(super) struct LaunchReport(Option<Channel>);

impl LaunchReport {
    /// Reports that this rank waits for the others, until this is dropped.
    pub(super) fn begin(discovery: &Discovery, deadline: Instant) -> Self {
        let may_be_ours = matches!(discovery.launcher, Launcher::DistCollective | Launcher::Torch);
        let name = std::env::var(LAUNCH_SOCKET).ok().filter(|_| may_be_ours);
        let until = deadline.min(Instant::now() + CONNECT_TIMEOUT);
        let connect = |name: String| loop {
            match connect_abstract(&name).map_err(Error::from).and_then(Channel::unix) {
                Ok(channel) => return Some(channel),
                Err(e) if e.kind() == ErrorKind::WouldBlock && Instant::now() < until => std::thread::sleep(RETRY),
                Err(e) => {
                    log::event!(DEBUG, "the launcher does not listen at {name:?}, which {LAUNCH_SOCKET} names: {e}");
                    return None;
                }
            }
        };
        let report = LaunchReport(name.and_then(connect));
        report.send(&format!("initialize {} {} {}\n", discovery.rank, discovery.world_size, discovery.job));
        report
    }

    /// Reports that all ranks have met.
    pub(super) fn met(self) {
        self.send(MET);
    }

    fn send(&self, text: &str) {
        // The socket has room for so few bytes. If the launcher has ended, the report has no
        // reader.
        if let Some(connection) = &self.0 {
            let _ = connection.send_bytes(text.as_bytes(), Instant::now());
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
