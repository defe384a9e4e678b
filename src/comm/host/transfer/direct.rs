//! Collectives whose ranks reach each other's buffers, in one process or in symmetric memory. A
//! rank reads what it takes in place. In all_reduce each rank reduces its share of the elements and
//! writes the result to every output, so that it reads its share of every input once, and writes
//! its share of every output once. In a long reduce each rank writes its share to the root's
//! output.

use super::running_call::{ForEachRank, RunningCall};
use crate::collective::{Collective, ReduceOperation};
use crate::comm::host::arena::PeerBytes;
use crate::comm::host::protocol::access_guard::{ACCESS_BYTES, Accessor};
use crate::comm::host::protocol::slot::{BufferLocation, CallHeader};
use crate::compute::Stored;
use crate::error::{Result, bail};
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::sync::{Ordering, fence};

/// The bytes of a cache line. That many elements of any type are whole lines.
const LINE: usize = 64;

/// From how many bytes on all ranks share the work of a reduce. Below, the root alone is faster,
/// because it need not wait for the others.
const SHARED_REDUCE_BYTES: usize = 32 << 10;

impl RunningCall<'_> {
    /// Moves the elements, and returns when no peer touches this rank's buffers any more.
    pub(super) fn direct(&mut self) -> Result<()> {
        let call = self.request.call;
        let rank = self.own.rank;
        let shares_reduce = self.shares_reduce()?;
        match call.collective {
            Collective::AllReduce { reduce_op } => self.all_reduce(reduce_op)?,
            Collective::Reduce { reduce_op, root } if shares_reduce => {
                let (start, byte_len) = self.share();
                let target = self.peer_bytes(root, CallHeader::output, start, byte_len)?;
                self.reduce(reduce_op, start, target.address, byte_len, &[])?;
            }
            _ if !call.writes_output(rank) => {}
            Collective::Reduce { reduce_op, .. } | Collective::ReduceScatter { reduce_op } => {
                // The blocks for this rank are equally long in all inputs.
                let byte_len = self.request.block_len(rank, rank) * call.data_type.byte_len();
                self.reduce(reduce_op, self.source_offset(rank), self.request.output_for(rank), byte_len, &[])?;
            }
            _ => self.fetch_all()?,
        }
        // A peer that failed may have freed its symmetric memory while this process was stopped in
        // its last access (invariant 11).
        fence(Ordering::Acquire);
        self.own.segment.domain.check()?;
        // No rank returns while a peer may touch its buffers (invariant 10).
        let finished = self.protocol.finish_round();
        let touched_by = |peer: &GroupRank| shares_reduce || call.moves(rank, *peer);
        self.own.segment.ranks().filter(touched_by).try_for_each(|peer| self.protocol.wait_for(peer, finished))?;
        self.round_in_place();
        Ok(())
    }

    /// Whether this is a reduce whose work all ranks share. They all find the same (invariant 6).
    fn shares_reduce(&mut self) -> Result<bool> {
        let call = self.request.call;
        let Collective::Reduce { root, .. } = call.collective else { return Ok(false) };
        if call.block_bytes() < SHARED_REDUCE_BYTES {
            return Ok(false);
        }
        self.protocol.wait_for_headers(|_| true)?;
        Ok(self.reaches(root, CallHeader::output))
    }

    /// Bytes of this rank's output.
    fn output_at(&self, offset: usize) -> *mut u8 {
        self.request.output.pointer.wrapping_add(offset)
    }

    /// Bytes in one of a peer's buffers (invariant 12).
    fn peer_bytes(
        &self,
        peer: GroupRank,
        buffer: fn(&CallHeader) -> BufferLocation,
        offset: usize,
        byte_len: usize,
    ) -> Result<PeerBytes> {
        let segment = &*self.own.segment;
        match self.protocol.header(peer).map_or(BufferLocation::Unreachable, buffer) {
            BufferLocation::List(_) if segment.spans_processes => {
                bail!(System, "rank {} gives a list of addresses, and is in another process", segment.name(peer))
            }
            // The offset of this rank's block in a list is its place there.
            BufferLocation::List(list) => {
                let own = std::ptr::with_exposed_provenance::<Address>(list).wrapping_add(self.own.rank.index());
                let _access = segment.begin_access(self.own.rank, Accessor::Collective)?;
                // SAFETY: the peer's list has an address for each rank (invariant 5), and stays
                // valid while this rank has an access (invariants 9 and 10).
                Ok(PeerBytes { address: unsafe { own.read() }.pointer, block: None })
            }
            // The buffer begins with what is before the offset.
            location => match self.own.bytes_of(peer, location, offset.saturating_add(byte_len))? {
                Some(bytes) => Ok(PeerBytes { address: bytes.address.wrapping_add(offset), ..bytes }),
                None => bail!(System, "rank {} has said nothing of this buffer", segment.name(peer)),
            },
        }
    }

    /// Gives `work` the addresses of bytes in a buffer of each rank, in rank order.
    fn with_peer_bytes(
        &self,
        buffer: fn(&CallHeader) -> BufferLocation,
        offset: usize,
        byte_len: usize,
        work: impl FnOnce(&mut [*const u8]) -> Result<()>,
    ) -> Result<()> {
        let mut blocks = ForEachRank::new();
        let address_of = |peer| {
            let bytes = self.peer_bytes(peer, buffer, offset, byte_len)?;
            blocks.extend(bytes.block);
            Ok(bytes.address.cast_const())
        };
        self.with_addresses(address_of, work)
    }

    /// Copies `len` bytes from a peer's memory into this rank's output, in one access after the
    /// other.
    fn copy_in(&self, source: *const u8, target: *mut u8, len: usize) -> Result<()> {
        if source == target.cast_const() {
            return Ok(());
        }
        for done in (0..len).step_by(ACCESS_BYTES) {
            let part = ACCESS_BYTES.min(len - done);
            self.protocol.before_moving(part)?;
            let _access = self.own.segment.begin_access(self.own.rank, Accessor::Collective)?;
            // SAFETY: `source` is in a buffer that holds these bytes (invariants 5 and 12), and
            // stays valid while this rank has an access (invariants 9, 10 and 13). The output holds
            // them by the contract of `Backend::run`, whose in-place rules keep the two apart.
            unsafe { self.take_elements(source.add(done), Stored::AsFloat32, target.add(done), part) };
        }
        Ok(())
    }

    /// Copies the blocks that this rank takes into its output.
    fn fetch_all(&self) -> Result<()> {
        let element = self.request.call.data_type.byte_len();
        // Each rank begins with its own block, so that the ranks read different memory at first.
        let n = self.own.segment.len();
        for peer in (0..n).map(|i| GroupRank(((self.own.rank.index() + i) % n) as u32)) {
            if self.takes_from(peer) {
                let byte_len = self.request.block_len(peer, self.own.rank) * element;
                let source = self.peer_bytes(peer, CallHeader::input, self.source_offset(peer), byte_len)?;
                self.copy_in(source.address, self.request.output_for(peer), byte_len)?;
            }
        }
        Ok(())
    }

    /// Reduces a range of bytes of all inputs into `target`, in one access after the other. Each
    /// piece is copied to `copies` while it is in the cache.
    fn reduce(
        &self,
        reduce_op: ReduceOperation,
        source_start: usize,
        target: *mut u8,
        byte_len: usize,
        copies: &[*const u8],
    ) -> Result<()> {
        let n = self.own.segment.len();
        // An access touches each buffer. Its pieces are whole cache lines, or single elements where
        // there are too many buffers for a line of each.
        let element = self.request.call.data_type.byte_len();
        let fair = ACCESS_BYTES / (n + copies.len());
        let most = if fair >= LINE { fair / LINE * LINE } else { element };
        self.with_peer_bytes(CallHeader::input, source_start, byte_len, |sources| {
            for start in (0..byte_len).step_by(most) {
                let part = most.min(byte_len - start);
                self.protocol.before_moving(part)?;
                let result = target.wrapping_add(start);
                let _access = self.own.segment.begin_access(self.own.rank, Accessor::Collective)?;
                // SAFETY: as in `copy_in`, for every source. In place the target is one of them.
                unsafe { self.reduce_elements(reduce_op, sources, Stored::AsFloat32, result, part) };
                for copy in copies.iter().filter(|copy| **copy != target.cast_const()) {
                    // SAFETY: as in `copy_in`, with a peer's output as the target. This range of it
                    // is this rank's share, which no other rank touches.
                    unsafe { result.copy_to_nonoverlapping(copy.wrapping_add(start).cast_mut(), part) };
                }
                sources.iter_mut().for_each(|source| *source = source.wrapping_add(part));
            }
            Ok(())
        })
    }

    /// This rank's share of the elements that all ranks reduce: where it begins, and its length, in
    /// bytes.
    fn share(&self) -> (usize, usize) {
        let call = self.request.call;
        // Two ranks do not write the same line.
        let elements = call.block_elements.div_ceil(self.own.segment.len()).next_multiple_of(LINE);
        let share = elements * call.data_type.byte_len();
        let start = (self.own.rank.index() * share).min(call.block_bytes());
        (start, share.min(call.block_bytes() - start))
    }

    /// Reduces this rank's share of the elements, and writes it to every output.
    fn all_reduce(&self, reduce_op: ReduceOperation) -> Result<()> {
        let (start, byte_len) = self.share();
        self.with_peer_bytes(CallHeader::output, start, byte_len, |outputs| {
            self.reduce(reduce_op, start, self.output_at(start), byte_len, outputs)
        })
    }
}
