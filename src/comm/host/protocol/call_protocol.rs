//! What every collective does whichever way its elements move: it waits for room for its header,
//! posts the header, waits for its peers' headers and compares them.

use std::cell::Cell;

use super::call_progress::CallProgress;
use super::report::Report;
use super::segment::{Milestone, Segment, stage_count};
use super::slot::{CallBody, CallHeader, HEADER_RING_LEN};
use super::waiter::{WaitError, Waiter};
use crate::comm::backend::Request;
use crate::error::{ErrorKind, Result};
use crate::rank::GroupRank;
use crate::util::wait::{Stopped, Wait};

/// How many bytes a rank moves before it checks its deadline again.
const CHECK_BYTES: usize = 1 << 20;

/// One collective on one rank, as far as the ranks agree on it and wait for each other.
pub(crate) struct CallProtocol<'a> {
    segment: &'a Segment,
    rank: GroupRank,
    pub(in crate::comm::host) progress: &'a mut CallProgress,
    request: &'a Request<'a>,
    /// Whether another rank may leave out this collective. Then a rank waits for all headers.
    pub(in crate::comm::host) may_be_refused: bool,
    is_finished: bool,
    /// How many bytes this rank has moved, and how many of them since it checked its deadline.
    moved: Cell<(usize, usize)>,
}

impl Drop for CallProtocol<'_> {
    /// After an error or a panic, waits until no peer touches this rank's buffers (invariant 9).
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // After an error the communicator is aborted already, and keeps the first reason.
        let (segment, rank) = (self.segment, self.rank);
        segment.domain.abort(ErrorKind::Aborted, segment.name(rank), "a panic inside a collective");
        segment.wait_for_accesses(rank);
    }
}

impl<'a> CallProtocol<'a> {
    /// The next collective of this rank. Unless it is [finished](Self::finish), the caller aborts
    /// the communicator before it drops this.
    #[inline]
    pub(crate) fn new(
        segment: &'a Segment,
        rank: GroupRank,
        progress: &'a mut CallProgress,
        request: &'a Request<'a>,
    ) -> Self {
        let may_be_refused = progress.begin(request);
        CallProtocol { segment, rank, progress, request, may_be_refused, is_finished: false, moved: Cell::default() }
    }

    /// Says that no peer touches this rank's buffers any more.
    #[inline]
    pub(crate) fn finish(&mut self) {
        self.is_finished = true;
    }

    /// The other ranks.
    pub(crate) fn peers(&self) -> impl Iterator<Item = GroupRank> + use<> {
        let own = self.rank;
        self.segment.ranks().filter(move |peer| *peer != own)
    }

    /// A rank's header of this collective, if it has posted it.
    #[inline]
    pub(crate) fn header(&self, peer: GroupRank) -> Option<&'a CallHeader> {
        self.segment.slot(peer).call_header(self.progress.sequence)
    }

    /// Waits until this rank may post its header: until every peer has finished the collective
    /// whose header is replaced (invariant 4). Meanwhile it compares headers, since peers may wait
    /// for its `done`.
    #[inline]
    pub(crate) fn wait_for_room(&mut self) -> Result<()> {
        let (segment, sequence) = (self.segment, self.progress.sequence);
        segment.domain.callers.note(segment.member(self.rank));
        // First, because a peer whose call differed may have left, and the difference is the better
        // error.
        self.catch_up()?;
        let posted = Milestone::Posted(sequence);
        if segment.has_lost(posted) {
            // It may have posted a header since the last look, and left.
            self.compare_until(sequence - 1)?;
            segment.domain.check()?;
            return Err(self.report().error(WaitError::PeerLost, posted));
        }
        if sequence > self.progress.replaceable + HEADER_RING_LEN {
            let replaced = sequence - HEADER_RING_LEN;
            let mut slowest = 0;
            self.wait_and_look(Milestone::Done(replaced), posted, sequence - 1, |call| {
                slowest = call.peers().map(|peer| segment.done(peer)).min().unwrap_or(u64::MAX);
                call.catch_up()?;
                Ok(slowest >= replaced)
            })?;
            // A peer that is gone has room for all. Without its headers nothing can be compared.
            if self.progress.agreed < replaced {
                return Err(self.report().error(WaitError::PeerLost, posted));
            }
            self.progress.replaceable = slowest.min(self.progress.agreed);
        }
        self.progress.set_signature(self.request.call);
        Ok(())
    }

    /// Compares the headers of earlier collectives, and publishes up to which one all ranks agree.
    fn catch_up(&mut self) -> Result<()> {
        self.compare_until(self.progress.sequence - 1)?;
        let CallProgress { agreed, done, .. } = self.progress;
        if *agreed > *done {
            *done = *agreed;
            self.segment.publish(self.rank, |slot| &slot.done, *done);
        }
        Ok(())
    }

    /// Posts this rank's header. There is room for it.
    #[inline]
    pub(crate) fn post(&self, body: CallBody<'_>) {
        let CallProgress { sequence, .. } = *self.progress;
        self.segment.post_header(self.rank, sequence, self.progress.signature(sequence), body);
    }

    /// Asks for the cache lines of the eager memory that this rank writes next, if that is as many
    /// calls from now as the last such call was ago, and gives as much. Not if a peer may still
    /// read that memory.
    pub(crate) fn prefetch_eager(&mut self, byte_len: usize) {
        let CallProgress { sequence, eager, replaceable, .. } = self.progress;
        let next = *sequence + (*sequence - std::mem::replace(eager, *sequence));
        if next <= *replaceable + HEADER_RING_LEN {
            self.segment.prefetch_eager(self.rank, next, byte_len);
        }
    }

    /// Waits for the headers of those peers for which `is_needed` holds, and compares all that are
    /// there (invariant 5).
    #[inline]
    pub(crate) fn wait_for_headers(&mut self, is_needed: impl Fn(GroupRank) -> bool) -> Result<()> {
        let sequence = self.progress.sequence;
        for peer in self.peers() {
            if is_needed(peer) {
                self.wait_for(peer, Milestone::Posted(sequence))?;
            }
        }
        self.compare_until(sequence)
    }

    /// Compares all headers of the collectives up to `last` that are there (invariant 5).
    fn compare_until(&mut self, last: u64) -> Result<()> {
        self.progress.compare_until(self.segment, self.rank, last)
    }

    /// Waits until a peer has come so far in this collective. Meanwhile it compares headers, since
    /// a peer whose call differs may not come. While it waits for a header it compares those of
    /// earlier collectives, so that an error about this one shows the calls of all ranks.
    #[inline]
    pub(crate) fn wait_for(&mut self, peer: GroupRank, milestone: Milestone) -> Result<()> {
        let segment = self.segment;
        if segment.has_reached(peer, milestone) {
            return Ok(());
        }
        let sequence = self.progress.sequence;
        let compared = sequence - u64::from(matches!(milestone, Milestone::Posted(_)));
        self.wait_and_look(milestone, milestone, sequence, |call| {
            call.compare_until(compared)?;
            Ok(segment.has_reached(peer, milestone))
        })
    }

    /// Waits for `awaited` until `look` finds it or an error, or until a peer is lost before it has
    /// come to `needed`. A difference in the headers up to `last` is the better error.
    fn wait_and_look(
        &mut self,
        awaited: Milestone,
        needed: Milestone,
        last: u64,
        mut look: impl FnMut(&mut Self) -> Result<bool>,
    ) -> Result<()> {
        let (segment, report) = (self.segment, self.report());
        let mut found = Ok(false);
        let warning = |seconds| report.slow(seconds, awaited);
        let wait = Wait::until(self.request.deadline).warning(&warning);
        let waited = Waiter::new(&segment.domain, segment.member(self.rank), wait).wait_until(
            || {
                found = look(self);
                !matches!(found, Ok(false))
            },
            || segment.has_lost(needed),
        );
        found?;
        let Err(error) = waited else { return Ok(()) };
        let is_peer_lost = matches!(error, WaitError::PeerLost);
        if is_peer_lost || matches!(error, WaitError::Stopped(Stopped::Late)) {
            // A peer may have posted a header since the last look, or have finished and left, and
            // what this rank waits for has come too.
            self.compare_until(last)?;
            if look(self)? {
                return Ok(());
            }
        }
        Err(report.error(error, if is_peer_lost { needed } else { awaited }))
    }

    fn report(&self) -> Report<'a> {
        let sequence = self.progress.sequence;
        let number = self.progress.number_of(sequence);
        Report { segment: self.segment, rank: self.rank, request: self.request, sequence, number }
    }

    /// Called before this rank moves `byte_len` bytes. Checks the deadline and the interrupt hook
    /// once for every [`CHECK_BYTES`].
    pub(crate) fn before_moving(&self, byte_len: usize) -> Result<()> {
        let (moved, since_check) = self.moved.get();
        if since_check < CHECK_BYTES {
            self.moved.set((moved + byte_len, since_check + byte_len));
            return Ok(());
        }
        self.moved.set((moved + byte_len, byte_len));
        let Err(stopped) = Wait::until(self.request.deadline).step() else { return Ok(()) };
        // A peer's reason for an abort is the better error.
        self.segment.domain.check()?;
        Err(self.report().stopped(stopped, moved))
    }

    /// Publishes the only round of a collective, in which this rank has given and taken. Returns
    /// what a peer reaches when it has published it too.
    pub(crate) fn finish_round(&mut self) -> Milestone {
        self.progress.round += 1;
        self.segment.slot(self.rank).taken.store(self.progress.round);
        self.segment.publish(self.rank, |slot| &slot.round, self.progress.round);
        Milestone::Round(self.progress.round)
    }

    /// Whether no peer reads the stage of a round any more, as far as this rank has looked
    /// (invariant 8).
    pub(crate) fn has_room_for(&mut self, round: u64) -> bool {
        if round > self.progress.stage_room {
            let slowest = self.peers().map(|peer| self.segment.slot(peer).taken.load()).min();
            self.progress.stage_room =
                slowest.map_or(u64::MAX, |taken| taken.saturating_add(stage_count(self.segment.len()) as u64));
        }
        round <= self.progress.stage_room
    }

    /// Waits until no peer reads the stage of a round any more (invariant 8).
    pub(crate) fn wait_for_stage(&mut self, round: u64) -> Result<()> {
        if self.has_room_for(round) {
            return Ok(());
        }
        let needed = Milestone::Taken(round - stage_count(self.segment.len()) as u64);
        self.peers().try_for_each(|peer| self.wait_for(peer, needed))
    }
}
