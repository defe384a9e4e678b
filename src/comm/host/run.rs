//! The steps of a collective that are the same whichever way its elements go: room for the notice, the notice, the others'
//! notices and whether they agree, waiting.

use std::cell::Cell;
use std::time::Instant;

use super::family::{Patience, Trouble};
use super::report::{self, Report};
use super::segment::{Body, Mark, Notice, Place, RING};
use super::{HostBackend, Progress, inline};
use crate::collective::Collective;
use crate::comm::backend::Request;
use crate::error::{ErrorKind, Result};
use crate::rank::GroupRank;

/// One collective on one rank.
pub(super) struct Run<'a> {
    pub(super) host: &'a HostBackend,
    pub(super) progress: &'a mut Progress,
    pub(super) request: &'a Request<'a>,
    pub(super) finished: bool,
    /// How many bytes this rank has moved, and how many since it looked at the clock.
    pub(super) moved: Cell<(usize, usize)>,
}

/// How many bytes a rank moves between two looks at the clock.
const LOOK_BYTES: usize = 1 << 20;

impl Drop for Run<'_> {
    fn drop(&mut self) {
        if self.finished {
            return;
        }
        // Only a panic comes here without an abort set.
        let host = self.host;
        host.family().abort(ErrorKind::Aborted, host.segment.member(host.rank), "a panic inside a collective");
        host.segment.wait_for_windows(host.rank);
    }
}

impl<'a> Run<'a> {
    pub(super) fn collective(&mut self) -> Result<()> {
        self.host.family().note_caller(self.host.segment.member(self.host.rank));
        self.make_room()?;
        let places = self.notify();
        self.await_notices(|run, peer| run.takes_from(peer))?;
        let call = self.request.signature.call;
        match call.block_elements {
            0 => Ok(()),
            _ if inline::fits(&call, self.host.segment.len()) => self.inline(),
            _ if self.is_direct(places)? => self.direct(),
            _ => self.staged(),
        }
    }

    /// Says what this rank calls, and gives what peers know of its buffers.
    fn notify(&self) -> [Place; 2] {
        let Run { host, request, .. } = self;
        let (call, n) = (request.signature.call, host.segment.len());
        let given = if call.reads_input(host.rank) { call.input_bytes(n) } else { 0 };
        let mut places = [Place::Own; 2];
        let body = if inline::fits(&call, n) {
            Body::Payload(self.payload(given))
        } else {
            places = [self.place_of(request.input.pointer, given, false), self.output_place()];
            Body::Places { input: places[0], output: places[1] }
        };
        host.segment.notify(host.rank, self.progress.sequence, request.signature.to_words(), body);
        places
    }

    /// Whether this rank takes elements from a peer; a call without elements that takes from all is a barrier.
    pub(super) fn takes_from(&self, peer: GroupRank) -> bool {
        self.request.signature.call.moves(peer, self.host.rank)
    }

    /// Where peers find bytes of this rank.
    fn place_of(&self, address: *const u8, byte_len: usize, is_written: bool) -> Place {
        match self.host.segment.spans_processes {
            true => self.host.arena.place_of(address, byte_len, &self.host.lineage, is_written),
            false => Place::Address(address.expose_provenance()),
        }
    }

    /// Where peers find this rank's output, if they write it.
    fn output_place(&self) -> Place {
        let call = self.request.signature.call;
        match call.collective {
            Collective::AllReduce { .. } => self.place_of(self.request.output.pointer, call.block_bytes(), true),
            _ => Place::Own,
        }
    }

    /// Whether peers reach every buffer that they would touch. Every rank finds the same.
    fn is_direct(&mut self, [input, output]: [Place; 2]) -> Result<bool> {
        let segment = &*self.host.segment;
        if !segment.spans_processes {
            return Ok(true);
        }
        let sequence = self.progress.sequence;
        let reaches = |peer, place: fn(&Notice) -> Place| {
            segment.slot(peer).notice(sequence).is_some_and(|notice| place(notice) != Place::Own)
        };
        match self.request.signature.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => Ok(reaches(root, Notice::input)),
            Collective::AllReduce { .. } if output == Place::Own => Ok(false),
            _ if input == Place::Own => Ok(false),
            collective => {
                // Those who only give have not waited for each other yet.
                self.await_notices(|_, _| true)?;
                let writes_outputs = matches!(collective, Collective::AllReduce { .. });
                Ok(segment
                    .ranks()
                    .all(|peer| reaches(peer, Notice::input) && (!writes_outputs || reaches(peer, Notice::output))))
            }
        }
    }

    fn patience(&self) -> Patience<'a> {
        Patience::new(self.host.family(), self.host.segment.member(self.host.rank), self.request.deadline)
    }

    /// Waits until there is room for this rank's notice: until every rank has finished the collective whose notice this one
    /// replaces. Meanwhile it goes on comparing, since others may wait for that.
    fn make_room(&mut self) -> Result<()> {
        let (host, sequence) = (self.host, self.progress.sequence);
        let segment = &*host.segment;
        // Whoever disagreed may have left meanwhile.
        self.catch_up()?;
        let this = Mark::Noticed(sequence);
        if segment.lacks_departed(this) {
            host.family().check()?;
            return Err(self.report().error(Trouble::Gone, this));
        }
        if sequence > self.progress.room {
            let replaced = sequence - RING;
            let mut slowest = 0;
            let mut agreement = Ok(());
            let (mut patience, report) = (self.patience(), self.report());
            let waited = patience.wait_until(
                || {
                    let peers = segment.ranks().filter(|peer| *peer != host.rank);
                    slowest = peers.map(|peer| segment.done(peer)).min().unwrap_or(u64::MAX);
                    agreement = self.catch_up();
                    slowest >= replaced || agreement.is_err()
                },
                || segment.lacks_departed(this),
                |seconds| report.slow(seconds, Mark::Done(replaced)),
            );
            agreement?;
            waited.map_err(|trouble| {
                let mark = if matches!(trouble, Trouble::Gone) { this } else { Mark::Done(replaced) };
                report.error(trouble, mark)
            })?;
            self.progress.room = slowest.saturating_add(RING);
        }
        self.catch_up()
    }

    /// Compares the notices of earlier collectives as far as everybody's are there, and says how far that is.
    fn catch_up(&mut self) -> Result<()> {
        self.compare_until(self.progress.sequence - 1)?;
        let Progress { agreed, done, .. } = self.progress;
        if *agreed > *done {
            *done = *agreed;
            self.host.segment.set_done(self.host.rank, *done);
        }
        Ok(())
    }

    /// Waits for the notices of some peers, and compares them with this rank's.
    fn await_notices(&mut self, wanted: impl Fn(&Self, GroupRank) -> bool) -> Result<()> {
        let sequence = self.progress.sequence;
        for peer in self.host.segment.ranks().filter(|peer| wanted(self, *peer)) {
            self.wait_for(peer, Mark::Noticed(sequence))?;
        }
        self.compare_until(sequence)
    }

    /// Compares the notices of the collectives up to `last`, as far as they are there. What is not there yet hides nothing of
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
    pub(super) fn raise_round(&mut self) {
        self.host.segment.raise_round(self.host.rank, self.progress.round);
    }

    pub(super) fn wait_for(&self, peer: GroupRank, mark: Mark) -> Result<()> {
        let segment = &*self.host.segment;
        if segment.has_reached(peer, mark) {
            return Ok(());
        }
        let waited = self.patience().wait_until(
            || segment.has_reached(peer, mark),
            || segment.lacks_departed(mark),
            |seconds| self.report().slow(seconds, mark),
        );
        waited.map_err(|trouble| self.report().error(trouble, mark))
    }

    /// Called before this rank moves so many bytes: looks at the clock now and then. The call ends
    /// if its deadline is over.
    pub(super) fn before_moving(&self, byte_len: usize) -> Result<()> {
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
        self.host.family().check()?;
        Err(self.report().late(moved))
    }

    pub(super) fn wait_for_all(&self, mark: Mark) -> Result<()> {
        self.host.segment.ranks().try_for_each(|peer| self.wait_for(peer, mark))
    }

    /// Makes the list of one address for each rank, in rank order.
    pub(super) fn with_addresses<T>(
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
pub(super) const MAX_STACK_RANKS: usize = 64;
