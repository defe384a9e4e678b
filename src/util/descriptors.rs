//! How many files this process may have open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::util::log;

/// The descriptors of a process that are not for other processes: its standard files, the
/// bootstrap, shared memory, and a few of the program's own.
pub(crate) const OTHER_DESCRIPTORS: u64 = 16;

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
            log::event!(WARN, "the limit of open files cannot be raised: setrlimit: {e}");
        }
    }
    needed
}
