//! What discovery asks of the system. Tests have a system of their own.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::environment::process;

/// The variables and the ancestors of this process.
pub(in crate::environment) trait System {
    /// A variable of this process.
    fn variable(&self, name: &str) -> Option<OsString>;
    /// The process that started this one, the one that started that, and so on.
    fn ancestors(&self) -> Vec<Ancestor>;
}

/// A process that started this one, directly or not.
#[derive(Clone, Debug, Default)]
pub(in crate::environment) struct Ancestor {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) start_time: u64,
    /// The variables with which the process was started: `NAME=value`, each followed by a zero
    /// byte. `None` if the system does not show them.
    pub(super) variables: Option<Vec<u8>>,
}

impl Ancestor {
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        let lines = self.variables.as_deref()?.split(|byte| *byte == 0);
        let mut values = lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.next().map(OsStr::from_bytes)
    }
}

/// The system that this process runs on.
pub(in crate::environment) struct ThisSystem;

impl System for ThisSystem {
    fn variable(&self, name: &str) -> Option<OsString> {
        std::env::var_os(name)
    }

    fn ancestors(&self) -> Vec<Ancestor> {
        let ancestor = |(pid, stat): (u32, process::Stat)| Ancestor {
            pid,
            name: stat.name,
            start_time: stat.start_time,
            variables: std::fs::read(format!("/proc/{pid}/environ")).ok(),
        };
        process::ancestors().map(ancestor).collect()
    }
}
