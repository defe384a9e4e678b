//! How much memory this process can still have. The kernel kills a process that exceeds its control
//! group's limit, so the library checks before it allocates shared memory.

use std::path::Path;

use crate::error::{Result, bail, error};

/// What an allocation needs besides its bytes: a share of them for page tables, and some bytes for
/// the rest of the program.
const OVERHEAD_SHARE: u64 = 64;
const OVERHEAD_BYTES: u64 = 1 << 20;

/// A limit of version 1 from here on means that there is none.
const UNLIMITED: u64 = 1 << 62;

/// How many bytes this process can still have, and what limits it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FreeMemory {
    pub(crate) byte_len: u64,
    bound: String,
}

/// The files of one version of control groups.
struct GroupFiles {
    limit: &'static str,
    usage: &'static str,
    /// The lines of `memory.stat` about the file cache, which the kernel frees before it kills.
    cache: [&'static str; 2],
}

const FILES_1: GroupFiles = GroupFiles {
    limit: "memory.limit_in_bytes",
    usage: "memory.usage_in_bytes",
    cache: ["total_inactive_file", "total_active_file"],
};
const FILES_2: GroupFiles =
    GroupFiles { limit: "memory.max", usage: "memory.current", cache: ["inactive_file", "active_file"] };

impl FreeMemory {
    /// The least of the machine's free memory and of what each control group of this process
    /// leaves. `None` if no file says.
    pub(crate) fn look() -> Option<Self> {
        Self::look_in(Path::new("/"))
    }

    fn look_in(root: &Path) -> Option<Self> {
        let machine = available_in(root);
        let machine = machine.map(|byte_len| FreeMemory { byte_len, bound: "the machine's MemAvailable".to_owned() });
        let groups = groups_in(root).into_iter().filter_map(|(_, free)| free);
        groups.chain(machine.ok()).min_by_key(|free| free.byte_len)
    }

    /// How many bytes one allocation may have.
    pub(crate) fn usable(&self) -> u64 {
        self.byte_len.saturating_sub(self.byte_len / OVERHEAD_SHARE).saturating_sub(OVERHEAD_BYTES)
    }
}

/// Checks that there is memory for `byte_len` bytes. The error says what for, and has both figures.
pub(crate) fn check(what: &str, byte_len: u64) -> Result<()> {
    match FreeMemory::look() {
        Some(free) if byte_len > free.usable() => bail!(
            System,
            "no {what} of {byte_len} bytes: this process can have about {} bytes more ({})",
            free.usable(),
            free.bound
        ),
        _ => Ok(()),
    }
}

/// The memory that programs can still get, in bytes, by the kernel's estimate.
///
/// # Errors
///
/// `/proc/meminfo` does not say.
pub fn available_memory() -> Result<u64> {
    available_in(Path::new("/"))
}

fn available_in(root: &Path) -> Result<u64> {
    let path = root.join("proc/meminfo");
    let unreadable = |e| error!(System, "{} cannot be read: read: {e}", path.display()).with_source(e);
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"));
    let kibibytes = line.and_then(|line| line.trim().strip_suffix(" kB")).and_then(|number| number.parse::<u64>().ok());
    kibibytes
        .and_then(|count| count.checked_mul(1024))
        .ok_or_else(|| error!(System, "{} does not say what memory is available", path.display()))
}

/// The memory limit of this process's control groups in bytes, if there is one.
pub fn memory_limit() -> Option<u64> {
    groups_in(Path::new("/")).into_iter().map(|(limit, _)| limit).min()
}

/// The limits of the control groups that this process is in, and of those around them, and what
/// each leaves.
fn groups_in(root: &Path) -> Vec<(u64, Option<FreeMemory>)> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut groups = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (version, mount) = match number {
            "0" if controllers.is_empty() => (&FILES_2, "sys/fs/cgroup"),
            _ if controllers.split(',').any(|name| name == "memory") => (&FILES_1, "sys/fs/cgroup/memory"),
            _ => continue,
        };
        // In a container the path may be that of the machine. Then only the last ancestor exists,
        // which is the mount itself.
        for ancestor in Path::new(path.trim_start_matches('/')).ancestors() {
            let folder = root.join(mount).join(ancestor);
            // A group without a limit has "max", which does not parse.
            let limit = number_in(&folder.join(version.limit)).filter(|limit| *limit < UNLIMITED);
            groups.extend(limit.map(|limit| (limit, version.free(&folder, limit))));
        }
    }
    groups
}

impl GroupFiles {
    /// What the group of this folder leaves of its limit.
    fn free(&self, folder: &Path, limit: u64) -> Option<FreeMemory> {
        let usage = number_in(&folder.join(self.usage))?;
        let stat = std::fs::read_to_string(folder.join("memory.stat")).unwrap_or_default();
        let number_of = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0)
        };
        let cache: u64 = self.cache.iter().map(|name| number_of(name)).fold(0, u64::saturating_add);
        let byte_len = limit.saturating_sub(usage.saturating_sub(cache));
        Some(FreeMemory { byte_len, bound: format!("{} is {limit}", folder.join(self.limit).display()) })
    }
}

fn number_in(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;

    /// A folder with these files, until it is dropped.
    struct Root(PathBuf);

    impl Root {
        fn new(files: &[(&str, &str)]) -> Self {
            static NUMBER: AtomicU32 = AtomicU32::new(0);
            let number = NUMBER.fetch_add(1, Ordering::Relaxed);
            let root = std::env::temp_dir().join(format!("dcl-free-memory-{}-{number}", std::process::id()));
            for (path, text) in files {
                let path = root.join(path);
                std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
                std::fs::write(path, text).expect("a file");
            }
            Root(root)
        }

        fn free(&self) -> Option<u64> {
            FreeMemory::look_in(&self.0).map(|free| free.byte_len)
        }
    }

    impl Drop for Root {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const MEMINFO: (&str, &str) =
        ("proc/meminfo", "MemTotal:       24684136 kB\nMemFree:  100 kB\nMemAvailable:   1000 kB\n");

    #[test]
    fn without_control_groups_it_is_what_the_machine_has() {
        assert_eq!(Root::new(&[MEMINFO]).free(), Some(1000 << 10));
        assert_eq!(Root::new(&[MEMINFO, ("proc/self/cgroup", "0::/\n")]).free(), Some(1000 << 10));
        assert_eq!(Root::new(&[("proc/meminfo", "MemTotal: 5 kB\n")]).free(), None);
        assert_eq!(Root::new(&[]).free(), None);
    }

    #[test]
    fn the_tightest_group_of_version_2_counts_and_its_file_cache_is_free() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/pod/rank\n"),
            ("sys/fs/cgroup/pod/rank/memory.max", "max\n"),
            ("sys/fs/cgroup/pod/rank/memory.current", "400000\n"),
            ("sys/fs/cgroup/pod/memory.max", "600000\n"),
            ("sys/fs/cgroup/pod/memory.current", "500000\n"),
            ("sys/fs/cgroup/pod/memory.stat", "anon 1\nfile 90000\ninactive_file 20000\nactive_file 3000\n"),
        ];
        let root = Root::new(&files);
        assert_eq!(root.free(), Some(123_000));
        let bound = FreeMemory::look_in(&root.0).expect("found").bound;
        assert!(bound.ends_with("/sys/fs/cgroup/pod/memory.max is 600000"), "{bound}");
        // A usage above the limit, and a cache above the usage, are no overflow.
        let over = ("sys/fs/cgroup/pod/memory.current", "700000\n");
        assert_eq!(Root::new(&[&files[..], &[over]].concat()).free(), Some(0));
        let cached = ("sys/fs/cgroup/pod/memory.stat", "inactive_file 18446744073709551615\nactive_file 9\n");
        assert_eq!(Root::new(&[&files[..], &[cached]].concat()).free(), Some(600_000));
    }

    #[test]
    fn groups_of_version_1_count_too() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n"),
            ("sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", "300000\n"),
            ("sys/fs/cgroup/memory/a/b/memory.usage_in_bytes", "250000\n"),
            ("sys/fs/cgroup/memory/a/b/memory.stat", "inactive_file 5\ntotal_inactive_file 1000\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
            ("sys/fs/cgroup/memory/memory.usage_in_bytes", "9000000\n"),
        ];
        assert_eq!(Root::new(&files).free(), Some(51_000));
    }

    /// In a container without its own namespace for control groups, the path is that of the
    /// machine.
    #[test]
    fn a_path_that_is_not_there_leaves_the_mount_itself() {
        let files = [
            MEMINFO,
            ("proc/self/cgroup", "0::/kubepods/pod7/container\n"),
            ("sys/fs/cgroup/memory.max", "70000\n"),
            ("sys/fs/cgroup/memory.current", "20000\n"),
        ];
        assert_eq!(Root::new(&files).free(), Some(50_000));
    }

    #[test]
    fn this_machine_says_what_it_has() {
        let free = FreeMemory::look().expect("the machine has /proc");
        assert!(free.usable() > 0, "{free:?}");
        check("shared memory", 1).expect("a byte");
        let error = check("shared memory", 1 << 50).expect_err("no machine has it").to_string();
        let text = "no shared memory of 1125899906842624 bytes: this process can have about ";
        assert!(error.starts_with(text) && error.contains(" bytes more ("), "{error}");
    }
}
