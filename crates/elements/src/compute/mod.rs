//! Arithmetic and rearrangement of elements on the host, for collectives and for layers. These
//! results define what is right: other backends are compared with them. This module knows nothing
//! of ranks or networks.

mod cast;
mod copy;
mod element_wise;
mod float;
mod float_env;
mod gather;
mod operand;
mod reduce;
mod vector;

pub use cast::cast;
pub use copy::{copy, copy_past_cache};
pub use element_wise::element_wise;
pub use gather::{copy_rows, gather};
pub use reduce::{Stored, finish, narrow, partial, reduce, reduce_rounded, round};

/// The data type of a Rust type.
#[cfg(test)]
trait Typed: Copy + Default {
    const DATA_TYPE: crate::data_type::DataType;
}

#[cfg(test)]
macro_rules! typed {
    ($($rust:ty => $data_type:ident),*) => { $(
        impl Typed for $rust {
            const DATA_TYPE: crate::data_type::DataType = crate::data_type::DataType::$data_type;
        }
    )* };
}

#[cfg(test)]
typed! {
    f32 => Float32, crate::element::f16 => Float16, crate::element::bf16 => Bfloat16,
    crate::element::F8E4M3 => Float8E4M3, crate::element::F8E5M2 => Float8E5M2,
    f64 => Float64, u64 => Uint64, u32 => Uint32, i64 => Int64, i32 => Int32, i8 => Int8, u8 => Uint8, crate::element::Bool => Bool
}
