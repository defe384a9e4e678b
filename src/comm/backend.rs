//! What a backend does for a communicator.

use std::any::Any;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::backend_kind::BackendKind;
use super::message::{Delivery, MessageRequest, OnEnd};
use super::signature::{Purpose, Signature};
use super::split::SplitGroup;
use super::transfer_path::TransferPath;
use crate::collective::{Call, Collective, Determinism, ReduceOperation, UsedBytes};
use crate::cuda::{CudaStream, Graph};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::{Address, Buffer, MemorySpace, ReadOnlyMemory};
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;

/// The most calls that a backend gets as one group, and so the most collectives of one step of a
/// plan.
pub(crate) const MAX_GROUPED_CALLS: usize = 8;

/// A recorded run of a context; `None` before it is recorded, and after its communicator ended.
pub(crate) type SharedGraph = Arc<Mutex<Option<Graph>>>;

/// Writes memory that ranks share, on the rank that gives it. It calls the function that it gets
/// every few MiB, and ends with that function's error.
pub(crate) type Fill<'a> = dyn FnMut(&mut [u8], &dyn Fn() -> Result<()>) -> Result<()> + 'a;

/// One rank of a communicator.
///
/// # What the caller guarantees
///
/// The [`Communicator`](super::Communicator) is the only caller, and a backend does not check
/// again:
/// - Arguments have passed the rules of types, shapes, memory, alignment and overlap.
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
///   for everything that was split from the same origin.
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

    /// Makes what [`run_with_scratch`](Self::run_with_scratch) needs for calls up to the size of
    /// this one, so that they compile nothing. Returns the length of their scratch memory in bytes.
    fn prepare(&self, _call: &Call) -> Result<usize> {
        Ok(0)
    }

    /// Runs one collective. It is done when this returns, or with a CUDA stream enqueued there.
    /// Collective.
    ///
    /// A side that this rank does not use is null. So are both sides of a call without elements;
    /// one whose [`Purpose`] is not `Collective` still waits until every rank has come. The root of
    /// a broadcast in place only reads its buffer, unless the call has a transport type.
    ///
    /// # Safety
    ///
    /// Until the call is done, the buffers that it uses on this rank are valid for the lengths that
    /// it says, aligned, disjoint except for the in-place rules, and used by no other code.
    unsafe fn run(&self, request: &Request<'_>) -> Result<()>;

    /// [`run`](Self::run) with the memory that the call uses between its steps: on the GPU, as long
    /// as [`prepare`](Self::prepare) has said. It allocates nothing. Collective; whether a rank
    /// brings such memory is its own matter.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), also for the scratch memory.
    unsafe fn run_with_scratch(&self, request: &Request<'_>, _scratch: *mut [u8]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.run(request) }
    }

    /// [`run`](Self::run) of scatter, gather or all_gather on a list: on the side that has a block
    /// for each rank, each block is at an address of its own, all in one memory. `blocks` is empty
    /// on a rank that does not use that side. That side's address in the request is the first
    /// block's. Collective; every rank makes it, and not `run`.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), for each block.
    unsafe fn run_list(&self, request: &Request<'_>, blocks: &[Address]) -> Result<()>;

    /// Whether [`run_group`](Self::run_group) takes a call among `rank_count` ranks of this
    /// communicator. The answer is the same on every rank, also on those outside the group that the
    /// call is for.
    fn can_group(&self, _call: &Call, _rank_count: usize) -> bool {
        false
    }

    /// Runs independent collectives together. Each is for a communicator of the group: this one, or
    /// one with the same origin, and so of the same backend. Collective for each of them.
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run), for each call.
    unsafe fn run_group(&self, group: &CallGroup<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        group.calls().try_for_each(|call| unsafe { call.backend.run(&call.request) })
    }

    /// A barrier whose error at the deadline names every rank that has not come. Collective.
    fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.run(&Request::barrier(Purpose::MonitoredBarrier, deadline)) }
    }

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
    /// has at the same offsets. `for_graphs` says that CUDA graphs will use it.
    fn allocate_region(&self, byte_len: usize, _for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.allocate(byte_len, deadline)
    }

    /// Memory of at least `byte_len` bytes that this machine has once. Rank `source` writes it with
    /// `fill`, which the other ranks do not give; after that nothing writes it. It is freed when
    /// all ranks have dropped what this returns. An error ends the communicator. Collective.
    fn share(
        &self,
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

    /// The call that a peer has made and this rank has not; `None` if this rank is in a call.
    fn awaited(&self) -> Option<Signature> {
        None
    }

    /// What ranks agree on over the host, for a backend whose own calls do not compare it.
    fn control(&self) -> Option<&Control> {
        None
    }

    /// Makes every rank's calls, now and later, return an error with this reason. Not collective.
    fn abort(&self, kind: ErrorKind, reason: &str);
}

/// One rank's handle on a control communicator; `control.rs` has what it does.
pub(crate) struct Control {
    pub(super) host: Arc<dyn Backend>,
    /// How many runs of contexts this rank has begun.
    pub(super) runs: AtomicU64,
}

/// One rank's part in one collective.
#[derive(Clone, Copy)]
pub(crate) struct Request<'a> {
    pub(crate) signature: Signature,
    /// What errors are about: `layer "grad_sync" (all_reduce)`.
    pub(crate) label: Option<&'a str>,
    pub(crate) input: Address,
    pub(crate) output: Address,
    pub(crate) deadline: Instant,
    /// Where the call is enqueued; without one it is done when it returns.
    pub(crate) stream: Option<&'a Arc<CudaStream>>,
}

impl Request<'_> {
    /// A collective without elements: only the agreement of the ranks is left of it.
    pub(crate) fn barrier(purpose: Purpose, deadline: Instant) -> Self {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        let call = Call::of_blocks(collective, DataType::Uint8, 0);
        Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host(std::ptr::null()),
            output: Address::host(std::ptr::null()),
            deadline,
            stream: None,
        }
    }

    /// The same as a communicator's backend gets it: with null for each side that the rank does not
    /// use, and in a mode that is at least as strict as the communicator's.
    pub(super) fn of_communicator(mut self, used: UsedBytes, determinism: Determinism) -> Self {
        let Signature { purpose, call } = &mut self.signature;
        if *purpose == Purpose::Collective {
            call.raise_to(determinism);
        }
        if used.input == 0 {
            self.input.pointer = std::ptr::null_mut();
        }
        if used.output == 0 {
            self.output.pointer = std::ptr::null_mut();
        }
        self
    }

    /// Whether this rank is the root of a broadcast in place, whose buffer already has the result.
    pub(super) fn is_in_place_root(&self, rank: GroupRank) -> bool {
        self.is_broadcast_in_place_from(rank) && self.signature.call.wire_type.is_none()
    }

    /// Whether this rank is the root of a broadcast in place with a transport type, which rounds
    /// its buffer.
    pub(super) fn is_rounding_root(&self, rank: GroupRank) -> bool {
        self.is_broadcast_in_place_from(rank) && self.signature.call.wire_type.is_some()
    }

    fn is_broadcast_in_place_from(&self, rank: GroupRank) -> bool {
        matches!(self.signature.call.collective, Collective::Broadcast { root } if root == rank)
            && self.input.pointer == self.output.pointer
    }

    /// Says in an error which layer it is about.
    pub(crate) fn label(&self, error: Error) -> Error {
        match self.label {
            Some(label) => error.about(|| label.to_owned()),
            None => error,
        }
    }
}

/// Collectives that do not depend on each other, on one stream.
#[derive(Default)]
pub(crate) struct CallGroup<'a> {
    calls: [Option<GroupedCall<'a>>; MAX_GROUPED_CALLS],
    len: usize,
}

/// A call of a group, and the communicator that it is for.
pub(super) struct GroupedCall<'a> {
    pub(super) backend: &'a dyn Backend,
    pub(super) request: Request<'a>,
}

impl<'a> CallGroup<'a> {
    pub(super) fn push(&mut self, backend: &'a dyn Backend, request: Request<'a>) -> Result<()> {
        let Some(place) = self.calls.get_mut(self.len) else {
            return Err(error!(System, "a group has at most {MAX_GROUPED_CALLS} collectives"));
        };
        *place = Some(GroupedCall { backend, request });
        self.len += 1;
        Ok(())
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &GroupedCall<'a>> {
        self.calls.iter().flatten()
    }
}
