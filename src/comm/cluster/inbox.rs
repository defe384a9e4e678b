//! Messages that have come from other ranks of a job, and receives that wait for some.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::link::{Bytes, LinkMessage, MessageKind, Tag, WHOLE_JOB};
use crate::comm::message::{Delivery, MessageRequest, OnEnd};
use crate::error::{Error, Result, bail, error};
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};

/// A receive that has ended.
pub(super) type Ended = (OnEnd, Result<Delivery>);

/// A receive that waits. Of several that fit a message, the first one takes it.
pub(super) struct PostedReceive {
    /// Its messages have this tag, and come from one of these ranks.
    pub(super) tag: Tag,
    pub(super) sources: Vec<(GroupRank, Rank)>,
    pub(super) request: MessageRequest,
    pub(super) on_end: OnEnd,
    pub(super) deadline: Instant,
    /// Whether it was seen that no message may come any more. One may be in what the link has.
    pub(super) was_lost: bool,
}

#[derive(Default)]
pub(super) struct Inbox {
    /// What has come and has not been taken, each message with its number in the order of arrival.
    arrived: HashMap<(Rank, Tag), VecDeque<(u64, Bytes)>>,
    count: u64,
    posted: Vec<PostedReceive>,
    /// The ranks that have left communicators.
    left: HashSet<(Rank, u32)>,
    /// The communicators that this rank has left.
    forgotten: HashSet<u32>,
}

impl Inbox {
    /// Adds messages. Returns the receives that end with them.
    #[must_use]
    pub(super) fn put(&mut self, arrivals: Vec<LinkMessage>) -> Vec<Ended> {
        let mut may_end = false;
        for LinkMessage { from, tag, bytes } in arrivals {
            match tag.kind {
                _ if self.forgotten.contains(&tag.communicator) => {}
                MessageKind::Leave => {
                    self.left.insert((from, tag.communicator));
                }
                kind => {
                    may_end |= kind == MessageKind::Messages;
                    self.count += 1;
                    self.arrived.entry((from, tag)).or_default().push_back((self.count, bytes));
                }
            }
        }
        if may_end { self.serve() } else { Vec::new() }
    }

    /// Takes the first message of a rank with a tag.
    pub(super) fn take(&mut self, from: Rank, tag: Tag) -> Option<Bytes> {
        let messages = self.arrived.get_mut(&(from, tag))?;
        let first = messages.pop_front();
        if messages.is_empty() {
            self.arrived.remove(&(from, tag));
        }
        first.map(|(_, bytes)| bytes)
    }

    pub(super) fn has_left(&self, rank: Rank, communicator: u32) -> bool {
        [communicator, WHOLE_JOB].into_iter().any(|left| self.left.contains(&(rank, left)))
    }

    /// Adds a receive. Returns those that end now.
    #[must_use]
    pub(super) fn post(&mut self, receive: PostedReceive) -> Vec<Ended> {
        self.posted.push(receive);
        self.serve()
    }

    /// Gives messages to receives, in the order in which these were posted.
    fn serve(&mut self) -> Vec<Ended> {
        let mut ends = Vec::new();
        let mut index = 0;
        while index < self.posted.len() {
            let PostedReceive { tag, sources, .. } = &self.posted[index];
            let first = |from: Rank| Some(self.arrived.get(&(from, *tag))?.front()?.0);
            let numbered = sources.iter().filter_map(|(source, from)| Some((first(*from)?, *source, *from)));
            let Some((_, source, from)) = numbered.min_by_key(|(number, ..)| *number) else {
                index += 1;
                continue;
            };
            let PostedReceive { tag, request, on_end, .. } = self.posted.remove(index);
            let bytes = self.take(from, tag).unwrap_or_default();
            // SAFETY: the caller's promise of `Backend::start_messages`: the buffer is the
            // message's until it has ended.
            ends.push((on_end, unsafe { take_message(&request, source, from, &bytes) }));
        }
        ends
    }

    /// The receives that end without a message: all if the communicators have ended, else those
    /// whose deadline has come, or whose sender is gone.
    #[must_use]
    pub(super) fn take_ends(
        &mut self,
        failed: Option<Error>,
        own: Rank,
        has_died: &dyn Fn(Rank) -> bool,
    ) -> Vec<Ended> {
        let mut ends = Vec::new();
        let now = Instant::now();
        let mut index = 0;
        while index < self.posted.len() {
            let posted = &self.posted[index];
            let tag = posted.request.tag;
            let error = match failed.clone() {
                Some(error) => Some(error),
                None if now >= posted.deadline => {
                    Some(error!(DeadlineExceeded, "no message with tag {tag} came before the deadline"))
                }
                None => self.lost_sender(posted, own, has_died).filter(|_| posted.was_lost),
            };
            match error {
                Some(error) => ends.push((self.posted.remove(index).on_end, Err(error))),
                None => {
                    self.posted[index].was_lost = self.lost_sender(&self.posted[index], own, has_died).is_some();
                    index += 1;
                }
            }
        }
        ends
    }

    /// The error of a receive that waits for a rank that is gone. One from any rank waits for every
    /// rank that has not left; a rank that has died may be the one that would have sent.
    fn lost_sender(&self, posted: &PostedReceive, own: Rank, has_died: &dyn Fn(Rank) -> bool) -> Option<Error> {
        let has_left = |rank: Rank| self.has_left(rank, posted.tag.communicator);
        let mut peers = posted.sources.iter().map(|(_, rank)| *rank).filter(|rank| *rank != own).peekable();
        let first = *peers.peek()?;
        let dead = peers.clone().find(|rank| has_died(*rank) && !has_left(*rank));
        let lost = dead.or_else(|| peers.all(has_left).then_some(first))?;
        Some(self.lost(lost, posted.tag.communicator))
    }

    /// The error of a wait for a rank that is gone.
    pub(super) fn lost(&self, rank: Rank, communicator: u32) -> Error {
        let how = if self.has_left(rank, communicator) { "left the communicator" } else { "died" };
        error!(PeerLost, "rank {rank} {how} while this rank waited")
    }

    /// Drops what has come and comes for a communicator that this rank has left.
    pub(super) fn forget(&mut self, communicator: u32) {
        self.forgotten.insert(communicator);
        self.arrived.retain(|(_, tag), _| tag.communicator != communicator);
        self.left.retain(|(_, other)| *other != communicator);
    }

    /// How many messages of a communicator have come and have not been received.
    pub(super) fn unreceived(&self, communicator: u32) -> usize {
        let of_program = |tag: &Tag| tag.communicator == communicator && tag.kind == MessageKind::Messages;
        self.arrived.iter().filter(|((_, tag), _)| of_program(tag)).map(|(_, messages)| messages.len()).sum()
    }
}

/// What a message begins with: the number of its type, and of its elements.
pub(super) const HEADER_BYTES: usize = 16;

/// Copies a message into the buffer of a receive.
///
/// # Errors
///
/// `Disagreement`: it has another type, or more elements than the buffer. Nothing is written.
///
/// # Safety
///
/// The request's buffer is valid for writes, and used by no other code.
unsafe fn take_message(request: &MessageRequest, source: GroupRank, sender: Rank, bytes: &[u8]) -> Result<Delivery> {
    let MessageRequest { tag, data_type, element_count: most, address, .. } = *request;
    let Some((header, elements)) = bytes.split_first_chunk::<HEADER_BYTES>() else {
        bail!(System, "a message of rank {sender} is shorter than its header")
    };
    let element_count = u64::from_le_bytes(std::array::from_fn(|i| header[8 + i])) as usize;
    let sent_type = TransferType::from_number(header[0]);
    let problem = match sent_type {
        Some(sent) if sent == data_type && element_count <= most => {
            let byte_len = element_count * data_type.byte_len();
            if elements.len() != byte_len {
                bail!(System, "a message of rank {sender} has another length than its header says");
            }
            // SAFETY: the caller's promise; the message is no longer than the buffer.
            unsafe { address.pointer.copy_from_nonoverlapping(elements.as_ptr(), byte_len) };
            return Ok(Delivery { source, element_count });
        }
        Some(sent) if sent == data_type => format!("the buffer has {most}"),
        _ => format!("the buffer is of {data_type}"),
    };
    let sent_type = sent_type.map_or("elements of an unknown type".to_owned(), |sent| sent.to_string());
    bail!(Disagreement, "rank {sender} sent {element_count} {sent_type} with tag {tag}: {problem}")
}
