//! How a call reaches the backend: its turn, the last rules, and what the library itself exchanges.

use std::fmt;
use std::sync::Arc;
use std::time::Instant;

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::backend::{Backend, Checked, Request};
use super::{BackendKind, Communicator};
use crate::collective::{Call, Collective, Purpose, ReduceOperation, check_buffers, check_list};
use crate::cuda::CudaStream;
use crate::element::Element;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::issue_order::{Extent, IssueOrder};
use crate::memory::{Address, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::{Stream, Task, Watch, Work};
use crate::util::interrupt;
use crate::util::text::count_of;

impl Communicator {
    /// The backend, for what needs no check. Collective methods are called in this rank's
    /// [turn](Self::in_turn).
    pub(crate) fn as_backend(&self) -> &dyn Backend {
        &*self.backend
    }

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
        let made = || {
            self.check_process()?;
            interrupt::check_may_wait()?;
            let ticket = self.order.issue_here(extent);
            let turn = ticket.wait(deadline, || self.backend.check(), |error| self.about(what, error));
            turn.map_err(|error| match self.backend.check() {
                // This rank leaves a collective out, so its peers must not wait for it.
                Ok(()) => self.backend.fail(error),
                Err(_) => error,
            })?;
            ticket.run(call)
        };
        made().map_err(|error| error.on_rank(self.origin_rank()))
    }

    /// [`check`](Self::check) for each small call.
    pub(crate) fn check_ended(&self) -> Result<()> {
        self.check_process().and_then(|()| self.backend.check_ended()).map_err(|e| e.on_rank(self.origin_rank()))
    }

    /// Checks that an argument is a rank of this communicator. `name` is what it is: `root`.
    pub(crate) fn check_rank(&self, name: &str, rank: Rank) -> Result<GroupRank> {
        if rank.0 >= self.world_size() {
            bail!(InvalidArgument, "{name} {rank} is not one of {}", count_of(self.world_size() as usize, "rank"));
        }
        Ok(GroupRank(rank.0))
    }

    /// Checks that the backend has a reduction: NCCL has none of bits (its `ncclRedOp_t`).
    pub(crate) fn check_reduction(&self, reduce_op: Option<ReduceOperation>) -> Result<()> {
        match reduce_op.filter(|reduce_op| reduce_op.is_bitwise() && self.backend() == BackendKind::Nccl) {
            Some(reduce_op) => bail!(Unsupported, "NCCL has no {reduce_op}; the host backend has it"),
            None => Ok(()),
        }
    }

    /// Says in an error which rank and call it is about.
    pub(crate) fn about(&self, what: &dyn fmt::Display, error: Error) -> Error {
        error.on_rank(self.origin_rank()).about(|| what.to_string())
    }

    /// Gives a call of this communicator to a stream. It takes its place in the order now.
    pub(crate) fn submit<T: Task>(&self, task: T, stream: &Stream) -> Work<T> {
        stream.submit(task, Some(self.order(Extent::Communicator)), None)
    }

    /// The backend, as waits for enqueued work ask it.
    pub(crate) fn watch(&self) -> Arc<dyn Watch> {
        Arc::clone(&self.backend) as Arc<dyn Watch>
    }

    /// Runs a call whose types and lengths fit, in this rank's [turn](Self::in_turn).
    ///
    /// # Safety
    ///
    /// As [`Backend::run`](super::Backend::run).
    pub(crate) unsafe fn run(&self, mut request: Request<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.check_request(&mut request)?.run() }
    }

    /// Checks addresses, alignment, overlap and memory of a call whose types and lengths fit.
    pub(crate) fn check_request<'a>(&'a self, request: &'a mut Request<'_>) -> Result<Checked<'a>> {
        let used = request.call.used_bytes(self.own_rank(), self.world_size() as usize);
        self.check_rules(request, used).map_err(|e| request.label(e))?;
        if request.call.purpose == Purpose::COLLECTIVE {
            request.call.raise_to(self.determinism);
        }
        for (side, byte_len) in [&mut request.input, &mut request.output].into_iter().zip(used) {
            if byte_len == 0 {
                side.pointer = std::ptr::null_mut();
            }
        }
        Ok(Checked { backend: Some(&*self.backend), request })
    }

    fn check_rules(&self, request: &Request<'_>, used: [usize; 2]) -> Result<()> {
        let Request { call, blocks, .. } = request;
        let [input, output] = [request.input.addr(), request.output.addr()];
        match blocks {
            None => check_buffers(call, self.own_rank(), used, [input, output])?,
            Some(blocks) => {
                let one = if call.input().is_per_rank { output } else { input };
                check_list(call, one, blocks.iter().map(|block| block.addr()))?;
            }
        }
        self.check_spaces(request, used)
    }

    /// Whether a call among `rank_count` of this communicator's ranks may be run in a group of
    /// calls.
    pub(crate) fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        self.backend.can_group(&call.at_least(self.determinism), rank_count)
    }

    fn own_rank(&self) -> GroupRank {
        GroupRank(self.rank().0)
    }

    /// Checks that a CUDA stream is one of the communicator's GPU.
    pub(super) fn check_stream(&self, stream: Option<&Arc<CudaStream>>) -> Result<()> {
        match (stream.map(|stream| stream.device().ordinal()), self.space()) {
            (Some(_), MemorySpace::Host) => {
                bail!(Unsupported, "a CUDA stream is for communicators on GPUs, and this one is on the host")
            }
            (Some(stream), own) if own != MemorySpace::Cuda(stream) => {
                bail!(InvalidArgument, "the stream is one of GPU {stream}, and the communicator on {own}")
            }
            _ => Ok(()),
        }
    }

    /// Checks that the buffers that a call uses on this rank are in memory that the backend reaches
    /// from the stream.
    pub(super) fn check_spaces(&self, request: &Request<'_>, [input_bytes, output_bytes]: [usize; 2]) -> Result<()> {
        let Request { input, output, stream, .. } = request;
        let own = self.space();
        self.check_stream(*stream)?;
        for (name, address, byte_len) in [("input", input, input_bytes), ("output", output, output_bytes)] {
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

    /// Makes what calls up to the size of this one need besides memory. Returns the length of their
    /// scratch memory in bytes.
    pub(crate) fn prepare(&self, call: &Call) -> Result<usize> {
        self.backend.prepare(&call.at_least(self.determinism))
    }

    /// Waits for what was enqueued on a stream. An error ends the communicator.
    pub(crate) fn synchronize(&self, stream: &Arc<CudaStream>, deadline: Instant) -> Result<()> {
        let done = stream.synchronize(deadline, || self.backend.check()).and_then(|()| self.backend.check_result());
        done.map_err(|error| {
            let error = self.backend.fail(error);
            self.backend.drain(Some(stream));
            error
        })
    }

    /// Gives every rank the value of every rank. Collective, in this rank's [turn](Self::in_turn).
    pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
        &self,
        purpose: Purpose,
        value: &T,
        deadline: Instant,
    ) -> Result<Vec<T>> {
        exchange(value, |rank| self.origin(rank), |bytes| self.exchange_bytes(purpose, bytes, deadline))
    }

    /// This rank's result, and what each rank says of its own, if no rank has an error. Otherwise a
    /// rank with an error returns it, and the others what `refused` makes of those errors.
    /// Collective, in this rank's [turn](Self::in_turn).
    pub(crate) fn exchange_results<T, S: Serialize + DeserializeOwned>(
        &self,
        purpose: Purpose,
        own: Result<T>,
        say: impl FnOnce(&T) -> S,
        refused: impl FnOnce(&[(Rank, Error)]) -> Error,
        deadline: Instant,
    ) -> Result<(T, Vec<S>)> {
        let number_of = |kind| ErrorKind::ALL.iter().position(|other| *other == kind);
        let said: Result<S, (Option<usize>, String)> =
            own.as_ref().map(say).map_err(|error| (number_of(error.kind()), error.to_string()));
        let all = self.exchange(purpose, &said, deadline)?;
        let own = own?;
        let (mut values, mut refusals) = (Vec::new(), Vec::new());
        for (rank, said) in (0..).map(Rank).zip(all) {
            match said {
                Ok(value) => values.push(value),
                Err((kind, text)) => {
                    let kind = kind.and_then(|kind| ErrorKind::ALL.get(kind)).copied().unwrap_or(ErrorKind::System);
                    refusals.push((self.origin(rank), Error::new(kind, text)));
                }
            }
        }
        if refusals.is_empty() { Ok((own, values)) } else { Err(refused(&refusals)) }
    }

    /// Gives every rank the bytes of every rank. Collective, in this rank's [turn](Self::in_turn);
    /// the lengths may differ.
    pub(crate) fn exchange_bytes(&self, purpose: Purpose, bytes: &[u8], deadline: Instant) -> Result<Vec<Vec<u8>>> {
        let lens = self.gather_all(purpose, &[bytes.len() as i64], deadline)?;
        // Peers wrote these. A length that memory cannot have would end this process.
        const LONGEST: i64 = 64 << 20;
        if let Some(rank) = lens.iter().position(|len| !(0..=LONGEST).contains(len)) {
            let rank_name = self.origin(Rank(rank as u32));
            bail!(System, "rank {rank_name} would exchange {} bytes; the most are {LONGEST}", lens[rank]);
        }
        // At least one, because the parts of the result are as long.
        let longest = lens.iter().copied().max().unwrap_or(0).max(1) as usize;
        let mut padded = bytes.to_vec();
        padded.resize(longest, 0);
        let all = self.gather_all(purpose, &padded, deadline)?;
        Ok(all.chunks(longest).zip(lens).map(|(chunk, len)| chunk[..len as usize].to_vec()).collect())
    }

    pub(super) fn gather_all<T: Element>(&self, purpose: Purpose, input: &[T], deadline: Instant) -> Result<Vec<T>> {
        let mut output = vec![T::default(); input.len() * self.world_size() as usize];
        let call = Call::of_blocks(Collective::AllGather, T::DATA_TYPE, input.len()).for_purpose(purpose);
        let sides = [Address::host(input.as_ptr().cast()), Address::host(output.as_mut_ptr().cast())];
        let request = Request::new(call, sides, deadline);
        // SAFETY: both are as long as the call says, and borrowed during it.
        unsafe { self.run(request) }?;
        Ok(output)
    }
}

/// Gives every rank the value of every rank, if `exchange_bytes` does that with bytes. Errors name
/// a rank as `name_of` says.
pub(crate) fn exchange<T: Serialize + DeserializeOwned>(
    value: &T,
    name_of: impl Fn(Rank) -> Rank,
    exchange_bytes: impl FnOnce(&[u8]) -> Result<Vec<Vec<u8>>>,
) -> Result<Vec<T>> {
    let bytes = postcard::to_stdvec(value)
        .map_err(|e| error!(System, "what this rank tells the others cannot be encoded").with_source(e))?;
    let read = |(rank, bytes): (usize, &Vec<u8>)| {
        let name = name_of(Rank(rank as u32));
        let damaged = |e| error!(System, "what rank {name} tells the others cannot be read").with_source(e);
        postcard::from_bytes(bytes).map_err(damaged)
    };
    exchange_bytes(&bytes)?.iter().enumerate().map(read).collect()
}
