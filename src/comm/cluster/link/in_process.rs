//! A link between threads of one process, for tests: each has a machine of its own. A long message
//! is whole only after several looks, so that shorter ones overtake it.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use super::{Bytes, ComingMessage, Link, LinkMessage, Tag, take_whole};
use crate::comm::backend_kind::BackendKind;
use crate::error::{Result, bail};
use crate::rank::Rank;
use crate::util::lock;

/// A message of more bytes is long.
const LONG: usize = 1000;

/// How many looks a long message takes.
const LOOKS: u32 = 20;

/// What has been sent to each rank, and which have ended.
struct Wires {
    to: Vec<Mutex<VecDeque<ComingMessage<u32>>>>,
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
    fn kind(&self) -> BackendKind {
        BackendKind::Ucx
    }

    fn send(&self, to: Rank, tag: Tag, bytes: Bytes) -> Result<()> {
        if self.has_died(to) {
            bail!(PeerLost, "rank {to} has ended");
        }
        let rest = (bytes.len() > LONG).then_some(LOOKS);
        lock(&self.wires.to[to.index()])
            .push_back(ComingMessage { arrival: LinkMessage { from: self.own, tag, bytes }, rest });
        Ok(())
    }

    fn progress(&self, arrivals: &mut Vec<LinkMessage>) -> Result<bool> {
        let mut incoming = lock(&self.wires.to[self.own.index()]);
        for message in &mut *incoming {
            message.rest = message.rest.and_then(|looks| looks.checked_sub(1));
        }
        take_whole(&mut incoming, arrivals);
        Ok(!arrivals.is_empty())
    }

    fn unsent(&self) -> usize {
        0
    }

    fn has_died(&self, rank: Rank) -> bool {
        self.wires.has_ended[rank.index()].load(Ordering::Acquire)
    }

    fn flush(&self) {
        let is_taken =
            |to: &Mutex<VecDeque<ComingMessage<u32>>>| lock(to).iter().all(|message| message.arrival.from != self.own);
        let end = Instant::now() + Duration::from_secs(1);
        let peers = self.wires.to.iter().zip(&self.wires.has_ended);
        let all_taken = || peers.clone().all(|(to, has_ended)| has_ended.load(Ordering::Acquire) || is_taken(to));
        while !all_taken() && Instant::now() < end {
            std::thread::yield_now();
        }
    }

    fn to_sleep_on(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

impl Drop for InProcessLink {
    fn drop(&mut self) {
        self.wires.has_ended[self.own.index()].store(true, Ordering::Release);
    }
}
