//! Processes of this machine, as `/proc` describes them: which one wrote a file, and which ones
//! started this one.

use std::os::unix::fs::MetadataExt;

use rustix::io::Errno;
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

/// What `/proc/<pid>/stat` says of a process or a thread.
pub(super) struct ProcessStat {
    /// The program's name, of which the system keeps 15 bytes.
    pub(super) name: String,
    state: char,
    pub(super) parent: u32,
    /// In clock ticks since the machine was started. Processes that had the same id, one after the
    /// other, differ in it.
    pub(super) start_time: u64,
}

impl ProcessStat {
    pub(super) fn of(pid: u32) -> Option<Self> {
        Self::read(&format!("/proc/{pid}/stat"))
    }

    fn read(path: &str) -> Option<Self> {
        Self::parse(&String::from_utf8_lossy(&std::fs::read(path).ok()?))
    }

    /// Parses `7 (a name) S 1 ...`. The name may have any characters.
    fn parse(text: &str) -> Option<Self> {
        let (begin, rest) = text.rsplit_once(')')?;
        let (_, name) = begin.split_once('(')?;
        let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
        Some(ProcessStat {
            name: name.to_owned(),
            state: fields.first()?.chars().next()?,
            parent: fields.get(1)?.parse().ok()?,
            // The 22nd of all fields. The first two are the id and the name.
            start_time: fields.get(19)?.parse().ok()?,
        })
    }

    fn has_ended(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// A process of some machine, by which other processes can find out whether it still runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessIdentity {
    /// The id of the running system. It changes when the machine is restarted.
    pub(super) boot: String,
    /// The PID namespace in which the id is valid.
    pub(super) namespace: u64,
    pub(super) pid: u32,
    pub(super) start_time: u64,
}

/// Whether a process still runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ProcessState {
    Runs,
    HasEnded,
    /// The process is on another machine or in another container.
    Unknown,
}

impl ProcessIdentity {
    /// This process's; `None` if `/proc` cannot be read.
    pub(super) fn own() -> Option<Self> {
        let pid = std::process::id();
        Some(ProcessIdentity {
            boot: std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?.trim().to_owned(),
            namespace: std::fs::metadata("/proc/self/ns/pid").ok()?.ino(),
            pid,
            start_time: ProcessStat::of(pid)?.start_time,
        })
    }

    pub(super) fn state(&self) -> ProcessState {
        let is_near = Self::own().is_some_and(|own| own.boot == self.boot && own.namespace == self.namespace);
        let Some(pid) = i32::try_from(self.pid).ok().and_then(Pid::from_raw).filter(|_| is_near) else {
            return ProcessState::Unknown;
        };
        if test_kill_process(pid) == Err(Errno::SRCH) {
            return ProcessState::HasEnded;
        }
        match ProcessStat::of(self.pid) {
            Some(stat) if stat.start_time != self.start_time => ProcessState::HasEnded,
            // The first thread may end before the others.
            Some(stat) if stat.has_ended() && !self.has_threads() => ProcessState::HasEnded,
            // The system may hide a process that runs.
            _ => ProcessState::Runs,
        }
    }

    /// Whether a thread of the process still runs.
    fn has_threads(&self) -> bool {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.pid)).into_iter().flatten().flatten();
        threads
            .filter_map(|thread| ProcessStat::read(thread.path().join("stat").to_str()?))
            .any(|stat| !stat.has_ended())
    }
}

/// The ancestors of this process, the nearest first: its parent, its parent's parent and so on.
pub(super) fn ancestors() -> impl Iterator<Item = (u32, ProcessStat)> {
    let next = |pid: u32| Some((pid, ProcessStat::of(pid).filter(|_| pid > 0)?));
    let parent = ProcessStat::of(std::process::id()).and_then(|own| next(own.parent));
    std::iter::successors(parent, move |(_, stat)| next(stat.parent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_have_any_characters() {
        let stat = format!("7 (a ) (b)) S 5 {} 99 0", "0 ".repeat(17));
        let stat = ProcessStat::parse(&stat).expect("a process");
        assert_eq!((stat.name.as_str(), stat.parent, stat.start_time), ("a ) (b)", 5, 99));
        assert!(ProcessStat::parse("7 (a").is_none() && ProcessStat::parse("7 (a) S x").is_none());
    }

    #[test]
    fn a_process_that_has_ended_is_known() {
        let own = ProcessIdentity::own().expect("/proc");
        assert_eq!(own.state(), ProcessState::Runs);
        assert_eq!(ProcessIdentity { start_time: own.start_time + 1, ..own.clone() }.state(), ProcessState::HasEnded);
        assert_eq!(ProcessIdentity { boot: "another".to_owned(), ..own.clone() }.state(), ProcessState::Unknown);
        let mut child = std::process::Command::new("sleep").arg("60").spawn().expect("a child");
        let start_time = ProcessStat::of(child.id()).expect("a child").start_time;
        let child_identity = ProcessIdentity { pid: child.id(), start_time, ..own };
        assert_eq!(child_identity.state(), ProcessState::Runs);
        child.kill().expect("an own child");
        // Until its parent waits for it, the system keeps its id.
        let end = std::time::Instant::now() + std::time::Duration::from_secs(10);
        while child_identity.state() == ProcessState::Runs {
            assert!(std::time::Instant::now() < end, "a killed child runs on");
        }
        assert_eq!(child_identity.state(), ProcessState::HasEnded);
        child.wait().expect("an own child");
        assert_eq!(child_identity.state(), ProcessState::HasEnded);
    }

    #[test]
    fn the_parent_is_the_first_ancestor() {
        let parent = rustix::process::getppid().expect("a parent").as_raw_nonzero().get();
        assert_eq!(ancestors().next().map(|(pid, _)| pid), u32::try_from(parent).ok());
    }
}
