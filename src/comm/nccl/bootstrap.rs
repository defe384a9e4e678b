//! Making communicators on GPUs: of threads, with an id, from the caller's `ncclComm_t`.

use std::ffi::c_void;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::super::NcclId;
use super::super::backend::{Backend, Control};
use super::domain::NcclDomain;
use super::handle::NcclHandle;
use super::library::library;
use super::route::Features;
use super::{NcclBackend, STAND_IN_BYTES};
use crate::collective::Purpose;
use crate::cuda::{CudaStream, Device, DeviceMemory, RankOnGpu, device_count};
use crate::error::{Error, Result, bail, error};
use crate::rank::{GroupRank, Rank};
use crate::util::interrupt;
use crate::util::text::count_of;
use crate::util::wait::Wait;

/// Whether several ranks may share one GPU: from NCCL 2.30 on, if the environment asks for it.
pub(crate) fn can_share_gpus() -> Result<bool> {
    Ok(library()?.version >= (2, 30, 0) && std::env::var("NCCL_MULTI_RANK_GPU_ENABLE").is_ok_and(|value| value == "1"))
}

/// Checks that there are NCCL and GPUs for this many ranks of one process. Returns the number of
/// GPUs.
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

/// A communicator whose ranks are threads of this process. Rank `r` has GPU `r`, modulo the number
/// of GPUs. `controls` makes their control communicators.
pub(crate) fn in_process(
    world_size: u32,
    controls: impl FnOnce() -> Result<Vec<Arc<dyn Backend>>>,
    deadline: Instant,
) -> Result<Vec<Arc<dyn Backend>>> {
    let gpus = check_gpus(world_size)?;
    let id = library()?.unique_id()?;
    let controls = controls()?;
    // NCCL wants all ranks at once, each on a thread of its own.
    std::thread::scope(|scope| {
        let connect = |(rank, control): (u32, Arc<dyn Backend>)| {
            let id = &id;
            let connect = move || {
                let _mask = interrupt::mask();
                connect(id, Rank(rank), world_size, rank % gpus, Some(control), deadline)
            };
            std::thread::Builder::new().spawn_scoped(scope, connect)
        };
        let threads: Vec<_> = (0..world_size).zip(controls.iter().cloned()).map(connect).collect();
        let is_running = || threads.iter().flatten().any(|thread| !thread.is_finished());
        let mut wait = Wait::forever();
        let mut waited = Ok(());
        while waited.is_ok() && is_running() {
            waited = wait.pause().map_err(|stopped| {
                let error = stopped.error("while the ranks connected", "the ranks have not connected");
                // The threads see it in their control communicators.
                controls.iter().for_each(|control| control.abort(error.kind(), &error.to_string()));
                error
            });
        }
        let joined = threads.into_iter().map(|thread| {
            let thread = thread.map_err(|e| error!(System, "no thread for a rank").with_source(e))?;
            thread.join().unwrap_or_else(|_| Err(error!(System, "a rank panicked")))
        });
        let joined = joined.collect::<Vec<Result<_>>>();
        waited?;
        joined.into_iter().collect()
    })
}

/// A communicator of the ranks that have this id. `control` has the same ranks. Collective.
pub(crate) fn connect(
    id: &NcclId,
    rank: Rank,
    world_size: u32,
    ordinal: u32,
    control: Option<Arc<dyn Backend>>,
    deadline: Instant,
) -> Result<Arc<dyn Backend>> {
    if rank.0 >= world_size {
        bail!(InvalidArgument, "rank {rank} is not one of {}", count_of(world_size as usize, "rank"));
    }
    let alive = || control.as_ref().map_or(Ok(()), |control| control.check_peers());
    // The peers must not wait for this rank.
    let tell = |error: &Error| control.iter().for_each(|control| control.abort(error.kind(), &error.to_string()));
    let connected = library().and_then(|library| {
        let device = Device::open(ordinal)?;
        // Before any rank can have enqueued work.
        let on_gpu = RankOnGpu::new(&device);
        let handle =
            NcclHandle::initialize(library, &device, id.into(), [rank.0, world_size], deadline, &alive, &tell)?;
        NcclBackend::begin(handle, control.clone(), Some(on_gpu), deadline)
    });
    Ok(Arc::new(connected.inspect_err(tell)?))
}

/// A rank on the caller's communicator. Collective.
///
/// # Safety
///
/// As [`NcclHandle::borrowed`].
pub(crate) unsafe fn borrow(communicator: *mut c_void, deadline: Instant) -> Result<Arc<dyn Backend>> {
    if communicator.is_null() {
        bail!(InvalidArgument, "the communicator is null");
    }
    // SAFETY: the caller's promise.
    let handle = unsafe { NcclHandle::borrowed(library()?, communicator.cast(), Device::open)? };
    Ok(Arc::new(NcclBackend::begin(handle, None, None, deadline)?))
}

impl NcclBackend {
    /// The first communicator of a domain: its ranks exchange their features. Collective.
    fn begin(
        handle: NcclHandle,
        control: Option<Arc<dyn Backend>>,
        on_gpu: Option<RankOnGpu>,
        deadline: Instant,
    ) -> Result<Self> {
        let (features, is_own) = (Features::of(&handle), handle.is_own);
        let [_, world_size] = handle.rank_and_size(deadline)?;
        let origins = (0..world_size).map(Rank).collect();
        let domain = Arc::new(NcclDomain::new(control.clone(), on_gpu, is_own));
        let control = control.map(|host| Control::new(host, deadline)).transpose()?;
        let mut backend = Self::with(handle, origins, features, domain, control, deadline)?;
        let all = backend.gather(&features.to_words(), Purpose::INITIALIZE, deadline)?;
        backend.features = Features::common(&all);
        Ok(backend)
    }

    /// The backend of a communicator that NCCL has made.
    pub(super) fn with(
        handle: NcclHandle,
        origins: Box<[Rank]>,
        features: Features,
        domain: Arc<NcclDomain>,
        control: Option<Control>,
        deadline: Instant,
    ) -> Result<Self> {
        let [rank, world_size] = handle.rank_and_size(deadline)?;
        if world_size as usize != origins.len() {
            bail!(
                System,
                "NCCL's communicator has {} instead of {}",
                count_of(world_size as usize, "rank"),
                origins.len()
            );
        }
        let handle = Arc::new(handle);
        let control = control.map(Arc::new);
        domain.add(&handle, control.as_ref());
        Ok(NcclBackend {
            stream: Arc::new(CudaStream::new(&handle.device)?),
            stand_in: DeviceMemory::new(&handle.device, STAND_IN_BYTES)?,
            averages: Default::default(),
            counted: AtomicU64::new(0),
            rank: GroupRank(rank),
            origins,
            features,
            domain,
            control,
            handle,
            state: Mutex::default(),
        })
    }
}
