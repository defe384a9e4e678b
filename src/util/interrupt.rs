//! The interrupt hook: a function of the program that waits of the library run, and that may end
//! them. [`set_interrupt_hook`] sets it.
//!
//! A wait calls [`check`] when it sleeps ([`Wait::step`](super::wait::Wait::step)). So a wait that
//! only spins does not look at the hook. Threads of the library and waits that clean up are
//! [masked](mask).

use std::cell::Cell;
use std::fmt;
use std::io;
use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use crate::error::{Error, ErrorKind, Result, bail, error};
use crate::util::callback::Callback;
use crate::util::log;

/// How often a thread that waits runs the hook.
const INTERVAL: Duration = Duration::from_millis(100);

type Hook = Box<dyn Fn() -> ControlFlow<()> + Send + Sync>;

static HOOK: Callback<Hook> = Callback::new("the interrupt hook", &IN_HOOK);

thread_local! {
    /// Whether this thread is inside the hook.
    static IN_HOOK: Cell<bool> = const { Cell::new(false) };
    /// Whether this thread must not run the hook now.
    static IS_MASKED: Cell<bool> = const { Cell::new(false) };
    /// When this thread has to run the hook next.
    static NEXT: Cell<Option<Instant>> = const { Cell::new(None) };
}

/// Has `hook` run by threads that wait in a call of this library, from now on. A hook that was set
/// before is dropped; when this returns, no thread is inside it.
///
/// A host language such as Python installs its check for signals here, so that Ctrl-C reaches a
/// program that waits for another rank. A thread that sleeps in a call runs the hook at once if it
/// has not done so within the last 100 ms, and every 100 ms from then on. That holds for every
/// wait: initialization, collective calls, long moves between them,
/// [`Work::wait`](crate::Work::wait), [`Stream::synchronize`](crate::Stream::synchronize), GPUs.
/// If the hook returns [`ControlFlow::Break`], the wait ends:
///
/// | wait | what becomes of it |
/// |---|---|
/// | a blocking collective call | the call returns [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted), which ends the communicator; other ranks get an [`ErrorKind::Aborted`](crate::ErrorKind::Aborted) that says so |
/// | initialization | the call returns [`ErrorKind::Interrupted`](crate::ErrorKind::Interrupted); ranks that have met this one are told |
/// | [`Work::wait`](crate::Work::wait) | the work goes on, and the call gives the [`Work`](crate::Work) back |
/// | [`Stream::synchronize`](crate::Stream::synchronize) | the work goes on |
///
/// A thread that copies between a GPU's memory and the host's runs the hook when it has done so. A
/// thread that enqueues a call of NCCL's may be kept there until the other ranks have come, as for
/// the first collective of a communicator. It runs the hook when NCCL lets go of it. What ends the
/// call before that is its deadline, the failure of a rank of the same machine, or
/// [`Communicator::abort`](crate::Communicator::abort) on another thread.
///
/// The hook runs on the thread that made the call, several threads at once if several wait. Threads
/// of the library never run it; so a wait of a plugin on a worker stream does not either. The
/// threads of [`Communicator::spawn`](crate::Communicator::spawn) do, since they run the program's
/// code. A wait that began before the hook was set need not run it.
///
/// The hook runs inside the call that waits. It may query, drop and
/// [abort](crate::Communicator::abort); a call of it that would wait for another rank or for work
/// is an [`ErrorKind::InvalidArgument`](crate::ErrorKind::InvalidArgument). The library catches a
/// panic of the hook, logs it, and ends the wait. A process that is forked from this one has no
/// hook.
///
/// ```
/// use std::ops::ControlFlow;
/// use std::sync::atomic::{AtomicBool, Ordering};
///
/// use distcollective::interrupt::{clear_interrupt_hook, set_interrupt_hook};
///
/// // A signal handler of the program sets this.
/// static STOP: AtomicBool = AtomicBool::new(false);
///
/// set_interrupt_hook(|| match STOP.load(Ordering::Relaxed) {
///     true => ControlFlow::Break(()),
///     false => ControlFlow::Continue(()),
/// })?;
/// clear_interrupt_hook()?;
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Errors
///
/// The hook itself calls this; or this process was forked from one that has a hook.
pub fn set_interrupt_hook(hook: impl Fn() -> ControlFlow<()> + Send + Sync + 'static) -> Result<()> {
    HOOK.replace(Some(Box::new(hook)))
}

/// Undoes [`set_interrupt_hook`]. When this returns, no thread is inside the hook.
///
/// # Errors
///
/// As [`set_interrupt_hook`].
pub fn clear_interrupt_hook() -> Result<()> {
    HOOK.replace(None)
}

/// Runs the hook, if there is one and this thread has not run it for [`INTERVAL`]. A thread that
/// waits calls this when it sleeps.
///
/// # Errors
///
/// `Interrupted`: the hook ends the wait.
pub(crate) fn check() -> Result<()> {
    if !is_due() {
        return Ok(());
    }
    NEXT.set(Some(Instant::now() + INTERVAL));
    match HOOK.call(|hook| hook()) {
        None | Some(Ok(ControlFlow::Continue(()))) => return Ok(()),
        Some(Ok(ControlFlow::Break(()))) => {}
        Some(Err(panic)) => log::event!(ERROR, "the interrupt hook panicked, which ends the wait: {panic}"),
    }
    bail!(Interrupted, "interrupted by the program")
}

/// When a thread that would sleep until `deadline` has to call [`check`].
pub(crate) fn wake_by(deadline: Instant) -> Instant {
    if !is_watched() {
        return deadline;
    }
    NEXT.get().unwrap_or_else(Instant::now).min(deadline)
}

/// Whether [`check`] would run the hook.
pub(crate) fn is_due() -> bool {
    is_watched() && NEXT.get().is_none_or(|next| Instant::now() >= next)
}

/// Whether this thread runs the hook now and then.
fn is_watched() -> bool {
    HOOK.is_set() && !IS_MASKED.get()
}

/// Checks that this thread is not inside the hook, so that it may wait for others.
///
/// # Errors
///
/// `InvalidArgument`: this thread is inside the hook.
pub(crate) fn check_may_wait() -> Result<()> {
    if HOOK.is_inside() {
        bail!(InvalidArgument, "the interrupt hook cannot make a call that waits for other ranks or for work");
    }
    Ok(())
}

/// Keeps the hook from this thread until it is dropped: for threads of the library, and for waits
/// that have to come to their end.
#[must_use = "the hook is kept away until this is dropped"]
pub(crate) struct Mask(bool);

/// See [`Mask`].
pub(crate) fn mask() -> Mask {
    Mask(IS_MASKED.replace(true))
}

impl Drop for Mask {
    fn drop(&mut self) {
        IS_MASKED.set(self.0);
    }
}

/// The error of [`check`], if it is inside this one.
pub(crate) fn of_io(error: &io::Error) -> Option<Error> {
    let error: Option<&Error> = error.get_ref()?.downcast_ref();
    error.filter(|error| error.kind() == ErrorKind::Interrupted).cloned()
}

/// The error of a wait that the hook has ended. `meanwhile` says what had not happened yet: `while
/// rank 1 had not come`.
pub(crate) fn ended(interrupted: &Error, meanwhile: impl fmt::Display) -> Error {
    error!(Interrupted, "{interrupted} {meanwhile}")
}
