//! How many files this process may have open.

use std::io::Error;

use distcollective::system::resource_limits;
use rustix::process::{Resource, Rlimit, setrlimit};

/// What this process opens meanwhile for other purposes.
const OTHERS: u64 = 16;

/// Raises this process's soft limit of open files if it is too low for so many more, at most to the
/// hard limit.
pub(super) fn make_room(more: u64) {
    // A guess if the folder cannot be read.
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHERS, |files| files.count() as u64);
    let needed = open + more + OTHERS;
    let Ok([soft, hard]) = resource_limits(libc::RLIMIT_NOFILE) else { return };
    let raised = hard.map_or(needed, |hard| hard.min(needed));
    if soft.is_some_and(|soft| soft < raised) {
        // If this fails, an open file too many is an error with a hint.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(raised), maximum: hard });
    }
}

/// What an error is followed by if it says that this process has too many open files.
pub(super) fn hint(error: &Error) -> String {
    match error.raw_os_error() {
        Some(libc::EMFILE) => {
            let [_, hard] = resource_limits(libc::RLIMIT_NOFILE).unwrap_or_default();
            let hard = hard.map_or("more".to_owned(), |hard| hard.to_string());
            format!("; this process may have {hard} files open; see `ulimit -Hn`")
        }
        _ => String::new(),
    }
}
