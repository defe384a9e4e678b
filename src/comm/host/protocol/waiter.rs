//! One wait of one rank: spin, yield, then sleep.

use std::time::Instant;

use super::abort_domain::AbortDomain;
use crate::error::Error;
use crate::rank::Rank;
use crate::sync::{spin_loop, yield_now};
use crate::util::interrupt;
use crate::util::slow_warning::SlowWarning;

/// How many times a rank spins before it yields. A futex wake-up costs tens of microseconds; so
/// much spinning takes about that long.
const SPINS: u32 = 1000;

/// How many times a rank yields its processor before it sleeps.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };

/// Why a wait did not end well.
pub(crate) enum WaitError {
    /// A rank has ended the communicator with this error.
    Aborted(Error),
    DeadlineExceeded,
    /// A rank that this one waits for has left or died.
    PeerLost,
    /// The interrupt hook has ended the wait.
    Interrupted(Error),
}

/// The state of one wait. Several conditions in a row may share it.
pub(crate) struct Waiter<'a> {
    domain: &'a AbortDomain,
    rank: Rank,
    deadline: Instant,
    spins_left: u32,
    yields_left: u32,
    /// Made at the first sleep.
    slow: Option<SlowWarning>,
}

impl<'a> Waiter<'a> {
    pub(crate) fn new(domain: &'a AbortDomain, rank: Rank, deadline: Instant) -> Self {
        let spins_left = if domain.may_spin() { SPINS } else { 0 };
        Waiter { domain, rank, deadline, spins_left, yields_left: YIELDS, slow: None }
    }

    /// The same wait with another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.deadline = deadline;
    }

    /// Keeps the wait out of the log.
    pub(crate) fn be_quiet(&mut self) {
        self.slow = Some(SlowWarning::never());
    }

    /// Waits until `is_reached`, until `is_peer_lost`, until an abort, until the deadline, or until
    /// the interrupt hook ends the wait (invariant 17). `warning` is the text of a warning about a
    /// wait of so many seconds.
    pub(crate) fn wait_until(
        &mut self,
        mut is_reached: impl FnMut() -> bool,
        is_peer_lost: impl Fn() -> bool,
        warning: impl Fn(u64) -> String,
    ) -> Result<(), WaitError> {
        loop {
            if is_reached() {
                return Ok(());
            }
            self.domain.check().map_err(WaitError::Aborted)?;
            if is_peer_lost() {
                return Err(self.unless_aborted(WaitError::PeerLost));
            }
            if self.spins_left > 0 {
                self.spins_left -= 1;
                spin_loop();
            } else if self.yields_left > 0 {
                self.yields_left -= 1;
                yield_now();
            } else {
                let now = Instant::now();
                if now >= self.deadline {
                    return Err(self.unless_aborted(WaitError::DeadlineExceeded));
                }
                interrupt::check().map_err(|error| self.unless_aborted(WaitError::Interrupted(error)))?;
                let slow = self.slow.get_or_insert_with(SlowWarning::new);
                slow.look(&warning);
                let next_look = interrupt::wake_by(slow.next_look(self.deadline));
                let timeout = next_look.saturating_duration_since(now);
                let must_wake = || is_reached() || is_peer_lost() || self.domain.is_aborted();
                self.domain.sleep(self.rank, timeout, must_wake);
            }
        }
    }

    /// A rank that aborts and then leaves has set the abort word first. Its reason is the better
    /// error.
    fn unless_aborted(&self, error: WaitError) -> WaitError {
        self.domain.check().map_or_else(WaitError::Aborted, |()| error)
    }
}
