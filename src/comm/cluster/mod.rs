//! The cluster backend: ranks on several machines, without GPUs or as a control communicator. On
//! each machine its ranks are a communicator of the host backend, whose collectives it calls as any
//! caller does. Between machines a [link](link) moves bytes. The two know nothing of each other.
//!
//! A collective has two steps:
//!
//! 1. *Agreement* ([`agreement`]). Each rank says its call, with its input if that is short. The
//!    ranks of a machine gather these on the host, the first of them exchanges them with the other
//!    machines, and every rank compares all. So every rank has the same error, before an output is
//!    written.
//! 2. *Elements*, unless all came with the calls. Blocks that move go over the link, once to each
//!    machine, and on the host from there ([`movement`]). Reductions go from machine to machine in
//!    rank order, each rank with its slice ([`reduction`]): the bits are those of one machine.
//!
//! [`job`] has what all communicators of a process share, [`inbox`] what has come over the link.

mod agreement;
mod call_log;
mod inbox;
mod job;
mod link;
mod messages;
mod movement;
mod placement;
mod reduction;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use agreement::Calls;
use call_log::{Duty, MachineLogs};
use job::{FIRST, Handle, Job, MOST_UNSENT, send_abort};
use placement::RankPlacement;

use super::backend::{Backend, CallLog, Checked, Request, Uneven, gather_numbers};
use super::backend_kind::BackendKind;
use super::host::HostBackend;
use super::message::{Delivery, Direction, MessageRequest, OnEnd};
use super::rank_lock;
use super::run_id::CountedRun;
use super::signature::place_of;
use super::split::SplitGroup;
use super::transfer_path::TransferPath;
use crate::collective::{BlockCounts, Call, Collective, Purpose, PurposeKind};
use crate::compute::{self, Stored};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::handshake::Channel;
use crate::memory::{Address, Buffer};
use crate::mpi::MpiCommunicator;
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;
use crate::util::text::list_ranks;

use link::mpi::MpiLink;
use link::rendezvous::RendezvousLink;
pub(super) use link::ucx::{UcxLink, version as ucx_version};
use link::{Bytes, Link, MessageKind, Tag};

/// What the parts of a collective are on the host backend.
const PART: Purpose = Purpose::new("a part of a call between machines", PurposeKind::Part);

/// A call on the host backend that is a part of another one.
fn part_of<'a>(whole: &Request<'a>, call: Call, sides: [Address; 2]) -> Request<'a> {
    Request { explain: whole.explain, ..Request::new(call.for_purpose(PART), sides, whole.deadline) }
}

/// The most bytes of all inputs of a reduction that each rank gets, to reduce them by itself.
const MOST_EXCHANGED: usize = 32 << 10;

/// One rank of a communicator whose ranks are on several machines.
pub(crate) struct ClusterBackend {
    job: Handle,
    /// This machine's ranks of the communicator.
    host: Arc<HostBackend>,
    placement: RankPlacement,
    /// The communicator's number in the job.
    id: u32,
    calls: Mutex<Calls>,
    /// Whether this rank has begun a message.
    has_messages: AtomicBool,
}

impl ClusterBackend {
    /// The first communicator of a job, whose ranks are on these machines. `host` has those of this
    /// machine in rank order, and names them by their ranks in the job.
    fn new(link: Box<dyn Link>, own: Rank, machines: Box<[u32]>, host: HostBackend) -> Result<Self> {
        let host = Arc::new(host);
        let members: Box<[Rank]> = (0..machines.len() as u32).map(Rank).collect();
        let job = Job::begin(link, own, machines, Arc::clone(&host))?;
        let placement = RankPlacement::new(GroupRank(own.0), members, |rank| job.machines[rank.index()]);
        Ok(ClusterBackend {
            job,
            host,
            placement,
            id: FIRST,
            calls: Mutex::default(),
            has_messages: AtomicBool::new(false),
        })
    }

    /// See [`new`](Self::new). `addresses` are those of all ranks.
    pub(super) fn over_ucx(
        link: UcxLink,
        addresses: &[Vec<u8>],
        own: Rank,
        machines: Box<[u32]>,
        host: HostBackend,
    ) -> Result<Self> {
        link.connect(addresses)?;
        Self::new(Box::new(link), own, machines, host)
    }

    /// See [`new`](Self::new). The ranks of MPI's communicator are those of the job.
    pub(super) fn over_mpi(
        communicator: MpiCommunicator,
        own: Rank,
        machines: Box<[u32]>,
        host: HostBackend,
    ) -> Result<Self> {
        Self::new(Box::new(MpiLink(communicator)), own, machines, host)
    }

    /// See [`new`](Self::new), for a control communicator. The ranks have met over the channels. If
    /// this rank has no `host`, the others get its error.
    pub(super) fn over_rendezvous(
        channels: Vec<Channel>,
        own: Rank,
        machines: Box<[u32]>,
        host: Result<HostBackend>,
    ) -> Result<Self> {
        let link = RendezvousLink::new(own, machines.len() as u32, channels)?;
        match host {
            Ok(host) => Self::new(Box::new(link), own, machines, host),
            Err(error) => {
                let others = (0..machines.len() as u32).map(Rank).filter(|rank| *rank != own);
                send_abort(&link, others, error.kind(), own, &error.to_string());
                link.flush();
                Err(error)
            }
        }
    }

    /// The host backend, if all ranks are on this machine: it does all but messages.
    fn one_machine(&self) -> Option<&HostBackend> {
        (self.placement.machine_count() == 1).then_some(&*self.host)
    }

    /// Runs one collective. Any error ends the communicator.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_request(&self, request: &Request<'_>) -> Result<()> {
        self.job.check_process()?;
        if self.one_machine().is_some() {
            // SAFETY: the caller's promise.
            return unsafe { self.run_on_host(request) }.map_err(|error| self.job.end(error));
        }
        let calls = rank_lock::enter(&self.calls, request.deadline);
        let result = calls.and_then(|mut calls| {
            self.job.check()?;
            let (call, is_counted) = (&request.call, request.call.purpose.is_counted());
            calls.counted += u64::from(is_counted);
            let number = calls.counted + u64::from(!is_counted);
            let is_explained = Cell::new(false);
            let explain = |error: Error| {
                is_explained.set(true);
                let is_late = error.kind() == ErrorKind::DeadlineExceeded && call.purpose == Purpose::MONITORED_BARRIER;
                let missing = if is_late { self.missing() } else { None };
                let named = || format!("{call} ({}): {error}", place_of(is_counted, number));
                missing.unwrap_or_else(|| Error::new(error.kind(), named()))
            };
            // SAFETY: the caller's promise.
            let result = unsafe { self.run_entered(number, &Request { explain: Some(&explain), ..*request }) };
            let moved = result.map(|path| calls.path = path.or(calls.path));
            moved.map_err(|error| match error.kind() {
                // It names calls, or another rank has said what it is about.
                ErrorKind::Disagreement | ErrorKind::Aborted => error,
                _ if is_explained.get() => error,
                _ => explain(error),
            })
        });
        result.map_err(|error| request.label(self.job.end(error)))
    }

    /// Says how elements moved, if any did.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_entered(&self, number: u64, request: &Request<'_>) -> Result<Option<TransferPath>> {
        let agreed = self.agree(number, request)?;
        let call = &request.call;
        if call.block_elements == 0 {
            return Ok(None);
        }
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(inputs) = agreed.inputs(request, self.placement.len()) {
                self.take_inputs(request, &inputs);
                return Ok(Some(TransferPath::Inline));
            }
            let Some(wire_type) = call.wire_type else { return self.move_elements(request).map(Some) };
            // Each contribution is rounded once. The rounded numbers are float32 then.
            let input_bytes =
                if call.reads_input(self.placement.own) { call.input_bytes(self.placement.len()) } else { 0 };
            let mut rounded = Bytes::of_len(input_bytes);
            let block = call.block_bytes();
            for index in 0..input_bytes.checked_div(block).unwrap_or(0) {
                let (from, to) = (request.input_block(index), rounded[index * block..].as_mut_ptr());
                compute::round(wire_type, Stored::AsFloat32, from, to, call.block_elements);
            }
            let call = Call { wire_type: None, ..*call };
            let output_list = if call.input().is_per_rank { None } else { request.blocks };
            let input = Address::host(rounded.as_ptr());
            self.move_elements(&Request { call, input, blocks: output_list, ..*request }).map(Some)
        }
    }

    /// # Safety
    ///
    /// As [`Backend::run`]. The ranks have agreed.
    unsafe fn move_elements(&self, request: &Request<'_>) -> Result<TransferPath> {
        // SAFETY: the caller's promise.
        unsafe {
            match request.call.collective {
                Collective::AllGather | Collective::Broadcast { .. } => {
                    self.move_to_all(request).map(|()| TransferPath::Relayed)
                }
                Collective::Gather { .. } | Collective::Scatter { .. } | Collective::AllToAll => {
                    self.move_pairwise(request).map(|()| TransferPath::Pairwise)
                }
                Collective::AllReduce { reduce_op }
                | Collective::Reduce { reduce_op, .. }
                | Collective::ReduceScatter { reduce_op } => {
                    let input_bytes = request.call.input_bytes(self.placement.len());
                    match request.uneven.is_none() && input_bytes * self.placement.len() <= MOST_EXCHANGED {
                        true => self.exchange_inputs(request, input_bytes).map(|()| TransferPath::Exchanged),
                        false => self.reduce(request, reduce_op),
                    }
                }
            }
        }
    }

    /// Reduces on each rank what all give, which takes the link one step.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`]. The ranks have agreed.
    unsafe fn exchange_inputs(&self, request: &Request<'_>, input_bytes: usize) -> Result<()> {
        let mut all = Bytes::of_len(input_bytes * self.placement.len());
        let call = Call::of_blocks(Collective::AllGather, DataType::Uint8, input_bytes);
        let sides = [request.input, Address::host(all.as_mut_ptr())];
        // SAFETY: the caller's promise: the input has so many bytes, and there is room for each.
        unsafe {
            self.move_to_all(&part_of(request, call, sides))?;
            let inputs: Vec<*const u8> = all.chunks(input_bytes).map(<[u8]>::as_ptr).collect();
            self.take_inputs(request, &inputs);
        }
        Ok(())
    }

    /// Makes the output of a call from the inputs of all ranks.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`]. Each input is as long as the call says.
    unsafe fn take_inputs(&self, request: &Request<'_>, inputs: &[*const u8]) {
        let (call, own) = (&request.call, self.placement.own);
        if !call.writes_output(own) || request.is_in_place_root(own) {
            return;
        }
        let offset = if call.input().is_per_rank { own.index() * call.block_bytes() } else { 0 };
        let block_of = |rank: GroupRank| inputs[rank.index()].wrapping_add(offset);
        // SAFETY: the caller's promise: the block is in each input, and the output holds it. The
        // inputs are copies.
        unsafe {
            match (call.collective.reduce_op(), call.wire_type) {
                (Some(reduce_op), wire_type) => {
                    let sources: Vec<*const u8> = self.placement.ranks().map(block_of).collect();
                    let (target, count) = (request.output.pointer, call.block_elements);
                    match wire_type {
                        None => compute::reduce(reduce_op, call.data_type, &sources, target, count),
                        Some(wire) => {
                            compute::reduce_rounded(reduce_op, wire, Stored::AsFloat32, &sources, target, count);
                        }
                    }
                }
                (None, wire_type) => {
                    for rank in self.placement.ranks().filter(|rank| call.moves(*rank, own)) {
                        let (from, to) = (block_of(rank), request.output_for(rank));
                        match wire_type {
                            None => compute::copy(from, to, call.block_bytes()),
                            Some(wire) => compute::round(wire, Stored::AsFloat32, from, to, call.block_elements),
                        }
                    }
                }
            }
        }
    }

    /// Runs a part of a call among this machine's ranks.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_on_host(&self, request: &Request<'_>) -> Result<()> {
        if self.job.unsent() > 0 {
            self.job.call_mover();
        }
        // SAFETY: the caller's promise.
        unsafe { Checked { backend: Some(&*self.host), request }.run() }
    }

    /// Gives every rank of this machine the blocks of all of them, of these lengths, in bytes.
    /// `outputs` are where they go.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn gather_on_host(
        &self,
        lens: impl Fn(usize) -> usize,
        input: *const u8,
        outputs: &[Address],
        whole: &Request<'_>,
    ) -> Result<()> {
        let (len, input) = (|from, _| lens(from), [Address::host(input)]);
        // SAFETY: the caller's promise.
        unsafe { self.run_uneven_on_host(Collective::AllGather, len, &input, outputs, whole) }
    }

    /// Runs a part on blocks of these lengths, in bytes, from each rank of this machine to each.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_uneven_on_host(
        &self,
        collective: Collective<GroupRank>,
        len: impl Fn(usize, usize) -> usize,
        input: &[Address],
        output: &[Address],
        whole: &Request<'_>,
    ) -> Result<()> {
        let counts = BlockCounts::of(self.placement.local_ranks().len(), len);
        let longest = counts.longest();
        if longest == 0 {
            return Ok(());
        }
        let call = Call::of_blocks(collective, DataType::Uint8, longest);
        let uneven = Uneven { counts: &counts, input, output };
        let null = Address::host(std::ptr::null());
        let request = Request { uneven: Some(&uneven), ..part_of(whole, call, [null; 2]) };
        // SAFETY: the caller's promise.
        unsafe { self.run_on_host(&request) }
    }

    /// Waits until the link has room for more.
    fn wait_for_room(&self, deadline: Instant) -> Result<()> {
        if self.job.unsent() < MOST_UNSENT {
            return Ok(());
        }
        let room = || Ok((self.job.unsent() < MOST_UNSENT).then_some(()));
        self.job.wait(deadline, &|| "other machines did not take what this rank sends".to_owned(), room)
    }

    /// Gathers a number of each rank. Collective.
    fn gather_numbers(&self, purpose: Purpose, number: u32, deadline: Instant) -> Result<Vec<i64>> {
        // SAFETY: the buffers of the request are as long as it says.
        let run = |request: &Request<'_>| unsafe { self.run_request(request) };
        gather_numbers(self.placement.len(), purpose, number.into(), deadline, run)
    }

    fn arrival_tag(&self) -> Tag {
        Tag { communicator: self.id, kind: MessageKind::Arrivals, number: 0 }
    }

    fn peers(&self) -> impl Iterator<Item = Rank> {
        self.placement.members().iter().copied().filter(|rank| *rank != self.job.own)
    }

    /// The error of a monitored barrier that names every rank that has not come.
    fn missing(&self) -> Option<Error> {
        let _failed = self.job.poll();
        let mut inbox = self.job.inbox();
        let missing: Vec<u32> =
            self.peers().filter(|rank| inbox.take(*rank, self.arrival_tag()).is_none()).map(|rank| rank.0).collect();
        let ranks = (!missing.is_empty()).then(|| list_ranks(missing))?;
        Some(error!(DeadlineExceeded, "monitored_barrier: {ranks} did not arrive before the deadline"))
    }

    /// This rank's group on this machine, as the host backend splits it off.
    fn local_group(&self, group: &SplitGroup) -> SplitGroup {
        let own_machine = self.placement.own_machine();
        let local = |rank: &&Rank| self.placement.machine_of(GroupRank(rank.0)) == own_machine;
        let ranks: Vec<GroupRank> = group.members.iter().filter(local).map(|rank| GroupRank(rank.0)).collect();
        let own = ranks.iter().position(|rank| *rank == self.placement.own).unwrap_or_default();
        let members = ranks.iter().map(|rank| Rank(self.placement.local_index(*rank) as u32)).collect();
        SplitGroup { members, rank: GroupRank(own as u32) }
    }
}

impl Backend for ClusterBackend {
    fn kind(&self) -> BackendKind {
        self.job.kind()
    }

    fn rank(&self) -> Rank {
        Rank(self.placement.own.0)
    }

    fn world_size(&self) -> u32 {
        self.placement.len() as u32
    }

    fn origin(&self, rank: Rank) -> Rank {
        self.placement.member(GroupRank(rank.0))
    }

    fn latest_path(&self) -> Option<TransferPath> {
        match self.one_machine() {
            Some(host) => host.latest_path(),
            None => rank_lock::try_enter(&self.calls)?.path,
        }
    }

    fn refuse(&self, run: &CountedRun<'_>, reason: &str, deadline: Instant) -> Result<bool> {
        self.one_machine().map_or(Ok(false), |host| host.refuse(run, reason, deadline))
    }

    fn has_left_request(&self) -> bool {
        self.one_machine().is_some_and(Backend::has_left_request)
    }

    fn has_messages_in_request(&self) -> bool {
        // The link's messages are not counted by requests.
        self.has_messages.load(Ordering::Relaxed)
    }

    fn end_request(&self, failure: Option<&str>, deadline: Instant) -> Result<bool> {
        self.one_machine().map_or(Ok(false), |host| host.end_request(failure, deadline))
    }

    unsafe fn run(&self, calls: &[Checked<'_>]) -> Result<()> {
        let [Checked { request, .. }] = calls else { bail!(System, "no calls on the host can be grouped") };
        // SAFETY: the caller's promise.
        unsafe { self.run_request(request) }
    }

    fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        let barrier = Request::barrier(Purpose::MONITORED_BARRIER, deadline);
        if self.placement.machine_count() > 1 {
            self.job.check_process()?;
            self.job.send_sign(self.peers(), self.arrival_tag()).map_err(|error| self.job.end(error))?;
        }
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_request(&barrier)? };
        if self.placement.machine_count() > 1 {
            for rank in self.peers() {
                let missing = || format!("rank {rank} did not arrive");
                let arrived = self.job.receive(rank, self.arrival_tag(), deadline, &missing);
                arrived.map_err(|error| self.job.end(error))?;
            }
        }
        Ok(())
    }

    unsafe fn run_message(&self, message: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        self.job.check_process()?;
        self.job.check()?;
        if matches!(message.direction, Direction::Send(_)) {
            self.wait_for_room(deadline).map_err(|error| self.job.end(error))?;
        }
        // SAFETY: the caller's promise.
        unsafe { self.run_one(message, deadline) }
    }

    unsafe fn start_messages(&self, messages: Vec<(MessageRequest, OnEnd)>, deadline: Instant) -> Result<()> {
        self.job.check_process()?;
        self.job.check()?;
        for (message, on_end) in messages {
            // SAFETY: the caller's promise.
            unsafe { self.begin(message, on_end, deadline) };
        }
        Ok(())
    }

    fn finalize(&self) {
        let count = self.job.inbox().unreceived(self.id);
        if count > 0 {
            let messages = crate::util::text::count_of(count, "message");
            crate::util::log::event!(
                WARN,
                "rank {}: the communicator ends with {messages} that this rank did not receive",
                self.job.own
            );
        }
    }

    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        let end = |error: Error| self.job.end(error.about(|| "split".to_owned()));
        let claimed = self.job.claim_number().map_err(end)?;
        let numbers = self.gather_numbers(Purpose::SPLIT, claimed, deadline)?;
        let local = group.map(|group| self.local_group(group));
        let host = self.host.split_off(local.as_ref(), deadline).map_err(end)?;
        let Some((group, host)) = group.zip(host) else { return Ok(None) };
        let members: Box<[Rank]> = group.members.iter().map(|rank| self.origin(*rank)).collect();
        let placement = RankPlacement::new(group.rank, members, |rank| self.job.machines[rank.index()]);
        // Each number is claimed once, so no two communicators have the same.
        let id = Job::number_of(placement.member(GroupRank(0)), numbers[group.members[0].index()] as u32);
        let (job, host) = (self.job.share(), Arc::new(host));
        Ok(Some(Box::new(ClusterBackend {
            job,
            host,
            placement,
            id,
            calls: Mutex::default(),
            has_messages: AtomicBool::new(false),
        })))
    }

    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.host.allocate(byte_len, deadline).map_err(|error| self.job.end(error))
    }

    fn check_peers(&self) -> Result<()> {
        self.check()?;
        self.host.check_peers()
    }

    fn call_log(&self) -> Result<Box<dyn CallLog>> {
        if self.is_one_machine() {
            return self.host.call_log();
        }
        let (place, logs) = (&self.placement, self.host.exported_log()?);
        let first_of = |machine| place.member(place.ranks_of(machine)[0]);
        let duty = match place.own {
            GroupRank(0) => Duty::Compare(place.other_machines().map(first_of).collect()),
            own if place.local_index(own) == 0 => Duty::SendTo(place.member(GroupRank(0))),
            _ => Duty::None,
        };
        Ok(Box::new(MachineLogs::new((logs, place.local_ranks()), duty, self.job.share(), self.id)))
    }

    fn is_one_machine(&self) -> bool {
        self.placement.machine_count() == 1
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.job.abort(kind, reason);
    }
}

impl Watch for ClusterBackend {
    fn check(&self) -> Result<()> {
        self.job.check_process()?;
        self.job.check()
    }

    fn fail(&self, error: Error) -> Error {
        self.job.end(error)
    }
}

impl Drop for ClusterBackend {
    fn drop(&mut self) {
        // The job has the first one's host communicator as long as it lives.
        self.host.leave();
        self.job.leave(self.id, self.placement.members());
        self.job.forget(self.id);
    }
}
