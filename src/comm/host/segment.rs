//! The memory that the ranks of one communicator share: a slot each.

use std::sync::Arc;

use super::family::Family;
use super::shared_memory::{Shareable, SharedMemory};
use crate::error::Result;
use crate::rank::{GroupRank, Rank};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The bytes of a rank's stage that one round uses. A stage has two of them: one is read while the other is written.
pub(super) const STAGE_BYTES: usize = 256 << 10;

/// One communicator: its members, a slot for each, and where it spans processes, a stage for each.
pub(super) struct Segment {
    pub(super) family: Arc<Family>,
    /// The same in every process, and different for every segment of a family.
    pub(super) id: u64,
    /// The members by their numbers in the communicator that the family began with.
    members: Box<[Rank]>,
    memory: Arc<SharedMemory>,
    /// Where the segment begins in its memory.
    offset: usize,
    /// Whether members live in several processes, so that they do not see each other's buffers.
    pub(super) spans_processes: bool,
}

/// What is there once in a segment.
#[repr(C, align(128))]
struct Header {
    /// 1 when a member has left.
    departures: AtomicU32,
}

// SAFETY: nothing but atomics.
unsafe impl Shareable for Header {}
// SAFETY: nothing but atomics.
unsafe impl Shareable for Slot {}

/// What one rank says. Only that rank writes it, but for its death, which the other processes write.
#[repr(C, align(128))]
pub(super) struct Slot {
    /// How many phases the rank has come, wrapping.
    phase: AtomicU32,
    /// 1 while the rank reads a peer's buffer.
    window: AtomicU32,
    /// Whether the rank has left, and how.
    departed: AtomicU32,
    /// The current posting and the one before: a rank may post its next call while a peer still reads its last.
    postings: [Posting; 2],
}

/// One rank's call, written before the phase that announces it is raised.
#[repr(C)]
pub(super) struct Posting {
    words: [AtomicU64; 2],
    input: AtomicUsize,
    output: AtomicUsize,
}

impl Posting {
    pub(super) fn words(&self) -> [u64; 2] {
        self.words.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    pub(super) fn input(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.input.load(Ordering::Relaxed))
    }

    pub(super) fn output(&self) -> *const u8 {
        std::ptr::with_exposed_provenance(self.output.load(Ordering::Relaxed))
    }
}

impl Slot {
    /// The posting of a collective. A rank is at most one collective ahead of its peers, so two places are enough.
    pub(super) fn posting(&self, sequence: u64) -> &Posting {
        &self.postings[(sequence % 2) as usize]
    }

    /// Writes this rank's posting; raising the phase afterwards publishes it.
    pub(super) fn post(&self, sequence: u64, words: [u64; 2], input: *const u8, output: *mut u8) {
        let posting = self.posting(sequence);
        for (to, word) in posting.words.iter().zip(words) {
            to.store(word, Ordering::Relaxed);
        }
        posting.input.store(input.expose_provenance(), Ordering::Relaxed);
        posting.output.store(output.expose_provenance(), Ordering::Relaxed);
    }

    /// Whether the rank has come to `phase` or further; what it wrote before is then visible.
    pub(super) fn reached(&self, phase: u32) -> bool {
        self.phase.load(Ordering::SeqCst).wrapping_sub(phase) as i32 >= 0
    }

    pub(super) fn has_departed(&self) -> bool {
        self.departed.load(Ordering::SeqCst) != 0
    }

    pub(super) fn has_died(&self) -> bool {
        self.departed.load(Ordering::SeqCst) == DIED
    }
}

/// A rank that dropped its handle.
pub(super) const LEFT: u32 = 1;
/// A rank whose process ended without a word.
pub(super) const DIED: u32 = 2;

impl Segment {
    /// How many bytes a segment of so many members takes.
    pub(super) fn byte_len(members: usize, spans_processes: bool) -> usize {
        let stages = if spans_processes { members * 2 * STAGE_BYTES } else { 0 };
        Self::stages_offset(members) + stages
    }

    fn stages_offset(members: usize) -> usize {
        size_of::<Header>() + members * size_of::<Slot>()
    }

    /// The segment at an offset of memory that is zeroed there, or that ranks share already.
    pub(super) fn new(
        family: Arc<Family>,
        id: u64,
        members: Box<[Rank]>,
        memory: Arc<SharedMemory>,
        offset: usize,
        spans_processes: bool,
    ) -> Self {
        Segment { family, id, members, memory, offset, spans_processes }
    }

    /// The first segment of a new family, whose ranks are threads of this process.
    pub(super) fn in_process(world_size: u32) -> Result<Self> {
        let offset = Family::byte_len(world_size);
        let memory = Arc::new(SharedMemory::of_process(offset + Self::byte_len(world_size as usize, false))?);
        let family = Arc::new(Family::new(Arc::clone(&memory), world_size));
        Ok(Self::new(family, 0, (0..world_size).map(Rank).collect(), memory, offset, false))
    }

    fn header(&self) -> &Header {
        &self.memory.slice(self.offset, 1)[0]
    }

    fn slots(&self) -> &[Slot] {
        self.memory.slice(self.offset + size_of::<Header>(), self.members.len())
    }

    pub(super) fn memory(&self) -> &SharedMemory {
        &self.memory
    }

    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// The half of a rank's stage that a round uses.
    pub(super) fn stage(&self, rank: GroupRank, round: usize) -> *mut u8 {
        let half = 2 * rank.index() + round % 2;
        let offset = self.offset + Self::stages_offset(self.members.len()) + half * STAGE_BYTES;
        self.memory.bytes(offset, STAGE_BYTES)
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// A member's number in the communicator that the family began with.
    pub(super) fn member(&self, rank: GroupRank) -> Rank {
        self.members[rank.index()]
    }

    pub(super) fn slot(&self, rank: GroupRank) -> &Slot {
        &self.slots()[rank.index()]
    }

    pub(super) fn raise_phase(&self, rank: GroupRank, phase: u32) {
        self.slot(rank).phase.store(phase, Ordering::SeqCst);
        self.family.wake(self.members.iter().copied());
    }

    /// Says that a rank has left; the first word about it counts.
    pub(super) fn depart(&self, rank: GroupRank, how: u32) {
        // A process may die between any two of these steps, so whoever repeats them does all of them.
        let _ = self.slot(rank).departed.compare_exchange(0, how, Ordering::SeqCst, Ordering::SeqCst);
        self.header().departures.store(1, Ordering::SeqCst);
        self.family.wake(self.members.iter().copied());
    }

    /// Whether a member has left without having come to `phase`. (It raised its last phase before it left.)
    pub(super) fn lacks_departed(&self, phase: u32) -> bool {
        self.header().departures.load(Ordering::SeqCst) > 0
            && self.slots().iter().any(|slot| slot.has_departed() && !slot.reached(phase))
    }

    /// Runs `access`, which reads peers' buffers, inside an access window; not at all once an abort has begun.
    pub(super) fn window(&self, rank: GroupRank, access: impl FnOnce()) -> Result<()> {
        struct Close<'a>(&'a AtomicU32);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::SeqCst);
            }
        }
        let window = &self.slot(rank).window;
        window.store(1, Ordering::SeqCst);
        let close = Close(window);
        // Either this rank sees the abort here, or the one that aborts sees the window in `wait_for_windows`.
        if self.family.is_aborted() {
            drop(close);
            return self.family.check();
        }
        access();
        Ok(())
    }

    /// Waits until no peer is inside a window. After an abort none is opened again, so that this ends within the time of
    /// one short copy.
    pub(super) fn wait_for_windows(&self, rank: GroupRank) {
        if self.spans_processes {
            // Nobody reads buffers, so there are no windows.
            return;
        }
        for (r, slot) in self.slots().iter().enumerate() {
            while r != rank.index() && slot.window.load(Ordering::SeqCst) != 0 {
                std::thread::yield_now();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::in_process(2).expect("memory"))
    }

    /// A peer is stopped in the middle of a copy; the rank that fails waits for it, and afterwards no window opens.
    #[test]
    fn a_failing_rank_waits_until_its_peers_windows_are_closed() {
        let segment = segment();
        let (inside, entered) = channel();
        let (go_on, stopped) = channel::<()>();
        let peer = std::thread::spawn({
            let segment = Arc::clone(&segment);
            move || {
                segment.window(GroupRank(1), || {
                    inside.send(()).expect("the test listens");
                    stopped.recv().expect("the test says when");
                })
            }
        });
        entered.recv().expect("the peer is inside");
        segment.family.abort(ErrorKind::Aborted, Rank(0), "the test");
        let (returned, failed) = channel();
        let failing = std::thread::spawn({
            let segment = Arc::clone(&segment);
            move || {
                segment.wait_for_windows(GroupRank(0));
                returned.send(()).expect("the test listens");
            }
        });
        assert!(failed.recv_timeout(Duration::from_millis(50)).is_err(), "a window is open");
        go_on.send(()).expect("the peer listens");
        failed.recv_timeout(Duration::from_secs(10)).expect("the window is closed");
        peer.join().expect("no panic").expect("the copy was whole");
        failing.join().expect("no panic");
        let refused = segment.window(GroupRank(1), || panic!("no window opens after an abort"));
        assert_eq!(refused.expect_err("aborted").kind(), ErrorKind::Aborted);
    }

    #[test]
    fn a_phase_is_reached_across_the_wrap() {
        let segment = segment();
        segment.raise_phase(GroupRank(0), u32::MAX);
        let slot = segment.slot(GroupRank(0));
        assert!(slot.reached(u32::MAX) && !slot.reached(0));
        segment.raise_phase(GroupRank(0), 1);
        assert!(slot.reached(0) && slot.reached(1) && !slot.reached(2));
    }
}
