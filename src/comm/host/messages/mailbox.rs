//! The messages of one rank: what it sends and receives, and what has arrived without a receive.
//!
//! Each thread of the rank that waits for a message moves all of them along ([`Mailbox::advance`]),
//! with the mailbox locked.

use std::collections::VecDeque;
use std::time::Instant;

use super::operation::{Incoming, Operation, Stage};
use crate::comm::host::arena::PeerBytes;
use crate::comm::host::own_rank::OwnRank;
use crate::comm::host::protocol::access_guard::{ACCESS_BYTES, Accessor};
use crate::comm::host::protocol::doorbell::Rung;
use crate::comm::host::protocol::record::{Envelope, Record};
use crate::comm::host::protocol::ring::Ring;
use crate::comm::host::protocol::slot::BufferLocation;
use crate::comm::message::{Delivery, Direction, MessageRequest, OnEnd};
use crate::error::{Result, bail};
use crate::rank::GroupRank;
use crate::sync::{Ordering, fence};
use crate::util::text::count_of;

/// How many bytes a receive copies from the sender's buffer before the mailbox is unlocked.
const COPY_BYTES: usize = 4 * ACCESS_BYTES;

/// What one rank has in hand.
#[derive(Default)]
pub(super) struct Mailbox {
    /// In the order in which this rank made them.
    pub(super) operations: Vec<Operation>,
    /// The number of the latest operation.
    latest: u64,
    /// What has arrived without a receive, in the order of arrival.
    unexpected: VecDeque<Unexpected>,
    rung: Rung,
    pub(super) thread: ProgressThread,
    /// The peers whose ring this rank has allocated.
    has_ring: Vec<bool>,
    /// For each peer, whether a send waits for room in its ring, so that later ones stay behind.
    is_blocked: Vec<bool>,
}

/// The state of a rank's progress thread.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum ProgressThread {
    #[default]
    Absent,
    Running,
    Closed,
}

/// A message without a receive.
struct Unexpected {
    source: GroupRank,
    envelope: Envelope,
    body: Body,
}

enum Body {
    Bytes(Box<[u8]>),
    /// With the sender.
    Announced {
        id: u64,
        location: BufferLocation,
    },
}

impl Mailbox {
    pub(super) fn new(rank_count: usize) -> Self {
        let none = vec![false; rank_count];
        Mailbox { has_ring: none.clone(), is_blocked: none, ..Mailbox::default() }
    }

    /// Adds an operation, and returns its number.
    pub(super) fn add(&mut self, request: MessageRequest, deadline: Instant, on_end: Option<OnEnd>) -> u64 {
        self.latest += 1;
        let stage = match request.direction {
            Direction::Send(_) => Stage::Queued,
            Direction::Receive(_) => Stage::Posted,
        };
        self.operations.push(Operation { number: self.latest, request, deadline, stage, source: None, on_end });
        self.latest
    }

    /// Gives a new receive the first message for it that has arrived.
    ///
    /// # Errors
    ///
    /// The message does not fit.
    pub(super) fn match_arrived(&mut self, own: &OwnRank, number: u64) -> Result<()> {
        let Some(index) = self.index_of(number) else { return Ok(()) };
        let is_for_it = |arrived: &Unexpected| self.operations[index].takes(arrived.source, arrived.envelope.tag);
        if let Some(arrived) = self.unexpected.iter().position(is_for_it).and_then(|at| self.unexpected.remove(at)) {
            let Unexpected { source, envelope, body } = arrived;
            match body {
                Body::Bytes(bytes) => self.deliver(own, index, source, envelope, bytes.as_ptr())?,
                Body::Announced { id, location } => self.accept(own, index, source, id, envelope, location)?,
            }
        }
        Ok(())
    }

    /// Takes an operation back.
    pub(super) fn remove(&mut self, number: u64) {
        if let Some(index) = self.index_of(number) {
            self.operations.remove(index);
        }
    }

    /// Takes the end of an operation, if it has ended.
    pub(super) fn take_end(&mut self, number: u64) -> Option<Delivery> {
        let index = self.index_of(number)?;
        let Stage::Ended(delivery) = self.operations[index].stage else { return None };
        self.operations.remove(index);
        Some(delivery)
    }

    /// Takes the asynchronous operations that have ended.
    pub(super) fn take_asynchronous_ends(&mut self, ends: &mut Vec<(OnEnd, Delivery)>) {
        self.operations.retain_mut(|operation| match operation.stage {
            Stage::Ended(delivery) => operation.on_end.take().map(|on_end| ends.push((on_end, delivery))).is_none(),
            _ => true,
        });
    }

    /// Takes all asynchronous operations.
    pub(super) fn take_asynchronous(&mut self) -> Vec<OnEnd> {
        let asynchronous = self.operations.extract_if(.., |operation| operation.on_end.is_some());
        asynchronous.filter_map(|operation| operation.on_end).collect()
    }

    /// The asynchronous operation with the first deadline, and that deadline.
    pub(super) fn first_deadline(&self) -> Option<(u64, Instant)> {
        let asynchronous = self.operations.iter().filter(|operation| operation.on_end.is_some());
        asynchronous.map(|operation| (operation.number, operation.deadline)).min_by_key(|(_, deadline)| *deadline)
    }

    pub(super) fn index_of(&self, number: u64) -> Option<usize> {
        self.operations.binary_search_by_key(&number, |operation| operation.number).ok()
    }

    /// Moves all operations along as far as they come without a wait, but for long copies. Returns
    /// whether anything has moved; then there may be more to do.
    pub(super) fn advance(&mut self, own: &OwnRank) -> Result<bool> {
        let mut has_moved = false;
        self.is_blocked.fill(false);
        for index in 0..self.operations.len() {
            has_moved |= self.advance_one(own, index)?;
        }
        own.segment.slot(own.rank).doorbell().take(&mut self.rung);
        let mut next = 0;
        while let Some(peer) = self.rung.next(next, own.segment.len()) {
            has_moved |= self.read_ring(own, peer)?;
            next = peer.0 + 1;
        }
        Ok(has_moved)
    }

    /// Moves one operation along, as far as it does not depend on what peers write.
    fn advance_one(&mut self, own: &OwnRank, index: usize) -> Result<bool> {
        let Operation { number, request, stage, .. } = self.operations[index];
        let byte_len = request.byte_len();
        let next = match (stage, request.direction) {
            (Stage::Queued, Direction::Send(to)) if !self.is_blocked[to.index()] => self.send(own, to, index)?,
            (Stage::Streaming { sent }, Direction::Send(to)) => {
                let ring = self.ring_to(own, to)?;
                let mut next = sent;
                while next < byte_len && ring.has_room() {
                    let part = ring.payload_len().min(byte_len - next);
                    let bytes = request.address.pointer.wrapping_add(next);
                    // SAFETY: the buffer holds the bytes, and the message uses it until it ends.
                    unsafe { ring.push(Record::Piece { id: number, byte_len: part }, bytes) };
                    next += part;
                }
                if next > sent {
                    own.tell(to);
                }
                match next {
                    _ if next == sent => None,
                    _ if next == byte_len => Some(self.operations[index].received(own.rank, byte_len)),
                    sent => Some(Stage::Streaming { sent }),
                }
            }
            (Stage::Answering(incoming), _) => {
                let is_told = self.tell(own, incoming.source, Record::Ready { id: incoming.id })?;
                is_told.then_some(Stage::Receiving { incoming, received: 0 })
            }
            (Stage::Copying { incoming, from, copied }, _) => Some(copy(own, &request, incoming, from, copied)?),
            (Stage::Acknowledging(incoming), _) => {
                let is_told = self.tell(own, incoming.source, Record::Taken { id: incoming.id })?;
                is_told.then(|| self.operations[index].received(incoming.source, incoming.byte_len))
            }
            _ => None,
        };
        let Some(next) = next else { return Ok(false) };
        self.operations[index].stage = next;
        Ok(true)
    }

    /// Puts a send into the ring: whole if it fits a cell, otherwise an announcement.
    fn send(&mut self, own: &OwnRank, to: GroupRank, index: usize) -> Result<Option<Stage>> {
        let Operation { number, request, .. } = self.operations[index];
        let (byte_len, address) = (request.byte_len(), request.address.pointer.cast_const());
        let envelope = Envelope { tag: request.tag, data_type: request.data_type, byte_len };
        let is_inline = byte_len <= self.ring_to(own, to)?.payload_len();
        let record = match is_inline {
            true => Record::Inline(envelope),
            // This rank finds its own by the number of the send.
            false if to == own.rank => Record::Announce { id: number, envelope, location: BufferLocation::Unreachable },
            false => Record::Announce { id: number, envelope, location: own.locate(address, byte_len, false) },
        };
        // SAFETY: the buffer holds the bytes, and the message uses it until it ends.
        if !unsafe { self.push(own, to, record, address)? } {
            self.is_blocked[to.index()] = true;
            return Ok(None);
        }
        let sent = || self.operations[index].received(own.rank, byte_len);
        Ok(Some(if is_inline { sent() } else { Stage::Announced }))
    }

    /// Writes a record without bytes, if there is room.
    fn tell(&mut self, own: &OwnRank, to: GroupRank, record: Record) -> Result<bool> {
        // SAFETY: the record has no bytes.
        unsafe { self.push(own, to, record, std::ptr::null()) }
    }

    /// Writes a record, if there is room, and wakes the peer.
    ///
    /// # Safety
    ///
    /// As [`Ring::push`].
    unsafe fn push(&mut self, own: &OwnRank, to: GroupRank, record: Record, payload: *const u8) -> Result<bool> {
        let ring = self.ring_to(own, to)?;
        if !ring.has_room() {
            return Ok(false);
        }
        // SAFETY: the caller's promise.
        unsafe { ring.push(record, payload) };
        own.tell(to);
        Ok(true)
    }

    /// The ring to a peer, which is allocated when this rank first writes into it.
    fn ring_to<'a>(&mut self, own: &'a OwnRank, to: GroupRank) -> Result<Ring<'a>> {
        let has_ring = &mut self.has_ring[to.index()];
        if !*has_ring {
            own.segment.allocate_ring(own.rank, to)?;
            *has_ring = true;
        }
        Ok(own.segment.ring(own.rank, to))
    }

    /// Reads what a peer has written, as long as an operation waits for something of it. So a
    /// message for which there is no receive stays in the ring until a receive may be behind it.
    fn read_ring(&mut self, own: &OwnRank, peer: GroupRank) -> Result<bool> {
        let ring = own.segment.ring(peer, own.rank);
        let mut has_read = false;
        let mut result = Ok(());
        while result.is_ok() && self.operations.iter().any(|operation| operation.waits_for(peer)) {
            match ring.pop(|record, payload| self.read(own, peer, record, payload)) {
                Some(read) => (has_read, result) = (true, read),
                None => {
                    self.rung.clear(peer);
                    break;
                }
            }
        }
        if has_read {
            // It may wait for room.
            own.wake(peer);
        }
        result.map(|()| has_read)
    }

    /// Deals with one record of a peer.
    fn read(&mut self, own: &OwnRank, peer: GroupRank, record: Option<Record>, payload: *const u8) -> Result<()> {
        match record {
            Some(Record::Inline(envelope)) => match self.receive_for(peer, &envelope) {
                Some(index) => self.deliver(own, index, peer, envelope, payload),
                None => {
                    // SAFETY: the cell has these bytes, and does not change now (invariant 23).
                    let bytes = unsafe { std::slice::from_raw_parts(payload, envelope.byte_len) };
                    self.keep(peer, envelope, Body::Bytes(bytes.into()))
                }
            },
            Some(Record::Announce { id, envelope, location }) => match self.receive_for(peer, &envelope) {
                Some(index) => self.accept(own, index, peer, id, envelope, location),
                None => self.keep(peer, envelope, Body::Announced { id, location }),
            },
            Some(record @ (Record::Ready { id } | Record::Taken { id })) => {
                let of_peer = |operation: &&mut Operation| operation.number == id && operation.waits_for(peer);
                let operation = self.operations.iter_mut().find(of_peer).ok_or_else(|| own.broken(peer))?;
                operation.stage = match record {
                    Record::Ready { .. } => Stage::Streaming { sent: 0 },
                    _ => operation.received(own.rank, operation.request.byte_len()),
                };
                Ok(())
            }
            Some(Record::Piece { id, byte_len }) => self.take_piece(own, peer, id, payload, byte_len),
            None => Err(own.broken(peer)),
        }
    }

    /// Keeps a message for which there is no receive.
    fn keep(&mut self, source: GroupRank, envelope: Envelope, body: Body) -> Result<()> {
        self.unexpected.push_back(Unexpected { source, envelope, body });
        Ok(())
    }

    /// The first receive for a message.
    fn receive_for(&self, source: GroupRank, envelope: &Envelope) -> Option<usize> {
        self.operations.iter().position(|operation| operation.takes(source, envelope.tag))
    }

    /// Writes a whole message into the buffer of a receive.
    fn deliver(
        &mut self,
        own: &OwnRank,
        index: usize,
        source: GroupRank,
        envelope: Envelope,
        bytes: *const u8,
    ) -> Result<()> {
        let operation = &mut self.operations[index];
        check_fit(own, operation, source, &envelope)?;
        let target = operation.request.address.pointer;
        // SAFETY: the bytes are in a cell that does not change now (invariant 23), or in private
        // memory. The buffer is as long, as `check_fit` has found, and is the receive's until it
        // ends.
        unsafe { crate::compute::copy(bytes, target, envelope.byte_len) };
        operation.stage = operation.received(source, envelope.byte_len);
        Ok(())
    }

    /// Gives an announced message to a receive.
    fn accept(
        &mut self,
        own: &OwnRank,
        index: usize,
        source: GroupRank,
        id: u64,
        envelope: Envelope,
        location: BufferLocation,
    ) -> Result<()> {
        check_fit(own, &self.operations[index], source, &envelope)?;
        let incoming = Incoming { source, id, byte_len: envelope.byte_len };
        let bytes = if source == own.rank {
            let send = self.index_of(id).map(|send| &self.operations[send]);
            let send = send.filter(|send| send.waits_for(source) && send.request.byte_len() == envelope.byte_len);
            let address = send.ok_or_else(|| own.broken(source))?.request.address.pointer;
            Some(PeerBytes { address, block: None })
        } else {
            own.bytes_of(source, location, envelope.byte_len)?
        };
        let receive = &mut self.operations[index];
        receive.stage = match bytes {
            Some(PeerBytes { address, block }) => {
                receive.source = block;
                Stage::Copying { incoming, from: address, copied: 0 }
            }
            None => Stage::Answering(incoming),
        };
        Ok(())
    }

    /// Writes the next bytes of an announced message into the buffer of its receive.
    fn take_piece(
        &mut self,
        own: &OwnRank,
        peer: GroupRank,
        id: u64,
        payload: *const u8,
        byte_len: usize,
    ) -> Result<()> {
        for operation in &mut self.operations {
            let Stage::Receiving { incoming, received } = operation.stage else { continue };
            if (incoming.source, incoming.id) != (peer, id) || byte_len > incoming.byte_len - received {
                continue;
            }
            let target = operation.request.address.pointer.wrapping_add(received);
            // SAFETY: as in `deliver`: the buffer holds `incoming.byte_len` bytes.
            unsafe { crate::compute::copy(payload, target, byte_len) };
            let received = received + byte_len;
            operation.stage = match received == incoming.byte_len {
                true => operation.received(peer, received),
                false => Stage::Receiving { incoming, received },
            };
            return Ok(());
        }
        Err(own.broken(peer))
    }

    /// How many messages have arrived that this rank has not received.
    pub(super) fn count_unreceived(&mut self, own: &OwnRank) -> usize {
        own.segment.slot(own.rank).doorbell().take(&mut self.rung);
        let mut count = self.unexpected.len();
        let mut next = 0;
        while let Some(peer) = self.rung.next(next, own.segment.len()) {
            count += own.segment.ring(peer, own.rank).message_count();
            next = peer.0 + 1;
        }
        count
    }
}

/// Checks that a message may be written into the buffer of a receive.
fn check_fit(own: &OwnRank, receive: &Operation, source: GroupRank, envelope: &Envelope) -> Result<()> {
    let MessageRequest { tag, data_type, element_count, .. } = receive.request;
    if data_type == envelope.data_type && envelope.byte_len <= receive.request.byte_len() {
        return Ok(());
    }
    let [own, sender] = [own.rank, source].map(|rank| own.segment.name(rank));
    let sent = envelope.byte_len / envelope.data_type.byte_len();
    let problem = match data_type == envelope.data_type {
        true => format!("{} fit its buffer", count_of(element_count, "element")),
        false => format!("its buffer is {data_type}"),
    };
    let sent_type = envelope.data_type;
    bail!(
        Disagreement,
        "rank {sender} sent {sent} {sent_type} with tag {tag}, and rank {own} cannot receive them: {problem}"
    )
}

/// Copies more of a message from the sender's buffer, and returns the next stage.
fn copy(own: &OwnRank, request: &MessageRequest, incoming: Incoming, from: *const u8, copied: usize) -> Result<Stage> {
    let end = incoming.byte_len.min(copied + COPY_BYTES);
    for start in (copied..end).step_by(ACCESS_BYTES) {
        let part = ACCESS_BYTES.min(end - start);
        let _access = own.segment.begin_access(own.rank, Accessor::Mailbox)?;
        let target = request.address.pointer.wrapping_add(start);
        // SAFETY: the sender's buffer has these bytes (invariants 12 and 25), and stays valid while
        // this rank has an access (invariants 9 and 13). The receive's buffer holds them, as
        // `check_fit` has found, and is another one by the contract of `Backend`.
        unsafe { target.copy_from_nonoverlapping(from.wrapping_add(start), part) };
    }
    if end < incoming.byte_len {
        return Ok(Stage::Copying { incoming, from, copied: end });
    }
    // A peer that failed may have freed its symmetric memory while this process was stopped in its
    // last access (invariant 11).
    fence(Ordering::Acquire);
    own.segment.domain.check()?;
    Ok(Stage::Acknowledging(incoming))
}
