//! Which thread is inside NCCL with a communicator, and until when it may stay there.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

use crate::comm::rank_lock;
use crate::error::{Error, Result, bail, error};
use crate::util::wait::Wait;
use crate::util::{interrupt, lock, number_of};

/// What has become of a communicator.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Stage {
    Open,
    /// A helper thread is inside, and no thread waits for it any more.
    LeftInside,
    /// It was aborted.
    Ended,
}

/// The access to a communicator. Helper threads have it too, and may live longer than the handle.
pub(super) struct Access {
    /// Held while a thread is inside.
    stage: Mutex<Stage>,
    /// The helper thread that was left inside has come out.
    came_out: Condvar,
    /// An abort has begun. From then on no thread comes in.
    is_ending: AtomicBool,
    /// Until when the thread that is inside NCCL may stay: its [`number_of`]; 0 if none is.
    leave_by: AtomicU64,
    /// Why the communicator is aborted, or the watchdog has the thread come out; and since when.
    leave_reason: OnceLock<(Error, Instant)>,
}

/// A thread's stay inside NCCL, which the watchdog looks at.
pub(super) struct Stay<'a>(&'a AtomicU64);

impl Drop for Stay<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Access {
    pub(super) fn new() -> Self {
        Access {
            stage: Mutex::new(Stage::Open),
            came_out: Condvar::new(),
            is_ending: AtomicBool::new(false),
            leave_by: AtomicU64::new(0),
            leave_reason: OnceLock::new(),
        }
    }

    /// Keeps every other thread out until the guard is dropped.
    pub(super) fn hold(&self, deadline: Instant) -> Result<MutexGuard<'_, Stage>> {
        let stage = rank_lock::enter(&self.stage, deadline)?;
        self.check_open(*stage)?;
        Ok(stage)
    }

    /// [`hold`](Self::hold), if no thread is inside.
    pub(super) fn try_hold(&self) -> Option<Result<MutexGuard<'_, Stage>>> {
        let stage = self.stage.try_lock().ok()?;
        Some(self.check_open(*stage).map(|()| stage))
    }

    /// The thread holds the stage.
    fn check_open(&self, stage: Stage) -> Result<()> {
        self.check()?;
        if stage != Stage::Open || self.is_ending() {
            bail!(Aborted, "NCCL's communicator has been aborted");
        }
        Ok(())
    }

    /// Says until when the thread, which holds the stage, may stay inside NCCL.
    pub(super) fn stay(&self, deadline: Instant) -> Stay<'_> {
        self.leave_by.store(number_of(deadline), Ordering::Release);
        Stay(&self.leave_by)
    }

    /// The error because of which the communicator is aborted.
    pub(super) fn check(&self) -> Result<()> {
        self.leave_reason.get().map_or(Ok(()), |(error, _)| Err(error.clone()))
    }

    /// For the watchdog: why the thread that is inside has to come out, and since when.
    pub(super) fn must_leave(&self, alive: impl FnOnce() -> Result<()>) -> Option<&(Error, Instant)> {
        // The clock first: the thread may have left meanwhile, and another have come with a later
        // deadline.
        let now = Instant::now();
        let leave_by = self.leave_by.load(Ordering::Acquire);
        if leave_by == 0 {
            return None;
        }
        if self.leave_reason.get().is_none() {
            let late = (number_of(now) >= leave_by).then(|| {
                error!(DeadlineExceeded, "NCCL kept the call until the deadline; perhaps a rank has not come")
            });
            let leave_reason = late.or_else(|| alive().err())?;
            let _ = self.leave_reason.set((leave_reason, now));
        }
        self.leave_reason.get()
    }

    /// Whether an abort has begun.
    pub(super) fn is_ending(&self) -> bool {
        self.is_ending.load(Ordering::Acquire)
    }

    /// Lets no thread in any more. Whether this is the first time.
    pub(super) fn begin_end(&self, reason: &Error) -> bool {
        self.leave_reason.get_or_init(|| (reason.clone(), Instant::now()));
        !self.is_ending.swap(true, Ordering::AcqRel)
    }

    /// Waits until the thread that is inside has come out, however long that takes. An abort has
    /// begun, so none comes in.
    pub(super) fn wait_until_empty(&self) {
        let is_inside = |stage: &mut Stage| *stage == Stage::LeftInside;
        drop(self.came_out.wait_while(lock(&self.stage), is_inside).unwrap_or_else(PoisonError::into_inner));
    }

    /// The helper thread that was left inside has come out.
    pub(super) fn come_out(&self) {
        *lock(&self.stage) = Stage::Open;
        self.came_out.notify_all();
    }

    /// The abort has ended.
    pub(super) fn end(&self) {
        *lock(&self.stage) = Stage::Ended;
    }

    /// What has become of the communicator; `None` while a thread is inside.
    pub(super) fn stage(&self) -> Option<Stage> {
        self.stage.try_lock().ok().map(|stage| *stage)
    }

    /// Waits for the end of the abort that has begun, and says whether it came. Does not wait for a
    /// helper thread that was left inside.
    pub(super) fn wait_for_end(&self, deadline: Instant) -> bool {
        let _mask = interrupt::mask();
        let mut wait = Wait::until(deadline);
        loop {
            // The abort needs the lock to come to its end, so the pause is without it.
            let stage = rank_lock::try_enter(&self.stage).map(|stage| *stage);
            if matches!(stage, Some(Stage::LeftInside | Stage::Ended)) {
                return true;
            }
            if wait.pause().is_err() {
                return false;
            }
        }
    }
}
