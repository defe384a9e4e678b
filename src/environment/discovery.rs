//! What the launcher's variables say: rank, world size, and where the ranks meet.
//!
//! A launcher is complete where both its rank and its world size are set. Values come from the
//! caller; then from the first complete launcher in the order of [`LAUNCHERS`], or, where none is
//! complete, from the first of which one is set, so that the error names the other. Local rank and
//! local world size come from the same launcher, or are derived.
//!
//! Several launchers may be complete:
//! - PMI's variables beside SLURM's with the same rank and world size, and without the local ones
//!   that mpirun sets, are srun's (`srun --mpi=pmi2`): SLURM's count.
//! - Otherwise SLURM's variables beside another launcher's are those of the allocation or of srun's
//!   task in which that launcher runs: the other launcher's count.
//! - Of two others one runs inside the other, and the inner one counts, also where this rank's
//!   numbers are the same: those of other ranks may differ. Its variables were set later: some
//!   parent process has the outer launcher's and not the inner one's.
//! - If no parent process shows that, launchers that give the same rank and world size agree, and
//!   the first counts. If they disagree, the error names both.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fmt;
use std::num::NonZeroU16;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::endpoint::{default_port, is_loopback};
use super::process;
use crate::error::{Error, ErrorKind, Result};
use crate::rank::Rank;

/// Who started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// The caller gave rank and world size.
    Explicit,
    /// torchrun, ColossalAI, `distcollective launch`: `RANK`, `WORLD_SIZE`.
    Torch,
    /// TensorRT's sample: `TRT_MY_RANK`, `TRT_WORLD_SIZE`, `TRT_NCCL_ID_FILE`.
    TensorRt,
    /// Open MPI's mpirun: `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// MPICH's and Intel MPI's mpirun: `PMI_RANK`, `PMI_SIZE`.
    Pmi,
    /// srun: `SLURM_PROCID`, `SLURM_NTASKS`.
    Slurm,
}

/// The variables of a launcher.
struct Variables {
    launcher: Launcher,
    rank: &'static str,
    world_size: &'static str,
    local_rank: &'static [&'static str],
    local_world_size: &'static [&'static str],
    /// What names the job where no MASTER_ADDR and MASTER_PORT do; all of it together.
    job: &'static [&'static str],
}

static LAUNCHERS: [Variables; 5] = [
    Variables {
        launcher: Launcher::Torch,
        rank: "RANK",
        world_size: "WORLD_SIZE",
        local_rank: &["LOCAL_RANK"],
        local_world_size: &["LOCAL_WORLD_SIZE"],
        job: &[],
    },
    Variables {
        launcher: Launcher::TensorRt,
        rank: "TRT_MY_RANK",
        world_size: "TRT_WORLD_SIZE",
        local_rank: &[],
        local_world_size: &[],
        job: &["TRT_NCCL_ID_FILE"],
    },
    Variables {
        launcher: Launcher::OpenMpi,
        rank: "OMPI_COMM_WORLD_RANK",
        world_size: "OMPI_COMM_WORLD_SIZE",
        local_rank: &["OMPI_COMM_WORLD_LOCAL_RANK"],
        local_world_size: &["OMPI_COMM_WORLD_LOCAL_SIZE"],
        job: &["PMIX_NAMESPACE"],
    },
    Variables {
        launcher: Launcher::Pmi,
        rank: "PMI_RANK",
        world_size: "PMI_SIZE",
        local_rank: &["MPI_LOCALRANKID"],
        local_world_size: &["MPI_LOCALNRANKS"],
        job: &[],
    },
    Variables {
        launcher: Launcher::Slurm,
        rank: "SLURM_PROCID",
        world_size: "SLURM_NTASKS",
        local_rank: &["SLURM_LOCALID"],
        local_world_size: &["SLURM_NTASKS_PER_NODE"],
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl Launcher {
    /// The name for people: `torchrun`, `SLURM`.
    pub const fn name(self) -> &'static str {
        match self {
            Launcher::Explicit => "none (given by the caller)",
            Launcher::Torch => "torchrun",
            Launcher::TensorRt => "TensorRT's sample",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI (MPICH, Intel MPI)",
            Launcher::Slurm => "SLURM",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the caller says himself. What he leaves out is looked for in the environment.
#[derive(Clone, Debug, Default)]
pub(super) struct Given {
    pub(super) rank: Option<u32>,
    pub(super) world_size: Option<u32>,
    pub(super) local_rank: Option<u32>,
    pub(super) host: Option<String>,
    pub(super) port: Option<u16>,
    pub(super) rendezvous_port: Option<u16>,
    /// Only this launcher's variables count.
    pub(super) launcher: Option<Launcher>,
}

/// Where the ranks meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum MeetingPoint {
    /// On this machine, under the job's name.
    Machine,
    /// At the address of rank 0's machine.
    Address {
        /// MASTER_ADDR.
        host: String,
        /// Not MASTER_PORT, where torchrun has its store.
        port: u16,
    },
    /// Through a file that rank 0 writes its address to.
    File(PathBuf),
}

/// Who this process is, and where the others are.
#[derive(Clone, Debug)]
pub(super) struct Discovery {
    pub(super) launcher: Launcher,
    pub(super) rank: Rank,
    pub(super) world_size: u32,
    pub(super) local_rank: u32,
    pub(super) local_world_size: u32,
    pub(super) meeting: MeetingPoint,
    /// The same text on every rank of the job, and on no other job's.
    pub(super) job: String,
    /// Where each value came from.
    pub(super) sources: BTreeMap<&'static str, String>,
}

/// Where ranks meet, and what is part of the job's name, whatever the launcher.
const MEETING_VARIABLES: [&str; 3] = ["MASTER_ADDR", "MASTER_PORT", "DCL_RENDEZVOUS_PORT"];
const RUN_VARIABLES: [&str; 3] = ["DCL_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];

/// How srun spreads the ranks over machines: the number of machines, this machine's number, the
/// number of ranks on each.
const SLURM_NODE_COUNT: [&str; 2] = ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"];
const SLURM_NODE: &str = "SLURM_NODEID";
const SLURM_STEP_TASKS: &str = "SLURM_STEP_TASKS_PER_NODE";

/// The process of MPICH and Intel MPI that starts the ranks of one machine. No variable of theirs
/// names the job.
const HYDRA_PROXY: &str = "hydra_pmi_proxy";

/// Every variable that is looked for.
pub(crate) fn variable_names() -> impl Iterator<Item = &'static str> {
    let of_launcher = |v: &'static Variables| {
        let lists = [v.local_rank, v.local_world_size, v.job];
        [v.rank, v.world_size].into_iter().chain(lists.into_iter().flatten().copied())
    };
    let of_slurm = SLURM_NODE_COUNT.into_iter().chain([SLURM_NODE, SLURM_STEP_TASKS]);
    LAUNCHERS.iter().flat_map(of_launcher).chain(of_slurm).chain(MEETING_VARIABLES).chain(RUN_VARIABLES)
}

/// What discovery asks of the system.
pub(super) trait System {
    /// A variable of this process.
    fn variable(&self, name: &str) -> Option<OsString>;
    /// The processes that started this one, the nearest first.
    fn ancestors(&self) -> Vec<Ancestor>;
}

/// A process that started this one, or one that did so.
#[derive(Clone, Debug, Default)]
pub(super) struct Ancestor {
    pub(super) pid: u32,
    pub(super) name: String,
    pub(super) start_time: u64,
    /// `NAME=value`, each followed by a zero, as the process was started; `None` where the system
    /// does not tell.
    pub(super) variables: Option<Vec<u8>>,
}

impl Ancestor {
    fn variable(&self, name: &str) -> Option<&OsStr> {
        let lines = self.variables.as_deref()?.split(|byte| *byte == 0);
        let mut values = lines.filter_map(|line| line.strip_prefix(name.as_bytes())?.strip_prefix(b"="));
        values.next().map(OsStr::from_bytes)
    }
}

/// The system that this process runs on.
pub(super) struct ThisSystem;

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

/// The launcher that counts.
pub(super) fn launcher_of(system: &dyn System) -> Option<Launcher> {
    Search::new(system).launcher().map(|v| v.launcher)
}

/// Finds out who this process is. Everything missing or contradictory is reported at once.
pub(super) fn discover(given: &Given, system: &dyn System) -> Result<Discovery> {
    let mut search = Search::new(system);
    let explicit = given.rank.is_some() && given.world_size.is_some();
    let variables = match given.launcher {
        Some(launcher) => LAUNCHERS.iter().find(|v| v.launcher == launcher),
        None if explicit => None,
        None => search.launcher(),
    };
    let launcher = variables.map_or(Launcher::Explicit, |v| v.launcher);
    let mut required = |what: &'static str, value: Option<u32>, name: Option<&'static str>| {
        if value.is_some() {
            search.sources.insert(what, GIVEN.to_owned());
            return value;
        }
        match name {
            Some(name) => search.required(what, name),
            None => {
                let names: Vec<&str> =
                    LAUNCHERS.iter().map(|v| if what == "rank" { v.rank } else { v.world_size }).collect();
                search.mistakes.push(format!("{what} is not given, and none of {} is set", names.join(", ")));
                None
            }
        }
    };
    let rank = required("rank", given.rank, variables.map(|v| v.rank));
    let world_size = required("world_size", given.world_size, variables.map(|v| v.world_size));
    search.check_one_of("rank", rank, "world_size", world_size);
    let optional = |search: &mut Search<'_>, what, names: Option<&'static [&'static str]>| {
        names.into_iter().flatten().find_map(|name| search.optional(what, name))
    };
    let local_rank = match given.local_rank {
        Some(local_rank) => {
            search.sources.insert("local_rank", GIVEN.to_owned());
            Some(local_rank)
        }
        None => optional(&mut search, "local_rank", variables.map(|v| v.local_rank)),
    };
    let (local_world_size, node_count) = match launcher {
        Launcher::Slurm => search.slurm_nodes(world_size),
        _ => (optional(&mut search, "local_world_size", variables.map(|v| v.local_world_size)), None),
    };
    if local_world_size > world_size && world_size.is_some() {
        let sides = [("local_world_size", local_world_size), ("world_size", world_size)];
        let sides = sides.map(|(what, value)| search.said(what, value.unwrap_or(0)));
        search.mistakes.push(format!("{}: more ranks on this machine than there are", sides.join(", and ")));
    } else if local_world_size.is_some() {
        search.check_one_of("local_rank", local_rank, "local_world_size", local_world_size);
    } else {
        search.check_one_of("local_rank", local_rank, "world_size", world_size);
    }
    let several_machines = match (node_count, world_size.zip(local_world_size)) {
        (Some((name, count)), _) => (count > 1).then(|| format!("{name} is {count}")),
        (None, Some((all, local))) if local < all => {
            Some(format!("{}, and {}", search.said("local_world_size", local), search.said("world_size", all)))
        }
        _ => None,
    };
    let (meeting, job) = search.meeting(given, variables, several_machines.as_deref());
    if !search.mistakes.is_empty() {
        return Err(Error::new(
            ErrorKind::InvalidArgument,
            format!("launcher {launcher}: {}", search.mistakes.join("; ")),
        ));
    }
    // Without mistakes both are there.
    let (rank, world_size) = (rank.unwrap_or(0), world_size.unwrap_or(1));
    let mut derived = |what: &'static str, value: Option<u32>, default: u32| {
        value.unwrap_or_else(|| {
            search.sources.insert(what, "derived: all ranks on one machine".to_owned());
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
        meeting,
        job,
        sources: search.sources,
    })
}

/// The source of a value that is not a variable's.
const GIVEN: &str = "given by the caller";

/// The ranks on each machine, as SLURM writes them: `2(x3),1` is two ranks on each of three
/// machines, and one on a fourth.
struct TaskCounts(Vec<(u32, u32)>);

impl TaskCounts {
    fn parse(text: &str) -> Option<Self> {
        let count = |part: &str| {
            let (count, times) = match part.split_once("(x") {
                Some((count, times)) => (count, times.strip_suffix(')')?),
                None => (part, "1"),
            };
            Some((count.parse().ok()?, times.parse().ok()?))
        };
        text.trim().split(',').map(count).collect::<Option<_>>().map(TaskCounts)
    }

    fn total(&self) -> u64 {
        let products = self.0.iter().map(|(count, times)| u64::from(*count) * u64::from(*times));
        products.fold(0, u64::saturating_add)
    }

    fn node_count(&self) -> u64 {
        self.0.iter().map(|(_, times)| u64::from(*times)).sum()
    }

    fn on_node(&self, node: u32) -> Option<u32> {
        let mut first = 0;
        self.0.iter().find_map(|(count, times)| {
            first += u64::from(*times);
            (u64::from(node) < first).then_some(*count)
        })
    }
}

struct Search<'a> {
    system: &'a dyn System,
    mistakes: Vec<String>,
    sources: BTreeMap<&'static str, String>,
}

impl<'a> Search<'a> {
    fn new(system: &'a dyn System) -> Self {
        Search { system, mistakes: Vec::new(), sources: BTreeMap::new() }
    }

    fn is_set(&self, name: &str) -> bool {
        self.system.variable(name).is_some()
    }

    /// A variable's text. One that is not UTF-8 is a mistake, but not a missing one.
    fn text(&mut self, name: &str) -> Option<String> {
        let value = self.system.variable(name)?;
        Some(value.into_string().unwrap_or_else(|value| {
            self.mistakes.push(format!("{name} is {value:?}, which is not UTF-8"));
            value.to_string_lossy().into_owned()
        }))
    }

    /// The launcher that counts; see the module.
    fn launcher(&mut self) -> Option<&'static Variables> {
        let is_complete = |v: &&Variables| self.is_set(v.rank) && self.is_set(v.world_size);
        let mut complete: Vec<&'static Variables> = LAUNCHERS.iter().filter(is_complete).collect();
        if complete.is_empty() {
            return LAUNCHERS.iter().find(|v| self.is_set(v.rank) || self.is_set(v.world_size));
        }
        let of = |launcher| complete.iter().find(|v| v.launcher == launcher).copied();
        if let (Some(pmi), Some(slurm)) = (of(Launcher::Pmi), of(Launcher::Slurm)) {
            let mut local = pmi.local_rank.iter().chain(pmi.local_world_size);
            if self.agree(pmi, slurm) && !local.any(|name| self.is_set(name)) {
                complete.retain(|v| v.launcher != Launcher::Pmi);
            }
        }
        if complete.len() > 1 {
            complete.retain(|v| v.launcher != Launcher::Slurm);
        }
        let mut chosen = *complete.first()?;
        for other in complete.into_iter().skip(1) {
            match self.inner(chosen, other) {
                Some(inner) => chosen = inner,
                // A program may have set the one from the other.
                None if self.agree(chosen, other) => {}
                None => {
                    let sides = [chosen, other].map(|v| {
                        let value = |name| self.system.variable(name).unwrap_or_default();
                        format!("{} is {:?} and {} {:?}", v.rank, value(v.rank), v.world_size, value(v.world_size))
                    });
                    self.mistakes.push(format!(
                        "{}: {} and {} disagree, and no parent process shows which of them runs inside the other; unset \
                         the variables of the one that does not count",
                        sides.join(", but "),
                        chosen.launcher,
                        other.launcher
                    ));
                }
            }
        }
        Some(chosen)
    }

    /// Whether two launchers give the same rank and world size.
    fn agree(&self, one: &Variables, other: &Variables) -> bool {
        let number = |name| self.system.variable(name)?.to_str()?.trim().parse::<u32>().ok();
        let same = |a, b| number(a).is_some() && number(a) == number(b);
        same(one.rank, other.rank) && same(one.world_size, other.world_size)
    }

    /// Which of two launchers was started by the other: its variables came later, so a parent
    /// process does not have them yet.
    fn inner(&self, one: &'static Variables, other: &'static Variables) -> Option<&'static Variables> {
        for ancestor in self.system.ancestors() {
            ancestor.variables.as_ref()?;
            let has = |name: &str| ancestor.variable(name) == self.system.variable(name).as_deref();
            let [has_one, has_other] = [one, other].map(|v| has(v.rank) && has(v.world_size));
            match (has_one, has_other) {
                (true, true) => {}
                (true, false) => return Some(other),
                (false, true) => return Some(one),
                (false, false) => return None,
            }
        }
        None
    }

    /// A value with the variable that it came from: `WORLD_SIZE is 2`.
    fn said(&self, what: &str, value: u32) -> String {
        let source = self.sources.get(what).map_or(what, |source| if source == GIVEN { what } else { source.as_str() });
        format!("{source} is {value}")
    }

    /// Checks that a rank is below the number of ranks.
    fn check_one_of(&mut self, what: &str, rank: Option<u32>, of: &str, count: Option<u32>) {
        if let (Some(rank), Some(count)) = (rank, count)
            && rank >= count
        {
            let mistake = format!("{}, which is not one of {count}: {}", self.said(what, rank), self.said(of, count));
            self.mistakes.push(mistake);
        }
    }

    /// How many of SLURM's ranks are on this machine, and how many machines there are, with the
    /// variable that says so.
    fn slurm_nodes(&mut self, world_size: Option<u32>) -> (Option<u32>, Option<(&'static str, u64)>) {
        let node_count = SLURM_NODE_COUNT.into_iter().find(|name| self.is_set(name));
        let node_count = node_count.and_then(|name| Some((name, u64::from(self.number(name)?))));
        let names = [SLURM_STEP_TASKS, "SLURM_NTASKS_PER_NODE"];
        let Some(name) = names.into_iter().find(|name| self.is_set(name)) else {
            // On one machine there are all ranks.
            if let Some((name, count)) = node_count.filter(|(_, count)| *count > 1) {
                let names = names.join(" nor ");
                self.mistakes
                    .push(format!("{name} is {count}, and neither {names} says how many ranks this machine has"));
            }
            return (None, node_count);
        };
        let text = self.text(name).unwrap_or_default();
        let Some(counts) = TaskCounts::parse(&text) else {
            self.mistakes.push(format!("{name} is {text:?}, which is not a list of numbers such as \"2(x3),1\""));
            return (None, node_count);
        };
        let node = if self.is_set(SLURM_NODE) { self.number(SLURM_NODE) } else { Some(0) };
        // The other variable has one number for all machines, and may be an upper bound.
        let is_exact = name == SLURM_STEP_TASKS;
        if let Some(world_size) = world_size.filter(|world_size| is_exact && counts.total() != u64::from(*world_size)) {
            let (total, said) = (counts.total(), self.said("world_size", world_size));
            self.mistakes.push(format!("{name} is {text:?}, which is {total} ranks, and {said}"));
        }
        let local = match node {
            Some(_) if counts.node_count() == 1 && !is_exact => counts.on_node(0),
            Some(node) => {
                if counts.on_node(node).is_none() {
                    self.mistakes
                        .push(format!("{SLURM_NODE} is {node}, and {name} is {text:?}, which has no such machine"));
                }
                counts.on_node(node)
            }
            None => None,
        };
        if local.is_some() {
            self.sources.insert("local_world_size", name.to_owned());
        }
        (local, if is_exact { Some((name, counts.node_count())) } else { node_count })
    }

    fn required(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        if !self.is_set(name) {
            self.mistakes.push(format!("{name} is not set"));
            return None;
        }
        self.optional(what, name)
    }

    fn optional(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        let value = self.number(name)?;
        self.sources.insert(what, name.to_owned());
        Some(value)
    }

    fn number(&mut self, name: &str) -> Option<u32> {
        let text = self.system.variable(name)?;
        let number = text.to_str().and_then(|text| text.trim().parse().ok());
        if number.is_none() {
            self.mistakes.push(format!("{name} is {text:?}, which is not a number"));
        }
        number
    }

    fn port(&mut self, given: Option<u16>, name: &str) -> Option<u16> {
        let text = self.text(name).filter(|text| !text.is_empty());
        given.or_else(|| {
            let text = text?;
            match text.trim().parse::<NonZeroU16>() {
                Ok(port) => Some(port.get()),
                Err(_) => {
                    self.mistakes.push(format!("{name} is {text:?}, which is not a port"));
                    // Not missing, but wrong.
                    Some(0)
                }
            }
        })
    }

    /// The values of variables, but for empty ones.
    fn texts(&mut self, names: &[&str]) -> Vec<String> {
        names.iter().filter_map(|name| self.text(name).filter(|text| !text.is_empty())).collect()
    }

    /// The meeting point, and a text that is the job's own.
    fn meeting(
        &mut self,
        given: &Given,
        variables: Option<&Variables>,
        several_machines: Option<&str>,
    ) -> (MeetingPoint, String) {
        let [address_variable, port_variable, rendezvous_variable] = MEETING_VARIABLES;
        let host = given.host.clone().or_else(|| self.text(address_variable).filter(|text| !text.is_empty()));
        // torchrun's restarts of one job do not meet each other.
        let run = self.texts(&RUN_VARIABLES).join("/");
        let names = variables.map_or(&[][..], |v| v.job);
        let is_file = names == ["TRT_NCCL_ID_FILE"];
        let name = if is_file { None } else { self.job_name(variables, several_machines.is_some()) };
        let port = self.port(given.port, port_variable);
        let rendezvous_port = self.port(given.rendezvous_port, rendezvous_variable);
        if let (Some(host), Some(port)) = (&host, port) {
            let source = if given.host.is_some() { GIVEN } else { "MASTER_ADDR, MASTER_PORT" };
            self.sources.insert("meeting", source.to_owned());
            // Two jobs of one launcher may have inherited the same address.
            let of_launcher = name.map_or(String::new(), |(name, _)| format!("/{name}"));
            if is_loopback(host) {
                let is_slurm = variables.is_some_and(|v| v.launcher == Launcher::Slurm);
                if let Some(reason) = several_machines.filter(|_| is_slurm) {
                    self.mistakes.push(format!(
                        "{address_variable} is {host}, which every machine has for itself, and the ranks are on several \
                         machines ({reason})"
                    ));
                }
                return (MeetingPoint::Machine, format!("loopback:{port}/{run}{of_launcher}"));
            }
            let job = format!("{host}:{port}/{run}{of_launcher}");
            let port = rendezvous_port.unwrap_or_else(|| default_port(port));
            return (MeetingPoint::Address { host: host.clone(), port }, job);
        }
        if is_file && let Some(path) = self.system.variable(names[0]).filter(|path| !path.is_empty()) {
            self.sources.insert("meeting", names[0].to_owned());
            return (MeetingPoint::File(PathBuf::from(path)), names[0].to_owned());
        }
        if let Some((name, source)) = name {
            self.sources.insert("meeting", source);
            self.require_one_machine(several_machines);
            return (MeetingPoint::Machine, name);
        }
        if variables.is_some_and(|v| v.launcher == Launcher::Pmi) && several_machines.is_none() {
            self.mistakes.push(format!(
                "there is no meeting point: {address_variable} and {port_variable} are not set, no variable of PMI names the \
                 job, and no process {HYDRA_PROXY} started this one"
            ));
        } else if several_machines.is_some() && host.is_none() && port.is_none() {
            self.require_one_machine(several_machines);
        } else {
            let missing: Vec<&str> = [(address_variable, host.is_none()), (port_variable, port.is_none())]
                .iter()
                .filter(|(_, missing)| *missing)
                .map(|(name, _)| *name)
                .collect();
            let instead = if names.is_empty() { String::new() } else { format!(" (or {})", names.join(" and ")) };
            self.mistakes.push(format!("there is no meeting point: {}{instead} not set", missing.join(" and ")));
        }
        (MeetingPoint::Machine, String::new())
    }

    /// The launcher's own name of the job, and where it came from.
    fn job_name(&mut self, variables: Option<&Variables>, several_machines: bool) -> Option<(String, String)> {
        let variables = variables?;
        let names = variables.job;
        let parts = self.texts(names);
        if !names.is_empty() && parts.len() == names.len() {
            return Some((format!("{}={}", names.join(","), parts.join(",")), names.join(", ")));
        }
        if variables.launcher != Launcher::Pmi || several_machines {
            return None;
        }
        // There is one of them on each machine.
        let proxy = self.system.ancestors().into_iter().find(|ancestor| ancestor.name == HYDRA_PROXY)?;
        let name = format!("{HYDRA_PROXY}={},{}", proxy.pid, proxy.start_time);
        Some((name, format!("the process {HYDRA_PROXY} that started the ranks")))
    }

    /// The launcher's own name of the job is known on one machine only.
    fn require_one_machine(&mut self, several_machines: Option<&str>) {
        if let Some(reason) = several_machines {
            self.mistakes.push(format!(
                "the ranks are on several machines ({reason}), which meet at MASTER_ADDR and MASTER_PORT only; they are not \
                 set"
            ));
        }
    }
}

#[cfg(test)]
mod tests;
