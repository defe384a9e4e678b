//! Detects that the process was forked from that of a rank. The child has copies of the rank's
//! handles and the same shared memory, but only the thread that forked. It is no rank. A call
//! through the copies must not affect the parent or other ranks, and must not wait for a thread or
//! a lock of the parent.
//!
//! Each entry (a call on a communicator, an enqueue, a wait, a call of CUDA) checks once and
//! returns an error in a child. Below it code may assume that the process is the rank's. Drops have
//! no entry above them, so each checks by itself and does nothing in a child.

use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Result, bail};

/// How many forks are between this process and the one that made the first [`ProcessGuard`].
static FORKS: AtomicU32 = AtomicU32::new(0);

/// How often this process, or one that it was forked from, has been forked.
static CHILDREN: AtomicU32 = AtomicU32::new(0);

/// How many children have the memory of this process, once it has a [`ProcessGuard`]. It counts
/// before the fork.
pub(crate) fn fork_count() -> u32 {
    CHILDREN.load(Ordering::Acquire)
}

/// Remembers the process that made something.
#[derive(Clone, Copy)]
pub(crate) struct ProcessGuard(u32);

impl ProcessGuard {
    /// Remembers this process.
    pub(crate) fn current() -> Self {
        extern "C" fn prepare() {
            CHILDREN.fetch_add(1, Ordering::Release);
        }
        extern "C" fn count() {
            FORKS.fetch_add(1, Ordering::Relaxed);
        }
        static COUNTING: Once = Once::new();
        COUNTING.call_once(|| {
            // SAFETY: both only add to an atomic, which is allowed at a fork and in the child.
            let refused = unsafe { libc::pthread_atfork(Some(prepare), None, Some(count)) };
            assert_eq!(refused, 0, "no memory to be told of forks");
        });
        ProcessGuard(FORKS.load(Ordering::Relaxed))
    }

    /// Whether this is that process, and not one that was forked from it.
    pub(crate) fn is_current(&self) -> bool {
        self.0 == FORKS.load(Ordering::Relaxed)
    }

    /// Checks that this is that process. The error names `what` it made.
    ///
    /// # Errors
    ///
    /// `Unsupported`: this process was forked from it.
    #[inline]
    pub(crate) fn check(&self, what: &str) -> Result<()> {
        if self.is_current() {
            return Ok(());
        }
        bail!(Unsupported, "{what} works in the process that made it, and not in this one, which was forked from that")
    }
}
