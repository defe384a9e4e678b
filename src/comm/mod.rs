//! The communicator: the ranks that do collectives together.

mod backend;
mod builder;
mod eager;
pub(crate) mod host;
pub(crate) mod nccl;
pub(crate) mod rank_lock;
mod signature;
mod threads;
mod wanted;

use std::ffi::c_void;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub use builder::CommunicatorBuilder;
pub use eager::{Operands, RawCollective};

use crate::collective::{Call, check_buffers};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Address, Buffer, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::shape::Dims;
use crate::stream::Watch;
use crate::util::deadline_after;
pub(crate) use crate::util::settings::DEFAULT_TIMEOUT;
use crate::util::settings::timeout_or;
use crate::util::text::count_of;
pub(crate) use backend::{Backend, MAX_GROUPED_CALLS, Request};
pub use nccl::NcclId;
pub(crate) use nccl::{Group, NcclBackend};
pub(crate) use signature::Purpose;
pub(crate) use signature::Signature;
pub(crate) use wanted::Wanted;

/// One rank's end of a set of ranks that do collectives together.
///
/// # Contract
///
/// - **Collective calls.** [`barrier`](Self::barrier), the collectives, [`split`](Self::split),
///   [`new_group`](Self::new_group), [`allocate`](Self::allocate), [`finalize`](Self::finalize) and
///   [`ExecutionContext::set_communicator`](crate::ExecutionContext::set_communicator) are made by every rank, in the same
///   order, each rank on its own thread. Made one after the other from one thread, the first waits for the second until its
///   deadline.
/// - **Agreement.** Each call carries its number and its signature (operation, reduction, root, type, element count). Where
///   ranks differ, every rank that is in the call gets an [`ErrorKind::Disagreement`] with the calls, and no output is written. A
///   rank that only gives (the root of `broadcast` and `scatter`, the others in `gather` and `reduce`) may have returned by then:
///   it gets the error from its next call. [`finalize`](Self::finalize) is the last one.
///   The number counts every collective of this communicator, those inside `split`, `allocate` and `set_communicator` too.
/// - **Order.** The calls of one rank run in the order in which the rank makes them, whatever
///   [`Stream`](crate::Stream)s they are issued on: a blocking call runs after work that was issued
///   before. Clones, and handles of `with_timeout`, share that order. Calls from several threads
///   are ordered by the moment at which they enter the library; the caller sees to it that this
///   order is the same on every rank. A run of an [`ExecutionContext`](crate::ExecutionContext) or
///   a [`BoundLayer`](crate::BoundLayer) takes one place, in its communicator and in all groups
///   split from it. A plugin's call on the run's own thread belongs to that place; from another
///   thread it comes after the run. A plugin cannot enqueue work for those communicators on a
///   worker stream: the moment would decide about its place. Each communicator has its own order:
///   where calls of several share a thread, a stream or a GPU, ranks issue them in one common
///   order, as with MPI and NCCL.
/// - **Bounded.** Every call returns by its deadline, which runs from the moment of issue: 600 s,
///   what the environment variable `DCL_TIMEOUT` says (in seconds), or
///   [`with_timeout`](Self::with_timeout).
/// - **Failure.** After an error the outputs are undefined, no peer touches this rank's memory again, and the communicator is
///   dead: further calls, and calls on everything split from it, return its error at once. What a rank finds wrong in its own
///   arguments is reported before anything happens and leaves the communicator as it was; so do different lists in
///   `new_group`, lengths in `allocate` and plans in `set_communicator`, which every rank learns of.
/// - **On GPUs.** NCCL does not compare calls: ranks whose calls differ wait for each other until the deadline. Calls without
///   elements are not compared either. Who waits for a rank that failed, aborted or died is told at once where all ranks are on one
///   machine and met through [`Environment`](crate::Environment) or [`nccl_in_process`](Self::nccl_in_process); elsewhere, and for
///   a rank that just dropped its handles, he waits for his deadline. After an error what NCCL had under way has been aborted, and
///   this rank's buffers are its own again. A borrowed communicator is never aborted, and one that blocks may do so beyond the deadline.
/// - **Determinism.** On the host, results have the same bits on every rank and in every run.
/// - **Handles.** Clones are the same rank. When the last clone is dropped the rank has left, and
///   peers that wait for it are told at once. Between processes, `split`, `new_group` and
///   `allocate`, of groups too, need the process in which the first communicator's rank 0 lives,
///   also when its handles are dropped: it passes memory on.
/// - **Forks.** A process that was forked from a rank's is no rank. Its calls on the copies that it has are an
///   [`ErrorKind::Unsupported`], and dropping those is no matter to the ranks; symmetric memory becomes its own when it looks at it.
///   It may make communicators of its own.
#[derive(Clone)]
pub struct Communicator {
    backend: Arc<dyn Backend>,
    order: Arc<IssueOrder>,
    timeout: Duration,
}

impl Communicator {
    /// The ranks of a new communicator that are threads of this process: element `r` is rank `r`, to be moved to its thread.
    ///
    /// ```
    /// use distcollective::{Communicator, ReduceOperation};
    ///
    /// let threads: Vec<_> = Communicator::in_process(3)?
    ///     .into_iter()
    ///     .map(|communicator| {
    ///         std::thread::spawn(move || {
    ///             let mut x = [communicator.rank().0 as f32, 1.0];
    ///             communicator.all_reduce(&mut x, ReduceOperation::Sum).map(|()| x)
    ///         })
    ///     })
    ///     .collect();
    /// for thread in threads {
    ///     assert_eq!(thread.join().unwrap()?, [3.0, 3.0]);
    /// }
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// A communicator of no rank, or of more than 1024.
    pub fn in_process(world_size: u32) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        if world_size > builder::MAX_RANKS {
            bail!(InvalidArgument, "{world_size} ranks; a communicator on the host has at most {}", builder::MAX_RANKS);
        }
        let timeout = timeout_or(DEFAULT_TIMEOUT)?;
        let backends = host::in_process(world_size)?;
        Ok(backends.into_iter().map(|backend| Self::new(Arc::new(backend), timeout)).collect())
    }

    /// A communicator between processes of this machine; see [`CommunicatorBuilder`].
    pub fn builder() -> CommunicatorBuilder {
        CommunicatorBuilder::default()
    }

    /// The ranks of a new communicator that are threads of this process, on a backend by name: "host" ("gloo" is another name of it),
    /// "nccl", or "auto", which is NCCL where there are NCCL, NVRTC and a GPU for each rank, and else the host.
    ///
    /// # Errors
    ///
    /// A name of no backend; as [`in_process`](Self::in_process) and [`nccl_in_process`](Self::nccl_in_process).
    pub fn in_process_on(backend: &str, world_size: u32, timeout: Duration) -> Result<Vec<Self>> {
        let on_host = || {
            let communicators = Self::in_process(world_size)?;
            Ok(communicators.into_iter().map(|communicator| communicator.with_timeout(timeout)).collect())
        };
        match backend.parse()? {
            Wanted::Host => on_host(),
            Wanted::Nccl => Self::nccl_in_process(world_size, timeout),
            Wanted::Auto if nccl::check_all(world_size).is_ok() => Self::nccl_in_process(world_size, timeout),
            Wanted::Auto => on_host(),
        }
    }

    /// Whether so many ranks of this machine can be on a backend, by name; see [`in_process_on`](Self::in_process_on).
    ///
    /// # Errors
    ///
    /// What stands in the way.
    pub fn check_backend(backend: &str, world_size: u32) -> Result<()> {
        match backend.parse()? {
            Wanted::Host | Wanted::Auto => Ok(()),
            Wanted::Nccl => nccl::check_gpus(world_size).map(|_| ()),
        }
    }

    /// The name of the backend: "host" or "nccl".
    pub fn backend(&self) -> &'static str {
        if self.as_nccl().is_some() { "nccl" } else { "host" }
    }

    /// The ranks of a new communicator on GPUs that are threads of this process: rank `r` has GPU `r`. (Where NCCL lets ranks share a
    /// GPU, from 2.30 on with `NCCL_MULTI_RANK_GPU_ENABLE=1`, there may be more ranks than GPUs.)
    ///
    /// # Errors
    ///
    /// As [`nccl`](Self::nccl); not enough GPUs.
    pub fn nccl_in_process(world_size: u32, timeout: Duration) -> Result<Vec<Self>> {
        if world_size == 0 {
            bail!(InvalidArgument, "a communicator has at least one rank");
        }
        let backends = nccl::in_process(world_size, deadline_after(timeout))?;
        Ok(backends.into_iter().map(|backend| Self::new(Arc::new(backend), timeout)).collect())
    }

    /// A communicator on GPUs: meets the other ranks that have the same id, each with the GPU of this number among those that its
    /// process sees. Ranks may be processes, of several machines, or threads. Collective.
    ///
    /// [`Environment`](crate::Environment) does the same with what the launcher says.
    ///
    /// ```no_run
    /// use distcollective::{Communicator, DEFAULT_TIMEOUT, NcclId, Rank, ReduceOperation};
    ///
    /// let id = NcclId::new()?; // and bring it to the other ranks
    /// let communicator = Communicator::nccl(&id, Rank(0), 8, 0, DEFAULT_TIMEOUT)?;
    /// communicator.all_reduce(&mut [1.0f32], ReduceOperation::Sum)?;
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// No NCCL from 2.19 on, no CUDA, no such GPU; ranks that do not come before the deadline; what NCCL says.
    pub fn nccl(id: &NcclId, rank: Rank, world_size: u32, ordinal: u32, timeout: Duration) -> Result<Self> {
        Self::nccl_beside(id, rank, world_size, ordinal, None, timeout)
    }

    /// [`nccl`](Self::nccl) beside a communicator of the same ranks on the host, which tells them who fails.
    pub(crate) fn nccl_beside(
        id: &NcclId,
        rank: Rank,
        world_size: u32,
        ordinal: u32,
        sidecar: Option<Communicator>,
        timeout: Duration,
    ) -> Result<Self> {
        let backend = nccl::meet(id, rank, world_size, ordinal, sidecar, deadline_after(timeout));
        Ok(Self::new(Arc::new(backend.map_err(|e| e.on_rank(rank))?), timeout))
    }

    /// A communicator on the caller's `ncclComm_t`, as TensorRT's `setCommunicator` takes it. It is never aborted or destroyed here;
    /// what is split from it is our own. Collective: ranks tell each other what their NCCL and GPU can do.
    ///
    /// # Safety
    ///
    /// It is a communicator of the NCCL that `libnccl.so.2` is in this process. Until all clones of this, and everything made with
    /// them, are gone, it is not destroyed, and nobody else uses it during a call.
    ///
    /// # Errors
    ///
    /// As [`nccl`](Self::nccl); a null pointer.
    pub unsafe fn from_raw_nccl(communicator: *mut c_void, timeout: Duration) -> Result<Self> {
        // SAFETY: the caller's promise.
        let backend = unsafe { nccl::borrow(communicator, deadline_after(timeout))? };
        Ok(Self::new(Arc::new(backend), timeout))
    }

    /// A communicator that was not split from another one.
    fn new(backend: Arc<dyn Backend>, timeout: Duration) -> Self {
        Communicator { backend, order: IssueOrder::new(), timeout }
    }

    /// A communicator that was split from this one.
    fn descendant(&self, backend: Box<dyn Backend>) -> Self {
        Communicator { backend: Arc::from(backend), order: self.order.descendant(), timeout: self.timeout }
    }

    /// Where calls of this communicator take their place.
    pub(crate) fn order(&self, extent: Extent) -> (Arc<IssueOrder>, Extent) {
        (Arc::clone(&self.order), extent)
    }

    /// Makes a call on this thread when the calls that this rank made before have ended. `call` is
    /// one collective or several, which no other call of the rank comes between; `what` is its
    /// name.
    pub(crate) fn in_turn<T>(
        &self,
        extent: Extent,
        what: &dyn fmt::Display,
        deadline: Instant,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.backend.check_process()?;
        let ticket = self.order.issue_here(extent);
        let label = |error: Error| error.on_rank(self.origin_rank()).about(|| what.to_string());
        let turn = ticket.wait(deadline, || self.backend.check(), label);
        turn.map_err(|error| match self.backend.check() {
            // A rank that leaves a collective out would let its peers wait for nothing.
            Ok(()) => self.backend.give_up(error),
            Err(_) => error,
        })?;
        ticket.run(call)
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> Rank {
        self.backend.rank()
    }

    /// The number of ranks.
    pub fn world_size(&self) -> u32 {
        self.backend.world_size()
    }

    /// This rank's number in the communicator from which this one, perhaps over several steps, was split. Errors speak of
    /// these numbers, so that a rank has one name everywhere.
    pub fn origin_rank(&self) -> Rank {
        self.origin(self.rank())
    }

    pub(crate) fn origin(&self, rank: Rank) -> Rank {
        self.backend.origin(rank)
    }

    /// The time that each collective call through this handle waits for other ranks.
    pub fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The same rank with another timeout: for all calls from now on, or for one, as in
    /// `communicator.with_timeout(short).barrier()`.
    pub fn with_timeout(&self, timeout: Duration) -> Self {
        Communicator { timeout, ..self.clone() }
    }

    pub(crate) fn deadline(&self) -> Instant {
        deadline_after(self.timeout)
    }

    /// Whether the communicator still works.
    ///
    /// # Errors
    ///
    /// The error that ended it.
    pub fn check(&self) -> Result<()> {
        self.backend.check().map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Ends the communicator, and everything split from the same origin, for every rank: calls that wait return at once, on
    /// the other ranks with an [`ErrorKind::Aborted`] that names this rank and the reason. Not collective.
    ///
    /// # Errors
    ///
    /// This process was forked from the rank's; then nothing happens.
    pub fn abort(&self, reason: &str) -> Result<()> {
        self.backend.check_process().map_err(|e| e.on_rank(self.origin_rank()))?;
        self.backend.abort(ErrorKind::Aborted, reason);
        Ok(())
    }

    /// Waits until every rank has come here. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn barrier(&self) -> Result<()> {
        self.agree(Purpose::Barrier)
    }

    /// Says good-bye: waits for every rank, so that one whose last call disagreed with the others' still learns of it, and
    /// drops the handle. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn finalize(self) -> Result<()> {
        self.agree(Purpose::Finalize)
    }

    fn agree(&self, purpose: Purpose) -> Result<()> {
        let deadline = self.deadline();
        let request = Request::barrier(purpose, deadline);
        // SAFETY: without elements no buffer is used.
        let agree = || unsafe { self.backend.run(&request) };
        self.in_turn(Extent::Communicator, &request.signature, deadline, agree)
            .map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Makes a communicator of the ranks that give the same `color`, ordered by `key` and then by rank, as `MPI_Comm_split`
    /// and `ncclCommSplit` do; a rank without a color takes part in the call and gets none. Collective.
    ///
    /// # Errors
    ///
    /// See the contract of [`Communicator`].
    pub fn split(&self, color: Option<u32>, key: i32) -> Result<Option<Communicator>> {
        let deadline = self.deadline();
        let backend =
            self.in_turn(Extent::Communicator, &"split", deadline, || self.backend.split(color, key, deadline));
        Ok(backend.map_err(|e| e.on_rank(self.origin_rank()))?.map(|backend| self.descendant(backend)))
    }

    /// Makes a communicator of `ranks`, whose order becomes the order of the new ranks. Every rank of this communicator
    /// gives the same list; one that is not in it gets none. Collective.
    ///
    /// # Errors
    ///
    /// A rank that is named twice or is not in this communicator; and see the contract of [`Communicator`].
    pub fn new_group(&self, ranks: impl IntoIterator<Item: Into<Rank>>) -> Result<Option<Communicator>> {
        self.new_named_group(None, &ranks.into_iter().map(Into::into).collect::<Vec<Rank>>())
    }

    /// [`new_group`](Self::new_group), where ranks compare a name too.
    pub(crate) fn new_named_group(&self, name: Option<&str>, ranks: &[Rank]) -> Result<Option<Communicator>> {
        for (i, rank) in ranks.iter().enumerate() {
            if rank.0 >= self.world_size() {
                let ranks = count_of(self.world_size() as usize, "rank");
                bail!(InvalidArgument, "rank {rank} is not in a communicator of {ranks}");
            }
            if ranks[..i].contains(rank) {
                bail!(InvalidArgument, "rank {rank} occurs twice");
            }
        }
        let deadline = self.deadline();
        let group =
            self.in_turn(Extent::Communicator, &"new_group", deadline, || self.make_group(name, ranks, deadline));
        group.map_err(|e| e.on_rank(self.origin_rank()))
    }

    fn make_group(&self, name: Option<&str>, ranks: &[Rank], deadline: Instant) -> Result<Option<Communicator>> {
        let own: (Option<String>, Vec<u32>) = (name.map(str::to_owned), ranks.iter().map(|rank| rank.0).collect());
        let bytes = postcard::to_stdvec(&own).map_err(|e| error!(System, "a group cannot be told").with_source(e))?;
        let all = self.exchange(Purpose::NewGroup, &bytes, deadline)?;
        if let Some(other) = all.iter().position(|other| *other != bytes) {
            // Every rank has the same lists, and at least two differ, so every rank returns an error.
            let others = postcard::from_bytes::<(Option<String>, Vec<u32>)>(&all[other]).unwrap_or_default();
            let are_named = own.0.is_some() || others.0.is_some();
            let describe = |(name, ranks): &(Option<String>, Vec<u32>)| match name {
                Some(name) => format!("{name:?} {ranks:?}"),
                None if are_named => format!("{ranks:?} without a name"),
                None => format!("{ranks:?}"),
            };
            bail!(
                Disagreement,
                "new_group wants the same {} on every rank: this rank gives {}, rank {} gives {}",
                if are_named { "name and ranks" } else { "ranks" },
                describe(&own),
                self.origin(Rank(other as u32)),
                describe(&others)
            );
        }
        self.split_into(ranks.contains(&self.rank()).then_some(ranks), deadline)
    }

    /// Makes a communicator of the group that this rank is in, if it is in one; other ranks make
    /// those of theirs at the same time. That it has exactly the group's members is checked:
    /// buffers are as long as the group says. Collective, in this rank's [turn](Self::in_turn).
    pub(crate) fn split_into(&self, group: Option<&[Rank]>, deadline: Instant) -> Result<Option<Communicator>> {
        let place = group.and_then(|group| group.iter().position(|rank| *rank == self.rank()));
        let (Some(group), Some(place)) = (group, place) else {
            self.backend.split(None, 0, deadline)?;
            return Ok(None);
        };
        // The first member's number is a color that no other group has.
        let backend = self.backend.split(group.first().map(|rank| rank.0), place as i32, deadline)?;
        let members = backend.iter().flat_map(|b| (0..b.world_size()).map(|rank| b.origin(Rank(rank))));
        if !members.eq(group.iter().map(|rank| self.origin(*rank))) {
            let error = error!(Disagreement, "ranks that split at the same time wanted different groups");
            self.abort_with(&error);
            return Err(error);
        }
        Ok(backend.map(|backend| self.descendant(backend)))
    }

    /// A buffer of zeros in memory that all ranks reach, so that collectives on it need no copy in between; on GPUs in memory of
    /// NCCL's. Every rank asks for
    /// the same number of bytes. It serves in the communicators that are split from this one too, and wherever another buffer
    /// does; dropping it gives the memory back, whatever the others do with theirs. Collective.
    ///
    /// # Errors
    ///
    /// Dimensions that are not a shape; ranks that ask for different lengths; and see the contract of [`Communicator`].
    pub fn allocate(&self, data_type: DataType, dims: impl TryInto<Dims, Error: Into<Error>>) -> Result<Buffer> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        let deadline = self.deadline();
        let allocate = || self.backend.allocate(shape.byte_len(data_type), deadline);
        let buffer = self.in_turn(Extent::Communicator, &"allocate", deadline, allocate);
        buffer.map_err(|e| e.on_rank(self.origin_rank()))?.reshaped(data_type, shape)
    }

    /// Memory for the operands of an engine's collectives. Collective, in this rank's
    /// [turn](Self::in_turn).
    pub(crate) fn allocate_region(&self, byte_len: usize, for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.backend.allocate_region(byte_len, for_graphs, deadline)
    }

    /// The memory that the communicator's buffers are in, and raw addresses are taken to be in.
    pub fn space(&self) -> MemorySpace {
        self.backend.space()
    }

    /// The NCCL backend, where the communicator is on GPUs.
    pub(crate) fn as_nccl(&self) -> Option<&NcclBackend> {
        self.backend.as_nccl()
    }

    /// Who finds out that what is enqueued will not be done.
    pub(crate) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.backend) as Arc<dyn Watch>
    }

    /// Runs a call whose rules of types and shapes have been checked, in this rank's
    /// [turn](Self::in_turn). Memory, alignment and overlap are checked here.
    ///
    /// # Safety
    ///
    /// Until this returns, or what it enqueues is done, the buffers that the call uses on this rank are valid for the lengths that
    /// the call says, and used by nobody else.
    pub(crate) unsafe fn run(&self, request: &Request<'_>) -> Result<()> {
        self.check_request(request)?;
        // SAFETY: the caller's promise, and the rules just checked.
        unsafe { self.backend.run(request) }
    }

    /// Checks memory, alignment and overlap of the buffers.
    pub(crate) fn check_request(&self, request: &Request<'_>) -> Result<()> {
        let call = &request.signature.call;
        let (rank, world_size) = (GroupRank(self.rank().0), self.world_size() as usize);
        self.check_spaces(request, rank)
            .and_then(|()| check_buffers(call, rank, world_size, request.input.addr(), request.output.addr()))
            .map_err(|e| request.label(e))
    }

    /// Checks that the buffers are in memory that the backend reaches.
    fn check_spaces(&self, request: &Request<'_>, rank: GroupRank) -> Result<()> {
        let call = &request.signature.call;
        let own = self.space();
        match (request.stream.map(|stream| stream.device().ordinal()), own) {
            (Some(_), MemorySpace::Host) => {
                bail!(Unsupported, "a CUDA stream is for communicators on GPUs, and this one is on the host")
            }
            (Some(stream), own) if own != MemorySpace::Cuda(stream) => {
                bail!(InvalidArgument, "the stream is one of GPU {stream}, and the communicator on {own}")
            }
            _ => {}
        }
        let uses =
            [("input", request.input, call.reads_input(rank)), ("output", request.output, call.writes_output(rank))];
        for (name, address, used) in uses {
            if !used || address.space == own || call.block_elements == 0 {
                continue;
            }
            match address.space {
                // It is copied to the GPU and back.
                MemorySpace::Host if request.stream.is_none() => {}
                MemorySpace::Host => bail!(
                    InvalidBuffer,
                    "the {name} is in host memory; what is enqueued on a CUDA stream has its tensors in {own}, such as \
                     `Communicator::allocate` gives"
                ),
                other => bail!(InvalidBuffer, "the {name} is in {other}, and the communicator on {own}"),
            }
        }
        Ok(())
    }

    /// Gives every rank the bytes of every rank. Collective, in this rank's [turn](Self::in_turn);
    /// the lengths may differ.
    pub(crate) fn exchange(&self, purpose: Purpose, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let n = self.world_size() as usize;
        let mut lens = vec![0i64; n];
        self.gather_all(purpose, &[bytes.len() as i64], &mut lens, deadline)?;
        // Peers wrote these. A length that memory cannot have would end this process.
        const LONGEST: i64 = 64 << 20;
        if let Some(rank) = lens.iter().position(|len| !(0..=LONGEST).contains(len)) {
            let rank_name = self.origin(Rank(rank as u32));
            bail!(System, "rank {rank_name} would exchange {} bytes; the most are {LONGEST}", lens[rank]);
        }
        let longest = lens.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * n];
        self.gather_all(purpose, &padded, &mut all, deadline)?;
        if longest == 0 {
            return Ok(vec![Vec::new(); n]);
        }
        Ok(all.chunks(longest).zip(lens).map(|(chunk, len)| chunk[..len as usize].to_vec()).collect())
    }

    fn gather_all<T: crate::Element>(
        &self,
        purpose: Purpose,
        input: &[T],
        output: &mut [T],
        deadline: Instant,
    ) -> Result<()> {
        let collective = crate::collective::Collective::AllGather;
        let call = Call { collective, data_type: T::DATA_TYPE, block_elements: input.len() };
        if output.len() != input.len() * self.world_size() as usize {
            return Err(error!(System, "an exchange with a wrong length"));
        }
        let request = Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host(input.as_ptr().cast()),
            output: Address::host(output.as_mut_ptr().cast()),
            deadline,
            stream: None,
        };
        // SAFETY: both slices are as long as the call says, and borrowed during it.
        unsafe { self.run(&request) }
    }

    /// [`check`](Self::check), and whether a peer has died, which else is found out by who waits for it.
    fn check_peers(&self) -> Result<()> {
        self.backend.check_peers()
    }

    /// Ends the communicator because of this rank's own error.
    pub(crate) fn abort_with(&self, error: &Error) {
        self.backend.abort(error.kind(), &error.to_string());
    }
}

impl fmt::Debug for Communicator {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Communicator(rank {} of {})", self.rank(), self.world_size())
    }
}
