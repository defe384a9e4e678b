//! What the backend needs of the operating system between processes.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::sync::LazyLock;

use rustix::process::getpid;

use super::memory::SharedMemorySize;
use super::memory::world_memory::WorldFile;
use crate::error::{Result, error};
use crate::handshake::check_own_user;
use crate::util::caused_by;
use crate::util::descriptors::{OTHER_DESCRIPTORS, resource_limits};

/// The most ranks of a communicator.
pub(crate) const MAX_RANKS: u32 = 1024;

/// The bytes of the cache that processors share; 32 MiB where the system tells nothing that can be.
pub(super) static CACHE_BYTES: LazyLock<usize> = LazyLock::new(|| {
    let told = std::fs::read_to_string("/sys/devices/system/cpu/cpu0/cache/index3/size").ok();
    let kib = told.and_then(|told| told.trim().strip_suffix('K')?.parse::<usize>().ok());
    kib.filter(|kib| (1 << 10..1 << 20).contains(kib)).unwrap_or(32 << 10) << 10
});

/// Checks that this process can tell its user from others, and that there are sealed memory files
/// and abstract sockets. Containers may forbid each.
fn check_system() -> Result<()> {
    check_own_user()?;
    WorldFile::create()?.allocate(SharedMemorySize::fully_resident(1), 1, &|| Ok(()))?;
    let name = format!("distcollective-check-{}", getpid().as_raw_nonzero());
    let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    let refused = |e| caused_by(error!(System, "there are no abstract Unix sockets to meet on"), "bind", e);
    listener.map(|_| ()).map_err(refused)
}

/// About how many ranks can be processes of their own.
pub(crate) fn most_processes() -> Result<u32> {
    check_system()?;
    let [_, hard] = resource_limits(libc::RLIMIT_NOFILE).unwrap_or_default();
    Ok(most_processes_with(hard))
}

/// About how many processes of one rank there can be if each may have so many descriptors. Rank 0's
/// process has a connection and a pidfd for each other process.
fn most_processes_with(descriptors: Option<u64>) -> u32 {
    let others = |descriptors: u64| descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2;
    descriptors.map_or(MAX_RANKS, |descriptors| others(descriptors).min(u64::from(MAX_RANKS) - 1) as u32 + 1)
}

/// Which namespace the numbers of this process's processes are of; `None` where the system does not
/// tell.
pub(super) fn process_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/pid").ok().map(|found| found.st_ino)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn descriptors_bound_the_processes() {
        let most = [Some(0), Some(17), Some(64), Some(1024), Some(1 << 20), None].map(most_processes_with);
        assert_eq!(most, [1, 1, 25, 505, MAX_RANKS, MAX_RANKS]);
    }

    #[test]
    fn this_system_has_what_is_needed() {
        check_system().expect("the other tests need it too");
    }
}
