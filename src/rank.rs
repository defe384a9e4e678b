//! Numbers of ranks. A number within a communicator and a number within a group are different types, so that one
//! cannot be taken for the other.

use std::fmt;

use serde::{Deserialize, Serialize};

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
