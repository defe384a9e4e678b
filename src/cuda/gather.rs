//! The plan of a gathering on a GPU: joins elements, and finds matrices to transpose.

use crate::layout::Layout;

/// The longest element that is transposed in tiles. A longer one fills a memory transaction alone.
pub(super) const MAX_TILED_BYTES: usize = 8;

/// The bytes of a word, in which bytes are moved where shape and addresses allow it.
const WORD: usize = 4;

/// The plan of a gathering: a transpose or a slice.
#[derive(Clone, Copy, Debug)]
pub(super) struct GatherPlan {
    /// In elements of so many bytes.
    pub(super) layout: Layout<1>,
    pub(super) element_bytes: usize,
    /// Batch, rows and columns of the input, if it is a batch of matrices.
    pub(super) tiles: Option<[usize; 3]>,
    /// Whether elements of the matrices, which are bytes, are moved as words.
    pub(super) moves_words: bool,
}

impl GatherPlan {
    /// The plan for the elements that the layout reaches. Both addresses are multiples of
    /// `alignment`.
    pub(super) fn new(layout: &Layout<1>, element_bytes: usize, alignment: usize) -> Self {
        let mut layout = *layout;
        let element_bytes = layout.widen(element_bytes, alignment);
        let matrix = match (layout.dims(), layout.strides(0)) {
            // [columns, rows] of the output.
            (&[columns, rows], &[1, stride]) if stride == columns as isize => Some([1, rows, columns]),
            (&[batch, columns, rows], &[outer, 1, stride])
                if stride == columns as isize && outer == (rows * columns) as isize =>
            {
                Some([batch, rows, columns])
            }
            _ => None,
        };
        let tiles = matrix.filter(|_| element_bytes <= MAX_TILED_BYTES);
        let has_words = |[_, rows, columns]: [usize; 3]| rows.is_multiple_of(WORD) && columns.is_multiple_of(WORD);
        let moves_words = element_bytes == 1 && alignment.is_multiple_of(WORD) && tiles.is_some_and(has_words);
        GatherPlan { layout, element_bytes, tiles, moves_words }
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
            let plan = GatherPlan::new(&layout, 2, alignment);
            assert_eq!(plan.tiles, None);
            (plan.element_bytes, plan.layout.dims().to_vec(), plan.layout.strides(0).to_vec())
        };
        assert_eq!(plan([0, 4], [8, 8], [1, 1], 16), (8, vec![8, 2], vec![3, 1]));
        assert_eq!(plan([7, 4], [8, 8], [-1, 1], 16), (8, vec![8, 2], vec![-3, 1]));
        assert_eq!(plan([7, 4], [8, 8], [-1, 1], 4), (4, vec![8, 4], vec![-6, 1]));
        assert_eq!(plan([0, 4], [8, 3], [2, 1], 16), (2, vec![8, 3], vec![24, 1]));
        assert_eq!(plan([0, 0], [8, 6], [1, 2], 16), (2, vec![48], vec![2]));
        assert_eq!(plan([3, 0], [4, 12], [0, 1], 16), (8, vec![4, 3], vec![0, 1]));
    }
}
