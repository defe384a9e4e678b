//! The threads that made the latest calls of this process's ranks, for hints in warnings.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::rank::Rank;
use crate::util::thread_number;

/// The threads of the latest calls. Two ranks that share a thread wait for each other forever.
pub(super) struct CallerThreads {
    first_rank: u32,
    threads: Box<[CallerThread]>,
}

/// The thread of a rank's latest call, as [`thread_number`] has it, or 0 before the first. On a
/// cache line of its own, because each call writes it.
#[derive(Default)]
#[repr(align(128))]
struct CallerThread(AtomicUsize);

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
            thread.store(thread_number(), Ordering::Relaxed);
        }
    }

    /// Why a wait of this thread for `rank` may not end: it may wait for a call that it would have
    /// to make itself.
    pub(super) fn hint_about(&self, rank: Rank) -> Option<String> {
        let found = match self.thread_of(rank)?.load(Ordering::Relaxed) {
            0 => "is a rank of this process and has made no call",
            thread if thread == thread_number() => "made its last call on this same thread",
            _ => return None,
        };
        Some(format!("rank {rank} {found}; each rank needs a thread of its own, as Communicator::spawn gives it"))
    }
}
