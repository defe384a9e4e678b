//! This rank of a communicator.

use std::sync::{Arc, OnceLock};

use super::arena::{Arena, PeerBytes};
use super::protocol::call_progress::{CallProgress, RankLock, RequestProgress};
use super::protocol::segment::Segment;
use super::protocol::slot::{BufferLocation, CallHeader};
use crate::error::{Error, Result, bail, error};
use crate::rank::{GroupRank, Rank};
use crate::sync::{Ordering, fence};

/// A rank, what it shares with its peers, and where its peers find its buffers.
#[derive(Clone)]
pub(super) struct OwnRank {
    pub(super) segment: Arc<Segment>,
    pub(super) rank: GroupRank,
    pub(super) lock: Arc<RankLock>,
    pub(super) arena: Arc<Arena>,
    /// The ids of this communicator and of those that it was split from. All members have the
    /// symmetric memory of these.
    pub(super) lineage: Arc<[u64]>,
    /// The error of this rank's own that ended the communicator. Every further call returns it.
    pub(super) ended: Arc<OnceLock<Error>>,
}

impl OwnRank {
    /// A rank of a communicator that was split from those with the ids `ancestors`.
    pub(super) fn new(segment: Arc<Segment>, rank: GroupRank, arena: Arc<Arena>, ancestors: &[u64]) -> Self {
        let lineage = std::iter::once(segment.id).chain(ancestors.iter().copied()).collect();
        OwnRank { segment, rank, lock: Arc::default(), arena, lineage, ended: Arc::default() }
    }

    /// This rank's number in the first communicator of the domain.
    pub(super) fn member(&self) -> Rank {
        self.segment.member(self.rank)
    }

    /// This rank as errors name it.
    pub(super) fn name(&self) -> Rank {
        self.segment.name(self.rank)
    }

    /// The error that ended the communicator, if one did.
    #[inline]
    pub(super) fn check(&self) -> Result<()> {
        self.ended.get().map_or_else(|| self.segment.domain.check(), |error| Err(error.clone()))
    }

    /// Ends the communicator because of an error of this rank; the other ranks get the reason.
    /// Returns the first such error.
    pub(super) fn end(&self, error: &Error, reason: &str) -> &Error {
        // First this rank's own, so that its other threads do not take it for another rank's.
        let mut is_first = false;
        let first = self.ended.get_or_init(|| {
            is_first = true;
            error.clone()
        });
        let reason = if is_first { reason } else { &first.to_string() };
        self.segment.domain.abort(first.kind(), self.name(), reason);
        first
    }

    /// Compares the collectives in which this rank only gave. Its peers may be ranks that only gave
    /// in another collective, and may never do what this rank waits for. One of them finds the
    /// difference.
    ///
    /// Returns whether another thread is in a collective, or all calls have been compared.
    ///
    /// # Errors
    ///
    /// The calls differ, which ends the communicator.
    pub(super) fn compare_calls(&self) -> Result<bool> {
        // While another thread of this rank is in a collective, that one compares, and wakes the
        // threads of the rank if it has not compared all. Or another thread waits for a message and
        // compares; it does so again before it sleeps.
        let Ok(mut progress) = self.lock.progress.try_lock() else { return Ok(true) };
        if progress.is_agreed() {
            return self.check_request(&progress).map(|()| true);
        }
        // Pairs with the same fence of the peer. Both have posted their headers before, so one of
        // them finds the other's.
        fence(Ordering::SeqCst);
        let latest = progress.sequence;
        let compared = progress.compare_until(&self.segment, self.rank, latest);
        compared.map_err(|error| self.end(&error, &error.to_string()).clone())?;
        Ok(progress.is_agreed())
    }

    /// Checks that no rank has left the request, if this rank has begun a message in it. What it
    /// waits for may then never come, or come in a later request.
    fn check_request(&self, progress: &CallProgress) -> Result<()> {
        let is_left = || {
            let refuses = |header: &CallHeader| header.signature().is_refusal();
            let next = |peer| self.segment.slot(peer).call_header(progress.sequence + 1);
            match progress.request {
                RequestProgress::None => false,
                RequestProgress::Open(_) => self.segment.ranks().any(|peer| next(peer).is_some_and(refuses)),
                RequestProgress::Left(_) => true,
            }
        };
        if self.lock.has_messages.load(Ordering::Relaxed) == 0 || !is_left() {
            return Ok(());
        }
        let error = error!(Aborted, "a rank left the request, and messages are on their way");
        Err(self.end(&error, &error.to_string()).clone())
    }

    /// Compares at the beginning of a message, which may end without a wait.
    pub(super) fn compare_calls_once(&self) -> Result<()> {
        let has_messages = &self.lock.has_messages;
        if has_messages.load(Ordering::Relaxed) == 0 {
            has_messages.store(1, Ordering::Relaxed);
        }
        if !self.compare_calls()? {
            // A thread that waits for a message may have found the lock taken.
            self.wake(self.rank);
        }
        Ok(())
    }

    /// Tells a peer that there is something in its ring (invariant 24).
    pub(super) fn tell(&self, peer: GroupRank) {
        self.segment.slot(peer).doorbell().ring(self.rank);
        self.wake(peer);
    }

    /// Wakes the threads of a peer.
    pub(super) fn wake(&self, peer: GroupRank) {
        self.segment.domain.wake(std::iter::once(self.segment.member(peer)));
    }

    /// Where peers find bytes of this rank.
    pub(super) fn locate(&self, address: *const u8, byte_len: usize, is_written: bool) -> BufferLocation {
        match self.segment.spans_processes {
            true => self.arena.locate(address, byte_len, &self.lineage, is_written),
            false => BufferLocation::Address(address.expose_provenance()),
        }
    }

    /// Bytes of a peer (invariant 12); `None` if this rank does not reach them.
    pub(super) fn bytes_of(
        &self,
        peer: GroupRank,
        location: BufferLocation,
        byte_len: usize,
    ) -> Result<Option<PeerBytes>> {
        match location {
            BufferLocation::Unreachable => Ok(None),
            BufferLocation::Address(_) if self.segment.spans_processes => {
                bail!(System, "rank {} gives an address, and is in another process", self.segment.name(peer))
            }
            BufferLocation::Address(address) => {
                Ok(Some(PeerBytes { address: std::ptr::with_exposed_provenance_mut(address), block: None }))
            }
            BufferLocation::List(_) => Err(self.broken(peer)),
            BufferLocation::Block { id, offset } => {
                self.arena.bytes_of(self.segment.member(peer), id, offset, byte_len).map(Some)
            }
        }
    }

    /// The error of a record that no rank of this version writes.
    pub(super) fn broken(&self, peer: GroupRank) -> Error {
        error!(System, "rank {} broke the protocol of messages", self.segment.name(peer))
    }
}
