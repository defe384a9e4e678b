//! How a call reaches the backend: its turn, the last rules, and what the library itself exchanges.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::{Communicator, Purpose, Request, Signature};
use crate::collective::{Call, check_buffers};
use crate::error::{Error, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Address, Buffer, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;

impl Communicator {
    /// Where calls of this communicator take their place.
    pub(crate) fn order(&self, extent: Extent) -> (Arc<IssueOrder>, Extent) {
        (Arc::clone(&self.order), extent)
    }

    /// Makes a call on this thread when the calls that this rank made before have ended. `call` is
    /// one collective or several, which no other call of the rank comes between; `what` is its
    /// name.
    pub(crate) fn in_turn<T>(
        &self,
        extent: Extent,
        what: &dyn fmt::Display,
        deadline: Instant,
        call: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.backend.check_process()?;
        let ticket = self.order.issue_here(extent);
        let label = |error: Error| error.on_rank(self.origin_rank()).about(|| what.to_string());
        let turn = ticket.wait(deadline, || self.backend.check(), label);
        turn.map_err(|error| match self.backend.check() {
            // A rank that leaves a collective out would let its peers wait for nothing.
            Ok(()) => self.backend.give_up(error),
            Err(_) => error,
        })?;
        ticket.run(call)
    }

    /// Who finds out that what is enqueued will not be done.
    pub(crate) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.backend) as Arc<dyn Watch>
    }

    /// Runs a call whose rules of types and shapes have been checked, in this rank's
    /// [turn](Self::in_turn). Memory, alignment and overlap are checked here.
    ///
    /// # Safety
    ///
    /// Until this returns, or what it enqueues is done, the buffers that the call uses on this rank are valid for the lengths that
    /// the call says, and used by nobody else.
    pub(crate) unsafe fn run(&self, request: &Request<'_>) -> Result<()> {
        self.check_request(request)?;
        // SAFETY: the caller's promise, and the rules just checked.
        unsafe { self.backend.run(request) }
    }

    /// Checks memory, alignment and overlap of the buffers.
    pub(crate) fn check_request(&self, request: &Request<'_>) -> Result<()> {
        let call = &request.signature.call;
        let (rank, world_size) = (GroupRank(self.rank().0), self.world_size() as usize);
        self.check_spaces(request, rank)
            .and_then(|()| check_buffers(call, rank, world_size, request.input.addr(), request.output.addr()))
            .map_err(|e| request.label(e))
    }

    /// Checks that the buffers are in memory that the backend reaches.
    fn check_spaces(&self, request: &Request<'_>, rank: GroupRank) -> Result<()> {
        let call = &request.signature.call;
        let own = self.space();
        match (request.stream.map(|stream| stream.device().ordinal()), own) {
            (Some(_), MemorySpace::Host) => {
                bail!(Unsupported, "a CUDA stream is for communicators on GPUs, and this one is on the host")
            }
            (Some(stream), own) if own != MemorySpace::Cuda(stream) => {
                bail!(InvalidArgument, "the stream is one of GPU {stream}, and the communicator on {own}")
            }
            _ => {}
        }
        let uses =
            [("input", request.input, call.reads_input(rank)), ("output", request.output, call.writes_output(rank))];
        for (name, address, used) in uses {
            if !used || address.space == own || call.block_elements == 0 {
                continue;
            }
            match address.space {
                // It is copied to the GPU and back.
                MemorySpace::Host if request.stream.is_none() => {}
                MemorySpace::Host => bail!(
                    InvalidBuffer,
                    "the {name} is in host memory; what is enqueued on a CUDA stream has its tensors in {own}, such as \
                     `Communicator::allocate` gives"
                ),
                other => bail!(InvalidBuffer, "the {name} is in {other}, and the communicator on {own}"),
            }
        }
        Ok(())
    }

    /// Memory for the operands of an engine's collectives. Collective, in this rank's
    /// [turn](Self::in_turn).
    pub(crate) fn allocate_region(&self, byte_len: usize, for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.backend.allocate_region(byte_len, for_graphs, deadline)
    }

    /// Gives every rank the bytes of every rank. Collective, in this rank's [turn](Self::in_turn);
    /// the lengths may differ.
    pub(crate) fn exchange(&self, purpose: Purpose, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let n = self.world_size() as usize;
        let mut lens = vec![0i64; n];
        self.gather_all(purpose, &[bytes.len() as i64], &mut lens, deadline)?;
        // Peers wrote these. A length that memory cannot have would end this process.
        const LONGEST: i64 = 64 << 20;
        if let Some(rank) = lens.iter().position(|len| !(0..=LONGEST).contains(len)) {
            let rank_name = self.origin(Rank(rank as u32));
            bail!(System, "rank {rank_name} would exchange {} bytes; the most are {LONGEST}", lens[rank]);
        }
        let longest = lens.iter().copied().max().unwrap_or(0) as usize;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let mut all = vec![0u8; longest * n];
        self.gather_all(purpose, &padded, &mut all, deadline)?;
        if longest == 0 {
            return Ok(vec![Vec::new(); n]);
        }
        Ok(all.chunks(longest).zip(lens).map(|(chunk, len)| chunk[..len as usize].to_vec()).collect())
    }

    fn gather_all<T: crate::Element>(
        &self,
        purpose: Purpose,
        input: &[T],
        output: &mut [T],
        deadline: Instant,
    ) -> Result<()> {
        let collective = crate::collective::Collective::AllGather;
        let call = Call { collective, data_type: T::DATA_TYPE, block_elements: input.len() };
        if output.len() != input.len() * self.world_size() as usize {
            return Err(error!(System, "an exchange with a wrong length"));
        }
        let request = Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host(input.as_ptr().cast()),
            output: Address::host(output.as_mut_ptr().cast()),
            deadline,
            stream: None,
        };
        // SAFETY: both slices are as long as the call says, and borrowed during it.
        unsafe { self.run(&request) }
    }
}
