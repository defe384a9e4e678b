//! How a call reaches the backend: its turn, the last rules, and what the library itself exchanges.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use super::backend::{CallGroup, Control, Fill, Request, SharedGraph};
use super::{Communicator, Purpose, Signature};
use crate::collective::{Call, UsedBytes, check_buffers};
use crate::cuda::CudaStream;
use crate::error::{Error, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Address, Buffer, MemorySpace, ReadOnlyMemory};
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;
use crate::util::interrupt;

impl Communicator {
    /// Where calls of this communicator take their place.
    pub(crate) fn order(&self, extent: Extent) -> (&Arc<IssueOrder>, Extent) {
        (&self.order, extent)
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
        self.check_process()?;
        interrupt::check_may_wait()?;
        let ticket = self.order.issue_here(extent);
        let label = |error: Error| error.on_rank(self.origin_rank()).about(|| what.to_string());
        let turn = ticket.wait(deadline, || self.backend.check(), label);
        turn.map_err(|error| match self.backend.check() {
            // This rank leaves a collective out, so its peers must not wait for it.
            Ok(()) => self.backend.fail(error),
            Err(_) => error,
        })?;
        ticket.run(call)
    }

    /// The backend, as waits for enqueued work ask it.
    pub(crate) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.backend) as Arc<dyn Watch>
    }

    /// Runs a call whose types and lengths fit, in this rank's [turn](Self::in_turn). Checks
    /// addresses, alignment, overlap and memory.
    ///
    /// # Safety
    ///
    /// Until this returns, or what it enqueues is done, the buffers that the call uses on this rank
    /// are valid for the lengths that the call says, and used by no other code.
    pub(crate) unsafe fn run(&self, request: Request<'_>) -> Result<()> {
        self.check_request(&request).map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise, and the rules just checked.
        unsafe { self.run_checked(request) }
    }

    /// Checks addresses, alignment, overlap and memory of a call whose types and lengths fit.
    pub(crate) fn check_request(&self, request: &Request<'_>) -> Result<()> {
        self.check_operands(&request.signature.call, [request.input, request.output], request.stream)
    }

    /// [`check_buffers`](Self::check_buffers) and [`check_spaces`](Self::check_spaces).
    pub(crate) fn check_operands(
        &self,
        call: &Call,
        sides: [Address; 2],
        stream: Option<&Arc<CudaStream>>,
    ) -> Result<()> {
        let used = self.used_bytes(call);
        check_buffers(call, self.own_rank(), used, sides.map(|side| side.addr()))?;
        self.check_used_spaces(used, sides, stream)
    }

    /// [`run`](Self::run) after [`check_buffers`](Self::check_buffers) and
    /// [`check_spaces`](Self::check_spaces).
    ///
    /// # Safety
    ///
    /// As [`run`](Self::run); and the request has passed these checks.
    pub(crate) unsafe fn run_checked(&self, request: Request<'_>) -> Result<()> {
        // The task of a `Work` runs on its stream and does not go through `in_turn`.
        self.check_process().map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise, and the rules that the request has passed.
        unsafe { self.backend.run(&self.own(request)) }
    }

    /// [`run_checked`](Self::run_checked) of a call that is [prepared](Self::prepare), with scratch
    /// memory.
    ///
    /// # Safety
    ///
    /// As [`run_checked`](Self::run_checked), also for the scratch memory.
    pub(crate) unsafe fn run_with_scratch(&self, request: Request<'_>, scratch: *mut [u8]) -> Result<()> {
        self.check_process().map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise, and the rules that the request has passed.
        unsafe { self.backend.run_with_scratch(&self.own(request), scratch) }
    }

    /// [`run_checked`](Self::run_checked) of a call on a list of blocks, which have passed the same
    /// rules.
    ///
    /// # Safety
    ///
    /// As [`run_checked`](Self::run_checked), for each block.
    pub(super) unsafe fn run_list_checked(&self, request: Request<'_>, blocks: &[Address]) -> Result<()> {
        self.check_process().map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise, and the rules that the blocks have passed.
        unsafe { self.backend.run_list(&self.own(request), blocks) }
    }

    /// The same request as the backend gets it.
    fn own<'a>(&self, request: Request<'a>) -> Request<'a> {
        let used = self.used_bytes(&request.signature.call);
        request.of_communicator(used, self.determinism)
    }

    /// The bytes of the buffers that a call uses on this rank.
    fn used_bytes(&self, call: &Call) -> UsedBytes {
        call.used_bytes(self.own_rank(), self.world_size() as usize)
    }

    /// Checks addresses, alignment and overlap of the buffers that a call uses on this rank.
    pub(crate) fn check_buffers(&self, call: &Call, sides: [Address; 2]) -> Result<()> {
        check_buffers(call, self.own_rank(), self.used_bytes(call), sides.map(|side| side.addr()))
    }

    /// Adds a call to a group of calls, which [can be grouped](Self::can_group), on
    /// buffers that have passed [`check_buffers`](Self::check_buffers).
    pub(crate) fn add_to_group<'a>(&'a self, group: &mut CallGroup<'a>, request: Request<'a>) -> Result<()> {
        let sides = [request.input, request.output];
        self.check_process()
            .and_then(|()| self.check_spaces(&request.signature.call, sides, request.stream))
            .map_err(|e| request.label(e))?;
        group.push(&*self.backend, self.own(request))
    }

    /// Runs a group of calls, of this communicator and others with the same origin.
    ///
    /// # Safety
    ///
    /// As [`run_checked`](Self::run_checked), for each call.
    pub(crate) unsafe fn run_group(&self, group: &CallGroup<'_>) -> Result<()> {
        // SAFETY: the caller's promise, and what `add_to_group` has checked.
        unsafe { self.backend.run_group(group) }
    }

    /// Whether a call among `rank_count` of this communicator's ranks may be run in a group of
    /// calls.
    pub(crate) fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        self.backend.can_group(&call.at_least(self.determinism), rank_count)
    }

    fn own_rank(&self) -> GroupRank {
        GroupRank(self.rank().0)
    }

    /// Checks that the buffers that a call uses on this rank are in memory that the backend reaches
    /// from the stream.
    pub(crate) fn check_spaces(
        &self,
        call: &Call,
        sides: [Address; 2],
        stream: Option<&Arc<CudaStream>>,
    ) -> Result<()> {
        self.check_used_spaces(self.used_bytes(call), sides, stream)
    }

    fn check_used_spaces(
        &self,
        used: UsedBytes,
        [input, output]: [Address; 2],
        stream: Option<&Arc<CudaStream>>,
    ) -> Result<()> {
        let own = self.space();
        match (stream.map(|stream| stream.device().ordinal()), own) {
            (Some(_), MemorySpace::Host) => {
                bail!(Unsupported, "a CUDA stream is for communicators on GPUs, and this one is on the host")
            }
            (Some(stream), own) if own != MemorySpace::Cuda(stream) => {
                bail!(InvalidArgument, "the stream is one of GPU {stream}, and the communicator on {own}")
            }
            _ => {}
        }
        for (name, address, byte_len) in [("input", input, used.input), ("output", output, used.output)] {
            if byte_len == 0 || address.space == own {
                continue;
            }
            match address.space {
                // It is copied to the GPU and back.
                MemorySpace::Host if stream.is_none() => {}
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

    /// The CUDA stream on which layers run where the caller gives none; `None` if they run on the
    /// caller's thread.
    pub(crate) fn default_stream(&self) -> Option<&Arc<CudaStream>> {
        self.backend.default_stream()
    }

    /// Whether layers of several ranks can run on this rank's device.
    pub(crate) fn check_device(&self) -> Result<()> {
        self.backend.check_device()
    }

    /// Makes what calls up to the size of this one need besides memory. Returns the length of their
    /// scratch memory in bytes.
    pub(crate) fn prepare(&self, call: &Call) -> Result<usize> {
        self.backend.prepare(&call.at_least(self.determinism))
    }

    /// Where ranks agree on what their backend does not compare; `None` if the backend compares
    /// all, or if the ranks have no host communicator beside it.
    pub(crate) fn control(&self) -> Option<&Control> {
        self.backend.control()
    }

    /// Has a recorded run destroyed before the communicator ends.
    pub(crate) fn track_graph(&self, graph: &SharedGraph) {
        self.backend.track_graph(graph);
    }

    /// The error that ended the communicator, without this rank's name: for waits, which ask often.
    pub(crate) fn check_alive(&self) -> Result<()> {
        self.backend.check()
    }

    /// [`Backend::share`], in this rank's [turn](Self::in_turn).
    pub(crate) fn share_memory(
        &self,
        byte_len: usize,
        source: GroupRank,
        fill: Option<&mut Fill<'_>>,
        deadline: Instant,
    ) -> Result<ReadOnlyMemory> {
        self.backend.share(byte_len, source, fill, deadline)
    }

    /// Waits for what was enqueued on a stream. An error ends the communicator.
    pub(crate) fn synchronize(&self, stream: &Arc<CudaStream>, deadline: Instant) -> Result<()> {
        stream.synchronize(deadline, || self.check_alive()).map_err(|error| {
            let error = self.backend.fail(error);
            self.backend.drain(Some(stream));
            error
        })
    }

    /// After an error: waits until nothing on this stream, or on the default stream, uses the
    /// caller's memory any more.
    pub(crate) fn drain(&self, stream: Option<&Arc<CudaStream>>) {
        self.backend.drain(stream);
    }

    /// Memory for the operands of an engine's collectives. The ranks have agreed on the length.
    /// Collective, in this rank's [turn](Self::in_turn).
    pub(crate) fn allocate_region(&self, byte_len: usize, for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        self.backend.allocate_region(byte_len, for_graphs, deadline)
    }

    /// Gives every rank the words of every rank. Collective, in this rank's [turn](Self::in_turn).
    pub(crate) fn gather_words<const N: usize>(
        &self,
        purpose: Purpose,
        words: [i64; N],
        deadline: Instant,
    ) -> Result<Vec<[i64; N]>> {
        let mut all = vec![[0; N]; self.world_size() as usize];
        self.gather_all(purpose, &words, all.as_flattened_mut(), deadline)?;
        Ok(all)
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

    fn gather_all<T: crate::element::Element>(
        &self,
        purpose: Purpose,
        input: &[T],
        output: &mut [T],
        deadline: Instant,
    ) -> Result<()> {
        let collective = crate::collective::Collective::AllGather;
        let call = Call::of_blocks(collective, T::DATA_TYPE, input.len());
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
        unsafe { self.run(request) }
    }
}
