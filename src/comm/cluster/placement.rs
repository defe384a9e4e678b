//! Where the ranks of a communicator are.

use std::ops::Range;

use crate::rank::{GroupRank, Rank};

/// The ranks of a communicator, by machines. All ranks find the same.
pub(super) struct RankPlacement {
    pub(super) own: GroupRank,
    /// The ranks by their numbers in the job.
    members: Box<[Rank]>,
    /// The number of each rank's machine, as `machines` counts.
    machine_of: Box<[usize]>,
    /// The ranks of each machine, in rank order. Machines are in the order of their first ranks.
    machines: Vec<Vec<GroupRank>>,
    /// The ranks that follow one another on one machine.
    pub(super) runs: Vec<Range<usize>>,
}

impl RankPlacement {
    /// `machine_of` gives the machine of a rank of the job.
    pub(super) fn new(own: GroupRank, members: Box<[Rank]>, machine_of: impl Fn(Rank) -> u32) -> Self {
        let mut numbers: Vec<u32> = Vec::new();
        let mut machines: Vec<Vec<GroupRank>> = Vec::new();
        let mut runs: Vec<Range<usize>> = Vec::new();
        let mut places = Vec::with_capacity(members.len());
        for (rank, member) in members.iter().enumerate() {
            let number = machine_of(*member);
            let machine = numbers.iter().position(|other| *other == number).unwrap_or_else(|| {
                numbers.push(number);
                machines.push(Vec::new());
                numbers.len() - 1
            });
            machines[machine].push(GroupRank(rank as u32));
            match runs.last_mut().filter(|run| places[run.start] == machine) {
                Some(run) => run.end = rank + 1,
                None => runs.push(rank..rank + 1),
            }
            places.push(machine);
        }
        RankPlacement { own, members, machine_of: places.into(), machines, runs }
    }

    pub(super) fn len(&self) -> usize {
        self.members.len()
    }

    pub(super) fn ranks(&self) -> impl Iterator<Item = GroupRank> + use<> {
        (0..self.members.len() as u32).map(GroupRank)
    }

    pub(super) fn members(&self) -> &[Rank] {
        &self.members
    }

    /// A rank's number in the job, by which errors name it.
    pub(super) fn member(&self, rank: GroupRank) -> Rank {
        self.members[rank.index()]
    }

    pub(super) fn machine_of(&self, rank: GroupRank) -> usize {
        self.machine_of[rank.index()]
    }

    pub(super) fn own_machine(&self) -> usize {
        self.machine_of(self.own)
    }

    /// The number of machines.
    pub(super) fn machine_count(&self) -> usize {
        self.machines.len()
    }

    pub(super) fn ranks_of(&self, machine: usize) -> &[GroupRank] {
        &self.machines[machine]
    }

    /// This machine's ranks.
    pub(super) fn local_ranks(&self) -> &[GroupRank] {
        self.ranks_of(self.own_machine())
    }

    pub(super) fn other_machines(&self) -> impl Iterator<Item = usize> + use<> {
        let own = self.own_machine();
        (0..self.machines.len()).filter(move |machine| *machine != own)
    }

    /// A rank's place among the ranks of its machine.
    pub(super) fn local_index(&self, rank: GroupRank) -> usize {
        self.ranks_of(self.machine_of(rank)).partition_point(|other| *other < rank)
    }

    pub(super) fn is_local(&self, rank: GroupRank) -> bool {
        self.machine_of(rank) == self.own_machine()
    }

    /// The rank of a machine that takes for all of that machine what a rank of another machine
    /// gives, and in which wave: in each wave every rank takes from at most one.
    pub(super) fn counterpart(&self, giver: GroupRank, machine: usize) -> (usize, GroupRank) {
        let before = self.ranks_of(machine).partition_point(|rank| *rank < giver);
        let place = giver.index() - before;
        let ranks = self.ranks_of(machine);
        (place / ranks.len(), ranks[place % ranks.len()])
    }

    /// The ranks of other machines, in waves of at most one for each rank of this one.
    pub(super) fn waves(&self) -> Vec<Vec<GroupRank>> {
        let remote: Vec<GroupRank> = self.ranks().filter(|rank| !self.is_local(*rank)).collect();
        remote.chunks(self.local_ranks().len()).map(<[_]>::to_vec).collect()
    }

    /// The most ranks of a machine.
    pub(super) fn widest(&self) -> usize {
        self.machines.iter().map(Vec::len).max().unwrap_or(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement(own: u32, machines: &[u32]) -> RankPlacement {
        let members = (0..machines.len() as u32).map(Rank).collect();
        RankPlacement::new(GroupRank(own), members, |rank| machines[rank.index()])
    }

    #[test]
    fn ranks_are_found_by_machines() {
        let placement = placement(2, &[7, 4, 7, 4, 4]);
        assert_eq!(placement.runs, [0..1, 1..2, 2..3, 3..5]);
        assert_eq!(placement.local_ranks(), [GroupRank(0), GroupRank(2)]);
        assert_eq!(placement.local_index(GroupRank(4)), 2);
        assert_eq!(placement.waves(), [vec![GroupRank(1), GroupRank(3)], vec![GroupRank(4)]]);
        assert_eq!(placement.widest(), 3);
        // The waves of the machine of ranks 0 and 2, and the places in them.
        let counterparts = [1, 3, 4].map(|giver| placement.counterpart(GroupRank(giver), 0));
        assert_eq!(counterparts, [(0, GroupRank(0)), (0, GroupRank(2)), (1, GroupRank(0))]);
        assert_eq!(placement.counterpart(GroupRank(2), 1), (0, GroupRank(3)));
    }
}
