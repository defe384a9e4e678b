//! The processes of a job, beyond the ranks: what ranks start.

use std::collections::BTreeSet;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::fs::{CWD, Mode, OFlags, RawDir, openat};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use rustix::time::{ClockId, clock_gettime};

/// How often the search for processes is repeated while it finds some: a process may start another
/// one during the search.
const MOST_SEARCHES: usize = 16;

/// After this time a search is repeated that has found none: a process that has just begun another
/// program shows no environment for a moment.
const TIME_TO_BEGIN: Duration = Duration::from_millis(10);

/// The process groups in which a process runs. `None` if /proc cannot be read.
pub(super) fn living_groups() -> Option<BTreeSet<i32>> {
    let processes = std::fs::read_dir("/proc").ok()?;
    let stats = processes.flatten().filter_map(|process| std::fs::read(process.path().join("stat")).ok());
    Some(stats.filter_map(|stat| Some(LivingProcess::parse(&stat)?.group)).collect())
}

/// What `/proc/<pid>/stat` says of a process.
struct LivingProcess {
    group: i32,
    /// In clock ticks since the machine was started.
    start_time: u64,
}

impl LivingProcess {
    /// Parses the text of a process that has not ended.
    fn parse(text: &[u8]) -> Option<Self> {
        // `7 (a name) S 1 7 ...`: after the name, which may contain any characters, come the state,
        // the parent, the group and, as the 22nd of all fields, the time.
        let name_end = text.iter().rposition(|byte| *byte == b')')?;
        let mut fields = std::str::from_utf8(&text[name_end + 1..]).ok()?.split_ascii_whitespace();
        if matches!(fields.next()?, "Z" | "X") {
            return None;
        }
        Some(LivingProcess { group: fields.nth(1)?.parse().ok()?, start_time: fields.nth(16)?.parse().ok()? })
    }
}

/// The time since the machine was started, in the clock ticks of [`LivingProcess`].
///
/// It only makes a system call. `ticks_per_second` is what the system says; see `sysconf`.
pub(super) fn now_in_ticks(ticks_per_second: u64) -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec as u64 * ticks_per_second + now.tv_nsec as u64 * ticks_per_second / 1_000_000_000
}

/// Kills every process, as far as this user may, that has this text in its environment or belongs
/// to a target. The targets are numbers of processes, and of groups, which a process has started
/// that ended at the time `end`, in clock ticks. As the targets have been reaped since, other
/// processes may have their numbers: those started later.
///
/// It only makes system calls: it allocates nothing and takes no lock, so that a process may call
/// it after a fork.
pub(super) fn kill_job(mark: &[u8], targets: &[i32], end: u64) {
    let search_all = || search(|process| process.environment_has(mark) || process.is_one_of(targets, end));
    for _ in 0..MOST_SEARCHES {
        if search_all() {
            continue;
        }
        std::thread::sleep(TIME_TO_BEGIN);
        if !search_all() {
            return;
        }
    }
}

/// Kills the processes that one pass over /proc finds. Returns whether there were any.
fn search(belongs: impl Fn(&FoundProcess<'_>) -> bool) -> bool {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let Ok(proc) = openat(CWD, c"/proc", flags, Mode::empty()) else { return false };
    let mut space = [MaybeUninit::uninit(); 4096];
    let mut entries = RawDir::new(&proc, &mut space);
    let mut found = false;
    while let Some(Ok(entry)) = entries.next() {
        let number = entry.file_name();
        let Some(pid) = number.to_str().ok().and_then(|number| Pid::from_raw(number.parse().ok()?)) else { continue };
        // The process is opened before its files are read: a later process with the same number
        // gets no signal.
        if let Ok(opened) = pidfd_open(pid, PidfdFlags::empty())
            && belongs(&FoundProcess { proc: &proc, number, pid })
        {
            found |= pidfd_send_signal(&opened, Signal::KILL).is_ok();
        }
    }
    found
}

/// A process that a pass over /proc has found. Its methods allocate nothing.
struct FoundProcess<'a> {
    proc: &'a OwnedFd,
    number: &'a CStr,
    pid: Pid,
}

impl FoundProcess<'_> {
    /// Opens a file of the process, such as `/stat`.
    fn open(&self, name: &[u8]) -> Option<OwnedFd> {
        let mut path = [0; 32];
        let number = self.number.to_bytes();
        path[..number.len()].copy_from_slice(number);
        path[number.len()..][..name.len()].copy_from_slice(name);
        let path = CStr::from_bytes_until_nul(&path).ok()?;
        openat(self.proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()
    }

    /// Whether the environment has this text, which is at most 256 bytes long.
    fn environment_has(&self, mark: &[u8]) -> bool {
        let Some(file) = self.open(b"/environ") else { return false };
        let mut text = [0; 4096];
        // The bytes at the beginning that were read before: they may hold the beginning of the
        // mark.
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

    /// Whether it is a target or in the group of one, and was started before this time.
    fn is_one_of(&self, targets: &[i32], end: u64) -> bool {
        if targets.is_empty() {
            return false;
        }
        // Longer than the file: a name and some 50 numbers.
        let mut text = [0; 2048];
        let read = self.open(b"/stat").and_then(|file| rustix::io::read(&file, &mut text).ok());
        let Some(stat) = read.and_then(|len| LivingProcess::parse(&text[..len])) else { return false };
        stat.start_time <= end && (targets.contains(&self.pid.as_raw_pid()) || targets.contains(&-stat.group))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::{CommandExt, ExitStatusExt};
    use std::process::{Child, Command};

    use super::*;

    fn ticks() -> u64 {
        now_in_ticks(rustix::param::clock_ticks_per_second())
    }

    fn start(own_group: bool) -> Child {
        let mut command = Command::new("sleep");
        command.arg("60").env_clear().env("PATH", "/usr/bin:/bin");
        if own_group {
            command.process_group(0);
        }
        command.spawn().expect("it starts")
    }

    /// A number may be that of another process since the job's own was reaped.
    #[test]
    fn processes_that_were_started_after_the_end_of_a_job_are_not_its_own() {
        for own_group in [false, true] {
            let before = ticks();
            // A tick is at most 10 ms long.
            std::thread::sleep(Duration::from_millis(30));
            let mut child = start(own_group);
            let target = child.id() as i32 * if own_group { -1 } else { 1 };
            kill_job(b"a mark that no process has", &[target], before);
            assert_eq!(child.try_wait().expect("an own child"), None, "a later process was killed");
            kill_job(b"a mark that no process has", &[target], ticks());
            assert_eq!(child.wait().expect("an own child").signal(), Some(9));
        }
    }

    /// A process that has just begun another program may show no environment yet.
    #[test]
    fn a_process_that_has_just_begun_is_found() {
        for round in 0..100 {
            let mark = format!("DCL_TEST_MARK={}-{round}", std::process::id());
            let (name, value) = mark.split_once('=').expect("a name");
            let mut child = Command::new("/bin/sleep").arg("60").env(name, value).spawn().expect("it starts");
            kill_job(mark.as_bytes(), &[], 0);
            let end = std::time::Instant::now() + Duration::from_secs(1);
            while child.try_wait().expect("an own child").is_none() {
                if std::time::Instant::now() >= end {
                    child.kill().expect("it lives");
                    panic!("not found in round {round}");
                }
                std::thread::yield_now();
            }
        }
    }

    #[test]
    fn a_process_has_a_group_and_a_start_time() {
        let text = format!("7 (a) (b)) S 5 6 {} 99 0", "0 ".repeat(16));
        let stat = LivingProcess::parse(text.as_bytes()).expect("it lives");
        assert_eq!((stat.group, stat.start_time), (6, 99));
        assert!(
            LivingProcess::parse(text.replace(" S ", " Z ").as_bytes()).is_none()
                && LivingProcess::parse(b"7 (a").is_none()
        );
    }
}
