//! The limits of this process, and how many files it may have open.

use rustix::process::{Resource, Rlimit, setrlimit};

use crate::util::log;

/// The descriptors of a process that are not for other processes: its standard files, the
/// bootstrap, shared memory, and a few of the program's own.
pub(crate) const OTHER_DESCRIPTORS: u64 = 16;

/// The soft and the hard limit of a resource of this process, such as `libc::RLIMIT_NOFILE`. `None`
/// means that there is no limit.
///
/// # Errors
///
/// The system does not tell. A sandbox may forbid the call.
pub fn resource_limits(resource: u32) -> std::io::Result<[Option<u64>; 2]> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the call writes a `rlimit`. (rustix's form of it cannot fail.)
    if unsafe { libc::getrlimit(resource as _, &mut limit) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    Ok([limit.rlim_cur, limit.rlim_max].map(|limit| (limit != libc::RLIM_INFINITY).then_some(limit)))
}

/// Raises this process's soft limit of open files if it is too low for so many other processes, at
/// most to the hard limit. Returns how many files it needs.
pub(crate) fn make_room_for_processes(others: usize) -> u64 {
    // A guess if the folder cannot be read.
    let open = std::fs::read_dir("/proc/self/fd").map_or(OTHER_DESCRIPTORS, |files| files.count() as u64);
    let needed = open + 2 * others as u64 + OTHER_DESCRIPTORS;
    let Ok([soft, hard]) = resource_limits(libc::RLIMIT_NOFILE) else { return needed };
    let raised = hard.map_or(needed, |hard| hard.min(needed));
    if soft.is_some_and(|soft| soft < raised) {
        let raised = Rlimit { current: Some(raised), maximum: hard };
        if let Err(e) = setrlimit(Resource::Nofile, raised) {
            log::event!(WARN, "the limit of open files cannot be raised: setrlimit: {e}");
        }
    }
    needed
}
