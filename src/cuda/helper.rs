//! Calls that may never return, each on a thread of its own.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use super::{device, gpu_wait};
use crate::error::{Result, bail, error};
use crate::util::fork::ProcessGuard;
use crate::util::wait::LOOK;
use crate::util::{interrupt, lock};

/// A pointer, or a value that holds one, on its way to another thread.
pub(crate) struct Sent<T>(T);

// SAFETY: the caller of `new` has promised that the value may be used on another thread.
unsafe impl<T> Send for Sent<T> {}

impl<T> Sent<T> {
    /// # Safety
    ///
    /// Any thread may use and drop the value, and no thread uses it while the thread that takes it
    /// out does, unless the value itself allows that.
    pub(crate) unsafe fn new(value: T) -> Self {
        Sent(value)
    }

    /// The value. A method, so that a closure captures the whole and not the field.
    pub(crate) fn into_inner(self) -> T {
        self.0
    }
}

/// How long the end of the process may wait for threads that are inside CUDA or NCCL.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a thread may take to see that the process ends.
const COME_OUT_TIMEOUT: Duration = Duration::from_secs(1);

/// How many helper threads there are.
static RUNNING: Mutex<usize> = Mutex::new(0);
static CHANGED: Condvar = Condvar::new();

/// CUDA may be gone already, because the process ends.
static IS_OVER: AtomicBool = AtomicBool::new(false);

/// Whether the process ends, so that nothing may begin any more that calls CUDA or NCCL.
pub(super) fn is_over() -> bool {
    IS_OVER.load(Ordering::Acquire)
}

/// Ends waits of the library's threads for a GPU when the process ends.
pub(super) fn check_not_over() -> Result<()> {
    if is_over() {
        bail!(System, "the process ends");
    }
    Ok(())
}

/// Has the end of the process wait, for a bounded time, until the library's threads have come out
/// of CUDA and NCCL. To be called after CUDA or NCCL has been loaded and initialized: exit handlers
/// run in the reverse order, so this one runs before theirs, after which calls may crash.
pub(crate) fn settle_at_exit() {
    static PROCESS: OnceLock<ProcessGuard> = OnceLock::new();
    extern "C" fn settle_all() {
        // The threads are the parent's if this is a child that was forked.
        if PROCESS.get().is_some_and(ProcessGuard::is_current) && !is_over() {
            let deadline = Instant::now() + EXIT_TIMEOUT;
            // A helper's end may release memory, and a release may drop a communicator, for which
            // another helper is started.
            for _ in 0..2 {
                settle(deadline.saturating_duration_since(Instant::now()));
                device::settle_all(deadline);
            }
            settle(deadline.saturating_duration_since(Instant::now()));
            IS_OVER.store(true, Ordering::Release);
            // Threads that wait for a GPU see that at once.
            device::settle_all(Instant::now() + COME_OUT_TIMEOUT);
        }
    }
    PROCESS.get_or_init(ProcessGuard::current);
    // SAFETY: the function may be called at any time. If it is in a library that is unloaded, it is
    // called before that.
    if unsafe { libc::atexit(settle_all) } != 0 {
        crate::util::log::event!(WARN, "no memory for an exit handler; the process may end while it uses CUDA");
    }
}

/// Starts a helper thread, which [`settle`] waits for.
fn start(call: impl FnOnce() + Send + 'static) -> io::Result<()> {
    if is_over() {
        return Err(io::Error::other("the process ends"));
    }
    *lock(&RUNNING) += 1;
    let running = RunningHelper;
    let counted = move || {
        let _running = running;
        let _mask = interrupt::mask();
        call();
    };
    std::thread::Builder::new().name("dcl-helper".to_owned()).spawn(counted).map(drop)
}

/// Counts a helper thread until it has ended, or until it could not be started.
struct RunningHelper;

impl Drop for RunningHelper {
    fn drop(&mut self) {
        *lock(&RUNNING) -= 1;
        CHANGED.notify_all();
    }
}

/// Runs a call on a thread of its own, and does not wait for it.
pub(crate) fn detach(what: &'static str, call: impl FnOnce() + Send + 'static) {
    if let Err(error) = start(call) {
        crate::util::log::event!(WARN, "no thread for {what}: {error}; it is left out");
    }
}

/// Waits, at most for `timeout`, until no helper thread is left: before the process ends.
pub(crate) fn settle(timeout: Duration) {
    let waited = CHANGED.wait_timeout_while(lock(&RUNNING), timeout, |running| *running > 0);
    drop(waited.unwrap_or_else(PoisonError::into_inner));
}

/// A call on a thread of its own, which keeps what the call owns if it never returns.
pub(crate) struct Aside<T> {
    what: &'static str,
    result: Receiver<T>,
}

impl<T: Send + 'static> Aside<T> {
    pub(crate) fn start(what: &'static str, call: impl FnOnce() -> T + Send + 'static) -> Result<Self> {
        let (done, result) = channel();
        start(move || {
            // There may be no receiver any more.
            let _ = done.send(call());
        })
        .map_err(|e| error!(System, "no thread for {what}").with_source(e))?;
        Ok(Aside { what, result })
    }

    /// Waits until the call has returned, or until the deadline. An error of `alive`, which is
    /// called again and again, ends the wait; so does the interrupt hook.
    pub(crate) fn wait(&self, deadline: Instant, mut alive: impl FnMut() -> Result<()>) -> Result<T> {
        let what = self.what;
        let warning = |seconds| warning(what, seconds);
        let mut wait = gpu_wait(deadline).warning(&warning);
        loop {
            let sleep = wait.step().map_err(|stopped| {
                let late = format_args!("{what} has not returned by the deadline");
                stopped.error(format_args!("while {what} had not returned"), late)
            })?;
            match self.result.recv_timeout(sleep.min(LOOK)) {
                Ok(value) => return Ok(value),
                Err(RecvTimeoutError::Timeout) => alive()?,
                Err(RecvTimeoutError::Disconnected) => bail!(System, "{what} panicked"),
            }
        }
    }

    /// Waits for this long, and says whether the call has returned.
    pub(crate) fn has_returned(&self, timeout: Duration) -> bool {
        !matches!(self.result.recv_timeout(timeout), Err(RecvTimeoutError::Timeout))
    }

    /// Waits until the call has returned, however long that takes.
    pub(crate) fn join(self) {
        let _ = self.result.recv();
    }
}

/// Runs a call on a thread of its own, and waits for it until the deadline, or until the interrupt
/// hook ends the wait. After that the thread goes on.
pub(crate) fn bounded<T: Send + 'static>(
    what: &'static str,
    deadline: Instant,
    call: impl FnOnce() -> T + Send + 'static,
) -> Result<T> {
    Aside::start(what, call)?.wait(deadline, || Ok(()))
}

/// The text of a warning about a long wait.
pub(crate) fn warning(what: &str, seconds: u64) -> String {
    format!(
        "{what} has not ended after {seconds} s; perhaps another rank has not come, of which CUDA and NCCL say nothing"
    )
}
