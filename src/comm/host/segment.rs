//! The memory that the ranks of one communicator share: a slot each.

use std::sync::Arc;

use super::family::Family;
use crate::error::Result;
use crate::rank::{GroupRank, Rank};
use crate::sync::{AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// One communicator: its members, and a slot for each.
pub(super) struct Segment {
    pub(super) family: Arc<Family>,
    /// The members by their numbers in the communicator that the family began with.
    members: Box<[Rank]>,
    slots: Box<[Slot]>,
    /// How many members have left.
    departures: AtomicU32,
}

/// What one rank says. Only that rank writes it.
#[repr(align(128))]
pub(super) struct Slot {
    /// How many phases the rank has come, wrapping.
    phase: AtomicU32,
    /// 1 while the rank reads a peer's buffer.
    window: AtomicU32,
    /// 1 when the rank has left.
    departed: AtomicU32,
    /// The current posting and the one before: a rank may post its next call while a peer still reads its last.
    postings: [Posting; 2],
}

/// One rank's call, written before the phase that announces it is raised.
#[derive(Default)]
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
}

impl Segment {
    pub(super) fn new(family: Arc<Family>, members: Box<[Rank]>) -> Self {
        let slots = members
            .iter()
            .map(|_| Slot {
                phase: AtomicU32::new(0),
                window: AtomicU32::new(0),
                departed: AtomicU32::new(0),
                postings: Default::default(),
            })
            .collect();
        Segment { family, members, slots, departures: AtomicU32::new(0) }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    /// A member's number in the communicator that the family began with.
    pub(super) fn member(&self, rank: GroupRank) -> Rank {
        self.members[rank.index()]
    }

    pub(super) fn slot(&self, rank: GroupRank) -> &Slot {
        &self.slots[rank.index()]
    }

    pub(super) fn raise_phase(&self, rank: GroupRank, phase: u32) {
        self.slot(rank).phase.store(phase, Ordering::SeqCst);
        self.family.wake(self.members.iter().copied());
    }

    pub(super) fn depart(&self, rank: GroupRank) {
        self.slot(rank).departed.store(1, Ordering::SeqCst);
        self.departures.fetch_add(1, Ordering::SeqCst);
        self.family.wake(self.members.iter().copied());
    }

    /// Whether a member has left without having come to `phase`. (It raised its last phase before it left.)
    pub(super) fn lacks_departed(&self, phase: u32) -> bool {
        self.departures.load(Ordering::SeqCst) > 0
            && self.slots.iter().any(|slot| slot.has_departed() && !slot.reached(phase))
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
        for (r, slot) in self.slots.iter().enumerate() {
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
        Arc::new(Segment::new(Arc::new(Family::new(2)), Box::new([Rank(0), Rank(1)])))
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
