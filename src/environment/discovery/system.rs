//! What discovery asks of the system.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::environment::process;

/// The variables and the ancestors of this process.
#[derive(Default)]
pub(in crate::environment) struct System {
    pub(super) variables: BTreeMap<OsString, OsString>,
    /// The process that started this one, the one that started that, and so on.
    pub(super) ancestors: Vec<Ancestor>,
}

/// A process that started this one, directly or not.
pub(super) struct Ancestor {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) start_time: u64,
    /// The variables with which the process was started: `NAME=value`, each followed by a zero
    /// byte. `None` if the system does not show them.
    pub(super) variables: Option<Vec<u8>>,
}

impl System {
    /// The system that this process runs on.
    pub(in crate::environment) fn this() -> Self {
        let ancestors = process::ancestors().map(|(pid, stat)| Ancestor {
            pid,
            name: stat.name,
            start_time: stat.start_time,
            variables: std::fs::read(format!("/proc/{pid}/environ")).ok(),
        });
        System { variables: std::env::vars_os().collect(), ancestors: ancestors.collect() }
    }

    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        self.variables.get(OsStr::new(name)).map(OsString::as_os_str)
    }
}

impl Ancestor {
    pub(super) fn variable(&self, name: &str) -> Option<&OsStr> {
        let lines = self.variables.as_deref()?.split(|byte| *byte == 0);
        let mut values = lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.next().map(OsStr::from_bytes)
    }
}
