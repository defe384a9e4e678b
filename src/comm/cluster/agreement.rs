//! What ranks say of a call before its elements move.

use std::time::Instant;

use super::link::{Bytes, MessageKind, Tag};
use super::{ClusterBackend, part_of};
use crate::collective::{Call, Collective};
use crate::comm::backend::Request;
use crate::comm::run_id::CountedRun;
use crate::comm::signature::{Signature, difference};
use crate::comm::transfer_path::TransferPath;
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::util::text::list_ranks;

/// What a rank says of a call: its signature, and its input if that is so short. It is as long as
/// what the host backend's headers have room for.
const RECORD_BYTES: usize = 96;
const SIGNATURE_BYTES: usize = 24;
const INPUT_BYTES: usize = RECORD_BYTES - SIGNATURE_BYTES;

/// A rank's calls on a communicator.
#[derive(Default)]
pub(super) struct Calls {
    /// The number of collectives so far that errors count.
    pub(super) counted: u64,
    /// How elements moved in the latest that moved any.
    pub(super) path: Option<TransferPath>,
}

/// The records of all ranks, which say the same call.
pub(super) struct Agreed(Bytes);

impl Agreed {
    /// Each rank's input, if the records have them.
    pub(super) fn inputs(&self, request: &Request<'_>, rank_count: usize) -> Option<Vec<*const u8>> {
        let has_inputs = is_short(request, rank_count);
        has_inputs.then(|| self.0.chunks(RECORD_BYTES).map(|record| record[SIGNATURE_BYTES..].as_ptr()).collect())
    }
}

/// Whether records have room for the inputs of a call.
fn is_short(request: &Request<'_>, rank_count: usize) -> bool {
    request.uneven.is_none() && request.call.input_bytes(rank_count) <= INPUT_BYTES
}

fn signature_of(record: &[u8]) -> Signature {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| record[8 * at + i]));
    Signature([0, 1, 2].map(word))
}

impl ClusterBackend {
    /// Exchanges what ranks say of a call, and compares it. `number` is for errors, as
    /// [`difference`] has it.
    ///
    /// # Errors
    ///
    /// `Disagreement`: ranks make different calls. Every rank finds it, and names all.
    pub(super) fn agree(&self, number: u64, request: &Request<'_>) -> Result<Agreed> {
        let place = &self.placement;
        let own = self.own_record(request);
        let mut local = Bytes::of_len(place.local_ranks().len() * RECORD_BYTES);
        self.exchange_on_host(&own, &mut local, request)?;
        let mut remote = Bytes::of_len((place.len() - place.local_ranks().len()) * RECORD_BYTES);
        if place.local_index(place.own) == 0 {
            self.exchange_with_machines(&local, &mut remote, request.deadline)?;
        }
        self.broadcast_on_host(&mut remote, request)?;
        let mut all = Bytes::of_len(place.len() * RECORD_BYTES);
        let (mut locals, mut remotes) = (local.chunks(RECORD_BYTES), remote.chunks(RECORD_BYTES));
        for (rank, record) in place.ranks().zip(all.chunks_mut(RECORD_BYTES)) {
            let next = if place.is_local(rank) { locals.next() } else { remotes.next() };
            record.copy_from_slice(next.unwrap_or_default());
        }
        let first = signature_of(&all);
        if all.chunks(RECORD_BYTES).any(|record| signature_of(record) != first) {
            let calls = place.ranks().zip(all.chunks(RECORD_BYTES));
            return Err(difference(calls.map(|(rank, record)| (place.member(rank), signature_of(record))), number));
        }
        Ok(Agreed(all))
    }

    fn own_record(&self, request: &Request<'_>) -> Bytes {
        let (call, n) = (&request.call, self.placement.len());
        let mut record = Bytes::copy_of(&[0; RECORD_BYTES]);
        let Signature(words) = Signature::new(*call, CountedRun::word(request.run, None));
        for (bytes, word) in record.chunks_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        if is_short(request, n) && call.reads_input(self.placement.own) {
            let block = call.block_bytes();
            for index in 0..call.input_bytes(n).checked_div(block).unwrap_or(0) {
                let to = record[SIGNATURE_BYTES + index * block..].as_mut_ptr();
                // SAFETY: by the contract of `Backend` the block is valid, and the record has room
                // for the whole input.
                unsafe { to.copy_from_nonoverlapping(request.input_block(index), block) };
            }
        }
        record
    }

    /// Gathers the records of this machine's ranks.
    fn exchange_on_host(&self, own: &Bytes, local: &mut Bytes, whole: &Request<'_>) -> Result<()> {
        if local.len() == RECORD_BYTES {
            local.copy_from_slice(own);
            return Ok(());
        }
        let call = Call::of_blocks(Collective::AllGather, DataType::Uint8, RECORD_BYTES);
        let sides = [Address::host(own.as_ptr()), Address::host(local.as_mut_ptr())];
        // SAFETY: the output holds a record for each rank.
        unsafe { self.run_on_host(&part_of(whole, call, sides)) }
    }

    /// Exchanges the records of this machine's ranks with those of the others, in rank order.
    fn exchange_with_machines(&self, local: &Bytes, remote: &mut Bytes, deadline: Instant) -> Result<()> {
        let place = &self.placement;
        let tag = Tag { communicator: self.id, kind: MessageKind::Headers, number: 0 };
        let first_of = |machine| place.member(place.ranks_of(machine)[0]);
        for machine in place.other_machines() {
            self.job.send(first_of(machine), tag, Bytes::copy_of(local))?;
        }
        let remote_ranks: Vec<GroupRank> = place.ranks().filter(|rank| !place.is_local(*rank)).collect();
        for machine in place.other_machines() {
            let ranks = place.ranks_of(machine);
            let missing = || match ranks {
                [only] => format!("rank {} did not arrive", place.member(*only)),
                ranks => {
                    let ranks = list_ranks(ranks.iter().map(|rank| place.member(*rank).0));
                    format!("not all of {ranks}, which are on one machine, arrived")
                }
            };
            let records = self.job.receive(first_of(machine), tag, deadline, &missing)?;
            if records.len() != ranks.len() * RECORD_BYTES {
                bail!(System, "rank {} sent {} bytes of records", first_of(machine), records.len());
            }
            for (rank, record) in ranks.iter().zip(records.chunks(RECORD_BYTES)) {
                let at = remote_ranks.partition_point(|other| other < rank) * RECORD_BYTES;
                remote[at..at + RECORD_BYTES].copy_from_slice(record);
            }
        }
        Ok(())
    }

    /// Gives this machine's ranks what their first one has.
    fn broadcast_on_host(&self, bytes: &mut Bytes, whole: &Request<'_>) -> Result<()> {
        if self.placement.local_ranks().len() == 1 || bytes.is_empty() {
            return Ok(());
        }
        let collective = Collective::Broadcast { root: GroupRank(0) };
        let call = Call::of_blocks(collective, DataType::Uint8, bytes.len());
        // SAFETY: both sides are the same buffer, which is as long.
        unsafe { self.run_on_host(&part_of(whole, call, [Address::host(bytes.as_mut_ptr()); 2])) }
    }
}
