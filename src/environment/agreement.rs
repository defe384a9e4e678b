//! What ranks tell each other before there is a communicator, and what they conclude from it: the
//! backend, and rank 0's seed.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::process;
use crate::comm::{BackendKind, can_share_gpus, nccl_library};
use crate::cuda::{Device, visible_count};
use crate::error::{Error, ErrorKind, Result, bail};
use crate::util::log::event;
use crate::util::machine;
use crate::util::text::{count_of, list_ranks};

/// What a rank tells the others of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankInfo {
    wanted: BackendKind,
    /// Ranks for which it is equal are on one machine.
    machine: String,
    hostname: String,
    local_rank: u32,
    /// The PID namespace. Containers on one machine, each with GPUs of its own, have local ranks of
    /// their own.
    container: u64,
    seed: u64,
    /// The rank's GPU, or why the rank cannot use NCCL.
    gpu: std::result::Result<RankGpu, NcclObstacle>,
}

/// Why a rank cannot use NCCL.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NcclObstacle {
    reason: String,
    /// The rank sees GPUs.
    sees_gpus: bool,
    /// Something is missing or does not work. Without a GPU of the rank's number nothing is.
    is_fault: bool,
}

/// The GPU that a rank would use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RankGpu {
    /// It is different for each GPU of a machine.
    bus_id: String,
    /// Whether NCCL lets several ranks share it.
    is_shareable: bool,
}

impl RankGpu {
    /// The GPU of this number, if NCCL can use it.
    fn find(ordinal: u32) -> std::result::Result<Self, NcclObstacle> {
        let count = visible_count();
        let sees_gpus = !matches!(count, Ok(0));
        // NCCL is not loaded where there is no GPU.
        let library = if sees_gpus { nccl_library().map(|_| ()) } else { Ok(()) };
        let is_fault = sees_gpus && (library.is_err() || !count.is_ok_and(|count| ordinal >= count));
        let found = library.and_then(|()| {
            let device = Device::open(ordinal)?;
            Ok(RankGpu { bus_id: device.bus_id.clone(), is_shareable: can_share_gpus()? })
        });
        found.map_err(|error: Error| NcclObstacle { reason: error.to_string(), sees_gpus, is_fault })
    }
}

/// What all ranks conclude.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AgreedSetup {
    /// Never [`BackendKind::Auto`].
    pub(super) backend: BackendKind,
    /// The number of each rank's machine, counted in the order of their first ranks.
    pub(super) machines: Box<[u32]>,
    /// Rank 0's.
    pub(super) seed: u64,
}

impl AgreedSetup {
    pub(super) fn is_one_machine(&self) -> bool {
        is_one(&self.machines)
    }

    /// Concludes the same on every rank from what all ranks told. `between_machines` is the backend
    /// of ranks on several machines without GPUs. If the backend cannot be used, the error names
    /// the ranks and the reasons.
    pub(super) fn of_ranks(infos: &[RankInfo], between_machines: BackendKind) -> Result<Self> {
        let ranks_that = |condition: &dyn Fn(&RankInfo) -> bool| {
            let ranks = (0..infos.len()).filter(|rank| condition(&infos[*rank]));
            ranks.map(|rank| rank as u32).collect::<Vec<_>>()
        };
        let kinds =
            [BackendKind::Nccl, BackendKind::Host, BackendKind::Ucx, BackendKind::Mpi, BackendKind::Auto].into_iter();
        let sides: Vec<String> = kinds
            .map(|wanted| (wanted, ranks_that(&|info| info.wanted == wanted)))
            .filter(|(_, ranks)| !ranks.is_empty())
            .map(|(wanted, ranks)| {
                let verb = if ranks.len() == 1 { "asks" } else { "ask" };
                format!("{} {verb} for {:?}", list_ranks(ranks), wanted.name())
            })
            .collect();
        if sides.len() > 1 {
            bail!(Disagreement, "ranks want different backends: {}", sides.join("; "));
        }
        if let Some(warning) = same_local_ranks(infos) {
            event!(WARN, "{warning}");
        }
        let first = &infos[0];
        let machines = machines_of(infos);
        let without_gpus = if is_one(&machines) { BackendKind::Host } else { between_machines };
        let backend = match (first.wanted, obstacle_to_nccl(infos)) {
            (BackendKind::Nccl | BackendKind::Auto, None) => BackendKind::Nccl,
            (BackendKind::Nccl, Some(obstacle)) => {
                bail!(Unsupported, "NCCL cannot be used: {obstacle}; the backend \"host\" does the same without GPUs")
            }
            (BackendKind::Auto, Some(obstacle)) if infos.iter().any(RankInfo::has_fault) => bail!(
                Unsupported,
                "there are GPUs, and NCCL cannot be used: {obstacle}; the backend \"host\" does the same without \
                 GPUs"
            ),
            (BackendKind::Auto, Some(obstacle)) => {
                let text = format!("the host backend is used, because NCCL cannot be: {obstacle}");
                match infos.iter().any(RankInfo::sees_gpus) {
                    true => event!(WARN, "{text}"),
                    false => event!(DEBUG, "{text}"),
                }
                without_gpus
            }
            (BackendKind::Host, _) => without_gpus,
            (kind @ (BackendKind::Ucx | BackendKind::Mpi), _) => kind,
        };
        Ok(AgreedSetup { backend, machines, seed: first.seed })
    }

    /// The addresses of all ranks on several machines, of which each has told its own, or why it
    /// cannot use what moves the elements.
    pub(super) fn addresses(&self, told: Vec<Result<Vec<u8>, String>>) -> Result<Vec<Vec<u8>>> {
        let what = format!("{} cannot be used", self.backend.name().to_uppercase());
        self.check_all(&told, ErrorKind::Unsupported, &what)?;
        Ok(told.into_iter().flatten().collect())
    }

    /// The error of ranks on several machines of which some have told why they failed.
    pub(super) fn check_all<T>(&self, told: &[Result<T, String>], kind: ErrorKind, what: &str) -> Result<()> {
        let failed = told.iter().zip(0..).filter_map(|(told, rank)| Some((told.as_ref().err()?.as_str(), rank)));
        let Some(reasons) = by_reason(failed) else { return Ok(()) };
        let machines = self.machines.iter().max().map_or(0, |last| *last as usize + 1);
        let (machines, engine) = (count_of(machines, "machine"), self.backend.name().to_uppercase());
        let text =
            format!("the ranks are on {machines}, between which {engine} moves the elements, and {what}: {reasons}");
        Err(Error::new(kind, text))
    }
}

fn is_one(machines: &[u32]) -> bool {
    machines.iter().all(|machine| *machine == 0)
}

fn machines_of(infos: &[RankInfo]) -> Box<[u32]> {
    machine::numbers(infos.iter().map(|info| info.machine.as_str()))
}

/// The reasons of ranks, each once: `rank 0: there is no GPU; ranks 1 and 2: there is no NCCL`.
fn by_reason<'a>(of_ranks: impl Iterator<Item = (&'a str, u32)>) -> Option<String> {
    let mut reasons: Vec<(&str, Vec<u32>)> = Vec::new();
    for (reason, rank) in of_ranks {
        match reasons.iter_mut().find(|(other, _)| *other == reason) {
            Some((_, ranks)) => ranks.push(rank),
            None => reasons.push((reason, vec![rank])),
        }
    }
    let texts: Vec<String> =
        reasons.into_iter().map(|(reason, ranks)| format!("{}: {reason}", list_ranks(ranks))).collect();
    (!texts.is_empty()).then(|| texts.join("; "))
}

impl RankInfo {
    fn has_fault(&self) -> bool {
        self.gpu.as_ref().is_err_and(|obstacle| obstacle.is_fault)
    }

    fn sees_gpus(&self) -> bool {
        self.gpu.as_ref().map_or_else(|obstacle| obstacle.sees_gpus, |_| true)
    }

    /// What this process tells the others. `ordinal` gives the number of the GPU that it would use.
    /// It may load CUDA, so it is called only where the rank may use NCCL.
    pub(super) fn of_this_process(
        wanted: BackendKind,
        seed: u64,
        ordinal: impl FnOnce() -> u32,
        local_rank: u32,
    ) -> Self {
        let gpu = match wanted {
            // CUDA is not loaded.
            BackendKind::Host | BackendKind::Ucx | BackendKind::Mpi => {
                let reason = "it asks for the host backend".to_owned();
                Err(NcclObstacle { reason, sees_gpus: false, is_fault: false })
            }
            BackendKind::Nccl | BackendKind::Auto => RankGpu::find(ordinal()),
        };
        RankInfo {
            wanted,
            local_rank,
            seed,
            gpu,
            container: process::ProcessIdentity::own().map_or(0, |own| own.namespace),
            machine: machine::own_name(),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }
}

/// The warning about ranks of one machine and container that have the same local rank, by which
/// ranks choose their GPUs. That is not an error: agents of torchrun may share a machine, each with
/// GPUs of its own. Two ranks on one GPU are found by the GPU.
fn same_local_ranks(infos: &[RankInfo]) -> Option<String> {
    let mut seen = BTreeMap::new();
    infos.iter().enumerate().find_map(|(rank, info)| {
        let local_rank = info.local_rank;
        let first = seen.insert((&info.machine, info.container, local_rank), rank)?;
        Some(format!(
            "ranks {first} and {rank} both have local rank {local_rank} on {}; the ranks of one machine have different local \
             ranks (LOCAL_RANK, or the launcher's variable for it), by which they choose their GPUs",
            info.hostname
        ))
    })
}

/// Why these ranks cannot use NCCL.
fn obstacle_to_nccl(infos: &[RankInfo]) -> Option<String> {
    let obstacles = (0..).zip(infos).filter_map(|(rank, info)| Some((info.gpu.as_ref().err()?.reason.as_str(), rank)));
    if let Some(reasons) = by_reason(obstacles) {
        return Some(reasons);
    }
    infos.iter().enumerate().find_map(|(rank, info)| {
        let gpu = info.gpu.as_ref().ok()?;
        let shares = |other: &RankInfo| {
            let other_gpu = other.gpu.as_ref().is_ok_and(|other| other.bus_id == gpu.bus_id);
            other_gpu && other.machine == info.machine
        };
        let first = infos[..rank].iter().position(shares)?;
        let may = |info: &RankInfo| info.gpu.as_ref().is_ok_and(|gpu| gpu.is_shareable);
        (!may(info) || !may(&infos[first])).then(|| {
            format!(
                "ranks {first} and {rank} are both on GPU {}, and NCCL has one rank a GPU; from 2.30 on several share it with \
                 NCCL_MULTI_RANK_GPU_ENABLE=1",
                gpu.bus_id
            )
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these ranks conclude, each with a local rank of its own.
    fn result_of(infos: &[RankInfo]) -> String {
        let numbered = (0..).zip(infos).map(|(local_rank, of)| RankInfo { local_rank, ..of.clone() });
        result_as_given(&numbered.collect::<Vec<_>>())
    }

    fn result_as_given(infos: &[RankInfo]) -> String {
        AgreedSetup::of_ranks(infos, BackendKind::Ucx)
            .map_or_else(|error| error.to_string(), |agreement| format!("{:?}, {}", agreement.backend, agreement.seed))
    }

    #[test]
    fn local_ranks_of_one_machine_are_different() {
        let local = |local_rank| RankInfo { local_rank, ..of(BackendKind::Auto) };
        assert_eq!(same_local_ranks(&[local(1), local(0)]), None);
        let warning = same_local_ranks(&[local(1), local(0), local(1)]).expect("two are the same");
        assert!(warning.starts_with("ranks 0 and 2 both have local rank 1 on a; "), "{warning}");
        assert_eq!(result_as_given(&[local(1), local(1)]), "Host, 5");
        for elsewhere in [RankInfo { machine: "another".to_owned(), ..local(0) }, RankInfo { container: 2, ..local(0) }]
        {
            assert_eq!(same_local_ranks(&[local(0), elsewhere]), None);
        }
        let twice = [with_gpu(BackendKind::Nccl, "01"), with_gpu(BackendKind::Nccl, "01")];
        assert!(result_as_given(&twice).contains("ranks 0 and 1 are both on GPU 01"));
    }

    fn of(wanted: BackendKind) -> RankInfo {
        let gpu = Err(NcclObstacle { reason: "there is no GPU".to_owned(), sees_gpus: false, is_fault: false });
        RankInfo {
            wanted,
            machine: "one".to_owned(),
            hostname: "a".to_owned(),
            local_rank: 0,
            container: 1,
            seed: 5,
            gpu,
        }
    }

    fn with_gpu(wanted: BackendKind, bus_id: &str) -> RankInfo {
        RankInfo { gpu: Ok(RankGpu { bus_id: bus_id.to_owned(), is_shareable: false }), ..of(wanted) }
    }

    #[test]
    fn a_rank_of_the_host_backend_does_not_ask_for_its_gpu() {
        let info = RankInfo::of_this_process(BackendKind::Host, 5, || panic!("CUDA would be loaded"), 0);
        let reason = "it asks for the host backend".to_owned();
        assert_eq!(info.gpu, Err(NcclObstacle { reason, sees_gpus: false, is_fault: false }));
    }

    #[test]
    fn all_come_to_the_same_end() {
        assert_eq!(result_of(&[of(BackendKind::Auto), RankInfo { seed: 6, ..of(BackendKind::Auto) }]), "Host, 5");
        assert_eq!(
            result_of(&[of(BackendKind::Nccl), of(BackendKind::Auto), of(BackendKind::Nccl)]),
            "ranks want different backends: ranks 0 and 2 ask for \"nccl\"; rank 1 asks for \"auto\""
        );
        let there = RankInfo { hostname: "b".to_owned(), machine: "another".to_owned(), ..of(BackendKind::Host) };
        let infos = [there.clone(), of(BackendKind::Host), there];
        assert_eq!((result_of(&infos).as_str(), &*machines_of(&infos)), ("Ucx, 5", &[0, 1, 0][..]));
        let lacking = |reason: &str| Err(reason.to_owned());
        let over_mpi = AgreedSetup::of_ranks(&infos, BackendKind::Mpi).expect("MPI");
        assert_eq!(over_mpi.backend, BackendKind::Mpi);
        let setup = AgreedSetup::of_ranks(&infos, BackendKind::Ucx).expect("UCX");
        let error = setup.addresses(vec![lacking("no UCX"), Ok(vec![7]), lacking("no UCX")]);
        assert_eq!(
            error.expect_err("two ranks have none").to_string(),
            "the ranks are on 2 machines, between which UCX moves the elements, and UCX cannot be used: ranks 0 and 2: no UCX"
        );
    }

    #[test]
    fn nccl_is_used_where_every_rank_has_a_gpu_of_its_own() {
        let [one, two] = ["01", "02"].map(|gpu| with_gpu(BackendKind::Auto, gpu));
        assert_eq!(result_of(&[one.clone(), two.clone()]), "Nccl, 5");
        assert_eq!(result_of(&[one.clone(), one.clone()]), "Host, 5");
        assert_eq!(result_of(&[one.clone(), of(BackendKind::Auto)]), "Host, 5");
        let elsewhere = |info| RankInfo { machine: "another".to_owned(), ..info };
        assert_eq!(result_of(&[one.clone(), elsewhere(one.clone())]), "Nccl, 5");
        assert_eq!(result_of(&[one, two, elsewhere(of(BackendKind::Auto))]), "Ucx, 5");
        let one = with_gpu(BackendKind::Nccl, "01");
        let ill = NcclObstacle { reason: "there is no NCCL".to_owned(), sees_gpus: true, is_fault: true };
        assert_eq!(
            result_of(&[of(BackendKind::Auto), RankInfo { gpu: Err(ill), ..of(BackendKind::Auto) }]),
            "there are GPUs, and NCCL cannot be used: rank 0: there is no GPU; rank 1: there is no NCCL; the backend \"host\" \
             does the same without GPUs"
        );
        assert_eq!(
            result_of(&[of(BackendKind::Nccl), one.clone(), of(BackendKind::Nccl)]),
            "NCCL cannot be used: ranks 0 and 2: there is no GPU; the backend \"host\" does the same without GPUs"
        );
        assert_eq!(
            result_of(&[one.clone(), one]),
            "NCCL cannot be used: ranks 0 and 1 are both on GPU 01, and NCCL has one rank a GPU; from 2.30 on several share it \
             with NCCL_MULTI_RANK_GPU_ENABLE=1; the backend \"host\" does the same without GPUs"
        );
        let shared =
            RankInfo { gpu: Ok(RankGpu { bus_id: "01".to_owned(), is_shareable: true }), ..of(BackendKind::Nccl) };
        assert_eq!(result_of(&[shared.clone(), shared.clone()]), "Nccl, 5");
        assert!(
            result_of(&[shared, with_gpu(BackendKind::Nccl, "01")])
                .starts_with("NCCL cannot be used: ranks 0 and 1 are both")
        );
    }
}
