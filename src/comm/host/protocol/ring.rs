//! The ring in which one rank writes what it tells another one.

use super::record::{RECORD_WORDS, Record};
use crate::comm::host::memory::{Shareable, SharedMemory};
use crate::sync::{AtomicU64, Ordering, Tracked};

/// How many cells a ring has, and so how many small messages a sender can be ahead of a receiver.
pub(in crate::comm::host) const CELLS: u64 = if cfg!(loom) { 2 } else { 16 };

/// The bytes of all rings to one rank, where they have as many as the least length allows.
const BYTES_TO_ONE_RANK: usize = 4 << 20;

/// The length of one ring: 64 KiB, less among more than 64 ranks, and whole pages.
pub(in crate::comm::host) fn ring_len(rank_count: usize) -> usize {
    const SHORTEST: usize = 4 << 10;
    const LONGEST: usize = 64 << 10;
    let fair = (BYTES_TO_ONE_RANK / rank_count).clamp(SHORTEST, LONGEST);
    (fair / SHORTEST * SHORTEST).next_multiple_of(rustix::param::page_size())
}

/// What a ring begins with. The cells follow.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct RingHeader {
    /// How many cells the sender has written (invariant 22).
    written: Count,
    /// How many cells the receiver has read (invariant 23).
    read: Count,
}

/// A count on a cache line of its own.
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
struct Count(AtomicU64);

/// What a cell begins with. The bytes of a message follow.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
struct CellHeader {
    record: [AtomicU64; RECORD_WORDS],
    /// Stands for the bytes.
    payload: Tracked,
}

// SAFETY: invariant 1: every field is an atomic or empty, and zeros are a value of it.
unsafe impl Shareable for RingHeader {}
// SAFETY: as above.
unsafe impl Shareable for CellHeader {}

impl CellHeader {
    /// What the cell says; `None` if no rank writes that.
    fn record(&self) -> Option<Record> {
        Record::from_words(self.record.each_ref().map(|word| word.load(Ordering::Relaxed)))
    }
}

/// One ring. Only its sender writes cells and `written`, and only its receiver writes `read`, each
/// with its rank's mailbox locked.
#[derive(Clone, Copy)]
pub(in crate::comm::host) struct Ring<'a> {
    memory: &'a SharedMemory,
    offset: usize,
    byte_len: usize,
}

impl<'a> Ring<'a> {
    /// The ring at an offset of memory.
    pub(in crate::comm::host) fn new(memory: &'a SharedMemory, offset: usize, byte_len: usize) -> Self {
        Ring { memory, offset, byte_len }
    }

    fn header(&self) -> &'a RingHeader {
        &self.memory.slice(self.offset, 1)[0]
    }

    /// The bytes of a cell, a multiple of its header's alignment.
    fn cell_len(&self) -> usize {
        (self.byte_len - size_of::<RingHeader>()) / CELLS as usize / align_of::<CellHeader>() * align_of::<CellHeader>()
    }

    /// The most bytes of a message that a cell holds.
    pub(in crate::comm::host) fn payload_len(&self) -> usize {
        if cfg!(loom) { 8 } else { self.cell_len() - size_of::<CellHeader>() }
    }

    fn cell(&self, number: u64) -> (&'a CellHeader, usize) {
        let offset = self.offset + size_of::<RingHeader>() + (number % CELLS) as usize * self.cell_len();
        (&self.memory.slice(offset, 1)[0], offset + size_of::<CellHeader>())
    }

    /// Whether the sender may write a cell: the receiver has read the one that it replaces
    /// (invariant 23).
    pub(in crate::comm::host) fn has_room(&self) -> bool {
        let RingHeader { written, read } = self.header();
        written.0.load(Ordering::Relaxed).wrapping_sub(read.0.load(Ordering::Acquire)) < CELLS
    }

    /// Writes a cell and publishes it (invariant 22). There is room.
    ///
    /// # Safety
    ///
    /// `payload` is valid for the bytes that the record says, at most
    /// [`payload_len`](Self::payload_len).
    pub(in crate::comm::host) unsafe fn push(&self, record: Record, payload: *const u8) {
        let written = &self.header().written.0;
        let number = written.load(Ordering::Relaxed);
        let (cell, bytes) = self.cell(number);
        for (to, word) in cell.record.iter().zip(record.to_words()) {
            to.store(word, Ordering::Relaxed);
        }
        let byte_len = record.payload_len();
        cell.payload.write(|| {
            if byte_len > 0 {
                let target = self.memory.bytes(bytes, self.payload_len());
                // SAFETY: the caller's promise; the cell holds as many bytes, and the receiver does
                // not read it now (invariant 23).
                unsafe { target.copy_from_nonoverlapping(payload, byte_len) };
            }
        });
        written.store(number.wrapping_add(1), Ordering::Release);
    }

    /// Gives `read` the oldest cell that the receiver has not read, and then lets the sender
    /// replace it (invariant 23). `None` if there is no cell. The record is `None` if it is one
    /// that no rank writes; otherwise the address has as many bytes as it says.
    pub(in crate::comm::host) fn pop<T>(&self, take: impl FnOnce(Option<Record>, *const u8) -> T) -> Option<T> {
        let RingHeader { written, read } = self.header();
        let number = read.0.load(Ordering::Relaxed);
        if written.0.load(Ordering::Acquire) == number {
            return None;
        }
        let (cell, bytes) = self.cell(number);
        let record = cell.record().filter(|record| record.payload_len() <= self.payload_len());
        let taken = cell.payload.read(|| take(record, self.memory.bytes(bytes, self.payload_len())));
        read.0.store(number.wrapping_add(1), Ordering::Release);
        Some(taken)
    }

    /// How many cells with a message the receiver has not read.
    pub(in crate::comm::host) fn message_count(&self) -> usize {
        let RingHeader { written, read } = self.header();
        let (written, read) = (written.0.load(Ordering::Acquire), read.0.load(Ordering::Relaxed));
        let unread = (0..written.wrapping_sub(read).min(CELLS)).map(|number| self.cell(read.wrapping_add(number)).0);
        unread.filter(|cell| matches!(cell.record(), Some(Record::Inline(_) | Record::Announce { .. }))).count()
    }

    /// Constructs the values, which a model has to do before its first thread starts.
    #[cfg(all(test, loom))]
    pub(in crate::comm::host) fn construct(&self) {
        for number in 0..CELLS {
            self.cell(number);
        }
        self.has_room();
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn a_ring_takes_as_many_cells_as_is_written_down() {
        for (ranks, len, payload) in
            [(1, 64 << 10, 4040), (64, 64 << 10, 4040), (128, 32 << 10, 1992), (1024, 4096, 200)]
        {
            assert_eq!(ring_len(ranks), len, "{ranks}");
            let memory = SharedMemory::for_threads(len).expect("memory");
            let ring = Ring::new(&memory, 0, len);
            assert_eq!(ring.payload_len(), payload, "{ranks}");
            for id in 0..CELLS {
                assert!(ring.has_room());
                // SAFETY: the record has no bytes.
                unsafe { ring.push(Record::Ready { id }, std::ptr::null()) };
            }
            assert!(!ring.has_room());
            assert_eq!(ring.pop(|record, _| record), Some(Some(Record::Ready { id: 0 })));
            assert!(ring.has_room());
        }
    }

    /// A peer can write any counts. That reaches no byte outside the ring.
    #[test]
    fn counts_of_any_value_stay_in_the_ring() {
        let memory = SharedMemory::for_threads(4096).expect("memory");
        let ring = Ring::new(&memory, 0, 4096);
        for (written, read) in [(u64::MAX, 0), (0, u64::MAX), (7, 9), (u64::MAX, u64::MAX - 1)] {
            ring.header().written.0.store(written, Ordering::Relaxed);
            ring.header().read.0.store(read, Ordering::Relaxed);
            ring.has_room();
            assert_eq!(ring.pop(|record, _| record), Some(None));
        }
    }
}
