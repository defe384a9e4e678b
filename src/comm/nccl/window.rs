//! Memory that all ranks register with NCCL, so that its collectives reach it directly.
//!
//! NCCL binds a window at an offset of the rank's own free space (symMemoryObtain in NCCL's
//! `dev_runtime.cc`), and multicast needs the same offset on all ranks. So all ranks register and
//! deregister the same windows in the same order: a dropped window stays until the ranks meet to
//! register another, or until the communicator ends.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::NcclBackend;
use super::handle::{Alive, NcclHandle};
use super::pool::{self, Block, MemoryPool};
use super::sys::*;
use crate::collective::Purpose;
use crate::comm::backend::{Backend, RegionPart};
use crate::cuda::helper::Sent;
use crate::cuda::{Device, new_generation};
use crate::data_type::DataType;
use crate::error::{ErrorKind, Result, bail};
use crate::memory::{Buffer, Lease};
use crate::stream::Watch;
use crate::util::lock;
use crate::util::text::list_ranks;

/// How long ranks wait, before they meet, until the GPU has done the work on dropped windows.
const RELEASE_TIMEOUT: Duration = Duration::from_secs(2);

/// The most groups of this process that register a region. For each one NCCL reserves addresses for
/// all memory of all its GPUs (symMemoryMapLsaTeam in NCCL's `dev_runtime.cc`): for eight of 288 GB
/// 2.5 of the 128 TB that a process has.
const MOST_PARTS: usize = 32;

/// One more reference for each of them.
static PARTS: LazyLock<Arc<()>> = LazyLock::new(Arc::default);

/// How many windows the ranks look at when they meet: the bits of a word.
const MOST_COMPARED: usize = i64::BITS as usize;

/// The windows of a communicator, and memory that it may still use. The handle has it, and so has
/// what destroys or aborts the communicator: the last one frees the memory.
pub(super) struct Windows {
    pub(super) pool: Arc<MemoryPool>,
    /// In the order in which the ranks registered them, which is the same on all ranks.
    registered: Mutex<Vec<Arc<Window>>>,
    /// Memory of which NCCL has not said that it is registered, or not any more: the call has
    /// failed, or has not returned.
    unsettled: Mutex<Vec<Arc<Block>>>,
    /// The communicator was destroyed or aborted, and its windows went with it.
    is_over: AtomicBool,
}

/// A window, and the memory under it.
struct Window {
    raw: NonNull<ncclWindow_vidmem>,
    block: Arc<Block>,
    /// This rank does not use the memory any more, and neither does its GPU.
    is_dropped: AtomicBool,
}

// SAFETY: NCCL takes the window from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Windows {
    pub(super) fn new(pool: &Arc<MemoryPool>) -> Arc<Self> {
        Arc::new(Windows {
            pool: Arc::clone(pool),
            registered: Mutex::default(),
            unsettled: Mutex::default(),
            is_over: AtomicBool::new(false),
        })
    }

    /// Says that the communicator was destroyed or aborted.
    pub(super) fn end(&self) {
        self.is_over.store(true, Ordering::Release);
    }

    fn push(&self, window: &Arc<Window>) {
        lock(&self.registered).push(Arc::clone(window));
    }

    /// Keeps memory until the communicator has ended.
    fn keep(&self, block: &Arc<Block>) {
        lock(&self.unsettled).push(Arc::clone(block));
    }

    /// Which of the oldest windows this rank has dropped, as bits; `None` without windows.
    fn dropped(&self) -> Option<i64> {
        let windows = lock(&self.registered);
        let is_dropped = |window: &Arc<Window>| i64::from(window.is_dropped.load(Ordering::Acquire));
        let bits = windows.iter().take(MOST_COMPARED).enumerate();
        (!windows.is_empty()).then(|| bits.fold(0, |bits, (index, window)| bits | (is_dropped(window) << index)))
    }

    /// Takes these windows out.
    fn take(&self, bits: i64) -> Vec<Arc<Window>> {
        let mut index = 0;
        let mut is_meant = |_: &mut Arc<Window>| {
            index += 1;
            index <= MOST_COMPARED && bits >> (index - 1) & 1 == 1
        };
        lock(&self.registered).extract_if(.., &mut is_meant).collect()
    }
}

impl Drop for Windows {
    fn drop(&mut self) {
        let mut memory = std::mem::take(self.unsettled.get_mut().unwrap_or_else(PoisonError::into_inner));
        let registered = self.registered.get_mut().unwrap_or_else(PoisonError::into_inner);
        memory.extend(registered.drain(..).map(|window| Arc::clone(&window.block)));
        // Otherwise NCCL may use the memory. A forked child has none.
        if !*self.is_over.get_mut() || !self.pool.device.is_here() {
            self.pool.leave_behind();
            return std::mem::forget(memory);
        }
        // The handle is dropped, to which all buffers had a reference.
        self.pool.free_later(memory);
    }
}

/// The memory of a communicator's buffer, or what keeps it registered with a communicator.
struct SymmetricMemory {
    handle: Arc<NcclHandle>,
    address: NonNull<u8>,
    generation: u64,
    owner: WindowOwner,
}

/// What frees memory that is dropped.
enum WindowOwner {
    /// The drop.
    Buffer(Arc<Block>),
    /// The communicator, when every rank has dropped the window over it.
    Window(Arc<Window>),
    /// The communicator, when it has ended.
    Communicator,
}

// SAFETY: an address and a handle, which are used only when the memory is freed.
unsafe impl Send for SymmetricMemory {}
// SAFETY: as above.
unsafe impl Sync for SymmetricMemory {}

impl NcclBackend {
    /// Memory of zeros on this rank's GPU, registered as a window if `as_window` and every rank
    /// can. Collective.
    pub(super) fn symmetric_buffer(&self, byte_len: usize, as_window: bool, deadline: Instant) -> Result<Buffer> {
        if !self.handle.is_own {
            // Its owner may destroy a borrowed communicator before a window is deregistered, or use
            // it after captured memory is freed.
            let buffer = Buffer::zeroed_in(self.space(), DataType::Uint8, [byte_len as i64]);
            return self.if_all_have(buffer, byte_len, deadline);
        }
        if as_window {
            self.release_windows(deadline)?;
        }
        let memory = SymmetricMemory::new(&self.handle, byte_len).and_then(|memory| {
            // SAFETY: the memory is at least that long, and nothing else refers to it yet.
            unsafe { self.stream.zero(memory.address.as_ptr(), byte_len)? };
            self.stream.synchronize(deadline, || self.check())?;
            Ok(memory)
        });
        if let Err(error) = &memory
            && error.kind() == ErrorKind::Interrupted
        {
            return Err(self.fail(error.clone()));
        }
        // All ranks register or none does, because registering waits for every rank.
        let mut memory = self.if_all_have(memory, byte_len, deadline)?;
        if as_window && byte_len > 0 {
            self.register(&mut memory, deadline)?;
        }
        // SAFETY: NCCL's memory is aligned to its granularity, holds that many zeros as long as the
        // lease lives, and nothing else refers to it.
        unsafe { Buffer::leased(Box::new(memory), byte_len) }
    }

    /// Registers an engine's region, which another communicator of the domain has allocated, with
    /// this one too: NCCL reaches a window in calls of the window's communicator only. Collective.
    pub(super) fn window_over(&self, region: &Buffer, deadline: Instant) -> Result<Option<RegionPart>> {
        // A borrowed communicator's region is not NCCL's memory, on any rank.
        let block = pool::block_at(region.as_ptr().addr());
        let Some(block) = block.filter(|_| self.features.has_windows) else { return Ok(None) };
        let has_many = Arc::strong_count(&PARTS) > MOST_PARTS;
        let part = Arc::clone(&PARTS);
        let all = self.gather(&[i64::from(has_many)], Purpose::ALLOCATE, deadline)?;
        if all.contains(&[1]) {
            return Ok(None);
        }
        let mut memory = SymmetricMemory::over(&self.handle, block);
        self.register(&mut memory, deadline)?;
        Ok(Some(Box::new((memory, part))))
    }

    /// Registers memory as a window if every rank can. Collective.
    fn register(&self, memory: &mut SymmetricMemory, deadline: Instant) -> Result<()> {
        {
            let _lock = self.lock(deadline)?;
            let registered = memory.register(deadline, &|| self.domain.check());
            registered.map_err(|error| self.fail(error.about(|| "allocate".to_owned())))?;
        }
        // NCCL returns a null window if it supports none here (nccl #1963).
        let is_registered = matches!(memory.owner, WindowOwner::Window(_));
        let all = self.gather(&[i64::from(is_registered)], Purpose::ALLOCATE, deadline);
        let all = all.inspect_err(|_| memory.leave_to_communicator())?;
        if let WindowOwner::Window(window) = &memory.owner {
            if all.contains(&[0]) {
                let window = Arc::clone(window);
                self.deregister(std::slice::from_ref(&window))?;
                memory.owner = WindowOwner::Buffer(Arc::clone(&window.block));
            } else {
                self.handle.windows.push(window);
            }
        }
        Ok(())
    }

    /// The memory, if every rank has some. Collective.
    fn if_all_have<T>(&self, memory: Result<T>, byte_len: usize, deadline: Instant) -> Result<T> {
        let all = self.gather(&[i64::from(memory.is_ok())], Purpose::ALLOCATE, deadline)?;
        let memory = memory?;
        let without = (0..all.len()).filter(|&rank| all[rank] == [0]).map(|rank| self.origins[rank].0);
        if without.clone().next().is_some() {
            bail!(System, "{} had no memory for {byte_len} bytes", list_ranks(without));
        }
        Ok(memory)
    }

    /// Deregisters the windows that every rank has dropped, and frees their memory. Collective.
    fn release_windows(&self, deadline: Instant) -> Result<()> {
        self.device().settle(RELEASE_TIMEOUT);
        let windows = &self.handle.windows;
        let Some(dropped) = windows.dropped() else { return Ok(()) };
        let all = self.gather(&[dropped], Purpose::ALLOCATE, deadline)?;
        let released = windows.take(all.iter().fold(-1, |common, [dropped]| common & dropped));
        self.deregister(&released)?;
        // Freeing waits for the whole GPU. A rank that shares it may have gone on, and its next
        // collective may wait for this rank.
        windows.pool.free_later(released);
        Ok(())
    }

    /// Deregisters windows that are in no list. If that fails, the communicator keeps all of their
    /// memory.
    fn deregister(&self, windows: &[Arc<Window>]) -> Result<()> {
        let deregistered =
            windows.iter().try_for_each(|window| self.handle.deregister(window.raw, &|| self.domain.check()));
        deregistered.map_err(|error| {
            windows.iter().for_each(|window| self.handle.windows.keep(&window.block));
            self.fail(error)
        })
    }
}

impl SymmetricMemory {
    fn new(handle: &Arc<NcclHandle>, byte_len: usize) -> Result<Self> {
        Ok(Self::over(handle, handle.windows.pool.take(handle.library, byte_len)?))
    }

    fn over(handle: &Arc<NcclHandle>, block: Arc<Block>) -> Self {
        SymmetricMemory {
            handle: Arc::clone(handle),
            address: block.address,
            generation: new_generation(),
            owner: WindowOwner::Buffer(block),
        }
    }

    /// Keeps the memory until the communicator has ended, which may use it.
    fn leave_to_communicator(&mut self) {
        match &self.owner {
            WindowOwner::Buffer(block) => self.handle.windows.keep(block),
            WindowOwner::Window(window) => self.handle.windows.keep(&window.block),
            WindowOwner::Communicator => {}
        }
        self.owner = WindowOwner::Communicator;
    }

    /// Registers the memory. Collective.
    fn register(&mut self, deadline: Instant, alive: Alive<'_>) -> Result<()> {
        let WindowOwner::Buffer(block) = &self.owner else { return Ok(()) };
        // SAFETY: an address that NCCL takes from any thread; nothing else uses the memory
        // meanwhile.
        let address = unsafe { Sent::new(block.address) };
        let (block, byte_len) = (Arc::clone(block), block.byte_len);
        // NCCL may write the window after the deadline, so this is never freed.
        let window: &'static AtomicPtr<ncclWindow_vidmem> = Box::leak(Box::default());
        let register = move |raw| {
            let address = address.into_inner().as_ptr().cast();
            // SAFETY: the communicator exists during the call; the memory is NCCL's, and that long.
            unsafe { ncclCommWindowRegister(raw, address, byte_len, window.as_ptr(), NCCL_WIN_COLL_SYMMETRIC) }
        };
        let registered = self.handle.call_aside("ncclCommWindowRegister", deadline, alive, register, || ());
        registered.inspect_err(|_| self.leave_to_communicator())?;
        if let Some(raw) = NonNull::new(window.load(Ordering::Acquire)) {
            let is_dropped = AtomicBool::new(false);
            self.owner = WindowOwner::Window(Arc::new(Window { raw, block, is_dropped }));
        }
        Ok(())
    }
}

impl Lease for SymmetricMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn device(&self) -> Option<&Arc<Device>> {
        Some(&self.handle.device)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        let (handle, owner) = (Arc::clone(&self.handle), std::mem::replace(&mut self.owner, WindowOwner::Communicator));
        let device = Arc::clone(&handle.device);
        device.release_later("ncclMemFree", move || {
            match owner {
                WindowOwner::Window(window) => window.is_dropped.store(true, Ordering::Release),
                owner => drop(owner),
            }
            // The communicator ends after the work on its memory.
            drop(handle);
            Ok(())
        });
    }
}
