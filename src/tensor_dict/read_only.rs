//! Elements that several tensors share and none of them writes: those of a mapped file, or of
//! memory that ranks share.

use std::ops::Range;
use std::sync::Arc;

use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::memory::{MemorySpace, RawTensor, ReadOnlyMemory, TensorView};
use crate::shape::Shape;

/// The elements of one tensor.
pub(super) struct ReadOnly {
    memory: ReadOnlyMemory,
    range: Range<usize>,
}

impl ReadOnly {
    /// The elements in a range of the memory, which is inside of it.
    pub(super) fn new(memory: &ReadOnlyMemory, range: Range<usize>) -> Self {
        ReadOnly { memory: Arc::clone(memory), range }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &(*self.memory).as_ref()[self.range.clone()]
    }

    /// A view of as many elements as there are.
    pub(super) fn view(&self, data_type: DataType, shape: Shape) -> Result<TensorView<'_>> {
        let bytes = self.as_bytes();
        if !bytes.as_ptr().addr().is_multiple_of(data_type.byte_len()) {
            bail!(InvalidBuffer, "the file has the tensor at an address that is not aligned to {data_type}; copy it");
        }
        if bytes.len() != shape.byte_len(data_type) {
            bail!(InvalidBuffer, "{data_type} {shape} has not {} bytes", bytes.len());
        }
        let raw = RawTensor {
            data_type,
            address: bytes.as_ptr().cast_mut(),
            space: MemorySpace::Host,
            generation: 0,
            byte_len: bytes.len(),
            shape: Some(shape),
        };
        // SAFETY: the view borrows the bytes, which are as long as the tensor and aligned, and do
        // not change.
        Ok(unsafe { TensorView::from_raw(raw) })
    }
}
