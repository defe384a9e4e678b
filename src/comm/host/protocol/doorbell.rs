//! Which peers have sent a rank something: one bit for each.

use crate::comm::host::system::MAX_RANKS;
use crate::rank::GroupRank;
use crate::sync::{AtomicU64, Ordering};

const WORDS: usize = if cfg!(loom) { 1 } else { MAX_RANKS.div_ceil(u64::BITS) as usize };

/// The bits of one rank. A peer sets its bit after it has written a cell; the rank takes the bits
/// before it reads rings (invariant 24).
#[cfg_attr(loom, derive(Default))]
#[repr(C, align(128))]
pub(crate) struct Doorbell([AtomicU64; WORDS]);

/// Bits that a rank has taken, and has not dealt with.
#[derive(Default)]
pub(in crate::comm::host) struct Rung([u64; WORDS]);

impl Doorbell {
    /// Says that `peer` has written into its ring.
    pub(in crate::comm::host) fn ring(&self, peer: GroupRank) {
        self.0[peer.index() / 64].fetch_or(1 << (peer.index() % 64), Ordering::Release);
    }

    /// Moves the bits to `rung`.
    pub(in crate::comm::host) fn take(&self, rung: &mut Rung) {
        for (word, rung) in self.0.iter().zip(&mut rung.0) {
            if word.load(Ordering::Relaxed) != 0 {
                *rung |= word.swap(0, Ordering::Acquire);
            }
        }
    }
}

impl Rung {
    pub(in crate::comm::host) fn clear(&mut self, peer: GroupRank) {
        self.0[peer.index() / 64] &= !(1 << (peer.index() % 64));
    }

    /// The lowest peer from `start` on whose bit is set, among `len` ranks. A peer may have set
    /// bits that are no rank's.
    pub(in crate::comm::host) fn next(&self, start: u32, len: usize) -> Option<GroupRank> {
        (start..len as u32).find(|peer| self.0[*peer as usize / 64] >> (peer % 64) & 1 != 0).map(GroupRank)
    }
}
