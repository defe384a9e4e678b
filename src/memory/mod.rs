//! Tensors in memory: [`Buffer`] owns, [`TensorView`] and [`TensorViewMut`] borrow.

#[cfg(feature = "ndarray")]
mod array;
mod buffer;
mod space;
mod view;

pub use buffer::Buffer;
pub use space::MemorySpace;
pub use view::{TensorView, TensorViewMut};

pub(crate) use buffer::Lease;
pub(crate) use space::Address;
pub(crate) use view::RawTensor;
