//! What ranks that are processes need of the system.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::process::{PidfdFlags, getpid, pidfd_open};

use super::shared_memory::SharedMemory;
use crate::comm::builder::MAX_RANKS;
use crate::error::{Result, error};

/// The descriptors of a process that are not for other processes: its standard files, the meeting, memory on its way, and a
/// few of the program's own.
const OTHER_DESCRIPTORS: u64 = 16;

/// Looks whether there are sealed memory files, descriptors of processes and abstract sockets. Containers may forbid any.
pub(crate) fn check_system() -> Result<()> {
    SharedMemory::of_processes(1)?;
    pidfd_open(getpid(), PidfdFlags::empty())
        .map_err(|e| error!(System, "processes cannot be watched (pidfd_open: {e})"))?;
    let name = format!("distcollective-check-{}", getpid().as_raw_nonzero());
    let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    listener.map(|_| ()).map_err(|e| error!(System, "there are no abstract Unix sockets to meet on ({e})"))
}

/// About how many processes with a rank each there can be, where each may have so many descriptors: rank 0's has a
/// connection to each other process, and a descriptor to watch it by.
pub(crate) fn most_processes(descriptors: Option<u64>) -> u32 {
    let others = |descriptors: u64| descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2;
    descriptors.map_or(MAX_RANKS, |descriptors| others(descriptors).min(u64::from(MAX_RANKS) - 1) as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_bound_the_processes() {
        let most = [Some(0), Some(17), Some(64), Some(1024), Some(1 << 20), None].map(most_processes);
        assert_eq!(most, [1, 1, 25, 505, MAX_RANKS, MAX_RANKS]);
    }

    #[test]
    fn this_system_has_what_is_needed() {
        check_system().expect("the other tests need it too");
    }
}
