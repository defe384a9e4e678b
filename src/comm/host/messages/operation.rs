//! One message that this rank sends or receives, and how far it has come.

use std::time::Instant;

use crate::comm::host::arena::Block;
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::rank::GroupRank;

/// A send or a receive that has not ended, or whose caller has not taken its end.
pub(super) struct Operation {
    /// This rank's number of it. Peers know a send by it.
    pub(super) number: u64,
    pub(super) request: MessageRequest,
    pub(super) deadline: Instant,
    pub(super) stage: Stage,
    /// Keeps what a receive copies from mapped (invariant 13).
    pub(super) source: Option<Block>,
    /// Absent for a blocking call, whose thread takes the end.
    pub(super) on_end: Option<OnEnd>,
}

/// How far an operation has come.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stage {
    /// A send that is not in the ring.
    Queued,
    /// A send of which the receiver knows. It waits for `Ready` or `Taken`.
    Announced,
    /// A send whose receiver is ready for pieces.
    Streaming {
        sent: usize,
    },
    /// A receive without a message.
    Posted,
    /// A receive that has to say that it is ready for pieces.
    Answering(Incoming),
    /// A receive that waits for pieces.
    Receiving {
        incoming: Incoming,
        received: usize,
    },
    /// A receive that copies from the sender's buffer.
    Copying {
        incoming: Incoming,
        from: *const u8,
        copied: usize,
    },
    /// A receive that has to say that it has copied all bytes.
    Acknowledging(Incoming),
    Ended(Delivery),
}

/// An announced message that a receive has got.
#[derive(Clone, Copy, Debug)]
pub(super) struct Incoming {
    pub(super) source: GroupRank,
    pub(super) id: u64,
    pub(super) byte_len: usize,
}

// SAFETY: an address in `Copying` is in a buffer that stays valid until the receiver has said
// `Taken` or the communicator has ended; only the thread that holds the mailbox uses it.
unsafe impl Send for Stage {}

impl Operation {
    /// Whether a message of `source` is for this operation.
    pub(super) fn takes(&self, source: GroupRank, tag: u16) -> bool {
        let is_from = |from: Option<GroupRank>| from.is_none_or(|from| from == source);
        matches!(self.stage, Stage::Posted)
            && self.request.tag == tag
            && matches!(self.request.direction, Direction::Receive(from) if is_from(from))
    }

    /// Whether the operation waits for something that `peer` writes.
    pub(super) fn waits_for(&self, peer: GroupRank) -> bool {
        match (self.stage, self.request.direction) {
            (Stage::Announced, Direction::Send(to)) => to == peer,
            (Stage::Posted, Direction::Receive(from)) => from.is_none_or(|from| from == peer),
            (Stage::Receiving { incoming, .. }, _) => incoming.source == peer,
            _ => false,
        }
    }

    /// The stage after the last byte of a message.
    pub(super) fn received(&self, source: GroupRank, byte_len: usize) -> Stage {
        Stage::Ended(Delivery { source, element_count: byte_len / self.request.data_type.byte_len() })
    }

    /// The peer without which the operation cannot end; `None` for a receive from any.
    pub(super) fn peer(&self) -> Option<GroupRank> {
        match (self.stage, self.request.direction) {
            (Stage::Answering(incoming) | Stage::Receiving { incoming, .. }, _)
            | (Stage::Copying { incoming, .. } | Stage::Acknowledging(incoming), _) => Some(incoming.source),
            (_, Direction::Send(to)) => Some(to),
            (_, Direction::Receive(from)) => from,
        }
    }
}
