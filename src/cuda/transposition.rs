//! The plan of a transposition on a GPU: joins dimensions and elements, and finds matrices.

use super::Kernel;
use crate::shape::{MAX_DIMS, Shape};

/// The longest element that is transposed in tiles. A longer one fills a memory transaction alone.
const MAX_TILED_BYTES: usize = 8;

/// The bytes of a word, in which bytes are moved where shape and addresses allow it.
const WORD: u64 = 4;

/// The plan of a transposition.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Transposition {
    pub(super) element_bytes: usize,
    pub(super) dim_count: usize,
    /// The dimensions of the output, and the distance of their elements in the input.
    pub(super) dims: [u64; MAX_DIMS],
    pub(super) strides: [u64; MAX_DIMS],
    /// Batch, rows and columns of the input, if it is a batch of matrices.
    pub(super) tiles: Option<[u64; 3]>,
    /// Whether elements of the matrices, which are bytes, are moved as words.
    pub(super) moves_words: bool,
}

impl Transposition {
    /// The plan for an output whose dimension `i` is dimension `permutation[i]` of the input. Both
    /// addresses are multiples of `alignment`.
    pub(crate) fn new(shape: &Shape, permutation: &[u8], element_bytes: usize, alignment: usize) -> Self {
        let dims = shape.as_slice();
        let stride_of = |dim: usize| dims[dim + 1..].iter().product::<usize>() as u64;
        let mut plan = Transposition {
            element_bytes,
            dim_count: 0,
            dims: [1; MAX_DIMS],
            strides: [0; MAX_DIMS],
            tiles: None,
            moves_words: false,
        };
        for dim in permutation.iter().map(|&dim| usize::from(dim)) {
            let (len, stride) = (dims[dim] as u64, stride_of(dim));
            match plan.dim_count.checked_sub(1) {
                _ if len == 1 => {}
                // Two dimensions that are adjacent in the input too are one dimension.
                Some(last) if plan.strides[last] == len * stride => {
                    plan.dims[last] *= len;
                    plan.strides[last] = stride;
                }
                _ => {
                    plan.dims[plan.dim_count] = len;
                    plan.strides[plan.dim_count] = stride;
                    plan.dim_count += 1;
                }
            }
        }
        plan.widen(alignment);
        plan.tiles = plan.find_tiles();
        let has_words = |[_, rows, columns]: [u64; 3]| rows.is_multiple_of(WORD) && columns.is_multiple_of(WORD);
        plan.moves_words =
            plan.element_bytes == 1 && (alignment as u64).is_multiple_of(WORD) && plan.tiles.is_some_and(has_words);
        plan
    }

    /// Joins adjacent elements that stay adjacent to one longer element.
    fn widen(&mut self, alignment: usize) {
        let Some(last) = self.dim_count.checked_sub(1) else { return };
        if self.strides[last] != 1 {
            return;
        }
        let fits = |factor: &usize| {
            let factor = *factor as u64;
            self.dims[last].is_multiple_of(factor) && self.strides[..last].iter().all(|s| s.is_multiple_of(factor))
        };
        let factors = [16, 8, 4, 2].into_iter().filter(|bytes| alignment.is_multiple_of(*bytes));
        let factors = factors.filter(|bytes| *bytes > self.element_bytes).map(|bytes| bytes / self.element_bytes);
        if let Some(factor) = factors.into_iter().find(|factor| fits(factor)) {
            self.element_bytes *= factor;
            self.dims[last] /= factor as u64;
            self.strides[..last].iter_mut().for_each(|stride| *stride /= factor as u64);
        }
    }

    fn find_tiles(&self) -> Option<[u64; 3]> {
        let (dims, strides) = (&self.dims[..self.dim_count], &self.strides[..self.dim_count]);
        let matrix = match (dims, strides) {
            // [columns, rows] of the output.
            (&[columns, rows], &[1, stride]) if stride == columns => Some([1, rows, columns]),
            (&[batch, columns, rows], &[outer, 1, stride]) if stride == columns && outer == rows * columns => {
                Some([batch, rows, columns])
            }
            _ => None,
        };
        matrix.filter(|_| self.element_bytes <= MAX_TILED_BYTES)
    }

    /// The kernels that transpositions of elements of `element_bytes` may need, for all shapes.
    pub(crate) fn kernels(element_bytes: usize) -> impl Iterator<Item = Kernel> {
        let widths = [1, 2, 4, 8, 16].into_iter().filter(move |width| *width >= element_bytes);
        let all = widths.flat_map(|width| {
            let tiled = (width <= MAX_TILED_BYTES).then_some(Kernel::TransposeTiled(width));
            std::iter::once(Kernel::Transpose(width)).chain(tiled)
        });
        all.chain((element_bytes == 1).then_some(Kernel::TransposeWords))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernels need rows, columns and addresses that are multiples of a word.
    #[test]
    fn bytes_are_moved_as_words_where_shape_and_addresses_allow_it() {
        let moves_words = |dims: &[usize], permutation: &[u8], bytes, alignment| {
            let shape = Shape::new(dims).expect("a shape");
            Transposition::new(&shape, permutation, bytes, alignment).moves_words
        };
        for alignment in [4, 8, 16] {
            assert!(moves_words(&[8, 12], &[1, 0], 1, alignment));
            assert!(moves_words(&[3, 8, 12], &[0, 2, 1], 1, alignment));
        }
        for alignment in [1, 2] {
            assert!(!moves_words(&[8, 12], &[1, 0], 1, alignment));
        }
        for dims in [[8, 13], [7, 12], [6, 12]] {
            assert!(!moves_words(&dims, &[1, 0], 1, 16), "{dims:?}");
        }
        // These elements are longer, or are joined to longer ones, or there is no matrix.
        assert!(!moves_words(&[8, 12], &[1, 0], 2, 16));
        assert!(!moves_words(&[8, 12, 4], &[1, 0, 2], 1, 16));
        assert!(!moves_words(&[4, 8, 12], &[2, 1, 0], 1, 16));
    }
}
