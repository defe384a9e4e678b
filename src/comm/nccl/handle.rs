//! NCCL's communicator, and the rules for its use: one thread at a time, no other call while one is
//! in progress, no thread inside when it is freed, and no wait without a deadline.
//!
//! The library's own communicators block where NCCL can end a call that is stuck
//! ([`NcclLibrary::can_block`]). Then a collective costs what it costs without this library. NCCL
//! makes and joins a thread for each collective of a communicator that does not block
//! (`asyncJobLaunch` and `ncclGroupEndInternal` in NCCL's `group.cc`).
//!
//! On a communicator that blocks, NCCL keeps a thread in a call: until all ranks have come (making,
//! splitting and registering, which run on helper threads), or until the call has a place among
//! what waits for the GPU (`waitWorkFifoAvailable` in `enqueue.cc`) and the connections that it
//! needs (`ncclCollPreconnect` in `group.cc`). Such a thread comes out when NCCL's abort flags are
//! set; see [`abort_job`](NcclHandle::abort_job).

use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use super::access::{Access, Stage, Stay};
use super::library::NcclLibrary;
use super::pool::MemoryPool;
use super::sys::*;
use super::window::Windows;
use crate::cuda::helper::{self, Aside, Sent};
use crate::cuda::{Device, Ended, gpu_wait};
use crate::error::{Error, Result, error};
use crate::util::interrupt;
use crate::util::wait::{LOOK, Wait};

/// How long an abort may take. NCCL's is known to hang (pytorch #119215, nccl #829 and #1013).
pub(super) const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take to destroy a communicator, which waits until its peers destroy theirs.
const DESTROY_TIMEOUT: Duration = Duration::from_secs(600);

/// For how long an error that NCCL has because of a peer waits for that peer's own reason.
const REASON_TIMEOUT: Duration = Duration::from_secs(1);

/// Asked while a call is in progress: the error after which the call cannot end well.
pub(super) type Alive<'a> = &'a dyn Fn() -> Result<()>;

/// NCCL's communicator: the library's own, or the caller's, which is never aborted or destroyed.
pub(super) struct NcclHandle {
    pub(super) library: &'static NcclLibrary,
    pub(super) device: Arc<Device>,
    raw: ncclComm_t,
    pub(super) is_own: bool,
    /// Whether it is the library's own, and NCCL keeps a thread in a call that waits for others.
    pub(super) is_blocking: bool,
    /// Its windows, and memory that it may use.
    pub(super) windows: Arc<Windows>,
    access: Arc<Access>,
}

// SAFETY: NCCL's communicators may be used from any thread, one at a time, which `access` ensures.
unsafe impl Send for NcclHandle {}
// SAFETY: as above.
unsafe impl Sync for NcclHandle {}

impl NcclHandle {
    /// Makes a communicator of the ranks that have this id. Collective.
    pub(super) fn initialize(
        library: &'static NcclLibrary,
        device: &Arc<Device>,
        id: ncclUniqueId,
        [rank, world_size]: [u32; 2],
        deadline: Instant,
        alive: Alive<'_>,
        tell: &dyn Fn(&Error),
    ) -> Result<Self> {
        let what = "ncclCommInitRankConfig";
        let new = NewCommunicator::default();
        let aside = Aside::start(what, {
            let device = Arc::clone(device);
            move || {
                let _current = device.enter_relaxed()?;
                let mut config = library.config();
                // SAFETY: both pointers, to the new communicator and to a configuration, are valid
                // during the call.
                Ok::<_, Error>(unsafe {
                    ncclCommInitRankConfig(new.place(), world_size as i32, id, rank as i32, &mut config)
                })
            }
        })?;
        // NCCL writes the communicator before it waits for other ranks (ncclCommInitRankDev in
        // NCCL's `init.cc`), and leaves it there if that fails.
        let pool = MemoryPool::new(device);
        let handle = || new.get().map(|raw| Self::new(library, &pool, raw));
        let result = match wait_for(&aside, library.can_block(), true, deadline, alive) {
            Ok(result) => result?,
            Err(error) => {
                match handle() {
                    Some(handle) => handle.leave_inside(handle.hold(deadline)?, &error, aside, || ()),
                    // NCCL has not written it yet, and may wait for other ranks when it has.
                    None => {
                        let (pool, error) = (Arc::clone(&pool), error.clone());
                        helper::detach("a communicator that is made in vain", move || {
                            while !aside.has_returned(LOOK) && new.get().is_none() {}
                            let Some(raw) = new.get() else { return };
                            let handle = Self::new(library, &pool, raw);
                            if let Ok(stage) = handle.hold(Instant::now() + ABORT_TIMEOUT) {
                                handle.leave_inside(stage, &error, aside, || ());
                            }
                        });
                    }
                }
                return Err(error);
            }
        };
        let Some(handle) = handle() else { return Err(library.error(what, result, std::ptr::null_mut())) };
        handle.settle(what, result, deadline, alive).inspect_err(|error| {
            tell(error);
            handle.begin_abort(error);
            handle.wait_for_abort(Instant::now() + ABORT_TIMEOUT);
        })?;
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
        let color = color.map_or(NCCL_SPLIT_NOCOLOR, |color| color as i32);
        let new = NewCommunicator::default();
        // It is not known when a borrowed communicator ends.
        let pool = if self.is_own { Arc::clone(&self.windows.pool) } else { MemoryPool::new(&self.device) };
        let child = move || new.get().map(|raw| Self::new(library, &pool, raw));
        let split = move |parent| {
            let mut config = library.config();
            // SAFETY: the parent exists while it is locked; the other pointers are valid during the
            // call.
            unsafe { ncclCommSplit(parent, color, key as i32, new.place(), &mut config) }
        };
        // NCCL writes the child when it is made, also if that fails (ncclCommInitRankFunc in NCCL's
        // `init.cc`).
        let of_failure = child.clone();
        let end_child = move || {
            of_failure().iter().for_each(|child| child.begin_abort(&error!(Aborted, "the split has failed")));
        };
        self.call_aside("ncclCommSplit", deadline, alive, split, end_child)?;
        let Some(child) = child() else { return Ok(None) };
        match child.settle("ncclCommSplit", ncclInProgress, deadline, alive) {
            Ok(()) => Ok(Some(child)),
            Err(error) => {
                // It is not destroyed before the parent has ended.
                let (reason, child) = (error.clone(), ManuallyDrop::new(child));
                self.abort_then(&error, move || ManuallyDrop::into_inner(child).begin_abort(&reason));
                Err(error)
            }
        }
    }

    fn new(library: &'static NcclLibrary, pool: &Arc<MemoryPool>, raw: ncclComm_t) -> Self {
        NcclHandle {
            library,
            device: Arc::clone(&pool.device),
            raw,
            is_own: true,
            is_blocking: library.can_block(),
            windows: Windows::new(pool),
            access: Arc::new(Access::new()),
        }
    }

    /// The caller's communicator.
    ///
    /// # Safety
    ///
    /// It is a communicator of the NCCL library that is loaded here, it outlives the handle, and no
    /// other code uses it during a call of the handle.
    pub(super) unsafe fn borrowed(
        library: &'static NcclLibrary,
        raw: ncclComm_t,
        device: impl FnOnce(u32) -> Result<Arc<Device>>,
    ) -> Result<Self> {
        let mut ordinal = 0;
        // SAFETY: the caller's promise; writes one number.
        library.check("ncclCommCuDevice", unsafe { ncclCommCuDevice(raw, &mut ordinal) })?;
        let device = device(ordinal.max(0) as u32)?;
        let (windows, access) = (Windows::new(&MemoryPool::new(&device)), Arc::new(Access::new()));
        Ok(NcclHandle { library, device, raw, is_own: false, is_blocking: false, windows, access })
    }

    /// This rank's number and the number of ranks.
    pub(super) fn rank_and_size(&self, deadline: Instant) -> Result<[u32; 2]> {
        let (mut rank, mut count) = (0, 0);
        let _held = self.hold(deadline)?;
        // SAFETY: the communicator exists; each call writes one number.
        unsafe {
            self.library.check("ncclCommUserRank", ncclCommUserRank(self.raw, &mut rank))?;
            self.library.check("ncclCommCount", ncclCommCount(self.raw, &mut count))?;
        }
        Ok([rank.max(0) as u32, count.max(0) as u32])
    }

    /// Keeps every other thread out, for calls with [`raw`](Self::raw).
    pub(super) fn hold(&self, deadline: Instant) -> Result<MutexGuard<'_, Stage>> {
        self.access.hold(deadline)
    }

    /// Says until when the thread, which [holds](Self::hold) the communicator, may be in a call.
    pub(super) fn stay(&self, deadline: Instant) -> Stay<'_> {
        self.access.stay(deadline)
    }

    /// The communicator, for a thread that [holds](Self::hold) it.
    pub(super) fn raw(&self) -> ncclComm_t {
        self.raw
    }

    /// For the watchdog: if the thread that is inside has to come out, has it do so, and gives the
    /// reason and the moment at which this was found.
    pub(super) fn throw_out(&self, alive: impl FnOnce() -> Result<()>) -> Option<&(Error, Instant)> {
        let reason = self.access.must_leave(alive)?;
        self.begin_abort(&reason.0);
        Some(reason)
    }

    /// Makes one call, or several that belong together, and waits until none is in progress.
    pub(super) fn call(
        &self,
        what: &str,
        deadline: Instant,
        alive: Alive<'_>,
        call: impl FnOnce(ncclComm_t) -> Result<ncclResult_t>,
    ) -> Result<()> {
        let _held = self.hold(deadline)?;
        let _current = self.device.enter()?;
        let stay = self.stay(deadline);
        let result = call(self.raw)?;
        drop(stay);
        self.settle(what, result, deadline, alive)
    }

    /// Makes a call that may never return, on a helper thread, and waits until it is not in
    /// progress. If the wait ends before the call does, the helper thread stays inside, and the
    /// communicator is not used any more. If the call fails, or the thread comes out later, the
    /// communicator is aborted, and then `later` runs. (A borrowed communicator is not aborted.
    /// NCCL's may refer to what the call has made, so that is left behind too.)
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
        later: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let stage = self.hold(deadline)?;
        let device = Arc::clone(&self.device);
        // SAFETY: NCCL takes a communicator from any thread. This one holds it until the call
        // returns; if it does not, nothing uses the communicator again.
        let raw = unsafe { Sent::new(self.raw) };
        let aside = Aside::start(what, move || {
            let _current = device.enter_relaxed()?;
            Ok::<_, Error>(call(raw.into_inner()))
        })?;
        let settled = match wait_for(&aside, self.is_blocking, self.is_own, deadline, alive) {
            Ok(result) => result.and_then(|result| {
                let first = if result == ncclSuccess { ncclInProgress } else { result };
                self.settle(what, first, deadline, alive)
            }),
            Err(error) => {
                self.leave_inside(stage, &error, aside, later);
                return Err(error);
            }
        };
        drop(stage);
        settled.inspect_err(|error| {
            if self.is_own {
                self.abort_then(error, later);
            }
        })
    }

    /// Leaves a helper thread inside the communicator, and begins an abort. It ends when the thread
    /// has come out, and then `later` runs too.
    fn leave_inside<T: Send + 'static>(
        &self,
        mut stage: MutexGuard<'_, Stage>,
        reason: &Error,
        aside: Aside<T>,
        later: impl FnOnce() + Send + 'static,
    ) {
        *stage = Stage::LeftInside;
        drop(stage);
        let (access, is_own) = (Arc::clone(&self.access), self.is_own);
        helper::detach("a call of NCCL that has not returned", move || {
            aside.join();
            access.come_out();
            if is_own && access.wait_for_end(Instant::now() + ABORT_TIMEOUT) {
                later();
            }
        });
        self.begin_abort(reason);
    }

    /// Waits until a call is not in progress any more. The caller holds the communicator, or has
    /// the only reference to the handle.
    pub(super) fn settle(
        &self,
        what: &str,
        mut result: ncclResult_t,
        deadline: Instant,
        alive: Alive<'_>,
    ) -> Result<()> {
        // NCCL's own error would only say that the call was aborted.
        self.access.check()?;
        let warning = |seconds| helper::warning(what, seconds);
        let mut wait = gpu_wait(deadline).warning(&warning);
        while result != ncclSuccess {
            if result != ncclInProgress {
                let error = self.library.error(what, result, self.raw);
                return Err(if result == ncclRemoteError { reason_of_peers(error, alive) } else { error });
            }
            alive()?;
            wait.pause().map_err(|stopped| {
                let late = format_args!("{what} was still in progress at the deadline");
                stopped.error(format_args!("while {what} had not ended"), late)
            })?;
            result = self.state()?;
        }
        Ok(())
    }

    fn state(&self) -> Result<ncclResult_t> {
        let mut state = ncclSuccess;
        // SAFETY: the communicator exists; writes one number.
        let result = unsafe { ncclCommGetAsyncError(self.raw, &mut state) };
        self.library.check("ncclCommGetAsyncError", result)?;
        Ok(state)
    }

    /// The error that NCCL has met since the last call. Not asked while a thread is inside, which
    /// finds the error by itself.
    pub(super) fn asynchronous_error(&self) -> Result<()> {
        let Some(held) = self.access.try_hold() else { return Ok(()) };
        let _held = held?;
        let state = self.state()?;
        let is_well = state == ncclSuccess || state == ncclInProgress;
        if is_well { Ok(()) } else { Err(self.library.error("a collective on the GPU", state, self.raw)) }
    }

    /// Deregisters a window. An error leaves open whether NCCL still uses the memory under it.
    pub(super) fn deregister(&self, window: NonNull<ncclWindow_vidmem>, alive: Alive<'_>) -> Result<()> {
        let _mask = interrupt::mask();
        let deadline = Instant::now() + ABORT_TIMEOUT;
        // SAFETY: NCCL takes a window from any thread, and this is its last use.
        let window = unsafe { Sent::new(window) };
        let deregister = move |raw| {
            // SAFETY: the communicator exists, and the window is one of its own.
            unsafe { ncclCommWindowDeregister(raw, window.into_inner().as_ptr()) }
        };
        self.call_aside("ncclCommWindowDeregister", deadline, alive, deregister, || ())
    }

    /// Begins to abort the communicator and what it does on the GPU. When that is done, `later`
    /// runs. This waits for nothing: meanwhile the caller tells the peers why, who otherwise only
    /// see that NCCL's connections are closed.
    fn abort_then(&self, reason: &Error, later: impl FnOnce() + Send + 'static) {
        self.begin_abort(reason);
        let access = Arc::clone(&self.access);
        helper::detach("what follows ncclCommAbort", move || {
            if access.wait_for_end(Instant::now() + ABORT_TIMEOUT) {
                later();
            }
        });
    }

    /// Waits until the abort that has begun has ended. If that takes longer than `deadline`, the
    /// communicator is left behind.
    pub(super) fn wait_for_abort(&self, deadline: Instant) {
        if self.is_own && !self.access.wait_for_end(deadline) {
            crate::util::log::event!(WARN, "ncclCommAbort has not ended in time; NCCL's communicator is left behind");
        }
    }

    /// The error because of which the communicator is aborted.
    pub(super) fn check(&self) -> Result<()> {
        self.access.check()
    }

    /// Begins to abort the communicator, on a helper thread. It stays behind if the abort hangs, or
    /// if a thread does not come out of NCCL.
    pub(super) fn begin_abort(&self, reason: &Error) {
        if !self.is_own || !self.access.begin_end(reason) {
            return;
        }
        let job = self.abort_job();
        helper::detach("ncclCommAbort", || {
            job().unwrap_or_else(|error| crate::util::log::event!(WARN, "{error}"));
        });
    }

    /// What aborts the communicator.
    ///
    /// NCCL frees it, so no thread may be inside by then. In a communicator that blocks a thread
    /// may be stuck inside, which comes out only when NCCL's abort flags are set. In a group
    /// ncclCommAbort does just that; the rest, which frees, is done when the group ends:
    /// ncclCommAbort in `init.cc` of NCCL 2.27.3 to 2.30.7 calls setCommAbortFlags at once, and
    /// hands commReclaim to ncclAsyncLaunch, which puts it into the thread's open group
    /// (`group.cc`). It checks nothing else of the communicator, and touches no queue of it.
    ///
    /// ncclCommRevoke does not serve. Where the communicator blocks, it runs commRevokeAsync
    /// (`init.cc`) on the calling thread: that works on the communicator's queues of callbacks,
    /// beside the thread that is inside, and takes the abort flags back, perhaps before that thread
    /// has seen them.
    fn abort_job(&self) -> impl FnOnce() -> Result<()> + Send + 'static {
        let (library, is_blocking) = (self.library, self.is_blocking);
        let (device, access, windows) = (Arc::clone(&self.device), Arc::clone(&self.access), Arc::clone(&self.windows));
        // SAFETY: NCCL takes a communicator from any thread; the job frees it, when no thread is
        // inside and none comes in any more.
        let raw = unsafe { Sent::new(self.raw) };
        move || {
            let raw = raw.into_inner();
            let _current = device.enter_relaxed()?;
            if is_blocking {
                // SAFETY: the communicator exists, and the group is this thread's own.
                let results = unsafe { [ncclGroupStart(), ncclCommAbort(raw)] };
                results.into_iter().try_for_each(|result| library.check("ncclCommAbort", result))?;
            }
            access.wait_until_empty();
            // SAFETY: no thread is inside, and this is the last use.
            let result = unsafe { if is_blocking { ncclGroupEnd() } else { ncclCommAbort(raw) } };
            access.end();
            library.check("ncclCommAbort", result)?;
            windows.end();
            Ok(())
        }
    }
}

/// The reason for which a peer has closed its connections, or NCCL's error if none is told in time.
fn reason_of_peers(error: Error, alive: Alive<'_>) -> Error {
    let end = Instant::now() + REASON_TIMEOUT;
    while Instant::now() < end {
        if let Err(reason) = alive() {
            return reason;
        }
        std::thread::sleep(LOOK);
    }
    error
}

/// Waits for a call on a helper thread that was made on a communicator of the library's own, or on
/// one of the caller's.
///
/// Where the library's own communicator blocks, the wait may end early: an abort follows. Where it
/// does not block, the call returns at once, and then `settle` waits; an interrupt before would
/// leave the thread inside, and nothing to abort.
fn wait_for<T: Send + 'static>(
    aside: &Aside<T>,
    is_blocking: bool,
    is_own: bool,
    deadline: Instant,
    alive: Alive<'_>,
) -> Result<T> {
    let _mask = (is_own && !is_blocking).then(interrupt::mask);
    aside.wait(deadline, || if is_blocking { alive() } else { Ok(()) })
}

impl Drop for NcclHandle {
    fn drop(&mut self) {
        if !self.is_own || !self.device.is_here() {
            return;
        }
        // What aborts the communicator frees its memory.
        if self.access.stage() != Some(Stage::Open) || self.access.is_ending() {
            return;
        }
        let (device, windows) = (Arc::clone(&self.device), Arc::clone(&self.windows));
        // SAFETY: NCCL takes a communicator from any thread, and nothing else has this one any
        // more.
        let raw = unsafe { Sent::new(self.raw) };
        // This thread may be the one that drops the peers' handles, after this one.
        let destroy = move |_ended: Ended| {
            let Ok(_current) = device.enter_relaxed() else { return };
            let raw = raw.into_inner();
            let mut wait = Wait::until(Instant::now() + DESTROY_TIMEOUT);
            // SAFETY: the handle was the last reference to the communicator, and dropped memory had
            // one until the GPU did not use it any more; the state is written to a local variable.
            unsafe {
                let mut result = ncclCommFinalize(raw);
                while result == ncclInProgress && wait.pause().is_ok() {
                    if ncclCommGetAsyncError(raw, &mut result) != ncclSuccess {
                        return;
                    }
                }
                // With the communicator go its windows, whichever are left (ncclDevrFinalize in
                // NCCL's `dev_runtime.cc`).
                if result == ncclSuccess && ncclCommDestroy(raw) == ncclSuccess {
                    windows.end();
                }
            }
        };
        self.device.when_alone(move |ended| helper::detach("ncclCommDestroy", move || destroy(ended)));
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
    /// Where NCCL writes it.
    fn place(self) -> *mut ncclComm_t {
        self.0.as_ptr()
    }

    /// The communicator, if NCCL has written it.
    fn get(self) -> Option<ncclComm_t> {
        Some(self.0.load(Ordering::Acquire)).filter(|raw| !raw.is_null())
    }
}
