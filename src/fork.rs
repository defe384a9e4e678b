//! Processes that are forked from a rank's. A child has copies of the rank's handles, the same shared memory and none of its threads. It
//! is no rank: what it does with the copies must not reach the others, nor its parent, nor wait for a thread that is not there.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Result, bail};

/// How many forks lie between the process that was started and this one, counted from the first [`Home`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
pub(crate) struct Home(u32);

impl Home {
    /// This process.
    pub(crate) fn here() -> Self {
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // Where there is no memory for the handler, forks go unnoticed.
            // SAFETY: the child only counts, which it may between fork and exec.
            let _ = unsafe { libc::pthread_atfork(None, None, Some(count)) };
        });
        Home(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one, and not forked from it.
    pub(crate) fn is_here(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    pub(crate) fn check(&self) -> Result<()> {
        match self.is_here() {
            true => Ok(()),
            false => bail!(
                Unsupported,
                "this process was forked from the rank's, and is no rank itself; what it needs it makes after the fork"
            ),
        }
    }
}
