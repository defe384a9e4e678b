//! What the launcher's variables say: rank, world size, and where the ranks meet.
//!
//! docs/src/launchers.md has the rules. Everything that is missing or contradictory is reported at
//! once.

mod launcher;
mod rendezvous_point;
mod search;
mod slurm;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

pub(crate) use launcher::LAUNCH_SOCKET;
pub use launcher::Launcher;
use launcher::{LAUNCHERS, LauncherVariables};
use rendezvous_point::RENDEZVOUS_PORT;
use search::Search;
pub(super) use search::System;

use super::endpoint::Endpoint;
use crate::error::{Error, ErrorKind, Result};
use crate::rank::Rank;

/// The values that the caller gives. The others are looked for in the environment.
#[derive(Clone, Debug, Default)]
pub(super) struct CallerValues {
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) local_rank: Option<u32>,
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) rendezvous_port: Option<u16>,
    pub(super) job: Option<String>,
    /// The backend is that over MPI.
    pub(super) over_mpi: bool,
    /// Only this launcher's variables count.
    pub(super) launcher: Option<Launcher>,
}

/// What this process is, and where the others are.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    pub(super) launcher: Launcher,
    pub(super) rank: Rank,
    pub(super) world_size: u32,
    pub(super) local_rank: u32,
    pub(super) local_world_size: u32,
    /// Where the ranks meet, if not on this machine by the job's name.
    pub(super) rendezvous: Option<Endpoint>,
    /// The same text on every rank of the job, and on no other job's.
    pub(super) job: String,
    /// The launcher's port on rank 0's machine.
    pub(super) master_port: Option<u16>,
    /// Where each value came from.
    pub(super) sources: BTreeMap<&'static str, String>,
}

/// The source of a local number that no variable gives, until the ranks have met.
const DERIVED: &str = "derived: all ranks on one machine";

impl Discovery {
    /// Counts this machine's ranks, where no variable does. `machines` has each rank's.
    pub(super) fn derive_local_numbers(&mut self, machines: &[u32]) {
        let own = self.rank.index();
        let is_derived = |what| self.sources.get(what).is_some_and(|source| source == DERIVED);
        let count = |ranks: &[u32]| ranks.iter().filter(|machine| **machine == machines[own]).count() as u32;
        let [rank, size] = ["local_rank", "local_world_size"].map(is_derived);
        self.local_rank = if rank { count(&machines[..own]) } else { self.local_rank };
        self.local_world_size = if size { count(machines) } else { self.local_world_size };
        if machines.iter().any(|machine| *machine != machines[own]) {
            let derived = self.sources.values_mut().filter(|source| *source == DERIVED);
            derived.for_each(|source| *source = "derived from the ranks' machines".to_owned());
        }
    }

    /// Adds to the error of ranks that have not met what the cause may be.
    pub(super) fn explain_late(&self, error: Error) -> Error {
        let is_derived = self.sources.get("local_world_size").is_some_and(|source| source == DERIVED);
        let may_be_several = is_derived || self.local_world_size < self.world_size;
        let is_loopback = self.job.starts_with(rendezvous_point::LOOPBACK);
        match error.kind() == ErrorKind::DeadlineExceeded && is_loopback && may_be_several {
            true => error.followed_by(
                "; MASTER_ADDR is the loopback of each machine: ranks on several machines need an address of rank 0's",
            ),
            false => error,
        }
    }
}

/// Every variable that is read.
pub(crate) fn variable_names() -> impl Iterator<Item = &'static str> {
    let of_launcher = |v: &'static LauncherVariables| {
        let numbers = [v.rank, v.world_size].into_iter().chain(v.local.into_iter().flatten());
        numbers.chain(v.job.iter().copied()).chain(v.rendezvous_file)
    };
    let of_launchers = LAUNCHERS.iter().flat_map(of_launcher);
    of_launchers.chain(slurm::variable_names()).chain(rendezvous_point::variable_names())
}

/// What is wrong with variables that matter under every launcher, also if there is none.
pub(super) fn mistakes_without_launcher(system: &System) -> Vec<String> {
    let mut search = Search::new(system);
    search.port(None, RENDEZVOUS_PORT);
    search.mistakes
}

/// The launcher that counts.
pub(super) fn launcher_of(system: &System) -> Option<Launcher> {
    let mut search = Search::new(system);
    search.launcher().map(|variables| search.name(variables))
}

/// Finds out which rank this process is, and where the others are.
pub(super) fn discover(given: &CallerValues, system: &System) -> Result<Discovery> {
    let mut search = Search::new(system);
    let explicit = given.rank.is_some() && given.world_size.is_some();
    let variables = match given.launcher {
        Some(launcher) => LauncherVariables::of(launcher),
        None if explicit => None,
        None => search.launcher(),
    };
    let launcher = given.launcher.or(variables.map(|v| search.name(v))).unwrap_or(Launcher::Explicit);
    let rank = search.required("rank", given.rank, variables, |v| v.rank);
    let world_size = search.required("world_size", given.world_size, variables, |v| v.world_size);
    search.check_one_of("rank", rank, "world_size", world_size);
    let (local_rank, local_world_size) = variables.and_then(|v| v.local).map(|[rank, size]| (rank, size)).unzip();
    let local_rank = search.optional("local_rank", given.local_rank, local_rank);
    let (local_world_size, node_count) = match launcher {
        Launcher::Slurm => search.slurm_nodes(world_size),
        _ => (search.optional("local_world_size", None, local_world_size), None),
    };
    search.check_local_numbers(local_rank, local_world_size, world_size);
    let several_machines = match (node_count, world_size.zip(local_world_size)) {
        (Some((name, count)), _) => (count > 1).then(|| format!("{name} is {count}")),
        (None, Some((all, local))) if local < all => {
            Some(format!("{}, and {}", search.value_of("local_world_size", local), search.value_of("world_size", all)))
        }
        _ => None,
    };
    let (rendezvous, job) = search.rendezvous_point(given, variables, several_machines.as_deref());
    if !search.mistakes.is_empty() {
        let mistakes = search.mistakes.join("; ");
        let text = match launcher {
            Launcher::Explicit if given.rank.is_none() && given.world_size.is_none() => format!(
                "no launcher started this process: {mistakes}; start the ranks by a launcher, such as \
                 `distcollective launch -n 2 -- PROGRAM`"
            ),
            Launcher::Explicit => format!("without a launcher: {mistakes}"),
            launcher => {
                let lone = variables.and_then(|v| match [v.rank, v.world_size].map(|name| search.is_set(name)) {
                    [true, false] => Some(v.rank),
                    [false, true] => Some(v.world_size),
                    _ => None,
                });
                // A variable may be left over, or be set for another purpose.
                let hint = lone.map_or(String::new(), |name| {
                    format!("; set what is missing, or unset {name} if no launcher started this process")
                });
                format!("launcher {launcher}: {mistakes}{hint}")
            }
        };
        return Err(Error::new(ErrorKind::InvalidArgument, text));
    }
    // Without mistakes there are both.
    let (rank, world_size) = (rank.unwrap_or(0), world_size.unwrap_or(1));
    let mut derived = |what: &'static str, value: Option<u32>, default: u32| {
        value.unwrap_or_else(|| {
            search.sources.insert(what, DERIVED.to_owned());
            default
        })
    };
    let local_rank = derived("local_rank", local_rank, rank);
    let local_world_size = derived("local_world_size", local_world_size, world_size);
    Ok(Discovery {
        launcher,
        rank: Rank(rank),
        world_size,
        local_rank,
        local_world_size,
        rendezvous,
        job,
        master_port: search.master_port,
        sources: search.sources,
    })
}
