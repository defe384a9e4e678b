//! What the launcher's variables say: rank, world size, and where the ranks meet.
//!
//! Values come, in this order, from the caller, from torchrun's variables, from those of TensorRT's sample, from Open MPI's,
//! from PMI's (MPICH, Intel MPI) and from SLURM's. The first launcher of which a rank or a world size is set gives both; local
//! rank and local world size come from the same launcher, or are derived.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU16;
use std::path::PathBuf;

use super::rendezvous;
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

/// Every variable that is looked for.
pub(crate) fn variable_names() -> impl Iterator<Item = &'static str> {
    let of_launcher = |v: &'static Variables| {
        let lists = [v.local_rank, v.local_world_size, v.job];
        [v.rank, v.world_size].into_iter().chain(lists.into_iter().flatten().copied())
    };
    LAUNCHERS.iter().flat_map(of_launcher).chain(MEETING_VARIABLES).chain(RUN_VARIABLES)
}

/// The first launcher whose variables are there.
pub(super) fn launcher_of(variable: &dyn Fn(&str) -> Option<String>) -> Option<Launcher> {
    let present = |v: &&Variables| variable(v.rank).is_some() || variable(v.world_size).is_some();
    LAUNCHERS.iter().find(present).map(|v| v.launcher)
}

/// Finds out who this process is. Everything missing or contradictory is reported at once.
pub(super) fn discover(given: &Given, variable: &dyn Fn(&str) -> Option<String>) -> Result<Discovery> {
    let mut search = Search { variable, mistakes: Vec::new(), sources: BTreeMap::new() };
    let explicit = given.rank.is_some() && given.world_size.is_some();
    let wanted = given.launcher.or_else(|| if explicit { None } else { launcher_of(variable) });
    let variables = LAUNCHERS.iter().find(|v| Some(v.launcher) == wanted);
    let launcher = variables.map_or(Launcher::Explicit, |v| v.launcher);
    let mut required = |what: &'static str, value: Option<u32>, name: Option<&'static str>| {
        if value.is_some() {
            search.sources.insert(what, "given by the caller".to_owned());
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
    if let (Some(rank), Some(world_size)) = (rank, world_size)
        && rank >= world_size
    {
        search.mistakes.push(format!("rank {rank} is not one of {world_size}"));
    }
    let optional = |search: &mut Search<'_>, what, names: Option<&'static [&'static str]>| {
        names.into_iter().flatten().find_map(|name| search.optional(what, name))
    };
    let local_rank = match given.local_rank {
        Some(local_rank) => {
            search.sources.insert("local_rank", "given by the caller".to_owned());
            Some(local_rank)
        }
        None => optional(&mut search, "local_rank", variables.map(|v| v.local_rank)),
    };
    let local_world_size = optional(&mut search, "local_world_size", variables.map(|v| v.local_world_size));
    if let (Some(local_rank), Some(local_world_size)) = (local_rank, local_world_size)
        && local_rank >= local_world_size
    {
        search.mistakes.push(format!("local rank {local_rank} is not one of {local_world_size}"));
    }
    let ranks = world_size.zip(local_world_size);
    let (meeting, job) = search.meeting(given, variables, ranks.is_some_and(|(all, local)| local < all));
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

struct Search<'a> {
    variable: &'a dyn Fn(&str) -> Option<String>,
    mistakes: Vec<String>,
    sources: BTreeMap<&'static str, String>,
}

impl Search<'_> {
    fn required(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        if (self.variable)(name).is_none() {
            self.mistakes.push(format!("{name} is not set"));
            return None;
        }
        self.optional(what, name)
    }

    fn optional(&mut self, what: &'static str, name: &'static str) -> Option<u32> {
        let text = (self.variable)(name)?;
        match text.trim().parse() {
            Ok(value) => {
                self.sources.insert(what, name.to_owned());
                Some(value)
            }
            Err(_) => {
                self.mistakes.push(format!("{name} is {text:?}, which is not a number"));
                None
            }
        }
    }

    fn port(&mut self, given: Option<u16>, name: &str) -> Option<u16> {
        let text = (self.variable)(name).filter(|text| !text.is_empty());
        given.or_else(|| match text?.trim().parse::<NonZeroU16>() {
            Ok(port) => Some(port.get()),
            Err(_) => {
                let text = (self.variable)(name).unwrap_or_default();
                self.mistakes.push(format!("{name} is {text:?}, which is not a port"));
                // Not missing, but wrong.
                Some(0)
            }
        })
    }

    /// The meeting point, and a text that is the job's own.
    fn meeting(
        &mut self,
        given: &Given,
        variables: Option<&Variables>,
        several_machines: bool,
    ) -> (MeetingPoint, String) {
        let text = |name: &str| (self.variable)(name).filter(|text| !text.is_empty());
        let [address_variable, port_variable, rendezvous_variable] = MEETING_VARIABLES;
        let host = given.host.clone().or_else(|| text(address_variable));
        // torchrun's restarts of one job do not meet each other.
        let run: Vec<String> = RUN_VARIABLES.iter().filter_map(|name| text(name)).collect();
        let names = variables.map_or(&[][..], |v| v.job);
        let parts: Vec<String> = names.iter().filter_map(|name| text(name)).collect();
        let port = self.port(given.port, port_variable);
        let rendezvous_port = self.port(given.rendezvous_port, rendezvous_variable);
        if let (Some(host), Some(port)) = (&host, port) {
            let source = if given.host.is_some() { "given by the caller" } else { "MASTER_ADDR, MASTER_PORT" };
            self.sources.insert("meeting", source.to_owned());
            if is_loopback(host) {
                return (MeetingPoint::Machine, format!("loopback:{port}/{}", run.join("/")));
            }
            let job = format!("{host}:{port}/{}", run.join("/"));
            let port = rendezvous_port.unwrap_or_else(|| rendezvous::default_port(port));
            return (MeetingPoint::Address { host: host.clone(), port }, job);
        }
        if !names.is_empty() && parts.len() == names.len() {
            self.sources.insert("meeting", names.join(", "));
            if names == ["TRT_NCCL_ID_FILE"] {
                return (MeetingPoint::File(PathBuf::from(&parts[0])), names[0].to_owned());
            }
            self.require_one_machine(several_machines);
            return (MeetingPoint::Machine, format!("{}={}", names.join(","), parts.join(",")));
        }
        if variables.is_some_and(|v| v.launcher == Launcher::Pmi) {
            // MPICH's mpirun names no job; its ranks on a machine are children of one process.
            self.sources.insert("meeting", "the process that started the ranks".to_owned());
            self.require_one_machine(several_machines);
            let parent = rustix::process::getppid().map_or(0, |pid| pid.as_raw_nonzero().get());
            return (MeetingPoint::Machine, format!("parent={parent}"));
        }
        let missing: Vec<&str> = [(address_variable, host.is_none()), (port_variable, port.is_none())]
            .iter()
            .filter(|(_, missing)| *missing)
            .map(|(name, _)| *name)
            .collect();
        let instead = if names.is_empty() { String::new() } else { format!(" (or {})", names.join(" and ")) };
        self.mistakes.push(format!("there is no meeting point: {}{instead} not set", missing.join(" and ")));
        (MeetingPoint::Machine, String::new())
    }

    /// The launcher's own name of the job is known on one machine only.
    fn require_one_machine(&mut self, several_machines: bool) {
        if several_machines {
            let text =
                "the ranks are on several machines, which meet at MASTER_ADDR and MASTER_PORT only; they are not set";
            self.mistakes.push(text.to_owned());
        }
    }
}

/// Whether a host's name or address means this machine's loopback.
pub(super) fn is_loopback(host: &str) -> bool {
    let address = host.trim_start_matches('[').trim_end_matches(']').parse::<std::net::IpAddr>();
    host.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn find(given: &Given, variables: &[(&str, &str)]) -> Result<Discovery> {
        let variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        discover(given, &|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    fn message(given: &Given, variables: &[(&str, &str)]) -> String {
        find(given, variables).expect_err("something is wrong").to_string()
    }

    const MASTER: [(&str, &str); 2] = [("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "29500")];

    #[test]
    fn every_launcher_is_understood() {
        type Case<'a> = (&'a [(&'a str, &'a str)], Launcher, [u32; 4]);
        let cases: [Case<'_>; 5] = [
            (
                &[
                    ("RANK", "3"),
                    ("WORLD_SIZE", "8"),
                    ("LOCAL_RANK", "1"),
                    ("LOCAL_WORLD_SIZE", "2"),
                    ("MASTER_ADDR", "localhost"),
                    ("MASTER_PORT", "1"),
                    ("OMPI_COMM_WORLD_RANK", "0"),
                ],
                Launcher::Torch,
                [3, 8, 1, 2],
            ),
            (
                &[("TRT_MY_RANK", "1"), ("TRT_WORLD_SIZE", "2"), ("TRT_NCCL_ID_FILE", "/tmp/id")],
                Launcher::TensorRt,
                [1, 2, 1, 2],
            ),
            (
                &[
                    ("OMPI_COMM_WORLD_RANK", "5"),
                    ("OMPI_COMM_WORLD_SIZE", "6"),
                    ("OMPI_COMM_WORLD_LOCAL_RANK", "2"),
                    ("OMPI_COMM_WORLD_LOCAL_SIZE", "6"),
                    ("PMIX_NAMESPACE", "77"),
                ],
                Launcher::OpenMpi,
                [5, 6, 2, 6],
            ),
            (
                &[("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("MPI_LOCALRANKID", "1"), ("MPI_LOCALNRANKS", "4")],
                Launcher::Pmi,
                [1, 4, 1, 4],
            ),
            (
                &[
                    ("SLURM_PROCID", "2"),
                    ("SLURM_NTASKS", "4"),
                    ("SLURM_LOCALID", "0"),
                    ("SLURM_JOB_ID", "9"),
                    ("SLURM_STEP_ID", "0"),
                ],
                Launcher::Slurm,
                [2, 4, 0, 4],
            ),
        ];
        for (variables, launcher, [rank, world_size, local_rank, local_world_size]) in cases {
            let found = find(&Given::default(), variables).unwrap_or_else(|e| panic!("{launcher}: {e}"));
            assert_eq!(found.launcher, launcher);
            let numbers = (found.rank.0, found.world_size, found.local_rank, found.local_world_size);
            assert_eq!(numbers, (rank, world_size, local_rank, local_world_size), "{launcher}");
            assert!(found.sources.contains_key("meeting"));
        }
    }

    #[test]
    fn explicit_values_come_first_and_need_only_a_meeting_point() {
        let given = Given { rank: Some(1), world_size: Some(2), ..Given::default() };
        let mut variables = MASTER.to_vec();
        variables.extend([("RANK", "7"), ("WORLD_SIZE", "9")]);
        let found = find(&given, &variables).expect("complete");
        assert_eq!((found.launcher, found.rank, found.world_size), (Launcher::Explicit, Rank(1), 2));
        assert_eq!(found.sources["rank"], "given by the caller");
        assert_eq!(found.sources["meeting"], "MASTER_ADDR, MASTER_PORT");
    }

    #[test]
    fn loopback_names_are_one_and_jobs_are_apart() {
        let job = |host: &str, run: &str| {
            let variables = [
                ("RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("MASTER_ADDR", host),
                ("MASTER_PORT", "5"),
                ("TORCHELASTIC_RUN_ID", run),
            ];
            find(&Given::default(), &variables).expect("complete").job
        };
        assert_eq!(job("localhost", "a"), job("127.0.0.1", "a"));
        assert_eq!(job("::1", "a"), job("[::1]", "a"));
        assert_ne!(job("localhost", "a"), job("localhost", "b"));
        assert_ne!(job("10.0.0.1", "a"), job("localhost", "a"));
    }

    #[test]
    fn each_has_its_meeting_point() {
        let at = |variables: &[(&str, &str)]| find(&Given::default(), variables).map(|found| found.meeting);
        let ranks = [("RANK", "0"), ("WORLD_SIZE", "4")];
        let remote = [ranks.as_slice(), &[("MASTER_ADDR", "node7"), ("MASTER_PORT", "29500")]].concat();
        let node7 = |port| MeetingPoint::Address { host: "node7".to_owned(), port };
        assert_eq!(at(&remote).expect("complete"), node7(29501));
        let settable = [remote.as_slice(), &[("DCL_RENDEZVOUS_PORT", "4000")]].concat();
        assert_eq!(at(&settable).expect("complete"), node7(4000));
        assert_eq!(at(&[ranks.as_slice(), &MASTER].concat()).expect("complete"), MeetingPoint::Machine);
        let trt = [("TRT_MY_RANK", "1"), ("TRT_WORLD_SIZE", "2"), ("TRT_NCCL_ID_FILE", "/tmp/id")];
        assert_eq!(at(&trt).expect("complete"), MeetingPoint::File("/tmp/id".into()));
        let spread = [
            ("OMPI_COMM_WORLD_RANK", "5"),
            ("OMPI_COMM_WORLD_SIZE", "6"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "3"),
            ("PMIX_NAMESPACE", "77"),
        ];
        assert_eq!(
            at(&spread).expect_err("two machines").to_string(),
            "launcher Open MPI: the ranks are on several machines, which meet at MASTER_ADDR and MASTER_PORT only; they are not \
             set"
        );
    }

    #[test]
    fn everything_missing_or_contradictory_is_told_at_once() {
        let none = Given::default();
        assert_eq!(
            message(&none, &[]),
            "launcher none (given by the caller): rank is not given, and none of RANK, TRT_MY_RANK, OMPI_COMM_WORLD_RANK, \
             PMI_RANK, SLURM_PROCID is set; world_size is not given, and none of WORLD_SIZE, TRT_WORLD_SIZE, \
             OMPI_COMM_WORLD_SIZE, PMI_SIZE, SLURM_NTASKS is set; there is no meeting point: MASTER_ADDR and MASTER_PORT not \
             set"
        );
        assert_eq!(
            message(&none, &[("RANK", "one"), ("MASTER_ADDR", "x"), ("MASTER_PORT", "70000")]),
            "launcher torchrun: RANK is \"one\", which is not a number; WORLD_SIZE is not set; MASTER_PORT is \"70000\", which \
             is not a port"
        );
        assert_eq!(
            message(&none, &[("TRT_MY_RANK", "2"), ("TRT_WORLD_SIZE", "2")]),
            "launcher TensorRT's sample: rank 2 is not one of 2; there is no meeting point: MASTER_ADDR and MASTER_PORT (or \
             TRT_NCCL_ID_FILE) not set"
        );
        let restricted = Given { launcher: Some(Launcher::Slurm), ..Given::default() };
        let mut variables = MASTER.to_vec();
        variables.extend([("RANK", "0"), ("WORLD_SIZE", "1")]);
        assert_eq!(
            message(&restricted, &variables),
            "launcher SLURM: SLURM_PROCID is not set; SLURM_NTASKS is not set"
        );
    }
}
