//! What every collective does whichever way its elements move: it waits for room for its header,
//! posts the header, waits for its peers' headers and compares them.

use std::cell::Cell;

use smallvec::SmallVec;

use super::call_progress::CallProgress;
use super::report::Report;
use super::segment::Milestone;
use super::slot::{BufferLocation, CallBody, CallHeader, HEADER_RING_LEN, PAYLOAD_BYTES};
use super::waiter::{WaitError, Waiter};
use crate::collective::{Collective, Givers, Side};
use crate::comm::backend::Request;
use crate::comm::host::HostBackend;
use crate::comm::host::transfer::{eager, inline};
use crate::comm::transfer_path::TransferPath;
use crate::error::{ErrorKind, Result};
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::util::wait::{Stopped, Wait};

/// A list with a value for each rank. It is on the stack, unless there are many ranks.
/// It is filled where it is, because it is large to move.
pub(crate) type ForEachRank<T> = SmallVec<[T; 64]>;

/// How many bytes a rank moves before it checks its deadline again.
const CHECK_BYTES: usize = 1 << 20;

/// One collective on one rank.
pub(crate) struct RunningCall<'a> {
    pub(crate) host: &'a HostBackend,
    pub(crate) progress: &'a mut CallProgress,
    pub(crate) request: &'a Request<'a>,
    /// The ranks from which this rank takes elements.
    givers: Givers,
    /// The length of the input of a rank that gives.
    pub(crate) input_bytes: usize,
    /// The path of a call so small that each rank gives a copy of its input with its header.
    path_of_copies: Option<TransferPath>,
    is_finished: bool,
    /// How many bytes this rank has moved, and how many of them since it checked its deadline.
    moved: Cell<(usize, usize)>,
}

impl Drop for RunningCall<'_> {
    /// After an error or a panic, waits until no peer touches this rank's buffers (invariant 9).
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        // After an error the communicator is aborted already, and keeps the first reason.
        let host = self.host;
        host.domain().abort(ErrorKind::Aborted, host.segment.member(host.rank), "a panic inside a collective");
        host.segment.wait_for_accesses(host.rank);
    }
}

impl<'a> RunningCall<'a> {
    /// The next collective of this rank.
    pub(crate) fn new(host: &'a HostBackend, progress: &'a mut CallProgress, request: &'a Request<'a>) -> Self {
        progress.begin(request.call.purpose);
        let (call, n) = (&request.call, host.segment.len());
        let input_bytes = call.input_bytes(n);
        let path_of_copies = match input_bytes {
            _ if inline::fits(input_bytes) => Some(TransferPath::Inline),
            _ if eager::fits(call, input_bytes, n) => Some(TransferPath::Eager),
            _ => None,
        };
        let (givers, is_finished, moved) = (call.givers_to(host.rank), false, Cell::default());
        RunningCall { host, progress, request, givers, input_bytes, path_of_copies, is_finished, moved }
    }

    /// Runs the collective. After an error the caller aborts the communicator before it drops this.
    pub(crate) fn run(&mut self) -> Result<()> {
        let result = self.run_phases();
        self.is_finished = result.is_ok();
        result
    }

    fn run_phases(&mut self) -> Result<()> {
        self.host.domain().callers.note(self.host.segment.member(self.host.rank));
        self.wait_for_room()?;
        self.progress.set_signature(self.request.call);
        if self.request.call.purpose.is_announcement() {
            return self.announce();
        }
        let locations = self.post_header()?;
        let needs_all = self.has_to_know_that_all_match();
        // A rank that only gives compares in its next call, or while it waits. Now it would look at
        // headers that are mostly not there yet.
        if needs_all || !self.givers.has_no_peer_of(self.host.rank) {
            self.wait_for_headers(|call, peer| needs_all || call.takes_from(peer))?;
        }
        if self.request.call.block_elements == 0 {
            return Ok(());
        }
        // Every rank finds the same path (invariant 6).
        let path = match (self.path_of_copies, locations) {
            (Some(path), _) => path,
            (None, locations) if self.is_direct(locations)? => TransferPath::Direct,
            _ => TransferPath::Staged,
        };
        self.progress.path = Some(path);
        match path {
            TransferPath::Inline => self.inline(),
            TransferPath::Eager => self.eager(),
            TransferPath::Direct => self.direct(),
            TransferPath::Staged => self.staged(),
        }
    }

    /// Whether this rank is a root that takes from no peer, but has to know that all calls match
    /// before it writes: because it rounds its input in place, or because it may learn of a
    /// difference later in this call.
    fn has_to_know_that_all_match(&self) -> bool {
        let (rank, request) = (self.host.rank, self.request);
        let writes_own = self.givers == Givers::Root(rank) && !request.is_in_place_root(rank);
        request.is_rounding_root(rank) || writes_own && self.path_of_copies.is_none()
    }

    /// Waits until this rank may post its header: until every peer has finished the collective
    /// whose header is replaced (invariant 4). Meanwhile it compares headers, since peers may wait
    /// for its `done`.
    fn wait_for_room(&mut self) -> Result<()> {
        let (host, sequence) = (self.host, self.progress.sequence);
        let segment = &*host.segment;
        // First, because a peer whose call differed may have left, and the difference is the better
        // error.
        self.catch_up()?;
        let posted = Milestone::Posted(sequence);
        if segment.has_lost(posted) {
            // It may have posted a header since the last look, and left.
            self.compare_until(sequence - 1)?;
            host.domain().check()?;
            return Err(self.report().error(WaitError::PeerLost, posted));
        }
        if sequence > self.progress.room {
            let replaced = sequence - HEADER_RING_LEN;
            let mut slowest = 0;
            self.wait_and_look(Milestone::Done(replaced), posted, sequence - 1, |call| {
                let peers = segment.ranks().filter(|peer| *peer != host.rank);
                slowest = peers.map(|peer| segment.done(peer)).min().unwrap_or(u64::MAX);
                call.catch_up()?;
                Ok(slowest >= replaced)
            })?;
            // A peer that is gone has room for all. Without its headers nothing can be compared.
            if self.progress.agreed < replaced {
                return Err(self.report().error(WaitError::PeerLost, posted));
            }
            self.progress.room = slowest.min(self.progress.agreed).saturating_add(HEADER_RING_LEN);
        }
        Ok(())
    }

    /// Compares the headers of earlier collectives, and publishes up to which one all ranks agree.
    fn catch_up(&mut self) -> Result<()> {
        self.compare_until(self.progress.sequence - 1)?;
        let CallProgress { agreed, done, .. } = self.progress;
        if *agreed > *done {
            *done = *agreed;
            self.host.segment.set_done(self.host.rank, *done);
        }
        Ok(())
    }

    /// Posts a header without a body, and compares those that are there. No rank waits for another
    /// one, except in a capture.
    fn announce(&mut self) -> Result<()> {
        let RunningCall { host, request: Request { call, .. }, .. } = *self;
        let (sequence, words) = (self.progress.sequence, self.progress.signature(self.progress.sequence));
        host.segment.post_header(host.rank, sequence, words, CallBody::Payload(&[]));
        self.wait_for_headers(|_, _| call.purpose.is_awaited())
    }

    /// Asks for the cache lines of the eager memory that this rank writes next, if that is as many
    /// calls from now as the last such call was ago, and gives as much. Not if a peer may still
    /// read that memory.
    fn prefetch_eager(&mut self, byte_len: usize) {
        let CallProgress { sequence, eager, room, .. } = self.progress;
        let next = *sequence + (*sequence - std::mem::replace(eager, *sequence));
        if next <= *room {
            self.host.segment.prefetch_eager(self.host.rank, next, byte_len);
        }
    }

    /// Posts this rank's header, and returns the locations of its input and output in it.
    fn post_header(&mut self) -> Result<[BufferLocation; 2]> {
        let (host, request) = (self.host, self.request);
        let (call, sequence) = (&request.call, self.progress.sequence);
        let input_bytes = if call.reads_input(host.rank) { self.input_bytes } else { 0 };
        let given_bytes = if call.gives_to_peers(host.rank) { self.input_bytes } else { 0 };
        let mut locations = [BufferLocation::Unreachable; 2];
        let mut room = [0; PAYLOAD_BYTES];
        let body = match self.path_of_copies {
            Some(TransferPath::Inline) => CallBody::Payload(self.payload(input_bytes, &mut room)),
            Some(_) => {
                self.post_input(given_bytes)?;
                CallBody::Payload(&[])
            }
            None => {
                locations = [self.input_location(input_bytes), self.output_location()];
                CallBody::Locations { input: locations[0], output: locations[1] }
            }
        };
        host.segment.post_header(host.rank, sequence, self.progress.signature(sequence), body);
        if self.path_of_copies == Some(TransferPath::Eager) && given_bytes > 0 {
            self.prefetch_eager(given_bytes);
        }
        Ok(locations)
    }

    /// Where peers find bytes of this rank.
    fn locate(&self, address: *const u8, byte_len: usize, is_written: bool) -> BufferLocation {
        match self.host.segment.spans_processes {
            true => self.host.arena.locate(address, byte_len, &self.host.lineage, is_written),
            false => BufferLocation::Address(address.expose_provenance()),
        }
    }

    /// Where peers find this rank's input, if they read it in place.
    fn input_location(&self, input_bytes: usize) -> BufferLocation {
        match (self.has_input_list() && input_bytes > 0, self.host.segment.spans_processes) {
            (false, _) => self.locate(self.request.input.pointer, input_bytes, false),
            (true, false) => BufferLocation::List(self.blocks().as_ptr().expose_provenance()),
            // The blocks need not be in one block of symmetric memory.
            (true, true) => BufferLocation::Unreachable,
        }
    }

    /// This rank's list, if its side with a block for each rank is one.
    fn blocks(&self) -> &'a [Address] {
        self.request.blocks.unwrap_or_default()
    }

    fn has_list_of(&self, side: Side) -> bool {
        side.is_per_rank && !self.blocks().is_empty()
    }

    /// Whether this rank's input is a list.
    pub(crate) fn has_input_list(&self) -> bool {
        self.has_list_of(self.request.call.input())
    }

    /// The address of a block of this rank's input.
    pub(crate) fn input_block(&self, index: usize) -> *const u8 {
        let call = self.request.call;
        match self.has_input_list() {
            true => self.blocks()[index].pointer,
            false => self.request.input.pointer.wrapping_add(index * call.block_bytes()),
        }
    }

    /// The address of a block of this rank's output.
    pub(crate) fn output_block(&self, index: usize) -> *mut u8 {
        let call = self.request.call;
        match self.has_list_of(call.output()) {
            true => self.blocks()[index].pointer,
            false => self.request.output.pointer.wrapping_add(index * call.block_bytes()),
        }
    }

    /// Where peers find this rank's output, if they may write it.
    fn output_location(&self) -> BufferLocation {
        let call = self.request.call;
        match call.collective {
            Collective::AllReduce { .. } | Collective::Reduce { .. } if call.writes_output(self.host.rank) => {
                self.locate(self.request.output.pointer, call.block_bytes(), true)
            }
            _ => BufferLocation::Unreachable,
        }
    }

    /// Whether this rank takes elements from a peer. It also waits for that peer's header: a call
    /// without elements that takes from every peer is a barrier.
    pub(crate) fn takes_from(&self, peer: GroupRank) -> bool {
        self.givers.contains(peer)
    }

    /// Waits for the headers of those peers for which `is_needed` holds, and compares all that are
    /// there (invariant 5).
    pub(crate) fn wait_for_headers(&mut self, is_needed: impl Fn(&Self, GroupRank) -> bool) -> Result<()> {
        let sequence = self.progress.sequence;
        for peer in self.host.segment.ranks() {
            if peer != self.host.rank && is_needed(self, peer) {
                self.wait_for(peer, Milestone::Posted(sequence))?;
            }
        }
        self.compare_until(sequence)
    }

    /// Compares all headers of the collectives up to `last` that are there (invariant 5).
    fn compare_until(&mut self, last: u64) -> Result<()> {
        self.progress.compare_until(self.host, last)
    }

    /// Whether peers reach every buffer that they would touch (invariant 6).
    fn is_direct(&mut self, [input, output]: [BufferLocation; 2]) -> Result<bool> {
        let segment = &*self.host.segment;
        if !segment.spans_processes {
            return Ok(true);
        }
        let sequence = self.progress.sequence;
        let is_reachable = |peer, location: fn(&CallHeader) -> BufferLocation| {
            let header = segment.slot(peer).call_header(sequence);
            header.is_some_and(|header| location(header) != BufferLocation::Unreachable)
        };
        match self.request.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => Ok(is_reachable(root, CallHeader::input)),
            Collective::AllReduce { .. } if output == BufferLocation::Unreachable => Ok(false),
            _ if input == BufferLocation::Unreachable => Ok(false),
            collective => {
                // In gather and reduce only the root has waited for all headers.
                self.wait_for_headers(|_, _| true)?;
                let writes_outputs = matches!(collective, Collective::AllReduce { .. });
                Ok(segment.ranks().all(|peer| {
                    is_reachable(peer, CallHeader::input) && (!writes_outputs || is_reachable(peer, CallHeader::output))
                }))
            }
        }
    }

    /// Waits until a peer has come so far in this collective. Meanwhile it compares headers, since
    /// a peer whose call differs may not come. While it waits for a header it compares those of
    /// earlier collectives, so that an error about this one shows the calls of all ranks.
    pub(crate) fn wait_for(&mut self, peer: GroupRank, milestone: Milestone) -> Result<()> {
        let segment = &*self.host.segment;
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
        let (segment, report) = (&*self.host.segment, self.report());
        let mut found = Ok(false);
        let warning = |seconds| report.slow(seconds, awaited);
        let wait = Wait::until(self.request.deadline).warning(&warning);
        let waited = Waiter::new(self.host.domain(), segment.member(self.host.rank), wait).wait_until(
            || {
                found = look(self);
                !matches!(found, Ok(false))
            },
            || segment.has_lost(needed),
        );
        found?;
        let Err(error) = waited else { return Ok(()) };
        let is_peer_lost = matches!(error, WaitError::PeerLost);
        if is_peer_lost || matches!(error, WaitError::DeadlineExceeded) {
            // A peer may have posted a header and left since the last look. Or it has finished and
            // left, and what this rank waits for has come too.
            self.compare_until(last)?;
            if is_peer_lost && look(self)? {
                return Ok(());
            }
        }
        Err(report.error(error, if is_peer_lost { needed } else { awaited }))
    }

    fn report(&self) -> Report<'a> {
        let sequence = self.progress.sequence;
        Report { host: self.host, request: self.request, sequence, number: self.progress.number_of(sequence) }
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
        let error = match Wait::until(self.request.deadline).step() {
            Ok(_) => return Ok(()),
            Err(Stopped::Late) => self.report().late(moved),
            Err(Stopped::Interrupted(interrupted)) => self.report().interrupted(&interrupted),
        };
        // A peer's reason for an abort is the better error.
        self.host.domain().check()?;
        Err(error)
    }

    /// Gives `work` a list with one address for each rank, in rank order.
    pub(crate) fn with_addresses<T>(
        &self,
        address_of: impl Fn(GroupRank) -> Result<*const u8>,
        work: impl FnOnce(&mut [*const u8]) -> Result<T>,
    ) -> Result<T> {
        let mut addresses = ForEachRank::new();
        for peer in self.host.segment.ranks() {
            addresses.push(address_of(peer)?);
        }
        work(&mut addresses)
    }
}
