//! How a rank copies into its stages: through its cache or past it.
//!
//! The lines of a stage are in the cache of the peer that read them last. If they come from there
//! more quickly than from memory, the copy goes through the cache, and the peer reads the piece
//! from the cache too. Otherwise a copy past the cache takes half of the time, with the peer's
//! reading. Which it is depends on where the processors of both are. A process cannot ask: virtual
//! machines hide it, and move. So a rank measures it.

use std::cell::Cell;
use std::time::{Duration, Instant};

use super::slot::Slot;
use crate::compute;

/// A peer is far if its line takes more than this share of the time that a line takes from memory.
/// On a Zen 4 a line takes 10 to 40 ns between near processors, and 100 to 130 between far ones; on
/// a Sapphire Rapids 70, where memory takes 105.
const FAR: f64 = 0.8;

/// A line that takes no longer was in this processor's cache, and says nothing of the peer.
const HERE: Duration = Duration::from_nanos(15);

/// How many looks count. More than half of them decide, because a rank may be stopped in a look.
const LOOKS: u32 = 8;

/// Of how many short transfers a rank looks in one. A look takes up to a microsecond.
const SHORT_TRANSFERS: u32 = 8;

/// How a rank copies into its stages.
#[derive(Default)]
pub(crate) struct StageStores {
    transfers: Cell<u32>,
    /// The time that a line takes from memory, from the first look on.
    memory: Cell<Option<Duration>>,
    /// A look that finds a line far away adds one, up to [`LOOKS`]. One that finds it near takes
    /// one away.
    far: Cell<u32>,
}

impl StageStores {
    /// Before a staged transfer, looks now and then how long a line takes that a peer has probably
    /// written since this rank has read it. `slot_of` finds the slot of a peer by a number that
    /// counts up.
    pub(in crate::comm::host) fn look<'a>(&self, is_long: bool, slot_of: impl FnOnce(usize) -> &'a Slot) {
        let transfers = self.transfers.get().wrapping_add(1);
        self.transfers.set(transfers);
        if !is_long && !transfers.is_multiple_of(SHORT_TRANSFERS) {
            return;
        }
        let memory = self.memory.get().unwrap_or_else(memory_time);
        self.memory.set(Some(memory));
        let slot = slot_of((transfers / SHORT_TRANSFERS) as usize);
        self.count(time_of(|| slot.taken.load()), memory);
    }

    fn count(&self, time: Duration, memory: Duration) {
        let far = self.far.get();
        match time {
            _ if time <= HERE => {}
            _ if time > memory.mul_f64(FAR) => self.far.set(LOOKS.min(far + 1)),
            _ => self.far.set(far.saturating_sub(1)),
        }
    }

    fn is_past_cache(&self) -> bool {
        self.far.get() > LOOKS / 2
    }

    /// Copies a piece into a stage.
    ///
    /// # Safety
    ///
    /// As [`compute::copy_past_cache`].
    pub(in crate::comm::host) unsafe fn copy(&self, source: *const u8, target: *mut u8, byte_len: usize) {
        // SAFETY: the caller's promise.
        unsafe {
            match self.is_past_cache() {
                true => compute::copy_past_cache(source, target, byte_len),
                false => compute::copy(source, target, byte_len),
            }
        }
    }
}

/// How long a read takes.
fn time_of<T>(read: impl FnOnce() -> T) -> Duration {
    let times = [Instant::now(), Instant::now()];
    std::hint::black_box(read());
    // Asking for the time takes as long as between the first two.
    times[1].elapsed().saturating_sub(times[1] - times[0])
}

/// How long a line takes from memory: the median of some reads.
#[cfg(target_arch = "x86_64")]
fn memory_time() -> Duration {
    use std::arch::x86_64::{_mm_clflush, _mm_mfence};
    #[repr(align(128))]
    struct Line(Cell<u8>);
    let line = Line(Cell::new(0));
    let mut times = [(); 9].map(|()| {
        // SAFETY: the line is in memory of this function; every processor of the architecture has
        // these instructions.
        unsafe {
            _mm_clflush(line.0.as_ptr());
            _mm_mfence();
        }
        time_of(|| line.0.get())
    });
    times.sort_unstable();
    times[times.len() / 2]
}

/// Other processors copy through the cache; see [`compute::copy_past_cache`].
#[cfg(not(target_arch = "x86_64"))]
fn memory_time() -> Duration {
    Duration::MAX
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn most_of_the_latest_looks_decide() {
        let stores = StageStores::default();
        let look = |nanos, times| {
            (0..times).for_each(|_| stores.count(Duration::from_nanos(nanos), Duration::from_nanos(100)))
        };
        look(400, 4);
        assert!(!stores.is_past_cache());
        look(400, 1);
        assert!(stores.is_past_cache());
        look(5, 100);
        assert!(stores.is_past_cache(), "lines that were in the cache say nothing");
        look(400, 100);
        look(60, 3);
        assert!(stores.is_past_cache());
        look(60, 1);
        assert!(!stores.is_past_cache());
    }
}
