//! The program's messages from one rank to another, also between ranks of one machine: a receive
//! from any rank takes them in the order in which they come.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::ClusterBackend;
use super::inbox::{HEADER_BYTES, PostedReceive};
use super::link::{Bytes, MessageKind, Tag};
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::error::Result;
use crate::rank::GroupRank;
use crate::util::lock;

impl ClusterBackend {
    fn message_tag(&self, tag: u16) -> Tag {
        Tag { communicator: self.id, kind: MessageKind::Messages, number: tag }
    }

    /// Sends a message, whose bytes are copied.
    ///
    /// # Safety
    ///
    /// The request's buffer is valid for reads.
    unsafe fn send_message(&self, request: &MessageRequest, to: GroupRank) -> Result<Delivery> {
        let mut bytes = Bytes::of_len(HEADER_BYTES + request.byte_len());
        bytes[..HEADER_BYTES].fill(0);
        bytes[0] = request.data_type.number();
        bytes[8..HEADER_BYTES].copy_from_slice(&(request.element_count as u64).to_le_bytes());
        // SAFETY: the caller's promise.
        unsafe {
            let elements = bytes[HEADER_BYTES..].as_mut_ptr();
            elements.copy_from_nonoverlapping(request.address.pointer, request.byte_len());
        }
        let to = self.placement.member(to);
        if self.job.is_gone(to, self.id) {
            return Err(self.job.lost(to, self.id));
        }
        self.job.send(to, self.message_tag(request.tag), bytes)?;
        Ok(Delivery { source: self.placement.own, element_count: request.element_count })
    }

    /// # Safety
    ///
    /// As [`Backend::start_messages`](crate::comm::backend::Backend::start_messages).
    unsafe fn post_receive(&self, request: MessageRequest, from: Option<GroupRank>, on_end: OnEnd, deadline: Instant) {
        let sources = match from {
            Some(from) => vec![from],
            None => self.placement.ranks().collect(),
        };
        let sources = sources.into_iter().map(|source| (source, self.placement.member(source))).collect();
        let receive =
            PostedReceive { tag: self.message_tag(request.tag), sources, request, on_end, deadline, was_lost: false };
        let ends = self.job.inbox().post(receive);
        self.job.report(ends);
    }

    /// # Safety
    ///
    /// As [`Backend::start_messages`](crate::comm::backend::Backend::start_messages).
    pub(super) unsafe fn begin(&self, request: MessageRequest, on_end: OnEnd, deadline: Instant) {
        self.has_messages.store(true, Ordering::Relaxed);
        // SAFETY: the caller's promise.
        unsafe {
            match request.direction {
                Direction::Send(to) => {
                    let delivery = self.send_message(&request, to);
                    self.job.report(vec![(on_end, delivery)]);
                }
                Direction::Receive(from) => self.post_receive(request, from, on_end, deadline),
            }
        }
    }

    /// # Safety
    ///
    /// As [`Backend::run_message`](crate::comm::backend::Backend::run_message).
    pub(super) unsafe fn run_one(&self, request: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        let end: Arc<Mutex<Option<Result<Delivery>>>> = Arc::default();
        let set = Arc::clone(&end);
        // SAFETY: the caller's promise. This returns when the message has ended.
        unsafe { self.begin(*request, Box::new(move |delivery| *lock(&set) = Some(delivery)), deadline) };
        let name = |rank: GroupRank| self.placement.member(rank);
        let look = || lock(&end).take().transpose();
        let waited = self.job.wait(deadline, &|| format!("{} has not ended", request.with_ranks(name)), look);
        waited.map_err(|error| {
            let error = self.job.end(error);
            // Nothing writes the buffer after this returns.
            self.job.end_receives();
            error
        })
    }
}
