//! Where the ranks meet, and the job's name.

use std::num::NonZeroU16;
use std::path::PathBuf;

use super::CallerValues;
use super::launcher::{Launcher, LauncherVariables};
use super::search::{GIVEN, Search};
use crate::environment::endpoint::{Endpoint, default_port, is_loopback};
use crate::util::machine::HOST_ID;

const ADDRESS: &str = "MASTER_ADDR";
const PORT: &str = "MASTER_PORT";
pub(super) const RENDEZVOUS_PORT: &str = "DCL_RENDEZVOUS_PORT";

/// Part of the job's name if they are set, whatever the launcher.
const RUN: [&str; 3] = ["DCL_JOB_ID", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"];

/// Variables of which srun sets one for the ranks of an MPI.
const OF_PMI: [&str; 4] = ["PMIX_RANK", "PMIX_NAMESPACE", "PMI_RANK", "PMI_FD"];

/// The process of MPICH and Intel MPI that starts the ranks of one machine. None of their variables
/// names the job.
pub(super) const HYDRA_PROXY: &str = "hydra_pmi_proxy";

/// The variables that are read here, whatever the launcher.
pub(super) fn variable_names() -> impl Iterator<Item = &'static str> {
    [ADDRESS, PORT, RENDEZVOUS_PORT, HOST_ID].into_iter().chain(RUN)
}

/// What the text of a job begins with whose ranks meet on one machine, because its address is the
/// loopback.
pub(super) const LOOPBACK: &str = "loopback:";

impl Search<'_> {
    /// Where the ranks meet, if not on this machine by the job's name, and a text that is the same
    /// on every rank of the job and on no other job's. `several_machines` says why the ranks are on
    /// several machines, if they are.
    pub(super) fn rendezvous_point(
        &mut self,
        given: &CallerValues,
        variables: Option<&LauncherVariables>,
        several_machines: Option<&str>,
    ) -> (Option<Endpoint>, String) {
        if let Some(job) = &given.job {
            self.sources.insert("rendezvous", GIVEN.to_owned());
            self.require_one_machine(several_machines);
            return (None, format!("job {job}"));
        }
        let host = given.host.clone().or_else(|| self.text(ADDRESS).filter(|text| !text.is_empty()));
        // torchrun's restarts of one job do not meet each other.
        let run = self.texts(&RUN).join("/");
        let file = variables.and_then(|v| v.rendezvous_file);
        let name = self.job_name(variables, several_machines.is_some());
        let port = self.port(given.port, PORT);
        self.master_port = port;
        let rendezvous_port = self.port(given.rendezvous_port, RENDEZVOUS_PORT);
        if let (Some(host), Some(port)) = (&host, port) {
            let source = if given.host.is_some() { GIVEN } else { "MASTER_ADDR, MASTER_PORT" };
            self.sources.insert("rendezvous", source.to_owned());
            // Two jobs of one launcher may have inherited the same address.
            let of_launcher = name.map_or(String::new(), |(name, _)| format!("/{name}"));
            if is_loopback(host) && !self.has_host_id() {
                let is_slurm = variables.is_some_and(|v| v.launcher == Launcher::Slurm);
                if let Some(reason) = several_machines.filter(|_| is_slurm) {
                    self.mistakes.push(format!(
                        "{ADDRESS} is {host}, which every machine has for itself, and the ranks are on several \
                         machines ({reason})"
                    ));
                }
                return (None, format!("{LOOPBACK}{port}/{run}{of_launcher}"));
            }
            let job = format!("{host}:{port}/{run}{of_launcher}");
            let port = rendezvous_port.unwrap_or_else(|| default_port(port));
            return (Some(Endpoint::Tcp { host: host.clone(), port }), job);
        }
        if let Some(variable) = file
            && let Some(path) = self.system.variable(variable).filter(|path| !path.is_empty())
        {
            self.sources.insert("rendezvous", variable.to_owned());
            return (Some(Endpoint::File(PathBuf::from(path))), variable.to_owned());
        }
        let is_lone = host.is_none() && port.is_none();
        if is_lone && self.meets_over_mpi(given, variables, several_machines.is_some()) {
            self.sources.insert("rendezvous", "MPI".to_owned());
            let launcher = variables.map_or(Launcher::Explicit, |v| self.name(v));
            return (Some(Endpoint::Mpi(launcher.name())), format!("MPI {run}"));
        }
        if let Some((name, source)) = name {
            self.sources.insert("rendezvous", source);
            self.require_one_machine(several_machines);
            return (None, name);
        }
        if variables.is_some_and(|v| v.launcher == Launcher::Pmi) && several_machines.is_none() {
            self.mistakes.push(format!(
                "there is no rendezvous point: {ADDRESS} and {PORT} are not set, no variable of PMI names the \
                 job, and no process {HYDRA_PROXY} started this one"
            ));
        } else if several_machines.is_some() && is_lone {
            self.require_one_machine(several_machines);
        } else {
            let missing = [host.is_none().then_some(ADDRESS), port.is_none().then_some(PORT)];
            let missing: Vec<&str> = missing.into_iter().flatten().collect();
            let names: Vec<&str> = variables.iter().flat_map(|v| v.job).copied().chain(file).collect();
            let instead = if names.is_empty() { String::new() } else { format!(" (or {})", names.join(" and ")) };
            self.mistakes.push(format!("there is no rendezvous point: {}{instead} not set", missing.join(" and ")));
        }
        (None, String::new())
    }

    fn has_host_id(&mut self) -> bool {
        self.text(HOST_ID).is_some_and(|id| !id.is_empty())
    }

    /// Whether ranks for which no host and port is set meet over MPI: those that a launcher of MPI
    /// has started on several machines, or if the backend needs MPI anyway.
    fn meets_over_mpi(&mut self, given: &CallerValues, variables: Option<&LauncherVariables>, are_apart: bool) -> bool {
        let starts_mpi = |v: &LauncherVariables| match v.launcher {
            Launcher::OpenMpi | Launcher::Pmi => true,
            // srun with a --mpi. Without it MPI would end the process.
            Launcher::Slurm => OF_PMI.iter().any(|name| self.is_set(name)),
            _ => false,
        };
        given.over_mpi || (variables.is_some_and(starts_mpi) && (are_apart || self.has_host_id()))
    }

    /// The launcher's own name of the job, and its source.
    fn job_name(&mut self, variables: Option<&LauncherVariables>, several_machines: bool) -> Option<(String, String)> {
        let variables = variables?;
        let names = variables.job;
        let parts = self.texts(names);
        if !names.is_empty() && parts.len() == names.len() {
            return Some((format!("{}={}", names.join(","), parts.join(",")), names.join(", ")));
        }
        if variables.launcher != Launcher::Pmi || several_machines {
            return None;
        }
        // Each machine has one of them.
        let proxy = self.system.ancestors().iter().find(|ancestor| ancestor.name == HYDRA_PROXY)?;
        let name = format!("{HYDRA_PROXY}={},{}", proxy.pid, proxy.start_time);
        Some((name, format!("the process {HYDRA_PROXY} that started the ranks")))
    }

    /// A port of the caller's or of a variable. One that is wrong is a mistake, but not missing.
    pub(super) fn port(&mut self, given: Option<u16>, name: &str) -> Option<u16> {
        let text = self.text(name).filter(|text| !text.is_empty());
        given.or_else(|| {
            let text = text?;
            match text.trim().parse::<NonZeroU16>() {
                Ok(port) => Some(port.get()),
                Err(_) => {
                    self.mistakes.push(format!("{name} is {text:?}, which is not a port"));
                    Some(0)
                }
            }
        })
    }

    /// The launcher's own name of the job is known on one machine only.
    fn require_one_machine(&mut self, several_machines: Option<&str>) {
        if let Some(reason) = several_machines {
            let or = if self.is_set("SLURM_PROCID") { ", or give srun the --mpi of the ranks' MPI" } else { "" };
            self.mistakes.push(format!(
                "the ranks are on several machines ({reason}), and do not meet by the job's name; set MASTER_ADDR and \
                 MASTER_PORT{or}"
            ));
        }
    }
}
