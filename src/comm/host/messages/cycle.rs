//! Ranks that wait for each other in a cycle of blocking sends and receives. Each rank publishes
//! whom it waits for; a rank that has waited for long follows these from itself.

use crate::comm::host::protocol::abort_domain::AbortDomain;
use crate::rank::Rank;

/// Whom a rank waits for, by ranks of the first communicator of the domain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Awaited {
    pub(super) peer: Rank,
    pub(super) is_send: bool,
    pub(super) tag: u16,
}

impl Awaited {
    /// As a word that is not 0.
    pub(super) fn to_word(self) -> u64 {
        1 << 63 | u64::from(self.is_send) << 62 | u64::from(self.tag) << 32 | u64::from(self.peer.0)
    }

    fn from_word(word: u64) -> Option<Self> {
        let [is_waiting, is_send] = [63, 62].map(|bit| word >> bit & 1 != 0);
        is_waiting.then_some(Awaited { peer: Rank(word as u32), is_send, tag: (word >> 32) as u16 })
    }
}

/// The cycle of waiting ranks that `start` is in: `rank 0 sends to rank 1 with tag 0, rank 1 sends
/// to rank 0 with tag 0`.
pub(super) fn describe(domain: &AbortDomain, start: Rank) -> Option<String> {
    let mut parts = Vec::new();
    let mut rank = start;
    // A peer may have written any rank.
    while rank.0 < domain.world_size() && parts.len() < domain.world_size() as usize {
        let Awaited { peer, is_send, tag } = Awaited::from_word(domain.awaited(rank))?;
        let verb = if is_send { "sends to" } else { "receives from" };
        let [waiting, awaited] = [rank, peer].map(|rank| domain.name(rank));
        parts.push(format!("rank {waiting} {verb} rank {awaited} with tag {tag}"));
        if peer == start {
            return Some(parts.join(", "));
        }
        rank = peer;
    }
    None
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::comm::host::protocol::segment::Segment;

    #[test]
    fn only_a_cycle_that_returns_to_the_start_is_described() {
        let segment = Segment::in_process(4, None).expect("memory");
        let domain = &*segment.domain;
        let wait = |rank, peer, is_send, tag| {
            domain.set_awaited(Rank(rank), Awaited { peer: Rank(peer), is_send, tag }.to_word());
        };
        let cycle = |rank| describe(domain, Rank(rank));
        assert_eq!(cycle(0), None);
        wait(0, 1, true, 3);
        wait(1, 2, false, 32_767);
        assert_eq!(cycle(0), None, "rank 2 waits for no rank");
        wait(2, 1, true, 0);
        assert_eq!(cycle(0), None, "rank 0 waits for a cycle, and is not in it");
        let text = "rank 1 receives from rank 2 with tag 32767, rank 2 sends to rank 1 with tag 0";
        assert_eq!(cycle(1).as_deref(), Some(text));
        wait(3, 3, true, 1);
        assert_eq!(cycle(3).as_deref(), Some("rank 3 sends to rank 3 with tag 1"));
        domain.set_awaited(Rank(3), u64::MAX);
        assert_eq!(cycle(3), None, "no rank has this number");
    }
}
