//! What the ranks say of themselves when they have met, and what follows: the backend, and rank 0's seed.

use std::net::{ToSocketAddrs, UdpSocket};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::discovery::is_loopback;
use crate::error::{Error, Result, bail, error};
use crate::rank::list_ranks;

/// The backend that a process asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Wanted {
    Auto,
    Host,
    Nccl,
}

impl Wanted {
    const fn name(self) -> &'static str {
        match self {
            Wanted::Auto => "auto",
            Wanted::Host => "host",
            Wanted::Nccl => "nccl",
        }
    }
}

impl FromStr for Wanted {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Ok(match name.to_ascii_lowercase().as_str() {
            "auto" => Wanted::Auto,
            "host" | "gloo" => Wanted::Host,
            "nccl" => Wanted::Nccl,
            _ => {
                bail!(InvalidArgument, "{name:?} is not a backend; they are \"nccl\", \"host\" (\"gloo\") and \"auto\"")
            }
        })
    }
}

/// What a rank says of itself.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Statement {
    wanted: Wanted,
    /// What tells machines apart, as far as the host backend cares.
    machine: String,
    hostname: String,
    seed: u64,
}

impl Statement {
    pub(super) fn new(wanted: Wanted, seed: u64) -> Self {
        // Abstract sockets are found within one network namespace of one running kernel.
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let network = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
        Statement {
            wanted,
            seed,
            machine: format!("{} {}", boot.trim(), network.display()),
            hostname: rustix::system::uname().nodename().to_string_lossy().into_owned(),
        }
    }

    pub(super) fn to_bytes(&self) -> Result<Vec<u8>> {
        postcard::to_stdvec(self).map_err(|e| error!(System, "a statement cannot be written").with_source(e))
    }
}

/// Lets all ranks come to the same end: the host backend, with rank 0's seed, or an error with everybody who stands in its way.
pub(super) fn agree_on_host(statements: &[Vec<u8>]) -> Result<u64> {
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
    let first = &statements[0];
    if first.wanted == Wanted::Nccl {
        bail!(Unsupported, "there is no NCCL backend yet; \"host\" does the same on one machine without GPUs");
    }
    let elsewhere = ranks_that(&|statement| statement.machine != first.machine);
    if let Some(&other) = elsewhere.first() {
        bail!(
            Unsupported,
            "the host backend is for one machine: rank 0 is on {}, {} elsewhere (rank {other} on {}); beyond one machine there \
             will be NCCL and MPI",
            first.hostname,
            list_ranks(elsewhere),
            statements[other as usize].hostname
        );
    }
    Ok(first.seed)
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

    fn verdict(statements: &[Statement]) -> String {
        let bytes: Vec<_> = statements.iter().map(|statement| statement.to_bytes().expect("bytes")).collect();
        agree_on_host(&bytes).map_or_else(|error| error.to_string(), |seed| format!("host, {seed}"))
    }

    #[test]
    fn all_come_to_the_same_end() {
        let of = |wanted| Statement::new(wanted, 5);
        assert_eq!(verdict(&[of(Wanted::Auto), Statement::new(Wanted::Auto, 6)]), "host, 5");
        assert_eq!(
            verdict(&[of(Wanted::Nccl), of(Wanted::Auto), of(Wanted::Nccl)]),
            "ranks want different backends: ranks 0 and 2 ask for \"nccl\"; rank 1 asks for \"auto\""
        );
        assert_eq!(
            verdict(&[of(Wanted::Nccl)]),
            "there is no NCCL backend yet; \"host\" does the same on one machine without GPUs"
        );
        let here = Statement { hostname: "a".to_owned(), ..of(Wanted::Host) };
        let there = Statement { hostname: "b".to_owned(), machine: "another".to_owned(), ..of(Wanted::Host) };
        assert_eq!(
            verdict(&[here, there.clone(), there]),
            "the host backend is for one machine: rank 0 is on a, ranks 1 and 2 elsewhere (rank 1 on b); beyond one machine \
             there will be NCCL and MPI"
        );
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        assert!(["localhost", "127.0.0.1", "::1", "[::1]"].into_iter().all(is_this_machine));
        assert!(is_this_machine(&Statement::new(Wanted::Auto, 0).hostname));
        // A documentation address, which no machine has.
        assert!(!is_this_machine("192.0.2.1"));
    }
}
