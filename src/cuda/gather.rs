//! The plan of a gathering on a GPU: joins elements, and finds matrices to transpose.

use crate::layout::Layout;
use crate::shape::MAX_DIMS;

/// The longest element that is transposed in tiles. A longer one fills a memory transaction alone.
pub(super) const MAX_TILED_BYTES: usize = 8;

/// The bytes of a word, in which bytes are moved where shape and addresses allow it.
const WORD: u64 = 4;

/// The plan of a gathering: a transpose or a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatherPlan {
    pub(super) element_bytes: usize,
    pub(super) dim_count: usize,
    /// The dimensions of the output, and the distance of their elements in the input.
    pub(super) dims: [u64; MAX_DIMS],
    pub(super) strides: [i64; MAX_DIMS],
    /// Batch, rows and columns of the input, if it is a batch of matrices.
    pub(super) tiles: Option<[u64; 3]>,
    /// Whether elements of the matrices, which are bytes, are moved as words.
    pub(super) moves_words: bool,
}

impl GatherPlan {
    /// The plan for the elements that the layout reaches. Both addresses are multiples of
    /// `alignment`.
    pub(super) fn new(layout: &Layout<1>, element_bytes: usize, alignment: usize) -> Self {
        let mut layout = *layout;
        let mut plan = GatherPlan {
            element_bytes: layout.widen(element_bytes, alignment),
            dim_count: layout.dims().len(),
            dims: [1; MAX_DIMS],
            strides: [0; MAX_DIMS],
            tiles: None,
            moves_words: false,
        };
        for (dim, (&len, &stride)) in layout.dims().iter().zip(layout.strides(0)).enumerate() {
            (plan.dims[dim], plan.strides[dim]) = (len as u64, stride as i64);
        }
        plan.tiles = plan.find_tiles();
        let has_words = |[_, rows, columns]: [u64; 3]| rows.is_multiple_of(WORD) && columns.is_multiple_of(WORD);
        plan.moves_words =
            plan.element_bytes == 1 && (alignment as u64).is_multiple_of(WORD) && plan.tiles.is_some_and(has_words);
        plan
    }

    fn find_tiles(&self) -> Option<[u64; 3]> {
        let (dims, strides) = (&self.dims[..self.dim_count], &self.strides[..self.dim_count]);
        let matrix = match (dims, strides) {
            // [columns, rows] of the output.
            (&[columns, rows], &[1, stride]) if stride == columns as i64 => Some([1, rows, columns]),
            (&[batch, columns, rows], &[outer, 1, stride])
                if stride == columns as i64 && outer == (rows * columns) as i64 =>
            {
                Some([batch, rows, columns])
            }
            _ => None,
        };
        matrix.filter(|_| self.element_bytes <= MAX_TILED_BYTES)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::Shape;

    /// The kernels need rows, columns and addresses that are multiples of a word.
    #[test]
    fn bytes_are_moved_as_words_where_shape_and_addresses_allow_it() {
        let moves_words = |dims: &[usize], permutation: &[u8], bytes, alignment| {
            let layout = Layout::transposed(&Shape::new(dims).expect("a shape"), permutation);
            GatherPlan::new(&layout, bytes, alignment).moves_words
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

    /// A slice whose rows are dense moves in the widest elements that its strides allow.
    #[test]
    fn elements_of_slices_are_joined() {
        let plan = |start: [i64; 2], size: [i64; 2], stride: [i64; 2], alignment| {
            let shape = Shape::new(&[8, 12]).expect("a shape");
            let (layout, _) = Layout::sliced(&shape, &start, &size, &stride);
            let GatherPlan { element_bytes, dim_count, dims, strides, tiles, .. } =
                GatherPlan::new(&layout, 2, alignment);
            assert_eq!(tiles, None);
            (element_bytes, dims[..dim_count].to_vec(), strides[..dim_count].to_vec())
        };
        assert_eq!(plan([0, 4], [8, 8], [1, 1], 16), (8, vec![8, 2], vec![3, 1]));
        assert_eq!(plan([7, 4], [8, 8], [-1, 1], 16), (8, vec![8, 2], vec![-3, 1]));
        assert_eq!(plan([7, 4], [8, 8], [-1, 1], 4), (4, vec![8, 4], vec![-6, 1]));
        assert_eq!(plan([0, 4], [8, 3], [2, 1], 16), (2, vec![8, 3], vec![24, 1]));
        assert_eq!(plan([0, 0], [8, 6], [1, 2], 16), (2, vec![48], vec![2]));
        assert_eq!(plan([3, 0], [4, 12], [0, 1], 16), (8, vec![4, 3], vec![0, 1]));
    }
}
