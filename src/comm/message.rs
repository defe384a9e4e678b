//! Messages from one rank to another, as a backend gets them.

use crate::error::Result;
use crate::memory::Address;
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};

/// The highest tag of a message.
pub const MAX_TAG: u32 = 32_767;

/// Which way a message goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    /// To this rank.
    Send(GroupRank),
    /// From this rank, or from any.
    Receive(Option<GroupRank>),
}

/// This rank's part in one message, whose arguments have been checked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageRequest {
    pub(crate) direction: Direction,
    pub(crate) tag: u16,
    pub(crate) data_type: TransferType,
    /// What is sent, or at most received.
    pub(crate) element_count: usize,
    pub(crate) address: Address,
}

// SAFETY: the caller has promised that any thread may use the address until the message has ended.
unsafe impl Send for MessageRequest {}
// SAFETY: a shared reference gives no way to the bytes.
unsafe impl Sync for MessageRequest {}

/// What has been received, or sent: by whom, and how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Delivery {
    pub(crate) source: GroupRank,
    pub(crate) element_count: usize,
}

/// Is called with the end of a message. Before, the message uses its buffer.
pub(crate) type OnEnd = Box<dyn FnOnce(Result<Delivery>) + Send>;

impl MessageRequest {
    pub(crate) fn byte_len(&self) -> usize {
        self.element_count * self.data_type.byte_len()
    }

    /// `send of 4 float32 to rank 1 with tag 3`, with the numbers that `name` gives.
    pub(crate) fn with_ranks(&self, name: impl Fn(GroupRank) -> Rank) -> String {
        let MessageRequest { direction, tag, data_type, element_count, .. } = *self;
        let (call, peer) = match direction {
            Direction::Send(to) => ("send", format!("to rank {}", name(to))),
            Direction::Receive(Some(from)) => ("recv", format!("from rank {}", name(from))),
            Direction::Receive(None) => ("recv", "from any rank".to_owned()),
        };
        format!("{call} of {element_count} {data_type} {peer} with tag {tag}")
    }
}
