//! The memory that the ranks of one communicator share: a slot for each rank, and between processes
//! staging memory for each rank; logs and eager memory for each rank; last a ring for the
//! messages of each rank to each.

use std::ops::Range;
use std::sync::Arc;

use super::abort_domain::AbortDomain;
use super::call_log::logs_len;
use super::prefetch::prefetch_to_write;
use super::ring::{Ring, ring_len};
use super::slot::{CallBody, HEADER_RING_LEN, Slot};
use crate::comm::host::memory::{Shareable, Shared, SharedMemory, SharedMemorySize};
use crate::comm::signature::Signature;
use crate::error::Result;
use crate::rank::{GroupRank, Rank};
use crate::sync::{Published, Tracked};

/// The bytes of a stage: what one round uses of a rank's staging memory.
pub(crate) const STAGE_BYTES: usize = if cfg!(loom) { 64 } else { 64 << 10 };

/// The longest input that a rank gives in its eager memory, in bytes. There is room for one with
/// each header.
pub(crate) const EAGER_BYTES: usize = if cfg!(loom) { 48 } else { 4 << 10 };

/// The bytes of one rank's eager memory.
const EAGER_LEN: usize = HEADER_RING_LEN as usize * EAGER_BYTES;

/// How many stages each of `members` ranks has: peers may read all but one of them while the rank
/// writes that one (invariant 8). With fewer than four, ranks that share an all_reduce would wait
/// for each other forever. Together they are larger than the cache of a processor, if the
/// communicator is not: a line that the reader's cache still has is slower to write than memory.
pub(crate) fn stage_count(members: usize) -> usize {
    const MOST_BYTES: usize = 64 << 20;
    if cfg!(loom) { 4 } else { (MOST_BYTES / STAGE_BYTES / members).clamp(4, 32) }
}

/// One communicator: its members, their slots, and if it spans processes their staging memory.
pub(crate) struct Segment {
    pub(crate) domain: Arc<AbortDomain>,
    /// The same in every process, and different for every segment of a domain.
    pub(crate) id: u64,
    /// The members by their ranks in the first communicator of the domain.
    members: Box<[Rank]>,
    memory: Arc<SharedMemory>,
    header: Shared<SegmentHeader>,
    slots: Shared<[Slot]>,
    /// Where the segment begins in its memory.
    offset: usize,
    /// Whether members live in several processes, so that they cannot reach each other's buffers.
    pub(crate) spans_processes: bool,
    /// The stages of all ranks.
    stages: Box<[Tracked]>,
    /// The places of all ranks' eager memory.
    eager: Box<[Tracked]>,
}

/// What a segment begins with. A [`Slot`] for each member follows.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct SegmentHeader {
    /// 1 when a member has left.
    any_left: Published,
}

// SAFETY: invariant 1: the field is an atomic, and zero is a value of it.
unsafe impl Shareable for SegmentHeader {}

/// How far a rank has to have come.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Milestone {
    /// It has posted its header of this collective.
    Posted(u64),
    /// It has come to this round.
    Round(u64),
    /// It has taken all that it takes in this round.
    Taken(u64),
    /// It has finished this collective.
    Done(u64),
}

impl Segment {
    /// How much memory a segment of `members` ranks needs that begins at an offset. All but the
    /// slots is allocated later: by [`allocate_staging`](Self::allocate_staging),
    /// [`allocate_logs`](Self::allocate_logs), [`allocate_eager`](Self::allocate_eager) and
    /// [`allocate_ring`](Self::allocate_ring).
    pub(crate) fn memory_size(offset: usize, members: usize, spans_processes: bool) -> SharedMemorySize {
        let resident = offset + Self::slots_len(members);
        let staging = if spans_processes { members * Self::staging_len(members) } else { 0 };
        let slots = resident.next_multiple_of(rustix::param::page_size());
        let byte_len = slots + staging + members * (logs_len(members) + EAGER_LEN) + Self::rings_len(members);
        SharedMemorySize { byte_len, resident }
    }

    fn rings_len(members: usize) -> usize {
        members * members * ring_len(members)
    }

    fn slots_len(members: usize) -> usize {
        size_of::<SegmentHeader>() + members * size_of::<Slot>()
    }

    /// The bytes of one rank's staging memory.
    fn staging_len(members: usize) -> usize {
        stage_count(members) * STAGE_BYTES
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
        let header = Shared::new(&memory, offset);
        let slots = Shared::slice(&memory, offset + size_of::<SegmentHeader>(), members.len());
        let stages = (0..members.len() * stage_count(members.len())).map(|_| Tracked::default()).collect();
        let eager = (0..members.len() * HEADER_RING_LEN as usize).map(|_| Tracked::default()).collect();
        Segment { domain, id, members, memory, header, slots, offset, spans_processes, stages, eager }
    }

    /// How much memory the first segment of a domain needs, with the domain.
    pub(crate) fn root_size(world_size: u32, spans_processes: bool) -> SharedMemorySize {
        Self::memory_size(AbortDomain::byte_len(world_size), world_size as usize, spans_processes)
    }

    /// The first segment of a new domain, in memory of [`root_size`](Self::root_size).
    /// `names` are for errors.
    pub(crate) fn root(
        memory: SharedMemory,
        world_size: u32,
        local_ranks: Range<u32>,
        spans_processes: bool,
        names: Option<Box<[Rank]>>,
    ) -> Self {
        let memory = Arc::new(memory);
        let domain = Arc::new(AbortDomain::new(&memory, world_size, local_ranks).with_names(names));
        let members = (0..world_size).map(Rank).collect();
        Self::new(domain, 0, members, memory, AbortDomain::byte_len(world_size), spans_processes)
    }

    /// The first segment of a new domain, whose ranks are threads of this process.
    pub(crate) fn in_process(world_size: u32, names: Option<Box<[Rank]>>) -> Result<Self> {
        let memory = SharedMemory::for_threads(Self::root_size(world_size, false).byte_len)?;
        Ok(Self::root(memory, world_size, 0..world_size, false, names))
    }

    pub(crate) fn members(&self) -> &[Rank] {
        &self.members
    }

    pub(crate) fn len(&self) -> usize {
        self.members.len()
    }

    /// The members' ranks in this communicator.
    pub(crate) fn ranks(&self) -> impl Iterator<Item = GroupRank> + use<> {
        (0..self.members.len() as u32).map(GroupRank)
    }

    /// A member's rank in the first communicator of the domain.
    pub(crate) fn member(&self, rank: GroupRank) -> Rank {
        self.members[rank.index()]
    }

    /// A member as errors name it.
    pub(crate) fn name(&self, rank: GroupRank) -> Rank {
        self.domain.name(self.member(rank))
    }

    pub(crate) fn slot(&self, rank: GroupRank) -> &Slot {
        &self.slots[rank.index()]
    }

    /// Where the staging memory of a rank begins. The first one begins with a page.
    fn staging_offset(&self, rank: GroupRank) -> usize {
        let slots_end = self.offset + Self::slots_len(self.len());
        slots_end.next_multiple_of(rustix::param::page_size()) + rank.index() * Self::staging_len(self.len())
    }

    /// The stage that a rank uses in a round.
    fn stage(&self, rank: GroupRank, round: u64) -> (&Tracked, *mut u8) {
        let count = stage_count(self.len());
        let stage = (round % count as u64) as usize;
        let offset = self.staging_offset(rank) + stage * STAGE_BYTES;
        (&self.stages[rank.index() * count + stage], self.memory.bytes(offset, STAGE_BYTES))
    }

    /// Allocates the staging memory of `rank`, this rank. It does so once.
    pub(crate) fn allocate_staging(&self, rank: GroupRank, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        self.populate(self.staging_offset(rank), Self::staging_len(self.len()), keep_going)
    }

    /// Allocates the eager memory of `rank`, this rank. It does so once.
    pub(crate) fn allocate_eager(&self, rank: GroupRank, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        self.populate(self.eager_offset(rank), EAGER_LEN, keep_going)
    }

    fn populate(&self, offset: usize, byte_len: usize, keep_going: &dyn Fn() -> Result<()>) -> Result<()> {
        match self.spans_processes {
            true => self.memory.populate(offset, byte_len, keep_going),
            // The kernel allocates private memory when it is touched.
            false => Ok(()),
        }
    }

    /// Where the logs of a rank begin: behind the stages, and before the eager memory.
    pub(super) fn logs_place(&self, rank: GroupRank) -> (&Arc<SharedMemory>, usize) {
        let behind = (self.len() - rank.index()) * logs_len(self.len());
        (&self.memory, self.eager_offset(GroupRank(0)) - behind)
    }

    /// Allocates the logs of `rank`, this rank.
    pub(super) fn allocate_logs(&self, rank: GroupRank) -> Result<()> {
        self.populate(self.logs_place(rank).1, logs_len(self.len()), &|| self.domain.check())
    }

    /// Where the eager memory of a rank begins: behind the logs, and before the rings.
    fn eager_offset(&self, rank: GroupRank) -> usize {
        let end = self.memory.len() - Self::rings_len(self.len());
        end - (self.len() - rank.index()) * EAGER_LEN
    }

    /// The place for the input of a collective in the eager memory of a rank.
    fn eager_place(&self, rank: GroupRank, sequence: u64) -> (&Tracked, *mut u8) {
        let place = (sequence % HEADER_RING_LEN) as usize;
        let offset = self.eager_offset(rank) + place * EAGER_BYTES;
        let tracked = &self.eager[rank.index() * HEADER_RING_LEN as usize + place];
        (tracked, self.memory.bytes(offset, EAGER_BYTES))
    }

    /// Gives `write` the eager memory of `rank`, this rank, for a collective whose header it has
    /// room for and has not posted (invariant 4).
    pub(crate) fn write_eager(&self, rank: GroupRank, sequence: u64, write: impl FnOnce(*mut u8)) {
        let (tracked, address) = self.eager_place(rank, sequence);
        tracked.write(|| write(address));
    }

    /// Asks for the cache lines of `byte_len` bytes of the eager memory of `rank`, this rank, for a
    /// collective that it will make.
    pub(crate) fn prefetch_eager(&self, rank: GroupRank, sequence: u64, byte_len: usize) {
        prefetch_to_write(self.eager_place(rank, sequence).1, byte_len);
    }

    /// The eager memory of `rank` for a collective whose header it has posted. It does not change
    /// before this rank has finished that collective (invariant 4).
    pub(crate) fn read_eager(&self, rank: GroupRank, sequence: u64) -> *const u8 {
        let (tracked, address) = self.eager_place(rank, sequence);
        tracked.read(|| address)
    }

    /// Gives `write` the stage that `rank`, this rank, writes in a round (invariant 8).
    pub(crate) fn write_stage(&self, rank: GroupRank, round: u64, write: impl FnOnce(*mut u8)) {
        let (tracked, address) = self.stage(rank, round);
        tracked.write(|| write(address));
    }

    /// The stage of `rank` that its peers read in a round (invariant 7).
    pub(crate) fn read_stage(&self, rank: GroupRank, round: u64) -> *const u8 {
        let (tracked, address) = self.stage(rank, round);
        tracked.read(|| address)
    }

    /// Where the ring of one rank to another begins: the rings are the end of the memory.
    fn ring_offset(&self, from: GroupRank, to: GroupRank) -> usize {
        let number = to.index() * self.len() + from.index();
        self.memory.len() - Self::rings_len(self.len()) + number * ring_len(self.len())
    }

    /// Allocates the ring of `from`, this rank, to another one.
    pub(crate) fn allocate_ring(&self, from: GroupRank, to: GroupRank) -> Result<()> {
        self.populate(self.ring_offset(from, to), ring_len(self.len()), &|| self.domain.check())
    }

    /// The ring of one rank to another.
    pub(crate) fn ring(&self, from: GroupRank, to: GroupRank) -> Ring<'_> {
        Ring::new(&self.memory, self.ring_offset(from, to), ring_len(self.len()))
    }

    /// Posts the header of this rank's call, and wakes its peers.
    #[inline]
    pub(crate) fn post_header(&self, rank: GroupRank, sequence: u64, signature: Signature, body: CallBody<'_>) {
        self.slot(rank).post_header(sequence, signature, body);
        self.wake();
    }

    /// Publishes a number of this rank's slot, and wakes its peers.
    pub(crate) fn publish(&self, rank: GroupRank, number: impl FnOnce(&Slot) -> &Published, value: u64) {
        number(self.slot(rank)).store(value);
        self.wake();
    }

    #[inline]
    fn wake(&self) {
        self.domain.wake(self.members.iter().copied());
    }

    /// Publishes that this rank has left, and wakes its peers.
    pub(crate) fn leave(&self, rank: GroupRank) {
        self.slot(rank).left.store(1);
        self.header.any_left.store(1);
        self.wake();
    }

    /// Whether a rank has left or died.
    pub(crate) fn is_gone(&self, rank: GroupRank) -> bool {
        self.slot(rank).left.load() != 0 || self.domain.is_dead(self.member(rank))
    }

    /// Whether a rank has died before it left (invariant 19).
    pub(crate) fn has_died(&self, rank: GroupRank) -> bool {
        self.domain.is_dead(self.member(rank)) && self.slot(rank).left.load() == 0
    }

    /// What errors say of peers that are gone.
    pub(crate) fn how_gone(&self, peers: &[GroupRank]) -> &'static str {
        if peers.iter().any(|peer| self.has_died(*peer)) { "died" } else { "left the communicator" }
    }

    /// How many collectives a rank has finished. A rank that is gone reads no more headers.
    pub(crate) fn done(&self, rank: GroupRank) -> u64 {
        if self.is_gone(rank) { u64::MAX } else { self.slot(rank).done.load() }
    }

    /// Whether a rank has come so far. If it has, what it wrote before is visible.
    #[inline]
    pub(crate) fn has_reached(&self, rank: GroupRank, milestone: Milestone) -> bool {
        match milestone {
            Milestone::Posted(sequence) => self.slot(rank).call_header(sequence).is_some(),
            Milestone::Round(round) => self.slot(rank).round.load() >= round,
            Milestone::Taken(round) => self.slot(rank).taken.load() >= round,
            Milestone::Done(sequence) => self.done(rank) >= sequence,
        }
    }

    /// The members that left or died without having come so far.
    pub(crate) fn lost_before(&self, milestone: Milestone) -> impl Iterator<Item = GroupRank> {
        self.ranks().filter(move |rank| is_lost(|| self.is_gone(*rank), || self.has_reached(*rank, milestone)))
    }

    /// Whether a member has left, or a rank of the domain has died.
    pub(crate) fn has_gone(&self) -> bool {
        self.header.any_left.load() != 0 || self.domain.has_dead()
    }

    /// Whether a member has left or died without having come so far.
    #[inline]
    pub(crate) fn has_lost(&self, milestone: Milestone) -> bool {
        self.has_gone() && self.lost_before(milestone).next().is_some()
    }
}

/// Whether a rank is gone without having come (invariant 18).
pub(crate) fn is_lost(is_gone: impl FnOnce() -> bool, has_come: impl FnOnce() -> bool) -> bool {
    is_gone() && !has_come()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment() -> Arc<Segment> {
        Arc::new(Segment::in_process(2, None).expect("memory"))
    }

    /// A rank that comes and leaves before, between or after the two looks is not lost.
    #[test]
    fn a_rank_that_comes_and_leaves_meanwhile_is_not_lost() {
        for moment in 0..4 {
            let looks = std::cell::Cell::new(0);
            let has_happened = || looks.replace(looks.get() + 1) >= moment;
            assert!(!is_lost(has_happened, has_happened), "{moment}");
        }
        assert!(is_lost(|| true, || false));
    }

    /// A process may end before a group with its rank is made.
    #[test]
    fn a_death_counts_in_a_segment_that_is_made_later() {
        let root = segment();
        root.domain.mark_dead(Rank(1));
        let memory = Arc::new(SharedMemory::for_threads(Segment::memory_size(0, 2, false).byte_len).expect("memory"));
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

    /// The figures of the table "Memory and descriptors on the host backend" in
    /// `docs/src/settings.md`.
    #[test]
    fn communicators_and_groups_take_what_is_written_down() {
        for (members, staging) in [(1, 2 << 20), (3, 2 << 20), (32, 2 << 20), (100, 640 << 10), (256, 256 << 10)] {
            let group = Segment::memory_size(0, members, true);
            assert_eq!(group.resident, 128 + 2304 * members);
            let rings = members * members * ring_len(members);
            let (eager, logs) = (members * EAGER_LEN, members * logs_len(members));
            if members <= 32 {
                assert_eq!(logs_len(members), (266_304 + 8320 * members).next_multiple_of(rustix::param::page_size()));
            }
            let stages =
                group.byte_len - rings - eager - logs - group.resident.next_multiple_of(rustix::param::page_size());
            assert_eq!(stages, members * staging);
            let world = Segment::memory_size(AbortDomain::byte_len(members as u32), members, true);
            assert_eq!(world.resident, 2304 + 2432 * members);
        }
    }
}
