//! A link between threads of one process, for tests: each has a machine of its own.

use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use super::{Arrival, Bytes, Link, Tag};
use crate::error::{Result, bail};
use crate::rank::Rank;
use crate::util::lock;

/// What has been sent to each rank, and which have ended.
struct Wires {
    to: Vec<Mutex<Vec<Arrival>>>,
    has_ended: Vec<AtomicBool>,
}

pub(in crate::comm::cluster) struct InProcessLink {
    own: Rank,
    wires: Arc<Wires>,
}

/// The links of so many ranks.
pub(in crate::comm::cluster) fn links(count: u32) -> Vec<InProcessLink> {
    let to = (0..count).map(|_| Mutex::default()).collect();
    let wires = Arc::new(Wires { to, has_ended: (0..count).map(|_| AtomicBool::new(false)).collect() });
    (0..count).map(|rank| InProcessLink { own: Rank(rank), wires: Arc::clone(&wires) }).collect()
}

impl Link for InProcessLink {
    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        if self.has_died(to) {
            bail!(PeerLost, "rank {to} has ended");
        }
        lock(&self.wires.to[to.index()]).push(Arrival { from: self.own, tag, bytes });
        Ok(())
    }

    fn progress(&self, arrivals: &mut Vec<Arrival>) -> Result<()> {
        arrivals.append(&mut lock(&self.wires.to[self.own.index()]));
        Ok(())
    }

    fn unsent(&self) -> usize {
        0
    }

    fn has_died(&self, rank: Rank) -> bool {
        self.wires.has_ended[rank.index()].load(Ordering::Acquire)
    }

    fn flush(&self) {}

    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        self.wires.has_ended[self.own.index()].store(true, Ordering::Release);
    }
}
