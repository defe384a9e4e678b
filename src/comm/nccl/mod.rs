//! The NCCL backend: ranks with a GPU each.
//!
//! A call either is enqueued on the caller's CUDA stream, or runs on the communicator's own stream until it is done; then its tensors
//! may be in host memory too, and are copied to the GPU and back (`staging`). How a call maps to NCCL's is decided in `route`;
//! `calls` makes them. `handle` keeps NCCL's rules: who may call what when, and that no wait is without an end.

#[rustfmt::skip]
mod bindings;
mod calls;
mod group;
mod handle;
mod id;
mod library;
mod route;
mod scratch;
mod staging;
mod window;

use std::ffi::c_void;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, Weak};
use std::time::Instant;

use handle::Handle;
pub use id::NcclId;
pub(crate) use library::library;
pub(crate) use route::reduces_float8;
use route::{Features, Route};
use scratch::Scratch;
use staging::Staging;

use super::backend::{Backend, CallGroup, Request, SharedGraph};
use super::signature::{Purpose, Signature};
use super::split::SplitGroup;
use super::{BackendKind, host, rank_lock};
use crate::collective::{Call, Collective, ReduceOperation};
use crate::cuda::{CudaStream, Device, DeviceMemory, Transfer, device_count, nvrtc_version};
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::memory::{Address, Buffer, MemorySpace};
use crate::rank::{GroupRank, Rank};
use crate::stream::{Watch, drain};
use crate::util::fork::ProcessGuard;
use crate::util::lock;
use crate::util::text::count_of;

/// The compute capability from which TensorRT's layer takes part among several ranks.
const OLDEST_CAPABILITY: (i32, i32) = (8, 0);

/// The bytes that stand in for a buffer which a rank does not use, since NCCL wants a valid address everywhere.
const STAND_IN_BYTES: usize = 256;

/// One rank of a communicator on GPUs.
pub(crate) struct NcclBackend {
    handle: Arc<Handle>,
    rank: GroupRank,
    /// This communicator's ranks, as numbers in the one from which it was split.
    origins: Box<[Rank]>,
    features: Features,
    family: Arc<Family>,
    /// For calls that are done when they return.
    stream: Arc<CudaStream>,
    stand_in: DeviceMemory,
    /// Held during a call, so that two threads of one rank take turns.
    progress: Mutex<Progress>,
}

/// What a rank keeps from call to call.
#[derive(Default)]
struct Progress {
    /// The number of collectives so far.
    sequence: u64,
    scratch: Scratch,
    staging: Staging,
    /// For tensors in host memory.
    transfer: Option<Transfer>,
}

impl Progress {
    /// Where host tensors are copied through, made when there is the first.
    fn transfer(&mut self, device: &Arc<Device>) -> Result<&mut Transfer> {
        match &mut self.transfer {
            Some(transfer) => Ok(transfer),
            none => Ok(none.insert(Transfer::new(device)?)),
        }
    }
}

/// A communicator and everything that was split from it: what ends one ends all.
struct Family {
    ended: OnceLock<Error>,
    handles: Mutex<Vec<Weak<Handle>>>,
    /// What was recorded of their collectives: NCCL does not let go of a communicator before its graphs are gone.
    graphs: Mutex<Vec<Weak<Mutex<Option<crate::cuda::Graph>>>>>,
    /// A communicator of the same ranks on the host, where they are on one machine: NCCL tells nobody that a rank has failed or
    /// died; it does, at once.
    sidecar: Option<Arc<dyn Backend>>,
    /// Whether the first communicator is our own, and not borrowed.
    is_ours: bool,
    process: ProcessGuard,
}

impl Family {
    fn new(sidecar: Option<Arc<dyn Backend>>, is_ours: bool) -> Self {
        Family {
            ended: OnceLock::new(),
            handles: Mutex::default(),
            graphs: Mutex::default(),
            sidecar,
            is_ours,
            process: ProcessGuard::current(),
        }
    }

    fn check(&self) -> Result<()> {
        if let Some(error) = self.ended.get() {
            return Err(error.clone());
        }
        self.sidecar.as_ref().map_or(Ok(()), |sidecar| sidecar.check_peers())
    }

    /// The error that NCCL has met on any of the communicators.
    fn asynchronous_error(&self) -> Result<()> {
        lock(&self.handles).iter().filter_map(Weak::upgrade).try_for_each(|handle| handle.asynchronous_error())
    }

    fn add(&self, handle: &Arc<Handle>) {
        let mut handles = lock(&self.handles);
        handles.retain(|handle| handle.strong_count() > 0);
        handles.push(Arc::downgrade(handle));
    }

    /// Ends all communicators, because of this error or an earlier one.
    fn end(&self, error: Error) {
        if let Some(sidecar) = &self.sidecar {
            sidecar.abort(error.kind(), &error.to_string());
        }
        // A process that was forked from the rank's has nothing of NCCL's or of the GPU to let go of.
        if self.ended.set(error).is_err() || !self.process.is_current() {
            return;
        }
        for graph in lock(&self.graphs).drain(..).filter_map(|graph| graph.upgrade()) {
            // One that is being launched goes with its context.
            if let Ok(mut graph) = graph.try_lock() {
                *graph = None;
            }
        }
        let handles: Vec<_> = lock(&self.handles).iter().filter_map(Weak::upgrade).collect();
        // Together: one may wait for what another one still does on the GPU.
        std::thread::scope(|scope| {
            for handle in &handles {
                // Where there is no thread, one after the other.
                let aborting = std::thread::Builder::new().spawn_scoped(scope, || handle.abort());
                aborting.map_or_else(|_| handle.abort(), drop);
            }
        });
    }
}

/// Whether layers of several ranks may run on a GPU: TensorRT's page on DistCollective wants compute capability 8.0.
pub(crate) fn runs_layers(device: &Device) -> bool {
    device.capability >= OLDEST_CAPABILITY
}

/// Whether several ranks may share one GPU: from NCCL 2.30 on, where the environment asks for it.
pub(crate) fn can_share_gpus() -> Result<bool> {
    let version = library()?.version;
    Ok((version.major, version.minor) >= (2, 30)
        && std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1"))
}

/// Looks whether there are NCCL and GPUs for so many ranks of one process, and gives the number of GPUs.
pub(crate) fn check_gpus(world_size: u32) -> Result<u32> {
    library()?;
    let gpus = device_count()?;
    if gpus < world_size && !(gpus > 0 && can_share_gpus()?) {
        let (ranks, gpus) = (count_of(world_size as usize, "rank"), count_of(gpus as usize, "GPU"));
        bail!(
            Unsupported,
            "{ranks} on {gpus}: NCCL has one rank a GPU; from 2.30 on several share it with NCCL_MULTI_RANK_GPU_ENABLE=1"
        );
    }
    Ok(gpus)
}

/// [`check_gpus`], and whether kernels can be made, without which some layers and types do not work.
pub(crate) fn check_all(world_size: u32) -> Result<u32> {
    nvrtc_version()?;
    check_gpus(world_size)
}

/// The communicators of ranks that are threads of this process: rank `r` on GPU `r`, or shared among those there are.
pub(crate) fn in_process(world_size: u32, deadline: Instant) -> Result<Vec<NcclBackend>> {
    let gpus = check_gpus(world_size)?;
    let id = NcclId::new()?;
    // All ranks meet at the same time, each on a thread; the communicators can then go anywhere.
    std::thread::scope(|scope| {
        let meet = |(rank, sidecar): (u32, host::HostBackend)| {
            let id = &id;
            let meet = move || meet(id, Rank(rank), world_size, rank % gpus, Some(Arc::new(sidecar)), deadline);
            std::thread::Builder::new().spawn_scoped(scope, meet)
        };
        let threads: Vec<_> = (0..world_size).zip(host::in_process(world_size)?).map(meet).collect();
        let joined = threads.into_iter().map(|thread| {
            let thread = thread.map_err(|e| error!(System, "no thread for a rank").with_source(e))?;
            thread.join().unwrap_or_else(|_| Err(error!(System, "a rank panicked")))
        });
        joined.collect::<Vec<Result<_>>>().into_iter().collect()
    })
}

/// Meets the other ranks that have this id, each with a GPU of its own. Collective.
pub(crate) fn meet(
    id: &NcclId,
    rank: Rank,
    world_size: u32,
    ordinal: u32,
    sidecar: Option<Arc<dyn Backend>>,
    deadline: Instant,
) -> Result<NcclBackend> {
    if rank.0 >= world_size {
        bail!(InvalidArgument, "rank {rank} is not one of {}", count_of(world_size as usize, "rank"));
    }
    let library = library()?;
    let device = Device::open(ordinal)?;
    let alive = || sidecar.as_ref().map_or(Ok(()), |sidecar| sidecar.check_peers());
    let handle = Handle::initialize(library, &device, id.to_raw(), [rank.0, world_size], deadline, &alive);
    // The others need not wait for this rank.
    let handle = handle
        .inspect_err(|error| sidecar.iter().for_each(|sidecar| sidecar.abort(error.kind(), &error.to_string())))?;
    NcclBackend::begin(handle, sidecar, deadline)
}

/// A rank on the caller's communicator. Collective.
///
/// # Safety
///
/// As [`Handle::borrowed`].
pub(crate) unsafe fn borrow(communicator: *mut c_void, deadline: Instant) -> Result<NcclBackend> {
    if communicator.is_null() {
        bail!(InvalidArgument, "the communicator is null");
    }
    // SAFETY: the caller's promise.
    let handle = unsafe { Handle::borrowed(library()?, communicator.cast(), Device::open)? };
    NcclBackend::begin(handle, None, deadline)
}

impl NcclBackend {
    /// The first communicator of a family: its ranks tell each other what they can do.
    fn begin(handle: Handle, sidecar: Option<Arc<dyn Backend>>, deadline: Instant) -> Result<Self> {
        let (features, is_ours) = (Features::of(&handle), handle.is_own);
        let [_, world_size] = handle.place()?;
        let origins = (0..world_size).map(Rank).collect();
        let mut backend = Self::with(handle, origins, features, Arc::new(Family::new(sidecar, is_ours)))?;
        let all = backend.gather(&features.to_words(), Purpose::Initialize, deadline)?;
        backend.features = all.into_iter().map(Features::from_words).fold(features, Features::common);
        Ok(backend)
    }

    fn with(handle: Handle, origins: Box<[Rank]>, features: Features, family: Arc<Family>) -> Result<Self> {
        let [rank, world_size] = handle.place()?;
        if world_size as usize != origins.len() {
            bail!(System, "NCCL's communicator has {world_size} ranks instead of {}", origins.len());
        }
        let handle = Arc::new(handle);
        family.add(&handle);
        Ok(NcclBackend {
            stream: Arc::new(CudaStream::new(&handle.device)?),
            stand_in: DeviceMemory::new(&handle.device, STAND_IN_BYTES)?,
            rank: GroupRank(rank),
            origins,
            features,
            family,
            handle,
            progress: Mutex::default(),
        })
    }

    /// The GPU.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.handle.device
    }

    fn turn(&self, deadline: Instant) -> Result<MutexGuard<'_, Progress>> {
        // A rank that leaves a collective out lets its peers wait for nothing.
        rank_lock::take(&self.progress, deadline).ok_or_else(|| self.give_up(rank_lock::missed()))
    }

    /// Runs one collective in this rank's turn.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn run_in_turn(&self, progress: &mut Progress, request: &Request<'_>) -> Result<()> {
        self.family.check().map_err(|e| request.label(e))?;
        progress.sequence += 1;
        // SAFETY: the caller's promise.
        let result = unsafe {
            match request.stream {
                Some(stream) => self.enqueue(progress, request, stream),
                None => self.complete(progress, request),
            }
        };
        result.map_err(|error| {
            // What the family has ended with says by itself what it was.
            let own = self.family.ended.get().is_none();
            let error = match own {
                true => Error::new(error.kind(), format!("{}: {error}", self.describe(request, progress.sequence))),
                false => error,
            };
            let error = request.label(error);
            // In a capture nothing has happened yet.
            if error.kind() == ErrorKind::NotReady {
                return error;
            }
            // Peers may have come to this collective already: nothing else can follow it.
            match request.stream {
                Some(_) => self.give_up(error),
                None => {
                    let error = self.give_up(error);
                    // Until what was aborted has ended, it may use the caller's memory.
                    drain(&self.stream);
                    error
                }
            }
        })
    }

    /// `all_reduce(sum) of 12 float32 (collective 3 of ranks 0 and 2)`.
    fn describe(&self, request: &Request<'_>, sequence: u64) -> String {
        let ranks = crate::util::text::list_ranks(self.origins.iter().map(|rank| rank.0));
        format!("{} (collective {sequence} of {ranks})", request.signature)
    }

    /// Enqueues a collective.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn enqueue(&self, progress: &mut Progress, request: &Request<'_>, stream: &Arc<CudaStream>) -> Result<()> {
        let (call, sides) = with_something_to_do(request, [request.input.pointer, request.output.pointer]);
        // SAFETY: the caller's promise.
        unsafe { self.issue(&mut progress.scratch, &call, sides, stream, request.deadline) }
    }

    /// Does a collective on this communicator's own stream: tensors in host memory are copied to the GPU and back.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`].
    unsafe fn complete(&self, progress: &mut Progress, request: &Request<'_>) -> Result<()> {
        let (call, n, deadline) = (request.signature.call, self.origins.len(), request.deadline);
        let on_host = |side: Address, byte_len: usize, used: bool| {
            if used && side.space == MemorySpace::Host { byte_len } else { 0 }
        };
        let given = on_host(request.input, call.input_bytes(n), call.reads_input(self.rank));
        let wanted = on_host(request.output, call.output_bytes(n), call.writes_output(self.rank));
        let [mut input, mut output] = [request.input.pointer, request.output.pointer];
        let (device, stream) = (self.device(), &self.stream);
        let alive = &mut || self.check();
        // SAFETY: the caller's promise; the staging is as long as was asked for, and is used in this turn only.
        unsafe {
            if wanted > 0 {
                output = progress.staging.output(device, wanted)?;
            }
            if given > 0 {
                input = progress.staging.input(device, given)?;
                let from = request.input.pointer;
                progress.transfer(device)?.upload(from, input, given, stream, deadline, alive)?;
            }
            let (call, sides) = with_something_to_do(request, [input, output]);
            self.issue(&mut progress.scratch, &call, sides, stream, deadline)?;
            if wanted > 0 {
                let to = request.output.pointer;
                progress.transfer(device)?.download(output, to, wanted, stream, deadline, alive)?;
            }
        }
        stream.synchronize(deadline, alive)
    }

    /// Gathers the same number of words from every rank.
    fn gather<const N: usize>(&self, words: &[i64; N], purpose: Purpose, deadline: Instant) -> Result<Vec<[i64; N]>> {
        let mut all = vec![[0i64; N]; self.origins.len()];
        let call = Call { collective: Collective::AllGather, data_type: DataType::Int64, block_elements: N };
        let request = Request {
            signature: Signature { purpose, call },
            label: None,
            input: Address::host(words.as_ptr().cast()),
            output: Address::host(all.as_mut_ptr().cast()),
            deadline,
            stream: None,
        };
        // SAFETY: the input holds N elements, and the output N for each rank; both are local and apart.
        unsafe { self.run(&request)? };
        Ok(all)
    }
}

impl Drop for NcclBackend {
    /// Where another rank has ended the family, its communicators are aborted here too: finalizing would wait for that rank.
    fn drop(&mut self) {
        if let Err(error) = self.family.check() {
            self.family.end(error);
        }
    }
}

/// The call and its buffers. One of the library's own without elements still is a barrier: an all_reduce of one byte that nobody
/// reads, in no buffer of the caller's.
fn with_something_to_do(request: &Request<'_>, sides: [*mut u8; 2]) -> (Call, [*mut u8; 2]) {
    match request.signature {
        Signature { purpose, call } if purpose != Purpose::Collective && call.block_elements == 0 => {
            let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            (Call { collective, data_type: DataType::Uint8, block_elements: 1 }, [std::ptr::null_mut(); 2])
        }
        Signature { call, .. } => (call, sides),
    }
}

impl Watch for NcclBackend {
    fn check(&self) -> Result<()> {
        self.family.check()?;
        self.family.asynchronous_error()
    }

    fn give_up(&self, error: Error) -> Error {
        self.family.end(error);
        // The first error is the one that counts.
        self.family.ended.get().cloned().unwrap_or_else(|| error!(Aborted, "the communicator has ended"))
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

    fn reserve(&self, call: &Call, stream: Option<&Arc<CudaStream>>, deadline: Instant) -> Result<()> {
        let route = Route::of(call, self.origins.len(), &self.features);
        self.device().prepare(route.kernels(call).into_iter().flatten())?;
        let bytes = route.scratch_bytes(call, self.origins.len());
        self.turn(deadline)?.scratch.reserve(self.device(), bytes, stream.unwrap_or(&self.stream))
    }

    unsafe fn run(&self, request: &Request<'_>) -> Result<()> {
        let mut progress = self.turn(request.deadline).map_err(|e| request.label(e))?;
        // SAFETY: the caller's promise.
        unsafe { self.run_in_turn(&mut progress, request) }
    }

    fn can_group(&self, call: &Call, rank_count: usize) -> bool {
        // NCCL takes no group of blocking and other communicators, and a borrowed one may block.
        let is_ours = self.family.is_ours;
        is_ours && call.block_elements > 0 && Route::of(call, rank_count, &self.features) == Route::Direct
    }

    unsafe fn run_group(&self, group: &CallGroup<'_>) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { group::run(group) }
    }

    fn track_graph(&self, graph: &SharedGraph) {
        let mut graphs = lock(&self.family.graphs);
        graphs.retain(|graph| graph.strong_count() > 0);
        graphs.push(Arc::downgrade(graph));
    }

    fn drain(&self, stream: Option<&Arc<CudaStream>>) {
        drain(stream.unwrap_or(&self.stream));
    }

    fn split(&self, group: Option<&SplitGroup>, deadline: Instant) -> Result<Option<Box<dyn Backend>>> {
        // NCCL's colors and keys are signed, and ours are not: the group's own numbers stand for them.
        let (color, key) = (group.map(SplitGroup::id), group.map_or(0, |group| group.rank.0));
        let alive = || self.family.check();
        let handle = {
            let _turn = self.turn(deadline)?;
            let handle = self.handle.split(color, key, deadline, &alive);
            handle.map_err(|error| self.give_up(error.about(|| "split".to_owned())))?
        };
        let Some(group) = group else { return Ok(None) };
        let Some(handle) = handle else {
            return Err(self.give_up(error!(System, "ncclCommSplit gave no communicator")));
        };
        let origins = group.members.iter().map(|&rank| self.origin(rank)).collect();
        let descendant = Self::with(handle, origins, self.features, Arc::clone(&self.family));
        descendant.map(|backend| Some(Box::new(backend) as Box<dyn Backend>)).map_err(|error| self.give_up(error))
    }

    /// It is no window: NCCL takes other ways with windows, which all ranks have to take, and a buffer of the caller's may meet another
    /// kind of buffer on another rank.
    fn allocate(&self, byte_len: usize, deadline: Instant) -> Result<Buffer> {
        self.symmetric_buffer(byte_len, false, deadline)
    }

    fn allocate_region(&self, byte_len: usize, for_graphs: bool, deadline: Instant) -> Result<Buffer> {
        let Features { has_windows, has_graph_windows, .. } = self.features;
        let can = if for_graphs { has_graph_windows } else { has_windows };
        // A window is deregistered when nothing uses it any more. By then whoever lent a communicator may have destroyed it.
        self.symmetric_buffer(byte_len, can && self.handle.is_own, deadline)
    }

    fn abort(&self, kind: ErrorKind, reason: &str) {
        self.family.end(Error::new(kind, reason));
    }
}
