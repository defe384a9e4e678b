//! Bytes of messages that an engine sends and receives.

use std::ops::{Deref, DerefMut, RangeInclusive};
use std::sync::Mutex;

use crate::error::{Result, bail};

/// The bytes of a message, aligned to every element type. One more word is before them, for an
/// engine that has no room for a tag elsewhere.
#[derive(Debug)]
pub(crate) struct Bytes {
    /// The word, and at least as many as the bytes need.
    words: Vec<u64>,
    len: usize,
}

/// Memory of dropped messages, which the next ones take: the system would take longer to give pages
/// of zeros.
static SPARE: Mutex<Vec<Vec<u64>>> = Mutex::new(Vec::new());

/// The fewest and the most bytes of a message whose memory is kept, and of how many it is.
const KEPT_BYTES: RangeInclusive<usize> = 16 << 10..=1 << 20;
const MOST_KEPT: usize = 16;

impl Drop for Bytes {
    fn drop(&mut self) {
        if KEPT_BYTES.contains(&room_in(&self.words))
            // In a fork, no thread may be there that unlocks it.
            && let Ok(mut spare) = SPARE.try_lock()
            && spare.len() < MOST_KEPT
        {
            spare.push(std::mem::take(&mut self.words));
        }
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::of_len(0)
    }
}

/// How many bytes words have room for.
fn room_in(words: &[u64]) -> usize {
    words.len().saturating_sub(1) * size_of::<u64>()
}

fn word_count(len: usize) -> usize {
    1 + len.div_ceil(size_of::<u64>())
}

impl Bytes {
    /// Bytes that are to be written: they may be those of an earlier message.
    pub(crate) fn of_len(len: usize) -> Self {
        let words = spare_words(len).unwrap_or_else(|| vec![0; word_count(len)]);
        Bytes { words, len }
    }

    /// As [`of_len`](Self::of_len), where a peer says the length.
    pub(crate) fn of_peers_len(len: usize) -> Result<Self> {
        if let Some(words) = spare_words(len) {
            return Ok(Bytes { words, len });
        }
        let mut words = Vec::new();
        let count = word_count(len);
        if words.try_reserve_exact(count).is_err() {
            bail!(System, "no memory for a message of {len} bytes");
        }
        words.resize(count, 0);
        Ok(Bytes { words, len })
    }

    pub(crate) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Bytes::of_len(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// A copy of the bytes at an address.
    ///
    /// # Safety
    ///
    /// It is valid for reads of `len` bytes, which no other code writes.
    pub(crate) unsafe fn copy_from(address: *const u8, len: usize) -> Self {
        let mut copy = Bytes::of_len(len);
        // SAFETY: the caller's promise.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(address, len) };
        copy
    }

    /// Bytes with so many words, of which there is at least one; a peer says how many.
    pub(crate) fn of_words(count: usize) -> Result<Self> {
        Bytes::of_peers_len(count.saturating_sub(1) * size_of::<u64>())
    }

    /// The word before the bytes, and the words that have these.
    pub(crate) fn words(&mut self) -> &mut [u64] {
        let count = word_count(self.len);
        &mut self.words[..count]
    }

    /// How many bytes the last word has beyond the end.
    pub(crate) fn padding(&self) -> usize {
        self.len.wrapping_neg() % size_of::<u64>()
    }

    /// Drops the last `count` bytes.
    pub(crate) fn shorten(&mut self, count: usize) {
        self.len = self.len.saturating_sub(count);
    }
}

/// The smallest kept memory that has room for so many bytes, and not for many more.
fn spare_words(len: usize) -> Option<Vec<u64>> {
    if !KEPT_BYTES.contains(&len) {
        return None;
    }
    let mut spare = SPARE.try_lock().ok()?;
    let fits = spare.iter().enumerate().filter(|(_, words)| (len..=4 * len).contains(&room_in(words)));
    let (index, _) = fits.min_by_key(|(_, words)| words.len())?;
    Some(spare.swap_remove(index))
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the words after the first have at least as many bytes.
        unsafe { std::slice::from_raw_parts(self.words[1..].as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any byte is a part of a word.
        unsafe { std::slice::from_raw_parts_mut(self.words[1..].as_mut_ptr().cast(), self.len) }
    }
}

#[test]
fn a_word_is_before_the_bytes() {
    for len in [0, 1, 7, 8, 9, 20_000] {
        let mut bytes = Bytes::copy_of(&vec![7; len]);
        bytes.words()[0] = 1;
        assert_eq!((bytes.words().len(), bytes.padding()), (word_count(len), len.next_multiple_of(8) - len));
        assert!(bytes.iter().all(|byte| *byte == 7) && bytes.len() == len);
        bytes.shorten(3);
        assert_eq!(bytes.len(), len.saturating_sub(3));
    }
}
