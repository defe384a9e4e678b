//! The machine without its GPUs.

use std::path::Path;

use distcollective::system;
use serde::Serialize;

use super::probe::Probe;

/// The machine without its GPUs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Host {
    /// The system and its version: `Linux 6.8.0`.
    pub system: String,
    /// The cores that this process may use.
    pub cores: Probe<usize>,
    /// The memory that programs can still get, by the kernel's estimate.
    pub memory_available_bytes: Probe<u64>,
    /// The memory limit of this process's control group, if there is one.
    pub memory_limit_bytes: Option<u64>,
    /// The size of `/dev/shm`, if there is one. NCCL shares memory between ranks of one machine
    /// there; the host backend does not need it.
    pub dev_shm_bytes: Option<u64>,
    /// The number of files that a process may have open.
    pub open_files: OpenFiles,
    /// The number of threads that all processes together may have: the least of the limits of the
    /// system, the user and the control group.
    pub threads: Option<u64>,
    /// The number of mappings that a process may have. Each group and each symmetric buffer between
    /// processes needs one or a few.
    pub mappings: Option<u64>,
    /// About how many ranks can be processes of their own, or what the system lacks for them.
    pub processes: Probe<u32>,
}

/// The limits of open files of a process; `None` means that there is no limit, or that the system
/// does not tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OpenFiles {
    /// The limit in force.
    pub soft: Option<u64>,
    /// The limit up to which a user may raise the soft one.
    pub hard: Option<u64>,
}

impl Host {
    pub fn look() -> Self {
        let uname = rustix::system::uname();
        let limits = |resource| system::resource_limits(resource).unwrap_or_default();
        let [soft, hard] = limits(libc::RLIMIT_NOFILE);
        let cores = std::thread::available_parallelism();
        let threads =
            [number_in("/proc/sys/kernel/threads-max"), limits(libc::RLIMIT_NPROC)[0], control_group_limit("pids.max")];
        Host {
            system: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            cores: match cores {
                Ok(cores) => Probe::Found(cores.get()),
                Err(e) => Probe::Missing { problem: format!("the cores cannot be counted: {e}") },
            },
            memory_available_bytes: system::available_memory().into(),
            memory_limit_bytes: system::memory_limit(),
            dev_shm_bytes: rustix::fs::statvfs("/dev/shm").ok().map(|found| found.f_blocks * found.f_frsize),
            open_files: OpenFiles { soft, hard },
            threads: threads.into_iter().flatten().min(),
            mappings: number_in("/proc/sys/vm/max_map_count"),
            processes: system::most_processes().into(),
        }
    }
}

fn number_in(path: impl AsRef<Path>) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

/// The least limit of this name among this process's control group (version 2) and the groups that
/// contain it.
fn control_group_limit(name: &str) -> Option<u64> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    // A group without a limit says "max", which is not a number.
    Path::new(group).ancestors().filter_map(|group| number_in(Path::new("/sys/fs/cgroup").join(group).join(name))).min()
}
