//! Processes that are forked from a rank's. A child has copies of the rank's handles, the same shared memory and none of its threads. It
//! is no rank: what it does with the copies must not reach the others, nor its parent, nor wait for a thread that is not there.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Result, bail};

/// How many forks lie between the process that was started and this one, counted from the first [`ProcessGuard`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// The process in which something was made.
#[derive(Clone, Copy)]
pub(crate) struct ProcessGuard(u32);

impl ProcessGuard {
    /// This process.
    pub(crate) fn current() -> Self {
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: the child only counts, which it may between fork and exec.
            let refused = unsafe { libc::pthread_atfork(None, None, Some(count)) };
            assert_eq!(refused, 0, "no memory to be told of forks");
        });
        ProcessGuard(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this process is the one, and not forked from it.
    pub(crate) fn is_current(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// `what` was made there.
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        match self.is_current() {
            true => Ok(()),
            false => {
                bail!(
                    Unsupported,
                    "{what} works in the process that made it, and not in this one, which was forked from that"
                )
            }
        }
    }
}
