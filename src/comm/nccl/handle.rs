//! NCCL's communicator, and the rules for its use: one thread at a time, no other call while one is
//! in progress, no thread inside when it is aborted, and no wait without a deadline.

use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use super::bindings::*;
use super::library::{Library, function};
use super::window::Windows;
use crate::comm::rank_lock;
use crate::cuda::helper::{self, Sent};
use crate::cuda::{Device, Pause};
use crate::error::{Error, Result, bail};
use crate::util::{interrupt, lock};

/// How long an abort may take. NCCL's is known to hang (pytorch #119215, nccl #829 and #1013).
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to destroy a communicator, which waits until its peers destroy theirs.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(600);

/// Asked while a call is in progress: the error after which the call cannot end well.
pub(super) type Alive<'a> = &'a dyn Fn() -> Result<()>;

/// NCCL's communicator: the library's own, or the caller's, which is never aborted or destroyed.
pub(super) struct NcclHandle {
    pub(super) library: &'static Library,
    pub(super) device: Arc<Device>,
    raw: ncclComm_t,
    pub(super) is_own: bool,
    pub(super) windows: Windows,
    /// Held while a thread is inside NCCL. Whether the communicator still exists.
    is_open: Mutex<bool>,
}

// SAFETY: NCCL's communicators may be used from any thread, one at a time, which the mutex ensures.
unsafe impl Send for NcclHandle {}
// SAFETY: as above.
unsafe impl Sync for NcclHandle {}

impl NcclHandle {
    /// Makes a communicator of the ranks that have this id. Collective.
    pub(super) fn initialize(
        library: &'static Library,
        device: &Arc<Device>,
        id: ncclUniqueId,
        [rank, world_size]: [u32; 2],
        deadline: Instant,
        alive: Alive<'_>,
    ) -> Result<Self> {
        let what = "ncclCommInitRankConfig";
        let initialize = function!(library, ncclCommInitRankConfig)?;
        let new = NewCommunicator::default();
        let result = new.fill(what, device, deadline, move |raw| {
            let mut config = library.config();
            // SAFETY: both pointers, to the new communicator and to a configuration, are valid
            // during the call.
            unsafe { initialize(raw, world_size as i32, id, rank as i32, &mut config) }
        })?;
        // NCCL has written the communicator, though it is still in progress.
        let raw = new.get();
        if raw.is_null() {
            return Err(library.error(what, result, raw));
        }
        let handle = Self::new(library, device, raw);
        handle.settle(what, result, deadline, alive).inspect_err(|_| handle.abort())?;
        Ok(handle)
    }

    /// Makes a communicator of the ranks with this color; none without a color. Collective.
    pub(super) fn split(
        &self,
        color: Option<u32>,
        key: u32,
        deadline: Instant,
        alive: Alive<'_>,
    ) -> Result<Option<Self>> {
        let library = self.library;
        let split = function!(library, ncclCommSplit)?;
        let color = color.map_or(NCCL_SPLIT_NOCOLOR, |color| color as i32);
        let new = NewCommunicator::default();
        // A thread of NCCL's writes the child before the parent stops being in progress.
        self.call_aside("ncclCommSplit", deadline, alive, move |parent| {
            let mut config = library.config();
            // SAFETY: the parent exists while it is locked; the other pointers are valid during the
            // call.
            unsafe { split(parent, color, key as i32, new.0.as_ptr(), &mut config) }
        })?;
        let raw = new.get();
        if raw.is_null() {
            return Ok(None);
        }
        let handle = Self::new(library, &self.device, raw);
        handle.settle("ncclCommSplit", ncclInProgress, deadline, alive).inspect_err(|_| handle.abort())?;
        Ok(Some(handle))
    }

    fn new(library: &'static Library, device: &Arc<Device>, raw: ncclComm_t) -> Self {
        let (device, windows) = (Arc::clone(device), Windows::default());
        NcclHandle { library, device, raw, is_own: true, windows, is_open: Mutex::new(true) }
    }

    /// The caller's communicator.
    ///
    /// # Safety
    ///
    /// It is a communicator of the NCCL library that is loaded here, it outlives the handle, and no
    /// other code uses it during a call of the handle.
    pub(super) unsafe fn borrowed(
        library: &'static Library,
        raw: ncclComm_t,
        device: impl FnOnce(u32) -> Result<Arc<Device>>,
    ) -> Result<Self> {
        let mut ordinal = 0;
        // SAFETY: the caller's promise; writes one number.
        let result = unsafe { function!(library, ncclCommCuDevice)?(raw, &mut ordinal) };
        library.check("ncclCommCuDevice", result)?;
        let device = device(ordinal.max(0) as u32)?;
        let (windows, is_open) = (Windows::default(), Mutex::new(true));
        Ok(NcclHandle { library, device, raw, is_own: false, windows, is_open })
    }

    /// This rank's number and the number of ranks.
    pub(super) fn rank_and_size(&self) -> Result<[u32; 2]> {
        let (mut rank, mut count) = (0, 0);
        let is_open = lock(&self.is_open);
        self.check_open(*is_open)?;
        // SAFETY: the communicator exists; each call writes one number.
        unsafe {
            let result = function!(self.library, ncclCommUserRank)?(self.raw, &mut rank);
            self.library.check("ncclCommUserRank", result)?;
            let result = function!(self.library, ncclCommCount)?(self.raw, &mut count);
            self.library.check("ncclCommCount", result)?;
        }
        Ok([rank.max(0) as u32, count.max(0) as u32])
    }

    fn check_open(&self, is_open: bool) -> Result<()> {
        if !is_open {
            bail!(Aborted, "NCCL's communicator has been aborted");
        }
        Ok(())
    }

    /// Keeps every other thread out, for calls with [`raw`](Self::raw).
    pub(super) fn hold(&self) -> Result<MutexGuard<'_, bool>> {
        let is_open = lock(&self.is_open);
        self.check_open(*is_open)?;
        Ok(is_open)
    }

    /// The communicator, for a thread that [holds](Self::hold) it.
    pub(super) fn raw(&self) -> ncclComm_t {
        self.raw
    }

    /// Makes one call, or several that belong together, and waits until none is in progress.
    pub(super) fn call(
        &self,
        what: &str,
        deadline: Instant,
        alive: Alive<'_>,
        call: impl FnOnce(ncclComm_t) -> Result<ncclResult_t>,
    ) -> Result<()> {
        let is_open = lock(&self.is_open);
        self.check_open(*is_open)?;
        let _current = self.device.enter()?;
        let result = call(self.raw)?;
        self.settle(what, result, deadline, alive)
    }

    /// Makes a call that may never return, on a helper thread, and waits until it is not in
    /// progress. If it does not return by the deadline, the communicator is not used any more,
    /// because a thread is inside.
    ///
    /// ncclCommSplit and ncclCommWindowRegister return success while they are in progress: NCCL
    /// 2.19 to 2.30.7 end their groups with NCCLCHECK, which passes over ncclInProgress. So after
    /// success, too, the communicator's state says when the call has ended.
    pub(super) fn call_aside(
        &self,
        what: &'static str,
        deadline: Instant,
        alive: Alive<'_>,
        call: impl FnOnce(ncclComm_t) -> ncclResult_t + Send + 'static,
    ) -> Result<()> {
        let mut is_open = lock(&self.is_open);
        self.check_open(*is_open)?;
        let device = Arc::clone(&self.device);
        // SAFETY: NCCL takes a communicator from any thread. This one holds the lock until the call
        // returns; if it does not, nothing uses the communicator again.
        let raw = unsafe { Sent::new(self.raw) };
        let called = {
            // On a communicator that does not block the call returns at once. `settle` runs the
            // hook. An interrupt here would leave the thread inside, and nothing to abort.
            let _mask = self.is_own.then(interrupt::mask);
            helper::bounded(what, deadline, move || {
                let _current = device.enter_relaxed()?;
                Ok::<_, Error>(call(raw.into_inner()))
            })
        };
        match called {
            Ok(result) => {
                let result = result?;
                let first = if result == ncclSuccess { ncclInProgress } else { result };
                self.settle(what, first, deadline, alive)
            }
            Err(error) => {
                *is_open = false;
                Err(error)
            }
        }
    }

    /// Waits until a call is not in progress any more. The caller holds the lock, or has the only
    /// reference to the handle.
    pub(super) fn settle(
        &self,
        what: &str,
        mut result: ncclResult_t,
        deadline: Instant,
        alive: Alive<'_>,
    ) -> Result<()> {
        let mut pause = Pause::begin(what);
        while result != ncclSuccess {
            if result != ncclInProgress {
                return Err(self.library.error(what, result, self.raw));
            }
            alive()?;
            if Instant::now() >= deadline {
                bail!(DeadlineExceeded, "{what} was still in progress at the deadline");
            }
            pause.pause()?;
            result = self.state()?;
        }
        Ok(())
    }

    fn state(&self) -> Result<ncclResult_t> {
        let mut state = ncclSuccess;
        // SAFETY: the communicator exists; writes one number.
        let result = unsafe { function!(self.library, ncclCommGetAsyncError)?(self.raw, &mut state) };
        self.library.check("ncclCommGetAsyncError", result)?;
        Ok(state)
    }

    /// The error that NCCL has met since the last call. Not asked while a thread is inside, which
    /// finds the error by itself.
    pub(super) fn asynchronous_error(&self) -> Result<()> {
        let Ok(is_open) = self.is_open.try_lock() else { return Ok(()) };
        self.check_open(*is_open)?;
        let state = self.state()?;
        let is_well = state == ncclSuccess || state == ncclInProgress;
        if is_well { Ok(()) } else { Err(self.library.error("a collective on the GPU", state, self.raw)) }
    }

    /// Deregisters a window. One of a communicator that was aborted went with it.
    pub(super) fn deregister(&self, window: NonNull<ncclWindow_vidmem>) -> Result<()> {
        let deregister = function!(self.library, ncclCommWindowDeregister)?;
        if !*lock(&self.is_open) {
            return Ok(());
        }
        let _mask = interrupt::mask();
        let deadline = Instant::now() + ABORT_TIMEOUT;
        // SAFETY: NCCL takes a window from any thread, and this is its last use.
        let window = unsafe { Sent::new(window) };
        self.call_aside("ncclCommWindowDeregister", deadline, &|| Ok(()), move |raw| {
            // SAFETY: the communicator exists, and the window is one of its own.
            unsafe { deregister(raw, window.into_inner().as_ptr()) }
        })
    }

    /// Aborts the communicator and what it does on the GPU. Waits for a thread that is inside NCCL;
    /// if that does not come out, the communicator is leaked. Bounded.
    pub(super) fn abort(&self) {
        if !self.is_own {
            return;
        }
        let _mask = interrupt::mask();
        let Some(mut is_open) = rank_lock::take(&self.is_open, Instant::now() + ABORT_TIMEOUT) else {
            crate::util::log::event!(WARN, "a call of NCCL does not return; its communicator is left behind");
            return;
        };
        if !std::mem::replace(&mut *is_open, false) {
            return;
        }
        let Ok(abort) = function!(self.library, ncclCommAbort) else { return };
        let device = Arc::clone(&self.device);
        // SAFETY: as in `call_aside`: the lock is held, and the communicator is marked as gone.
        let raw = unsafe { Sent::new(self.raw) };
        let done = helper::bounded("ncclCommAbort", Instant::now() + ABORT_TIMEOUT, move || {
            let Ok(_current) = device.enter_relaxed() else { return ncclSuccess };
            // SAFETY: the lock was held when `is_open` became false, so no thread is inside, and
            // none comes in any more.
            unsafe { abort(raw.into_inner()) }
        });
        if let Err(error) = done.and_then(|result| self.library.check("ncclCommAbort", result)) {
            crate::util::log::event!(WARN, "{error}");
        }
    }
}

impl Drop for NcclHandle {
    fn drop(&mut self) {
        let is_open = std::mem::replace(self.is_open.get_mut().unwrap_or_else(|e| e.into_inner()), false);
        if !self.is_own || !self.device.is_here() {
            return;
        }
        let (library, windows) = (self.library, std::mem::take(&mut self.windows));
        if !is_open {
            if !windows.is_empty() {
                self.device.release_later("ncclMemFree", move || {
                    // SAFETY: the communicator was aborted, and the GPU has done the work on the
                    // memory.
                    unsafe { windows.free(library) };
                    Ok(())
                });
            }
            return;
        }
        let (Ok(finalize), Ok(destroy), Ok(state)) = (
            function!(self.library, ncclCommFinalize),
            function!(self.library, ncclCommDestroy),
            function!(self.library, ncclCommGetAsyncError),
        ) else {
            return;
        };
        let device = Arc::clone(&self.device);
        // SAFETY: NCCL takes a communicator from any thread, and nothing else has this one any
        // more.
        let raw = unsafe { Sent::new(self.raw) };
        // This thread may be the one that drops the peers' handles, after this one.
        helper::detach("ncclCommDestroy", move || {
            let Ok(_current) = device.enter_relaxed() else { return };
            let raw = raw.into_inner();
            let deadline = Instant::now() + DESTROY_TIMEOUT;
            // SAFETY: the handle was the last reference to the communicator, and dropped memory had
            // one until the GPU did not use it any more; the state is written to a local variable.
            unsafe {
                let mut result = finalize(raw);
                while result == ncclInProgress && Instant::now() < deadline {
                    std::thread::sleep(Duration::from_millis(1));
                    if state(raw, &mut result) != ncclSuccess {
                        return;
                    }
                }
                // With the communicator go its windows, whichever are left (ncclDevrFinalize in
                // NCCL's `dev_runtime.cc`).
                if result == ncclSuccess && destroy(raw) == ncclSuccess {
                    windows.free(library);
                }
            }
        });
    }
}

/// Where NCCL writes a new communicator. It may write after the deadline, so this is never freed.
#[derive(Clone, Copy)]
struct NewCommunicator(&'static AtomicPtr<ncclComm>);

impl Default for NewCommunicator {
    fn default() -> Self {
        NewCommunicator(Box::leak(Box::default()))
    }
}

impl NewCommunicator {
    /// Makes the call that writes it, on a helper thread, because it may never return.
    fn fill(
        self,
        what: &'static str,
        device: &Arc<Device>,
        deadline: Instant,
        call: impl FnOnce(*mut ncclComm_t) -> ncclResult_t + Send + 'static,
    ) -> Result<ncclResult_t> {
        let device = Arc::clone(device);
        // The call returns at once. After an interrupt here the communicator would be lost.
        let _mask = interrupt::mask();
        helper::bounded(what, deadline, move || {
            let _current = device.enter_relaxed()?;
            Ok(call(self.0.as_ptr()))
        })?
    }

    fn get(self) -> ncclComm_t {
        self.0.load(Ordering::Acquire)
    }
}
