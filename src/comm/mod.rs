//! The communicator: the ranks that do collectives together. How one is made, and what runs on it.

mod backend;
mod backend_kind;
mod builder;
mod calls;
mod cluster;
mod control;
mod create;
mod eager;
mod groups;
pub(crate) mod host;
#[cfg(test)]
pub(crate) mod loopback;
pub(crate) mod message;
pub(crate) mod nccl;
mod nccl_id;
pub(crate) mod rank_lock;
mod refused_run;
mod requests;
mod run_id;
mod signature;
mod split;
mod threads;
mod transfer_path;

use std::fmt;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use backend::Backend;
pub use backend_kind::BackendKind;
pub use builder::CommunicatorBuilder;
pub use eager::{Message, Messages, Operands, RawBlocks, RawCollective, RawMessage, RawOperands, Received, Source};
pub use message::MAX_TAG;
pub use transfer_path::TransferPath;

use crate::collective::{Determinism, Purpose, WireType};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Buffer, MemorySpace};
pub use crate::moved_type::{MovedType, TransferType};
use crate::rank::Rank;
use crate::shape::Dims;
use crate::stream::Stream;
pub use crate::util::settings::{DEFAULT_TIMEOUT, timeout_or};
use crate::util::{deadline_after, lock, rough_deadline_after};
pub(crate) use backend::{Checked, Control, Fill, MAX_GROUPED_CALLS, RegionPart, Request, SharedGraph};
pub(crate) use calls::exchange;
pub(crate) use control::Votes;
pub use create::most_processes;
pub(crate) use create::{
    LinkEngine, can_connect_machines, can_share_gpus, connect_machines, nccl_library, reduces_float8, runs_layers,
    ucx_link, ucx_version,
};
pub(crate) use groups::not_a_member;
pub use nccl_id::NcclId;
pub(crate) use refused_run::RefusedRun;
use requests::Requests;
pub(crate) use run_id::{CountedRun, RunCounter};

/// One rank of a set of ranks that make collective calls together.
///
/// # Contract
///
/// - **Collective calls.** Every rank makes them in the same order, each rank on its own thread:
///   [`barrier`](Self::barrier), the collectives, [`split`](Self::split),
///   [`new_group`](Self::new_group), [`allocate`](Self::allocate), [`finalize`](Self::finalize) and
///   [`ExecutionContext::set_communicator`](crate::ExecutionContext::set_communicator). If one
///   thread makes the calls of two ranks, the first waits for the second until its deadline.
/// - **Agreement.** Each call carries its number and its signature: operation, reduction, root,
///   type, element count. The number counts the program's collectives and barriers on this
///   communicator, not those inside `split`, `allocate` and `set_communicator`. If ranks differ,
///   every rank gets an [`ErrorKind::Disagreement`] with the calls. A rank that takes elements from
///   a rank whose call is another gets it from that call, whose output is not written. A rank that
///   takes none from such a rank may have returned by then, with its output written. It gets the
///   error from its next call or wait on this communicator, also a message's;
///   [`finalize`](Self::finalize) is the last one.
/// - **Runs.** A run of an [`ExecutionContext`](crate::ExecutionContext) or a
///   [`BoundLayer`](crate::dist_collective::BoundLayer) has a number, which its collectives carry.
///   If one rank's arguments are wrong, it
///   [refuses](crate::ExecutionContext::refuse_run) the run. The other ranks get an
///   [`ErrorKind::RunRefused`] from the run's first collective, for which every rank waits, and all
///   go on to the next run. What fails before the library sees a run needs a
///   [`request`](Self::request).
/// - **Order.** The calls of one rank run in the order in which the rank makes them, whatever
///   [`Stream`]s they are issued on. A blocking call runs after work that was issued
///   before it. Clones and handles of `with_timeout` share that order. Calls from several threads
///   are ordered by the moment at which they enter the library; the caller has to make this order
///   the same on every rank. A run of an [`ExecutionContext`](crate::ExecutionContext) or a
///   [`BoundLayer`](crate::dist_collective::BoundLayer) takes one place, in its communicator and in
///   all groups split from it. A plugin's call on the run's own thread belongs to that place; from
///   another thread it comes after the run. A plugin cannot enqueue work for those communicators on
///   a worker stream, because its place would depend on timing. Each communicator has its own
///   order. If calls of several communicators share a thread, a stream or a GPU, ranks issue them
///   in one common order, as with MPI and NCCL.
/// - **Bounded.** Every call but [`request`](Self::request) returns by its deadline, which runs
///   from the moment of issue. The timeout is 600 s, the environment variable `DCL_TIMEOUT` (in
///   seconds), or [`with_timeout`](Self::with_timeout). One that overflows the clock means a year.
/// - **Interrupts.** The program's [interrupt hook](crate::interrupt) can end a call that waits.
///   That is an [`ErrorKind::Interrupted`], an error like the others; ranks that wait for this one
///   get an [`ErrorKind::Aborted`] with the reason.
/// - **Failure.** After an error the outputs are undefined, no peer touches this rank's memory
///   again, and the communicator is dead: further calls, and calls on everything split from it,
///   return its error at once. An error in a rank's own arguments is reported before anything
///   happens and leaves the communicator as it was; for a run see above. So do different lists in
///   `new_group`, lengths in `allocate` and plans in `set_communicator`; every rank gets that
///   error.
/// - **On GPUs.** NCCL compares nothing: ranks whose calls differ wait for each other forever, or
///   get results that no rank asked for. If all ranks are on one machine and met through
///   [`Environment`](crate::Environment) or [`CommunicatorBuilder::in_process`], they compare what
///   they call beside NCCL, and a difference is an error with all sides on every rank: in a call
///   that waits, in a wait for work, or within some 100 ms in the next call. On several machines,
///   if they met over TCP or a file, a difference between machines is found within some 100 ms, but
///   not one of messages. If a peer fails, aborts or dies, ranks that wait for it then return an
///   error at once. Otherwise both end at the deadline. Ranks also wait until their deadline for a
///   peer that dropped its handles. After an error, NCCL's work has been aborted and this rank's
///   buffers are its own again. If work ended before the error, and the program has not asked for
///   it, it has the error too: aborted work ends as well. A borrowed communicator is never aborted,
///   and if it is a blocking one, a call may block beyond the deadline.
/// - **Determinism.** On the host, results have the same bits on every rank and in every run. On
///   GPUs they have the host's bits in [exact mode](Determinism::Exact), which all ranks choose or
///   none: [`with_determinism`](Self::with_determinism).
/// - **Handles.** Clones are the same rank. When the last clone is dropped the rank has left, and
///   peers that wait for it return an error at once. A drop waits for no rank; between machines it
///   may wait a second until messages are sent.
/// - **Forks.** A process that was forked from a rank's process is no rank. Its calls on its copies
///   of the handles are an [`ErrorKind::Unsupported`], and dropping the copies changes nothing for
///   the ranks. Its symmetric memory becomes private when it looks at it. It may make communicators
///   of its own.
#[derive(Clone)]
pub struct Communicator {
    /// What the backend says of its rank. It never changes.
    rank: Rank,
    world_size: u32,
    space: MemorySpace,
    backend: Arc<dyn Backend>,
    order: Arc<IssueOrder>,
    timeout: Duration,
    determinism: Determinism,
    /// Of eager calls through this handle.
    wire_type: Option<WireType>,
    /// Made at the first use.
    stream: Arc<Mutex<Option<Stream>>>,
    requests: Arc<Requests>,
}

/// # The rank and its handle
///
/// ```
/// use std::time::Duration;
///
/// use distcollective::tensor::MemorySpace;
/// use distcollective::{Communicator, DataType, ReduceOperation};
///
/// Communicator::spawn(2, |communicator| {
///     assert_eq!(communicator.space(), MemorySpace::Host);
///     let handle = communicator.with_timeout(Duration::from_secs(10));
///     assert_eq!(handle.timeout(), Duration::from_secs(10));
///     // Memory that all ranks reach.
///     let mut x = handle.allocate(DataType::Float32, [2, 3])?;
///     handle.all_reduce(&mut x, ReduceOperation::Sum)?;
///     handle.barrier()?;
///     handle.monitored_barrier(Duration::from_secs(5))?;
///     communicator.check()?;
///     communicator.finalize()
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
impl Communicator {
    /// The backend; never [`BackendKind::Auto`].
    pub fn backend(&self) -> BackendKind {
        self.backend.kind()
    }

    /// A communicator that was not split from another one.
    fn new(backend: Arc<dyn Backend>, timeout: Duration) -> Self {
        Communicator {
            rank: backend.rank(),
            world_size: backend.world_size(),
            space: backend.space(),
            backend,
            order: IssueOrder::new(),
            timeout,
            determinism: Determinism::Backend,
            wire_type: None,
            stream: Arc::default(),
            requests: Arc::default(),
        }
    }

    /// A communicator that was split from this one.
    fn descendant(&self, backend: Box<dyn Backend>) -> Self {
        let Communicator { timeout, determinism, ref order, .. } = *self;
        Communicator { order: order.descendant(), determinism, ..Self::new(Arc::from(backend), timeout) }
    }

    /// The communicator's own stream: a [`worker`](Stream::worker), made at the first use. Clones
    /// and handles of `with_timeout` share it; a group has its own.
    ///
    /// # Errors
    ///
    /// - `System`: the operating system gives no thread.
    /// - `Unsupported`: this process was forked from the rank's.
    pub fn stream(&self) -> Result<Stream> {
        self.check_process().map_err(|e| e.on_rank(self.origin_rank()))?;
        let mut stream = lock(&self.stream);
        match &*stream {
            Some(stream) => Ok(stream.clone()),
            None => Ok(stream.insert(Stream::worker()?).clone()),
        }
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.world_size
    }

    /// This rank's [global rank](Self::global_ranks).
    pub(crate) fn origin_rank(&self) -> Rank {
        self.origin(self.rank())
    }

    pub(crate) fn origin(&self, rank: Rank) -> Rank {
        self.backend.origin(rank)
    }

    /// The time that each collective call through this handle waits for other ranks. From 10 s on
    /// it is counted in ticks of the kernel's clock (10 ms or less), and may be a few ticks off.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same rank with another timeout: for all calls from now on, or for one, as in
    /// `communicator.with_timeout(short).barrier()`.
    #[must_use = "it is another handle; this one keeps its timeout"]
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Communicator { timeout, ..self.clone() }
    }

    /// How far the bits of reductions through this handle are determined.
    pub fn determinism(&self) -> Determinism {
        self.determinism
    }

    /// The same rank with another determinism: for all calls from now on, or for one. Layers on
    /// this handle, and communicators that are split from it, have it too.
    ///
    /// ```
    /// use distcollective::{Communicator, Determinism, ReduceOperation};
    ///
    /// let communicator = Communicator::builder().in_process(1)?.remove(0);
    /// let mut x = [1.0f32];
    /// let exact = communicator.with_determinism(Determinism::Exact);
    /// exact.all_reduce(&mut x, ReduceOperation::Sum)?;
    /// assert_eq!(exact.determinism(), Determinism::Exact);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// Every rank of a call has the same; a difference is an [`ErrorKind::Disagreement`].
    #[must_use = "it is another handle; this one keeps its determinism"]
    pub fn with_determinism(&self, determinism: Determinism) -> Self {
        Communicator { determinism, ..self.clone() }
    }

    /// The type in which the float32 elements of eager calls through this handle travel, if that is
    /// another one.
    pub fn wire_type(&self) -> Option<WireType> {
        self.wire_type
    }

    /// The same rank with another transport type: for all eager calls from now on, or for one.
    /// [`WireType`] says what it means. `None` is none.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation, WireType};
    ///
    /// let sums = Communicator::spawn(2, |communicator| {
    ///     let mut x = [1.0f32, 1.0 + 2.0f32.powi(-20)];
    ///     let narrow = communicator.with_wire_type(WireType::Float16);
    ///     narrow.all_reduce(&mut x, ReduceOperation::Sum)?;
    ///     assert_eq!(narrow.wire_type(), Some(WireType::Float16));
    ///     Ok(x)
    /// })?;
    /// assert_eq!(sums, [[2.0, 2.0]; 2]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// Only `all_reduce`, `reduce`, `reduce_scatter`, `broadcast` and `all_gather` of float32 have
    /// a transport type; through this handle another operation, a list form, or another element
    /// type is an error. Messages, barriers and dictionaries do not use it. Layers and contexts
    /// have [their own](crate::DistCollectiveLayer::set_wire_type). Communicators that are split
    /// from this handle have none.
    ///
    /// Every rank of a call has the same; a difference is an [`ErrorKind::Disagreement`].
    #[must_use = "it is another handle; this one keeps its transport type"]
    pub fn with_wire_type(&self, wire_type: impl Into<Option<WireType>>) -> Self {
        Communicator { wire_type: wire_type.into(), ..self.clone() }
    }

    /// Compares the ranks' determinism, for a backend that does not compare calls. Collective.
    fn agree_on_determinism(&self) -> Result<()> {
        let deadline = self.deadline();
        let exchange = || self.exchange(Purpose::INITIALIZE, &self.determinism, deadline);
        self.check_determinism(self.in_turn(Extent::Communicator, &"connect", deadline, exchange)?, "connect")
    }

    /// Compares what every rank gives as its determinism. Every rank sees the same list. If two
    /// differ, every rank returns an error.
    fn check_determinism(&self, all: impl IntoIterator<Item = Determinism>, what: &str) -> Result<()> {
        let own = self.determinism;
        let Some((rank, other)) = (0..).map(Rank).zip(all).find(|(_, other)| *other != own) else { return Ok(()) };
        let rank = self.origin(rank);
        bail!(
            Disagreement,
            "{what} wants the same determinism on every rank: this rank has {own}, rank {rank} has {other}"
        );
    }

    pub(crate) fn deadline(&self) -> Instant {
        rough_deadline_after(self.timeout)
    }

    /// How elements moved in the latest collective of this rank that moved any; what `split` and
    /// `allocate` exchange counts too. `None` before it, with NCCL, and while another thread of
    /// this rank is in a collective.
    ///
    /// ```
    /// use distcollective::comm::TransferPath;
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let paths = Communicator::spawn(2, |communicator| {
    ///     communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
    ///     Ok(communicator.latest_path())
    /// })?;
    /// assert_eq!(paths, [Some(TransferPath::Inline); 2]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    pub fn latest_path(&self) -> Option<TransferPath> {
        self.backend.latest_path()
    }

    /// Whether the communicator still works.
    ///
    /// # Errors
    ///
    /// - The error that ended it.
    /// - `Unsupported`: this process was forked from the rank's.
    pub fn check(&self) -> Result<()> {
        self.check_process().and_then(|()| self.backend.check()).map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Ends the communicator, and everything split from the same origin, for every rank. Calls that
    /// wait return at once, on the other ranks with an [`ErrorKind::Aborted`] that names this rank
    /// and the reason. Not collective.
    ///
    /// ```
    /// use distcollective::{Communicator, ErrorKind};
    ///
    /// let error = Communicator::spawn(2, |communicator| match communicator.rank().0 {
    ///     0 => communicator.abort("no weights"),
    ///     _ => communicator.barrier(),
    /// });
    /// assert_eq!(error.unwrap_err().kind(), ErrorKind::Aborted);
    /// ```
    ///
    /// # Errors
    ///
    /// `Unsupported`: this process was forked from the rank's. Then nothing happens.
    pub fn abort(&self, reason: &str) -> Result<()> {
        self.check_process().map_err(|e| e.on_rank(self.origin_rank()))?;
        self.backend.abort(ErrorKind::Aborted, reason);
        Ok(())
    }

    /// Waits until every rank has made this call. Collective.
    ///
    #[doc = include_str!("errors.md")]
    pub fn barrier(&self) -> Result<()> {
        self.run_barrier(Purpose::BARRIER)
    }

    /// Waits for every rank, so that a rank whose last call disagreed with the others' gets that
    /// error, and drops the handle. Collective.
    ///
    #[doc = include_str!("errors.md")]
    pub fn finalize(self) -> Result<()> {
        self.run_barrier(Purpose::FINALIZE)?;
        self.backend.finalize();
        Ok(())
    }

    /// [`barrier`](Self::barrier) with a timeout of its own, whose error names all ranks that have
    /// not come by then. Every rank gets an error that names them: those that waited, and the
    /// missing ones in their next call. Collective.
    ///
    /// # Errors
    ///
    /// - `DeadlineExceeded`: the ranks that it names did not come. On other ranks that waited it
    ///   may be an [`ErrorKind::Aborted`] with the same text. As after every error of a collective,
    ///   the communicator has ended.
    /// - `Unsupported`: NCCL does not tell who is missing. On GPUs this needs ranks that met
    ///   through [`Environment`](crate::Environment), on several machines over TCP or a file, or
    ///   [`CommunicatorBuilder::in_process`].
    ///
    /// All others are those of [`barrier`](Self::barrier).
    pub fn monitored_barrier(&self, timeout: Duration) -> Result<()> {
        let deadline = deadline_after(timeout);
        let run = || self.backend.monitored_barrier(deadline);
        self.in_turn(Extent::Communicator, &"monitored_barrier", deadline, run)
    }

    fn run_barrier(&self, purpose: Purpose) -> Result<()> {
        let deadline = self.deadline();
        let request = Request::barrier(purpose, deadline);
        // SAFETY: without elements no buffer is used.
        let run = || unsafe { self.run(request) };
        self.in_turn(Extent::Communicator, &purpose.name(), deadline, run)
    }

    /// A buffer of zeros in memory that all ranks reach, so that collectives on it need no copy; on
    /// GPUs, memory that NCCL allocates. Every rank asks for the same number of bytes. The buffer
    /// works in communicators split from this one too, and in every other call. Dropping
    /// it frees this rank's memory, whatever the other ranks do with theirs. Memory that was in a
    /// call which a CUDA graph has captured stays for later buffers of its length, until the
    /// communicators have ended. Collective.
    ///
    /// # Errors
    ///
    /// The communicator stays as it was:
    /// - `InvalidArgument`: dimensions that are not a shape.
    /// - `Disagreement`: ranks ask for different lengths.
    ///
    /// All others are those of [`barrier`](Self::barrier). `System`: there is no memory.
    pub fn allocate(&self, data_type: DataType, dims: impl TryInto<Dims, Error: Into<Error>>) -> Result<Buffer> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        let deadline = self.deadline();
        let allocate = || {
            let byte_len = shape.byte_len(data_type);
            self.agree_on_length(byte_len, deadline)?;
            self.backend.allocate(byte_len, deadline)
        };
        self.in_turn(Extent::Communicator, &"allocate", deadline, allocate)?.reshaped(data_type, shape)
    }

    /// The memory that [`allocate`](Self::allocate) gives and raw addresses are in.
    pub fn space(&self) -> MemorySpace {
        self.space
    }

    /// Compares the length that each rank wants to allocate. Collective, in this rank's
    /// [turn](Self::in_turn).
    fn agree_on_length(&self, byte_len: usize, deadline: Instant) -> Result<()> {
        let all = self.gather_all(Purpose::ALLOCATE, &[byte_len as i64], deadline)?;
        // Every rank sees the same list. If two lengths differ, every rank returns an error.
        let Some(other) = all.iter().position(|other| *other != byte_len as i64) else { return Ok(()) };
        bail!(
            Disagreement,
            "allocate wants the same length on every rank: this rank asks for {byte_len} bytes, rank {} for {}",
            self.origin(Rank(other as u32)),
            all[other]
        );
    }

    /// That this process is not a fork of the one that made the communicator.
    fn check_process(&self) -> Result<()> {
        self.order.check_process()
    }

    /// Ends the communicator because of this rank's own error. A refused run does not end it.
    pub(crate) fn abort_with(&self, error: &Error) {
        if error.kind() != ErrorKind::RunRefused {
            self.backend.abort(error.kind(), &error.to_string());
        }
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
