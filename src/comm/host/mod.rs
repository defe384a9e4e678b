//! The host backend: ranks of one machine, threads of one process or of several.
//!
//! A collective begins with a *notice*: each rank writes what it calls into its own [`Slot`](segment::Slot). A rank waits for
//! the notices of those whose elements it takes, and compares them with its own; the others' it compares when they are there.
//! So a rank that only gives does not wait for those who take, as long as there is room. Then the elements move, in one of
//! three ways.
//!
//! *Inline* (`inline`): what is small rides along with the notice.
//!
//! *Directly* (`direct`), where peers reach a rank's buffers: among threads of one process, and in symmetric memory. A rank
//! touches its peers' buffers inside *access windows*: short, without waiting, opened only while the abort word is not set. A
//! rank that fails sets the abort word and then waits until its process's windows are closed; so when it returns, nobody
//! touches its memory any more. (Other processes see symmetric memory only, which after a failure is left to them.)
//!
//! *Over stages* (`staged`), where processes do not see each other's buffers: each rank copies what others need into its
//! stage, in shared memory, piece by piece. A rank only ever touches its own buffers and shared memory.

mod arena;
mod direct;
mod family;
mod free_memory;
mod inline;
mod meeting;
#[cfg(all(test, loom))]
mod model;
mod office;
mod report;
mod run;
mod segment;
#[cfg(not(loom))]
mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
mod shared_memory;
mod staged;
mod system;
mod wire;

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use arena::Arena;
use family::Family;
pub(crate) use free_memory::{FreeMemory, available as memory_available, limit as memory_limit};
pub(crate) use meeting::Guest;
use office::{Office, Ticket};
use run::Run;
use segment::{Mark, RING, Segment};
use shared_memory::{Extent, SharedMemory};
pub(crate) use system::{check_system, make_room_for_processes, most_processes};

use super::BackendKind;
use super::backend::{Backend, Request};
use super::rank_lock;
use super::signature::{Purpose, Signature};
use super::split::SplitGroup;
use crate::collective::{Call, Collective};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::{Address, Buffer};
use crate::rank::{GroupRank, Rank};
use crate::shape::Shape;
use crate::stream::Watch;
use crate::util::text::{count_of, list_ranks};

/// One rank of a host communicator.
pub(crate) struct HostBackend {
    segment: Arc<Segment>,
    rank: GroupRank,
    /// Held during a call, so that two threads of one rank take turns.
    progress: Mutex<Progress>,
    office: Arc<Office>,
    arena: Arc<Arena>,
    /// The ids of this communicator and those it was split from: whose symmetric memory all members have.
    lineage: Box<[u64]>,
    /// The error of this rank's own that ended the communicator, to be returned by every further call.
    ended: OnceLock<Error>,
}

/// How far this rank has come.
struct Progress {
    /// The number of collectives so far.
    sequence: u64,
    /// The number of rounds so far. Each collective has the same number of them on every rank.
    round: u64,
    /// The collectives up to this one have been found to be the same on every rank.
    agreed: u64,
    /// The collectives up to this one have been said to be finished.
    done: u64,
    /// Up to this collective there is room for this rank's notice.
    room: u64,
}

impl Default for Progress {
    fn default() -> Self {
        Progress { sequence: 0, round: 0, agreed: 0, done: 0, room: RING }
    }
}

/// The ranks of a new communicator whose ranks are threads of this process.
pub(crate) fn in_process(world_size: u32) -> Result<Vec<HostBackend>> {
    let root = Arc::new(Segment::in_process(world_size)?);
    let office = Arc::new(Office::in_process(&root));
    Ok((0..world_size).map(|rank| HostBackend::new(Arc::clone(&root), GroupRank(rank), Arc::clone(&office))).collect())
}

/// This process's ranks of a communicator between processes.
pub(crate) fn between_processes(guest: &Guest<'_>) -> Result<Vec<HostBackend>> {
    let (root, office) = meeting::meet(guest)?;
    let office = Arc::new(office);
    let ranks = guest.first_rank..guest.first_rank + guest.rank_count;
    Ok(ranks.map(|rank| HostBackend::new(Arc::clone(&root), GroupRank(rank), Arc::clone(&office))).collect())
}

impl HostBackend {
    /// A rank of a communicator that begins a family.
    fn new(segment: Arc<Segment>, rank: GroupRank, office: Arc<Office>) -> Self {
        Self::with(segment, rank, office, Arc::default(), &[])
    }

    /// This rank in a communicator that was split from this one.
    fn descendant(&self, segment: Arc<Segment>, rank: GroupRank) -> Self {
        Self::with(segment, rank, Arc::clone(&self.office), Arc::clone(&self.arena), &self.lineage)
    }

    fn with(segment: Arc<Segment>, rank: GroupRank, office: Arc<Office>, arena: Arc<Arena>, ancestors: &[u64]) -> Self {
        let lineage = std::iter::once(segment.id).chain(ancestors.iter().copied()).collect();
        HostBackend { segment, rank, progress: Mutex::default(), office, arena, lineage, ended: OnceLock::new() }
    }

    fn family(&self) -> &Family {
        &self.segment.family
    }

    /// Whether this is the process that the rank is in, and not one that was forked from it.
    fn check_process(&self) -> Result<()> {
        self.family().process.check("a communicator")
    }

    /// Takes this rank's turn. Another thread of the rank may be inside a call until that call's own deadline.
    fn turn(&self, deadline: Instant) -> Result<MutexGuard<'_, Progress>> {
        // In a child the thread that had the turn at the fork is not there.
        self.check_process()?;
        // A rank that leaves a collective out lets its peers wait for nothing.
        rank_lock::take(&self.progress, deadline).ok_or_else(|| self.end(rank_lock::missed()))
    }

    /// Ends the communicator because of this rank's own error, which every further call of this rank returns.
    fn end(&self, error: Error) -> Error {
        self.end_because(error, None)
    }

    /// [`end`](Self::end), where the other ranks are given another text.
    fn end_because(&self, error: Error, reason: Option<&str>) -> Error {
        self.abort(error.kind(), reason.unwrap_or(&error.to_string()));
        self.ended.get_or_init(|| error.clone());
        error
    }

    /// Runs one collective in this rank's turn.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_in_turn(&self, progress: &mut Progress, request: &Request<'_>) -> Result<()> {
        self.check().map_err(|e| request.label(e))?;
        progress.sequence += 1;
        let mut run = Run { host: self, progress, request, finished: false, moved: Cell::default() };
        let result = run.collective();
        run.finished = result.is_ok();
        let result = result.map_err(|error| {
            let bare = error.to_string();
            let error = request.label(error);
            // What every rank finds out for itself is passed on without this rank's name of the layer.
            let reason = family::is_shared(error.kind()).then_some(bare.as_str());
            self.end_because(error, reason)
        });
        // After an error, or a panic, dropping `run` waits until no peer reads this rank's buffers.
        drop(run);
        result
    }

    /// Memory for `users`, who all call this with the same ticket. The first of them makes it.
    fn common_memory(
        &self,
        ticket: Ticket,
        users: &[Rank],
        extent: Extent,
        progress: &Progress,
        deadline: Instant,
    ) -> Result<(Arc<SharedMemory>, u64)> {
        let publisher = users[0];
        // Whoever dies now would be missed at the barrier that follows; it is missed here.
        let barrier = Mark::Noticed(progress.sequence + 1);
        let alive = || {
            self.check()?;
            if !self.segment.lacks_departed(barrier) {
                return Ok(());
            }
            let gone = self.segment.lost_before(barrier).map(|peer| self.segment.member(peer).0);
            Err(error!(PeerLost, "{} died or left before the memory was there", list_ranks(gone)))
        };
        if publisher == self.segment.member(self.rank) {
            self.office.publish(ticket, users, extent, &|| alive().and_then(|()| in_time(deadline)))?;
        }
        let (memory, id) = self.office.take(ticket, publisher, deadline, alive)?;
        if memory.len() != extent.byte_len {
            bail!(System, "rank {publisher} sent memory of {} bytes instead of {}", memory.len(), extent.byte_len);
        }
        Ok((memory, id))
    }

    /// The communicator of a group's members.
    fn descendant_of(&self, group: &SplitGroup, progress: &Progress, deadline: Instant) -> Result<HostBackend> {
        let members: Box<[Rank]> = group.members.iter().map(|rank| self.origin(*rank)).collect();
        let spans_processes = !members.iter().all(|rank| self.family().is_local(*rank));
        let extent = Segment::extent(0, members.len(), spans_processes);
        let ticket = Ticket { segment: self.segment.id, sequence: progress.sequence, color: group.id() };
        let (memory, id) = self.common_memory(ticket, &members, extent, progress, deadline)?;
        let family = Arc::clone(&self.segment.family);
        let segment = Arc::new(Segment::new(family, id, members, memory, 0, spans_processes));
        Ok(self.descendant(segment, group.rank))
    }

    /// This rank's part of new memory that every rank reaches.
    fn symmetric_part(
        &self,
        byte_len: usize,
        block_len: usize,
        progress: &Progress,
        deadline: Instant,
    ) -> Result<Buffer> {
        let segment = &*self.segment;
        if !segment.spans_processes {
            // Threads reach everything.
            return Shape::new(&[byte_len]).and_then(|shape| Buffer::with_shape(DataType::Uint8, shape));
        }
        let ticket = Ticket { segment: segment.id, sequence: progress.sequence, color: 0 };
        let (memory, id) =
            self.common_memory(ticket, segment.members(), Extent::whole(block_len), progress, deadline)?;
        let part = self.arena.adopt(segment, self.rank, id, byte_len, memory);
        // SAFETY: the part holds so many bytes on pages of its own, zeroed, as long as it lives; peers touch them only in
        // collectives in which this rank uses the buffer.
        unsafe { Buffer::leased(Box::new(part), byte_len) }
    }

    /// Waits at the end of a call in which memory was handed out. Nobody leaves before everybody has his: a process may
    /// forward what others wait for.
    fn leave_together(&self, progress: &mut Progress, purpose: Purpose, deadline: Instant) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_in_turn(progress, &Request::barrier(purpose, deadline)) }
    }

    /// Gathers one number from every rank, in rank order.
    fn gather_numbers(
        &self,
        progress: &mut Progress,
        purpose: Purpose,
        number: i64,
        deadline: Instant,
    ) -> Result<Vec<i64>> {
        let mut all = vec![0i64; self.segment.len()];
        let call = Call { collective: Collective::AllGather, data_type: DataType::Int64, block_elements: 1 };
        let request = Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host((&raw const number).cast()),
            output: Address::host(all.as_mut_ptr().cast()),
            deadline,
            stream: None,
        };
        // SAFETY: the input holds one element, and the output one for each rank; both are local and apart.
        unsafe { self.run_in_turn(progress, &request)? };
        Ok(all)
    }
}

impl Backend for HostBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Host
    }

    fn rank(&self) -> Rank {
        Rank(self.rank.0)
    }

    fn world_size(&self) -> u32 {
        self.segment.len() as u32
    }

    fn origin(&self, rank: Rank) -> Rank {
        self.segment.member(GroupRank(rank.0))
    }

    unsafe fn run(&self, request: &Request<'_>) -> Result<()> {
        let mut progress = self.turn(request.deadline).map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise.
        unsafe { self.run_in_turn(&mut progress, request) }
    }

    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        // One turn for all steps: no call of another thread comes between them.
        let progress = &mut *self.turn(deadline)?;
        let descendant = group.map(|group| self.descendant_of(group, progress, deadline)).transpose();
        let descendant = descendant.map_err(|error| self.end(error.about(|| "split".to_owned())))?;
        self.leave_together(progress, Purpose::Split, deadline)?;
        Ok(descendant.map(|backend| Box::new(backend) as Box<dyn Backend>))
    }

    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        let progress = &mut *self.turn(deadline)?;
        let free = FreeMemory::look().map_or(u64::MAX, |free| free.usable());
        let free = i64::try_from(free).unwrap_or(i64::MAX);
        let all = self.gather_numbers(progress, Purpose::Allocate, free, deadline)?;
        let block_len = Arena::block_len(byte_len, self.segment.len())?;
        // The first rank allocates the memory. What it can have is in the same list on every rank.
        let free = all[0];
        if u64::try_from(free).is_ok_and(|free| free < block_len as u64) {
            bail!(
                System,
                "allocate: {} of {byte_len} bytes each take {block_len} bytes, and the process of rank {} can have about \
                 {free} bytes more",
                count_of(self.segment.len(), "rank"),
                self.segment.member(GroupRank(0))
            );
        }
        // The other ranks may have theirs: they must not wait for this one.
        let buffer = self.symmetric_part(byte_len, block_len, progress, deadline);
        let buffer = buffer.map_err(|error| self.end(error.about(|| "allocate".to_owned())))?;
        self.leave_together(progress, Purpose::Allocate, deadline)?;
        Ok(buffer)
    }

    fn check_peers(&self) -> Result<()> {
        self.check()?;
        let segment = &*self.segment;
        match segment.ranks().find(|peer| segment.has_died(*peer)) {
            Some(peer) => bail!(PeerLost, "the process of rank {} ended", segment.member(peer)),
            None => Ok(()),
        }
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        if self.family().process.is_current() {
            self.family().abort(kind, self.segment.member(self.rank), reason);
        }
    }
}

impl Watch for HostBackend {
    fn check(&self) -> Result<()> {
        self.check_process()?;
        self.ended.get().map_or_else(|| self.family().check(), |error| Err(error.clone()))
    }

    fn give_up(&self, error: Error) -> Error {
        self.end(error)
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        if self.family().process.is_current() {
            self.segment.leave(self.rank);
        }
    }
}

/// Checks that a deadline is not over.
fn in_time(deadline: Instant) -> Result<()> {
    if Instant::now() < deadline {
        return Ok(());
    }
    bail!(DeadlineExceeded, "shared memory was not allocated before the deadline");
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::segment::{Body, Place};
    use super::*;
    use crate::collective::ReduceOperation;
    use crate::memory::MemorySpace;

    /// A call in place on so many bytes.
    fn call(rank: &HostBackend, collective: Collective<GroupRank>, x: &mut [u8], deadline: Instant) -> Result<()> {
        let call = Call { collective, data_type: DataType::Uint8, block_elements: x.len() };
        let buffer = Address { pointer: x.as_mut_ptr(), space: MemorySpace::Host };
        let signature = Signature { purpose: Purpose::Collective, call };
        let request = Request { signature, label: None, input: buffer, output: buffer, deadline, stream: None };
        // SAFETY: the buffer is as long as the call says, and borrowed until the call returns.
        unsafe { rank.run(&request) }
    }

    const SUM: Collective<GroupRank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

    /// Rank 0 is there, so that rank 1, whose deadline is over, waits for nothing before it moves
    /// elements.
    #[test]
    fn a_rank_looks_at_the_clock_while_it_moves_elements() {
        const LEN: usize = 8 << 20;
        let far = Instant::now() + Duration::from_secs(10);
        let broadcast = Collective::Broadcast { root: GroupRank(0) };
        for collective in [SUM, broadcast] {
            let ranks = in_process(2).expect("ranks");
            std::thread::scope(|scope| {
                let first = scope.spawn(|| call(&ranks[0], collective, &mut vec![1; LEN], far));
                while ranks[1].segment.slot(GroupRank(0)).notice(1).is_none() {
                    std::thread::yield_now();
                }
                let error = call(&ranks[1], collective, &mut vec![1; LEN], Instant::now()).expect_err("it is too late");
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                let text = "this rank did not finish moving the elements before the deadline; it had moved 1 MiB";
                assert!(error.to_string().ends_with(text), "{error}");
                first.join().expect("no panic").expect_err("rank 1 failed");
            });
        }
    }

    /// What a call moves between two looks at the clock is moved whatever the deadline.
    #[test]
    fn a_rank_that_has_moved_everything_does_not_look_at_the_clock() {
        let ranks = in_process(2).expect("ranks");
        let far = Instant::now() + Duration::from_secs(10);
        let broadcast = Collective::Broadcast { root: GroupRank(0) };
        std::thread::scope(|scope| {
            let first = scope.spawn(|| call(&ranks[0], broadcast, &mut vec![1; 1 << 20], far));
            while ranks[1].segment.slot(GroupRank(0)).notice(1).is_none() {
                std::thread::yield_now();
            }
            let mut x = vec![0; 1 << 20];
            call(&ranks[1], broadcast, &mut x, Instant::now()).expect("nothing is left to do");
            assert!(x.iter().all(|x| *x == 1));
            first.join().expect("no panic").expect("rank 1 is done");
        });
    }

    /// Rank 0 says what it calls and then stands still.
    #[test]
    fn a_rank_that_arrived_is_not_said_to_be_missing() {
        let ranks = in_process(2).expect("ranks");
        let (mut x, mut y) = (vec![1u8; 4096], vec![1u8; 4096]);
        let signature = Signature {
            purpose: Purpose::Collective,
            call: Call { collective: SUM, data_type: DataType::Uint8, block_elements: x.len() },
        };
        let place = Place::Address(x.as_mut_ptr().expose_provenance());
        ranks[0].segment.notify(GroupRank(0), 1, signature.to_words(), Body::Places { input: place, output: place });
        let error =
            call(&ranks[1], SUM, &mut y, Instant::now() + Duration::from_millis(20)).expect_err("rank 0 stands still");
        assert_eq!(
            error.to_string(),
            "all_reduce(sum) of 4096 uint8 (collective 1): rank 0 arrived, but did not finish moving the elements before the \
             deadline"
        );
        drop(x);
    }

    /// Rank 0 waits for rank 2; rank 1 waits for rank 0, which has arrived.
    #[test]
    fn a_rank_that_waits_for_another_one_is_not_said_to_be_missing() {
        const LEN: usize = 4096;
        let ranks = in_process(3).expect("ranks");
        let gather = Collective::Gather { root: GroupRank(0) };
        let request = |rank: &HostBackend, x: &mut [u8], deadline| {
            let call = Call { collective: gather, data_type: DataType::Uint8, block_elements: LEN };
            let signature = Signature { purpose: Purpose::Collective, call };
            let input = Address { pointer: x.as_mut_ptr(), space: MemorySpace::Host };
            let output = Address { pointer: x.as_mut_ptr().wrapping_add(LEN), space: MemorySpace::Host };
            let request = Request { signature, label: None, input, output, deadline, stream: None };
            // SAFETY: the memory holds an input, and behind it an output of three blocks.
            unsafe { rank.run(&request) }
        };
        let far = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let root = scope.spawn(|| request(&ranks[0], &mut vec![1; 4 * LEN], far));
            while ranks[1].segment.slot(GroupRank(0)).notice(1).is_none() {
                std::thread::yield_now();
            }
            let soon = Instant::now() + Duration::from_millis(20);
            let error = request(&ranks[1], &mut vec![1; 4 * LEN], soon).expect_err("rank 2 does not come").to_string();
            assert!(error.ends_with("(collective 1): rank 2 did not arrive before the deadline"), "{error}");
            root.join().expect("no panic").expect_err("rank 1 failed");
        });
    }

    /// A peer is stopped in the middle of a copy while this rank's collective fails: the call returns only afterwards.
    #[test]
    fn a_collective_that_fails_waits_for_a_peer_that_still_reads() {
        let mut ranks = in_process(2).expect("ranks");
        let (peer, failing) = (ranks.pop().expect("rank 1"), ranks.pop().expect("rank 0"));
        let (inside, entered) = channel();
        let (go_on, stopped) = channel::<()>();
        let reading = std::thread::spawn(move || {
            let result = peer.segment.window(peer.rank, || {
                inside.send(()).expect("the test listens");
                stopped.recv().expect("the test says when");
            });
            (result, peer)
        });
        entered.recv().expect("the peer is inside");
        let (returned, failed) = channel();
        let call = std::thread::spawn(move || {
            let request = Request::barrier(Purpose::Barrier, Instant::now() + Duration::from_millis(20));
            // SAFETY: without elements no buffer is used.
            let result = unsafe { failing.run(&request) };
            returned.send(()).expect("the test listens");
            result
        });
        assert!(failed.recv_timeout(Duration::from_millis(200)).is_err(), "the call returned while a peer was reading");
        go_on.send(()).expect("the peer listens");
        failed.recv_timeout(Duration::from_secs(10)).expect("the peer is out");
        assert_eq!(call.join().expect("no panic").expect_err("nobody came").kind(), ErrorKind::DeadlineExceeded);
        reading.join().expect("no panic").0.expect("the copy was whole");
    }

    /// Two ranks of different processes, as far as they know: what is in neither's memory for both
    /// is not to be touched.
    fn ranks_of_processes() -> [HostBackend; 2] {
        let offset = Family::byte_len(2);
        let memory = SharedMemory::of_process(Segment::extent(offset, 2, true).byte_len).expect("memory");
        let memory = Arc::new(memory);
        let family = Arc::new(Family::new(Arc::clone(&memory), 2, 0..1));
        let root = Arc::new(Segment::new(family, 0, [Rank(0), Rank(1)].into(), memory, offset, true));
        let office = Arc::new(Office::in_process(&root));
        [0, 1].map(|rank| HostBackend::new(Arc::clone(&root), GroupRank(rank), Arc::clone(&office)))
    }

    /// A peer in another process says that its buffer is at an address, which in this process is
    /// something else.
    #[test]
    fn an_address_that_another_process_gives_is_neither_read_nor_written() {
        const LEN: usize = 1000;
        let all_reduce = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        for collective in [Collective::Broadcast { root: GroupRank(1) }, Collective::AllGather, all_reduce] {
            let [own, peer] = ranks_of_processes();
            let secret = [3u8; LEN];
            let signature = Signature {
                purpose: Purpose::Collective,
                call: Call { collective, data_type: DataType::Uint8, block_elements: LEN },
            };
            let place = Place::Address(secret.as_ptr().expose_provenance());
            let body = Body::Places { input: place, output: place };
            peer.segment.notify(peer.rank, 1, signature.to_words(), body);
            // This rank's own buffers lie in symmetric memory, so that the call would be direct.
            let block = Arena::block_len(4 * LEN, 2).expect("a length");
            let memory = Arc::new(SharedMemory::of_process(block).expect("memory"));
            let part = own.arena.adopt(&own.segment, own.rank, 1, 4 * LEN, memory);
            let start = crate::memory::Lease::address(&part).as_ptr();
            let request = Request {
                signature,
                label: None,
                input: Address::host(start),
                output: Address::host(start.wrapping_add(LEN)),
                deadline: Instant::now() + Duration::from_secs(5),
                stream: None,
            };
            // SAFETY: the part holds an input, and behind it an output of two blocks.
            let error = unsafe { own.run(&request) }.expect_err("it is refused");
            assert_eq!(error.to_string(), "rank 1 gives an address, and is in another process");
            // SAFETY: as above, and no rank writes it any more.
            let output = unsafe { std::slice::from_raw_parts(start.wrapping_add(LEN), 2 * LEN) };
            assert!(output.iter().all(|byte| *byte == 0), "the peer's address was read");
            assert_eq!(secret, [3; LEN], "the peer's address was written");
        }
    }
}
