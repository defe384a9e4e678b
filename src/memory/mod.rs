//! Tensors in memory: [`Buffer`] owns, [`TensorView`] and [`TensorViewMut`] borrow.

#[cfg(feature = "ndarray")]
mod array;
mod borrowed;
mod buffer;
mod space;
mod view;

use std::sync::Arc;

pub use buffer::Buffer;
pub use space::MemorySpace;
pub use view::{TensorView, TensorViewMut};

pub(crate) use buffer::Lease;
pub(crate) use space::Address;
pub(crate) use view::RawTensor;

/// Bytes in host memory that nothing changes: a mapped file, or memory that ranks share. They are
/// freed with the last reference.
pub(crate) type ReadOnlyMemory = Arc<dyn AsRef<[u8]> + Send + Sync>;
