//! The two fences of an agreement between a frequent and a rare side. Each side stores, runs its
//! fence, and loads what the other one has stored. So at least one of them sees the other's store.
//!
//! The frequent side is every call. A full fence there makes the call wait until its stores have
//! left the processor, which takes as long as all the rest of a small call. Linux lets the rare
//! side run a full fence on each processor that runs a process which has asked for it
//! (membarrier(2), `MEMBARRIER_CMD_GLOBAL_EXPEDITED`). If a process of the domain cannot ask for
//! it, because Linux is older than 4.16 or a sandbox refuses it, both sides run full fences.

use std::sync::atomic::compiler_fence;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::{AtomicU32, Ordering, fence};

/// The ranks of a domain that the fence of a rare side reaches, in memory that all of them share.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct AsymmetricFence {
    /// How many ranks live in processes that have asked for it.
    reached: AtomicU32,
}

impl AsymmetricFence {
    /// Asks that this process, in which `rank_count` ranks live, is reached. Each process calls
    /// this once, before its first fence.
    pub(super) fn join(&self, rank_count: u32) {
        // In the model both sides run full fences.
        if !cfg!(loom) && membarrier(MembarrierCommand::RegisterGlobalExpedited).is_ok() {
            self.reached.fetch_add(rank_count, Ordering::Relaxed);
        }
    }

    /// The fence of the frequent side, in a domain of `world_size` ranks.
    pub(super) fn light(&self, world_size: u32) {
        // The rare side reaches this process as soon as it has joined, whether or not it knows that
        // all others have.
        match self.reached.load(Ordering::Relaxed) == world_size {
            true => compiler_fence(Ordering::SeqCst),
            false => fence(Ordering::SeqCst),
        }
    }

    /// The fence of the rare side.
    pub(super) fn heavy(&self) {
        fence(Ordering::SeqCst);
        let reached = self.reached.load(Ordering::Relaxed);
        if reached == 0 || membarrier(MembarrierCommand::GlobalExpedited).is_ok() {
            return;
        }
        // A sandbox that began later than `join`. From now on both sides run full fences. Those on
        // the frequent side that have not seen this have run for much less than this time when it
        // is over.
        self.reached.store(u32::MAX, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    /// On a cache line of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU32);

    /// Waits for another thread, which begins or ends a round too.
    fn meet(own: &AtomicU32, other: &AtomicU32, round: u32) {
        own.store(round, Ordering::SeqCst);
        let mut spins = 0;
        while other.load(Ordering::SeqCst) < round {
            spins += 1;
            match spins % 100 {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// Two threads store, run their fences, and load, at the same time. Panics if neither sees the
    /// other's store.
    fn check_that_one_sees_the_other(fences: &AsymmetricFence, world_size: u32) {
        let [stored, seen, place]: [[Line; 2]; 3] = Default::default();
        let run = |own: usize, fence: &dyn Fn()| {
            for round in 1..=20_000 {
                meet(&place[own].0, &place[1 - own].0, 2 * round - 1);
                stored[own].0.store(round, Ordering::Relaxed);
                fence();
                seen[own].0.store(stored[1 - own].0.load(Ordering::Relaxed), Ordering::Relaxed);
                meet(&place[own].0, &place[1 - own].0, 2 * round);
                let has_seen = |of: &Line| of.0.load(Ordering::Relaxed) == round;
                assert!(seen.iter().any(has_seen), "neither thread sees the other in round {round}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(|| run(0, &|| fences.light(world_size)));
            run(1, &|| fences.heavy());
        });
    }

    #[test]
    fn one_side_sees_the_other() {
        let joined = AsymmetricFence { reached: AtomicU32::new(0) };
        joined.join(2);
        if joined.reached.load(Ordering::Relaxed) == 0 {
            eprintln!("skipped in part: this kernel has no membarrier");
        }
        check_that_one_sees_the_other(&joined, 2);
    }

    #[test]
    fn one_side_sees_the_other_where_not_every_process_can_be_reached() {
        for reached in [0, 1] {
            check_that_one_sees_the_other(&AsymmetricFence { reached: AtomicU32::new(reached) }, 2);
        }
    }
}
