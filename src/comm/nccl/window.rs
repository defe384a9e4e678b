//! Memory that all ranks register with NCCL, so that its collectives reach it directly.

use std::ptr::{self, NonNull};
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Instant;

use super::NcclBackend;
use super::bindings::*;
use super::handle::{Alive, NcclHandle};
use super::library::function;
use crate::comm::signature::Purpose;
use crate::cuda::helper::Sent;
use crate::cuda::{Device, new_generation};
use crate::error::{Result, bail, error};
use crate::memory::{Buffer, Lease};
use crate::stream::Watch;
use crate::util::text::list_ranks;

/// The length of a buffer's memory: a multiple of a window's granularity, and at least one.
fn registered_len(byte_len: usize) -> usize {
    byte_len.max(1).next_multiple_of(NCCL_WIN_REQUIRED_ALIGNMENT as usize)
}

/// The memory of a communicator's buffer, and the window over it if there is one.
struct SymmetricMemory {
    handle: Arc<NcclHandle>,
    address: NonNull<u8>,
    generation: u64,
    window: Option<Sent<NonNull<ncclWindow_vidmem>>>,
}

// SAFETY: an address and a handle, which are used only when the memory is freed.
unsafe impl Send for SymmetricMemory {}
// SAFETY: as above.
unsafe impl Sync for SymmetricMemory {}

impl NcclBackend {
    /// Memory of zeros on this rank's GPU, registered as a window if `as_window` and every rank
    /// can. Collective.
    pub(super) fn symmetric_buffer(&self, byte_len: usize, as_window: bool, deadline: Instant) -> Result<Buffer> {
        let memory = SymmetricMemory::new(&self.handle, byte_len).and_then(|memory| {
            // SAFETY: the memory is at least that long, and nothing else refers to it yet.
            unsafe { self.stream.zero(memory.address.as_ptr(), byte_len)? };
            self.stream.synchronize(deadline, || self.check())?;
            Ok(memory)
        });
        // All ranks register or none does, because registering waits for every rank.
        let all = self.gather(&[i64::from(memory.is_ok())], Purpose::Allocate, deadline)?;
        let mut memory = memory?;
        let without = (0..all.len()).filter(|&rank| all[rank] == [0]).map(|rank| self.origins[rank].0);
        if without.clone().next().is_some() {
            bail!(System, "{} had no memory for {byte_len} bytes", list_ranks(without));
        }
        if as_window && byte_len > 0 {
            {
                let _lock = self.lock(deadline)?;
                let registered = memory.register(byte_len, deadline, &|| self.domain.check());
                registered.map_err(|error| self.fail(error.about(|| "allocate".to_owned())))?;
            }
            // NCCL returns a null window if it supports none here (nccl #1963).
            let all = self.gather(&[i64::from(memory.window.is_some())], Purpose::Allocate, deadline)?;
            if all.contains(&[0]) {
                memory.deregister();
            }
        }
        // SAFETY: NCCL's memory is aligned to its granularity, holds that many zeros as long as the
        // lease lives, and nothing else refers to it.
        unsafe { Buffer::leased(Box::new(memory), byte_len) }
    }
}

impl SymmetricMemory {
    fn new(handle: &Arc<NcclHandle>, byte_len: usize) -> Result<Self> {
        let allocate = function!(handle.library, ncclMemAlloc)?;
        let _current = handle.device.enter()?;
        let mut address = ptr::null_mut();
        // SAFETY: writes one address.
        let result = unsafe { allocate(&mut address, registered_len(byte_len)) };
        handle.library.check("ncclMemAlloc", result)?;
        let address = NonNull::new(address.cast()).ok_or_else(|| error!(System, "ncclMemAlloc gave no address"))?;
        Ok(SymmetricMemory { handle: Arc::clone(handle), address, generation: new_generation(), window: None })
    }

    /// Registers the memory. Collective.
    fn register(&mut self, byte_len: usize, deadline: Instant, alive: Alive<'_>) -> Result<()> {
        let register = function!(self.handle.library, ncclCommWindowRegister)?;
        // SAFETY: an address that NCCL takes from any thread; nothing else uses the memory
        // meanwhile.
        let address = unsafe { Sent::new(self.address) };
        // NCCL may write the window after the deadline, so this is never freed.
        let window: &'static AtomicPtr<ncclWindow_vidmem> = Box::leak(Box::default());
        self.handle.call_aside("ncclCommWindowRegister", deadline, alive, move |raw| {
            let address = address.into_inner().as_ptr().cast();
            let flags = NCCL_WIN_COLL_SYMMETRIC as i32;
            // SAFETY: the communicator exists during the call; the memory is NCCL's, and that long.
            unsafe { register(raw, address, registered_len(byte_len), window.as_ptr(), flags) }
        })?;
        // SAFETY: NCCL takes a window from any thread; it is used once, when it is deregistered.
        self.window = NonNull::new(window.load(Ordering::Acquire)).map(|window| unsafe { Sent::new(window) });
        Ok(())
    }

    fn deregister(&mut self) {
        let Some(window) = self.window.take() else { return };
        if let Err(error) = self.handle.deregister(window) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}

impl Lease for SymmetricMemory {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn set_sliced(&self, _is_sliced: bool) {}

    fn device(&self) -> Option<&Arc<Device>> {
        Some(&self.handle.device)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

impl Drop for SymmetricMemory {
    fn drop(&mut self) {
        let Ok(free) = function!(self.handle.library, ncclMemFree) else { return };
        let window = self.window.take();
        let handle = Arc::clone(&self.handle);
        // SAFETY: an address, which only the closure uses from here on.
        let address = unsafe { Sent::new(self.address) };
        let device = Arc::clone(&handle.device);
        device.release_later("ncclMemFree", move || {
            // Neither deregistering nor freeing waits for work on the GPU that uses the memory.
            handle.device.synchronize()?;
            window.map_or(Ok(()), |window| handle.deregister(window))?;
            // SAFETY: allocated by `new`, and freed once.
            let result = unsafe { free(address.into_inner().as_ptr().cast()) };
            handle.library.check("ncclMemFree", result)
        });
    }
}
