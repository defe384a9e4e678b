//! Links: how processes of several machines send each other bytes. An engine that is installed
//! moves them, and no buffer of the caller's is given to it, since it may still write one that a
//! call has given up.

#[cfg(test)]
pub(super) mod in_process;
pub(super) mod ucx;

use std::collections::VecDeque;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::os::fd::BorrowedFd;
use std::sync::Mutex;

use crate::error::{Result, bail};
use crate::rank::Rank;

/// The bytes of a message, aligned to every element type.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    /// At least as many as the bytes need.
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
        if KEPT_BYTES.contains(&(self.words.len() * size_of::<u64>()))
            // In a fork, no thread may be there that unlocks it.
            && let Ok(mut spare) = SPARE.try_lock()
            && spare.len() < MOST_KEPT
        {
            spare.push(std::mem::take(&mut self.words));
        }
    }
}

impl Bytes {
    /// Bytes that are to be written: they may be those of an earlier message.
    pub(super) fn of_len(len: usize) -> Self {
        let words = spare_words(len).unwrap_or_else(|| vec![0; len.div_ceil(size_of::<u64>())]);
        Bytes { words, len }
    }

    /// As [`of_len`](Self::of_len), where a peer says the length.
    fn of_peers_len(len: usize) -> Result<Self> {
        if let Some(words) = spare_words(len) {
            return Ok(Bytes { words, len });
        }
        let mut words = Vec::new();
        let count = len.div_ceil(size_of::<u64>());
        if words.try_reserve_exact(count).is_err() {
            bail!(System, "no memory for a message of {len} bytes");
        }
        words.resize(count, 0);
        Ok(Bytes { words, len })
    }

    pub(super) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Bytes::of_len(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// A copy of the bytes at an address.
    ///
    /// # Safety
    ///
    /// It is valid for reads of `len` bytes, which no other code writes.
    pub(super) unsafe fn copy_from(address: *const u8, len: usize) -> Self {
        let mut copy = Bytes::of_len(len);
        // SAFETY: the caller's promise.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(address, len) };
        copy
    }
}

/// The smallest kept memory that has room for so many bytes, and not for many more.
fn spare_words(len: usize) -> Option<Vec<u64>> {
    if !KEPT_BYTES.contains(&len) {
        return None;
    }
    let mut spare = SPARE.try_lock().ok()?;
    let fits =
        spare.iter().enumerate().filter(|(_, words)| (len..=4 * len).contains(&(words.len() * size_of::<u64>())));
    let (index, _) = fits.min_by_key(|(_, words)| words.len())?;
    Some(spare.swap_remove(index))
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the words have at least as many bytes.
        unsafe { std::slice::from_raw_parts(self.words.as_ptr().cast(), self.len) }
    }
}

impl DerefMut for Bytes {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and any byte is a part of a word.
        unsafe { std::slice::from_raw_parts_mut(self.words.as_mut_ptr().cast(), self.len) }
    }
}

/// What a message belongs to: a communicator, a kind, and of that kind a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    /// At most [`MAX_COMMUNICATOR`].
    pub(super) communicator: u32,
    pub(super) kind: MessageKind,
    pub(super) number: u16,
}

/// The greatest number, which no communicator has: with it a rank leaves the job.
pub(super) const MAX_COMMUNICATOR: u32 = (1 << 28) - 1;

/// Messages of one sender with one tag come in the order in which it sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum MessageKind {
    /// What the ranks of a machine call.
    Headers,
    /// Blocks that move.
    Blocks,
    /// Partial results of reductions.
    Partials,
    /// Results of reductions.
    Results,
    /// The program's messages; the number is their tag.
    Messages,
    /// The sender has come to a monitored barrier.
    Arrivals,
    /// The sender has dropped its handle on the communicator, and has sent all that it will send.
    Leave,
    /// The sender ends all communicators.
    Abort,
}

impl MessageKind {
    const ALL: [Self; 8] = [
        Self::Headers,
        Self::Blocks,
        Self::Partials,
        Self::Results,
        Self::Messages,
        Self::Arrivals,
        Self::Leave,
        Self::Abort,
    ];
}

impl Tag {
    /// 28 bits for the communicator, 4 for the kind, 16 each for the number and the sender.
    fn to_word(self, from: Rank) -> u64 {
        let Tag { communicator, kind, number } = self;
        u64::from(communicator) << 36 | (kind as u64) << 32 | u64::from(number) << 16 | u64::from(from.0 as u16)
    }

    fn from_word(word: u64) -> Option<(Rank, Self)> {
        let kind = *MessageKind::ALL.get((word >> 32 & 15) as usize)?;
        let tag = Tag { communicator: (word >> 36) as u32, kind, number: (word >> 16) as u16 };
        Some((Rank((word & 0xffff) as u32), tag))
    }
}

/// A message that has come whole.
pub(super) struct LinkMessage {
    pub(super) from: Rank,
    pub(super) tag: Tag,
    pub(super) bytes: Bytes,
}

/// A message that comes, or has come. `R` is what an engine has of one that is not whole.
struct ComingMessage<R> {
    arrival: LinkMessage,
    /// `None` when it is whole.
    rest: Option<R>,
}

/// Moves the messages that are whole to `arrivals`. Those of one rank with one tag stay in their
/// order, and a rank that leaves has left after all that it has sent before.
fn take_whole<R>(incoming: &mut VecDeque<ComingMessage<R>>, arrivals: &mut Vec<LinkMessage>) {
    let mut earlier: Vec<(Rank, Tag)> = Vec::new();
    let mut index = 0;
    while index < incoming.len() {
        let ComingMessage { arrival: LinkMessage { from, tag, .. }, rest } = &incoming[index];
        let is_leave = tag.kind == MessageKind::Leave;
        let comes_before = |(rank, other): &(Rank, Tag)| rank == from && (is_leave || other == tag);
        if rest.is_some() || earlier.iter().any(comes_before) {
            earlier.push((*from, *tag));
            index += 1;
        } else {
            arrivals.extend(incoming.remove(index).map(|incoming| incoming.arrival));
        }
    }
}

/// One process's connections with the other processes of the job. Any thread may call it.
pub(super) trait Link: Send + Sync {
    /// Begins to send a message to another rank of the job, and returns at once. The link has the
    /// bytes until they are on their way.
    ///
    /// # Errors
    ///
    /// `PeerLost`: the rank's process has ended.
    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()>;

    /// Moves messages along, and appends those that have come. Does nothing while another thread
    /// is in it. Returns whether anything has moved.
    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool>;

    /// How many bytes of this rank's messages are not on their way yet.
    fn unsent(&self) -> usize;

    /// Whether the process of a rank has ended, or its connection.
    fn has_died(&self, rank: Rank) -> bool;

    /// Waits until all messages have been sent, for a bounded time.
    fn flush(&self);

    /// What becomes readable when [`progress`](Self::progress) has something to do, if the engine
    /// has that. Returns `None` if there is something to do already.
    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_every_part_of_a_tag() {
        for kind in MessageKind::ALL {
            let tag = Tag { communicator: MAX_COMMUNICATOR, kind, number: u16::MAX };
            assert_eq!(Tag::from_word(tag.to_word(Rank(1023))), Some((Rank(1023), tag)));
        }
        assert_eq!(Tag::from_word(15 << 32), None);
    }

    #[test]
    fn a_rank_leaves_after_its_long_messages() {
        let message = |from, kind, rest| {
            let tag = Tag { communicator: 0, kind, number: 0 };
            ComingMessage { arrival: LinkMessage { from: Rank(from), tag, bytes: Bytes::default() }, rest }
        };
        let mut incoming = VecDeque::from([
            message(0, MessageKind::Blocks, Some(())),
            message(0, MessageKind::Blocks, None),
            message(0, MessageKind::Headers, None),
            message(0, MessageKind::Leave, None),
            message(1, MessageKind::Leave, None),
        ]);
        let take = |incoming: &mut VecDeque<_>| {
            let mut arrivals = Vec::new();
            take_whole(incoming, &mut arrivals);
            arrivals.iter().map(|arrival: &LinkMessage| (arrival.from.0, arrival.tag.kind)).collect::<Vec<_>>()
        };
        assert_eq!(take(&mut incoming), [(0, MessageKind::Headers), (1, MessageKind::Leave)]);
        incoming[0].rest = None;
        assert_eq!(take(&mut incoming), [(0, MessageKind::Blocks), (0, MessageKind::Blocks), (0, MessageKind::Leave)]);
    }
}
