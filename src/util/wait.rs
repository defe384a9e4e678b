//! Waits: until when one lasts, what ends it early, and the warning about a long one.
//!
//! A thread that waits looks for what it waits for, and for what makes that impossible. If neither
//! is there, it calls [`Wait::step`], with no lock held that another thread of the library needs,
//! and sleeps at most as long as that says.

use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{Error, Result, error};
use crate::util::settings::settings;
use crate::util::{deadline_after, interrupt, lock, log};

/// The longest sleep of a thread that is woken by what it waits for, and looks at something else
/// too, such as whether its communicator still works.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// The shortest sleep between two looks at what wakes no thread: a GPU, NCCL, a lock. The kernel
/// wakes a thread up to 50 us late, so a shorter one gains little.
pub(crate) const POLL: Duration = Duration::from_micros(100);

/// The pause between two attempts to reach another process that is not ready.
pub(crate) const RETRY: Duration = Duration::from_millis(5);

/// How long [`Wait::pause`] spins, because a small collective on a GPU takes no longer; and from
/// when on it sleeps, because what takes so long can take another [`POLL`]. What takes longer can
/// take a 64th of it more, up to [`LONGEST_PAUSE`].
const SPIN_TIME: Duration = Duration::from_micros(50);
const YIELD_TIME: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(1);

/// One wait of one thread.
pub(crate) struct Wait<'a> {
    deadline: Instant,
    /// The text of the warning, which gets the seconds that the wait has lasted.
    warning: Option<&'a dyn Fn(u64) -> String>,
    check: fn() -> Result<()>,
    /// How long [`pause`](Self::pause) spins.
    spin_time: Duration,
    /// The moment of the first step.
    begin: Option<Instant>,
    has_warned: bool,
}

/// Why a wait ended without what it waited for.
#[derive(Debug)]
pub(crate) enum Stopped {
    /// The deadline has come.
    Late,
    /// The interrupt hook has ended the wait.
    Interrupted(Error),
}

impl Stopped {
    /// The error of the wait: that it was interrupted `meanwhile` (`while rank 1 had not come`), or
    /// the text `late`.
    pub(crate) fn error(self, meanwhile: impl Display, late: impl Display) -> Error {
        match self {
            Stopped::Late => error!(DeadlineExceeded, "{late}"),
            Stopped::Interrupted(interrupted) => interrupt::ended(&interrupted, meanwhile),
        }
    }
}

impl From<Stopped> for io::Error {
    fn from(stopped: Stopped) -> Self {
        match stopped {
            Stopped::Late => io::Error::new(io::ErrorKind::TimedOut, "nothing came before the deadline"),
            Stopped::Interrupted(interrupted) => io::Error::other(interrupted),
        }
    }
}

impl<'a> Wait<'a> {
    /// A wait that is never logged.
    pub(crate) fn until(deadline: Instant) -> Self {
        let (spin_time, begin) = (SPIN_TIME, None);
        Wait { deadline, warning: None, check: interrupt::check, spin_time, begin, has_warned: false }
    }

    /// A wait that only the interrupt hook ends early.
    pub(crate) fn forever() -> Self {
        Self::until(deadline_after(Duration::MAX))
    }

    /// Logs the wait once, when it has lasted as long as `DCL_SLOW_WARNING` says.
    pub(crate) fn warning(self, text: &'a dyn Fn(u64) -> String) -> Self {
        Wait { warning: Some(text), ..self }
    }

    /// Gives the processor to other threads from the first [`pause`](Self::pause) on.
    pub(crate) fn yielding(self) -> Self {
        Wait { spin_time: Duration::ZERO, ..self }
    }

    /// Runs the interrupt hook with `check`.
    pub(crate) fn checking(self, check: fn() -> Result<()>) -> Self {
        Wait { check, ..self }
    }

    pub(crate) fn deadline(&self) -> Instant {
        self.deadline
    }

    /// The same wait with another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Runs the interrupt hook if it is due, and logs the wait if it is long enough. Returns how
    /// long the thread may sleep before the next step.
    pub(crate) fn step(&mut self) -> Result<Duration, Stopped> {
        self.step_with(self.warning)
    }

    /// [`step`](Self::step), with a text that is known only now.
    pub(crate) fn step_with(&mut self, warning: Option<&dyn Fn(u64) -> String>) -> Result<Duration, Stopped> {
        let now = Instant::now();
        if now >= self.deadline {
            return Err(Stopped::Late);
        }
        let begin = *self.begin.get_or_insert(now);
        (self.check)().map_err(Stopped::Interrupted)?;
        let mut until = interrupt::wake_by(self.deadline);
        let after = || settings().ok().and_then(|settings| settings.slow_warning);
        if let Some(text) = warning.filter(|_| !self.has_warned)
            && let Some(due) = after().and_then(|after| begin.checked_add(after))
        {
            if now >= due {
                self.has_warned = true;
                let text = text((now - begin).as_secs());
                log::event!(WARN, "{text}");
            } else {
                until = until.min(due);
            }
        }
        Ok(until.saturating_duration_since(now))
    }

    /// Sleeps for this long.
    pub(crate) fn sleep(&mut self, duration: Duration) -> Result<(), Stopped> {
        let until = Instant::now() + duration;
        loop {
            let left = self.step()?.min(until.saturating_duration_since(Instant::now()));
            if left.is_zero() {
                return Ok(());
            }
            std::thread::sleep(left);
        }
    }

    /// Lets some time pass between two looks at what wakes no thread: spins, later yields, then
    /// sleeps.
    pub(crate) fn pause(&mut self) -> Result<(), Stopped> {
        let now = Instant::now();
        match now - *self.begin.get_or_insert(now) {
            _ if now >= self.deadline => return Err(Stopped::Late),
            waited if waited < self.spin_time => std::hint::spin_loop(),
            waited if waited < YIELD_TIME => std::thread::yield_now(),
            waited => std::thread::sleep(self.step()?.min((waited / 64).clamp(POLL, LONGEST_PAUSE))),
        }
        Ok(())
    }

    /// Waits until `look` finds something in the value. A thread that changes the value notifies
    /// `changed`.
    pub(crate) fn on<T, R>(
        &mut self,
        value: &Mutex<T>,
        changed: &Condvar,
        mut look: impl FnMut(&mut T) -> Option<R>,
    ) -> Result<R, Stopped> {
        loop {
            if let Some(found) = look(&mut lock(value)) {
                return Ok(found);
            }
            let sleep = self.step()?;
            let mut locked = lock(value);
            if let Some(found) = look(&mut locked) {
                return Ok(found);
            }
            drop(changed.wait_timeout(locked, sleep).unwrap_or_else(PoisonError::into_inner));
        }
    }
}

thread_local! {
    /// How long this thread has waited for other ranks; `None` while it measures no run.
    static WAITED: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// While it lives, this thread measures how long it waits for other ranks.
pub(crate) struct MeasuredWaits {
    /// Whether it did so before: a plugin has an engine of its own.
    is_inner: bool,
}

impl MeasuredWaits {
    pub(crate) fn begin() -> Self {
        let before = WAITED.get();
        WAITED.set(Some(before.unwrap_or_default()));
        MeasuredWaits { is_inner: before.is_some() }
    }

    /// How long the thread has waited since some moment before the begin.
    pub(crate) fn total(&self) -> Duration {
        WAITED.get().unwrap_or_default()
    }
}

impl Drop for MeasuredWaits {
    fn drop(&mut self) {
        if !self.is_inner {
            WAITED.set(None);
        }
    }
}

/// A wait for other ranks, from its begin to its drop.
pub(crate) struct WaitForPeers {
    begin: Option<Instant>,
}

impl WaitForPeers {
    pub(crate) fn begin() -> Self {
        WaitForPeers { begin: WAITED.get().map(|_| Instant::now()) }
    }
}

impl Drop for WaitForPeers {
    fn drop(&mut self) {
        if let Some(begin) = self.begin {
            WAITED.set(WAITED.get().map(|waited| waited + begin.elapsed()));
        }
    }
}

#[test]
fn what_is_there_at_the_deadline_is_found() {
    let mut wait = Wait::until(Instant::now());
    assert!(matches!(wait.on(&Mutex::new(Some(1)), &Condvar::new(), Option::take), Ok(1)));
    assert!(matches!(wait.on(&Mutex::new(()), &Condvar::new(), |()| None::<u32>), Err(Stopped::Late)));
    assert!(matches!(wait.pause(), Err(Stopped::Late)));
    assert_eq!(Stopped::Late.error("while it waited", "it was late").to_string(), "it was late");
}
