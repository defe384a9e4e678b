//! The Rust types of tensor elements.

pub use distcollective_elements::element::{Bool, ElementWiseOperation, F8E4M3, F8E5M2, bf16, f16};

use crate::data_type::DataType;

mod private {
    pub trait Sealed {}
}

/// A Rust type that a tensor's elements can have. Every bit pattern of its size is a value of it,
/// so that bytes of another rank are always valid.
pub trait Element: private::Sealed + Copy + Default + Send + Sync + 'static {
    /// The data type that this Rust type stands for.
    const DATA_TYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty => $data_type:ident),* $(,)?) => { $(
        impl private::Sealed for $rust {}
        impl Element for $rust {
            const DATA_TYPE: DataType = DataType::$data_type;
        }
        const _: () = {
            assert!(size_of::<$rust>() == DataType::$data_type.byte_len());
            assert!(align_of::<$rust>() <= DataType::$data_type.byte_len());
        };
    )* };
}

elements! {
    f32 => Float32,
    f16 => Float16,
    bf16 => Bfloat16,
    F8E4M3 => Float8E4M3,
    F8E5M2 => Float8E5M2,
    i64 => Int64,
    i32 => Int32,
    i8 => Int8,
    u8 => Uint8,
    Bool => Bool,
    f64 => Float64,
    u32 => Uint32,
    u64 => Uint64,
}
