//! Offsets for allocations of which several share memory, one after the other.

use std::collections::{BTreeMap, BTreeSet};

/// The alignment of allocations, in bytes.
const ALIGN: usize = 256;

/// The most allocations that [`by_size`] looks at: it compares each with each.
const MOST_BY_SIZE: usize = 1000;

/// Memory that is in use from one step of the schedule to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) byte_len: usize,
    /// The first and the last step at which it is in use.
    pub(super) first: usize,
    pub(super) last: usize,
}

impl Lifetime {
    fn overlaps(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }

    /// The length with the padding behind it. At least one byte, so that no two tensors in use have
    /// the same address.
    fn padded_len(&self) -> Option<usize> {
        self.byte_len.max(1).checked_next_multiple_of(ALIGN)
    }
}

/// Where each allocation begins, and the length of the memory.
#[derive(Debug)]
pub(super) struct Placement {
    pub(super) offsets: Vec<usize>,
    pub(super) byte_len: usize,
}

/// Places allocations such that those in use at the same step are apart. `None` if no memory is
/// long enough.
///
/// The time is n log n in the number of allocations. Few allocations are placed in two ways, and
/// the shorter memory counts.
pub(super) fn place(lifetimes: &[Lifetime]) -> Option<Placement> {
    let lens = lifetimes.iter().map(Lifetime::padded_len).collect::<Option<Vec<usize>>>()?;
    let by_size = if lifetimes.len() <= MOST_BY_SIZE { by_size(lifetimes, &lens) } else { None };
    let placements = [by_size, by_time(lifetimes, &lens)].into_iter().flatten();
    let shortest = placements.min_by_key(|placement| placement.byte_len)?;
    isize::try_from(shortest.byte_len).is_ok().then_some(shortest)
}

/// The largest allocations first, each at the lowest offset that is free while it is in use.
fn by_size(lifetimes: &[Lifetime], lens: &[usize]) -> Option<Placement> {
    let mut order: Vec<usize> = (0..lifetimes.len()).collect();
    order.sort_by_key(|&a| std::cmp::Reverse(lens[a]));
    let mut placement = Placement { offsets: vec![0; lifetimes.len()], byte_len: 0 };
    for (placed, &a) in order.iter().enumerate() {
        let beside = order[..placed].iter().filter(|&&b| lifetimes[a].overlaps(&lifetimes[b]));
        let mut taken: Vec<(usize, usize)> = beside.map(|&b| (placement.offsets[b], lens[b])).collect();
        taken.sort_unstable();
        let mut offset = 0usize;
        for (start, len) in taken {
            if offset.checked_add(lens[a])? <= start {
                break;
            }
            offset = offset.max(start + len);
        }
        placement.offsets[a] = offset;
        placement.byte_len = placement.byte_len.max(offset.checked_add(lens[a])?);
    }
    Some(placement)
}

/// In the order of time, each in the smallest free range that is long enough.
fn by_time(lifetimes: &[Lifetime], lens: &[usize]) -> Option<Placement> {
    let mut starts: Vec<usize> = (0..lifetimes.len()).collect();
    let mut ends = starts.clone();
    starts.sort_by_key(|&a| (lifetimes[a].first, std::cmp::Reverse(lens[a])));
    ends.sort_by_key(|&a| lifetimes[a].last);
    let mut ends = ends.into_iter().peekable();
    let mut free = FreeRanges::default();
    let mut offsets = vec![0; lifetimes.len()];
    for a in starts {
        while let Some(b) = ends.next_if(|&b| lifetimes[b].last < lifetimes[a].first) {
            free.give_back(offsets[b], lens[b]);
        }
        offsets[a] = free.take(lens[a])?;
    }
    Some(Placement { offsets, byte_len: free.end })
}

/// The free ranges of a memory that grows. No two of them touch.
#[derive(Default)]
struct FreeRanges {
    /// The length of each range, by its offset.
    by_offset: BTreeMap<usize, usize>,
    /// Length and offset of each range.
    by_len: BTreeSet<(usize, usize)>,
    /// The length of the memory.
    end: usize,
}

impl FreeRanges {
    fn insert(&mut self, offset: usize, len: usize) {
        self.by_offset.insert(offset, len);
        self.by_len.insert((len, offset));
    }

    fn remove(&mut self, offset: usize) -> Option<usize> {
        let len = self.by_offset.remove(&offset)?;
        self.by_len.remove(&(len, offset));
        Some(len)
    }

    /// Takes a range, at the end of the memory if no free one is long enough. `None` if no memory
    /// is that long.
    fn take(&mut self, len: usize) -> Option<usize> {
        if let Some(&(found, offset)) = self.by_len.range((len, 0)..).next() {
            self.remove(offset);
            if found > len {
                self.insert(offset + len, found - len);
            }
            return Some(offset);
        }
        let last = self.by_offset.last_key_value().map(|(&offset, &len)| (offset, len));
        let offset = match last.filter(|(offset, len)| offset + len == self.end) {
            Some((offset, _)) => offset,
            None => self.end,
        };
        let end = offset.checked_add(len)?;
        self.remove(offset);
        self.end = end;
        Some(offset)
    }

    fn give_back(&mut self, mut offset: usize, mut len: usize) {
        if let Some(next) = self.remove(offset + len) {
            len += next;
        }
        let before = self.by_offset.range(..offset).next_back().map(|(&start, &len)| (start, len));
        if let Some((start, before)) = before.filter(|(start, before)| start + before == offset) {
            self.remove(start);
            (offset, len) = (start, before + len);
        }
        self.insert(offset, len);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lifetime(byte_len: usize, first: usize, last: usize) -> Lifetime {
        Lifetime { byte_len, first, last }
    }

    /// Checks a placement, and gives its length.
    fn check(lifetimes: &[Lifetime], placement: &Placement) -> usize {
        let range = |a: usize| placement.offsets[a]..placement.offsets[a] + lifetimes[a].byte_len.max(1);
        for a in 0..lifetimes.len() {
            assert!(range(a).end <= placement.byte_len && range(a).start.is_multiple_of(ALIGN));
            for b in 0..a {
                let is_apart = range(a).end <= range(b).start || range(b).end <= range(a).start;
                assert!(
                    is_apart || !lifetimes[a].overlaps(&lifetimes[b]),
                    "{a} and {b} of {lifetimes:?}\n{placement:?}"
                );
            }
        }
        placement.byte_len
    }

    /// Random lifetimes of a few lengths, from a small generator of numbers (xorshift).
    fn random(count: usize, seed: u64) -> Vec<Lifetime> {
        let mut state = seed * 2 + 1;
        let mut below = |n: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state % n as u64) as usize
        };
        let mut random = || {
            let first = below(count);
            lifetime([0, 100, 256, 257, 1000, 5000][below(6)], first, first + below(12))
        };
        (0..count).map(|_| random()).collect()
    }

    #[test]
    fn what_is_in_use_at_the_same_time_is_apart() {
        for seed in 0..200 {
            let lifetimes = random(40, seed);
            let lens: Vec<usize> = lifetimes.iter().map(|l| l.padded_len().expect("short")).collect();
            let lengths = [by_size(&lifetimes, &lens), by_time(&lifetimes, &lens)]
                .map(|placement| check(&lifetimes, &placement.expect("it fits")));
            let best = check(&lifetimes, &place(&lifetimes).expect("it fits"));
            assert_eq!(best, *lengths.iter().min().expect("two"));
        }
    }

    #[test]
    fn memory_is_used_again() {
        let chain: Vec<Lifetime> = (0..5000).map(|step| lifetime(1000, step, step + 1)).collect();
        assert_eq!(check(&chain[..500], &place(&chain[..500]).expect("it fits")), 2048);
        assert_eq!(place(&chain).expect("it fits").byte_len, 2048);
        // A free range that is cut in two and made one again.
        let cut = [lifetime(512, 0, 0), lifetime(256, 1, 1), lifetime(256, 1, 1), lifetime(512, 2, 2)];
        let lens = cut.map(|lifetime| lifetime.byte_len);
        assert_eq!(check(&cut, &by_time(&cut, &lens).expect("it fits")), 512);
        // The last free range grows.
        let growing = [lifetime(256, 0, 0), lifetime(512, 1, 1)];
        assert_eq!(check(&growing, &by_time(&growing, &[256, 512]).expect("it fits")), 512);
    }

    #[test]
    fn memory_has_an_end() {
        let half = lifetime(isize::MAX as usize / 2 + 1, 0, 0);
        assert_eq!(place(&[half, half]).map(|placement| placement.byte_len), None);
        assert!(place(&[half, lifetime(half.byte_len, 1, 1)]).is_some());
        assert!(place(&[lifetime(usize::MAX, 0, 0)]).is_none());
    }
}
