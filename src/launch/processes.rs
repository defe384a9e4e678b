//! The processes of a job, beyond the ranks: what ranks start.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// How often the search for processes is repeated while it finds some: a process may start another
/// one during the search.
const MOST_SEARCHES: usize = 16;

/// The process groups in which a process runs. `None` if /proc cannot be read.
pub(super) fn living_groups() -> Option<BTreeSet<i32>> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let stats = processes.flatten().filter_map(|process| std::fs::read_to_string(process.path().join("stat")).ok());
    let group = |stat: String| {
        // `7 (a name) S 1 7 ...`: after the name, which may contain any characters, come the state,
        // the parent and the group.
        let mut fields = stat.rsplit(')').next()?.split_ascii_whitespace();
        let (state, group) = (fields.next()?, fields.nth(1)?);
        if matches!(state, "Z" | "X") { None } else { group.parse().ok() }
    };
    Some(stats.filter_map(group).collect())
}

/// Kills every process that has this text in its environment, as far as this user may.
///
/// It only makes system calls: it allocates nothing and takes no lock, so that a process may call
/// it after a fork.
pub(super) fn kill_marked(mark: &[u8]) {
    for _ in 0..MOST_SEARCHES {
        if !search(mark) {
            return;
        }
    }
}

/// Kills the processes that one pass over /proc finds. Returns whether there were any.
fn search(mark: &[u8]) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", flags, Mode::empty()) else { return false };
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&proc, &mut space);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name();
        // The process is opened before its environment is read: a later process with the same
        // number gets no signal.
        let opened = pid_of(number).and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
        if let Some(process) = opened
            && environment_has(&proc, number, mark)
        {
            found |= pidfd_send_signal(&process, Signal::KILL).is_ok();
        }
    }
    found
}

fn pid_of(name: &CStr) -> Option<Pid> {
    Pid::from_raw(name.to_str().ok()?.parse().ok()?)
}

/// Whether the environment of a process has this text, which is at most 256 bytes long.
fn environment_has(proc: &OwnedFd, number: &CStr, mark: &[u8]) -> bool {
    const FILE: &[u8] = b"/environ\0";
    let mut path = [0; 32];
    let number = number.to_bytes();
    path[..number.len()].copy_from_slice(number);
    path[number.len()..][..FILE.len()].copy_from_slice(FILE);
    let Ok(path) = CStr::from_bytes_until_nul(&path) else { return false };
    let Ok(file) = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()) else { return false };
    let mut text = [0; 4096];
    // The bytes at the beginning that were read before: they may hold the beginning of the mark.
    let mut kept = 0;
    while let Ok(count @ 1..) = rustix::io::read(&file, &mut text[kept..]) {
        let len = kept + count;
        if text[..len].windows(mark.len()).any(|window| window == mark) {
            return true;
        }
        kept = len.min(mark.len() - 1);
        text.copy_within(len - kept..len, 0);
    }
    false
}
