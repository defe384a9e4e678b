//! The machine without its GPUs.

use std::path::Path;

use rustix::process::{Resource, getrlimit};
use serde::Serialize;

use super::Finding;
use crate::comm::host;
use crate::error::error;

/// The machine without its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Host {
    /// The system and its version: `Linux 6.8.0`.
    pub system: String,
    /// The cores that this process may use.
    pub cores: Finding<usize>,
    /// The memory that programs can still have, as the kernel estimates it.
    pub memory_available_bytes: Finding<u64>,
    /// The memory that this process's control group may have, where it has a limit.
    pub memory_limit_bytes: Option<u64>,
    /// The length of `/dev/shm`, where there is one: NCCL lets ranks of one machine share memory there. The host backend
    /// does not need it.
    pub dev_shm_bytes: Option<u64>,
    /// How many files a process may have open.
    pub open_files: OpenFiles,
    /// How many threads there may be in all processes: the least of the system's limit, the user's and the control group's.
    pub threads: Option<u64>,
    /// How many mappings a process may have. Each group and each symmetric buffer between processes is one or a few.
    pub mappings: Option<u64>,
    /// About how many ranks can be processes of their own, or what the system lacks for that.
    pub processes: Finding<u32>,
}

/// How many files a process may have open; `None` is without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct OpenFiles {
    /// The limit that counts.
    pub soft: Option<u64>,
    /// Up to which a user may raise it.
    pub hard: Option<u64>,
}

impl Host {
    pub(super) fn look() -> Self {
        let system = rustix::system::uname();
        let limit = getrlimit(Resource::Nofile);
        let open_files = OpenFiles { soft: limit.current, hard: limit.maximum };
        let cores = std::thread::available_parallelism();
        let threads = [
            number_in("/proc/sys/kernel/threads-max"),
            getrlimit(Resource::Nproc).current,
            control_group_limit("pids.max"),
        ];
        Host {
            system: format!("{} {}", system.sysname().to_string_lossy(), system.release().to_string_lossy()),
            cores: cores.map(usize::from).map_err(|e| error!(System, "the cores cannot be counted: {e}")).into(),
            memory_available_bytes: host::memory_available().into(),
            memory_limit_bytes: host::memory_limit(),
            dev_shm_bytes: rustix::fs::statvfs("/dev/shm").ok().map(|found| found.f_blocks * found.f_frsize),
            open_files,
            threads: threads.into_iter().flatten().min(),
            mappings: number_in("/proc/sys/vm/max_map_count"),
            processes: host::check_system().map(|()| host::most_processes(open_files.hard)).into(),
        }
    }
}

fn number_in(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The least limit of this name of the control group (version 2) that this process is in, and those around it.
fn control_group_limit(name: &str) -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // What has no limit says "max", which is no number.
    Path::new(group).ancestors().filter_map(|group| number_in(Path::new("/sys/fs/cgroup").join(group).join(name))).min()
}
