//! The memory that the ranks of one communicator share: a slot each, and between processes a stage each.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use super::abort_domain::AbortDomain;
use crate::comm::host::memory::shared_memory::{Extent, Shareable, SharedMemory};
use crate::error::Result;
use crate::rank::{GroupRank, Rank};
use crate::sync::{AtomicU32, AtomicU64, Ordering, Tracked, fence, yield_now};

/// The bytes of a rank's stage that one round uses. A stage has two of them: one is read while the other is written.
pub(crate) const STAGING_HALF_BYTES: usize = if cfg!(loom) { 64 } else { 256 << 10 };

/// How many collectives a rank may be ahead of the slowest: so many of its headers are kept.
pub(crate) const HEADER_RING_LEN: u64 = if cfg!(loom) { 2 } else { 4 };

/// The most bytes that ride along with a header, in words.
pub(crate) const PAYLOAD_WORDS: usize = if cfg!(loom) { 4 } else { 13 };
pub(crate) const PAYLOAD_BYTES: usize = PAYLOAD_WORDS * 8;

/// One communicator: its members, a slot for each, and where it spans processes, a stage for each.
pub(crate) struct Segment {
    pub(crate) domain: Arc<AbortDomain>,
    /// The same in every process, and different for every segment of a domain.
    pub(crate) id: u64,
    /// The members by their numbers in the communicator that the domain began with.
    members: Box<[Rank]>,
    memory: Arc<SharedMemory>,
    /// Where the segment begins in its memory.
    offset: usize,
    /// Whether members live in several processes, so that they do not see each other's buffers.
    pub(crate) spans_processes: bool,
    /// The staging_halves of the stages, two for each rank.
    staging_halves: Box<[Tracked]>,
    /// Whether a rank of this process has made its stage.
    has_staging: Box<[AtomicBool]>,
}

/// What is there once in a segment.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Header {
    /// 1 when a member has left.
    any_left: AtomicU32,
}

// SAFETY: nothing but atomics.
unsafe impl Shareable for Header {}
// SAFETY: nothing but atomics.
unsafe impl Shareable for Slot {}

/// What one rank says. Only that rank writes it.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct Slot {
    /// How many rounds the rank has come: it has written what it gives in that round, and read all it takes from those before.
    round: AtomicU64,
    /// How many collectives the rank has finished and found every rank to agree on.
    done: AtomicU64,
    /// 1 while the rank touches a peer's buffer.
    window: AtomicU32,
    /// 1 when the rank has dropped its handle.
    left: AtomicU32,
    /// The latest collectives.
    ring: [CallHeader; HEADER_RING_LEN as usize],
}

/// One rank's call, and with a small one what the rank gives: the flag, the signature and the bytes share their cache lines.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct CallHeader {
    /// The number of the collective, written last.
    sequence: AtomicU64,
    signature: [AtomicU64; 2],
    /// The payload of a small call; else the locations of the buffers.
    body: [AtomicU64; PAYLOAD_WORDS],
}

/// Where a buffer is, for peers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BufferLocation {
    /// At an address of this process.
    Address(usize),
    /// In a rank's part of a block of symmetric memory, at an offset.
    Block { id: u64, offset: usize },
    /// Where no peer reaches it.
    Unreachable,
}

impl BufferLocation {
    const OWN: u64 = u64::MAX;

    fn to_words(self) -> [u64; 2] {
        match self {
            BufferLocation::Address(address) => [0, address as u64],
            BufferLocation::Block { id, offset } => [id, offset as u64],
            BufferLocation::Unreachable => [Self::OWN, 0],
        }
    }

    fn from_words([id, at]: [u64; 2]) -> Self {
        match id {
            0 => BufferLocation::Address(at as usize),
            Self::OWN => BufferLocation::Unreachable,
            id => BufferLocation::Block { id, offset: at as usize },
        }
    }
}

/// What a rank says of a collective besides its signature.
#[derive(Clone, Copy)]
pub(crate) enum CallBody<'a> {
    Payload(&'a [u8]),
    Locations { input: BufferLocation, output: BufferLocation },
}

impl CallHeader {
    pub(crate) fn signature(&self) -> [u64; 2] {
        self.signature.each_ref().map(|word| word.load(Ordering::Relaxed))
    }

    fn place(&self, words: [usize; 2]) -> BufferLocation {
        BufferLocation::from_words(words.map(|word| self.body[word].load(Ordering::Relaxed)))
    }

    pub(crate) fn input(&self) -> BufferLocation {
        self.place([0, 1])
    }

    pub(crate) fn output(&self) -> BufferLocation {
        self.place([2, 3])
    }

    /// The words of the payload from its beginning to `byte_len`.
    pub(crate) fn payload(&self, byte_len: usize) -> impl Iterator<Item = u64> {
        self.body[..byte_len.div_ceil(8)].iter().map(|word| word.load(Ordering::Relaxed))
    }
}

/// How far a rank has to have come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Milestone {
    /// It has said what it calls in this collective.
    Posted(u64),
    /// It has come to this round.
    Round(u64),
    /// It has finished this collective.
    Done(u64),
}

impl Slot {
    /// What the rank says of a collective, once it has.
    pub(crate) fn call_header(&self, sequence: u64) -> Option<&CallHeader> {
        let header = self.header_for(sequence);
        // A rank does not write further around the ring before everybody has finished this collective.
        (header.sequence.load(Ordering::Acquire) == sequence).then_some(header)
    }

    fn header_for(&self, sequence: u64) -> &CallHeader {
        &self.ring[(sequence % HEADER_RING_LEN) as usize]
    }

    fn has_left(&self) -> bool {
        self.left.load(Ordering::Acquire) != 0
    }
}

impl Segment {
    /// How long memory is in which a segment of so many members begins at an offset. The stages are
    /// not allocated at once.
    pub(crate) fn extent(offset: usize, members: usize, spans_processes: bool) -> Extent {
        let resident = offset + Self::slots_len(members);
        let stages = if spans_processes { members * 2 * STAGING_HALF_BYTES } else { 0 };
        Extent { byte_len: resident.next_multiple_of(rustix::param::page_size()) + stages, resident }
    }

    fn slots_len(members: usize) -> usize {
        size_of::<Header>() + members * size_of::<Slot>()
    }

    /// The segment at an offset of memory that is zeroed there, or that ranks share already.
    pub(crate) fn new(
        domain: Arc<AbortDomain>,
        id: u64,
        members: Box<[Rank]>,
        memory: Arc<SharedMemory>,
        offset: usize,
        spans_processes: bool,
    ) -> Self {
        let staging_halves = members.iter().flat_map(|_| [Tracked::default(), Tracked::default()]).collect();
        let has_staging = members.iter().map(|_| AtomicBool::new(false)).collect();
        Segment { domain, id, members, memory, offset, spans_processes, staging_halves, has_staging }
    }

    /// The first segment of a new domain, whose ranks are threads of this process.
    pub(crate) fn in_process(world_size: u32) -> Result<Self> {
        let offset = AbortDomain::byte_len(world_size);
        let extent = Self::extent(offset, world_size as usize, false);
        let memory = Arc::new(SharedMemory::of_process(extent.byte_len)?);
        let domain = Arc::new(AbortDomain::new(Arc::clone(&memory), world_size, 0..world_size));
        Ok(Self::new(domain, 0, (0..world_size).map(Rank).collect(), memory, offset, false))
    }

    fn header(&self) -> &Header {
        &self.memory.slice(self.offset, 1)[0]
    }

    fn slots(&self) -> &[Slot] {
        self.memory.slice(self.offset + size_of::<Header>(), self.members.len())
    }

    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The members' numbers in this communicator.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = GroupRank> + use<> {
        (0..self.members.len() as u32).map(GroupRank)
    }

    /// A member's number in the communicator that the domain began with.
    pub(crate) fn member(&self, rank: GroupRank) -> Rank {
        self.members[rank.index()]
    }

    pub(crate) fn slot(&self, rank: GroupRank) -> &Slot {
        &self.slots()[rank.index()]
    }

    fn half(rank: GroupRank, round: u64) -> usize {
        2 * rank.index() + (round % 2) as usize
    }

    /// Where a half is in the segment's memory. The stages begin with a page.
    fn half_offset(&self, half: usize) -> usize {
        let slots_end = self.offset + Self::slots_len(self.members.len());
        slots_end.next_multiple_of(rustix::param::page_size()) + half * STAGING_HALF_BYTES
    }

    fn half_address(&self, half: usize) -> *mut u8 {
        self.memory.bytes(self.half_offset(half), STAGING_HALF_BYTES)
    }

    /// Allocates a rank's own stage, the first time.
    pub(crate) fn allocate_staging(&self, rank: GroupRank, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        // Only the rank's own calls come here, one after the other.
        let has_staging = &self.has_staging[rank.index()];
        if !has_staging.load(Ordering::Relaxed) {
            self.memory.populate(self.half_offset(Self::half(rank, 0)), 2 * STAGING_HALF_BYTES, keep_going)?;
            has_staging.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The half of its own stage that a rank writes in a round.
    pub(crate) fn write_staging(&self, rank: GroupRank, round: u64, write: impl FnOnce(*mut u8)) {
        let half = Self::half(rank, round);
        self.staging_halves[half].write(|| write(self.half_address(half)));
    }

    /// The half of a peer's stage that a rank reads in a round.
    pub(crate) fn read_staging<T>(&self, rank: GroupRank, round: u64, read: impl FnOnce(*const u8) -> T) -> T {
        let half = Self::half(rank, round);
        self.staging_halves[half].read(|| read(self.half_address(half)))
    }

    /// Says what a rank calls.
    pub(crate) fn post_header(&self, rank: GroupRank, sequence: u64, signature: [u64; 2], body: CallBody<'_>) {
        let header = self.slot(rank).header_for(sequence);
        let store = |to: &[AtomicU64], words: &mut dyn Iterator<Item = u64>| {
            to.iter().zip(words).for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        };
        store(&header.signature, &mut signature.into_iter());
        match body {
            CallBody::Payload(bytes) => store(&header.body, &mut bytes.chunks(8).map(word_of)),
            CallBody::Locations { input, output } => {
                store(&header.body, &mut input.to_words().into_iter().chain(output.to_words()));
            }
        }
        header.sequence.store(sequence, Ordering::Release);
        self.wake();
    }

    pub(crate) fn raise_round(&self, rank: GroupRank, round: u64) {
        self.slot(rank).round.store(round, Ordering::Release);
        self.wake();
    }

    /// Says how many collectives a rank has finished.
    pub(crate) fn set_done(&self, rank: GroupRank, sequence: u64) {
        self.slot(rank).done.store(sequence, Ordering::Release);
        self.wake();
    }

    fn wake(&self) {
        self.domain.wake(self.members.iter().copied());
    }

    /// Says that a rank has left.
    pub(crate) fn leave(&self, rank: GroupRank) {
        self.slot(rank).left.store(1, Ordering::Release);
        self.header().any_left.store(1, Ordering::Release);
        self.wake();
    }

    /// Whether a rank has left or died.
    pub(crate) fn is_gone(&self, rank: GroupRank) -> bool {
        self.slot(rank).has_left() || self.domain.is_dead(self.member(rank))
    }

    /// Whether a rank has died before it left.
    pub(crate) fn has_died(&self, rank: GroupRank) -> bool {
        // In this order: a process that drops its handles first leaves, then ends its connection.
        self.domain.is_dead(self.member(rank)) && !self.slot(rank).has_left()
    }

    /// How many collectives a rank has finished. A rank that has departed reads no more.
    pub(crate) fn done(&self, rank: GroupRank) -> u64 {
        if self.is_gone(rank) { u64::MAX } else { self.slot(rank).done.load(Ordering::Acquire) }
    }

    /// Whether a rank has come so far; what it wrote before is then visible.
    pub(crate) fn has_reached(&self, rank: GroupRank, milestone: Milestone) -> bool {
        match milestone {
            Milestone::Posted(sequence) => self.slot(rank).call_header(sequence).is_some(),
            Milestone::Round(round) => self.slot(rank).round.load(Ordering::Acquire) >= round,
            Milestone::Done(sequence) => self.done(rank) >= sequence,
        }
    }

    /// The members that have departed without having come so far.
    pub(crate) fn lost_before(&self, milestone: Milestone) -> impl Iterator<Item = GroupRank> {
        self.ranks().filter(move |rank| is_lost(|| self.is_gone(*rank), || self.has_reached(*rank, milestone)))
    }

    /// Whether a member has departed without having come so far.
    pub(crate) fn has_lost(&self, milestone: Milestone) -> bool {
        let any_departed = self.header().any_left.load(Ordering::Acquire) != 0 || self.domain.has_dead();
        any_departed && self.lost_before(milestone).next().is_some()
    }

    /// Runs `access`, which touches peers' buffers, inside an access window; not at all once an abort has begun.
    pub(crate) fn window(&self, rank: GroupRank, access: impl FnOnce()) -> Result<()> {
        struct Close<'a>(&'a AtomicU32);
        impl Drop for Close<'_> {
            fn drop(&mut self) {
                self.0.store(0, Ordering::Release);
            }
        }
        let window = &self.slot(rank).window;
        window.store(1, Ordering::Relaxed);
        let close = Close(window);
        // Either this rank sees the abort here, or the one that aborts sees the window in `wait_for_accesses`.
        fence(Ordering::SeqCst);
        if self.domain.is_aborted() {
            drop(close);
            return self.domain.check();
        }
        access();
        Ok(())
    }

    /// Waits until no peer of this process is inside a window. After an abort none is opened again, so that this ends within
    /// the time of one short copy. (Other processes have mappings of their own, and see no memory but what is shared.)
    pub(crate) fn wait_for_accesses(&self, rank: GroupRank) {
        fence(Ordering::SeqCst);
        for peer in self.ranks().filter(|peer| *peer != rank && self.domain.is_local(self.member(*peer))) {
            while self.slot(peer).window.load(Ordering::Acquire) != 0 {
                yield_now();
            }
        }
    }
}

/// Whether a rank has departed without having come. A rank comes before it departs, so its
/// departure is looked at first: one that does both between the two looks is not lost.
fn is_lost(is_gone: impl FnOnce() -> bool, has_come: impl FnOnce() -> bool) -> bool {
    is_gone() && !has_come()
}

fn word_of(bytes: &[u8]) -> u64 {
    let mut word = [0; 8];
    word[..bytes.len()].copy_from_slice(bytes);
    u64::from_le_bytes(word)
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
        segment.domain.abort(ErrorKind::Aborted, Rank(0), "the test");
        let (returned, failed) = channel();
        let failing = std::thread::spawn({
            let segment = Arc::clone(&segment);
            move || {
                segment.wait_for_accesses(GroupRank(0));
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

    /// Whenever a rank comes and departs, before, between or after the two looks, it is not lost.
    #[test]
    fn a_rank_that_comes_and_departs_meanwhile_is_not_lost() {
        for moment in 0..4 {
            let looks = std::cell::Cell::new(0);
            let has_happened = || looks.replace(looks.get() + 1) >= moment;
            assert!(!is_lost(has_happened, has_happened), "{moment}");
        }
        assert!(is_lost(|| true, || false));
    }

    /// A process may end before a group of its ranks is made: the group's memory came late, or the
    /// group is made for the ranks that are left.
    #[test]
    fn a_death_counts_in_a_segment_that_is_made_later() {
        let root = segment();
        root.domain.mark_dead(Rank(1));
        let memory = Arc::new(SharedMemory::of_process(Segment::extent(0, 2, false).byte_len).expect("memory"));
        let later = Segment::new(Arc::clone(&root.domain), 1, [Rank(1), Rank(0)].into(), memory, 0, false);
        assert!(later.has_lost(Milestone::Posted(1)) && later.has_died(GroupRank(0)));
        assert!(!later.is_gone(GroupRank(1)));
        assert!(later.lost_before(Milestone::Round(1)).eq([GroupRank(0)]));
        assert_eq!(later.done(GroupRank(0)), u64::MAX);
    }

    #[test]
    fn a_rank_that_left_before_its_process_ended_has_left() {
        let segment = segment();
        segment.leave(GroupRank(1));
        segment.domain.mark_dead(Rank(1));
        assert!(segment.is_gone(GroupRank(1)) && !segment.has_died(GroupRank(1)));
    }

    /// The figures of ARCHITECTURE.md's table.
    #[test]
    fn communicators_and_groups_take_what_is_written_down() {
        for members in [1, 3, 256] {
            let group = Segment::extent(0, members, true);
            assert_eq!(group.resident, 128 + 640 * members);
            let stages = group.byte_len - group.resident.next_multiple_of(rustix::param::page_size());
            assert_eq!(stages, members * (512 << 10));
            let world = Segment::extent(AbortDomain::byte_len(members as u32), members, true);
            assert_eq!(world.resident, 2304 + 768 * members);
        }
    }

    #[test]
    fn a_place_is_read_back() {
        for place in [
            BufferLocation::Address(0),
            BufferLocation::Address(4096),
            BufferLocation::Block { id: 7, offset: 64 },
            BufferLocation::Unreachable,
        ] {
            assert_eq!(BufferLocation::from_words(place.to_words()), place);
        }
    }
}
