//! The steps of a collective that are the same whichever way its elements go: room for the header, the header, the others'
//! headers and whether they agree, waiting.

use std::cell::Cell;
use std::time::Instant;

use super::report::{self, Report};
use super::segment::{BufferLocation, CallBody, CallHeader, HEADER_RING_LEN, Milestone};
use super::waiter::{WaitError, Waiter};
use crate::collective::Collective;
use crate::comm::backend::Request;
use crate::comm::host::transfer::inline;
use crate::comm::host::{CallProgress, HostBackend};
use crate::error::{ErrorKind, Result};
use crate::rank::GroupRank;

/// One collective on one rank.
pub(crate) struct RunningCall<'a> {
    pub(crate) host: &'a HostBackend,
    pub(crate) progress: &'a mut CallProgress,
    pub(crate) request: &'a Request<'a>,
    pub(crate) finished: bool,
    /// How many bytes this rank has moved, and how many since it looked at the clock.
    pub(crate) moved: Cell<(usize, usize)>,
}

/// How many bytes a rank moves between two looks at the clock.
const LOOK_BYTES: usize = 1 << 20;

impl Drop for RunningCall<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Only a panic comes here without an abort set.
        let host = self.host;
        host.domain().abort(ErrorKind::Aborted, host.segment.member(host.rank), "a panic inside a collective");
        host.segment.wait_for_accesses(host.rank);
    }
}

impl<'a> RunningCall<'a> {
    pub(crate) fn collective(&mut self) -> Result<()> {
        self.host.domain().callers.note(self.host.segment.member(self.host.rank));
        self.make_room()?;
        let locations = self.post_header();
        self.wait_for_headers(|run, peer| run.takes_from(peer))?;
        let call = self.request.signature.call;
        match call.block_elements {
            0 => Ok(()),
            _ if inline::fits(&call, self.host.segment.len()) => self.inline(),
            _ if self.is_direct(locations)? => self.direct(),
            _ => self.staged(),
        }
    }

    /// Says what this rank calls, and gives what peers know of its buffers.
    fn post_header(&self) -> [BufferLocation; 2] {
        let RunningCall { host, request, .. } = self;
        let (call, n) = (request.signature.call, host.segment.len());
        let given = if call.reads_input(host.rank) { call.input_bytes(n) } else { 0 };
        let mut locations = [BufferLocation::Unreachable; 2];
        let body = if inline::fits(&call, n) {
            CallBody::Payload(self.payload(given))
        } else {
            locations = [self.locate(request.input.pointer, given, false), self.output_location()];
            CallBody::Locations { input: locations[0], output: locations[1] }
        };
        host.segment.post_header(host.rank, self.progress.sequence, request.signature.to_words(), body);
        locations
    }

    /// Whether this rank takes elements from a peer; a call without elements that takes from all is a barrier.
    pub(crate) fn takes_from(&self, peer: GroupRank) -> bool {
        match self.request.signature.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => peer == root,
            Collective::Gather { root } | Collective::Reduce { root, .. } => self.host.rank == root,
            _ => true,
        }
    }

    /// Where peers find bytes of this rank.
    fn locate(&self, address: *const u8, byte_len: usize, is_written: bool) -> BufferLocation {
        match self.host.segment.spans_processes {
            true => self.host.arena.locate(address, byte_len, &self.host.lineage, is_written),
            false => BufferLocation::Address(address.expose_provenance()),
        }
    }

    /// Where peers find this rank's output, if they write it.
    fn output_location(&self) -> BufferLocation {
        let call = self.request.signature.call;
        match call.collective {
            Collective::AllReduce { .. } => self.locate(self.request.output.pointer, call.block_bytes(), true),
            _ => BufferLocation::Unreachable,
        }
    }

    /// Whether peers reach every buffer that they would touch. Every rank finds the same.
    fn is_direct(&mut self, [input, output]: [BufferLocation; 2]) -> Result<bool> {
        let segment = &*self.host.segment;
        if !segment.spans_processes {
            return Ok(true);
        }
        let sequence = self.progress.sequence;
        let reaches = |peer, place: fn(&CallHeader) -> BufferLocation| {
            segment.slot(peer).call_header(sequence).is_some_and(|header| place(header) != BufferLocation::Unreachable)
        };
        match self.request.signature.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => Ok(reaches(root, CallHeader::input)),
            Collective::AllReduce { .. } if output == BufferLocation::Unreachable => Ok(false),
            _ if input == BufferLocation::Unreachable => Ok(false),
            collective => {
                // Those who only give have not waited for each other yet.
                self.wait_for_headers(|_, _| true)?;
                let writes_outputs = matches!(collective, Collective::AllReduce { .. });
                Ok(segment.ranks().all(|peer| {
                    reaches(peer, CallHeader::input) && (!writes_outputs || reaches(peer, CallHeader::output))
                }))
            }
        }
    }

    fn waiter(&self) -> Waiter<'a> {
        Waiter::new(self.host.domain(), self.host.segment.member(self.host.rank), self.request.deadline)
    }

    /// Waits until there is room for this rank's header: until every rank has finished the collective whose header this one
    /// replaces. Meanwhile it goes on comparing, since others may wait for that.
    fn make_room(&mut self) -> Result<()> {
        let (host, sequence) = (self.host, self.progress.sequence);
        let segment = &*host.segment;
        // Whoever disagreed may have left meanwhile.
        self.catch_up()?;
        let this = Milestone::Posted(sequence);
        if segment.has_lost(this) {
            host.domain().check()?;
            return Err(self.report().error(WaitError::PeerLost, this));
        }
        if sequence > self.progress.room {
            let replaced = sequence - HEADER_RING_LEN;
            let mut slowest = 0;
            let mut agreement = Ok(());
            let (mut waiter, report) = (self.waiter(), self.report());
            let waited = waiter.wait_until(
                || {
                    let peers = segment.ranks().filter(|peer| *peer != host.rank);
                    slowest = peers.map(|peer| segment.done(peer)).min().unwrap_or(u64::MAX);
                    agreement = self.catch_up();
                    slowest >= replaced || agreement.is_err()
                },
                || segment.has_lost(this),
                |seconds| report.slow(seconds, Milestone::Done(replaced)),
            );
            agreement?;
            waited.map_err(|error| {
                let milestone = if matches!(error, WaitError::PeerLost) { this } else { Milestone::Done(replaced) };
                report.error(error, milestone)
            })?;
            self.progress.room = slowest.saturating_add(HEADER_RING_LEN);
        }
        self.catch_up()
    }

    /// Compares the headers of earlier collectives as far as everybody's are there, and says how far that is.
    fn catch_up(&mut self) -> Result<()> {
        self.compare_until(self.progress.sequence - 1)?;
        let CallProgress { agreed, done, .. } = self.progress;
        if *agreed > *done {
            *done = *agreed;
            self.host.segment.set_done(self.host.rank, *done);
        }
        Ok(())
    }

    /// Waits for the headers of some peers, and compares them with this rank's.
    fn wait_for_headers(&mut self, wanted: impl Fn(&Self, GroupRank) -> bool) -> Result<()> {
        let sequence = self.progress.sequence;
        for peer in self.host.segment.ranks().filter(|peer| wanted(self, *peer)) {
            self.wait_for(peer, Milestone::Posted(sequence))?;
        }
        self.compare_until(sequence)
    }

    /// Compares the headers of the collectives up to `last`, as far as they are there. What is not there yet hides nothing of
    /// what is: whoever touches a peer's buffers or stage has compared all of that peer's calls with its own.
    fn compare_until(&mut self, last: u64) -> Result<()> {
        let host = self.host;
        for sequence in self.progress.agreed + 1..=last {
            let mut is_complete = true;
            for peer in host.segment.ranks() {
                match host.agrees(peer, sequence) {
                    Some(true) => {}
                    Some(false) => return Err(report::disagreement(host, sequence)),
                    None => is_complete = false,
                }
            }
            if is_complete && self.progress.agreed + 1 == sequence {
                self.progress.agreed = sequence;
            }
        }
        Ok(())
    }

    fn report(&self) -> Report<'a> {
        Report { host: self.host, request: self.request, sequence: self.progress.sequence }
    }

    /// Begins a round: this rank has written what it gives, and read all that it took before.
    pub(crate) fn raise_round(&mut self) {
        self.host.segment.raise_round(self.host.rank, self.progress.round);
    }

    pub(crate) fn wait_for(&self, peer: GroupRank, milestone: Milestone) -> Result<()> {
        let segment = &*self.host.segment;
        if segment.has_reached(peer, milestone) {
            return Ok(());
        }
        let waited = self.waiter().wait_until(
            || segment.has_reached(peer, milestone),
            || segment.has_lost(milestone),
            |seconds| self.report().slow(seconds, milestone),
        );
        waited.map_err(|error| self.report().error(error, milestone))
    }

    /// Called before this rank moves so many bytes: looks at the clock now and then. The call ends
    /// if its deadline is over.
    pub(crate) fn before_moving(&self, byte_len: usize) -> Result<()> {
        let (moved, since_look) = self.moved.get();
        if since_look < LOOK_BYTES {
            self.moved.set((moved + byte_len, since_look + byte_len));
            return Ok(());
        }
        self.moved.set((moved + byte_len, byte_len));
        if Instant::now() < self.request.deadline {
            return Ok(());
        }
        // A peer may have ended the communicator meanwhile, and says why.
        self.host.domain().check()?;
        Err(self.report().late(moved))
    }

    pub(crate) fn wait_for_all(&self, milestone: Milestone) -> Result<()> {
        self.host.segment.ranks().try_for_each(|peer| self.wait_for(peer, milestone))
    }

    /// Makes the list of one address for each rank, in rank order.
    pub(crate) fn with_addresses<T>(
        &self,
        address_of: impl Fn(GroupRank) -> Result<*const u8>,
        work: impl FnOnce(&mut [*const u8]) -> Result<T>,
    ) -> Result<T> {
        let n = self.host.segment.len();
        let mut few = [std::ptr::null(); MAX_STACK_RANKS];
        let mut many;
        let addresses = if n <= MAX_STACK_RANKS {
            &mut few[..n]
        } else {
            many = vec![std::ptr::null(); n];
            &mut many[..]
        };
        for (peer, address) in self.host.segment.ranks().zip(addresses.iter_mut()) {
            *address = address_of(peer)?;
        }
        work(addresses)
    }
}

/// Up to so many ranks, a collective keeps its lists on the stack.
pub(crate) const MAX_STACK_RANKS: usize = 64;
