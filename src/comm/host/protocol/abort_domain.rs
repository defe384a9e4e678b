//! What a communicator and everything split from it share: whether it is still alive, which of its
//! ranks have died, and how its ranks sleep and wake.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use crate::comm::host::memory::shared_memory::{Shareable, SharedMemory};
use crate::error::{Error, ErrorKind, Result};
use crate::rank::Rank;
use crate::sync::{AtomicU32, AtomicU64, Futex, Ordering, fence, spin_loop, yield_now};
use crate::util::fork::ProcessGuard;
use crate::util::slow_warning::SlowWarning;

/// The longest reason that an abort keeps, in bytes.
const REASON_BYTES: usize = if cfg!(loom) { 8 } else { 2048 };

/// The state that all communicators of one origin share. A failure in one of them is the end of all, as with NCCL's
/// `splitShare`: a rank that waits in another one is told at once instead of at its deadline.
pub(crate) struct AbortDomain {
    pub(crate) process: ProcessGuard,
    memory: Arc<SharedMemory>,
    world_size: u32,
    /// The ranks of this process.
    local_ranks: Range<u32>,
    /// Which thread made the latest call of each of them.
    callers: Box<[Caller]>,
    /// Whether every rank can have a processor of its own, so that spinning makes sense.
    may_spin: bool,
}

/// The part of a domain that is there once.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Header {
    /// How many threads sleep or are about to.
    sleepers: AtomicU32,
    /// 1 when a rank has died.
    deaths: AtomicU32,
    abort: AbortRecord,
}

/// One rank's futex and death, on cache lines of their own.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct WakeFlag {
    futex: Futex,
    sleepers: AtomicU32,
    /// 1 when the rank's process has ended, or has dropped all its handles.
    dead: AtomicU32,
}

/// Who ended the communicator, and why. Plain words, for memory that processes share.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct AbortRecord {
    state: AtomicU32,
    kind: AtomicU32,
    rank: AtomicU32,
    len: AtomicU32,
    reason: [AtomicU64; REASON_BYTES / 8],
}

/// The thread of a rank's latest call, as [`this_thread`] names it; 0 before the first. On a cache
/// line of its own, since each call writes it.
#[derive(Default)]
#[repr(align(128))]
struct Caller(AtomicUsize);

/// A number that no other thread of this process has; it is not 0.
fn this_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = 1 + THREADS.fetch_add(1, Ordering::Relaxed));
    // A thread that ends makes no further call.
    NUMBER.try_with(|number| *number).unwrap_or(usize::MAX)
}

// SAFETY: nothing but atomics.
unsafe impl Shareable for Header {}
// SAFETY: nothing but atomics.
unsafe impl Shareable for WakeFlag {}

const ALIVE: u32 = 0;
const ABORTING: u32 = 1;
const ABORTED: u32 = 2;

/// Kinds of errors that mean the same on every rank and are passed on as they are.
const SHARED_KINDS: [ErrorKind; 2] = [ErrorKind::Disagreement, ErrorKind::PeerLost];

/// Whether an error of this kind reaches the other ranks as it is, instead of as "rank 1 ended the communicator: …".
pub(crate) fn is_shared(kind: ErrorKind) -> bool {
    SHARED_KINDS.contains(&kind)
}

impl AbortDomain {
    /// How many bytes a domain of so many ranks takes at the beginning of its memory.
    pub(crate) fn byte_len(world_size: u32) -> usize {
        size_of::<Header>() + world_size as usize * size_of::<WakeFlag>()
    }

    /// The domain at the beginning of memory that is zeroed, or that ranks share already.
    pub(crate) fn new(memory: Arc<SharedMemory>, world_size: u32, local_ranks: Range<u32>) -> Self {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        AbortDomain {
            process: ProcessGuard::current(),
            memory,
            world_size,
            callers: local_ranks.clone().map(|_| Caller::default()).collect(),
            local_ranks,
            may_spin: !cfg!(loom) && world_size as usize <= processors,
        }
    }

    /// Whether a rank is a thread of this process.
    pub(crate) fn is_local(&self, rank: Rank) -> bool {
        self.local_ranks.contains(&rank.0)
    }

    fn caller(&self, rank: Rank) -> Option<&AtomicUsize> {
        self.callers.get(rank.0.checked_sub(self.local_ranks.start)? as usize).map(|caller| &caller.0)
    }

    /// Notes that a rank of this process calls on this thread.
    pub(crate) fn note_caller(&self, rank: Rank) {
        if let Some(caller) = self.caller(rank) {
            caller.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// What a thread that waits for a rank should know: that it may wait for itself.
    pub(crate) fn hint_about(&self, rank: Rank) -> Option<String> {
        match self.caller(rank)?.load(Ordering::Relaxed) {
            0 => Some(format!(
                "rank {rank} is a rank of this process and has made no call; each rank needs a thread of its own"
            )),
            caller if caller == this_thread() => {
                Some(format!("rank {rank} made its last call on this same thread; each rank needs a thread of its own"))
            }
            _ => None,
        }
    }

    fn header(&self) -> &Header {
        &self.memory.slice(0, 1)[0]
    }

    fn wake_flags(&self) -> &[WakeFlag] {
        self.memory.slice(size_of::<Header>(), self.world_size as usize)
    }

    /// Whether an abort has begun.
    pub(crate) fn is_aborted(&self) -> bool {
        self.header().abort.state.load(Ordering::Acquire) != ALIVE
    }

    /// Ends the communicator. The first reason stays.
    pub(crate) fn abort(&self, kind: ErrorKind, rank: Rank, reason: &str) {
        let record = &self.header().abort;
        if record.state.compare_exchange(ALIVE, ABORTING, Ordering::AcqRel, Ordering::Acquire).is_err() {
            return;
        }
        let mut end = reason.len().min(REASON_BYTES);
        while !reason.is_char_boundary(end) {
            end -= 1;
        }
        for (word, bytes) in record.reason.iter().zip(reason.as_bytes()[..end].chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        let kind = SHARED_KINDS.iter().position(|k| *k == kind).map_or(u32::MAX, |i| i as u32);
        record.kind.store(kind, Ordering::Relaxed);
        record.rank.store(rank.0, Ordering::Relaxed);
        record.len.store(end as u32, Ordering::Relaxed);
        record.state.store(ABORTED, Ordering::Release);
        for wake_flag in self.wake_flags() {
            wake_flag.futex.ring();
        }
    }

    /// The error that every rank has once the communicator is dead.
    pub(crate) fn check(&self) -> Result<()> {
        let record = &self.header().abort;
        let mut state = record.state.load(Ordering::Acquire);
        if state == ALIVE {
            return Ok(());
        }
        // The reason is a few stores away, unless its writer was stopped right there.
        let waiter = Instant::now() + Duration::from_secs(1);
        while state != ABORTED && Instant::now() < waiter {
            yield_now();
            state = record.state.load(Ordering::Acquire);
        }
        if state != ABORTED {
            return Err(crate::error::error!(Aborted, "the communicator was aborted; no reason has been given yet"));
        }
        // A peer wrote this: the length may be wrong, and the text may be anything.
        let len = record.len.load(Ordering::Relaxed) as usize;
        let bytes: Vec<u8> =
            record.reason.iter().flat_map(|word| word.load(Ordering::Relaxed).to_le_bytes()).take(len).collect();
        let is_control = |c: char| c.is_control() && c != '\n';
        let reason = String::from_utf8_lossy(&bytes).replace(is_control, "\u{fffd}");
        match SHARED_KINDS.get(record.kind.load(Ordering::Relaxed) as usize) {
            Some(&kind) => Err(Error::new(kind, reason)),
            None => {
                let rank = record.rank.load(Ordering::Relaxed);
                Err(crate::error::error!(Aborted, "rank {rank} ended the communicator: {reason}"))
            }
        }
    }

    /// Says that a rank's process has ended, and wakes all ranks. Every communicator of the domain
    /// looks here, also one that is made later.
    pub(crate) fn mark_dead(&self, rank: Rank) {
        // A process may end between the two stores. Each process that sees the death does both.
        self.wake_flags()[rank.index()].dead.store(1, Ordering::Release);
        self.header().deaths.store(1, Ordering::Release);
        self.wake((0..self.world_size).map(Rank));
    }

    /// Whether any rank has died.
    pub(crate) fn has_deaths(&self) -> bool {
        self.header().deaths.load(Ordering::Acquire) != 0
    }

    /// Whether a rank's process has ended. A rank that left before has left: see
    /// `Segment::has_died`.
    pub(crate) fn is_dead(&self, rank: Rank) -> bool {
        self.wake_flags()[rank.index()].dead.load(Ordering::Acquire) != 0
    }

    /// Wakes those of `ranks` who sleep. What they wait for was stored before.
    pub(crate) fn wake(&self, ranks: impl Iterator<Item = Rank>) {
        // Between that store and the look for sleepers; `Waiter::sleep` has its counterpart.
        fence(Ordering::SeqCst);
        if self.header().sleepers.load(Ordering::Relaxed) == 0 {
            return;
        }
        for rank in ranks {
            let wake_flag = &self.wake_flags()[rank.index()];
            if wake_flag.sleepers.load(Ordering::Relaxed) > 0 {
                wake_flag.futex.ring();
            }
        }
    }
}

/// Why a wait did not end well.
pub(crate) enum WaitError {
    /// The communicator is dead; here is why.
    Aborted(Error),
    /// The deadline is over.
    DeadlineExceeded,
    /// The rank waited for has left.
    PeerLost,
}

/// One rank's waiting in one step: spin for as long as a cache line takes to cross, give way, then sleep.
pub(crate) struct Waiter<'a> {
    domain: &'a AbortDomain,
    wake_flag: &'a WakeFlag,
    deadline: Instant,
    spins_left: u32,
    yields_left: u32,
    /// From the first sleep on.
    slow: Option<SlowWarning>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(domain: &'a AbortDomain, rank: Rank, deadline: Instant) -> Self {
        // A futex wake-up costs tens of microseconds: spin about that long before going to sleep.
        const SPINS: u32 = 1000;
        const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };
        Waiter {
            domain,
            wake_flag: &domain.wake_flags()[rank.index()],
            deadline,
            spins_left: if domain.may_spin { SPINS } else { 0 },
            yields_left: YIELDS,
            slow: None,
        }
    }

    /// Waits until `reached` holds, `gone` does, the communicator dies or the deadline is over.
    /// `slow` is what a warning about a long wait says, after so many seconds.
    pub(crate) fn wait_until(
        &mut self,
        mut reached: impl FnMut() -> bool,
        gone: impl Fn() -> bool,
        slow: impl Fn(u64) -> String,
    ) -> Result<(), WaitError> {
        loop {
            if reached() {
                return Ok(());
            }
            self.domain.check().map_err(WaitError::Aborted)?;
            if gone() {
                return Err(self.unless_aborted(WaitError::PeerLost));
            }
            if self.spins_left > 0 {
                self.spins_left -= 1;
                spin_loop();
            } else if self.yields_left > 0 {
                self.yields_left -= 1;
                yield_now();
            } else {
                let now = Instant::now();
                if now >= self.deadline {
                    return Err(self.unless_aborted(WaitError::DeadlineExceeded));
                }
                let warning = self.slow.get_or_insert_with(SlowWarning::new);
                warning.look(&slow);
                let until = warning.next_look(self.deadline);
                self.sleep(until.saturating_duration_since(now), || reached() || gone() || self.domain.is_aborted());
            }
        }
    }

    /// A rank that aborts and leaves at once is told of by its reason: the abort was there before the departure.
    fn unless_aborted(&self, error: WaitError) -> WaitError {
        self.domain.check().map_or_else(WaitError::Aborted, |()| error)
    }

    /// Sleeps unless `awake` already holds. Whoever makes it hold stores first and looks for sleepers then; a sleeper
    /// counts itself first and looks at the stores then; with a fence between the two on either side, one of them sees the
    /// other.
    fn sleep(&self, timeout: Duration, awake: impl FnOnce() -> bool) {
        self.wake_flag.sleepers.fetch_add(1, Ordering::Relaxed);
        self.domain.header().sleepers.fetch_add(1, Ordering::Relaxed);
        let rings = self.wake_flag.futex.load();
        fence(Ordering::SeqCst);
        if !awake() {
            self.wake_flag.futex.sleep(rings, timeout);
        }
        self.domain.header().sleepers.fetch_sub(1, Ordering::Relaxed);
        self.wake_flag.sleepers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// A peer can write anything into the abort record; it can make this rank fail, and nothing
    /// else.
    #[test]
    fn an_abort_record_of_any_words_is_an_error_and_no_more() {
        for [kind, rank, len] in [[u32::MAX; 3], [0, 7, u32::MAX], [1, u32::MAX, 3], [2, 0, 0]] {
            let memory = Arc::new(SharedMemory::of_process(AbortDomain::byte_len(2)).expect("memory"));
            let domain = AbortDomain::new(memory, 2, 0..2);
            let record = &domain.header().abort;
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
