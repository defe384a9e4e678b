//! What a collective is, as values: operation, reduction, root and participants; the rules of
//! types, shapes and buffers; and the `Call` that a backend gets. This module does no I/O and knows
//! no communicator.

mod call;
mod geometry;
mod groups;
mod operation;
mod rules;

pub(crate) use call::Call;
pub use groups::{Groups, Partition, Root};
pub use operation::{Collective, CollectiveOperation, ReduceOperation};
pub use rules::{InPlace, output_dims, output_shape};

pub(crate) use rules::{check_buffers, check_type, overlap};
