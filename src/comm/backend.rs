//! What a backend does for a communicator.

use std::any::Any;
use std::fmt;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::backend_kind::BackendKind;
use super::message::{Delivery, MessageRequest, OnEnd};
use super::run_id::CountedRun;
use super::signature::Signature;
use super::split::SplitGroup;
use super::transfer_path::TransferPath;
use crate::collective::{BlockCounts, Call, Collective, Purpose, Side, check_buffers};
use crate::cuda::{CudaStream, Graph};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::executor::Executor;
use crate::memory::{Address, Buffer, MemorySpace, ReadOnlyMemory};
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;

/// The most calls that a backend gets as one group, and so the most collectives of one step of a
/// plan.
pub(crate) const MAX_GROUPED_CALLS: usize = 8;

/// The kinds of errors that every rank gets as they are.
pub(super) const SHARED_KINDS: [ErrorKind; 2] = [ErrorKind::Disagreement, ErrorKind::PeerLost];

/// Whether the other ranks get an error of this kind as it is, instead of as "rank 1 ended the
/// communicator: …".
pub(crate) fn is_shared(kind: ErrorKind) -> bool {
    SHARED_KINDS.contains(&kind)
}

/// A recorded run of a context; `None` before it is recorded, and after its communicator ended.
pub(crate) type SharedGraph = Arc<Mutex<Option<Graph>>>;

/// Writes memory that ranks share, on the rank that gives it. It calls the function that it gets
/// every few MiB, and ends with that function's error.
pub(crate) type Fill<'a> = dyn FnMut(&mut [u8], &dyn Fn() -> Result<()>) -> Result<()> + 'a;

/// What keeps a region with a communicator of some of its ranks.
pub(crate) type RegionPart = Box<dyn Any + Send + Sync>;

/// One rank of a communicator.
///
/// # What the caller guarantees
///
/// The [`Communicator`](super::Communicator) is the only caller, and a backend does not check
/// again:
/// - Arguments have passed the rules of types, shapes, memory, alignment and overlap: collectives
///   are [`Checked`].
/// - The calls of one rank come one at a time, in the issue order. Only a callback that the backend
///   itself makes can call it meanwhile.
/// - The process is the one that made the communicator, and not a fork of it, except for
///   [`Watch::check`], [`Watch::fail`] and the drop, which in a fork must not touch what the
///   ranks share.
///
/// # What a backend guarantees
///
/// - Methods with a deadline return by it. Those that say "collective" are called by every rank, in
///   the same order.
/// - After an error of a collective method the backend is dead: each further call returns that
///   error at once, [`Watch::check`] too, and no peer touches this rank's memory. The same holds
///   for everything that was split from the same origin. [`ErrorKind::RunRefused`] ends nothing.
/// - An error of [`Watch::check`] is cheap to find: waits ask for it often.
/// - Dropping it waits for no peer, no GPU and no library.
///
/// Methods with a body are optional: the body is right for a backend whose calls run on the
/// caller's thread, on memory of the host.
pub(crate) trait Backend: Watch + Any {
    /// Which backend it is. Only messages and the caller's own questions use it.
    fn kind(&self) -> BackendKind;

    /// This rank's number.
    fn rank(&self) -> Rank;

    /// The number of ranks.
    fn world_size(&self) -> u32;

    /// The number that a rank of this communicator has in the one from which it was split, over all
    /// steps. Errors name ranks by these numbers, so that a rank has one name everywhere.
    fn origin(&self, rank: Rank) -> Rank;

    /// The memory that [`allocate`](Self::allocate) gives and raw addresses are in. A call that is
    /// done when it returns may have buffers in host memory too.
    fn space(&self) -> MemorySpace {
        MemorySpace::Host
    }

    /// The CUDA stream of calls that have none, for a backend whose buffers are on a GPU. The
    /// layers of a context then run on that GPU.
    fn default_stream(&self) -> Option<&Arc<CudaStream>> {
        None
    }

    /// How elements moved in the latest collective that moved any, if the backend knows.
    fn latest_path(&self) -> Option<TransferPath> {
        None
    }

    /// Whether layers of several ranks can run on this rank's device.
    fn check_device(&self) -> Result<()> {
        Ok(())
    }

    /// Makes what calls up to the size of this one need, so that they compile nothing. Returns the
    /// length of their scratch memory in bytes.
    fn prepare(&self, _call: &Call) -> Result<usize> {
        Ok(0)
    }

    /// Whether [`run`](Self::run) takes a call among `rank_count` ranks of this communicator
    /// together with others. The answer is the same on every rank, also on those outside the group
    /// that the call is for.
    fn can_group(&self, _call: &Call, _rank_count: usize) -> bool {
        false
    }

    /// Runs a collective of this communicator, or several that do not depend on each other, at most
    /// [`MAX_GROUPED_CALLS`]. Each of several is for this communicator or one with the same origin,
    /// and [can be grouped](Self::can_group). They are done when this returns, or with a CUDA
    /// stream enqueued there. Collective for each communicator.
    ///
    /// A call whose [`Purpose`] is neither `COLLECTIVE` nor `UNEVEN` waits until every rank has
    /// come, also without elements. The root of a broadcast in place only reads its buffer, unless
    /// the call has a transport type.
    ///
    /// # Safety
    ///
    /// Until the calls are done, the buffers that each uses on this rank are valid for the lengths
    /// that it says, and used by no other code. So is its scratch memory.
    unsafe fn run(&self, calls: &[Checked<'_>]) -> Result<()>;

    /// A barrier whose error at the deadline names every rank that has not come. Collective.
    fn monitored_barrier(&self, deadline: Instant) -> Result<()>;

    /// Checks what only this backend asks of a message.
    fn check_message(&self, _message: &MessageRequest) -> Result<()> {
        Ok(())
    }

    /// Sends or receives one message, and returns when the buffer is the caller's again. Threads of
    /// a rank may call it at the same time, also during a collective.
    ///
    /// # Safety
    ///
    /// Until this returns the buffer is valid for the length that the request says, aligned, and
    /// used by no other code.
    unsafe fn run_message(&self, _message: &MessageRequest, _deadline: Instant) -> Result<Delivery> {
        bail!(Unsupported, "this backend has no messages")
    }

    /// Begins messages, each of which goes on by itself and ends with a call of its [`OnEnd`], on
    /// any thread. After an error none has begun.
    ///
    /// # Safety
    ///
    /// As [`run_message`](Self::run_message), until the call of the [`OnEnd`].
    unsafe fn start_messages(&self, _messages: Vec<(MessageRequest, OnEnd)>, _deadline: Instant) -> Result<()> {
        bail!(Unsupported, "this backend has no messages that go on by themselves")
    }

    /// Enqueues messages together on a CUDA stream, for a backend that has a default stream.
    ///
    /// # Safety
    ///
    /// As [`run_message`](Self::run_message), until the work on the stream is done.
    unsafe fn enqueue_messages(
        &self,
        _messages: &[MessageRequest],
        _stream: Option<&Arc<CudaStream>>,
        _deadline: Instant,
    ) -> Result<Vec<Delivery>> {
        bail!(Unsupported, "this backend enqueues no messages")
    }

    /// Whether other memory comes to an address only after the communicator has ended, if a graph
    /// names it.
    fn keeps(&self, _address: *const u8) -> bool {
        false
    }

    /// Is called when every rank has come to the end.
    fn finalize(&self) {}

    /// Has a graph of collectives of this communicator destroyed before the communicator ends.
    fn track_graph(&self, _graph: &SharedGraph) {}

    /// After an error: waits, for a bounded time, until nothing that was enqueued on this stream,
    /// or on the default stream, uses the caller's memory any more.
    fn drain(&self, _stream: Option<&Arc<CudaStream>>) {}

    /// Makes a communicator of a group's members, in the group's order. Ranks without a group take
    /// part and get none. Collective.
    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>>;

    /// Memory of `byte_len` zeros that all ranks reach as well as they can, as a tensor of bytes.
    /// Ranks have agreed on the length. Collective.
    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer>;

    /// [`allocate`](Self::allocate) for the operands of an engine's collectives, which every rank
    /// has at the same offsets.
    fn allocate_region(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.allocate(byte_len, deadline)
    }

    /// Has the calls of this communicator, a part of which ranks split off, reach such a region as
    /// those of the whole do, as long as what it returns exists. Collective.
    fn join_region(&self, _region: &Buffer, _deadline: Instant) -> Result<Option<RegionPart>> {
        Ok(None)
    }

    /// Memory of at least `byte_len` bytes that this machine has once. Rank `source` writes it with
    /// `fill`, which the other ranks do not give; after that nothing writes it. It is freed when
    /// all ranks have dropped what this returns. An error ends the communicator. Collective.
    fn share(
        &self,
        _purpose: Purpose,
        _byte_len: usize,
        _source: GroupRank,
        _fill: Option<&mut Fill<'_>>,
        _deadline: Instant,
    ) -> Result<ReadOnlyMemory> {
        bail!(Unsupported, "backend {} has no memory that processes share", self.kind())
    }

    /// [`Watch::check`], and whether a peer has died, which otherwise the ranks that wait for it
    /// find.
    fn check_peers(&self) -> Result<()> {
        self.check()
    }

    /// Whether all ranks are on one machine, as far as the backend knows where they are.
    fn is_one_machine(&self) -> bool {
        true
    }

    /// A log in which this rank says what it calls of another backend that has the same ranks.
    fn call_log(&self) -> Result<Box<dyn CallLog>> {
        bail!(Unsupported, "backend {} has no call logs", self.kind())
    }

    /// What ranks agree on over the host, for a backend whose own calls do not compare it.
    fn control(&self) -> Option<&Control> {
        None
    }

    /// Tells the ranks of this communicator that this rank leaves out a run, in place of the run's
    /// first collective, and for what reason. The others get an [`ErrorKind::RunRefused`] from that
    /// collective, and the communicator goes on. It waits for no rank, except for room for what it
    /// tells. It does nothing if this rank has begun or refused the run. In a request, this rank
    /// leaves the request.
    ///
    /// Returns `false` if the backend cannot tell that.
    fn refuse(&self, _run: &CountedRun<'_>, _reason: &str, _deadline: Instant) -> Result<bool> {
        Ok(false)
    }

    /// Whether a rank has left the request that is open, as far as this rank knows.
    fn has_left_request(&self) -> bool {
        false
    }

    /// Whether this rank has begun a message since it began the latest request.
    fn has_messages_in_request(&self) -> bool {
        false
    }

    /// Ends the request that a call of the purpose `REQUEST` has begun. Without a failure it waits
    /// for all ranks; with one it tells them, in place of its next call in the request. If a rank
    /// has failed, the others get an [`ErrorKind::RunRefused`] from their call and from this, and
    /// the communicator goes on.
    ///
    /// Returns `false` if the backend cannot tell that.
    fn end_request(&self, _failure: Option<&str>, _deadline: Instant) -> Result<bool> {
        Ok(false)
    }

    /// Makes every rank's calls, now and later, return an error with this reason. Not collective.
    fn abort(&self, kind: ErrorKind, reason: &str);
}

/// What the ranks of a communicator have called, of which each rank says its own part.
pub(crate) trait CallLog: Send + Sync {
    /// Adds a call of this rank, before its peers can notice the call. One thread at a time: the
    /// caller has this rank's turn. `number` is the call's number as errors count.
    fn add(&self, signature: Signature, number: u64);

    /// Adds a message that this rank is about to begin. One thread at a time.
    fn add_message(&self, message: &MessageRequest);

    /// Compares the calls and messages of all ranks as far as they have come. Waits for no rank,
    /// and is cheap: waits ask it often.
    ///
    /// # Errors
    ///
    /// `Disagreement`: calls differ; with the calls of all ranks that have come so far.
    fn compare(&self) -> Result<()>;

    /// Waits until all ranks have added as many calls as this one. `what` is the latest.
    fn wait_for_peers(&self, what: &dyn fmt::Display, deadline: Instant) -> Result<()>;
}

/// A log of this machine's ranks, of which a rank of another machine can have a copy.
pub(crate) trait ExportedLog: CallLog {
    /// How many calls this rank has added.
    fn last(&self) -> u64;

    /// This rank's calls after `known`, for a rank of another machine: at most so many, and up to
    /// which. Those of which there is no record any more are left out.
    fn export(&self, known: u64, most: usize) -> (u64, Vec<u8>);

    /// Adds what a rank of another machine has exported to what is known of its calls, and compares
    /// these with this rank's.
    fn compare_with(&self, rank: Rank, exported: &[u8]) -> Result<()>;
}

/// One rank's handle on a control communicator; `control.rs` has what it does.
pub(crate) struct Control {
    pub(super) host: Arc<dyn Backend>,
    pub(super) log: Box<dyn CallLog>,
    /// The number of collectives so far that errors count; see [`Purpose::is_counted`].
    pub(super) counted: AtomicU64,
    /// How many runs of contexts this rank has begun.
    pub(super) runs: AtomicU64,
}

/// Blocks of different lengths on one rank: where its own are, one for each rank or one for all, on
/// the sides that it uses.
#[derive(Clone, Copy)]
pub(crate) struct Uneven<'a> {
    pub(crate) counts: &'a BlockCounts,
    pub(crate) input: &'a [Address],
    pub(crate) output: &'a [Address],
}

impl Uneven<'_> {
    /// The number of bytes of a rank's input.
    pub(crate) fn input_bytes(&self, call: &Call, rank: GroupRank) -> usize {
        let blocks = 0..self.input.len();
        let elements: usize = blocks.map(|block| self.counts.input_len(&call.collective, rank, block)).sum();
        elements * call.data_type.byte_len()
    }
}

/// One rank's part in one collective.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) call: Call,
    /// A backend that compares calls compares it too. A rank that begins a run with the call waits
    /// for every rank, of which one may refuse the run.
    pub(crate) run: Option<&'a CountedRun<'a>>,
    /// What errors are about: `layer "grad_sync" (all_reduce)`.
    pub(crate) label: Option<&'a str>,
    /// If this is a part of another call: says in an error of a wait what that call is.
    pub(crate) explain: Option<&'a dyn Fn(Error) -> Error>,
    pub(crate) input: Address,
    pub(crate) output: Address,
    /// In a list form of scatter, gather or all_gather: the blocks of the side that has one for
    /// each rank, all in one memory. That side's address is the first block's. The list is empty on
    /// a rank that does not use that side. Every rank makes the list form.
    pub(crate) blocks: Option<&'a [Address]>,
    /// The blocks of a call whose [blocks differ in length](Purpose::UNEVEN). `block_elements` is
    /// then the length of the longest, and `input`, `output` and `blocks` are not used.
    pub(crate) uneven: Option<&'a Uneven<'a>>,
    /// Memory that the call uses between its steps: on the GPU, as long as [`Backend::prepare`] has
    /// said. The call then allocates nothing. Whether a rank brings it is its own matter.
    pub(crate) scratch: Option<*mut [u8]>,
    pub(crate) deadline: Instant,
    /// Where the call is enqueued; without one it is done when it returns.
    pub(crate) stream: Option<&'a Arc<CudaStream>>,
}

impl<'a> Request<'a> {
    /// A call outside of runs, without a label, list, scratch memory and stream.
    pub(crate) fn new(call: Call, [input, output]: [Address; 2], deadline: Instant) -> Self {
        let (run, label, explain, blocks, uneven, scratch, stream) = (None, None, None, None, None, None, None);
        Request { call, run, label, explain, input, output, blocks, uneven, scratch, deadline, stream }
    }

    /// A collective without elements: only the agreement of the ranks is left of it.
    pub(crate) fn barrier(purpose: Purpose, deadline: Instant) -> Self {
        Request::new(Call::without_buffers(purpose, 0), [Address::host(std::ptr::null()); 2], deadline)
    }

    /// Whether this rank is the root of a broadcast in place, whose buffer already has the result.
    pub(super) fn is_in_place_root(&self, rank: GroupRank) -> bool {
        self.is_broadcast_in_place_from(rank) && self.call.wire_type.is_none()
    }

    /// Whether this rank is the root of a broadcast in place. With a transport type it rounds its
    /// buffer.
    pub(super) fn is_broadcast_in_place_from(&self, rank: GroupRank) -> bool {
        matches!(self.call.collective, Collective::Broadcast { root } if root == rank)
            && self.input.pointer == self.output.pointer
    }

    /// The number of elements that go from one rank to another.
    pub(super) fn block_len(&self, from: GroupRank, to: GroupRank) -> usize {
        self.uneven.map_or(self.call.block_elements, |uneven| uneven.counts.len(from, to))
    }

    /// This rank's list, if the side is one.
    fn list_of(&self, side: Side) -> Option<&'a [Address]> {
        self.blocks.filter(|blocks| side.is_per_rank && !blocks.is_empty())
    }

    /// This rank's input, if that is a list.
    pub(super) fn input_list(&self) -> Option<&'a [Address]> {
        self.list_of(self.call.input())
    }

    /// The address of a block of this rank's input.
    pub(super) fn input_block(&self, index: usize) -> *const u8 {
        match (self.uneven, self.input_list()) {
            (Some(uneven), _) => uneven.input[index].pointer,
            (None, Some(list)) => list[index].pointer,
            (None, None) => self.input.pointer.wrapping_add(index * self.call.block_bytes()),
        }
    }

    /// The address of the block of this rank's output that it takes from a peer.
    pub(super) fn output_for(&self, peer: GroupRank) -> *mut u8 {
        let side = self.call.output();
        let index = if side.is_per_rank { peer.index() } else { 0 };
        match (self.uneven, self.list_of(side)) {
            (Some(uneven), _) => uneven.output[index].pointer,
            (None, Some(list)) => list[index].pointer,
            (None, None) => self.output.pointer.wrapping_add(index * self.call.block_bytes()),
        }
    }

    /// Says in an error which layer it is about.
    pub(crate) fn label(&self, error: Error) -> Error {
        match self.label {
            Some(label) => error.about(|| label.to_owned()),
            None => error,
        }
    }
}

/// Gathers one number from every rank, in rank order. `run` makes the call.
pub(super) fn gather_numbers(
    rank_count: usize,
    purpose: Purpose,
    number: i64,
    deadline: Instant,
    run: impl FnOnce(&Request<'_>) -> Result<()>,
) -> Result<Vec<i64>> {
    let mut all = vec![0i64; rank_count];
    let call = Call::of_blocks(Collective::AllGather, DataType::Int64, 1).for_purpose(purpose);
    let sides = [Address::host((&raw const number).cast()), Address::host(all.as_mut_ptr().cast())];
    run(&Request::new(call, sides, deadline))?;
    Ok(all)
}

/// A request that has passed the rules, and the backend that it is for. Sides that the rank does
/// not use are null, and the mode is at least as strict as the communicator's.
#[derive(Clone, Copy)]
pub(crate) struct Checked<'a> {
    /// `None` if the rank is alone in the call, which then copies its input.
    pub(super) backend: Option<&'a dyn Backend>,
    pub(super) request: &'a Request<'a>,
}

impl<'a> Checked<'a> {
    /// The call of a rank that is alone in it.
    pub(crate) fn alone(request: &'a mut Request<'_>) -> Result<Self> {
        let (call, rank) = (request.call.of_one_rank(), GroupRank(0));
        let sides = [request.input.addr(), request.output.addr()];
        check_buffers(&call, rank, call.used_bytes(rank, 1), sides).map_err(|e| request.label(e))?;
        request.call = call;
        Ok(Checked { backend: None, request })
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.request.deadline
    }

    /// Runs the call, or enqueues it.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    #[inline]
    pub(crate) unsafe fn run(&self) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match (self.backend, self.request) {
                (Some(backend), _) => backend.run(std::slice::from_ref(self)),
                (None, Request { call, input, output, deadline, stream, .. }) => Executor(*stream)
                    .copy(*input, *output, call.block_bytes(), *deadline)
                    .map_err(|e| self.request.label(e)),
            }
        }
    }

    /// Runs calls of communicators as one group, or enqueues them.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    pub(crate) unsafe fn run_group(calls: &[Self]) -> Result<()> {
        // SAFETY: the caller's promise.
        calls.iter().find_map(|call| call.backend).map_or(Ok(()), |backend| unsafe { backend.run(calls) })
    }
}
