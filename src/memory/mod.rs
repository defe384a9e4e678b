//! Tensors in memory: [`Buffer`] owns, [`TensorView`] and [`TensorViewMut`] borrow.

mod buffer;
mod view;

pub use buffer::Buffer;
pub use view::{TensorView, TensorViewMut};

pub(crate) use buffer::Lease;
pub(crate) use view::RawTensor;
