//! Elements that do not lie one after the other in memory.

use std::ops::Range;

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

    /// The addresses between which all elements lie.
    pub(super) fn bounds(&self) -> Range<usize> {
        if self.shape.contains(&0) {
            return 0..0;
        }
        let (mut first, mut last) = (0isize, 0isize);
        for (&len, &stride) in self.shape.iter().zip(&self.strides) {
            let offset = stride.saturating_mul(len as isize - 1);
            first = first.saturating_add(offset.min(0));
            last = last.saturating_add(offset.max(0));
        }
        let address = self.address.addr();
        address.wrapping_add_signed(first)..address.wrapping_add_signed(last) + self.byte_len
    }

    /// Whether a byte belongs to elements of both.
    pub(super) fn shares_memory(&self, other: &Strided) -> bool {
        let (bounds, others) = (self.bounds(), other.bounds());
        bounds.start < others.end
            && others.start < bounds.end
            && !self.interleaves(other)
            && self.has_common_byte(other)
    }

    /// Whether both lie in a comb with the same distance between the teeth, and on other teeth: as
    /// even and odd elements, or two columns of a matrix. If not, they may still be apart.
    fn interleaves(&self, other: &Strided) -> bool {
        let steps = |strided: &Strided| {
            let dimensions = strided.shape.iter().zip(&strided.strides).filter(|(len, _)| **len > 1);
            dimensions.map(|(_, stride)| stride.unsigned_abs()).fold(0, gcd)
        };
        match gcd(steps(self), steps(other)) {
            0 => false,
            step => {
                let distance = other.address.addr().wrapping_sub(self.address.addr()) as isize;
                let distance = distance.rem_euclid(step as isize) as usize;
                distance >= self.byte_len && step - distance >= other.byte_len
            }
        }
    }

    /// Whether a byte belongs to elements of both, by looking at all elements.
    fn has_common_byte(&self, other: &Strided) -> bool {
        let [ours, theirs] = [self, other].map(|strided| {
            let mut addresses = Vec::new();
            strided.for_each_address(|address| addresses.push(address.addr()));
            addresses.sort_unstable();
            addresses
        });
        let mut theirs = theirs.into_iter().peekable();
        ours.into_iter().any(|address| {
            while theirs.next_if(|their| their + other.byte_len <= address).is_some() {}
            theirs.peek().is_some_and(|their| *their < address + self.byte_len)
        })
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

/// The greatest common divisor; with 0 it is the other number.
fn gcd(mut one: usize, mut other: usize) -> usize {
    while other != 0 {
        (one, other) = (other, one % other);
    }
    one
}
