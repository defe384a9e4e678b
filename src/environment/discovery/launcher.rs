//! The launchers, their variables, and which launcher counts, by the rules of
//! docs/src/launchers.md.

use std::fmt;

use super::search::Search;

/// What started the ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Launcher {
    /// The caller gave rank and world size.
    Explicit,
    /// torchrun, ColossalAI: `RANK`, `WORLD_SIZE`.
    Torch,
    /// TensorRT's sample: `TRT_MY_RANK`, `TRT_WORLD_SIZE`, `TRT_NCCL_ID_FILE`.
    TensorRt,
    /// Open MPI's mpirun: `OMPI_COMM_WORLD_RANK`, `OMPI_COMM_WORLD_SIZE`.
    OpenMpi,
    /// MPICH's and Intel MPI's mpirun: `PMI_RANK`, `PMI_SIZE`.
    Pmi,
    /// srun: `SLURM_PROCID`, `SLURM_NTASKS`.
    Slurm,
    /// `distcollective launch`, and programs that use the package `distcollective-launch`:
    /// torchrun's variables and `DCL_LAUNCH_SOCKET`.
    DistCollective,
}

/// The variable with the name of the socket on which `distcollective launch` listens for reports.
pub(crate) const LAUNCH_SOCKET: &str = "DCL_LAUNCH_SOCKET";

/// Variables that torchrun sets, and `distcollective launch` does not.
const TORCH_ELASTIC: [&str; 3] = ["TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS"];

/// The variables of a launcher.
pub(super) struct LauncherVariables {
    pub(super) launcher: Launcher,
    pub(super) rank: &'static str,
    pub(super) world_size: &'static str,
    /// Local rank and local world size.
    pub(super) local: Option<[&'static str; 2]>,
    /// The variables that together name the job, if MASTER_ADDR and MASTER_PORT do not.
    pub(super) job: &'static [&'static str],
    /// The variable that names a file through which the ranks find rank 0.
    pub(super) rendezvous_file: Option<&'static str>,
}

const fn numbers(launcher: Launcher, rank: &'static str, world_size: &'static str) -> LauncherVariables {
    LauncherVariables { launcher, rank, world_size, local: None, job: &[], rendezvous_file: None }
}

/// All launchers, in the order in which they count.
pub(super) static LAUNCHERS: [LauncherVariables; 5] = [
    LauncherVariables {
        local: Some(["LOCAL_RANK", "LOCAL_WORLD_SIZE"]),
        ..numbers(Launcher::Torch, "RANK", "WORLD_SIZE")
    },
    LauncherVariables {
        rendezvous_file: Some("TRT_NCCL_ID_FILE"),
        ..numbers(Launcher::TensorRt, "TRT_MY_RANK", "TRT_WORLD_SIZE")
    },
    LauncherVariables {
        local: Some(["OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE"]),
        job: &["PMIX_NAMESPACE"],
        ..numbers(Launcher::OpenMpi, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE")
    },
    LauncherVariables {
        local: Some(["MPI_LOCALRANKID", "MPI_LOCALNRANKS"]),
        ..numbers(Launcher::Pmi, "PMI_RANK", "PMI_SIZE")
    },
    LauncherVariables {
        local: Some(["SLURM_LOCALID", "SLURM_NTASKS_PER_NODE"]),
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
        ..numbers(Launcher::Slurm, "SLURM_PROCID", "SLURM_NTASKS")
    },
];

impl Launcher {
    /// The name that messages use: `torchrun`, `SLURM`.
    pub const fn name(self) -> &'static str {
        match self {
            Launcher::Explicit => "none (given by the caller)",
            Launcher::Torch => "torchrun",
            Launcher::TensorRt => "TensorRT's sample",
            Launcher::OpenMpi => "Open MPI",
            Launcher::Pmi => "PMI (MPICH, Intel MPI)",
            Launcher::Slurm => "SLURM",
            Launcher::DistCollective => "distcollective launch",
        }
    }
}

impl fmt::Display for Launcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl LauncherVariables {
    /// The variables that a launcher sets.
    pub(super) fn of(launcher: Launcher) -> Option<&'static LauncherVariables> {
        let launcher = if launcher == Launcher::DistCollective { Launcher::Torch } else { launcher };
        LAUNCHERS.iter().find(|v| v.launcher == launcher)
    }
}

impl Search<'_> {
    /// The launcher that has set these variables: torchrun's may be those of `distcollective
    /// launch`.
    pub(super) fn name(&self, variables: &LauncherVariables) -> Launcher {
        let is_ours = self.is_set(LAUNCH_SOCKET) && !TORCH_ELASTIC.iter().any(|name| self.is_set(name));
        if is_ours && variables.launcher == Launcher::Torch { Launcher::DistCollective } else { variables.launcher }
    }

    /// The launcher that counts. If the launchers contradict each other, that is a mistake.
    pub(super) fn launcher(&mut self) -> Option<&'static LauncherVariables> {
        let is_complete = |v: &&LauncherVariables| self.is_set(v.rank) && self.is_set(v.world_size);
        let mut complete: Vec<&'static LauncherVariables> = LAUNCHERS.iter().filter(is_complete).collect();
        if complete.is_empty() {
            // The error then names the variable that is missing.
            return LAUNCHERS.iter().find(|v| self.is_set(v.rank) || self.is_set(v.world_size));
        }
        let of = |launcher| complete.iter().find(|v| v.launcher == launcher).copied();
        if let (Some(pmi), Some(slurm)) = (of(Launcher::Pmi), of(Launcher::Slurm)) {
            // srun sets PMI's variables too (`srun --mpi=pmi2`), but not the local ones that mpirun
            // sets.
            if self.give_equal_numbers(pmi, slurm) && !pmi.local.iter().flatten().any(|name| self.is_set(name)) {
                complete.retain(|v| v.launcher != Launcher::Pmi);
            }
        }
        // Otherwise SLURM's are those of the allocation, or of the task in which the other one
        // runs.
        if complete.len() > 1 {
            complete.retain(|v| v.launcher != Launcher::Slurm);
        }
        let mut chosen = *complete.first()?;
        for other in complete.into_iter().skip(1) {
            match self.inner_of(chosen, other) {
                Some(inner) => chosen = inner,
                // A program may have set one launcher's variables from the other's.
                None if self.give_equal_numbers(chosen, other) => {}
                None => {
                    let sides = [chosen, other].map(|v| {
                        let value = |name| self.system.variable(name).unwrap_or_default();
                        format!("{} is {:?} and {} {:?}", v.rank, value(v.rank), v.world_size, value(v.world_size))
                    });
                    self.mistakes.push(format!(
                        "{}: {} and {} disagree, and no parent process shows which of them runs inside the other; unset \
                         the variables of the one that does not count",
                        sides.join(", but "),
                        self.name(chosen),
                        self.name(other)
                    ));
                }
            }
        }
        Some(chosen)
    }

    /// A number that has to be there: the caller's, else that of the variable whose name `name`
    /// gives. If no launcher counts, the mistake has the names of all launchers' variables.
    pub(super) fn required(
        &mut self,
        what: &'static str,
        given: Option<u32>,
        variables: Option<&LauncherVariables>,
        name: fn(&LauncherVariables) -> &'static str,
    ) -> Option<u32> {
        let variable = variables.map(name);
        let mistake = match (given, variable) {
            (None, None) => {
                let all: Vec<_> = LAUNCHERS.iter().map(name).collect();
                format!("{what} is not given, and none of {} is set", all.join(", "))
            }
            (None, Some(name)) if !self.is_set(name) => format!("{name} is not set"),
            _ => return self.optional(what, given, variable),
        };
        self.mistakes.push(mistake);
        None
    }

    /// Whether two launchers give the same rank and world size.
    fn give_equal_numbers(&self, one: &LauncherVariables, other: &LauncherVariables) -> bool {
        let number = |name| self.system.variable(name)?.to_str()?.trim().parse::<u32>().ok();
        let same = |a, b| number(a).is_some() && number(a) == number(b);
        same(one.rank, other.rank) && same(one.world_size, other.world_size)
    }

    /// Which of two launchers was started by the other: its variables were set later, so an
    /// ancestor does not have them yet.
    fn inner_of(
        &self,
        one: &'static LauncherVariables,
        other: &'static LauncherVariables,
    ) -> Option<&'static LauncherVariables> {
        for ancestor in self.system.ancestors() {
            ancestor.variables.as_ref()?;
            let has = |name: &str| ancestor.variable(name) == self.system.variable(name);
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
}
