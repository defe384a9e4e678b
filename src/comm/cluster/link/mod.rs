//! Links: how processes of several machines send each other bytes. No buffer of the caller's is
//! given to one: an engine may still write a buffer that a call has given up.

#[cfg(test)]
pub(super) mod in_process;
pub(super) mod mpi;
pub(super) mod rendezvous;
pub(super) mod ucx;

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;

use crate::comm::backend_kind::BackendKind;
use crate::error::{ErrorKind, Result};
use crate::rank::Rank;
pub(super) use crate::util::bytes::Bytes;

/// What a message belongs to: a communicator, a kind, and of that kind a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Tag {
    /// At most [`WHOLE_JOB`].
    pub(super) communicator: u32,
    pub(super) kind: MessageKind,
    pub(super) number: u16,
}

/// The greatest number, which no communicator has: with it a rank leaves all.
pub(super) const WHOLE_JOB: u32 = (1 << 28) - 1;

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
    /// A part of the sender's call log.
    Calls,
    /// The sender has dropped its handle on the communicator, and has sent all that it will send.
    Leave,
    /// The sender ends all communicators.
    Abort,
}

impl MessageKind {
    const ALL: [Self; 9] = [
        Self::Headers,
        Self::Blocks,
        Self::Partials,
        Self::Results,
        Self::Messages,
        Self::Arrivals,
        Self::Calls,
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
    /// The backend whose communicators it connects.
    fn kind(&self) -> BackendKind;

    /// Begins to send a message to another rank of the job, and returns at once. The link has the
    /// bytes until they are on their way.
    ///
    /// # Errors
    ///
    /// `PeerLost`: the rank's process has ended.
    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()>;

    /// [`send`](Self::send) to several ranks. Those whose processes have ended get nothing.
    fn send_to_all(&self, to: &[Rank], tag: Tag, bytes: &[u8]) -> Result<()> {
        to.iter().try_for_each(|rank| match self.send(*rank, tag, Bytes::copy_of(bytes)) {
            Err(error) if error.kind() == ErrorKind::PeerLost => Ok(()),
            sent => sent,
        })
    }

    /// Moves messages along, and appends those that have come. Does nothing while another thread
    /// is in it. Returns whether anything has moved.
    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool>;

    /// How many bytes of this rank's messages are not on their way yet.
    fn unsent(&self) -> usize;

    /// Whether the process of a rank has ended, or its connection, as far as the engine says.
    fn has_died(&self, rank: Rank) -> bool;

    /// Checks that messages of a rank still come here if it sends any.
    fn check_reach(&self, _rank: Rank) -> Result<()> {
        Ok(())
    }

    /// Waits until all messages have been sent, for a bounded time. No message is sent afterwards.
    fn flush(&self);

    /// What becomes readable when [`progress`](Self::progress) has something to do. Returns `None`
    /// if there is something to do already, or if the engine has no such thing: then the caller
    /// looks again after a millisecond.
    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_keeps_every_part_of_a_tag() {
        for kind in MessageKind::ALL {
            let tag = Tag { communicator: WHOLE_JOB, kind, number: u16::MAX };
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
