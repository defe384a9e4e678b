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

    /// Whether elements share memory, as in a tensor that was expanded.
    pub(super) fn overlaps(&self) -> bool {
        let dimensions = self.shape.iter().zip(&self.strides).filter(|(len, _)| **len > 1);
        let mut steps: Vec<_> = dimensions.map(|(&len, &stride)| (stride.unsigned_abs(), len)).collect();
        if steps.iter().any(|&(step, _)| step == 0) {
            return true;
        }
        steps.sort_unstable();
        let mut extent = self.byte_len;
        let is_nested = steps.iter().all(|&(step, len)| {
            let fits = step >= extent;
            extent = extent.saturating_add(step.saturating_mul(len - 1));
            fits
        });
        if is_nested {
            return false;
        }
        // Elements of a dimension lie among those of another one. Views by slices do not get here.
        let mut addresses = Vec::new();
        self.for_each_address(|address| addresses.push(address.addr()));
        addresses.sort_unstable();
        addresses.windows(2).any(|pair| pair[1] - pair[0] < self.byte_len)
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
