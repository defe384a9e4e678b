//! Elements that do not lie one after the other in memory.

/// Elements in memory, in row-major order of their indices.
#[derive(Clone, Debug)]
pub(super) struct Strided {
    pub address: *mut u8,
    pub shape: Vec<usize>,
    /// From one index to the next, in bytes, for each dimension.
    pub strides: Vec<isize>,
    pub byte_len: usize,
}

impl Strided {
    /// Whether the elements lie one after the other.
    pub(super) fn is_contiguous(shape: &[usize], strides: &[isize], byte_len: usize) -> bool {
        if shape.contains(&0) {
            return true;
        }
        let mut expected = byte_len as isize;
        shape.iter().zip(strides).rev().all(|(&len, &stride)| {
            let fits = len == 1 || stride == expected;
            expected = expected.wrapping_mul(len as isize);
            fits
        })
    }

    /// Whether an element has several indices, as in a tensor that was expanded.
    pub(super) fn repeats(&self) -> bool {
        self.shape.iter().zip(&self.strides).any(|(&len, &stride)| len > 1 && stride == 0)
    }

    /// Copies the elements to `bytes`, one after the other.
    ///
    /// # Safety
    ///
    /// The addresses of all elements are valid for reads.
    pub(super) unsafe fn pack(&self, bytes: &mut [u8]) {
        let mut packed = bytes.chunks_exact_mut(self.byte_len);
        self.for_each_address(|address| {
            if let Some(element) = packed.next() {
                // SAFETY: the caller's promise; the chunk has the element's length.
                unsafe { address.copy_to_nonoverlapping(element.as_mut_ptr(), self.byte_len) };
            }
        });
    }

    /// Copies `bytes` to the elements.
    ///
    /// # Safety
    ///
    /// The addresses of all elements are valid for writes.
    pub(super) unsafe fn unpack(&self, bytes: &[u8]) {
        let mut packed = bytes.chunks_exact(self.byte_len);
        self.for_each_address(|address| {
            if let Some(element) = packed.next() {
                // SAFETY: the caller's promise; the chunk has the element's length.
                unsafe { address.copy_from_nonoverlapping(element.as_ptr(), self.byte_len) };
            }
        });
    }

    /// Gives the address of each element, in row-major order.
    fn for_each_address(&self, mut act: impl FnMut(*mut u8)) {
        let count: usize = self.shape.iter().product();
        let mut index = vec![0; self.shape.len()];
        let mut offset = 0isize;
        for _ in 0..count {
            act(self.address.wrapping_offset(offset));
            // The last dimension counts up first. One that is full begins again.
            for ((index, &len), &stride) in index.iter_mut().zip(&self.shape).zip(&self.strides).rev() {
                *index += 1;
                offset += stride;
                if *index < len {
                    break;
                }
                offset -= stride * len as isize;
                *index = 0;
            }
        }
    }
}
