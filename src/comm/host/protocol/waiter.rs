//! One wait of one rank: spin, yield, then sleep.

use std::time::Instant;

use super::abort_domain::AbortDomain;
use crate::error::Error;
use crate::rank::Rank;
use crate::sync::{spin_loop, yield_now};
use crate::util::wait::{Stopped, Wait, WaitForPeers};

/// How many times a rank spins before it yields. A futex wake-up costs tens of microseconds; so
/// much spinning takes about that long.
const SPINS: u32 = 1000;

/// How many times a rank yields its processor before it sleeps.
const YIELDS: u32 = if cfg!(loom) { 0 } else { 20 };

/// Why a wait did not end well.
pub(crate) enum WaitError {
    /// A rank has ended the communicator with this error.
    Aborted(Error),
    /// The deadline, or the interrupt hook.
    Stopped(Stopped),
    /// A rank that this one waits for has left or died.
    PeerLost,
}

/// The state of one wait. Several conditions in a row may share it.
pub(crate) struct Waiter<'a> {
    domain: &'a AbortDomain,
    rank: Rank,
    wait: Wait<'a>,
    spins_left: u32,
    yields_left: u32,
}

impl<'a> Waiter<'a> {
    #[inline]
    pub(crate) fn new(domain: &'a AbortDomain, rank: Rank, wait: Wait<'a>) -> Self {
        let spins_left = if domain.may_spin() { SPINS } else { 0 };
        Waiter { domain, rank, wait, spins_left, yields_left: YIELDS }
    }

    /// The same wait with another deadline.
    pub(crate) fn set_deadline(&mut self, deadline: Instant) {
        self.wait.set_deadline(deadline);
    }

    /// Waits until `is_reached`, until `is_peer_lost`, until an abort, until the deadline, or until
    /// the interrupt hook ends the wait (invariant 17).
    pub(crate) fn wait_until(
        &mut self,
        mut is_reached: impl FnMut() -> bool,
        is_peer_lost: impl Fn() -> bool,
    ) -> Result<(), WaitError> {
        let mut measured = None;
        loop {
            if is_reached() {
                return Ok(());
            }
            measured.get_or_insert_with(WaitForPeers::begin);
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
                let timeout = self.wait.step().map_err(|stopped| self.unless_aborted(WaitError::Stopped(stopped)))?;
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
