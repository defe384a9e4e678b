//! Collectives that a program calls directly on a [`Communicator`](super::Communicator), in the
//! manner of torch.distributed: blocking calls, asynchronous calls, and calls on raw addresses.

mod arguments;
mod asynchronous;
mod blocking;
mod raw;

pub use asynchronous::Operands;
pub use raw::RawCollective;
