//! What a collective is, as values: operation, reduction, root, participants; the rules of shapes,
//! types and buffers; and the `Call` that every door hands to a backend. No I/O and no communicator
//! here.

mod call;
mod geometry;
mod groups;
mod operation;
mod rules;

pub(crate) use call::Call;
pub(crate) use geometry::Sharing;
pub(crate) use groups::ranks_from;
pub use groups::{Groups, Partition, Root};
pub use operation::{Collective, CollectiveOperation, ReduceOperation};
pub use rules::{InPlace, output_dims, output_shape};

pub(crate) use rules::{check_buffers, check_type, overlap};
