//! Elements in another order, for the Shuffle layer and the Slice layer.

use crate::layout::{Layout, Matrices};

/// The longest element that is moved at once.
const MAX_BYTES: usize = 16;

/// Writes the elements that the layout reaches from `source` on, each of `element_bytes` bytes, to
/// `target`, one after the other.
///
/// # Safety
///
/// `element_bytes` is 1, 2, 4 or 8. The layout's elements are valid for reads, and the target is
/// valid for writes of as many elements. They do not overlap, and nothing else writes them during
/// the call.
pub unsafe fn gather(source: *const u8, target: *mut u8, layout: &Layout<1>, element_bytes: usize) {
    let mut layout = *layout;
    // A block has a few cache lines of the input and of the output, and fits the registers.
    // SAFETY: the caller's promise; the elements of the layout are of these bytes.
    unsafe {
        match layout.widen(element_bytes, MAX_BYTES) {
            1 => gather_elements::<u8, 16>(source.cast(), target.cast(), &layout),
            2 => gather_elements::<u16, 16>(source.cast(), target.cast(), &layout),
            4 => gather_elements::<u32, 8>(source.cast(), target.cast(), &layout),
            8 => gather_elements::<u64, 8>(source.cast(), target.cast(), &layout),
            _ => gather_elements::<u128, 8>(source.cast(), target.cast(), &layout),
        }
    }
}

/// # Safety
///
/// As [`gather`], for elements of the size of `T`, which need not be aligned. `SIDE` is the side of
/// the blocks in which matrices are transposed.
unsafe fn gather_elements<T: Copy + Default, const SIDE: usize>(
    source: *const T,
    mut target: *mut T,
    layout: &Layout<1>,
) {
    let (len, [step]) = layout.row();
    if let Some(matrices) = layout.matrices() {
        let (count, steps) = matrices.places.row();
        for starts in matrices.places.rows() {
            for i in 0..count as isize {
                let [from, to] = [0, 1].map(|side| starts[side] + i * steps[side]);
                // SAFETY: the caller promises the elements of all matrices.
                unsafe { transpose::<T, SIDE>(source.wrapping_offset(from), target.wrapping_offset(to), &matrices) };
            }
        }
        return;
    }
    for [start] in layout.rows() {
        let row = source.wrapping_offset(start);
        // SAFETY: the caller promises the elements of the row, and as many of the target.
        unsafe {
            if step == 1 {
                target.cast::<u8>().copy_from_nonoverlapping(row.cast(), len * size_of::<T>());
            } else {
                copy_apart(row, step, target, len);
            }
        }
        target = target.wrapping_add(len);
    }
}

/// Copies `len` elements that are `step` apart to neighbours.
///
/// # Safety
///
/// The elements are valid for reads and writes, and do not overlap.
unsafe fn copy_apart<T: Copy>(source: *const T, step: isize, target: *mut T, len: usize) {
    for i in 0..len {
        // SAFETY: the caller's promise.
        unsafe { target.add(i).write_unaligned(source.offset(i as isize * step).read_unaligned()) };
    }
}

/// Transposes a matrix in blocks, so that each line of the cache that is loaded is used as a whole.
///
/// # Safety
///
/// The elements of the matrix are valid for reads and writes, and do not overlap.
unsafe fn transpose<T: Copy + Default, const SIDE: usize>(source: *const T, target: *mut T, matrix: &Matrices) {
    let Matrices { dims: [rows, columns], strides: [down, along], pitch, .. } = *matrix;
    for column in (0..columns).step_by(SIDE) {
        for row in (0..rows).step_by(SIDE) {
            let (height, width) = (SIDE.min(rows - row), SIDE.min(columns - column));
            let from = source.wrapping_offset(row as isize * down + column as isize * along);
            let to = target.wrapping_add(row * pitch + column);
            // SAFETY: the block is inside the matrix.
            unsafe {
                if down == 1 && height == SIDE && width == SIDE {
                    transpose_block::<T, SIDE>(from, along, to, pitch);
                } else {
                    for i in 0..height {
                        copy_apart(from.offset(i as isize * down), along, to.add(i * pitch), width);
                    }
                }
            }
        }
    }
}

/// Transposes a block whose columns are `step` apart in the source, and whose rows are `pitch`
/// apart in the target.
///
/// # Safety
///
/// As [`transpose`].
unsafe fn transpose_block<T: Copy + Default, const SIDE: usize>(
    source: *const T,
    step: isize,
    target: *mut T,
    pitch: usize,
) {
    let mut block = [[T::default(); SIDE]; SIDE];
    for (i, column) in block.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *column = unsafe { source.offset(i as isize * step).cast::<[T; SIDE]>().read_unaligned() };
    }
    let rows: [[T; SIDE]; SIDE] = std::array::from_fn(|j| std::array::from_fn(|i| block[i][j]));
    for (j, row) in rows.into_iter().enumerate() {
        // SAFETY: as above.
        unsafe { target.add(j * pitch).cast::<[T; SIDE]>().write_unaligned(row) };
    }
}

/// Copies rows that lie one after the other to rows that begin `pitch_bytes` apart.
///
/// # Safety
///
/// The source is valid for reads of `row_count` rows of `row_bytes` bytes, and the target for
/// writes of as many at their distance. They do not overlap, and nothing else writes them during
/// the call.
pub unsafe fn copy_rows(source: *const u8, target: *mut u8, row_count: usize, row_bytes: usize, pitch_bytes: usize) {
    for row in 0..row_count {
        // SAFETY: the caller promises the rows.
        unsafe { target.add(row * pitch_bytes).copy_from_nonoverlapping(source.add(row * row_bytes), row_bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shape::{MAX_DIMS, Shape};

    /// The next of a small generator's numbers below `n` (xorshift).
    fn below(state: &mut u64, n: usize) -> usize {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        (*state % n as u64) as usize
    }

    /// Gathers, and compares with one element after the other. Nothing beside the target changes.
    fn check(layout: &Layout<1>, first: usize, source: &[u8], element_bytes: usize, offset: usize) {
        let (len, [step]) = layout.row();
        let indices = layout.rows().flat_map(|[start]| (0..len as isize).map(move |i| start + i * step));
        let from = |index: isize| first.wrapping_add_signed(index) * element_bytes;
        let expected: Vec<u8> =
            indices.flat_map(|index| source[from(index)..][..element_bytes].iter().copied()).collect();
        let mut moved = vec![0xa5; offset];
        moved.extend_from_slice(source);
        let mut target = vec![0xa5u8; offset + expected.len() + 3];
        // SAFETY: the layout's elements are in the source, and the target is as long as they are.
        unsafe {
            let source = moved.as_ptr().add(offset + first * element_bytes);
            gather(source, target.as_mut_ptr().add(offset), layout, element_bytes);
        }
        assert!(target[offset..][..expected.len()] == expected, "{layout:?}, {element_bytes} bytes each");
        let beside = target[..offset].iter().chain(&target[offset + expected.len()..]);
        assert!(beside.copied().all(|byte| byte == 0xa5), "{layout:?}");
    }

    #[test]
    fn any_transpose_and_slice_of_any_size() {
        let state = &mut 7;
        for case in 0..3000 {
            let rank = 1 + below(state, MAX_DIMS);
            let largest = [0, 3000, 70, 40, 14, 8, 5, 4, 3][rank];
            let dims: Vec<usize> = (0..rank).map(|_| 1 + below(state, largest)).collect();
            let shape = Shape::new(&dims).expect("a shape");
            let bytes = [1, 2, 4, 8][below(state, 4)];
            let source: Vec<u8> = (0..shape.element_count() * bytes).map(|_| below(state, 256) as u8).collect();
            let (layout, first) = if case % 3 == 0 {
                let last = dims.iter().map(|&dim| dim as i64 - 1);
                let start: Vec<i64> = last.map(|last| below(state, last as usize + 1) as i64).collect();
                let stride: Vec<i64> = dims.iter().map(|_| below(state, 5) as i64 - 2).collect();
                let room = |dim: usize| match stride[dim] {
                    0 => 5,
                    1.. => (dims[dim] as i64 - 1 - start[dim]) / stride[dim] + 1,
                    _ => start[dim] / -stride[dim] + 1,
                };
                Layout::sliced(&shape, &start, &(0..rank).map(room).collect::<Vec<_>>(), &stride)
            } else {
                let mut permutation: Vec<u8> = (0..rank as u8).collect();
                (1..rank).for_each(|i| permutation.swap(i, below(state, i + 1)));
                (Layout::transposed(&shape, &permutation), 0)
            };
            check(&layout, first, &source, bytes, below(state, 4));
        }
    }

    #[test]
    fn matrices_with_sides_around_those_of_blocks() {
        for bytes in [1, 2, 4, 8] {
            for rows in [1, 2, 7, 8, 9, 15, 16, 17, 33] {
                for columns in [1, 3, 8, 12, 16, 31, 32, 50] {
                    for (dims, permutation) in [
                        (&[rows, columns][..], &[1, 0][..]),
                        (&[3, rows, columns], &[0, 2, 1]),
                        (&[rows, 3, columns], &[2, 1, 0]),
                        (&[rows, columns, 2], &[1, 0, 2]),
                    ] {
                        let shape = Shape::new(dims).expect("a shape");
                        let source: Vec<u8> = (0..shape.element_count() * bytes).map(|i| (i * 7 / 3) as u8).collect();
                        check(&Layout::transposed(&shape, permutation), 0, &source, bytes, rows % 3);
                    }
                }
            }
        }
    }
}
