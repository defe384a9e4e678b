//! What a rank leaves out: a run, or the rest of a request. In place of the run's first collective,
//! or of its next call in the request, the rank posts a header that says so. Its input is the
//! reason, as text. In these collectives every rank waits for all headers, so that no rank goes on
//! with what another one leaves out.

use std::cmp::Reverse;
use std::time::Instant;

use super::running_call::RunningCall;
use crate::collective::{Call, Collective, Purpose};
use crate::comm::backend::Request;
use crate::comm::host::protocol::call_progress::RequestProgress;
use crate::comm::host::protocol::segment::EAGER_BYTES;
use crate::comm::host::protocol::slot::{CallHeader, PAYLOAD_BYTES};
use crate::comm::run_id::CountedRun;
use crate::compute;
use crate::data_type::DataType;
use crate::error::{Result, bail, error};
use crate::memory::Address;
use crate::rank::GroupRank;
use crate::util::text::{printable, start_of};

/// What a rank posts that leaves out a run, or without one the rest of the request that is open.
pub(crate) fn refusal<'a>(run: Option<&'a CountedRun<'a>>, reason: &'a str, deadline: Instant) -> Request<'a> {
    let reason = start_of(reason, EAGER_BYTES);
    let call = Call::of_blocks(Collective::AllGather, DataType::Uint8, reason.len()).for_purpose(Purpose::REFUSAL);
    let sides = [reason.as_ptr(), std::ptr::null()];
    Request { run, ..Request::new(call, sides.map(Address::host), deadline) }
}

impl RunningCall<'_> {
    /// Finds the rank that has left out this collective (invariant 26). All headers are there.
    pub(super) fn check_refusals(&mut self) -> Result<()> {
        let refusals = self.own.segment.ranks().filter_map(|peer| {
            let header = self.protocol.header(peer).filter(|header| header.signature().is_refusal())?;
            Some((peer, header, header.signature().run()?))
        });
        // A rank that has left the request is the reason why all do.
        let Some((peer, header, run)) = refusals.max_by_key(|(peer, _, run)| (run.is_request(), Reverse(peer.0)))
        else {
            return Ok(());
        };
        let (rank, reason) = (self.own.segment.name(peer), printable(&self.reason(peer, header)));
        self.protocol.progress.leave_out(header.signature());
        if !run.is_request() {
            bail!(RunRefused, "rank {rank} refused run {}: {reason}", run.count());
        }
        let error = error!(RunRefused, "rank {rank} left the request: {reason}");
        self.protocol.progress.request = RequestProgress::Left(error.clone());
        Err(error)
    }

    /// After this rank has posted a refusal: if it has left a request, its further calls in the
    /// request are errors.
    pub(super) fn leave_request(&mut self) {
        if self.protocol.progress.request_number().is_some() {
            let error = error!(RunRefused, "this rank has left the request");
            self.protocol.progress.request = RequestProgress::Left(error);
        }
    }

    /// The bytes of a refusal's reason.
    fn reason(&self, peer: GroupRank, header: &CallHeader) -> Vec<u8> {
        // The peer wrote the length, which may be any number.
        let byte_len = header.signature().call().map_or(0, |call| call.block_elements.min(EAGER_BYTES));
        if byte_len <= PAYLOAD_BYTES {
            return header.payload(byte_len).flat_map(u64::to_le_bytes).take(byte_len).collect();
        }
        let mut reason = vec![0; byte_len];
        let place = self.own.segment.read_eager(peer, self.protocol.progress.sequence);
        // SAFETY: the place in the peer's eager memory is as long.
        unsafe { compute::copy(place, reason.as_mut_ptr(), byte_len) };
        reason
    }
}
