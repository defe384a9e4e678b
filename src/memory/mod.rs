//! Tensors in memory: [`Buffer`] owns, [`TensorView`] and [`TensorViewMut`] borrow.

#[cfg(feature = "ndarray")]
mod array;
mod borrowed;
mod buffer;
mod read_only;
mod space;
mod view;

pub use buffer::Buffer;
pub use space::MemorySpace;
pub use view::{TensorView, TensorViewMut};

pub(crate) use buffer::Lease;
pub(crate) use read_only::ReadOnlyMemory;
pub(crate) use space::Address;
pub(crate) use view::RawTensor;
