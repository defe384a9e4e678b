//! The ids of tensors and layers. An id knows its network, so that a network refuses the ids of
//! another one.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::error::{Result, bail};

/// The number of a network in this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct NetworkNumber(u32);

impl Default for NetworkNumber {
    /// A number that no other network has.
    fn default() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        NetworkNumber(NEXT.fetch_add(1, Ordering::Relaxed))
    }
}

/// A number of a network, and an index into its tensors or layers.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Id {
    network: NetworkNumber,
    index: u32,
}

impl Id {
    fn check(self, what: &str, network: NetworkNumber, count: usize) -> Result<()> {
        let Id { network: NetworkNumber(own), index } = self;
        if self.network != network {
            let NetworkNumber(other) = network;
            bail!(
                InvalidArgument,
                "{what} {index} is of network {own}, and this is network {other}; an id is for the network that gave it"
            );
        }
        if index as usize >= count {
            bail!(InvalidArgument, "{what} {index} was added to another clone of network {own}; this one has {count}");
        }
        Ok(())
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of network {}", self.index, self.network.0)
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $what:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Id);

        impl $name {
            pub(crate) fn new(network: NetworkNumber, index: usize) -> Self {
                $name(Id { network, index: index as u32 })
            }

            pub(crate) fn index(self) -> usize {
                self.0.index as usize
            }

            /// Checks that a network with this number and so many of them has it.
            pub(crate) fn check(self, network: NetworkNumber, count: usize) -> Result<()> {
                self.0.check($what, network, count)
            }
        }
    };
}

id! {
    /// A tensor of one network. Another network refuses it; a clone of the network takes it.
    TensorId, "tensor"
}

id! {
    /// A layer of one network. Another network refuses it; a clone of the network takes it.
    LayerId, "layer"
}
