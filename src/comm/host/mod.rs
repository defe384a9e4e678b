//! The host backend: ranks of one machine, threads of one process or of several.
//!
//! A collective begins with a *posting*: each rank writes its signature into its own [`Slot`](segment::Slot), then raises its
//! phase. When a rank has seen all phases, it compares all signatures. Then the elements move, in one of two ways.
//!
//! *Directly* (`direct`), where all ranks are threads of one process: a rank reads its peers' buffers, whose addresses are in
//! the postings, inside *access windows*: short, without waiting, opened only while the abort word is not set. A rank that
//! fails sets the abort word and then waits the open windows out; so when it returns, nobody reads its memory any more.
//!
//! *Over stages* (`staged`), where processes do not see each other's buffers: each rank copies what others need into its
//! stage, in shared memory, piece by piece. A rank only ever touches its own buffers and shared memory.

mod direct;
mod family;
mod meeting;
mod office;
mod segment;
mod shared_memory;
mod staged;
mod wire;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, TryLockError};
use std::time::{Duration, Instant};

use family::{Family, Patience};
pub(crate) use meeting::Guest;
use office::{Office, SplitKey};
use segment::{LEFT, Segment};

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
    /// The error of this rank's own that ended the communicator, to be returned by every further call.
    ended: OnceLock<Error>,
}

/// How far this rank has come. It is the same on every rank between calls.
#[derive(Clone, Copy, Default)]
struct Progress {
    /// The number of collectives so far.
    sequence: u64,
    /// The number of phases so far, wrapping.
    phase: u32,
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
    fn new(segment: Arc<Segment>, rank: GroupRank, office: Arc<Office>) -> Self {
        HostBackend { segment, rank, progress: Mutex::default(), office, ended: OnceLock::new() }
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

    /// The segment of those who gave this color, and this rank's place in it.
    fn segment_of(
        &self,
        color: u32,
        all: &[[i64; 2]],
        Progress { sequence, phase }: Progress,
        deadline: Instant,
    ) -> Result<(Arc<Segment>, GroupRank)> {
        let mut members: Vec<usize> = (0..all.len()).filter(|&r| all[r][0] == i64::from(color)).collect();
        members.sort_by_key(|&r| all[r][1]);
        let Some(place) = members.iter().position(|&r| r == self.rank.index()) else {
            bail!(System, "the exchange of colors lost this rank's own");
        };
        let key = SplitKey { parent: self.segment.id, sequence, color };
        if place == 0 {
            let ranks = members.iter().map(|&r| self.segment.member(GroupRank(r as u32))).collect();
            self.office.publish(key, &self.segment.family, ranks)?;
        }
        let publisher = self.segment.member(GroupRank(members[0] as u32));
        // Whoever dies now would be missed at the barrier that follows; it is missed here.
        let alive = || match self.segment.lacks_departed(phase.wrapping_add(1)) {
            true => Err(error!(PeerLost, "split: a rank died or left before the new communicator was there")),
            false => self.check(),
        };
        Ok((self.office.take(key, publisher, deadline, alive)?, GroupRank(place as u32)))
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
        // The first member of each group makes its segment, and its members take it.
        let taken = match color {
            Some(color) => self.segment_of(color, &all, *progress, deadline).map(Some),
            None => Ok(None),
        };
        let taken = taken.map_err(|error| self.end(error))?;
        // Nobody leaves before everybody has his: a process may forward what others wait for.
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_in_turn(progress, &Request::barrier(Purpose::Split, deadline))? };
        let backend =
            |(segment, rank)| Box::new(HostBackend::new(segment, rank, Arc::clone(&self.office))) as Box<dyn Backend>;
        Ok(taken.map(backend))
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
        let buffer = Shape::new(&[byte_len]).and_then(|shape| Buffer::with_shape(DataType::Uint8, shape));
        // The other ranks may have theirs: they must not wait for this one.
        buffer.map_err(|error| self.end(error))
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
        self.post()?;
        match self.request.signature.call.block_elements {
            0 => Ok(()),
            _ if self.host.segment.spans_processes => self.staged(),
            _ => self.direct(),
        }
    }

    /// Announces this rank's call, waits for all others' and compares them.
    fn post(&mut self) -> Result<()> {
        let segment = &self.host.segment;
        let words = self.request.signature.to_words();
        segment.slot(self.host.rank).post(self.progress.sequence, words, self.request.input, self.request.output);
        self.next_phase()?;
        let sequence = self.progress.sequence;
        let agrees = |r: u32| segment.slot(GroupRank(r)).posting(sequence).words() == words;
        if (0..segment.len() as u32).all(agrees) { Ok(()) } else { Err(self.disagreement()) }
    }

    /// Who calls what, in the order of the ranks: `rank 0 calls …; ranks 1 and 2 call …`.
    fn disagreement(&self) -> Error {
        let segment = &self.host.segment;
        let mut calls: Vec<([u64; 2], Vec<u32>)> = Vec::new();
        for r in 0..segment.len() as u32 {
            let words = segment.slot(GroupRank(r)).posting(self.progress.sequence).words();
            let member = segment.member(GroupRank(r)).0;
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
        error!(Disagreement, "ranks disagree on collective {}: {}", self.progress.sequence, sides.join("; "))
    }

    /// Says that this rank has come one phase further, and waits until all have.
    fn next_phase(&mut self) -> Result<()> {
        self.progress.phase = self.progress.phase.wrapping_add(1);
        let (host, phase, deadline) = (self.host, self.progress.phase, self.request.deadline);
        let segment = &host.segment;
        segment.raise_phase(host.rank, phase);
        let mut patience = Patience::new(host.family(), segment.member(host.rank), deadline);
        for peer in (0..segment.len() as u32).map(GroupRank) {
            let slot = segment.slot(peer);
            patience.wait_until(
                || slot.reached(phase),
                || segment.lacks_departed(phase),
                |trouble| self.describe(trouble, phase),
            )?;
        }
        Ok(())
    }

    fn describe(&self, trouble: family::Trouble, phase: u32) -> Error {
        let segment = &self.host.segment;
        let what = format!("{} (collective {})", self.request.signature, self.progress.sequence);
        // Who is late; of those, who has left.
        let missing = |only_departed: bool| {
            let peers = (0..segment.len() as u32).map(GroupRank);
            let missing = peers.filter(|&r| {
                let slot = segment.slot(r);
                !slot.reached(phase) && (!only_departed || slot.has_departed())
            });
            list_ranks(missing.map(|r| segment.member(r).0))
        };
        match trouble {
            family::Trouble::Dead(error) => error,
            family::Trouble::Late => {
                error!(DeadlineExceeded, "{what}: {} did not arrive before the deadline", missing(false))
            }
            family::Trouble::Gone => {
                let peers = || (0..segment.len() as u32).map(GroupRank);
                let died = peers().any(|r| segment.slot(r).has_died() && !segment.slot(r).reached(phase));
                let how = if died { "died" } else { "left the communicator" };
                error!(PeerLost, "{what}: {} {how} while this rank waited", missing(true))
            }
        }
    }

    /// Makes the list of one address for each rank, in rank order, for a reduction.
    fn with_sources<T>(&self, source_of: impl Fn(usize) -> *const u8, work: impl FnOnce(&mut [*const u8]) -> T) -> T {
        let n = self.host.segment.len();
        let mut few = [std::ptr::null(); MAX_STACK_RANKS];
        let mut many;
        let sources = if n <= MAX_STACK_RANKS {
            &mut few[..n]
        } else {
            many = vec![std::ptr::null(); n];
            &mut many[..]
        };
        for (peer, source) in sources.iter_mut().enumerate() {
            *source = source_of(peer);
        }
        work(sources)
    }
}

/// Up to so many ranks, a reduction keeps the list of its inputs on the stack.
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
