//! The threads that made the latest calls of this process's ranks, for hints in warnings.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rank::Rank;

/// The threads of the latest calls. Two ranks that share a thread wait for each other forever.
pub(super) struct CallerThreads {
    first_rank: u32,
    threads: Box<[CallerThread]>,
}

/// The thread of a rank's latest call, as [`this_thread`] numbers it, or 0 before the first. On a
/// cache line of its own, because each call writes it.
#[derive(Default)]
#[repr(align(128))]
struct CallerThread(AtomicUsize);

/// A number that no other thread of this process has; it is not 0.
fn this_thread() -> usize {
    static THREADS: AtomicUsize = AtomicUsize::new(0);
    thread_local!(static NUMBER: usize = 1 + THREADS.fetch_add(1, Ordering::Relaxed));
    // The local is gone while the thread ends; such a thread makes no further call.
    NUMBER.try_with(|number| *number).unwrap_or(usize::MAX)
}

impl CallerThreads {
    pub(super) fn new(local_ranks: std::ops::Range<u32>) -> Self {
        CallerThreads { first_rank: local_ranks.start, threads: local_ranks.map(|_| CallerThread::default()).collect() }
    }

    fn thread_of(&self, rank: Rank) -> Option<&AtomicUsize> {
        self.threads.get(rank.0.checked_sub(self.first_rank)? as usize).map(|thread| &thread.0)
    }

    /// Notes that a rank of this process makes a call on this thread.
    pub(super) fn note(&self, rank: Rank) {
        if let Some(thread) = self.thread_of(rank) {
            thread.store(this_thread(), Ordering::Relaxed);
        }
    }

    /// Why a wait of this thread for `rank` may not end: it may wait for a call that it would have
    /// to make itself.
    pub(super) fn hint_about(&self, rank: Rank) -> Option<String> {
        match self.thread_of(rank)?.load(Ordering::Relaxed) {
            0 => Some(format!(
                "rank {rank} is a rank of this process and has made no call; each rank needs a thread of its own"
            )),
            thread if thread == this_thread() => {
                Some(format!("rank {rank} made its last call on this same thread; each rank needs a thread of its own"))
            }
            _ => None,
        }
    }
}
