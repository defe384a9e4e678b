//! Ranks of one machine or several that exchange bytes by means of the caller's.

use std::time::Instant;

use super::agreement::{AgreedSetup, RankInfo};
use crate::comm::{
    BackendKind, Communicator, CommunicatorBuilder, LinkEngine, NcclId, connect_machines, exchange, ucx_link,
};
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::handshake::random_text;
use crate::rank::Rank;
use crate::util::deadline_after;
use crate::util::text::{count_of, list_ranks};

/// What the bytes begin with that ranks exchange: a version of what follows.
const PROTOCOL: &[u8] = b"distcollective meeting 1 ";

impl CommunicatorBuilder {
    /// Connects this rank to the others, also between machines. Without GPUs that is the host
    /// backend, with UCX between machines. With the [backend](Self::backend) NCCL the rank has the
    /// GPU of [`device`](Self::device). Collective.
    ///
    /// `exchange_bytes` gets bytes of this rank, and returns those of every rank, in rank order: a
    /// store that all ranks reach can bring them. All ranks call it equally often, at most three
    /// times. It waits for the other ranks itself, and returns an error when the builder's timeout
    /// is over, which counts for all of this call. If it fails on one rank, the others wait for
    /// that rank until theirs fail.
    ///
    /// ```
    /// use distcollective::Communicator;
    ///
    /// // With more ranks, a store brings the bytes of the others.
    /// let exchange = |own: &[u8]| Ok(vec![own.to_vec()]);
    /// let builder = Communicator::builder().world_size(1).rank(0);
    /// // SAFETY: there is no other rank.
    /// let communicator = unsafe { builder.connect_by(exchange)? };
    /// communicator.barrier()?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Safety
    ///
    /// The bytes that `exchange_bytes` returns for a rank are those that this rank has given to its
    /// own: UCX reads them, and trusts them.
    ///
    /// # Errors
    ///
    /// - Those of [`connect`](Self::connect) with a job's name, except for the name.
    /// - `Disagreement`: a rank has another version of this library.
    /// - `Unsupported`: there are several machines, and a rank has no UCX; NCCL cannot be used on
    ///   every rank. Every rank gets it.
    /// - Those of `exchange_bytes`.
    pub unsafe fn connect_by(
        self,
        mut exchange_bytes: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>>,
    ) -> Result<Communicator> {
        let (rank, world_size, timeout) = self.place_to_connect_by()?;
        let deadline = deadline_after(timeout);
        let mut exchange_bytes = |own: &[u8]| {
            let all = exchange_bytes(&[PROTOCOL, own].concat())?;
            if all.len() != world_size as usize {
                let count = count_of(all.len(), "rank");
                bail!(InvalidArgument, "exchange_bytes gives those of {count}, and world_size is {world_size}");
            }
            let others = (0..).zip(&all).filter(|(_, bytes)| !bytes.starts_with(PROTOCOL)).map(|(other, _)| other);
            let others: Vec<u32> = others.collect();
            if !others.is_empty() {
                bail!(Disagreement, "another version of this library than on rank {rank}: {}", list_ranks(others));
            }
            Ok(all.into_iter().map(|bytes| bytes[PROTOCOL.len()..].to_vec()).collect())
        };
        let ordinal = self.device.unwrap_or(0);
        // No seed. The GPU is given, so any local ranks that differ will do.
        let info = RankInfo::of_this_process(self.backend.unwrap_or(BackendKind::Host), 0, || ordinal, rank.0);
        let told = exchange(&(info, random_text::<16>()?), |rank| rank, &mut exchange_bytes)?;
        let (infos, names): (Vec<RankInfo>, Vec<String>) = told.into_iter().unzip();
        let (agreement, job) = (AgreedSetup::of_ranks(&infos, BackendKind::Ucx)?, &names[0]);
        let communicator = connect_agreed(&agreement, job, rank, || ordinal, deadline, exchange_bytes)?;
        Ok(communicator.with_determinism(self.determinism).with_timeout(timeout))
    }
}

/// Connects ranks that have agreed on a backend other than MPI. No other ranks have the same `job`.
/// `ordinal` gives the number of the rank's GPU.
pub(super) fn connect_agreed(
    agreement: &AgreedSetup,
    job: &str,
    rank: Rank,
    ordinal: impl FnOnce() -> u32,
    deadline: Instant,
    exchange_bytes: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Communicator> {
    if agreement.backend == BackendKind::Ucx {
        return connect_over_ucx(agreement, job, rank, deadline, exchange_bytes);
    }
    let builder = || {
        let left = deadline.saturating_duration_since(Instant::now());
        Communicator::builder().world_size(agreement.machines.len() as u32).rank(rank).timeout(left)
    };
    let host = agreement.is_one_machine().then(|| builder().job(job).connect()).transpose()?;
    match (agreement.backend, host) {
        (BackendKind::Host, Some(host)) => Ok(host),
        (_, host) => {
            let id = share_id(rank, exchange_bytes)?;
            builder().nccl(&id).device(ordinal()).control(host).connect()
        }
    }
}

/// Connects ranks that have agreed on UCX, and exchange their addresses first. If one cannot
/// connect, all get its error.
fn connect_over_ucx(
    agreement: &AgreedSetup,
    job: &str,
    rank: Rank,
    deadline: Instant,
    mut exchange_bytes: impl FnMut(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Communicator> {
    let link = ucx_link(rank, agreement.machines.len() as u32);
    let told = link.as_ref().map(|(_, address)| address.clone()).map_err(ToString::to_string);
    let addresses = agreement.addresses(exchange(&told, |rank| rank, &mut exchange_bytes)?)?;
    let engine = LinkEngine::Ucx { link: link?.0, addresses };
    let connected = connect_machines(engine, job, rank, agreement.machines.clone(), deadline);
    let told = connected.as_ref().map(drop).map_err(ToString::to_string);
    match (exchange(&told, |rank| rank, exchange_bytes), connected) {
        (Ok(told), connected) => {
            let kind = connected.as_ref().map_or_else(Error::kind, |_| ErrorKind::Aborted);
            agreement.check_all(&told, kind, "not all could connect").and(connected)
        }
        (Err(_), Err(error)) | (Err(error), Ok(_)) => Err(error),
    }
}

/// Brings an id that rank 0 makes to every rank.
pub(super) fn share_id(rank: Rank, exchange: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>) -> Result<NcclId> {
    let id = if rank == Rank(0) { NcclId::new().map(Some) } else { Ok(None) };
    // If rank 0 fails, it gives no bytes, so that every rank returns an error.
    let own = id.as_ref().map_or(&[][..], |id| id.as_ref().map_or(&[][..], NcclId::as_bytes));
    let all = exchange(own)?;
    id?;
    NcclId::from_bytes(&all[0]).map_err(|e| error!(System, "rank 0 could not make an id").with_source(e))
}
