//! Reading variables, with a list of all mistakes.

use std::cell::OnceCell;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;

use crate::environment::process::{self, ProcessStat};

/// The variables and the ancestors of this process.
#[derive(Default)]
pub(in crate::environment) struct System {
    pub(super) variables: BTreeMap<OsString, OsString>,
    /// The process that started this one, the one that started that, and so on. They are looked at
    /// where the variables do not say enough.
    pub(super) ancestors: OnceCell<Vec<Ancestor>>,
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
        let mut variables = BTreeMap::new();
        for (name, value) in std::env::vars_os() {
            // Of a name that is there twice the first counts, as for getenv.
            variables.entry(name).or_insert(value);
        }
        System { variables, ancestors: OnceCell::new() }
    }

    pub(super) fn ancestors(&self) -> &[Ancestor] {
        let look = |(pid, stat): (u32, ProcessStat)| Ancestor {
            pid,
            name: stat.name,
            start_time: stat.start_time,
            variables: std::fs::read(format!("/proc/{pid}/environ")).ok(),
        };
        self.ancestors.get_or_init(|| process::ancestors().map(look).collect())
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

/// The source of a value that is not a variable's.
pub(super) const GIVEN: &str = "given by the caller";

/// What has been found so far.
pub(super) struct Search<'a> {
    pub(super) system: &'a System,
    pub(super) mistakes: Vec<String>,
    /// Where each value came from.
    pub(super) sources: BTreeMap<&'static str, String>,
    /// The launcher's port on rank 0's machine.
    pub(super) master_port: Option<u16>,
}

impl<'a> Search<'a> {
    pub(super) fn new(system: &'a System) -> Self {
        Search { system, mistakes: Vec::new(), sources: BTreeMap::new(), master_port: None }
    }

    /// Whether a variable is set.
    pub(super) fn is_set(&self, name: &str) -> bool {
        self.system.variable(name).is_some()
    }

    /// A variable's text. If it is not UTF-8, that is a mistake, and the variable counts as set.
    pub(super) fn text(&mut self, name: &str) -> Option<String> {
        let value = self.system.variable(name)?;
        if value.to_str().is_none() {
            self.mistakes.push(format!("{name} is {value:?}, which is not UTF-8"));
        }
        Some(value.to_string_lossy().into_owned())
    }

    /// The values of those variables that are set and not empty.
    pub(super) fn texts(&mut self, names: &[&str]) -> Vec<String> {
        names.iter().filter_map(|name| self.text(name).filter(|text| !text.is_empty())).collect()
    }

    /// A variable's number. If it is none, that is a mistake.
    pub(super) fn number(&mut self, name: &str) -> Option<u32> {
        let text = self.system.variable(name)?;
        let number = text.to_str().and_then(|text| text.trim().parse().ok());
        if number.is_none() {
            self.mistakes.push(format!("{name} is {text:?}, which is not a number"));
        }
        number
    }

    /// A number that need not be there: the caller's, else that of the variable.
    pub(super) fn optional(
        &mut self,
        what: &'static str,
        given: Option<u32>,
        variable: Option<&'static str>,
    ) -> Option<u32> {
        let source = if given.is_some() { GIVEN } else { variable? };
        let number = given.or_else(|| self.number(source))?;
        self.sources.insert(what, source.to_owned());
        Some(number)
    }

    /// A value with its variable, as mistakes write it: `WORLD_SIZE is 2`.
    pub(super) fn value_of(&self, what: &str, value: u32) -> String {
        let source = self.sources.get(what).map_or(what, |source| if source == GIVEN { what } else { source.as_str() });
        format!("{source} is {value}")
    }

    /// Checks that a rank is below the number of ranks.
    pub(super) fn check_one_of(&mut self, what: &str, rank: Option<u32>, of: &str, count: Option<u32>) {
        if let (Some(rank), Some(count)) = (rank, count)
            && rank >= count
        {
            let mistake =
                format!("{}, which is not one of {count}: {}", self.value_of(what, rank), self.value_of(of, count));
            self.mistakes.push(mistake);
        }
    }

    /// Checks that the numbers on this machine fit the world.
    pub(super) fn check_local_numbers(
        &mut self,
        local_rank: Option<u32>,
        local_world_size: Option<u32>,
        world_size: Option<u32>,
    ) {
        match (local_world_size, world_size) {
            (Some(local), Some(all)) if local > all => {
                let sides = [self.value_of("local_world_size", local), self.value_of("world_size", all)];
                self.mistakes.push(format!("{}: more ranks on this machine than there are", sides.join(", and ")));
            }
            (Some(_), _) => self.check_one_of("local_rank", local_rank, "local_world_size", local_world_size),
            (None, _) => self.check_one_of("local_rank", local_rank, "world_size", world_size),
        }
    }
}
