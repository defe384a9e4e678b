//! How a call with counts runs: the ranks first exchange all counts, so that every rank has the
//! same error before an element moves if two of them differ. Then each rank knows where its blocks
//! are in its peers' buffers.

use std::sync::Arc;

use crate::collective::{BlockCounts, Call, Collective, Determinism, Purpose};
use crate::comm::Request;
use crate::comm::backend::{Backend, Checked, Uneven};
use crate::comm::signature::Signature;
use crate::data_type::DataType;
use crate::error::{Result, error};
use crate::memory::Address;
use crate::rank::{GroupRank, Rank};

/// The blocks of a call, which have been checked.
#[derive(Debug)]
pub(super) struct UnevenBlocks {
    pub(super) addresses: [Vec<Address>; 2],
    /// In elements of the type that carries the call's.
    pub(super) counts: [Vec<usize>; 2],
}

impl UnevenBlocks {
    /// Exchanges the counts, and then makes the call.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`], for each block.
    pub(super) unsafe fn run(&self, backend: &Arc<dyn Backend>, request: &Request<'_>) -> Result<()> {
        if request.stream.map_or(Ok(false), |stream| stream.is_capturing())? {
            let text = "a call with counts waits for the other ranks, so it is not captured";
            return Err(backend.fail(error!(Unsupported, "{text}")));
        }
        let (call, n, rank) = (request.call, backend.world_size() as usize, GroupRank(backend.rank().0));
        let [given, taken] = &self.counts;
        let words = BlockCounts::words_of(&call, Signature::new(call, 0).0[0], rank, n, [given, taken]);
        let mut all = vec![0i64; words.len() * n];
        let exchange =
            Call::of_blocks(Collective::AllGather, DataType::Int64, words.len()).for_purpose(Purpose::COUNTS);
        let sides = [Address::host(words.as_ptr().cast()), Address::host(all.as_mut_ptr().cast())];
        let exchange = Request::new(exchange, sides, request.deadline);
        // SAFETY: the input has so many elements, and the output as many for each rank.
        let exchanged = unsafe {
            // NCCL's ranks exchange them on the host if they are on one machine.
            match backend.control().filter(|control| control.is_one_machine()) {
                Some(control) => control.run_noted(&exchange),
                None => Checked { backend: Some(&**backend), request: &exchange }.run(),
            }
        };
        exchanged.map_err(|error| backend.fail(error).about(|| call.collective.operation().to_string()))?;
        let name = |rank: usize| backend.origin(Rank(rank as u32));
        let describe = |word: u64| match Signature([word, 0, 0]).call() {
            Some(call) => {
                let mode = if call.determinism == Determinism::Exact { " in exact mode" } else { "" };
                format!("{} of {}{mode}", call.collective_name(), call.transfer_type())
            }
            None => format!("{word:x}"),
        };
        let counts = BlockCounts::agreed(&call, n, all, name, describe).map_err(|e| backend.fail(e))?;
        let block_elements = counts.longest();
        if block_elements == 0 {
            return Ok(());
        }
        let [input, output] = &self.addresses;
        let uneven = Uneven { counts: &counts, input, output };
        let request = Request { call: Call { block_elements, ..call }, uneven: Some(&uneven), ..*request };
        // SAFETY: the caller's promise.
        unsafe { Checked { backend: Some(&**backend), request: &request }.run() }
    }
}
