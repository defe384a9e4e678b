//! The program's messages from one rank to another, also between ranks of one machine: a receive
//! from any rank takes them in the order in which they come.

use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::ClusterBackend;
use super::inbox::PostedReceive;
use super::job::report;
use super::link::{Bytes, Channel, Tag};
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::error::{Result, bail};
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};
use crate::util::lock;

/// What a message begins with: the number of its type, and of its elements.
const HEADER_BYTES: usize = 16;

/// Copies a message into the buffer of a receive.
///
/// # Errors
///
/// `Disagreement`: it has another type, or more elements than the buffer. Nothing is written.
///
/// # Safety
///
/// The request's buffer is valid for writes, and used by no other code.
pub(super) unsafe fn take_message(
    request: &MessageRequest,
    source: GroupRank,
    sender: Rank,
    bytes: &[u8],
) -> Result<Delivery> {
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

impl ClusterBackend {
    fn message_tag(&self, tag: u16) -> Tag {
        Tag { communicator: self.id, channel: Channel::Messages, number: tag }
    }

    /// Sends a message, whose bytes are copied.
    ///
    /// # Safety
    ///
    /// The request's buffer is valid for reads.
    unsafe fn send_message(&self, request: &MessageRequest, to: GroupRank, deadline: Instant) -> Result<Delivery> {
        let mut bytes = Bytes::zeroed(HEADER_BYTES + request.byte_len());
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
        self.wait_for_room(deadline)?;
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
        let receive = PostedReceive { tag: self.message_tag(request.tag), sources, request, on_end, deadline };
        let ends = self.job.inbox().post(receive);
        report(ends);
    }

    /// # Safety
    ///
    /// As [`Backend::start_messages`](crate::comm::backend::Backend::start_messages).
    pub(super) unsafe fn begin(&self, request: MessageRequest, on_end: OnEnd, deadline: Instant) {
        // SAFETY: the caller's promise.
        unsafe {
            match request.direction {
                Direction::Send(to) => on_end(self.send_message(&request, to, deadline)),
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
        let from = match request.direction {
            Direction::Receive(Some(from)) => Some(name(from)),
            _ => None,
        };
        let mut was_gone = false;
        let look = || {
            if let Some(delivery) = lock(&end).take() {
                return delivery.map(Some);
            }
            let is_gone = from.is_some_and(|from| self.job.is_gone(from, self.id));
            if std::mem::replace(&mut was_gone, is_gone) {
                return Err(self.job.lost(from.unwrap_or(self.job.own), self.id));
            }
            Ok(None)
        };
        let waited = self.job.wait(deadline, &|| format!("{} has not ended", request.with_ranks(name)), look);
        waited.map_err(|error| {
            let error = self.job.end(error);
            // Nothing writes the buffer after this returns.
            let ends = self.job.inbox().take_ends(Some(error.clone()), Instant::now());
            report(ends);
            error
        })
    }
}
