//! The host backend: ranks of one machine that read each other's memory.
//!
//! A collective begins with a *posting*: each rank writes its signature and the addresses of its buffers into its own
//! [`Slot`](segment::Slot), then raises its phase. When a rank has seen all phases, it compares all signatures. Then it
//! fetches, from the buffers of its peers, what it needs; a last phase says that it has done so, and nobody returns before
//! that.
//!
//! A rank touches a peer's buffer only inside an *access window*: short, without waiting, opened only while the abort word
//! is not set. A rank that fails sets the abort word and then waits the open windows out; so when it returns, nobody reads
//! its memory any more.

mod family;
mod segment;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use std::time::{Duration, Instant};

use family::{Family, Patience};
use segment::Segment;

use super::backend::{Backend, Request};
use super::signature::{Purpose, Signature};
use crate::collective::{Call, Collective, ReduceOperation};
use crate::compute;
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::Buffer;
use crate::rank::{GroupRank, Rank, list_ranks};
use crate::shape::Shape;
use crate::stream::lock;

/// How often a thread looks whether another thread of its rank has finished its call.
const TURN_INTERVAL: Duration = Duration::from_micros(100);

/// The most bytes that are read inside one access window.
const WINDOW_BYTES: usize = 64 << 10;

/// One rank of a host communicator.
pub(crate) struct HostBackend {
    segment: Arc<Segment>,
    rank: GroupRank,
    /// Held during a call, so that two threads of one rank take turns.
    progress: Mutex<Progress>,
    /// Where split communicators wait for their members, shared by the ranks of one process.
    nursery: Arc<Nursery>,
}

/// How far this rank has come. It is the same on every rank between calls.
#[derive(Default)]
struct Progress {
    /// The number of collectives so far.
    sequence: u64,
    /// The number of phases so far, wrapping.
    phase: u32,
}

/// Segments of communicators that are being split, by the parent, its sequence number and the color.
type Nursery = Mutex<HashMap<(usize, u64, u32), Arc<Segment>>>;

/// The ranks of a new communicator whose ranks are threads of this process.
pub(crate) fn in_process(world_size: u32) -> Vec<HostBackend> {
    let family = Arc::new(Family::new(world_size));
    let segment = Arc::new(Segment::new(family, (0..world_size).map(Rank).collect()));
    let nursery = Arc::new(Nursery::default());
    (0..world_size).map(|rank| HostBackend::new(Arc::clone(&segment), GroupRank(rank), Arc::clone(&nursery))).collect()
}

impl HostBackend {
    fn new(segment: Arc<Segment>, rank: GroupRank, nursery: Arc<Nursery>) -> Self {
        HostBackend { segment, rank, progress: Mutex::default(), nursery }
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
                    bail!(DeadlineExceeded, "another thread of this rank was in a call until the deadline")
                }
                // Rare, and never on the way to a peer: no need for more than looking again.
                Err(TryLockError::WouldBlock) => std::thread::sleep(TURN_INTERVAL),
            }
        }
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
            let shared = family::is_shared(error.kind());
            let reason = if shared { bare } else { error.to_string() };
            self.family().abort(error.kind(), self.segment.member(self.rank), &reason);
            error
        });
        // After an error, or a panic, dropping `run` waits until no peer reads this rank's buffers.
        drop(run);
        result
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

    fn barrier(&self, progress: &mut Progress, purpose: Purpose, deadline: Instant) -> Result<()> {
        // SAFETY: without elements no buffer is used.
        unsafe { self.run_in_turn(progress, &Request::barrier(purpose, deadline)) }
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
        // The first member of each group makes its segment; everybody then takes theirs, between two barriers.
        let group = color.map(|color| {
            let mut members: Vec<usize> = (0..all.len()).filter(|&r| all[r][0] == i64::from(color)).collect();
            members.sort_by_key(|&r| all[r][1]);
            let entry = (Arc::as_ptr(&self.segment) as usize, progress.sequence, color);
            (members, entry)
        });
        let leads = |members: &[usize]| members.first() == Some(&self.rank.index());
        if let Some((members, entry)) = group.as_ref().filter(|(members, _)| leads(members)) {
            let ranks = members.iter().map(|&r| self.segment.member(GroupRank(r as u32))).collect();
            let segment = Arc::new(Segment::new(Arc::clone(&self.segment.family), ranks));
            lock(&self.nursery).insert(*entry, segment);
        }
        let made = self.barrier(progress, Purpose::Split, deadline);
        let segment = group.as_ref().and_then(|(_, entry)| lock(&self.nursery).get(entry).cloned());
        let taken = made.and_then(|()| self.barrier(progress, Purpose::Split, deadline));
        if let Some((_, entry)) = group.as_ref().filter(|(members, _)| leads(members)) {
            lock(&self.nursery).remove(entry);
        }
        taken?;
        let Some((members, _)) = group else { return Ok(None) };
        let place = members.iter().position(|&r| r == self.rank.index());
        let (Some(segment), Some(place)) = (segment, place) else {
            bail!(System, "the first rank of the group has not made its communicator");
        };
        Ok(Some(Box::new(HostBackend::new(segment, GroupRank(place as u32), Arc::clone(&self.nursery)))))
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
        buffer.inspect_err(|error| self.abort(error.kind(), &error.to_string()))
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.family().abort(kind, self.segment.member(self.rank), reason);
    }

    fn check(&self) -> Result<()> {
        self.family().check()
    }
}

impl Drop for HostBackend {
    fn drop(&mut self) {
        self.segment.depart(self.rank);
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
        let call = self.request.signature.call;
        if call.block_elements == 0 {
            return Ok(());
        }
        let n = self.host.segment.len();
        let rank = self.host.rank;
        let block = call.block_bytes();
        match call.collective {
            Collective::AllReduce { reduce_op } => self.all_reduce(reduce_op)?,
            Collective::AllGather => self.fetch_all(|_| 0, block)?,
            Collective::AllToAll => self.fetch_all(|_| rank.index() * block, block)?,
            Collective::Broadcast { root } => self.fetch(root, 0, 0, block)?,
            Collective::Scatter { root } => self.fetch(root, rank.index() * block, 0, block)?,
            Collective::Gather { root } if root == rank => self.fetch_all(|_| 0, block)?,
            Collective::Reduce { reduce_op, root } if root == rank => {
                self.reduce(reduce_op, 0, 0, call.block_elements)?;
            }
            Collective::Gather { .. } | Collective::Reduce { .. } => {}
            Collective::ReduceScatter { reduce_op } => {
                self.reduce(reduce_op, rank.index() * call.block_elements, 0, call.block_elements)?;
            }
        }
        // With one rank there is nobody to say it to; otherwise nobody returns while a peer reads.
        if n > 1 { self.next_phase() } else { Ok(()) }
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

    /// Who calls what, the most common call last read as it comes: `rank 0 calls …; ranks 1 and 2 call …`.
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
                error!(PeerLost, "{what}: {} left the communicator while this rank waited", missing(true))
            }
        }
    }

    fn input_of(&self, peer: GroupRank) -> *const u8 {
        self.host.segment.slot(peer).posting(self.progress.sequence).input()
    }

    fn output_of(&self, peer: GroupRank) -> *const u8 {
        self.host.segment.slot(peer).posting(self.progress.sequence).output()
    }

    /// Copies `len` bytes from a peer's memory into this rank's output, window by window.
    fn copy_in(&self, source: *const u8, target_offset: usize, len: usize) -> Result<()> {
        let target = self.request.output.wrapping_add(target_offset);
        if source == target.cast_const() {
            return Ok(());
        }
        let mut done = 0;
        while done < len {
            let part = WINDOW_BYTES.min(len - done);
            self.host.segment.window(self.host.rank, || {
                // SAFETY: the peer posted a buffer that holds these bytes, and keeps it until its windows are closed; the
                // output holds them by the contract of `run`; the in-place rules keep the two apart.
                unsafe { target.add(done).copy_from_nonoverlapping(source.add(done), part) }
            })?;
            done += part;
        }
        Ok(())
    }

    /// Copies a part of one peer's input into this rank's output.
    fn fetch(&self, peer: GroupRank, source_offset: usize, target_offset: usize, len: usize) -> Result<()> {
        self.copy_in(self.input_of(peer).wrapping_add(source_offset), target_offset, len)
    }

    /// Copies a block of every rank's input into the output, in rank order.
    fn fetch_all(&self, source_offset: impl Fn(GroupRank) -> usize, block: usize) -> Result<()> {
        // Each rank begins with its own block, so that not all read the same memory at once.
        let n = self.host.segment.len();
        for i in 0..n {
            let peer = GroupRank(((self.host.rank.index() + i) % n) as u32);
            self.fetch(peer, source_offset(peer), peer.index() * block, block)?;
        }
        Ok(())
    }

    /// Reduces a range of elements of all inputs into this rank's output, window by window.
    fn reduce(
        &self,
        reduce_op: ReduceOperation,
        source_start: usize,
        target_start: usize,
        element_count: usize,
    ) -> Result<()> {
        let data_type = self.request.signature.call.data_type;
        let bytes = data_type.byte_len();
        let n = self.host.segment.len();
        let mut few = [std::ptr::null(); MAX_STACK_RANKS];
        let mut many;
        let sources = if n <= MAX_STACK_RANKS {
            &mut few[..n]
        } else {
            many = vec![std::ptr::null(); n];
            &mut many[..]
        };
        for (r, source) in sources.iter_mut().enumerate() {
            *source = self.input_of(GroupRank(r as u32)).wrapping_add(source_start * bytes);
        }
        let mut target = self.request.output.wrapping_add(target_start * bytes);
        let window = (WINDOW_BYTES / bytes / n).max(1);
        let mut left = element_count;
        while left > 0 {
            let part = window.min(left);
            self.host.segment.window(self.host.rank, || {
                // SAFETY: as in `copy_in`, for every source; in place the target is one of the sources.
                unsafe { compute::reduce(reduce_op, data_type, sources, target, part) }
            })?;
            for source in sources.iter_mut() {
                *source = source.wrapping_add(part * bytes);
            }
            target = target.wrapping_add(part * bytes);
            left -= part;
        }
        Ok(())
    }

    /// Each rank reduces its share of the elements, then fetches the others' shares.
    fn all_reduce(&mut self, reduce_op: ReduceOperation) -> Result<()> {
        let call = self.request.signature.call;
        let n = self.host.segment.len();
        let bytes = call.data_type.byte_len();
        // Shares of whole cache lines, so that two ranks do not write the same one.
        const LINE: usize = 64;
        let share = call.block_elements.div_ceil(n).next_multiple_of(LINE);
        let range = |r: usize| {
            let start = (r * share).min(call.block_elements);
            (start, share.min(call.block_elements - start))
        };
        let (start, len) = range(self.host.rank.index());
        self.reduce(reduce_op, start, start, len)?;
        if n == 1 {
            return Ok(());
        }
        self.next_phase()?;
        for i in 1..n {
            let peer = (self.host.rank.index() + i) % n;
            let (start, len) = range(peer);
            let source = self.output_of(GroupRank(peer as u32)).wrapping_add(start * bytes);
            self.copy_in(source, start * bytes, len * bytes)?;
        }
        Ok(())
    }
}

/// Up to so many ranks, a reduction keeps the list of its inputs on the stack.
const MAX_STACK_RANKS: usize = 64;
