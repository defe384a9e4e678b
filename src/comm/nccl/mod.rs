//! The NCCL backend: ranks with a GPU each.
//!
//! A call with a CUDA stream is enqueued there. A call without one runs on the communicator's own
//! stream until it is done; then its tensors may be in host memory too, and are copied to the GPU
//! and back (`staging`). `route` decides which of NCCL's calls a collective becomes, and `calls`
//! makes them. `handle` keeps NCCL's rules: one thread at a time, and no wait without a deadline.

mod access;
mod bootstrap;
mod calls;
mod domain;
mod group;
mod handle;
mod library;
mod messages;
mod pool;
mod route;
mod scratch;
mod staging;
mod sys;
mod window;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

pub(crate) use bootstrap::{borrow, can_share_gpus, check_gpus, connect, in_process};
use calls::Steps;
use domain::NcclDomain;
use handle::NcclHandle;
pub(crate) use library::{NcclLibrary, library};
pub(crate) use route::reduces_float8;
use route::{Features, Route};
use scratch::Scratch;
use staging::Staging;
use sys::ncclRedOp_t;

use super::backend::{Backend, Checked, Control, RegionPart, Request, SharedGraph};
use super::message::{Delivery, MessageRequest};
use super::signature::place_of;
use super::split::SplitGroup;
use super::{BackendKind, rank_lock};
use crate::collective::{Call, Collective, Purpose, ReduceOperation, Side};
use crate::cuda::{CudaStream, Device, DeviceMemory};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::{Address, Buffer, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::Watch;
use crate::util::interrupt;

/// The oldest compute capability on which TensorRT's layer runs among several ranks.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// The length of the stand-in for a buffer that a rank does not use. NCCL wants a valid address.
const STAND_IN_BYTES: usize = 256;

/// Whether layers of several ranks may run on a GPU: TensorRT's page on DistCollective wants
/// compute capability 8.0.
pub(crate) fn runs_layers(device: &Device) -> bool {
    device.capability >= OLDEST_CAPABILITY
}

/// One rank of a communicator on GPUs.
pub(crate) struct NcclBackend {
    handle: Arc<NcclHandle>,
    rank: GroupRank,
    /// This communicator's ranks, as numbers in the one from which it was split.
    origins: Box<[Rank]>,
    features: Features,
    domain: Arc<NcclDomain>,
    /// The control communicator of these ranks.
    control: Option<Arc<Control>>,
    /// For calls that are done when they return.
    stream: Arc<CudaStream>,
    stand_in: DeviceMemory,
    /// NCCL's reductions for averages of each of `AVERAGED`, once they are made.
    averages: [OnceLock<ncclRedOp_t>; 4],
    /// The number of collectives that errors count, without a control communicator.
    counted: AtomicU64,
    /// The rank lock: held during a call that waits, a message, a split, the registration of a
    /// window, and a call that needs what is in it.
    state: Mutex<RankState>,
}

/// What a rank keeps from call to call.
#[derive(Default)]
struct RankState {
    scratch: Scratch,
    staging: Staging,
    /// Whether it has had messages with the opposite rank.
    is_opposite_connected: bool,
}

impl NcclBackend {
    /// The GPU.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.handle.device
    }

    fn lock(&self, deadline: Instant) -> Result<MutexGuard<'_, RankState>> {
        // This rank leaves a collective out, so its peers must not wait for it.
        rank_lock::enter(&self.state, deadline).map_err(|error| self.fail(error))
    }

    /// Runs one collective.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_request(&self, request: &Request<'_>) -> Result<()> {
        let mut state = match request.stream {
            Some(_) => None,
            None => Some(self.lock(request.deadline).map_err(|e| request.label(e))?),
        };
        self.domain.check().map_err(|e| request.label(e))?;
        // The number of this collective, or else of the next that is counted.
        let number = self.counter().load(Ordering::Relaxed) + 1;
        // SAFETY: the caller's promise.
        let result = unsafe {
            match (&mut state, request.stream) {
                (Some(state), _) => self.complete(state, request),
                (none, stream) => {
                    let stream = stream.unwrap_or(&self.stream);
                    self.enqueue(request, stream, |byte_len| {
                        let state = match &mut *none {
                            Some(state) => state,
                            none => none.insert(self.lock(request.deadline)?),
                        };
                        state.scratch.take(byte_len, stream)
                    })
                }
            }
        };
        result.map_err(|error| {
            // The error that ended the domain names its own call, and a difference all ranks'.
            let names_none = self.domain.ended().is_none() && error.kind() != ErrorKind::Disagreement;
            let error = match names_none {
                true => Error::new(error.kind(), format!("{}: {error}", self.describe(request, number))),
                false => error,
            };
            let error = request.label(error);
            // A capture was refused before anything was recorded.
            if error.kind() == ErrorKind::NotReady {
                return error;
            }
            // Peers may be in this collective already, so no other can follow it.
            match request.stream {
                Some(_) => self.fail(error),
                None => {
                    let error = self.fail(error);
                    // Until what was aborted has ended, it may use the caller's memory.
                    self.stream.drain();
                    error
                }
            }
        })
    }

    /// Says what NCCL gets next, which compares nothing. From here on the call is counted.
    fn note(&self, request: &Request<'_>) {
        let call = match request.blocks {
            Some(_) => request.call.for_purpose(Purpose::LIST),
            None => request.call,
        };
        match &self.control {
            Some(control) => control.note_call(call, request.run),
            None => drop(self.counted.fetch_add(u64::from(call.purpose.is_counted()), Ordering::Relaxed)),
        }
    }

    fn compare_calls(&self) -> Result<()> {
        self.control.as_ref().map_or(Ok(()), |control| control.compare_calls())
    }

    /// The number of collectives so far that errors count.
    fn counter(&self) -> &AtomicU64 {
        self.control.as_ref().map_or(&self.counted, |control| &control.counted)
    }

    /// `all_reduce(sum) of 12 float32 (collective 3 of ranks 0 and 2)`.
    fn describe(&self, request: &Request<'_>, number: u64) -> String {
        let ranks = crate::util::text::list_ranks(self.origins.iter().map(|rank| rank.0));
        let place = place_of(request.call.purpose.is_counted(), number);
        format!("{} ({place} of {ranks})", request.call)
    }

    /// Enqueues a collective. `scratch` gives memory for a call that brings none.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn enqueue(
        &self,
        request: &Request<'_>,
        stream: &Arc<CudaStream>,
        mut scratch: impl FnMut(usize) -> Result<*mut u8>,
    ) -> Result<()> {
        let (call, sides) = with_something_to_do(request, [request.input.pointer, request.output.pointer]);
        let blocks = request.blocks.map(|list| list.iter().map(|block| block.pointer).collect::<Vec<_>>());
        let memory = |byte_len| match request.scratch {
            Some(own) if own.len() < byte_len => bail!(System, "the call's scratch memory is too short"),
            Some(own) => Ok(own.cast()),
            None if byte_len == 0 => Ok(std::ptr::null_mut()),
            None => scratch(byte_len),
        };
        let steps = Steps { backend: self, request, call: &call, stream };
        // SAFETY: the caller's promise.
        unsafe {
            if let Some(uneven) = &request.uneven {
                return steps.issue_uneven(scratch, uneven);
            }
            match blocks {
                Some(blocks) => steps.issue_list(sides, &blocks),
                None => steps.issue(memory, sides),
            }
        }
    }

    /// Runs a collective on this communicator's own stream until it is done. Tensors in host memory
    /// are copied to the GPU and back.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn complete(&self, state: &mut RankState, request: &Request<'_>) -> Result<()> {
        let Request { call, blocks: list, deadline, .. } = *request;
        if request.uneven.is_some() {
            // Its blocks are on the GPU.
            // SAFETY: the caller's promise.
            unsafe { self.enqueue(request, &self.stream, |byte_len| state.scratch.take(byte_len, &self.stream))? };
            self.stream.synchronize(deadline, &mut || self.check())?;
            return self.check_result();
        }
        let n = self.origins.len();
        let on_host = |side: Address, byte_len: usize, used: bool| {
            if used && side.space == MemorySpace::Host { byte_len } else { 0 }
        };
        let given = on_host(request.input, call.input_bytes(n), call.reads_input(self.rank));
        let is_read_only = request.is_in_place_root(self.rank);
        let wanted = on_host(request.output, call.output_bytes(n), call.writes_output(self.rank) && !is_read_only);
        let [mut input, mut output] = [request.input.pointer, request.output.pointer];
        let (device, stream) = (self.device(), &self.stream);
        let alive = &mut || self.check();
        // A side in host memory: each part's address, its offset in staging memory and its length.
        let parts = |side: Side, whole: Address, byte_len: usize| -> Vec<(*mut u8, usize, usize)> {
            let block = call.block_bytes();
            let part = |(index, at): (usize, &Address)| (at.pointer, index * block, block);
            match list.filter(|_| side.is_per_rank) {
                Some(list) => list.iter().enumerate().map(part).collect(),
                None => vec![(whole.pointer, 0, byte_len)],
            }
        };
        // SAFETY: the caller's promise; the staging is as long as was asked for, and the rank lock
        // keeps other calls from it.
        unsafe {
            if wanted > 0 {
                output = state.staging.output.at_least(wanted, device)?;
            }
            if given > 0 {
                input = state.staging.input.at_least(given, device)?;
                for (from, offset, len) in parts(call.input(), request.input, given) {
                    state.staging.transfer(device)?.upload(from, input.add(offset), len, stream, deadline, alive)?;
                }
                if is_read_only {
                    output = input;
                }
            }
            let (call, sides) = with_something_to_do(request, [input, output]);
            let steps = Steps { backend: self, request, call: &call, stream };
            match list {
                None => steps.issue(|byte_len| state.scratch.take(byte_len, stream), sides)?,
                Some(list) => {
                    // Those in host memory are next to each other in staging memory.
                    let (staged, is_staged) =
                        if call.input().is_per_rank { (input, given > 0) } else { (output, wanted > 0) };
                    let block_at = |(index, block): (usize, &Address)| match is_staged {
                        true => staged.wrapping_add(index * call.block_bytes()),
                        false => block.pointer,
                    };
                    let blocks: Vec<*mut u8> = list.iter().enumerate().map(block_at).collect();
                    steps.issue_list(sides, &blocks)?;
                }
            }
            if wanted > 0 {
                for (to, offset, len) in parts(call.output(), request.output, wanted) {
                    state.staging.transfer(device)?.download(output.add(offset), to, len, stream, deadline, alive)?;
                }
            }
        }
        stream.synchronize(deadline, alive)?;
        self.check_result()
    }

    /// Gathers the same number of words from every rank.
    fn gather<const N: usize>(&self, words: &[i64; N], purpose: Purpose, deadline: Instant) -> Result<Vec<[i64; N]>> {
        let mut all = vec![[0i64; N]; self.origins.len()];
        let call = Call::of_blocks(Collective::AllGather, DataType::Int64, N).for_purpose(purpose);
        let sides = [Address::host(words.as_ptr().cast()), Address::host(all.as_mut_ptr().cast())];
        // SAFETY: the input holds N elements, and the output N for each rank; both are local and
        // apart.
        unsafe { self.run_request(&Request::new(call, sides, deadline))? };
        Ok(all)
    }
}

impl Drop for NcclBackend {
    /// If another rank has ended the domain, aborts the communicators here too: finalizing them
    /// would wait for that rank.
    fn drop(&mut self) {
        if let Err(error) = self.domain.check() {
            self.domain.abandon(error);
        }
    }
}

/// The call and its buffers. A call of the library's own without elements is a barrier: it becomes
/// an all_reduce of one byte of the stand-in.
fn with_something_to_do(request: &Request<'_>, sides: [*mut u8; 2]) -> (Call, [*mut u8; 2]) {
    match request.call {
        Call { purpose, block_elements: 0, .. } if purpose != Purpose::COLLECTIVE => {
            let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            (Call::of_blocks(collective, DataType::Uint8, 1), [std::ptr::null_mut(); 2])
        }
        call => (call, sides),
    }
}

impl Watch for NcclBackend {
    fn check(&self) -> Result<()> {
        self.check_ended()?;
        self.compare_calls()
    }

    fn check_ended(&self) -> Result<()> {
        self.domain.check()?;
        self.domain.borrowed_error()
    }

    fn check_result(&self) -> Result<()> {
        // Aborted work ends too.
        match self.domain.ended() {
            Some(error) => Err(error.clone()),
            // What this rank has taken from its peers, they have noted before.
            None => self.handle.check().and_then(|()| self.compare_calls()),
        }
    }

    fn fail(&self, error: Error) -> Error {
        self.domain.end(error);
        // If several errors end the domain, the first one counts.
        self.domain.ended().cloned().unwrap_or_else(|| error!(Aborted, "the communicator has ended"))
    }
}

impl Backend for NcclBackend {
    fn kind(&self) -> BackendKind {
        BackendKind::Nccl
    }

    fn rank(&self) -> Rank {
        Rank(self.rank.0)
    }

    fn world_size(&self) -> u32 {
        self.origins.len() as u32
    }

    fn origin(&self, rank: Rank) -> Rank {
        self.origins[rank.index()]
    }

    fn space(&self) -> MemorySpace {
        MemorySpace::Cuda(self.device().ordinal())
    }

    fn default_stream(&self) -> Option<&Arc<CudaStream>> {
        Some(&self.stream)
    }

    fn check_device(&self) -> Result<()> {
        if runs_layers(self.device()) {
            return Ok(());
        }
        let ((major, minor), (oldest_major, oldest_minor)) = (self.device().capability, OLDEST_CAPABILITY);
        bail!(
            Unsupported,
            "{:?} has compute capability {major}.{minor}; layers of several ranks need {oldest_major}.{oldest_minor}",
            self.device()
        )
    }

    fn prepare(&self, call: &Call) -> Result<usize> {
        let route = Route::of(call, self.origins.len(), &self.features);
        self.device().prepare(route.kernels(call).into_iter().flatten())?;
        Ok(route.scratch_bytes(call, self.origins.len()))
    }

    unsafe fn run(&self, calls: &[Checked<'_>]) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe {
            match calls {
                [Checked { request, .. }] => self.run_request(request),
                calls => group::run(calls),
            }
        }
    }

    fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        // NCCL takes no group of blocking and other communicators, and a borrowed one may block.
        self.domain.is_own() && call.block_elements > 0 && Route::of(call, rank_count, &self.features) == Route::Direct
    }

    /// On the control communicator, because NCCL does not tell which ranks are missing.
    fn monitored_barrier(&self, deadline: Instant) -> Result<()> {
        self.domain.check()?;
        match &self.control {
            Some(control) => control.monitored_barrier(deadline).map_err(|error| self.fail(error)),
            None => bail!(
                Unsupported,
                "NCCL does not tell which ranks are missing, and these ranks have no control communicator; between \
                 machines only ranks that met over TCP or a file have one; call `barrier`"
            ),
        }
    }

    fn check_message(&self, message: &MessageRequest) -> Result<()> {
        messages::check(message)
    }

    unsafe fn run_message(&self, message: &MessageRequest, deadline: Instant) -> Result<Delivery> {
        let mut state = self.lock(deadline)?;
        self.domain.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.complete_message(&mut state, message, deadline) }.map_err(|error| {
            let error = self.fail_messages(error, std::slice::from_ref(message));
            // Until what was aborted has ended, it may use the caller's memory.
            self.stream.drain();
            error
        })
    }

    unsafe fn enqueue_messages(
        &self,
        messages: &[MessageRequest],
        stream: Option<&Arc<CudaStream>>,
        deadline: Instant,
    ) -> Result<Vec<Delivery>> {
        let mut state = self.lock(deadline)?;
        self.domain.check()?;
        // SAFETY: the caller's promise.
        unsafe { self.launch_messages(&mut state, messages, stream.unwrap_or(&self.stream), deadline) }
            .map_err(|error| self.fail_messages(error, messages))?;
        Ok(messages.iter().map(|message| self.delivery(message)).collect())
    }

    fn keeps(&self, address: *const u8) -> bool {
        pool::has(address.addr()) || self.device().has_allocated(address)
    }

    fn track_graph(&self, graph: &SharedGraph) {
        self.domain.track_graph(graph);
    }

    fn control(&self) -> Option<&Control> {
        self.control.as_deref()
    }

    fn drain(&self, stream: Option<&Arc<CudaStream>>) {
        stream.unwrap_or(&self.stream).drain();
    }

    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        // NCCL's colors and keys are signed, and ours are not: the group's own numbers stand for
        // them.
        let (color, key) = (group.map(SplitGroup::id), group.map_or(0, |group| group.rank.0));
        let alive = || self.domain.check();
        let control = self.control.as_ref().map(|control| control.split(group, deadline)).transpose();
        let control = control.map_err(|error| self.fail(error))?.flatten();
        let handle = {
            let _lock = self.lock(deadline)?;
            let handle = self.handle.split(color, key, deadline, &alive);
            handle.map_err(|error| self.fail(error.about(|| "split".to_owned())))?
        };
        let Some(group) = group else { return Ok(None) };
        let Some(handle) = handle else {
            return Err(self.fail(error!(System, "ncclCommSplit gave no communicator")));
        };
        let origins = group.members.iter().map(|&rank| self.origin(rank)).collect();
        let domain = Arc::clone(&self.domain);
        let descendant = Self::with(handle, origins, self.features, domain, control, deadline);
        descendant.map(|backend| Some(Box::new(backend) as Box<dyn Backend>)).map_err(|error| self.fail(error))
    }

    /// Not a window. NCCL chooses its kernels by whether a buffer is in a window, and all ranks
    /// have to choose alike; but the caller may pass another kind of buffer on another rank.
    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.symmetric_buffer(byte_len, false, deadline)
    }

    fn allocate_region(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.symmetric_buffer(byte_len, self.features.has_windows, deadline)
    }

    fn join_region(&self, region: &Buffer, deadline: Instant) -> Result<Option<RegionPart>> {
        self.window_over(region, deadline)
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        let error = Error::new(kind, reason);
        match interrupt::check_may_wait() {
            Ok(()) => self.domain.end(error),
            // The interrupt hook aborts, perhaps in a wait of a thread that is inside NCCL.
            Err(_) => self.domain.abandon(error),
        }
    }
}
