//! How many processors the ranks of a domain may use together: a rank spins only if each rank can
//! have one.

use rustix::thread::{CpuSet, sched_getaffinity};

use crate::sync::{AtomicU64, Ordering};

/// How many 64-bit words a set has. Two processors whose numbers differ by a multiple of 64 times
/// this count as one.
const WORDS: usize = 12;

/// The processors that any process of the domain may run on, in memory that all of them share.
/// Launchers bind each process to processors of its own, so that no process sees them all.
#[cfg_attr(loom, derive(Default))]
#[repr(C)]
pub(super) struct ProcessorSet {
    words: [AtomicU64; WORDS],
}

impl ProcessorSet {
    /// Adds those that this thread may run on. Returns how many of them this process may keep busy:
    /// fewer than it added if a control group limits it.
    pub(super) fn add_own(&self) -> OwnProcessors {
        let allowed = std::thread::available_parallelism().map_or(1, usize::from);
        let Ok(set) = sched_getaffinity(None) else { return OwnProcessors { allowed, is_limited: true } };
        // In the model no rank spins.
        for number in (0..CpuSet::MAX_CPU).filter(|number| !cfg!(loom) && set.is_set(*number)) {
            let bit = number % (64 * WORDS);
            self.words[bit / 64].fetch_or(1 << (bit % 64), Ordering::Relaxed);
        }
        OwnProcessors { allowed, is_limited: allowed < set.count() as usize }
    }

    fn count(&self) -> usize {
        self.words.iter().map(|word| word.load(Ordering::Relaxed).count_ones() as usize).sum()
    }

    /// Whether each of `ranks` ranks can have a processor. Once it is true it stays so, because
    /// processors are only added.
    pub(super) fn is_enough_for(&self, ranks: usize, own: &OwnProcessors) -> bool {
        ranks <= if own.is_limited { own.allowed } else { self.count() }
    }
}

/// The processors of one process.
pub(super) struct OwnProcessors {
    allowed: usize,
    /// Whether a control group limits the process, and with it probably its peers.
    is_limited: bool,
}

#[cfg(test)]
mod tests {
    use rustix::thread::sched_setaffinity;

    use super::*;

    /// Runs on a thread that is bound to one processor.
    fn bound_to<T: Send>(number: usize, work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let mut set = CpuSet::new();
                set.set(number);
                sched_setaffinity(None, &set).expect("a processor that the process may use");
                work()
            });
            thread.join().expect("the work does not panic")
        })
    }

    #[test]
    fn ranks_that_are_bound_to_processors_of_their_own_have_enough() {
        let own = sched_getaffinity(None).expect("the processors");
        let numbers: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|number| own.is_set(*number)).collect();
        let set = ProcessorSet { words: Default::default() };
        let unlimited = OwnProcessors { allowed: 1, is_limited: false };
        bound_to(numbers[0], || set.add_own());
        assert!(set.is_enough_for(1, &unlimited) && !set.is_enough_for(2, &unlimited));
        // A second rank on the same processor.
        bound_to(numbers[0], || set.add_own());
        assert!(!set.is_enough_for(2, &unlimited));
        match numbers.get(1) {
            Some(second) => {
                bound_to(*second, || set.add_own());
                assert!(set.is_enough_for(2, &unlimited) && !set.is_enough_for(3, &unlimited));
            }
            None => eprintln!("skipped in part: this process has one processor"),
        }
        assert!(!set.is_enough_for(2, &OwnProcessors { allowed: 1, is_limited: true }));
    }
}
