//! One rank of a host communicator, and the calls of the `Backend` contract on it.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::arena::Arena;
use super::memory::{ReadOnlyBytes, SharedMemory, SharedMemorySize, check_time};
use super::messages::Messenger;
use super::own_rank::OwnRank;
use super::protocol::abort_domain::AbortDomain;
use super::protocol::call_logs::CallLogs;
use super::protocol::call_progress::{CallProgress, RequestProgress};
use super::protocol::segment::Segment;
use super::transfer::refusal::refusal;
use super::transfer::running_call::{RunningCall, goes_on_after};
use super::world::World;
use crate::collective::Purpose;
use crate::comm::BackendKind;
use crate::comm::backend::{Backend, CallLog, Checked, ExportedLog, Fill, Request, gather_numbers, is_shared};
use crate::comm::message::{Delivery, MessageRequest, OnEnd};
use crate::comm::rank_lock;
use crate::comm::run_id::CountedRun;
use crate::comm::split::SplitGroup;
use crate::comm::transfer_path::TransferPath;
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail};
use crate::memory::{Buffer, ReadOnlyMemory};
use crate::rank::{GroupRank, Rank};
use crate::shape::Shape;
use crate::stream::Watch;
use crate::sync::Ordering;
use crate::util::free_memory::FreeMemory;
use crate::util::lock;
use crate::util::text::count_of;

/// One rank of a host communicator.
pub(crate) struct HostBackend {
    pub(super) own: OwnRank,
    pub(super) world: Arc<World>,
    messenger: Arc<Messenger>,
}

impl HostBackend {
    /// The backends of some of this process's ranks in a world's first communicator.
    pub(super) fn of_world(world: &Arc<World>, ranks: std::ops::Range<u32>) -> Vec<Self> {
        let of_rank = |rank| OwnRank::new(Arc::clone(&world.root), GroupRank(rank), Arc::default(), &[]);
        ranks.map(|rank| Self::new(of_rank(rank), world)).collect()
    }

    fn new(own: OwnRank, world: &Arc<World>) -> Self {
        let messenger = Arc::new(Messenger::new(own.clone()));
        HostBackend { own, world: Arc::clone(world), messenger }
    }

    pub(super) fn domain(&self) -> &AbortDomain {
        &self.own.segment.domain
    }

    /// Whether this is the process that made the communicator, and not one forked from it.
    fn check_process(&self) -> Result<()> {
        self.domain().process.check("a communicator")
    }

    /// Begins a call: every call passes here once. Another thread of this rank may hold the lock
    /// until its own deadline.
    #[inline]
    fn enter(&self, deadline: Instant) -> Result<MutexGuard<'_, CallProgress>> {
        // First, because in a forked child the thread that held the lock does not exist
        // (invariant 21).
        self.check_process()?;
        // A call that is not made would leave the peers waiting, so this ends the communicator.
        rank_lock::enter(&self.own.lock.progress, deadline).map_err(|error| self.end(error))
    }

    /// Begins a call of several collectives.
    fn enter_several(&self, deadline: Instant) -> Result<EnteredCall<'_>> {
        Ok(EnteredCall { backend: self, progress: self.enter(deadline)?, deadline })
    }

    /// Ends the communicator because of this rank's own error.
    fn end(&self, error: Error) -> Error {
        if error.kind() != ErrorKind::RunRefused {
            self.own.end(&error, &error.to_string());
        }
        error
    }

    /// [`Backend::split`].
    pub(in crate::comm) fn split_off(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Self>> {
        let mut call = self.enter_several(deadline)?;
        let descendant = call.split_off(group).map_err(|error| self.end(error.about(|| "split".to_owned())))?;
        call.leave_together(Purpose::SPLIT)?;
        Ok(descendant)
    }

    /// Tells the peers that this rank makes no further call. It may be told twice.
    pub(in crate::comm) fn leave(&self) {
        if self.domain().process.is_current() {
            self.messenger.close();
            self.own.segment.leave(self.own.rank);
        }
    }

    /// [`Backend::abort`] because of a rank with this name, of any machine.
    pub(in crate::comm) fn abort_by(&self, kind: ErrorKind, name: Rank, reason: &str) {
        self.domain().abort(kind, name, reason);
    }

    /// [`call_log`](Backend::call_log), for ranks that are on several machines.
    pub(in crate::comm) fn exported_log(&self) -> Result<Box<dyn ExportedLog>> {
        Ok(Box::new(CallLogs::new(&self.own.segment, self.own.rank)?))
    }

    /// Runs one collective.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    #[inline]
    pub(super) unsafe fn run_request(&self, request: &Request<'_>) -> Result<()> {
        let mut progress = self.enter(request.deadline).map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise.
        let result = unsafe { self.run_entered(&mut progress, request) };
        if !progress.is_agreed() || matches!(progress.request, RequestProgress::Left(_)) {
            drop(progress);
            // A thread that waits for a message compares, and looks at the request.
            self.own.wake(self.own.rank);
        }
        result
    }

    /// Runs one collective of a call that has entered.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_entered(&self, progress: &mut CallProgress, request: &Request<'_>) -> Result<()> {
        self.own.check().map_err(|e| request.label(e))?;
        if let RequestProgress::Left(error) = &progress.request {
            return Err(request.label(error.clone()));
        }
        if request.call.purpose == Purpose::REQUEST {
            self.own.lock.has_messages.store(0, Ordering::Relaxed);
        }
        let mut call = RunningCall::new(&self.own, progress, request);
        // An error aborts the communicator before `call` is dropped, which waits for the peers.
        call.run().map_err(|error| {
            if goes_on_after(&request.call, &error) {
                return request.label(error);
            }
            let text = error.to_string();
            let error = request.label(error);
            // The layer's name is this rank's. An error that every rank gets as it is comes
            // without.
            let reason = if is_shared(error.kind()) { text } else { error.to_string() };
            self.own.end(&error, &reason);
            error
        })
    }
}

/// A call of several collectives, which no other call of the rank comes between: it has the rank's
/// lock.
struct EnteredCall<'a> {
    backend: &'a HostBackend,
    progress: MutexGuard<'a, CallProgress>,
    deadline: Instant,
}

impl EnteredCall<'_> {
    /// Memory of `size` for `users` ranks, and its id. `first` allocates it and tells the others.
    /// All ranks make this call at once; a rank that is no user gives the id 0 to it.
    fn shared_memory(
        &mut self,
        (first, users): (GroupRank, usize),
        size: SharedMemorySize,
        purpose: Purpose,
    ) -> Result<(u64, Arc<SharedMemory>)> {
        let (backend, deadline) = (self.backend, self.deadline);
        // A communicator that has ended takes no memory.
        backend.own.check()?;
        // A peer that fails aborts before it drops memory or its connection ends. Its reason is the
        // better error.
        let better = |error| backend.domain().check().err().unwrap_or(error);
        if first != backend.own.rank {
            let id = self.gather_numbers(purpose, 0)?[first.index()] as u64;
            return Ok((id, backend.world.memory.find(id, size.byte_len).map_err(better)?));
        }
        let keep_going = || backend.check_peers().and_then(|()| check_time(deadline, "allocated"));
        let (id, memory) = backend.world.memory.allocate(size, users, &keep_going).map_err(better)?;
        self.gather_numbers(purpose, id as i64)?;
        Ok((id, memory))
    }

    /// The communicator of a group's members.
    fn split_off(&mut self, group: Option<&SplitGroup>) -> Result<Option<HostBackend>> {
        let Some(group) = group else {
            self.gather_numbers(Purpose::SPLIT, 0)?;
            return Ok(None);
        };
        let (backend, domain) = (self.backend, &self.backend.own.segment.domain);
        let members: Box<[Rank]> =
            group.members.iter().map(|rank| backend.own.segment.member(GroupRank(rank.0))).collect();
        let spans_processes = !members.iter().all(|rank| domain.is_local(*rank));
        let size = Segment::memory_size(0, members.len(), spans_processes);
        let users = (GroupRank(group.members[0].0), members.len());
        let (id, memory) = self.shared_memory(users, size, Purpose::SPLIT)?;
        let segment = Segment::new(Arc::clone(domain), id, members, memory, 0, spans_processes);
        let OwnRank { arena, lineage, .. } = &backend.own;
        let own = OwnRank::new(Arc::new(segment), group.rank, Arc::clone(arena), lineage);
        Ok(Some(HostBackend::new(own, &backend.world)))
    }

    /// This rank's part of a new block of symmetric memory.
    fn symmetric_part(&mut self, byte_len: usize, block_len: usize) -> Result<Buffer> {
        let own = &self.backend.own;
        if !own.segment.spans_processes {
            // Threads of one process reach all memory.
            return Shape::new(&[byte_len]).and_then(|shape| Buffer::with_shape(DataType::Uint8, shape));
        }
        let size = SharedMemorySize::fully_resident(block_len);
        let (id, memory) = self.shared_memory((GroupRank(0), own.segment.len()), size, Purpose::ALLOCATE)?;
        let part = own.arena.add_block(&own.segment, own.rank, id, byte_len, memory);
        // SAFETY: the part is `byte_len` zeros on pages of its own, mapped as long as it lives
        // (invariant 13). Peers touch them only in collectives in which this rank uses the buffer
        // (invariants 10 and 12).
        unsafe { Buffer::leased(Box::new(part), byte_len) }
    }

    /// New memory of all ranks, which the source has written with `fill`. The other ranks have it
    /// before that.
    fn filled_memory(
        &mut self,
        purpose: Purpose,
        byte_len: usize,
        source: GroupRank,
        fill: Option<&mut Fill<'_>>,
    ) -> Result<Arc<SharedMemory>> {
        let (backend, deadline) = (self.backend, self.deadline);
        // A mapping has at least one byte.
        let size = SharedMemorySize::fully_resident(byte_len.max(1));
        let (_, memory) = self.shared_memory((source, backend.own.segment.len()), size, purpose)?;
        if let Some(fill) = fill {
            // SAFETY: the memory has as many initialized bytes, and no other rank uses them before
            // the barrier that follows.
            let bytes = unsafe { std::slice::from_raw_parts_mut(memory.bytes(0, byte_len), byte_len) };
            // The other ranks may have come to the barrier already, and die there.
            let keep_going = || backend.check_peers().and_then(|()| check_time(deadline, "written"));
            // The communicator ends before an error drops memory that a rank may not have mapped.
            fill(bytes, &keep_going).map_err(|error| backend.end(error))?;
        }
        Ok(memory)
    }

    /// Ends a call in which memory was allocated: no rank returns before each one has mapped it, so
    /// that an error of one is an error of all.
    fn leave_together(&mut self, purpose: Purpose) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.backend.run_entered(&mut self.progress, &Request::barrier(purpose, self.deadline)) }
    }

    /// Gathers one number from every rank, in rank order.
    fn gather_numbers(&mut self, purpose: Purpose, number: i64) -> Result<Vec<i64>> {
        let (backend, deadline) = (self.backend, self.deadline);
        // SAFETY: the buffers of the request are as long as it says.
        let run = |request: &Request<'_>| unsafe { backend.run_entered(&mut self.progress, request) };
        gather_numbers(backend.own.segment.len(), purpose, number, deadline, run)
    }
}

impl Backend for HostBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn rank(&self) -> Rank {
        Rank(self.own.rank.0)
    }

    fn world_size(&self) -> u32 {
        self.own.segment.len() as u32
    }

    fn origin(&self, rank: Rank) -> Rank {
        self.own.segment.name(GroupRank(rank.0))
    }

    unsafe fn run(&self, calls: &[Checked<'_>]) -> Result<()> {
        let [Checked { request, .. }] = calls else { bail!(System, "no calls on the host can be grouped") };
        // SAFETY: the caller's promise.
        unsafe { self.run_request(request) }
    }

    fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_request(&Request::barrier(Purpose::MONITORED_BARRIER, deadline)) }
    }

    unsafe fn run_message(&self, message: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        self.check_process()?;
        // SAFETY: the caller's promise.
        unsafe { self.messenger.run(message, deadline) }
    }

    unsafe fn start_messages(&self, messages: Vec<(MessageRequest, OnEnd)>, deadline: Instant) -> Result<()> {
        self.check_process()?;
        // SAFETY: the caller's promise.
        unsafe { self.messenger.start(messages, deadline) }
    }

    fn finalize(&self) {
        self.messenger.warn_of_unreceived();
    }

    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        Ok(self.split_off(group, deadline)?.map(|backend| Box::new(backend) as Box<dyn Backend>))
    }

    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        let mut call = self.enter_several(deadline)?;
        let free = FreeMemory::look().map_or(i64::MAX, |free| i64::try_from(free.usable()).unwrap_or(i64::MAX));
        let all = call.gather_numbers(Purpose::ALLOCATE, free)?;
        let block_len = Arena::block_len(byte_len, self.own.segment.len())?;
        // The first rank allocates the block. Every rank checks that rank's figure.
        let free = all[0];
        if u64::try_from(free).is_ok_and(|free| free < block_len as u64) {
            bail!(
                System,
                "allocate: {} of {byte_len} bytes each take {block_len} bytes, and the process of rank {} can have about \
                 {free} bytes more",
                count_of(self.own.segment.len(), "rank"),
                self.own.segment.name(GroupRank(0))
            );
        }
        // Other ranks may have their parts and wait for this one, so an error ends the
        // communicator.
        let buffer = call.symmetric_part(byte_len, block_len);
        let buffer = buffer.map_err(|error| self.end(error.about(|| "allocate".to_owned())))?;
        call.leave_together(Purpose::ALLOCATE)?;
        Ok(buffer)
    }

    fn share(
        &self,
        purpose: Purpose,
        byte_len: usize,
        source: GroupRank,
        fill: Option<&mut Fill<'_>>,
        deadline: Instant,
    ) -> Result<ReadOnlyMemory> {
        let mut call = self.enter_several(deadline)?;
        // Other ranks wait for this one, so an error ends the communicator.
        let memory = call.filled_memory(purpose, byte_len, source, fill).map_err(|error| self.end(error))?;
        call.leave_together(purpose)?;
        // The source has written all before it left, and no rank writes from now on.
        Ok(Arc::new(ReadOnlyBytes::new(memory, byte_len).map_err(|error| self.end(error))?))
    }

    fn check_peers(&self) -> Result<()> {
        self.check()?;
        let segment = &*self.own.segment;
        match segment.ranks().find(|peer| segment.has_died(*peer)) {
            Some(peer) => bail!(PeerLost, "rank {} died while this rank waited", segment.name(peer)),
            None => Ok(()),
        }
    }

    fn latest_path(&self) -> Option<TransferPath> {
        // A thread that waits for a message has the lock for a moment.
        (0..100).find_map(|_| self.own.lock.progress.try_lock().ok())?.path
    }

    fn call_log(&self) -> Result<Box<dyn CallLog>> {
        Ok(Box::new(CallLogs::new(&self.own.segment, self.own.rank)?))
    }

    fn refuse(&self, run: &CountedRun<'_>, reason: &str, deadline: Instant) -> Result<bool> {
        let progress = self.enter(deadline)?;
        let run = match progress.request {
            RequestProgress::None if progress.has_begun(run.id()) => return Ok(true),
            RequestProgress::None => Some(run),
            // The request ends as a whole.
            RequestProgress::Open(_) => None,
            RequestProgress::Left(_) => return Ok(true),
        };
        drop(progress);
        // SAFETY: the input is the reason, and nothing is written.
        unsafe { self.run_request(&refusal(run, reason, deadline))? };
        Ok(true)
    }

    fn has_left_request(&self) -> bool {
        let progress = lock(&self.own.lock.progress);
        matches!(progress.request, RequestProgress::Left(_))
    }

    fn has_messages_in_request(&self) -> bool {
        self.own.lock.has_messages.load(Ordering::Relaxed) != 0
    }

    fn end_request(&self, failure: Option<&str>, deadline: Instant) -> Result<bool> {
        let open = self.enter(deadline)?.request_number();
        let ended = match (open, failure) {
            (None, _) => Ok(()),
            // SAFETY: without elements no buffer is used.
            (Some(_), None) => unsafe { self.run_request(&Request::barrier(Purpose::END_OF_REQUEST, deadline)) },
            // SAFETY: the input is the reason, and nothing is written.
            (Some(_), Some(reason)) => unsafe { self.run_request(&refusal(None, reason, deadline)) },
        };
        match (std::mem::take(&mut self.enter(deadline)?.request), failure) {
            (RequestProgress::Left(error), None) => Err(error),
            _ => ended.map(|()| true),
        }
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.domain().abort(kind, self.own.name(), reason);
    }
}

impl Watch for HostBackend {
    fn check(&self) -> Result<()> {
        self.check_process()?;
        self.own.check()
    }

    fn fail(&self, error: Error) -> Error {
        self.end(error)
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        self.leave();
    }
}
