//! What a collective is, as values: operation, reduction, root and participants; and the rules of
//! types, shapes and buffers. Nothing here needs a communicator.

mod call;
mod determinism;
mod exact;
mod geometry;
mod groups;
mod operation;
mod purpose;
mod rules;
mod uneven;

pub use call::InPlace;
pub(crate) use call::{Call, Givers};
pub use determinism::Determinism;
pub(crate) use exact::step_scratch_bytes;
pub(crate) use exact::{ExactReduction, Shares, narrow_scratch_bytes, whole_packets};
pub(crate) use geometry::{Geometry, Side};
pub use groups::{Groups, Partition, Root};
pub(crate) use operation::check_wire_type;
pub use operation::{Collective, CollectiveOperation};
pub(crate) use purpose::{Purpose, PurposeKind};
pub use rules::{output_dims, output_shape};

#[doc(inline)]
pub use distcollective_elements::reduce_operation::ReduceOperation;
#[doc(inline)]
pub use distcollective_elements::wire_type::WireType;

#[doc(inline)]
pub use crate::rank::GroupRank;
pub(crate) use rules::{check_blocks, check_buffers, check_list, check_type, overlap};
pub(crate) use uneven::BlockCounts;
