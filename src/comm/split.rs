//! Which ranks become one communicator.

use crate::rank::{GroupRank, Rank};

/// The ranks that become one communicator in a split.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct SplitGroup {
    /// Their numbers in the communicator that is split, in the order of their new numbers.
    pub(super) members: Box<[Rank]>,
    /// This rank's new number.
    pub(super) rank: GroupRank,
}

/// What one rank says in a split: its color, if it has one, and its key.
pub(super) type ColorAndKey = (Option<u32>, i32);

impl SplitGroup {
    /// The ranks with `own`'s color, ordered by key and then by rank; `None` if it has no color.
    /// `all` is what each rank said.
    pub(super) fn of(own: Rank, all: &[ColorAndKey]) -> Option<Self> {
        let color = all[own.index()].0?;
        let mut members: Vec<usize> = (0..all.len()).filter(|&rank| all[rank].0 == Some(color)).collect();
        // The sort is stable, so ranks with equal keys stay in the order of their numbers.
        members.sort_by_key(|&rank| all[rank].1);
        let rank = members.iter().position(|&rank| rank == own.index())?;
        let members = members.into_iter().map(|rank| Rank(rank as u32)).collect();
        Some(SplitGroup { members, rank: GroupRank(rank as u32) })
    }

    /// A number that no other group of the same split has, and every member finds: its lowest rank.
    pub(super) fn id(&self) -> u32 {
        self.members.iter().map(|rank| rank.0).min().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_ordered_by_key_and_then_by_rank() {
        let all = [(Some(7), 5), (None, 0), (Some(7), -1), (Some(u32::MAX), i32::MIN), (Some(7), 5)];
        let group = |rank: u32| SplitGroup::of(Rank(rank), &all).map(|group| (group.id(), group.rank.0, group.members));
        let sevens: Box<[Rank]> = [Rank(2), Rank(0), Rank(4)].into();
        assert_eq!(group(0), Some((0, 1, sevens.clone())));
        assert_eq!(group(1), None);
        assert_eq!(group(2), Some((0, 0, sevens.clone())));
        assert_eq!(group(3), Some((3, 0, [Rank(3)].into())));
        assert_eq!(group(4), Some((0, 2, sevens)));
    }
}
