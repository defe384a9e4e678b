//! The Rust types of tensor elements, and what an ElementWise layer computes of them.

mod float8;
mod format;
mod operation;

pub(crate) use float8::Float8;
pub use float8::{F8E4M3, F8E5M2};
// half is past 1.0, so its types may stand in public signatures.
pub(crate) use format::FloatFormat;
pub use half::{bf16, f16};
pub use operation::ElementWiseOperation;

/// One byte of a bool tensor: zero is false, all else is true.
///
/// Rust's `bool` may only hold 0 and 1. A collective that moves bool tensors never changes a byte,
/// so an element may have another value.
#[derive(Clone, Copy, Debug, Default)]
#[repr(transparent)]
pub struct Bool(pub u8);

impl Bool {
    /// The byte that a reduction writes for true.
    pub const TRUE: Bool = Bool(1);
    /// The byte that a reduction writes for false.
    pub const FALSE: Bool = Bool(0);

    /// Whether the byte is not zero.
    pub const fn get(self) -> bool {
        self.0 != 0
    }
}

impl From<bool> for Bool {
    fn from(value: bool) -> Self {
        Bool(u8::from(value))
    }
}

impl PartialEq for Bool {
    /// Compares the truth values, not the bytes.
    fn eq(&self, other: &Self) -> bool {
        self.get() == other.get()
    }
}

impl Eq for Bool {}
