//! The memory of a world: where it comes from, and how a rank finds what another one has allocated.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, Weak};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags};

use super::{Shareable, Shared, SharedMemory, SharedMemorySize, in_pieces};
use crate::error::{Result, bail, error};
use crate::sync::{AtomicU32, AtomicU64, Ordering};
use crate::util::descriptors::resource_limits;
use crate::util::fork::{ProcessGuard, fork_count};
use crate::util::{caused_by, free_memory, lock};

/// The length of the file, if this process may make one as long. It takes memory only for the pages
/// that are allocated. A program that allocated 100 GB a second would use up as many numbers in a
/// year.
const FILE_BYTES: u64 = 1 << 62;

/// The length of the table, and of the shortest range. Ranges begin at multiples of it.
const SHORTEST_RANGE: u64 = 2 << 20;

/// How many ranges there can be at a time.
const MOST_RANGES: usize = 1 << RANGE_BITS;

/// An id's lower bits are the number of a range; its upper bits say how often it was used before.
const RANGE_BITS: u32 = 16;

/// The id of the world's first memory.
pub(crate) const FIRST: u64 = 0;

/// The seals that the file must have, so that its length never changes and no access faults
/// (invariant 1). A seal against writing would forbid our own mappings, and to free pages.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);

/// Gives memory to the communicators of a world. One rank allocates it, and tells the other ranks
/// its id, by which they find it.
pub(crate) enum WorldMemory {
    /// Every range is ordinary memory of this process, which has all ranks.
    OneProcess(Mutex<Ordinary>),
    /// Every range is one of a file that all processes have open.
    Processes(Arc<WorldFile>),
}

/// The memory that a process with all ranks has allocated and that some rank has.
#[derive(Default)]
pub(crate) struct Ordinary {
    latest_id: u64,
    by_id: HashMap<u64, Weak<SharedMemory>>,
}

impl WorldMemory {
    pub(crate) fn of_one_process() -> Self {
        WorldMemory::OneProcess(Mutex::default())
    }

    /// Allocates memory for so many ranks, each of which drops it once, and returns its id with it.
    /// `keep_going` is called before each step of the allocation; its error ends it. No other
    /// memory of the world has the same id, also later.
    pub(crate) fn allocate(
        &self,
        size: SharedMemorySize,
        users: usize,
        keep_going: &dyn Fn() -> Result<()>,
    ) -> Result<(u64, Arc<SharedMemory>)> {
        match self {
            WorldMemory::OneProcess(ordinary) => {
                let memory = Arc::new(SharedMemory::for_threads(size.byte_len)?);
                let ordinary = &mut *lock(ordinary);
                ordinary.latest_id += 1;
                ordinary.by_id.retain(|_, memory| memory.strong_count() > 0);
                ordinary.by_id.insert(ordinary.latest_id, Arc::downgrade(&memory));
                Ok((ordinary.latest_id, memory))
            }
            WorldMemory::Processes(file) => {
                let (id, memory) = file.allocate(size, users, keep_going)?;
                Ok((id, Arc::new(memory)))
            }
        }
    }

    /// The memory that another rank has allocated and still has.
    pub(crate) fn find(&self, id: u64, byte_len: usize) -> Result<Arc<SharedMemory>> {
        match self {
            WorldMemory::OneProcess(ordinary) => {
                let found = lock(ordinary).by_id.get(&id).and_then(Weak::upgrade);
                found.ok_or_else(|| error!(System, "the rank that allocated the memory has dropped it"))
            }
            WorldMemory::Processes(file) => file.map(id, byte_len).map(Arc::new),
        }
    }
}

/// A sparse file without a name, sealed so that its length never changes. It begins with a table of
/// its ranges.
pub(crate) struct WorldFile {
    file: OwnedFd,
    byte_len: u64,
    header: Shared<TableHeader>,
    table: Shared<[FileRange]>,
    process: ProcessGuard,
}

/// What the table begins with. The [`FileRange`]s follow.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct TableHeader {
    /// How many bytes of the file have been in ranges.
    used: AtomicU64,
}

/// A part of the file. A rank that has made `users` more than 0 writes the other values.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct FileRange {
    /// How many ranks will drop the range, and one more until its pages are free; 0 if the range is
    /// free.
    users: AtomicU32,
    /// How often the range was used before.
    uses: AtomicU32,
    /// Where the range begins; 0 before its first use.
    start: AtomicU64,
    /// A power of two, so that few lengths occur.
    byte_len: AtomicU64,
}

// SAFETY: invariant 1: the field is an atomic, and zero is a value of it.
unsafe impl Shareable for TableHeader {}
// SAFETY: invariant 1: every field is an atomic, and zeros are a value of it.
unsafe impl Shareable for FileRange {}

impl WorldFile {
    pub(crate) fn create() -> Result<Arc<Self>> {
        let refused = |call| move |e| caused_by(error!(System, "no file for shared memory"), call, e);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("distcollective", flags).map_err(refused("memfd_create"))?;
        // A signal ends a process that makes a longer file than it may.
        let [limit, _] = resource_limits(libc::RLIMIT_FSIZE).unwrap_or_default();
        let most = limit.map_or(FILE_BYTES, |limit| limit.min(FILE_BYTES));
        rustix::fs::ftruncate(&file, most / SHORTEST_RANGE * SHORTEST_RANGE).map_err(refused("ftruncate"))?;
        rustix::fs::fcntl_add_seals(&file, SEALS).map_err(refused("fcntl(F_ADD_SEALS)"))?;
        Self::open(file)
    }

    /// The file that another process has made.
    pub(crate) fn open(file: OwnedFd) -> Result<Arc<Self>> {
        let refused = |call| move |e| caused_by(error!(System, "the file for shared memory cannot be used"), call, e);
        let seals = rustix::fs::fcntl_get_seals(&file).map_err(refused("fcntl(F_GET_SEALS)"))?;
        let byte_len = rustix::fs::fstat(&file).map_err(refused("fstat"))?.st_size as u64;
        if !seals.contains(SEALS) || byte_len < SHORTEST_RANGE {
            let most = "(at most RLIMIT_FSIZE)";
            bail!(System, "the file for shared memory has {byte_len} bytes {most} and seals {seals:?}");
        }
        let table = Arc::new(SharedMemory::map(&file, 0, SHORTEST_RANGE as usize, None)?);
        Ok(Arc::new(WorldFile {
            file,
            byte_len,
            header: Shared::new(&table, 0),
            table: Shared::slice(&table, size_of::<TableHeader>(), MOST_RANGES),
            process: ProcessGuard::current(),
        }))
    }

    /// As [`WorldMemory::allocate`].
    pub(crate) fn allocate(
        self: &Arc<Self>,
        size: SharedMemorySize,
        users: usize,
        keep_going: &dyn Fn() -> Result<()>,
    ) -> Result<(u64, SharedMemory)> {
        let SharedMemorySize { byte_len, resident } = size;
        free_memory::check("shared memory", resident as u64)?;
        // One use more than the range gets, so that nothing frees it before this function ends.
        let (id, is_dirty) = self.take(size, users as u32 + 2)?;
        let range = self.range(id);
        let filled = || {
            let start = self.start_of(range, byte_len)?;
            let memory = self.map_at(start, id, byte_len)?;
            let allocate =
                |from, len| rustix::fs::fallocate(&self.file, FallocateFlags::empty(), start + from as u64, len as u64);
            let refused = |e| caused_by(error!(System, "no shared memory of {byte_len} bytes"), "fallocate", e);
            in_pieces(resident, keep_going, allocate, refused)?;
            if is_dirty {
                // SAFETY: the memory has as many bytes, and no other rank has it yet.
                unsafe { memory.bytes(0, byte_len).write_bytes(0, byte_len) };
            }
            Ok(memory)
        };
        match filled() {
            Ok(memory) => {
                range.users.fetch_sub(1, Ordering::Relaxed);
                Ok((id, memory))
            }
            Err(error) => {
                // No other rank has the id.
                self.free_pages(range);
                range.users.store(0, Ordering::Release);
                Err(error)
            }
        }
    }

    /// Takes a free range, or a new one. Returns its id, and whether its bytes have to be zeroed.
    fn take(&self, size: SharedMemorySize, users: u32) -> Result<(u64, bool)> {
        let no_room = || {
            let (len, most) = (size.byte_len, self.byte_len);
            error!(System, "no shared memory of {len} bytes: the file has {most} bytes (at most RLIMIT_FSIZE)")
        };
        let byte_len = (size.byte_len as u64).max(SHORTEST_RANGE).checked_next_power_of_two().ok_or_else(no_room)?;
        for (index, range) in self.table.iter().enumerate() {
            // Another rank may take the range between the two looks.
            let fits = || [0, byte_len].contains(&range.byte_len.load(Ordering::Relaxed));
            if !fits() || range.users.compare_exchange(0, users, Ordering::AcqRel, Ordering::Relaxed).is_err() {
                continue;
            }
            let mut is_dirty = false;
            if range.byte_len.load(Ordering::Relaxed) == 0 {
                let used = &self.header.used;
                let more = |used: u64| used.checked_add(byte_len).filter(|end| *end <= self.byte_len - SHORTEST_RANGE);
                let Ok(used) = used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more) else {
                    range.users.store(0, Ordering::Release);
                    return Err(no_room());
                };
                range.start.store(SHORTEST_RANGE + used, Ordering::Relaxed);
                range.byte_len.store(byte_len, Ordering::Relaxed);
            } else {
                // A sandbox may free no pages of a file. What sparse memory holds then is unknown.
                is_dirty = !self.free_pages(range);
                if !fits() || is_dirty && size.resident < size.byte_len {
                    range.users.store(0, Ordering::Release);
                    continue;
                }
                range.uses.fetch_add(1, Ordering::Relaxed);
            }
            return Ok((u64::from(range.uses.load(Ordering::Relaxed)) << RANGE_BITS | index as u64, is_dirty));
        }
        bail!(System, "no shared memory: there are {MOST_RANGES} pieces of it");
    }

    /// Maps a range that another rank has taken, or this one. The numbers in the table are those of
    /// a peer.
    pub(crate) fn map(self: &Arc<Self>, id: u64, byte_len: usize) -> Result<SharedMemory> {
        let start = self.start_of(self.range(id), byte_len)?;
        self.map_at(start, id, byte_len)
    }

    /// Where a range begins. It is in the file and long enough.
    fn start_of(&self, range: &FileRange, byte_len: usize) -> Result<u64> {
        let start = range.start.load(Ordering::Relaxed);
        let fits = start.is_multiple_of(SHORTEST_RANGE)
            && start.checked_add(byte_len as u64).is_some_and(|end| end <= self.byte_len);
        if start == 0 || !fits || range.byte_len.load(Ordering::Relaxed) < byte_len as u64 {
            bail!(System, "a peer's shared memory does not have {byte_len} bytes");
        }
        Ok(start)
    }

    fn map_at(self: &Arc<Self>, start: u64, id: u64, byte_len: usize) -> Result<SharedMemory> {
        let in_use = RangeInUse { file: Arc::clone(self), id, forks: fork_count() };
        SharedMemory::map(&self.file, start, byte_len, Some(Box::new(in_use)))
    }

    fn range(&self, id: u64) -> &FileRange {
        &self.table[id as usize % MOST_RANGES]
    }

    /// Frees all pages of a range. They read as zeros afterwards. Returns whether the system can.
    fn free_pages(&self, range: &FileRange) -> bool {
        let [start, len] = [&range.start, &range.byte_len].map(|value| value.load(Ordering::Relaxed));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::io::retry_on_intr(|| rustix::fs::fallocate(&self.file, flags, start, len)).is_ok()
    }
}

impl AsFd for WorldFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

/// One rank's use of a range, which it drops when it has unmapped it. The last rank frees the
/// pages. A process that dies with a range in use, or was forked meanwhile, leaves it in use until
/// the file is closed.
pub(crate) struct RangeInUse {
    file: Arc<WorldFile>,
    id: u64,
    /// How often this process had been forked when it mapped the range.
    forks: u32,
}

impl Drop for RangeInUse {
    fn drop(&mut self) {
        // A forked process has no use of its own (invariant 21), but has the range mapped: it may
        // read it, so the range is not used again.
        if !self.file.process.is_current() || self.forks != fork_count() {
            return;
        }
        let range = self.file.range(self.id);
        if range.users.fetch_sub(1, Ordering::AcqRel) == 2 {
            self.file.free_pages(range);
            range.users.store(0, Ordering::Release);
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::comm::host::memory::PIECE_BYTES;

    const KIB: usize = 1 << 10;

    /// How many bytes of a file are allocated.
    fn allocated(file: &WorldFile) -> usize {
        rustix::fs::fstat(file).expect("a file").st_blocks as usize * 512
    }

    /// What another process has that got the file.
    fn peer_of(file: &WorldFile) -> Arc<WorldFile> {
        WorldFile::open(file.file.try_clone().expect("a descriptor")).expect("a file")
    }

    #[test]
    fn only_the_beginning_is_allocated_at_once_and_the_rest_when_it_is_used() {
        let size = SharedMemorySize { byte_len: 4096 * KIB, resident: 64 * KIB };
        let file = WorldFile::create().expect("a file");
        let (id, memory) = file.allocate(size, 2, &|| Ok(())).expect("memory");
        let table = allocated(&file) - size.resident;
        assert!(table <= 64 * KIB, "{table}");
        assert_eq!(memory.len(), size.byte_len);
        memory.populate(1024 * KIB, 256 * KIB, &|| Ok(())).expect("memory");
        // A peer that maps it allocates nothing by that.
        let peer = peer_of(&file).map(id, size.byte_len).expect("memory");
        assert_eq!(peer.len(), size.byte_len);
        assert_eq!(allocated(&file), table + size.resident + 256 * KIB);
    }

    #[test]
    fn memory_is_allocated_in_pieces_until_it_is_to_stop() {
        let asked = Cell::new(0);
        let keep_going = || {
            asked.set(asked.get() + 1);
            if asked.get() > 3 { Err(error!(DeadlineExceeded, "the test")) } else { Ok(()) }
        };
        let size = SharedMemorySize::fully_resident(5 * PIECE_BYTES);
        let file = WorldFile::create().expect("a file");
        let before = allocated(&file);
        let stopped = file.allocate(size, 2, &keep_going).map(drop);
        assert_eq!(stopped.expect_err("it stops").to_string(), "the test");
        assert_eq!(asked.get(), 4);
        assert!(allocated(&file) < before + PIECE_BYTES, "its pages are free");
        let (id, _memory) = file.allocate(size, 2, &|| Ok(())).expect("memory");
        assert_eq!(id, 1 << RANGE_BITS, "and its range is used again");
    }

    #[test]
    #[ignore = "forks its process, which keeps the ranges of other tests in use; CI runs it alone"]
    fn what_a_forked_process_has_mapped_is_not_used_again() {
        let file = WorldFile::create().expect("a file");
        let size = SharedMemorySize::fully_resident(KIB);
        let allocate = || file.allocate(size, 1, &|| Ok(())).expect("memory");
        let (before, memory) = allocate();
        // SAFETY: the child only ends.
        match unsafe { libc::fork() } {
            // SAFETY: this runs nothing of the parent's.
            0 => unsafe { libc::_exit(0) },
            child => assert!(child > 0, "a child"),
        }
        drop(memory);
        let (after, memory) = allocate();
        assert_ne!(after % MOST_RANGES as u64, before % MOST_RANGES as u64, "the child may read it");
        drop(memory);
        assert_eq!(allocate().0 % MOST_RANGES as u64, after % MOST_RANGES as u64, "the child does not have it");
    }

    #[test]
    fn a_step_that_a_signal_interrupts_is_done_again_until_it_is_to_stop() {
        let asked = Cell::new(0);
        let keep_going = || {
            asked.set(asked.get() + 1);
            if asked.get() > 100 { Err(error!(DeadlineExceeded, "the test")) } else { Ok(()) }
        };
        let refused = |_| error!(System, "a signal is no error");
        let result = in_pieces(1, &keep_going, |_, _| Err(rustix::io::Errno::INTR), refused);
        assert_eq!(result.expect_err("it stops").to_string(), "the test");
    }

    #[test]
    fn memory_that_is_refused_says_how_much_and_how_much_there_can_be() {
        let file = WorldFile::create().expect("a file");
        for byte_len in [1 << 62, usize::MAX] {
            let size = SharedMemorySize { byte_len, resident: 0 };
            let error = file.allocate(size, 1, &|| Ok(())).map(drop).expect_err("no file is as long");
            let text = format!("no shared memory of {byte_len} bytes: the file has {} bytes", file.byte_len);
            assert!(error.to_string().starts_with(&text), "{error}");
        }
    }

    /// Lengths differ, and a range is used again for each of about its length.
    #[test]
    fn ranges_that_all_ranks_have_dropped_are_zeros_and_are_used_again() {
        let file = WorldFile::create().expect("a file");
        let peer = peer_of(&file);
        let (_, _kept) = file.allocate(SharedMemorySize::fully_resident(KIB), 1, &|| Ok(())).expect("memory");
        let before = allocated(&file);
        let mut ids = std::collections::HashSet::new();
        for cycle in 0..500 {
            let byte_len = (2048 + cycle) * KIB;
            let size = SharedMemorySize { byte_len, resident: 8 * KIB };
            // Two in use at a time, from both processes.
            let made = [&file, &peer].map(|file| file.allocate(size, 2, &|| Ok(())).expect("memory"));
            let found: Vec<SharedMemory> = std::iter::zip([&peer, &file], &made)
                .map(|(file, (id, _))| file.map(*id, byte_len).expect("memory"))
                .collect();
            for ((id, memory), found) in made.into_iter().zip(found) {
                assert!(ids.insert(id), "{id} is used twice");
                let [first, last] = [0, byte_len - KIB].map(|offset| memory.bytes(offset, KIB));
                // SAFETY: the bytes are mapped, and only this thread uses them.
                unsafe {
                    assert_eq!((*first, *last), (0, 0), "cycle {cycle}");
                    first.write_bytes(1, KIB);
                    last.write_bytes(1, KIB);
                }
                drop(memory);
                // SAFETY: as above.
                assert_eq!(unsafe { *found.bytes(0, 1) }, 1, "the other rank has it");
            }
        }
        assert_eq!(allocated(&file), before);
        assert!(file.table[5].byte_len.load(Ordering::Relaxed) == 0, "at most two lengths and two at a time");
    }

    /// What a rank writes into the table makes a peer map other memory of the file, or fail.
    #[test]
    fn a_table_of_any_numbers_is_refused_or_leads_into_the_file() {
        let file = WorldFile::create().expect("a file");
        let (id, _memory) = file.allocate(SharedMemorySize::fully_resident(KIB), 2, &|| Ok(())).expect("memory");
        let peer = peer_of(&file);
        peer.map(id, KIB).map(drop).expect("it fits");
        assert!(peer.map(id, SHORTEST_RANGE as usize + 1).is_err(), "longer than the range");
        assert!(peer.map(u64::MAX, 1).is_err() && peer.map(id + 1, 1).is_err(), "no such range");
        for (start, byte_len) in [
            (0, SHORTEST_RANGE),
            (1, SHORTEST_RANGE),
            (file.byte_len, SHORTEST_RANGE),
            (!(SHORTEST_RANGE - 1), u64::MAX),
            (SHORTEST_RANGE, 0),
        ] {
            file.range(id).start.store(start, Ordering::Relaxed);
            file.range(id).byte_len.store(byte_len, Ordering::Relaxed);
            let error = peer.map(id, KIB).map(drop).expect_err("it is refused").to_string();
            assert_eq!(error, "a peer's shared memory does not have 1024 bytes");
        }
    }

    #[test]
    fn the_memory_of_one_process_is_there_while_a_rank_has_it() {
        let world = WorldMemory::of_one_process();
        let (id, memory) = world.allocate(SharedMemorySize::fully_resident(1), 2, &|| Ok(())).expect("memory");
        let found = world.find(id, 1).expect("it is there");
        drop(memory);
        world.find(id, 1).expect("it is there");
        drop(found);
        let error = world.find(id, 1).map(drop).expect_err("no rank has it").to_string();
        assert_eq!(error, "the rank that allocated the memory has dropped it");
    }
}
