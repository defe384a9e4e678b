//! What the backend needs of the operating system between processes.

use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use rustix::process::{Resource, Rlimit, getpid, getrlimit, setrlimit};

use super::memory::{SharedMemory, SharedMemorySize};
use crate::comm::builder::MAX_RANKS;
use crate::error::{Error, Result, error};

/// The descriptors of a process that are not for other processes: its standard files, the
/// bootstrap, shared memory that is being sent, and a few of the program's own.
const OTHER_DESCRIPTORS: u64 = 16;

/// Adds to an error the system call that failed and the system's text: `no shared memory of 4096
/// bytes: fallocate: Cannot allocate memory (os error 12)`.
pub(crate) fn caused_by(error: Error, call: &str, cause: impl Into<io::Error>) -> Error {
    let cause = cause.into();
    error.followed_by(&format!(": {call}: {cause}")).with_source(cause)
}

/// Checks that there are sealed memory files and abstract sockets. Containers may forbid either.
pub(crate) fn check_system() -> Result<()> {
    SharedMemory::for_processes(SharedMemorySize::fully_resident(1), &|| Ok(()))?;
    let name = format!("distcollective-check-{}", getpid().as_raw_nonzero());
    let listener = SocketAddr::from_abstract_name(name).and_then(|address| UnixListener::bind_addr(&address));
    let refused = |e| caused_by(error!(System, "there are no abstract Unix sockets to meet on"), "bind", e);
    listener.map(|_| ()).map_err(refused)
}

/// About how many processes of one rank there can be if each may have so many descriptors. Rank 0's
/// process has a connection and a pidfd for each other process.
pub(crate) fn most_processes(descriptors: Option<u64>) -> u32 {
    let others = |descriptors: u64| descriptors.saturating_sub(OTHER_DESCRIPTORS) / 2;
    descriptors.map_or(MAX_RANKS, |descriptors| others(descriptors).min(u64::from(MAX_RANKS) - 1) as u32 + 1)
}

/// Raises this process's soft limit of open files if it is too low for so many other processes, at
/// most to the hard limit. Returns how many files it needs.
pub(crate) fn make_room_for_processes(others: usize) -> u64 {
    // A guess if the folder cannot be read.
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHER_DESCRIPTORS, |files| files.count() as u64);
    let needed = open + 2 * others as u64 + OTHER_DESCRIPTORS;
    let limit = getrlimit(Resource::Nofile);
    let raised = limit.maximum.map_or(needed, |hard| hard.min(needed));
    if limit.current.is_some_and(|soft| soft < raised) {
        let raised = Rlimit { current: Some(raised), maximum: limit.maximum };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            crate::util::log::event!(WARN, "the limit of open files cannot be raised: setrlimit: {e}");
        }
    }
    needed
}

/// The PID namespace of this process; `None` if the system does not say.
pub(crate) fn process_namespace() -> Option<u64> {
    rustix::fs::stat("/proc/self/ns/pid").ok().map(|found| found.st_ino)
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

    #[test]
    fn an_error_of_the_system_says_which_call_and_why_and_keeps_its_source() {
        use std::error::Error as _;
        let error = caused_by(error!(System, "no memory"), "fallocate", rustix::io::Errno::NOMEM);
        assert_eq!(error.to_string(), "no memory: fallocate: Cannot allocate memory (os error 12)");
        assert_eq!(error.source().expect("a source").to_string(), "Cannot allocate memory (os error 12)");
    }
}
