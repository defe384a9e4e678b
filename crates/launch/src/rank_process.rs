//! The process of one rank.

use std::collections::BTreeSet;
use std::io::{Error, Result};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus};

use rustix::process::{
    Pid, Resource, Rlimit, Signal, WaitId, WaitIdOptions, getpgid, getpid, getppid, kill_process, kill_process_group,
    set_parent_process_death_signal, setrlimit, waitid,
};
use rustix::thread::{CpuSet, sched_setaffinity};

/// What a signal for a rank goes to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Target {
    Process(Pid),
    Group(Pid),
}

impl Target {
    /// Sends a signal. An error means that all its processes have ended.
    pub(super) fn send(self, signal: Signal) {
        let _ = match self {
            Target::Process(pid) => kill_process(pid, signal),
            Target::Group(pid) => kill_process_group(pid, signal),
        };
    }

    /// As `kill(2)` takes it: a group is negative.
    pub(super) fn as_raw(self) -> i32 {
        match self {
            Target::Process(pid) => pid.as_raw_pid(),
            Target::Group(pid) => -pid.as_raw_pid(),
        }
    }
}

/// A rank's process. It is not reaped before the job has ended, so that no other process gets its
/// number.
pub(super) struct RankProcess {
    pub(super) child: Child,
    own_group: bool,
    /// Tells of its end.
    pub(super) pidfd: Option<OwnedFd>,
    /// How it has ended, if it has.
    pub(super) status: Option<ExitStatus>,
}

impl RankProcess {
    /// Starts the process: it ends with this one, has these CPUs and this limit of open files if
    /// they are given, and may have a process group of its own.
    pub(super) fn start(
        mut command: Command,
        own_group: bool,
        cpus: Option<CpuSet>,
        files: Option<Rlimit>,
    ) -> Result<Self> {
        let parent = getpid();
        if own_group {
            command.process_group(0);
        }
        let set_up = move || {
            set_parent_process_death_signal(Some(Signal::KILL))?;
            // The parent may have died before the call above.
            if getppid() != Some(parent) {
                return Err(Error::from_raw_os_error(libc::ESRCH));
            }
            if let Some(cpus) = &cpus {
                sched_setaffinity(None, cpus)?;
            }
            Ok(files.map_or(Ok(()), |files| setrlimit(Resource::Nofile, files))?)
        };
        // SAFETY: between fork and exec the child makes system calls only. They neither allocate
        // nor take a lock.
        unsafe { command.pre_exec(set_up) };
        Ok(RankProcess { child: command.spawn()?, own_group, pidfd: None, status: None })
    }

    pub(super) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(super) fn target(&self) -> Target {
        if self.own_group { Target::Group(self.pid()) } else { Target::Process(self.pid()) }
    }

    /// How the rank has ended, if it has.
    pub(super) fn poll(&mut self) -> Result<Option<ExitStatus>> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let ended = waitid(WaitId::Pid(self.pid()), options)?;
        let raw = |code: i32, signal: i32| ExitStatus::from_raw(code << 8 | signal);
        self.status = ended.map(|ended| raw(ended.exit_status().unwrap_or(0), ended.terminating_signal().unwrap_or(0)));
        Ok(self.status)
    }

    /// Whether a process is this rank: the one that was started, or one of its group.
    pub(super) fn includes(&self, pid: Pid) -> bool {
        pid == self.pid() || (self.own_group && getpgid(Some(pid)).ok() == Some(self.pid()))
    }

    /// Whether a process of the rank's group runs: the rank, or one that it started. Without a
    /// group only the rank counts. `groups` are those in which a process runs, if they are known.
    pub(super) fn has_processes(&self, groups: Option<&BTreeSet<i32>>) -> bool {
        match self.own_group {
            true => groups.is_none_or(|groups| groups.contains(&self.pid().as_raw_pid())),
            false => self.status.is_none(),
        }
    }
}
