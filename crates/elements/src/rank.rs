//! Numbers of ranks. A number in a communicator and a number in a group are different types, so
//! that the compiler refuses one where the other is meant.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number of a rank in its communicator, from 0.
///
/// Calls that take a rank take a `u32` too, and calls that take ranks take any list of either.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Rank(pub u32);

/// The number of a rank in the group that takes part in a collective, from 0: its index in the
/// group's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct GroupRank(pub u32);

// No other integer type converts: with one conversion only, the compiler takes `2` for a `u32`.
macro_rules! number {
    ($rank:ident) => {
        impl $rank {
            /// The number as an index.
            pub const fn index(self) -> usize {
                self.0 as usize
            }
        }

        impl From<u32> for $rank {
            fn from(number: u32) -> Self {
                $rank(number)
            }
        }

        impl From<&u32> for $rank {
            fn from(number: &u32) -> Self {
                $rank(*number)
            }
        }

        impl From<&$rank> for $rank {
            fn from(rank: &$rank) -> Self {
                *rank
            }
        }

        impl From<$rank> for u32 {
            fn from(rank: $rank) -> Self {
                rank.0
            }
        }

        impl fmt::Display for $rank {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

number!(Rank);
number!(GroupRank);
