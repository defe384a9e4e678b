//! What a communicator shares with everything split from it: whether it is alive, which of its
//! ranks have died, and how ranks sleep and wake.

use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use super::asymmetric_fence::{AsymmetricFence, FIRST_SLEEP};
use super::caller_threads::CallerThreads;
use super::processors::{OwnProcessors, ProcessorSet};
use super::slot::word_of;
use crate::comm::backend::SHARED_KINDS;
use crate::comm::host::memory::{Shareable, Shared, SharedMemory};
use crate::error::{Error, ErrorKind, Result, error};
use crate::rank::Rank;
use crate::sync::{AtomicU32, AtomicU64, Futex, Ordering, Published, yield_now};
use crate::util::fork::ProcessGuard;
use crate::util::text::{printable, start_of};

/// The state that a communicator shares with everything split from it. A failure in one of them
/// ends them all, as with NCCL's `splitShare`: a rank that waits in another one sees it at once
/// instead of at its deadline.
pub(crate) struct AbortDomain {
    pub(crate) process: ProcessGuard,
    pub(super) callers: CallerThreads,
    header: Shared<DomainHeader>,
    wake_flags: Shared<[WakeFlag]>,
    world_size: u32,
    /// The names of the ranks, if those are not their numbers.
    names: Option<Box<[Rank]>>,
    /// The ranks of this process.
    local_ranks: Range<u32>,
    processors: OwnProcessors,
    /// Set when each rank can have a processor of its own.
    may_spin: OnceLock<()>,
}

/// What the memory of a domain begins with. A [`WakeFlag`] for each rank follows.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct DomainHeader {
    /// 1 when a rank has died.
    any_dead: Published,
    /// How many threads sleep or are about to.
    sleepers: AtomicU32,
    fence: AsymmetricFence,
    abort: AbortRecord,
    processors: ProcessorSet,
}

/// One rank's futex and its death, on cache lines of their own.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct WakeFlag {
    futex: Futex,
    /// How many threads of the rank sleep or are about to.
    sleepers: AtomicU32,
    /// 1 when the rank's process has ended, or has dropped all its handles.
    dead: Published,
    /// Whom the rank waits for in a send or a receive, or 0.
    awaited: Published,
}

/// Which rank ended the communicator, and why (invariant 16).
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct AbortRecord {
    state: AtomicU32,
    /// The index in [`SHARED_KINDS`], or another number for every other kind.
    kind: AtomicU32,
    rank: AtomicU32,
    /// The length of the reason in bytes.
    len: AtomicU32,
    reason: [AtomicU64; REASON_BYTES / 8],
}

// SAFETY: invariant 1: every field is an atomic, and zeros are a value of it.
unsafe impl Shareable for DomainHeader {}
// SAFETY: as above.
unsafe impl Shareable for WakeFlag {}

/// The longest reason that an abort keeps, in bytes.
const REASON_BYTES: usize = if cfg!(loom) { 8 } else { 2048 };

/// The states of an abort record, in their order. A state never goes back.
const ALIVE: u32 = 0;
const ABORTING: u32 = 1;
const ABORTED: u32 = 2;

/// How long a rank waits for the reason of an abort, whose writer may have been stopped.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

impl AbortDomain {
    /// How many bytes the domain of `world_size` ranks takes, at the beginning of its memory.
    pub(crate) fn byte_len(world_size: u32) -> usize {
        size_of::<DomainHeader>() + world_size as usize * size_of::<WakeFlag>()
    }

    /// The domain at the beginning of memory that is zeroed, or that ranks share already.
    pub(crate) fn new(memory: &Arc<SharedMemory>, world_size: u32, local_ranks: Range<u32>) -> Self {
        let header = Shared::<DomainHeader>::new(memory, 0);
        let wake_flags = Shared::slice(memory, size_of::<DomainHeader>(), world_size as usize);
        let processors = header.processors.add_own();
        header.fence.join(local_ranks.len() as u32);
        AbortDomain {
            process: ProcessGuard::current(),
            callers: CallerThreads::new(local_ranks.clone()),
            header,
            wake_flags,
            world_size,
            names: None,
            local_ranks,
            processors,
            may_spin: OnceLock::new(),
        }
    }

    /// Gives each rank another name than its number.
    pub(crate) fn with_names(self, names: Option<Box<[Rank]>>) -> Self {
        AbortDomain { names, ..self }
    }

    /// The rank as errors name it.
    pub(crate) fn name(&self, rank: Rank) -> Rank {
        self.names.as_ref().and_then(|names| names.get(rank.index())).copied().unwrap_or(rank)
    }

    /// Whether a rank is a thread of this process.
    pub(crate) fn is_local(&self, rank: Rank) -> bool {
        self.local_ranks.contains(&rank.0)
    }

    /// Whether a waiting rank may spin: if each rank can have a processor of its own.
    pub(super) fn may_spin(&self) -> bool {
        if cfg!(loom) || self.may_spin.get().is_some() {
            return !cfg!(loom);
        }
        let is_enough = self.header.processors.is_enough_for(self.world_size as usize, &self.processors);
        if is_enough {
            self.may_spin.get_or_init(|| ());
        }
        is_enough
    }

    /// Whether some of the ranks live in other processes.
    pub(super) fn spans_processes(&self) -> bool {
        self.local_ranks.len() < self.world_size as usize
    }

    pub(crate) fn world_size(&self) -> u32 {
        self.world_size
    }

    /// Publishes whom a rank waits for in a send or a receive; 0 for no rank. A rank that fails
    /// aborts before it publishes that it waits no more.
    pub(crate) fn set_awaited(&self, rank: Rank, awaited: u64) {
        self.wake_flags[rank.index()].awaited.store(awaited);
    }

    /// Whom a rank waits for, as it has published it.
    pub(crate) fn awaited(&self, rank: Rank) -> u64 {
        self.wake_flags[rank.index()].awaited.load()
    }

    /// Whether an abort has begun.
    pub(crate) fn is_aborted(&self) -> bool {
        self.header.abort.state.load(Ordering::Acquire) != ALIVE
    }

    /// Ends all communicators of the domain, because of a rank with this name. The first caller's
    /// reason is kept (invariant 16). In a forked process it does nothing (invariant 21).
    pub(crate) fn abort(&self, kind: ErrorKind, rank: Rank, reason: &str) {
        if !self.process.is_current() {
            return;
        }
        let record = &self.header.abort;
        if record.state.compare_exchange(ALIVE, ABORTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let reason = start_of(reason, REASON_BYTES);
        for (word, bytes) in record.reason.iter().zip(reason.as_bytes().chunks(8)) {
            word.store(word_of(bytes), Ordering::Relaxed);
        }
        let kind = SHARED_KINDS.iter().position(|k| *k == kind).map_or(u32::MAX, |i| i as u32);
        record.kind.store(kind, Ordering::Relaxed);
        record.rank.store(rank.0, Ordering::Relaxed);
        record.len.store(reason.len() as u32, Ordering::Relaxed);
        record.state.store(ABORTED, Ordering::Release);
        for flag in &*self.wake_flags {
            flag.futex.wake_all();
        }
    }

    /// Checks that no abort has begun.
    pub(crate) fn check(&self) -> Result<()> {
        if self.is_aborted() { Err(self.abort_error()) } else { Ok(()) }
    }

    /// The error of every call after an abort.
    pub(super) fn abort_error(&self) -> Error {
        let record = &self.header.abort;
        let mut state = record.state.load(Ordering::Acquire);
        let deadline = Instant::now() + REASON_TIMEOUT;
        while state != ABORTED && Instant::now() < deadline {
            yield_now();
            state = record.state.load(Ordering::Acquire);
        }
        if state != ABORTED {
            return error!(Aborted, "the communicator was aborted; no reason has been given yet");
        }
        // A peer wrote the record: the length may be too large.
        let len = record.len.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> =
            record.reason.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).take(len).collect();
        let reason = printable(&bytes);
        match SHARED_KINDS.get(record.kind.load(Ordering::Relaxed) as usize) {
            Some(&kind) => Error::new(kind, reason),
            None => {
                let rank = record.rank.load(Ordering::Relaxed);
                error!(Aborted, "rank {rank} ended the communicator: {reason}")
            }
        }
    }

    /// Marks a rank whose process has ended as dead, and wakes all ranks (invariant 20).
    pub(crate) fn mark_dead(&self, rank: Rank) {
        self.wake_flags[rank.index()].dead.store(1);
        self.header.any_dead.store(1);
        self.wake((0..self.world_size).map(Rank));
    }

    /// Whether any rank has been marked dead.
    pub(crate) fn has_dead(&self) -> bool {
        self.header.any_dead.load() != 0
    }

    /// Whether a rank's process has ended. It may have left before: see `Segment::has_died`.
    pub(crate) fn is_dead(&self, rank: Rank) -> bool {
        self.wake_flags[rank.index()].dead.load() != 0
    }

    /// The frequent side's fence of an agreement between threads of this domain.
    pub(super) fn light_fence(&self) {
        self.header.fence.light(self.world_size);
    }

    /// The rare side's fence of such an agreement.
    pub(super) fn heavy_fence(&self) {
        self.header.fence.heavy(self.spans_processes());
    }

    /// Wakes those of `ranks` that sleep. The caller has stored what they wait for (invariant 15).
    pub(crate) fn wake(&self, ranks: impl Iterator<Item = Rank>) {
        // Pairs with the fence in `sleep`.
        self.light_fence();
        if self.header.sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        for rank in ranks {
            let flag = &self.wake_flags[rank.index()];
            if flag.sleepers.load(Ordering::Relaxed) > 0 {
                flag.futex.wake_all();
            }
        }
    }

    /// Lets a rank sleep until it is woken or `timeout` is over; not at all if `must_wake` holds
    /// (invariant 15).
    pub(super) fn sleep(&self, rank: Rank, timeout: Duration, mut must_wake: impl FnMut() -> bool) {
        let flag = &self.wake_flags[rank.index()];
        flag.sleepers.fetch_add(1, Ordering::Relaxed);
        self.header.sleepers.fetch_add(1, Ordering::Relaxed);
        let wakes = flag.futex.load();
        // Pairs with the fence in `wake`.
        self.heavy_fence();
        let looks_again = self.spans_processes() && timeout > FIRST_SLEEP && !cfg!(loom);
        let first = if looks_again { FIRST_SLEEP } else { timeout };
        if !must_wake() {
            flag.futex.wait(wakes, first);
            // A waker that has not seen this sleeper has stored its condition by now.
            if looks_again && !must_wake() {
                flag.futex.wait(wakes, timeout - first);
            }
        }
        self.header.sleepers.fetch_sub(1, Ordering::Relaxed);
        flag.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// Between processes a waker may miss a sleeper.
    #[test]
    fn a_sleeper_looks_again() {
        let memory = Arc::new(SharedMemory::for_threads(AbortDomain::byte_len(2)).expect("memory"));
        let domain = AbortDomain::new(&memory, 2, 0..1);
        let mut looks = 0;
        domain.sleep(Rank(0), Duration::from_secs(9), || {
            looks += 1;
            looks > 1
        });
        assert_eq!(looks, 2);
    }

    /// A peer can write anything into the abort record. That can make this rank fail, and nothing
    /// else.
    #[test]
    fn an_abort_record_of_any_words_is_an_error_and_no_more() {
        for [kind, rank, len] in [[u32::MAX; 3], [0, 7, u32::MAX], [1, u32::MAX, 3], [2, 0, 0]] {
            let memory = Arc::new(SharedMemory::for_threads(AbortDomain::byte_len(2)).expect("memory"));
            let domain = AbortDomain::new(&memory, 2, 0..2);
            let record = &domain.header.abort;
            record
                .reason
                .iter()
                .for_each(|word| word.store(u64::from_le_bytes(*b"\x1b[31m\xff\xfe\n"), Ordering::Relaxed));
            record.kind.store(kind, Ordering::Relaxed);
            record.rank.store(rank, Ordering::Relaxed);
            record.len.store(len, Ordering::Relaxed);
            record.state.store(ABORTED, Ordering::Release);
            let text = domain.check().expect_err("it has ended").to_string();
            assert!(!text.contains('\x1b') && text.len() <= 4 * REASON_BYTES, "{text}");
        }
    }
}
