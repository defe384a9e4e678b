//! Tensors whose elements are not one after the other in memory: transposed matrices, columns,
//! every second row.

use crate::error::{Result, bail};
use crate::memory::{Buffer, MemorySpace};
use crate::shape::Shape;

/// A tensor in a buffer of the host: the element with the indices `i` is number
/// `offset + Σ i · strides` of the buffer.
pub(super) struct Strided {
    buffer: Buffer,
    offset: usize,
    strides: Box<[isize]>,
}

impl Strided {
    /// # Errors
    ///
    /// The strides do not fit the shape; an element is outside of the buffer; the buffer is on a
    /// GPU.
    pub(super) fn new(buffer: Buffer, offset: usize, shape: &Shape, strides: &[isize]) -> Result<Self> {
        let dims = shape.as_slice();
        if buffer.space() != MemorySpace::Host {
            bail!(
                Unsupported,
                "the buffer is in {}; a strided tensor is in host memory. Make a contiguous copy",
                buffer.space()
            );
        }
        if strides.len() != dims.len() {
            bail!(InvalidArgument, "{shape} has {} dimensions, and there are {} strides", dims.len(), strides.len());
        }
        if !dims.contains(&0) {
            let (mut first, mut last) = (offset as i128, offset as i128);
            for (&dim, &stride) in dims.iter().zip(strides) {
                let reach = (dim as i128 - 1) * stride as i128;
                if reach < 0 { first += reach } else { last += reach }
            }
            let len = buffer.shape().element_count();
            if first < 0 || last >= len as i128 {
                bail!(
                    InvalidArgument,
                    "{shape} with strides {strides:?} from element {offset} on reaches elements {first} to {last} of a \
                     buffer of {len}"
                );
            }
        }
        Ok(Strided { buffer, offset, strides: strides.into() })
    }

    /// Copies whole elements, from byte `offset` of the row-major order on.
    pub(super) fn read(&self, shape: &Shape, offset: usize, bytes: &mut [u8]) -> Result<()> {
        let source = self.buffer.as_bytes()?;
        let element = self.buffer.data_type().byte_len();
        let (columns, stride) = match (shape.as_slice().last(), self.strides.last()) {
            (Some(&columns), Some(&stride)) => (columns, stride),
            _ => (1, 1),
        };
        let (mut index, mut rest) = (offset / element, bytes);
        while !rest.is_empty() {
            let (row, column) = (index / columns, index % columns);
            let run = (columns - column).min(rest.len() / element);
            let start = self.start_of_row(shape, row) + column as isize * stride;
            let (target, left) = rest.split_at_mut(run * element);
            if stride == 1 {
                target.copy_from_slice(&source[start as usize * element..][..target.len()]);
            } else {
                for (i, to) in target.chunks_exact_mut(element).enumerate() {
                    let from = (start + i as isize * stride) as usize * element;
                    to.copy_from_slice(&source[from..][..element]);
                }
            }
            (index, rest) = (index + run, left);
        }
        Ok(())
    }

    /// The number, in the buffer, of the first element of a row: of all indices but the last.
    fn start_of_row(&self, shape: &Shape, mut row: usize) -> isize {
        let mut start = self.offset as isize;
        for (&dim, &stride) in shape.as_slice().iter().zip(&*self.strides).rev().skip(1) {
            start += (row % dim) as isize * stride;
            row /= dim;
        }
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All elements of a strided tensor of bytes, read in pieces of a length.
    fn elements(buffer: &[i32], offset: usize, dims: &[usize], strides: &[isize], piece: usize) -> Result<Vec<i32>> {
        let shape = Shape::new(dims)?;
        let strided = Strided::new(Buffer::from(buffer.to_vec()), offset, &shape, strides)?;
        let mut bytes = vec![0; 4 * shape.element_count()];
        for (number, part) in bytes.chunks_mut(4 * piece).enumerate() {
            strided.read(&shape, number * 4 * piece, part)?;
        }
        Ok(bytes.chunks_exact(4).map(|b| i32::from_le_bytes(b.try_into().expect("four bytes"))).collect())
    }

    #[test]
    fn elements_come_in_row_major_order_in_pieces_of_any_length() {
        let numbers: Vec<i32> = (0..24).collect();
        for piece in 1..=24 {
            let read = |offset, dims: &[usize], strides: &[isize]| {
                elements(&numbers, offset, dims, strides, piece).expect("it fits")
            };
            assert_eq!(read(0, &[4, 6], &[6, 1]), numbers);
            assert_eq!(read(0, &[3, 2], &[1, 3]), [0, 3, 1, 4, 2, 5]);
            assert_eq!(read(1, &[2, 2, 2], &[12, 6, 2]), [1, 3, 7, 9, 13, 15, 19, 21]);
            assert_eq!(read(23, &[4], &[-2]), [23, 21, 19, 17]);
            assert_eq!(read(5, &[2, 3], &[0, 0]), [5; 6]);
            assert_eq!(read(7, &[], &[]), [7]);
            assert!(read(100, &[0, 3], &[9, 9]).is_empty());
        }
    }

    #[test]
    fn no_element_is_outside_of_the_buffer() {
        for (offset, dims, strides, says) in [
            (0, vec![5], vec![6], "[5] with strides [6] from element 0 on reaches elements 0 to 24 of a buffer of 24"),
            (3, vec![3], vec![-2], "reaches elements -1 to 3 of a buffer of 24"),
            (24, vec![], vec![], "reaches elements 24 to 24"),
            (0, vec![3, 3], vec![1], "[3, 3] has 2 dimensions, and there are 1 strides"),
            (usize::MAX, vec![2, 2], vec![isize::MAX, isize::MAX], "reaches elements"),
        ] {
            let error = elements(&[0; 24], offset, &dims, &strides, 1).expect_err(says);
            assert!(error.to_string().contains(says), "{error}");
        }
    }
}
