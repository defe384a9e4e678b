//! The two fences of an agreement between a frequent and a rare side. Each side stores, runs its
//! fence, and loads what the other one has stored. So at least one of them sees the other's store.
//!
//! The frequent side is every call. A full fence there makes the call wait until its stores have
//! left the processor, which takes as long as all the rest of a small call. Linux lets the rare
//! side run a full fence on each processor that runs a process which has asked for it
//! (membarrier(2)). If a process of the domain cannot ask for it, because Linux is older than 4.16
//! or a sandbox refuses it, both sides run full fences.
//!
//! `MEMBARRIER_CMD_PRIVATE_EXPEDITED` reaches all processors that run this process.
//! `MEMBARRIER_CMD_GLOBAL_EXPEDITED` reaches those that run other processes, except in one case: if
//! a processor was idle when a process registered, had run that process before, and runs it next,
//! Linux does not note the registration there (`sync_runqueues_membarrier_state` and
//! `membarrier_switch_mm` in kernel/sched). So between processes a rank that falls asleep looks
//! again after [`FIRST_SLEEP`].

use std::sync::atomic::compiler_fence;
use std::time::Duration;

use rustix::thread::{MembarrierCommand, membarrier};

use crate::sync::{AtomicU32, Ordering, fence};

/// A store has left its processor long before this time is over.
pub(super) const FIRST_SLEEP: Duration = Duration::from_millis(1);

/// The ranks of a domain that the fence of a rare side reaches, in memory that all of them share.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct AsymmetricFence {
    /// How many ranks live in processes that have asked for it; [`ENDING`] and [`ENDED`] where it
    /// was refused later.
    reached: AtomicU32,
}

/// A sandbox that began later than `join` has refused the system call, and threads may still run a
/// light fence that relies on it. A process that joins later makes this and [`ENDED`] another
/// number, which is less than the number of ranks.
const ENDING: u32 = u32::MAX - 1;

/// Both sides run full fences.
const ENDED: u32 = u32::MAX;

impl AsymmetricFence {
    /// Asks that this process, in which `rank_count` ranks live, is reached. Each process calls
    /// this once, before its first fence.
    pub(super) fn join(&self, rank_count: u32) {
        let register = [MembarrierCommand::RegisterPrivateExpedited, MembarrierCommand::RegisterGlobalExpedited];
        // In the model both sides run full fences.
        if !cfg!(loom) && register.into_iter().all(|command| membarrier(command).is_ok()) {
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

    /// The fence of the rare side. The frequent side may be in other processes if
    /// `spans_processes`.
    pub(super) fn heavy(&self, spans_processes: bool) {
        fence(Ordering::SeqCst);
        let reach = || {
            let private = membarrier(MembarrierCommand::PrivateExpedited);
            private.and_then(|()| if spans_processes { membarrier(MembarrierCommand::GlobalExpedited) } else { Ok(()) })
        };
        match self.reached.load(Ordering::Relaxed) {
            0 | ENDED => return,
            ENDING => {}
            _ if reach().is_ok() => return,
            _ => self.reached.store(ENDING, Ordering::SeqCst),
        }
        // A light fence that has not seen the store takes much less time than this.
        std::thread::sleep(Duration::from_millis(1));
        self.reached.store(ENDED, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    /// On a cache line of its own.
    #[derive(Default)]
    #[repr(align(128))]
    struct Line(AtomicU32);

    /// How many stores the frequent side makes before the one that the other side looks for. They
    /// go to lines that the other side has, so they wait in the processor's store buffer, and keep
    /// that one there as long.
    const STORES_BEFORE: usize = 56;

    /// Two processors on which this thread may run, if there are as many.
    fn two_processors() -> [Option<usize>; 2] {
        let allowed = sched_getaffinity(None).unwrap_or_default();
        let mut numbers = (0..CpuSet::MAX_CPU).filter(|number| allowed.is_set(*number));
        let both = [numbers.next(), numbers.next()];
        if both.contains(&None) { [None; 2] } else { both }
    }

    /// Binds this thread to a processor. Two threads on one processor see all stores of each other.
    fn bind_to(processor: Option<usize>) {
        let Some(number) = processor else { return };
        let mut set = CpuSet::new();
        set.set(number);
        // Where it is refused, the scheduler chooses.
        let _ = sched_setaffinity(None, &set);
    }

    /// Waits for another thread, which begins or ends a round too.
    fn meet(own: &AtomicU32, other: &AtomicU32, round: u32) {
        own.store(round, Ordering::SeqCst);
        let mut spins = 0;
        while other.load(Ordering::SeqCst) < round {
            spins += 1;
            match spins % 1000 {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    /// In how many of the rounds neither of two threads that store, run their fences, and load, at
    /// the same time, sees the other's store.
    fn count_missed(light: &(dyn Fn() + Sync), heavy: &dyn Fn()) -> usize {
        let [stored, seen, place]: [[Line; 2]; 3] = Default::default();
        let busy: Vec<Line> = (0..4096).map(|_| Line::default()).collect();
        // Chosen first, so that the stores follow each other quickly.
        let choose = |round: u32| -> [&AtomicU32; STORES_BEFORE] {
            std::array::from_fn(|i| &busy[(round as usize * 61 + i * 7) % busy.len()].0)
        };
        let touch = |lines: &[&AtomicU32], round| lines.iter().for_each(|line| line.store(round, Ordering::Relaxed));
        let store_and_load = |own: usize, round, fence: &dyn Fn()| {
            stored[own].0.store(round, Ordering::Relaxed);
            fence();
            seen[own].0.store(stored[1 - own].0.load(Ordering::Relaxed), Ordering::Relaxed);
        };
        let meet = |own: usize, round| meet(&place[own].0, &place[1 - own].0, round);
        let processors = two_processors();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                bind_to(processors[0]);
                for round in 1..=20_000 {
                    let lines = choose(round);
                    meet(0, 3 * round);
                    touch(&lines, round);
                    store_and_load(0, round, light);
                    meet(0, 3 * round + 1);
                    meet(0, 3 * round + 2);
                }
            });
            bind_to(processors[1]);
            let is_missed = |round: &u32| {
                let round = *round;
                touch(&choose(round), round);
                meet(1, 3 * round);
                // So that the two stores meet at different times.
                (0..round % 64).for_each(|_| std::hint::spin_loop());
                store_and_load(1, round, heavy);
                meet(1, 3 * round + 1);
                let is_missed = seen.iter().all(|seen| seen.0.load(Ordering::Relaxed) != round);
                meet(1, 3 * round + 2);
                is_missed
            };
            (1..=20_000).filter(is_missed).count()
        })
    }

    fn check(fences: &AsymmetricFence) {
        assert_eq!(
            count_missed(&|| fences.light(2), &|| fences.heavy(false)),
            0,
            "neither thread saw the other's store"
        );
    }

    #[test]
    fn one_side_sees_the_other() {
        let joined = AsymmetricFence { reached: AtomicU32::new(0) };
        joined.join(2);
        if joined.reached.load(Ordering::Relaxed) == 0 {
            eprintln!("skipped in part: this kernel has no membarrier");
        }
        check(&joined);
    }

    #[test]
    fn one_side_sees_the_other_where_not_every_process_can_be_reached() {
        for reached in [0, 1, ENDED] {
            check(&AsymmetricFence { reached: AtomicU32::new(reached) });
        }
    }
}
