//! Messages that have come from other ranks of a job, and receives that wait for some.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Instant;

use super::link::{Arrival, Bytes, Channel, Tag};
use super::messages::take_message;
use crate::comm::message::{Delivery, MessageRequest, OnEnd};
use crate::error::{Error, Result, error};
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
}

#[derive(Default)]
pub(super) struct Inbox {
    /// What has come and has not been taken, each message with its number in the order of arrival.
    arrived: HashMap<(Rank, Tag), VecDeque<(u64, Bytes)>>,
    count: u64,
    posted: Vec<PostedReceive>,
    /// The ranks that have left communicators.
    left: HashSet<(Rank, u32)>,
}

impl Inbox {
    /// Adds messages. Returns the receives that end with them.
    #[must_use]
    pub(super) fn put(&mut self, arrivals: Vec<Arrival>) -> Vec<Ended> {
        let mut may_end = false;
        for Arrival { from, tag, bytes } in arrivals {
            match tag.channel {
                Channel::Leave => {
                    self.left.insert((from, tag.communicator));
                }
                channel => {
                    may_end |= channel == Channel::Messages;
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
        self.left.contains(&(rank, communicator))
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
    /// whose deadline has come.
    #[must_use]
    pub(super) fn take_ends(&mut self, failed: Option<Error>, now: Instant) -> Vec<Ended> {
        let is_over = |posted: &mut PostedReceive| failed.is_some() || now >= posted.deadline;
        let over: Vec<PostedReceive> = self.posted.extract_if(.., is_over).collect();
        let error_of = |posted: &PostedReceive| {
            failed.clone().unwrap_or_else(|| {
                let tag = posted.request.tag;
                error!(DeadlineExceeded, "no message with tag {tag} came before the deadline")
            })
        };
        over.into_iter().map(|posted| (error_of(&posted), posted)).map(|(e, posted)| (posted.on_end, Err(e))).collect()
    }

    /// Whether some receive of a communicator is posted, or a message of it has not been received.
    pub(super) fn unreceived(&self, communicator: u32) -> usize {
        let of_program = |tag: &Tag| tag.communicator == communicator && tag.channel == Channel::Messages;
        self.arrived.iter().filter(|((_, tag), _)| of_program(tag)).map(|(_, messages)| messages.len()).sum()
    }
}
