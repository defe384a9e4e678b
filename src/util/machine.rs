//! Which processes are on one machine.

use std::collections::BTreeMap;

/// The variable by which ranks of one machine may be taken for those of several.
pub(crate) const HOST_ID: &str = "DCL_HOST_ID";

/// The running system and the network namespace of this process, and the value of [`HOST_ID`]. The
/// host backend connects ranks that are equal in these: an abstract socket can be reached within
/// one network namespace of one running kernel.
pub(crate) fn own_name() -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
    // A sandbox may have no such file.
    let boot = boot.unwrap_or_else(|_| rustix::system::uname().nodename().to_string_lossy().into_owned());
    let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let id = std::env::var_os(HOST_ID).unwrap_or_default();
    format!("{} {} {}", boot.trim(), network.display(), id.to_string_lossy())
}

/// The number of each rank's machine, counted in the order of their first ranks.
pub(crate) fn numbers<'a>(names: impl Iterator<Item = &'a str>) -> Box<[u32]> {
    let mut numbers = BTreeMap::new();
    let number_of = |name| {
        let next = numbers.len() as u32;
        *numbers.entry(name).or_insert(next)
    };
    names.map(number_of).collect()
}
