//! Links: how processes of several machines send each other bytes. An engine that is installed
//! moves them, and no buffer of the caller's is given to it, since it may still write one that a
//! call has given up.

#[cfg(test)]
pub(super) mod in_process;
pub(super) mod ucx;

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;

use crate::error::Result;
use crate::rank::Rank;

/// The bytes of a message, aligned to every element type.
#[derive(Debug, Default)]
pub(super) struct Bytes {
    words: Vec<u64>,
    len: usize,
}

impl Bytes {
    pub(super) fn zeroed(len: usize) -> Self {
        Bytes { words: vec![0; len.div_ceil(size_of::<u64>())], len }
    }

    pub(super) fn copy_of(bytes: &[u8]) -> Self {
        let mut copy = Bytes::zeroed(bytes.len());
        copy.copy_from_slice(bytes);
        copy
    }

    /// A copy of the bytes at an address.
    ///
    /// # Safety
    ///
    /// It is valid for reads of `len` bytes, which no other code writes.
    pub(super) unsafe fn copy_from(address: *const u8, len: usize) -> Self {
        let mut copy = Bytes::zeroed(len);
        // SAFETY: the caller's promise.
        unsafe { copy.as_mut_ptr().copy_from_nonoverlapping(address, len) };
        copy
    }
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

/// What a message is: the communicator that it belongs to, which of that communicator's channels it
/// is in, and a number that the channel gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    /// At most [`MAX_COMMUNICATOR`].
    pub(super) communicator: u32,
    pub(super) channel: Channel,
    pub(super) number: u16,
}

pub(super) const MAX_COMMUNICATOR: u32 = (1 << 28) - 1;

/// Messages of one sender in one channel, with one number, come in the order in which it sent them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Channel {
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
    /// The sender has dropped its handle on the communicator.
    Leave,
    /// The sender ends all communicators.
    Abort,
}

impl Channel {
    const ALL: [Self; 7] =
        [Self::Headers, Self::Blocks, Self::Partials, Self::Results, Self::Messages, Self::Leave, Self::Abort];
}

impl Tag {
    /// 28 bits for the communicator, 4 for the channel, 16 each for the number and the sender.
    fn to_word(self, from: Rank) -> u64 {
        let Tag { communicator, channel, number } = self;
        u64::from(communicator) << 36 | (channel as u64) << 32 | u64::from(number) << 16 | u64::from(from.0 as u16)
    }

    /// Whether a word is that of a rank that leaves, and another message is of the same rank.
    fn is_leave_after(earlier: u64, word: u64) -> bool {
        let of = |word| Tag::from_word(word).map(|(from, tag)| (from, tag.channel));
        of(word)
            .is_some_and(|(from, channel)| channel == Channel::Leave && Some(from) == of(earlier).map(|(from, _)| from))
    }

    fn from_word(word: u64) -> Option<(Rank, Self)> {
        let channel = *Channel::ALL.get((word >> 32 & 15) as usize)?;
        let tag = Tag { communicator: (word >> 36) as u32, channel, number: (word >> 16) as u16 };
        Some((Rank((word & 0xffff) as u32), tag))
    }
}

/// A message that has come whole.
pub(super) struct Arrival {
    pub(super) from: Rank,
    pub(super) tag: Tag,
    pub(super) bytes: Bytes,
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
    /// is in it.
    fn progress(&self, arrivals: &mut Vec<Arrival>) -> Result<()>;

    /// How many bytes of this rank's messages are not on their way yet.
    fn unsent(&self) -> usize;

    /// Whether the process of a rank has ended, or its connection.
    fn has_died(&self, rank: Rank) -> bool;

    /// Waits until all messages are on their way, for a bounded time.
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
        for channel in Channel::ALL {
            let tag = Tag { communicator: MAX_COMMUNICATOR, channel, number: u16::MAX };
            assert_eq!(Tag::from_word(tag.to_word(Rank(1023))), Some((Rank(1023), tag)));
        }
        assert_eq!(Tag::from_word(15 << 32), None);
    }
}
