//! Collectives that a program calls directly on a [`Communicator`](super::Communicator), in the
//! manner of torch.distributed: blocking calls, asynchronous calls, and calls on raw addresses.

mod arguments;
mod asynchronous;
mod batch;
mod blocking;
mod bytes;
mod list;
mod messages;
mod raw;
mod uneven;
mod uneven_blocks;

pub use asynchronous::Operands;
pub use batch::{Message, Messages, RawMessage};
pub use messages::{Received, Source};
pub use raw::{RawCollective, RawOperands};
pub use uneven::RawBlocks;
