//! What the ranks say of themselves when they have met, and what follows: the backend, and rank 0's seed.

use std::collections::BTreeMap;
use std::net::{ToSocketAddrs, UdpSocket};

use serde::{Deserialize, Serialize};

use super::discovery::is_loopback;
use super::process;
use crate::comm::{BackendKind as Wanted, nccl};
use crate::cuda::{Device, nvrtc_version};
use crate::error::{Result, bail, error};
use crate::util::text::list_ranks;

/// What a rank says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Statement {
    wanted: Wanted,
    /// What tells machines apart, as far as the host backend cares.
    machine: String,
    hostname: String,
    local_rank: u32,
    /// The PID namespace. Containers on one machine, each with GPUs of its own, count their local
    /// ranks apart.
    container: u64,
    seed: u64,
    /// Its GPU, or why it cannot use NCCL.
    gpu: std::result::Result<Gpu, String>,
}

/// The GPU that a rank would use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Gpu {
    /// What tells GPUs of a machine apart.
    bus_id: String,
    /// Whether its NCCL lets several ranks share one.
    is_shareable: bool,
}

impl Gpu {
    /// Looks whether NCCL can be used with this GPU.
    fn find(ordinal: u32) -> Result<Self> {
        let device = Device::open(ordinal)?;
        Ok(Gpu { bus_id: device.bus_id.clone(), is_shareable: nccl::can_share_gpus()? })
    }
}

/// What all ranks come to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Agreement {
    pub(super) backend: Backend,
    pub(super) is_one_machine: bool,
    /// Rank 0's.
    pub(super) seed: u64,
}

/// The backend of an environment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Backend {
    Host,
    Nccl,
}

impl Statement {
    /// What this process says, whose GPU would be the one of this number.
    pub(super) fn new(wanted: Wanted, seed: u64, ordinal: u32, local_rank: u32) -> Self {
        // Abstract sockets are found within one network namespace of one running kernel.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        let gpu = match wanted {
            // Nothing of CUDA is touched.
            Wanted::Host => Err("it asks for the host backend".to_owned()),
            Wanted::Nccl => Gpu::find(ordinal).map_err(|error| error.to_string()),
            // What is chosen without being asked for can do everything.
            Wanted::Auto => nvrtc_version().and_then(|_| Gpu::find(ordinal)).map_err(|error| error.to_string()),
        };
        Statement {
            wanted,
            local_rank,
            seed,
            gpu,
            container: process::ProcessIdentity::own().map_or(0, |own| own.namespace),
            machine: format!("{} {}", boot.trim(), network.display()),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(|e| error!(System, "a statement cannot be written").with_source(e))
    }
}

/// Lets all ranks come to the same end: a backend and rank 0's seed, or an error with everybody who stands in its way.
pub(super) fn agree(statements: &[Vec<u8>]) -> Result<Agreement> {
    let statements: Vec<Statement> = statements
        .iter()
        .enumerate()
        .map(|(rank, bytes)| {
            let damaged = |e| error!(System, "what rank {rank} says of itself cannot be read").with_source(e);
            postcard::from_bytes(bytes).map_err(damaged)
        })
        .collect::<Result<_>>()?;
    let ranks_that = |condition: &dyn Fn(&Statement) -> bool| {
        let ranks = (0..statements.len()).filter(|rank| condition(&statements[*rank]));
        ranks.map(|rank| rank as u32).collect::<Vec<_>>()
    };
    let sides: Vec<String> = [Wanted::Nccl, Wanted::Host, Wanted::Auto]
        .into_iter()
        .map(|wanted| (wanted, ranks_that(&|statement| statement.wanted == wanted)))
        .filter(|(_, ranks)| !ranks.is_empty())
        .map(|(wanted, ranks)| {
            let verb = if ranks.len() == 1 { "asks" } else { "ask" };
            format!("{} {verb} for {:?}", list_ranks(ranks), wanted.name())
        })
        .collect();
    if sides.len() > 1 {
        bail!(Disagreement, "ranks want different backends: {}", sides.join("; "));
    }
    if let Some(warning) = same_local_ranks(&statements) {
        crate::util::log::event!(WARN, "{warning}");
    }
    let first = &statements[0];
    let elsewhere = ranks_that(&|statement| statement.machine != first.machine);
    let is_one_machine = elsewhere.is_empty();
    let agreement = |backend| Agreement { backend, is_one_machine, seed: first.seed };
    let obstacle = obstacle_to_nccl(&statements);
    match (first.wanted, obstacle) {
        (Wanted::Nccl | Wanted::Auto, None) => return Ok(agreement(Backend::Nccl)),
        (Wanted::Nccl, Some(obstacle)) => bail!(
            Unsupported,
            "NCCL cannot be used: {obstacle}; the backend \"host\" does the same on one machine without GPUs"
        ),
        (Wanted::Auto, Some(obstacle)) if !is_one_machine => {
            bail!(Unsupported, "{} NCCL cannot be used: {obstacle}", beyond_one_machine(&statements, &elsewhere))
        }
        (Wanted::Host, _) if !is_one_machine => {
            bail!(Unsupported, "{} there will be MPI", beyond_one_machine(&statements, &elsewhere))
        }
        (Wanted::Auto, Some(obstacle)) => {
            crate::util::log::event!(DEBUG, "the host backend is used; NCCL cannot be: {obstacle}")
        }
        (Wanted::Host, _) => {}
    }
    Ok(agreement(Backend::Host))
}

/// Ranks of one machine and container that have the same local rank, by which ranks choose their
/// GPUs. That is no error by itself: agents of torchrun may share a machine, each with GPUs of its
/// own. Two ranks on one GPU are found by the GPU.
fn same_local_ranks(statements: &[Statement]) -> Option<String> {
    let mut seen = BTreeMap::new();
    statements.iter().enumerate().find_map(|(rank, statement)| {
        let local_rank = statement.local_rank;
        let first = seen.insert((&statement.machine, statement.container, local_rank), rank)?;
        Some(format!(
            "ranks {first} and {rank} both have local rank {local_rank} on {}; the ranks of one machine have different local \
             ranks (LOCAL_RANK, or the launcher's variable for it), by which they choose their GPUs",
            statement.hostname
        ))
    })
}

/// The beginning of a sentence that says what else there is.
fn beyond_one_machine(statements: &[Statement], elsewhere: &[u32]) -> String {
    let other = elsewhere[0];
    format!(
        "the host backend is for one machine: rank 0 is on {}, {} elsewhere (rank {other} on {}); beyond one machine",
        statements[0].hostname,
        list_ranks(elsewhere.iter().copied()),
        statements[other as usize].hostname
    )
}

/// Why these ranks cannot use NCCL.
fn obstacle_to_nccl(statements: &[Statement]) -> Option<String> {
    let mut reasons: Vec<(&str, Vec<u32>)> = Vec::new();
    for (rank, statement) in statements.iter().enumerate() {
        let Err(reason) = &statement.gpu else { continue };
        match reasons.iter_mut().find(|(other, _)| other == reason) {
            Some((_, ranks)) => ranks.push(rank as u32),
            None => reasons.push((reason, vec![rank as u32])),
        }
    }
    if !reasons.is_empty() {
        let reasons = reasons.into_iter().map(|(reason, ranks)| format!("{}: {reason}", list_ranks(ranks)));
        return Some(reasons.collect::<Vec<_>>().join("; "));
    }
    statements.iter().enumerate().find_map(|(rank, statement)| {
        let gpu = statement.gpu.as_ref().ok()?;
        let shares = |other: &Statement| {
            let other_gpu = other.gpu.as_ref().is_ok_and(|other| other.bus_id == gpu.bus_id);
            other_gpu && other.machine == statement.machine
        };
        let first = statements[..rank].iter().position(shares)?;
        let may = |statement: &Statement| statement.gpu.as_ref().is_ok_and(|gpu| gpu.is_shareable);
        (!may(statement) || !may(&statements[first])).then(|| {
            format!(
                "ranks {first} and {rank} are both on GPU {}, and NCCL has one rank a GPU; from 2.30 on several share it with \
                 NCCL_MULTI_RANK_GPU_ENABLE=1",
                gpu.bus_id
            )
        })
    })
}

/// Whether a host is this machine: its loopback, its own name, or one of its addresses.
pub(super) fn is_this_machine(host: &str) -> bool {
    is_loopback(host)
        || rustix::system::uname().nodename().to_str() == Ok(host)
        // Only an own address can be bound.
        || (host.trim_start_matches('[').trim_end_matches(']'), 0)
            .to_socket_addrs()
            .is_ok_and(|mut addresses| addresses.any(|address| UdpSocket::bind(address).is_ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What these ranks come to, each with a local rank of its own.
    fn verdict(statements: &[Statement]) -> String {
        let numbered = (0..).zip(statements).map(|(local_rank, of)| Statement { local_rank, ..of.clone() });
        verdict_as_given(&numbered.collect::<Vec<_>>())
    }

    fn verdict_as_given(statements: &[Statement]) -> String {
        let bytes: Vec<_> = statements.iter().map(|statement| statement.to_bytes().expect("bytes")).collect();
        agree(&bytes)
            .map_or_else(|error| error.to_string(), |agreement| format!("{:?}, {}", agreement.backend, agreement.seed))
    }

    #[test]
    fn local_ranks_of_one_machine_are_different() {
        let local = |local_rank| Statement { local_rank, ..of(Wanted::Auto) };
        assert_eq!(same_local_ranks(&[local(1), local(0)]), None);
        let warning = same_local_ranks(&[local(1), local(0), local(1)]).expect("two are the same");
        assert!(warning.starts_with("ranks 0 and 2 both have local rank 1 on a; "), "{warning}");
        assert_eq!(verdict_as_given(&[local(1), local(1)]), "Host, 5");
        for elsewhere in
            [Statement { machine: "another".to_owned(), ..local(0) }, Statement { container: 2, ..local(0) }]
        {
            assert_eq!(same_local_ranks(&[local(0), elsewhere]), None);
        }
        let twice = [with_gpu(Wanted::Nccl, "01"), with_gpu(Wanted::Nccl, "01")];
        assert!(verdict_as_given(&twice).contains("ranks 0 and 1 are both on GPU 01"));
    }

    fn of(wanted: Wanted) -> Statement {
        let gpu = Err("there is no GPU".to_owned());
        Statement {
            wanted,
            machine: "one".to_owned(),
            hostname: "a".to_owned(),
            local_rank: 0,
            container: 1,
            seed: 5,
            gpu,
        }
    }

    fn with_gpu(wanted: Wanted, bus_id: &str) -> Statement {
        Statement { gpu: Ok(Gpu { bus_id: bus_id.to_owned(), is_shareable: false }), ..of(wanted) }
    }

    #[test]
    fn all_come_to_the_same_end() {
        assert_eq!(verdict(&[of(Wanted::Auto), Statement { seed: 6, ..of(Wanted::Auto) }]), "Host, 5");
        assert_eq!(
            verdict(&[of(Wanted::Nccl), of(Wanted::Auto), of(Wanted::Nccl)]),
            "ranks want different backends: ranks 0 and 2 ask for \"nccl\"; rank 1 asks for \"auto\""
        );
        let there = Statement { hostname: "b".to_owned(), machine: "another".to_owned(), ..of(Wanted::Host) };
        assert_eq!(
            verdict(&[of(Wanted::Host), there.clone(), there]),
            "the host backend is for one machine: rank 0 is on a, ranks 1 and 2 elsewhere (rank 1 on b); beyond one machine \
             there will be MPI"
        );
    }

    #[test]
    fn nccl_is_used_where_every_rank_has_a_gpu_of_its_own() {
        let [one, two] = ["01", "02"].map(|gpu| with_gpu(Wanted::Auto, gpu));
        assert_eq!(verdict(&[one.clone(), two.clone()]), "Nccl, 5");
        assert_eq!(verdict(&[one.clone(), one.clone()]), "Host, 5");
        assert_eq!(verdict(&[one.clone(), of(Wanted::Auto)]), "Host, 5");
        let elsewhere = |statement| Statement { machine: "another".to_owned(), ..statement };
        assert_eq!(verdict(&[one.clone(), elsewhere(one.clone())]), "Nccl, 5");
        assert_eq!(
            verdict(&[one, two, elsewhere(of(Wanted::Auto))]),
            "the host backend is for one machine: rank 0 is on a, rank 2 elsewhere (rank 2 on a); beyond one machine NCCL \
             cannot be used: rank 2: there is no GPU"
        );
        let one = with_gpu(Wanted::Nccl, "01");
        assert_eq!(
            verdict(&[of(Wanted::Nccl), one.clone(), of(Wanted::Nccl)]),
            "NCCL cannot be used: ranks 0 and 2: there is no GPU; the backend \"host\" does the same on one machine without GPUs"
        );
        assert_eq!(
            verdict(&[one.clone(), one]),
            "NCCL cannot be used: ranks 0 and 1 are both on GPU 01, and NCCL has one rank a GPU; from 2.30 on several share it \
             with NCCL_MULTI_RANK_GPU_ENABLE=1; the backend \"host\" does the same on one machine without GPUs"
        );
        let shared = Statement { gpu: Ok(Gpu { bus_id: "01".to_owned(), is_shareable: true }), ..of(Wanted::Nccl) };
        assert_eq!(verdict(&[shared.clone(), shared.clone()]), "Nccl, 5");
        assert!(
            verdict(&[shared, with_gpu(Wanted::Nccl, "01")]).starts_with("NCCL cannot be used: ranks 0 and 1 are both")
        );
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        assert!(["localhost", "127.0.0.1", "::1", "[::1]"].into_iter().all(is_this_machine));
        assert!(is_this_machine(&Statement::new(Wanted::Host, 0, 0, 0).hostname));
        // A documentation address, which no machine has.
        assert!(!is_this_machine("192.0.2.1"));
    }
}
