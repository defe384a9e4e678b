//! Blocks that move: over the link in pieces, and on the host among the ranks of a machine.

use super::ClusterBackend;
use super::job::MOST_UNSENT;
use super::link::{Bytes, MessageKind, Tag};
use crate::collective::{Collective, Givers};
use crate::comm::backend::Request;
use crate::compute;
use crate::error::{Result, bail};
use crate::memory::Address;
use crate::rank::{GroupRank, Rank};

/// The bytes that the link moves at once.
const PIECE_BYTES: usize = 256 << 10;

/// A block of this rank that goes over the link, in pieces.
struct OutgoingBlock {
    to: Rank,
    block: *const u8,
    byte_len: usize,
    sent: usize,
}

/// A block that comes over the link, in pieces.
struct IncomingBlock {
    from: Rank,
    block: *mut u8,
    byte_len: usize,
    received: usize,
}

impl ClusterBackend {
    fn block_tag(&self) -> Tag {
        Tag { communicator: self.id, kind: MessageKind::Blocks, number: 0 }
    }

    /// Sends the next piece of a block. Returns whether there was one.
    ///
    /// # Safety
    ///
    /// The block is valid for reads.
    unsafe fn send_piece(&self, outgoing: &mut OutgoingBlock) -> Result<bool> {
        let len = PIECE_BYTES.min(outgoing.byte_len - outgoing.sent);
        if len == 0 {
            return Ok(false);
        }
        // SAFETY: the piece is in the block, and the caller's promise.
        let piece = unsafe { Bytes::copy_from(outgoing.block.add(outgoing.sent), len) };
        self.job.send(outgoing.to, self.block_tag(), piece)?;
        outgoing.sent += len;
        Ok(true)
    }

    /// Sends a piece of each block, as long as the link has room.
    ///
    /// # Safety
    ///
    /// As [`send_piece`](Self::send_piece).
    unsafe fn send_some(&self, blocks: &mut [OutgoingBlock]) -> Result<()> {
        let mut has_sent = true;
        while has_sent && self.job.unsent() < MOST_UNSENT {
            has_sent = false;
            for block in &mut *blocks {
                // SAFETY: the caller's promise.
                has_sent |= unsafe { self.send_piece(block)? };
            }
        }
        Ok(())
    }

    /// Moves blocks that go from one rank to one other.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`](crate::comm::backend::Backend::run). The ranks have agreed.
    pub(super) unsafe fn move_pairwise(&self, request: &Request<'_>) -> Result<()> {
        let (call, place, own) = (&request.call, &self.placement, self.placement.own);
        let element = call.data_type.byte_len();
        let len = |from, to| if call.moves(from, to) { request.block_len(from, to) * element } else { 0 };
        let input_block = |to: GroupRank| request.input_block(if call.input().is_per_rank { to.index() } else { 0 });
        let remote = || place.ranks().filter(|rank| !place.is_local(*rank));
        let mut outgoing: Vec<OutgoingBlock> = remote()
            .filter(|to| len(own, *to) > 0)
            .map(|to| OutgoingBlock { to: place.member(to), block: input_block(to), byte_len: len(own, to), sent: 0 })
            .collect();
        let mut incoming: Vec<IncomingBlock> = remote()
            .filter(|from| len(*from, own) > 0)
            .map(|from| IncomingBlock {
                from: place.member(from),
                block: request.output_for(from),
                byte_len: len(from, own),
                received: 0,
            })
            .collect();
        let locals = place.local_ranks();
        let addresses = |address_of: &dyn Fn(GroupRank) -> *const u8, is_used: &dyn Fn(GroupRank) -> bool| {
            let address = |rank: &GroupRank| match is_used(*rank) {
                true => Address::host(address_of(*rank)),
                false => Address::host(std::ptr::null()),
            };
            locals.iter().map(address).collect::<Vec<_>>()
        };
        let inputs = addresses(&input_block, &|to| len(own, to) > 0);
        let outputs = addresses(&|from| request.output_for(from).cast_const(), &|from| len(from, own) > 0);
        let local_len = |from: usize, to: usize| len(locals[from], locals[to]);
        // SAFETY: the caller's promise.
        unsafe {
            self.send_some(&mut outgoing)?;
            self.run_uneven_on_host(Collective::AllToAll, local_len, &inputs, &outputs, request)?;
        }
        let look = || {
            // SAFETY: the caller's promise.
            unsafe { self.send_some(&mut outgoing)? };
            for block in &mut incoming {
                // SAFETY: as above: the output holds the block.
                unsafe { self.take_pieces(block)? };
            }
            let is_done = outgoing.iter().all(|block| block.sent == block.byte_len)
                && incoming.iter().all(|block| block.received == block.byte_len);
            Ok(is_done.then_some(()))
        };
        self.job.wait(request.deadline, &|| "not all blocks came from other machines".to_owned(), look)
    }

    /// Takes the pieces of a block that have come.
    ///
    /// # Safety
    ///
    /// The block is valid for writes.
    unsafe fn take_pieces(&self, block: &mut IncomingBlock) -> Result<()> {
        while block.received < block.byte_len {
            let gone = self.job.is_gone(block.from, self.id);
            let Some(piece) = self.job.inbox().take(block.from, self.block_tag()) else {
                return if gone { Err(self.job.lost(block.from, self.id)) } else { Ok(()) };
            };
            if piece.len() > block.byte_len - block.received {
                bail!(System, "rank {} sent more than its block", block.from);
            }
            // SAFETY: the piece fits into the block.
            unsafe { compute::copy(piece.as_ptr(), block.block.add(block.received), piece.len()) };
            block.received += piece.len();
        }
        Ok(())
    }

    /// Moves blocks that go from a rank to all. Each goes to one rank of each other machine, and
    /// from there to the others on the host.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`](crate::comm::backend::Backend::run). The ranks have agreed.
    pub(super) unsafe fn move_to_all(&self, request: &Request<'_>) -> Result<()> {
        let (call, place, own) = (&request.call, &self.placement, self.placement.own);
        let element = call.data_type.byte_len();
        let gives = |rank: GroupRank| match call.givers_to(rank) {
            Givers::Root(root) => root == rank,
            _ => true,
        };
        // All take the same from a rank.
        let len = |rank: GroupRank| if gives(rank) { request.block_len(rank, GroupRank(0)) * element } else { 0 };
        let block = if gives(own) { request.input_block(0) } else { std::ptr::null() };
        let other_machines = place.other_machines().map(|machine| place.counterpart(own, machine).1);
        let mut outgoing: Vec<OutgoingBlock> = other_machines
            .map(|to| OutgoingBlock { to: place.member(to), block, byte_len: len(own), sent: 0 })
            .collect();
        // SAFETY: the caller's promise.
        unsafe {
            self.send_some(&mut outgoing)?;
            self.give_local_blocks(request, &len, block)?;
        }
        let mut step = 0;
        for wave in place.waves() {
            let longest = wave.iter().map(|rank| len(*rank)).max().unwrap_or(0);
            for start in (0..longest).step_by(PIECE_BYTES) {
                step += 1;
                // SAFETY: as above.
                unsafe {
                    // What another machine may wait for in its step is sent before this rank waits
                    // for the others of its machine.
                    for block in &mut outgoing {
                        while block.sent < (step * PIECE_BYTES).min(block.byte_len) {
                            self.send_piece(block)?;
                        }
                    }
                    self.send_some(&mut outgoing)?;
                    self.give_remote_piece(request, &wave, &len, start)?;
                }
            }
        }
        let all_sent = || {
            // SAFETY: as above.
            unsafe { self.send_some(&mut outgoing)? };
            Ok(outgoing.iter().all(|block| block.sent == block.byte_len).then_some(()))
        };
        self.job.wait(request.deadline, &|| "other machines did not take this rank's block".to_owned(), all_sent)
    }

    /// Gives each rank of this machine the blocks of this machine's ranks.
    ///
    /// # Safety
    ///
    /// As [`move_to_all`](Self::move_to_all).
    unsafe fn give_local_blocks(
        &self,
        request: &Request<'_>,
        len: &dyn Fn(GroupRank) -> usize,
        block: *const u8,
    ) -> Result<()> {
        let locals = self.placement.local_ranks();
        let output = |rank: &GroupRank| match len(*rank) {
            0 => Address::host(std::ptr::null()),
            _ => Address::host(request.output_for(*rank)),
        };
        let outputs: Vec<Address> = locals.iter().map(output).collect();
        if let [only] = locals {
            let target = outputs[0].pointer;
            if target.cast_const() != block && len(*only) > 0 {
                // SAFETY: the caller's promise: the two are the same or do not overlap.
                unsafe { compute::copy(block, target, len(*only)) };
            }
            return Ok(());
        }
        // SAFETY: the caller's promise.
        unsafe { self.gather_on_host(|from| len(locals[from]), block, &outputs, request) }
    }

    /// Takes a piece of each block of a wave over the link, one on each rank of this machine, and
    /// gives all of them to each rank.
    ///
    /// # Safety
    ///
    /// As [`move_to_all`](Self::move_to_all).
    unsafe fn give_remote_piece(
        &self,
        request: &Request<'_>,
        wave: &[GroupRank],
        len: &dyn Fn(GroupRank) -> usize,
        start: usize,
    ) -> Result<()> {
        let place = &self.placement;
        let piece_len = |rank: GroupRank| len(rank).saturating_sub(start).min(PIECE_BYTES);
        let own = wave.get(place.local_index(place.own)).copied().filter(|rank| piece_len(*rank) > 0);
        let piece = match own {
            None => Bytes::default(),
            Some(giver) => {
                let from = place.member(giver);
                let missing = || format!("rank {from} did not send its block");
                let piece = self.job.receive(from, self.block_tag(), request.deadline, &missing)?;
                if piece.len() != piece_len(giver) {
                    bail!(System, "rank {from} sent a piece of {} bytes, which has {}", piece.len(), piece_len(giver));
                }
                piece
            }
        };
        let output = |rank: &GroupRank| match piece_len(*rank) {
            0 => Address::host(std::ptr::null()),
            _ => Address::host(request.output_for(*rank).wrapping_add(start)),
        };
        let mut outputs: Vec<Address> = wave.iter().map(output).collect();
        if let [_] = place.local_ranks() {
            // SAFETY: the output holds the piece.
            unsafe { compute::copy(piece.as_ptr(), outputs[0].pointer, piece.len()) };
            return Ok(());
        }
        outputs.resize(place.local_ranks().len(), Address::host(std::ptr::null()));
        let lens = |from: usize| wave.get(from).map_or(0, |rank| piece_len(*rank));
        // SAFETY: the caller's promise.
        unsafe { self.gather_on_host(lens, piece.as_ptr(), &outputs, request) }
    }
}
