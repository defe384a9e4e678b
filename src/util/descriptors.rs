//! How many files this process may have open.

use std::io::Error;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::util::log;

/// The descriptors of a process that are not for other processes: its standard files, the
/// bootstrap, shared memory that is being sent, and a few of the program's own.
pub(crate) const OTHER_DESCRIPTORS: u64 = 16;

/// Raises this process's soft limit of open files if it is too low for so many other processes, at
/// most to the hard limit. Returns how many files it needs.
pub(crate) fn make_room_for_processes(others: usize) -> u64 {
    make_room(2 * others as u64)
}

/// Raises this process's soft limit of open files if it is too low for so many more, at most to the
/// hard limit. Returns how many files it needs.
pub(crate) fn make_room(more: u64) -> u64 {
    // A guess if the folder cannot be read.
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHER_DESCRIPTORS, |files| files.count() as u64);
    let needed = open + more + OTHER_DESCRIPTORS;
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

/// What an error is followed by if it says that this process has too many open files.
pub(crate) fn hint(error: &Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let hard = getrlimit(Resource::Nofile).maximum.map_or("more".to_owned(), |hard| hard.to_string());
            format!("; this process may have {hard} files open; see `ulimit -Hn`")
        }
        _ => String::new(),
    }
}
