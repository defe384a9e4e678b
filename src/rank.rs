//! Numbers of ranks. A number within a communicator and a number within a group are different types, so that one
//! cannot be taken for the other.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::error::{Result, bail};

/// The number of a rank in its communicator, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// The number of a rank in the group that takes part in a collective, from 0: its place in the group's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRank(pub u32);

impl Rank {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl GroupRank {
    /// The number as an index.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

impl fmt::Display for Rank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl fmt::Display for GroupRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// A list of ranks from loose numbers.
pub(crate) fn ranks_from(name: &str, numbers: &[i64]) -> Result<Vec<Rank>> {
    let rank = |&number: &i64| match u32::try_from(number) {
        Ok(rank) => Ok(Rank(rank)),
        Err(_) => bail!(InvalidArgument, "{name} has {number}, which is not a rank; {name} is {numbers:?}"),
    };
    numbers.iter().map(rank).collect()
}

/// Lists ranks as a sentence does: `rank 3`, `ranks 0, 1 and 3`.
pub(crate) fn list_ranks(ranks: impl IntoIterator<Item = u32>) -> String {
    list_of("rank", ranks)
}

/// Lists what has numbers: `GPU 3`, `GPUs 0, 1 and 3`.
pub(crate) fn list_of(noun: &str, numbers: impl IntoIterator<Item = u32>) -> String {
    let numbers: Vec<String> = numbers.into_iter().map(|number| number.to_string()).collect();
    match numbers.as_slice() {
        [] => format!("no {noun}"),
        [one] => format!("{noun} {one}"),
        [first @ .., last] => format!("{noun}s {} and {last}", first.join(", ")),
    }
}

/// `1 rank`, `4 ranks`.
pub(crate) fn count_of(count: usize, noun: &str) -> String {
    format!("{count} {noun}{}", if count == 1 { "" } else { "s" })
}
