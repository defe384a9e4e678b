//! Symmetric memory between processes: blocks that every rank of a communicator has mapped, with a
//! part for each rank.

use std::ptr::NonNull;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock, PoisonError};

use super::memory::{Shareable, SharedMemory};
use super::protocol::abort_domain::AbortDomain;
use super::protocol::segment::Segment;
use super::protocol::slot::BufferLocation;
use crate::error::{Result, bail, error};
use crate::memory::Lease;
use crate::rank::{GroupRank, Rank};
use crate::sync::{Arc as ModeledArc, AtomicU32, Mutex, MutexGuard, Ordering};

/// The blocks that one rank has, of a communicator and of all that it was split from or that were
/// split from it.
#[derive(Default)]
pub(crate) struct Arena {
    blocks: Mutex<Vec<Block>>,
}

/// A block, which stays mapped as long as any of these (invariant 13).
pub(super) type Block = ModeledArc<SymmetricBlock>;

/// One block, as one rank has it mapped: a page with the header, then the parts.
pub(crate) struct SymmetricBlock {
    id: u64,
    /// The communicator that allocated it.
    segment: u64,
    members: Box<[Rank]>,
    /// The length of each part, in whole pages.
    part_bytes: usize,
    own: GroupRank,
    memory: Arc<SharedMemory>,
    domain: Arc<AbortDomain>,
    /// Set when private memory has replaced this rank's part (invariant 14).
    detached: OnceLock<()>,
    /// Whether safe code may have a slice of this rank's part while a collective writes it
    /// (invariant 14).
    is_sliced: AtomicBool,
}

#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct BlockHeader {
    /// How many ranks have freed their parts (invariant 13).
    freed: AtomicU32,
}

// SAFETY: invariant 1: the field is an atomic, and zero is a value of it.
unsafe impl Shareable for BlockHeader {}

impl Arena {
    /// The length of a block of `members` parts, each with at least `part_bytes` bytes.
    pub(crate) fn block_len(part_bytes: usize, members: usize) -> Result<usize> {
        let len = part_bytes.checked_next_multiple_of(page()).and_then(|part| part.checked_mul(members));
        match len.and_then(|len| len.checked_add(page())).filter(|len| isize::try_from(*len).is_ok()) {
            Some(len) => Ok(len),
            None => bail!(InvalidArgument, "{members} times {part_bytes} bytes is more than memory can be"),
        }
    }

    /// Adds a new block, and returns this rank's part of it.
    pub(crate) fn add_block(
        self: &Arc<Self>,
        segment: &Segment,
        own: GroupRank,
        id: u64,
        part_bytes: usize,
        memory: Arc<SharedMemory>,
    ) -> SymmetricPart {
        let block = Block::new(SymmetricBlock {
            id,
            segment: segment.id,
            members: segment.members().into(),
            part_bytes: part_bytes.next_multiple_of(page()),
            own,
            memory,
            domain: Arc::clone(&segment.domain),
            detached: OnceLock::new(),
            is_sliced: AtomicBool::new(false),
        });
        let mut blocks = self.blocks();
        blocks.retain(|block| !block.is_free());
        blocks.push(Block::clone(&block));
        drop(blocks);
        SymmetricPart { arena: Arc::clone(self), block }
    }

    /// Where peers find bytes of this rank, to write them if `is_written`. They are in a block that
    /// belongs to one of the communicators in `lineage`, or unreachable.
    pub(crate) fn locate(
        &self,
        address: *const u8,
        byte_len: usize,
        lineage: &[u64],
        is_written: bool,
    ) -> BufferLocation {
        let blocks = self.blocks();
        let reachable = blocks.iter().filter(|block| {
            lineage.contains(&block.segment) && !(is_written && block.is_sliced.load(Ordering::Relaxed))
        });
        let place = reachable.into_iter().find_map(|block| {
            let offset = address.addr().checked_sub(block.part(block.own).addr())?;
            let inside = offset.checked_add(byte_len)? <= block.part_bytes;
            inside.then_some(BufferLocation::Block { id: block.id, offset })
        });
        place.unwrap_or(BufferLocation::Unreachable)
    }

    /// Bytes in a peer's part of a block (invariant 12).
    pub(super) fn bytes_of(&self, peer: Rank, id: u64, offset: usize, byte_len: usize) -> Result<PeerBytes> {
        let blocks = self.blocks();
        let Some(block) = blocks.iter().find(|block| block.id == id) else {
            bail!(System, "rank {peer} names a block of memory that this rank does not have");
        };
        let place = block.members.iter().position(|member| *member == peer);
        let inside = offset.checked_add(byte_len).is_some_and(|end| end <= block.part_bytes);
        match place.filter(|_| inside) {
            Some(place) => {
                let address = block.part(GroupRank(place as u32)).wrapping_add(offset);
                Ok(PeerBytes { address, block: Some(Block::clone(block)) })
            }
            None => Err(error!(System, "rank {peer} names bytes outside its part of a block of memory")),
        }
    }

    fn blocks(&self) -> MutexGuard<'_, Vec<Block>> {
        self.blocks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Bytes of a peer, where this rank reaches them. In symmetric memory it keeps the block mapped
/// (invariant 13); elsewhere the address is valid during an access (invariants 9 and 10).
pub(super) struct PeerBytes {
    pub(super) address: *mut u8,
    pub(super) block: Option<Block>,
}

impl SymmetricBlock {
    fn header(&self) -> &BlockHeader {
        &self.memory.slice(0, 1)[0]
    }

    fn part(&self, rank: GroupRank) -> *mut u8 {
        self.memory.bytes(page() + rank.index() * self.part_bytes, self.part_bytes)
    }

    fn is_free(&self) -> bool {
        self.header().freed.load(Ordering::Acquire) as usize >= self.members.len()
    }
}

/// One rank's part of a block. Dropping it frees its pages. The block is unmapped when all ranks
/// have dropped their parts, and no call of this rank uses it (invariant 13).
pub(crate) struct SymmetricPart {
    arena: Arc<Arena>,
    block: Block,
}

impl Lease for SymmetricPart {
    /// After an abort, and in a forked process, private memory with the same bytes replaces the
    /// part first (invariant 14).
    fn address(&self) -> NonNull<u8> {
        let block = &self.block;
        let part = block.part(block.own);
        if (block.domain.is_aborted() || !block.domain.process.is_current()) && block.part_bytes > 0 {
            block.detached.get_or_init(|| {
                // SAFETY: the part is mapped (invariant 13). In this process only its owner writes
                // it, through an exclusive reference to the buffer, which does not exist now.
                unsafe { SharedMemory::replace_by_copy(part, block.part_bytes) };
            });
        }
        // SAFETY: an address inside a mapping is not null (invariant 13).
        unsafe { NonNull::new_unchecked(part) }
    }

    fn set_sliced(&self, is_sliced: bool) {
        self.block.is_sliced.store(is_sliced, Ordering::Relaxed);
    }
}

impl Drop for SymmetricPart {
    fn drop(&mut self) {
        let block = &self.block;
        if !block.domain.process.is_current() {
            return;
        }
        block.memory.give_back(block.part(block.own), block.part_bytes);
        block.header().freed.fetch_add(1, Ordering::AcqRel);
        self.arena.blocks().retain(|block| !block.is_free());
    }
}

fn page() -> usize {
    rustix::param::page_size()
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::comm::host::memory::SharedMemorySize;
    use crate::comm::host::memory::world_memory::WorldFile;
    use crate::comm::host::protocol::access_guard::Accessor;
    use crate::error::ErrorKind;

    const LEN: usize = 10_000;
    const BLOCK: u64 = 1;

    /// What one process of two has: its mapping of the shared memory, and its part of a block.
    struct View {
        segment: Segment,
        arena: Arc<Arena>,
        part: SymmetricPart,
    }

    impl View {
        fn slice(&self) -> &[u8] {
            // SAFETY: the part is as long, and nothing writes it while the slice is used.
            unsafe { std::slice::from_raw_parts(self.part.address().as_ptr(), LEN) }
        }
    }

    /// The views of two processes. Both are in this one, with mappings of their own.
    fn views() -> [View; 2] {
        let offset = AbortDomain::byte_len(2);
        let sizes = [
            Segment::memory_size(offset, 2, true),
            SharedMemorySize::fully_resident(Arena::block_len(LEN, 2).expect("a length")),
        ];
        let file = WorldFile::create().expect("a file");
        let made = sizes.map(|size| file.allocate(size, 2, &|| Ok(())).expect("memory"));
        let block = made[1].0;
        [0, 1].map(|rank| {
            let open = |i: usize| Arc::new(file.map(made[i].0, sizes[i].byte_len).expect("memory"));
            let memory = open(0);
            let domain = Arc::new(AbortDomain::new(&memory, 2, rank..rank + 1));
            let segment = Segment::new(domain, 0, [Rank(0), Rank(1)].into(), memory, offset, true);
            let arena = Arc::<Arena>::default();
            let part = arena.add_block(&segment, GroupRank(rank), block, LEN, open(1));
            View { segment, arena, part }
        })
    }

    /// A peer is stopped in the middle of a copy. This rank fails, uses its memory for something
    /// else, and then the peer continues.
    #[test]
    fn a_peer_that_goes_on_after_an_abort_writes_the_old_memory_only() {
        let [own, peer] = views();
        // SAFETY: the part is as long, and no peer uses it now.
        let fill = |view: &View, byte| unsafe { view.part.address().write_bytes(byte, LEN) };
        fill(&own, 1);
        let (inside, entered) = channel();
        let (go_on, stopped) = channel::<()>();
        let copying = std::thread::spawn(move || {
            let target = peer.arena.bytes_of(Rank(0), BLOCK, 0, LEN).expect("rank 0's part").address;
            let access = peer.segment.begin_access(GroupRank(1), Accessor::Collective).expect("no abort yet");
            inside.send(()).expect("the test listens");
            stopped.recv().expect("the test says when");
            // SAFETY: the part is as long, and nothing reads this mapping meanwhile.
            unsafe { target.write_bytes(9, LEN) };
            drop(access);
            (target.addr(), peer)
        });
        entered.recv_timeout(Duration::from_secs(10)).expect("the peer is inside");
        own.segment.domain.abort(ErrorKind::Aborted, Rank(0), "the test");
        own.segment.wait_for_accesses(GroupRank(0));
        assert!(own.slice().iter().all(|byte| *byte == 1), "the bytes are kept");
        fill(&own, 7);
        go_on.send(()).expect("the peer listens");
        let (target, peer) = copying.join().expect("no panic");
        assert_ne!(target, own.part.address().as_ptr().addr(), "the views are mappings of their own");
        assert!(own.slice().iter().all(|byte| *byte == 7), "the peer wrote memory that is this rank's own again");
        drop(peer);
    }

    /// Both ranks drop their parts, while another thread of a rank is inside an access.
    #[test]
    fn a_block_is_mapped_as_long_as_a_call_uses_it() {
        let [own, peer] = views();
        let bytes = own.arena.bytes_of(Rank(1), BLOCK, 0, LEN).expect("rank 1's part");
        let block = bytes.block.as_ref().map(Block::downgrade).expect("symmetric memory");
        drop(peer.part);
        drop(own.part);
        assert_eq!(own.arena.blocks().len(), 0, "all parts are free");
        assert!(block.strong_count() > 0, "the block was unmapped during an access");
        // SAFETY: the part is mapped and as long; nothing else uses it.
        unsafe { bytes.address.write_bytes(9, LEN) };
        drop(bytes);
        assert_eq!(block.strong_count(), 0, "the block stays mapped after the last access");
    }

    #[test]
    fn what_a_peer_says_of_a_block_reaches_only_its_part() {
        let [own, _peer] = views();
        let reach = |rank, id, offset, len| own.arena.bytes_of(Rank(rank), id, offset, len).map(|bytes| bytes.address);
        let part = LEN.next_multiple_of(page());
        let [first, second] = [0, 1].map(|rank| reach(rank, BLOCK, 0, part).expect("a part").addr());
        assert_eq!(second - first, part);
        for (rank, id, offset, len) in [
            (1, BLOCK + 1, 0, 1),
            (1, 0, 0, 1),
            (1, u64::MAX, 0, 1),
            (2, BLOCK, 0, 1),
            (1, BLOCK, 0, part + 1),
            (1, BLOCK, part, 1),
            (1, BLOCK, usize::MAX, 1),
            (1, BLOCK, 1, usize::MAX),
        ] {
            assert_eq!(reach(rank, id, offset, len).expect_err("outside").kind(), ErrorKind::System);
        }
    }
}
