//! One collective on one rank: it posts its header, and its elements move in one of four ways.

use smallvec::SmallVec;

use crate::collective::{Call, Collective, Givers, Purpose};
use crate::comm::backend::{Request, Uneven};
use crate::comm::host::memory::check_time;
use crate::comm::host::own_rank::OwnRank;
use crate::comm::host::protocol::call_progress::CallProgress;
use crate::comm::host::protocol::call_protocol::CallProtocol;
use crate::comm::host::protocol::segment::EAGER_BYTES;
use crate::comm::host::protocol::slot::{BufferLocation, CallBody, CallHeader, PAYLOAD_BYTES};
use crate::comm::transfer_path::TransferPath;
use crate::error::{Error, ErrorKind, Result};
use crate::rank::GroupRank;

/// A list with a value for each rank. It is on the stack, unless there are many ranks.
/// It is filled where it is, because it is large to move.
pub(super) type ForEachRank<T> = SmallVec<[T; 64]>;

/// The most bytes that each rank reads in an all_reduce, of which it reduces all. Above, ranks
/// share the work.
const MOST_REDUCED: usize = 8 * EAGER_BYTES;

/// The path of a call in which each rank gives a copy of its input with its header; `None` if the
/// input is longer than the header and the rank's eager memory have room for.
fn path_of_copies(call: &Call, input_bytes: usize, rank_count: usize) -> Option<TransferPath> {
    let is_all_reduce = matches!(call.collective, Collective::AllReduce { .. });
    let most_eager = if is_all_reduce { EAGER_BYTES.min(MOST_REDUCED / rank_count) } else { EAGER_BYTES };
    match input_bytes {
        _ if input_bytes <= PAYLOAD_BYTES => Some(TransferPath::Inline),
        _ if input_bytes <= most_eager => Some(TransferPath::Eager),
        _ => None,
    }
}

/// Whether the communicator goes on after this error of a call, in which no elements have moved: a
/// rank has refused the run; or this rank refuses it, and a peer that has left does not make it.
pub(crate) fn goes_on_after(call: &Call, error: &Error) -> bool {
    match error.kind() {
        ErrorKind::RunRefused => true,
        ErrorKind::PeerLost => call.purpose == Purpose::REFUSAL,
        _ => false,
    }
}

/// One collective on one rank.
pub(crate) struct RunningCall<'a> {
    pub(super) own: &'a OwnRank,
    pub(super) request: &'a Request<'a>,
    /// What the rank agrees on with its peers, and its waits for them.
    pub(super) protocol: CallProtocol<'a>,
    /// The ranks from which this rank takes elements.
    givers: Givers,
    /// The length of the input of a rank that gives.
    pub(super) input_bytes: usize,
    /// The path of a call so small that each rank gives a copy of its input with its header.
    path_of_copies: Option<TransferPath>,
    /// Whether this rank has written the first piece of a staged transfer before its header.
    pub(super) has_first_piece: bool,
}

impl<'a> RunningCall<'a> {
    /// The next collective of this rank.
    pub(crate) fn new(own: &'a OwnRank, progress: &'a mut CallProgress, request: &'a Request<'a>) -> Self {
        let protocol = CallProtocol::new(&own.segment, own.rank, progress, request);
        let (call, n) = (&request.call, own.segment.len());
        let input_bytes = match &request.uneven {
            Some(uneven) => uneven.input_bytes(call, own.rank),
            None => call.input_bytes(n),
        };
        let path_of_copies = path_of_copies(call, input_bytes, n).filter(|_| request.uneven.is_none());
        RunningCall {
            own,
            request,
            protocol,
            givers: call.givers_to(own.rank),
            input_bytes,
            path_of_copies,
            has_first_piece: false,
        }
    }

    /// Runs the collective. After an error that [ends](goes_on_after) the communicator, the caller
    /// aborts it before it drops this.
    pub(crate) fn run(&mut self) -> Result<()> {
        let result = self.run_phases();
        if result.as_ref().err().is_none_or(|error| goes_on_after(&self.request.call, error)) {
            self.protocol.finish();
            // Without room for a refusal, no header has this number.
            let is_lost = result.as_ref().is_err_and(|error| error.kind() == ErrorKind::PeerLost);
            self.protocol.progress.sequence -= u64::from(is_lost);
        }
        result
    }

    fn run_phases(&mut self) -> Result<()> {
        let Request { call, .. } = self.request;
        self.protocol.wait_for_room()?;
        let locations = self.post_header()?;
        if call.purpose == Purpose::REFUSAL {
            self.leave_request();
            return Ok(());
        }
        let may_be_refused = self.protocol.may_be_refused;
        let (needs_all, givers) = (may_be_refused || self.has_to_know_that_all_match(), self.givers);
        // A rank that only gives compares in its next call, or while it waits. Now it would look at
        // headers that are mostly not there yet.
        if needs_all || !givers.has_no_peer_of(self.own.rank) {
            self.protocol.wait_for_headers(|peer| needs_all || givers.contains(peer))?;
        }
        if may_be_refused && self.protocol.progress.refused == self.protocol.progress.sequence {
            self.check_refusals()?;
        }
        if call.block_elements == 0 {
            return Ok(());
        }
        // Every rank finds the same path (invariant 6).
        let path = match (self.path_of_copies, locations) {
            (Some(path), _) => path,
            (None, locations) if self.is_direct(locations)? => TransferPath::Direct,
            _ => TransferPath::Staged,
        };
        if call.purpose != Purpose::COUNTS {
            self.protocol.progress.path = Some(path);
        }
        match path {
            TransferPath::Inline => self.inline(),
            TransferPath::Eager => self.eager(),
            TransferPath::Direct => self.direct(),
            // No other path is within a machine.
            _ => self.staged(),
        }
    }

    /// Whether this rank is a root that takes from no peer, but has to know that all calls match
    /// before it writes: because it rounds its input in place, or because it may learn of a
    /// difference later in this call.
    fn has_to_know_that_all_match(&self) -> bool {
        match self.request.is_broadcast_in_place_from(self.own.rank) {
            true => self.request.call.wire_type.is_some(),
            false => self.givers == Givers::Root(self.own.rank) && self.path_of_copies.is_none(),
        }
    }

    /// Posts this rank's header, and returns the locations of its input and output in it.
    fn post_header(&mut self) -> Result<[BufferLocation; 2]> {
        let (call, rank) = (&self.request.call, self.own.rank);
        let input_bytes = if call.reads_input(rank) { self.input_bytes } else { 0 };
        let given_bytes = if call.gives_to_peers(rank) { self.input_bytes } else { 0 };
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
                self.has_first_piece = self.is_staged(locations) && self.stage_first_piece();
                CallBody::Locations(locations, self.has_first_piece)
            }
        };
        self.protocol.post(body);
        if self.path_of_copies == Some(TransferPath::Eager) && given_bytes > 0 {
            self.protocol.prefetch_eager(given_bytes);
        }
        Ok(locations)
    }

    /// Whether this rank knows from its own buffers that the transfer is staged.
    fn is_staged(&self, [input, output]: [BufferLocation; 2]) -> bool {
        let call = &self.request.call;
        let is_all_reduce = matches!(call.collective, Collective::AllReduce { .. });
        let is_unreachable = |location| location == BufferLocation::Unreachable;
        call.gives_to_peers(self.own.rank) && (is_unreachable(input) || is_all_reduce && is_unreachable(output))
    }

    /// Where peers find this rank's input, if they read it in place.
    fn input_location(&self, input_bytes: usize) -> BufferLocation {
        let list = match &self.request.uneven {
            Some(uneven) => uneven.input,
            None => self.request.input_list().unwrap_or_default(),
        };
        let start = list.first().map_or(self.request.input.pointer, |block| block.pointer);
        let is_one_buffer = list.len() < 2 || self.is_input_packed();
        match (is_one_buffer || input_bytes == 0, self.own.segment.spans_processes) {
            (true, _) => self.own.locate(start, input_bytes, false),
            (false, false) => BufferLocation::List(list.as_ptr().expose_provenance()),
            // The blocks need not be in one block of symmetric memory.
            (false, true) => BufferLocation::Unreachable,
        }
    }

    /// Whether the blocks of this rank's input differ in length and lie one after the other.
    fn is_input_packed(&self) -> bool {
        let Some(Uneven { counts, input, .. }) = self.request.uneven else { return false };
        let (rank, element) = (self.own.rank, self.request.call.data_type.byte_len());
        let mut next = input[0].addr();
        input.iter().zip(self.own.segment.ranks()).all(|(block, to)| {
            let (start, len) = (next, counts.len(rank, to) * element);
            next = next.wrapping_add(len);
            len == 0 || block.addr() == start
        })
    }

    /// The number of elements of a block of this rank's input.
    pub(super) fn input_block_len(&self, index: usize) -> usize {
        let call = &self.request.call;
        match self.request.uneven {
            Some(Uneven { counts, .. }) => counts.input_len(&call.collective, self.own.rank, index),
            None => call.block_elements,
        }
    }

    /// Where the block that this rank takes begins in the input of a rank that gives, in bytes.
    pub(super) fn source_offset(&self, giver: GroupRank) -> usize {
        let (call, rank) = (self.request.call, self.own.rank);
        match self.request.uneven {
            _ if !call.input().is_per_rank => 0,
            Some(Uneven { counts, .. }) => counts.offset(giver, rank) * call.data_type.byte_len(),
            None => rank.index() * call.block_bytes(),
        }
    }

    /// Where peers find this rank's output, if they may write it.
    fn output_location(&self) -> BufferLocation {
        let call = self.request.call;
        match call.collective {
            Collective::AllReduce { .. } | Collective::Reduce { .. } if call.writes_output(self.own.rank) => {
                self.own.locate(self.request.output.pointer, call.block_bytes(), true)
            }
            _ => BufferLocation::Unreachable,
        }
    }

    /// Checks that an allocation of this rank's shared memory goes on.
    pub(super) fn check_allocation(&self) -> Result<()> {
        self.own.segment.domain.check().and_then(|()| check_time(self.request.deadline, "allocated"))
    }

    /// Whether this rank takes elements from a peer. It also waits for that peer's header: a call
    /// without elements that takes from every peer is a barrier.
    pub(super) fn takes_from(&self, peer: GroupRank) -> bool {
        self.givers.contains(peer)
    }

    /// Whether peers reach every buffer that they would touch (invariant 6).
    fn is_direct(&mut self, [input, output]: [BufferLocation; 2]) -> Result<bool> {
        let segment = &*self.own.segment;
        if !segment.spans_processes {
            return Ok(true);
        }
        match self.request.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => Ok(self.reaches(root, CallHeader::input)),
            Collective::AllReduce { .. } if output == BufferLocation::Unreachable => Ok(false),
            _ if input == BufferLocation::Unreachable => Ok(false),
            collective => {
                // In gather and reduce only the root has waited for all headers.
                self.protocol.wait_for_headers(|_| true)?;
                let writes_outputs = matches!(collective, Collective::AllReduce { .. });
                Ok(segment.ranks().all(|peer| {
                    self.reaches(peer, CallHeader::input) && (!writes_outputs || self.reaches(peer, CallHeader::output))
                }))
            }
        }
    }

    /// Whether peers reach a buffer of a rank, as its header says.
    pub(super) fn reaches(&self, rank: GroupRank, buffer: fn(&CallHeader) -> BufferLocation) -> bool {
        self.protocol.header(rank).is_some_and(|header| buffer(header) != BufferLocation::Unreachable)
    }

    /// Gives `work` a list with one address for each rank, in rank order.
    pub(super) fn with_addresses(
        &self,
        mut address_of: impl FnMut(GroupRank) -> Result<*const u8>,
        work: impl FnOnce(&mut [*const u8]) -> Result<()>,
    ) -> Result<()> {
        let mut addresses = ForEachRank::new();
        for peer in self.own.segment.ranks() {
            addresses.push(address_of(peer)?);
        }
        work(&mut addresses)
    }
}
