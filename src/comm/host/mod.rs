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
mod inline;
mod meeting;
#[cfg(all(test, loom))]
mod model;
mod office;
mod segment;
#[cfg(not(loom))]
mod shared_memory;
#[cfg(loom)]
#[path = "shared_memory_model.rs"]
mod shared_memory;
mod staged;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use arena::Arena;
use family::{Family, Patience, Trouble};
pub(crate) use meeting::Guest;
use office::{Office, Ticket};
use segment::{Body, LEFT, Mark, Notice, Place, RING, Segment};
use shared_memory::SharedMemory;

use super::backend::{Backend, Request};
use super::signature::{Purpose, Signature};
use crate::collective::{Call, Collective};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::Buffer;
use crate::rank::{GroupRank, Rank, list_ranks};
use crate::shape::Shape;

/// How often a thread looks whether another thread of its rank has finished its call.
const TURN_INTERVAL: Duration = Duration::from_micros(100);

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

    /// Takes this rank's turn. Another thread of the rank may be inside a call until that call's own deadline.
    fn turn(&self, deadline: Instant) -> Result<MutexGuard<'_, Progress>> {
        loop {
            match self.progress.try_lock() {
                Ok(guard) => return Ok(guard),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    // This rank has left a collective out, so its peers would wait for nothing.
                    let text = "another thread of this rank was in a call until the deadline";
                    return Err(self.end(error!(DeadlineExceeded, "{text}")));
                }
                // Rare, and never on the way to a peer: no need for more than looking again.
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_INTERVAL),
            }
        }
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
        let mut run = Run { host: self, progress, request, finished: false };
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
        byte_len: usize,
        progress: &Progress,
        deadline: Instant,
    ) -> Result<(Arc<SharedMemory>, u64)> {
        let publisher = users[0];
        if publisher == self.segment.member(self.rank) {
            self.office.publish(ticket, users, byte_len)?;
        }
        // Whoever dies now would be missed at the barrier that follows; it is missed here.
        let alive = || match self.segment.lacks_departed(Mark::Noticed(progress.sequence + 1)) {
            true => Err(error!(PeerLost, "a rank died or left before the memory was there")),
            false => self.check(),
        };
        let (memory, id) = self.office.take(ticket, publisher, deadline, alive)?;
        if memory.len() != byte_len {
            bail!(System, "rank {publisher} sent memory of {} bytes instead of {byte_len}", memory.len());
        }
        Ok((memory, id))
    }

    /// The communicator of those who gave this color.
    fn descendant_of_color(
        &self,
        color: u32,
        all: &[[i64; 2]],
        progress: &Progress,
        deadline: Instant,
    ) -> Result<HostBackend> {
        let mut members: Vec<usize> = (0..all.len()).filter(|&r| all[r][0] == i64::from(color)).collect();
        members.sort_by_key(|&r| all[r][1]);
        let Some(place) = members.iter().position(|&r| r == self.rank.index()) else {
            bail!(System, "the exchange of colors lost this rank's own");
        };
        let members: Box<[Rank]> = members.iter().map(|&r| self.segment.member(GroupRank(r as u32))).collect();
        let spans_processes = !members.iter().all(|rank| self.family().is_local(*rank));
        let byte_len = Segment::byte_len(members.len(), spans_processes);
        let ticket = Ticket { segment: self.segment.id, sequence: progress.sequence, color };
        let (memory, id) = self.common_memory(ticket, &members, byte_len, progress, deadline)?;
        let family = Arc::clone(&self.segment.family);
        let segment = Arc::new(Segment::new(family, id, members, memory, 0, spans_processes));
        self.office.watch_over(&segment);
        Ok(self.descendant(segment, GroupRank(place as u32)))
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
        let (memory, id) = self.common_memory(ticket, segment.members(), block_len, progress, deadline)?;
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

    /// Gathers one word pair from every rank, in rank order.
    fn gather_words(
        &self,
        progress: &mut Progress,
        purpose: Purpose,
        words: [i64; 2],
        deadline: Instant,
    ) -> Result<Vec<[i64; 2]>> {
        let mut all = vec![[0i64; 2]; self.segment.len()];
        let call = Call { collective: Collective::AllGather, data_type: DataType::Int64, block_elements: 2 };
        let request = Request {
            signature: Signature { purpose, call },
            label: None,
            input: words.as_ptr().cast(),
            output: all.as_mut_ptr().cast(),
            deadline,
        };
        // SAFETY: the input holds two elements, and the output two for each rank; both are local and apart.
        unsafe { self.run_in_turn(progress, &request)? };
        Ok(all)
    }
}

impl Backend for HostBackend {
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

    fn split(&self, color: Option<u32>, key: u32, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        // One turn for all steps: no call of another thread comes between them.
        let progress = &mut *self.turn(deadline)?;
        let mine = [color.map_or(-1, i64::from), i64::from(key)];
        let all = self.gather_words(progress, Purpose::Split, mine, deadline)?;
        let descendant = match color {
            Some(color) => self.descendant_of_color(color, &all, progress, deadline).map(Some),
            None => Ok(None),
        };
        let descendant = descendant.map_err(|error| self.end(error.about(|| "split".to_owned())))?;
        self.leave_together(progress, Purpose::Split, deadline)?;
        Ok(descendant.map(|backend| Box::new(backend) as Box<dyn Backend>))
    }

    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        let progress = &mut *self.turn(deadline)?;
        let all = self.gather_words(progress, Purpose::Allocate, [byte_len as i64, 0], deadline)?;
        if let Some(other) = (0..all.len()).find(|&r| all[r][0] != byte_len as i64) {
            // Every rank sees the same list, so every rank returns an error, and nobody is left waiting.
            bail!(
                Disagreement,
                "allocate wants the same length on every rank: this rank asks for {byte_len} bytes, rank {} for {}",
                self.segment.member(GroupRank(other as u32)),
                all[other][0]
            );
        }
        let block_len = Arena::block_len(byte_len, self.segment.len())?;
        // The other ranks may have theirs: they must not wait for this one.
        let buffer = self.symmetric_part(byte_len, block_len, progress, deadline);
        let buffer = buffer.map_err(|error| self.end(error.about(|| "allocate".to_owned())))?;
        self.leave_together(progress, Purpose::Allocate, deadline)?;
        Ok(buffer)
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.family().abort(kind, self.segment.member(self.rank), reason);
    }

    fn check(&self) -> Result<()> {
        self.ended.get().map_or_else(|| self.family().check(), |error| Err(error.clone()))
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        self.segment.depart(self.rank, LEFT);
    }
}

/// One collective on one rank.
struct Run<'a> {
    host: &'a HostBackend,
    progress: &'a mut Progress,
    request: &'a Request<'a>,
    finished: bool,
}

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

impl Run<'_> {
    fn collective(&mut self) -> Result<()> {
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
            places = [self.place_of(request.input, given, false), self.output_place()];
            Body::Places { input: places[0], output: places[1] }
        };
        host.segment.notify(host.rank, self.progress.sequence, request.signature.to_words(), body);
        places
    }

    /// Whether this rank takes elements from a peer; a call without elements that takes from all is a barrier.
    fn takes_from(&self, peer: GroupRank) -> bool {
        match self.request.signature.call.collective {
            Collective::Broadcast { root } | Collective::Scatter { root } => peer == root,
            Collective::Gather { root } | Collective::Reduce { root, .. } => self.host.rank == root,
            _ => true,
        }
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
            Collective::AllReduce { .. } => self.place_of(self.request.output, call.block_bytes(), true),
            _ => Place::Own,
        }
    }

    /// Whether peers reach every buffer that they would touch. Every rank finds the same.
    fn is_direct(&mut self, [input, output]: [Place; 2]) -> Result<bool> {
        let segment = Arc::clone(&self.host.segment);
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

    fn patience(&self) -> Patience<'_> {
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
            return Err(self.describe(Trouble::Gone, this));
        }
        if sequence > self.progress.room {
            let replaced = sequence - RING;
            let mut slowest = 0;
            let mut agreement = Ok(());
            let mut patience = Patience::new(host.family(), segment.member(host.rank), self.request.deadline);
            let waited = patience.wait_until(
                || {
                    let peers = segment.ranks().filter(|peer| *peer != host.rank);
                    slowest = peers.map(|peer| segment.slot(peer).done()).min().unwrap_or(u64::MAX);
                    agreement = self.catch_up();
                    slowest >= replaced || agreement.is_err()
                },
                || segment.lacks_departed(this),
            );
            agreement?;
            waited.map_err(|trouble| {
                let mark = if matches!(trouble, Trouble::Gone) { this } else { Mark::Done(replaced) };
                self.describe(trouble, mark)
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
        let segment = &*self.host.segment;
        for sequence in self.progress.agreed + 1..=last {
            let mut is_complete = true;
            for peer in segment.ranks() {
                match self.agrees(peer, sequence) {
                    Some(true) => {}
                    Some(false) => return Err(self.disagreement(sequence)),
                    None => is_complete = false,
                }
            }
            if is_complete && self.progress.agreed + 1 == sequence {
                self.progress.agreed = sequence;
            }
        }
        Ok(())
    }

    /// Whether a peer called the same as this rank; `None` while it has not said.
    fn agrees(&self, peer: GroupRank, sequence: u64) -> Option<bool> {
        let signature = |rank| self.host.segment.slot(rank).notice(sequence).map(Notice::signature);
        Some(signature(peer)? == signature(self.host.rank)?)
    }

    /// Who calls what, in the order of the ranks: `rank 0 calls …; ranks 1 and 2 call …`.
    fn disagreement(&self, sequence: u64) -> Error {
        let segment = &self.host.segment;
        let mut calls: Vec<([u64; 2], Vec<u32>)> = Vec::new();
        for peer in segment.ranks() {
            let Some(words) = segment.slot(peer).notice(sequence).map(Notice::signature) else { continue };
            let member = segment.member(peer).0;
            match calls.iter_mut().find(|(w, _)| *w == words) {
                Some((_, ranks)) => ranks.push(member),
                None => calls.push((words, vec![member])),
            }
        }
        let sides: Vec<String> = calls
            .into_iter()
            .map(|(words, ranks)| {
                let call = Signature::from_words(words).map_or_else(|| format!("{words:x?}"), |s| s.to_string());
                let verb = if ranks.len() == 1 { "calls" } else { "call" };
                format!("{} {verb} {call}", list_ranks(ranks))
            })
            .collect();
        error!(Disagreement, "ranks disagree on collective {sequence}: {}", sides.join("; "))
    }

    /// Begins a round: this rank has written what it gives, and read all that it took before.
    fn raise_round(&mut self) {
        self.host.segment.raise_round(self.host.rank, self.progress.round);
    }

    fn wait_for(&self, peer: GroupRank, mark: Mark) -> Result<()> {
        let segment = &*self.host.segment;
        let slot = segment.slot(peer);
        if slot.reached(mark) {
            return Ok(());
        }
        let waited = self.patience().wait_until(|| slot.reached(mark), || segment.lacks_departed(mark));
        waited.map_err(|trouble| self.describe(trouble, mark))
    }

    fn wait_for_all(&self, mark: Mark) -> Result<()> {
        self.host.segment.ranks().try_for_each(|peer| self.wait_for(peer, mark))
    }

    fn describe(&self, trouble: Trouble, mark: Mark) -> Error {
        let segment = &*self.host.segment;
        let sequence = self.progress.sequence;
        let what = format!("{} (collective {sequence})", self.request.signature);
        let has_noticed = |peer, sequence| segment.slot(peer).reached(Mark::Noticed(sequence));
        let is_missing = |peer: &GroupRank| match mark {
            // Nobody has finished what somebody has not begun.
            Mark::Done(sequence) if !segment.ranks().all(|peer| has_noticed(peer, sequence)) => {
                !has_noticed(*peer, sequence)
            }
            Mark::Done(_) if *peer == self.host.rank => false,
            _ => !segment.slot(*peer).reached(mark),
        };
        let list = |peers: &mut dyn Iterator<Item = GroupRank>| list_ranks(peers.map(|peer| segment.member(peer).0));
        match trouble {
            Trouble::Dead(error) => error,
            // Whoever is missing may be so because another one called something else.
            _ if segment.ranks().any(|peer| self.agrees(peer, sequence) == Some(false)) => self.disagreement(sequence),
            Trouble::Late => {
                let late = list(&mut segment.ranks().filter(is_missing));
                error!(DeadlineExceeded, "{what}: {late} did not arrive before the deadline")
            }
            Trouble::Gone => {
                let gone = || segment.ranks().filter(is_missing).filter(|peer| segment.slot(*peer).has_departed());
                let how = match gone().any(|peer| segment.slot(peer).has_died()) {
                    true => "died",
                    false => "left the communicator",
                };
                error!(PeerLost, "{what}: {} {how} while this rank waited", list(&mut gone()))
            }
        }
    }

    /// Makes the list of one address for each rank, in rank order.
    fn with_addresses<T>(
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
const MAX_STACK_RANKS: usize = 64;

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

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
}
