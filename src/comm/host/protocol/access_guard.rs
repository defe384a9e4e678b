//! Access of a rank to its peers' buffers, which ends before a rank that failed returns
//! (invariant 9).

use super::segment::Segment;
use crate::error::Result;
use crate::rank::GroupRank;
use crate::sync::{AtomicU32, Ordering, yield_now};

/// The most bytes that a rank touches while it holds one guard.
pub(crate) const ACCESS_BYTES: usize = 64 << 10;

/// Which of a rank's threads has an access. Each has one at a time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accessor {
    /// The thread that runs the rank's collective.
    Collective,
    /// The thread that has locked the rank's mailbox.
    Mailbox,
}

/// While a rank holds this, it may touch its peers' buffers. It does not wait meanwhile, and
/// touches at most [`ACCESS_BYTES`], so that a rank that failed waits for a short time only.
pub(crate) struct AccessGuard<'a>(&'a AtomicU32);

impl Drop for AccessGuard<'_> {
    fn drop(&mut self) {
        self.0.store(0, Ordering::Release);
    }
}

impl Segment {
    /// Begins an access of `rank`, this rank, to its peers' buffers.
    ///
    /// # Errors
    ///
    /// An abort has begun.
    pub(crate) fn begin_access(&self, rank: GroupRank, by: Accessor) -> Result<AccessGuard<'_>> {
        let is_accessing = &self.slot(rank).is_accessing[by as usize];
        debug_assert_eq!(is_accessing.load(Ordering::Relaxed), 0, "{by:?} has an access already");
        is_accessing.store(1, Ordering::Relaxed);
        let guard = AccessGuard(is_accessing);
        // Pairs with the fence in `wait_for_accesses`.
        self.domain.light_fence();
        if self.domain.is_aborted() {
            drop(guard);
            return Err(self.domain.abort_error());
        }
        Ok(guard)
    }

    /// Waits until no peer in this process has an access. The caller has begun an abort, so that
    /// each thread of a peer has at most one more. A rank in another process reaches symmetric
    /// memory only (invariant 12), which invariant 14 protects.
    pub(crate) fn wait_for_accesses(&self, rank: GroupRank) {
        // Pairs with the fence in `begin_access`.
        self.domain.heavy_fence();
        for peer in self.ranks().filter(|peer| *peer != rank && self.domain.is_local(self.member(*peer))) {
            for is_accessing in &self.slot(peer).is_accessing {
                while is_accessing.load(Ordering::Acquire) != 0 {
                    yield_now();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;
    use crate::error::ErrorKind;
    use crate::rank::Rank;

    /// A peer is stopped in the middle of a copy. The rank that fails waits for it, and afterwards
    /// no access begins.
    #[test]
    fn a_failing_rank_waits_until_its_peers_have_no_access() {
        let segment = Arc::new(Segment::in_process(2, None).expect("memory"));
        let (inside, entered) = channel();
        let (go_on, stopped) = channel::<()>();
        let peer = std::thread::spawn({
            let segment = Arc::clone(&segment);
            move || {
                let _access = segment.begin_access(GroupRank(1), Accessor::Collective).expect("no abort yet");
                inside.send(()).expect("the test listens");
                stopped.recv().expect("the test says when");
            }
        });
        entered.recv().expect("the peer has an access");
        segment.domain.abort(ErrorKind::Aborted, Rank(0), "the test");
        let (returned, failed) = channel();
        let failing = std::thread::spawn({
            let segment = Arc::clone(&segment);
            move || {
                segment.wait_for_accesses(GroupRank(0));
                returned.send(()).expect("the test listens");
            }
        });
        assert!(failed.recv_timeout(Duration::from_millis(50)).is_err(), "the peer still has an access");
        go_on.send(()).expect("the peer listens");
        failed.recv_timeout(Duration::from_secs(10)).expect("the access has ended");
        peer.join().expect("no panic");
        failing.join().expect("no panic");
        let refused = segment.begin_access(GroupRank(1), Accessor::Collective).map(drop);
        assert_eq!(refused.expect_err("aborted").kind(), ErrorKind::Aborted);
    }
}
