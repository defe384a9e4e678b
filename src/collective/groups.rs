//! The participants of a collective, and how the root is counted.

use std::collections::HashSet;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Result, bail};
use crate::rank::{GroupRank, Rank};
use crate::util::text::count_of;

/// The participants of a DistCollective layer.
///
/// The list of variants is complete: an engine that runs the layer itself has to handle each.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
pub enum Groups {
    /// Every rank of the communicator.
    #[default]
    All,
    /// These ranks. Their order is the order of concatenation, of blocks and of reduction. The
    /// other ranks skip the layer.
    Group(Vec<Rank>),
    /// Disjoint groups. Each does the collective by itself. TensorRT does not have this.
    Partition(Partition),
}

impl Groups {
    /// One group from communicator ranks in group order. An empty list is [`Groups::All`], as in
    /// TensorRT.
    ///
    /// # Errors
    ///
    /// A rank is negative, above `u32::MAX`, or occurs twice.
    pub fn from_ranks(ranks: &[i64]) -> Result<Self> {
        if ranks.is_empty() {
            return Ok(Groups::All);
        }
        let groups = Groups::Group(ranks_from("groups", ranks)?);
        groups.check()?;
        Ok(groups)
    }

    /// A partition from the communicator ranks of all its groups, one group after the other. Each
    /// group has `group_size` ranks, in group order.
    ///
    /// # Errors
    ///
    /// - A negative rank, one that no communicator has, or one that occurs twice.
    /// - `group_size` is 0, or the number of ranks is not a multiple of it.
    pub fn from_partition(ranks: &[i64], group_size: usize) -> Result<Self> {
        if group_size == 0 || !ranks.len().is_multiple_of(group_size) {
            bail!(InvalidArgument, "{} cannot be divided into groups of {group_size}", count_of(ranks.len(), "rank"));
        }
        let ranks = ranks_from("groups", ranks)?;
        let groups =
            Groups::Partition(Partition::new(ranks.chunks(group_size).map(|group| group.iter().map(|rank| rank.0))));
        groups.check()?;
        Ok(groups)
    }

    /// Checks the rules that need no communicator.
    ///
    /// # Errors
    ///
    /// A rank occurs twice, a group is empty, or groups have different lengths.
    pub fn check(&self) -> Result<()> {
        let members: Vec<Rank> = match self {
            Groups::All => return Ok(()),
            Groups::Group(group) => group.clone(),
            Groups::Partition(Partition { groups }) => {
                let length = groups.first().map_or(0, Vec::len);
                if let Some(other) = groups.iter().find(|g| g.len() != length) {
                    bail!(
                        InvalidArgument,
                        "the groups of a partition have equal lengths, here {length} and {}; groups is {self}",
                        other.len()
                    );
                }
                groups.concat()
            }
        };
        if members.is_empty() {
            bail!(InvalidArgument, "a group has at least one rank; groups is {self}");
        }
        let mut seen = HashSet::new();
        match members.iter().find(|rank| !seen.insert(**rank)) {
            Some(rank) => bail!(InvalidArgument, "rank {rank} occurs twice; groups is {self}"),
            None => Ok(()),
        }
    }

    /// The number of ranks in a group. `None` for [`Groups::All`]: it is the communicator's.
    pub fn group_len(&self) -> Option<usize> {
        match self {
            Groups::All => None,
            Groups::Group(group) => Some(group.len()),
            Groups::Partition(partition) => Some(partition.groups.first().map_or(0, Vec::len)),
        }
    }

    /// The members of the group that a communicator rank is in. `None` for a rank that takes no
    /// part, and for [`Groups::All`].
    pub fn group_of(&self, rank: impl Into<Rank>) -> Option<&[Rank]> {
        let rank = rank.into();
        match self {
            Groups::All => None,
            Groups::Group(group) => group.contains(&rank).then_some(group.as_slice()),
            Groups::Partition(partition) => {
                partition.groups.iter().find(|group| group.contains(&rank)).map(Vec::as_slice)
            }
        }
    }

    /// Whether a rank of the communicator takes part.
    pub fn contains(&self, rank: impl Into<Rank>) -> bool {
        matches!(self, Groups::All) || self.group_of(rank).is_some()
    }

    /// The largest rank in the lists.
    pub(crate) fn largest_rank(&self) -> Option<Rank> {
        match self {
            Groups::All => None,
            Groups::Group(group) => group.iter().copied().max(),
            Groups::Partition(partition) => partition.groups.iter().flatten().copied().max(),
        }
    }
}

impl fmt::Display for Groups {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Groups::All => f.write_str("all"),
            Groups::Group(group) => write_group(f, group),
            Groups::Partition(partition) => {
                f.write_str("[")?;
                for (i, group) in partition.groups.iter().enumerate() {
                    f.write_str(if i == 0 { "" } else { ", " })?;
                    write_group(f, group)?;
                }
                f.write_str("]")
            }
        }
    }
}

fn write_group(f: &mut fmt::Formatter<'_>, group: &[Rank]) -> fmt::Result {
    f.debug_list().entries(group.iter().map(|r| r.0)).finish()
}

/// Disjoint groups of equal length. They need not cover every rank.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Partition {
    groups: Vec<Vec<Rank>>,
}

impl Partition {
    /// A partition from lists of communicator ranks: `Partition::new([[0, 1], [2, 3]])`. Adding the
    /// layer checks it.
    pub fn new(groups: impl IntoIterator<Item: IntoIterator<Item: Into<Rank>>>) -> Self {
        Partition { groups: groups.into_iter().map(|group| group.into_iter().map(Into::into).collect()).collect() }
    }

    /// The groups.
    pub fn groups(&self) -> &[Vec<Rank>] {
        &self.groups
    }
}

/// The root of a layer: a communicator rank with [`Groups::All`] and [`Groups::Group`], a number
/// within each group with [`Groups::Partition`]. There is no third way to count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Root {
    /// A rank of the communicator.
    Rank(Rank),
    /// An index into each group of a partition.
    GroupRank(GroupRank),
}

impl Root {
    /// The number, whichever way it is counted.
    pub fn number(self) -> u32 {
        match self {
            Root::Rank(Rank(number)) | Root::GroupRank(GroupRank(number)) => number,
        }
    }
}

impl From<Rank> for Root {
    fn from(rank: Rank) -> Self {
        Root::Rank(rank)
    }
}

impl From<GroupRank> for Root {
    fn from(rank: GroupRank) -> Self {
        Root::GroupRank(rank)
    }
}

/// A list of ranks from numbers. `name` is what errors call the list.
fn ranks_from(name: &str, numbers: &[i64]) -> Result<Vec<Rank>> {
    let rank = |&number: &i64| match u32::try_from(number) {
        Ok(rank) => Ok(Rank(rank)),
        Err(_) => bail!(InvalidArgument, "{name} has {number}, which is not a rank; {name} is {numbers:?}"),
    };
    numbers.iter().map(rank).collect()
}
