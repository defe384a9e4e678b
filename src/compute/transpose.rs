//! Reordering of dimensions, for the Shuffle layer.

use crate::shape::{MAX_DIMS, Shape};

/// Writes the tensor at `source`, whose shape is `shape`, to `target` with its dimensions
/// reordered. Dimension `i` of the target is dimension `permutation[i]` of the source.
///
/// # Safety
///
/// `permutation` is a permutation of the shape's dimensions. The source is valid for reads and the
/// target for writes of the shape's elements, each of `element_bytes` bytes. They do not overlap,
/// and nothing else writes them during the call.
pub(crate) unsafe fn transpose(
    source: *const u8,
    target: *mut u8,
    shape: &Shape,
    permutation: &[u8],
    element_bytes: usize,
) {
    let count = shape.element_count();
    let rank = shape.dim_count();
    if count == 0 {
        return;
    }
    let dims = shape.as_slice();
    let mut source_strides = [1usize; MAX_DIMS];
    for i in (1..rank).rev() {
        source_strides[i - 1] = source_strides[i] * dims[i];
    }
    let mut target_dims = [1usize; MAX_DIMS];
    let mut strides = [0usize; MAX_DIMS];
    for (i, &from) in permutation.iter().enumerate() {
        target_dims[i] = dims[usize::from(from)];
        strides[i] = source_strides[usize::from(from)];
    }
    // The last dimensions move as one run of bytes if they keep their places.
    let mut run = 1;
    let mut outer = rank;
    while outer > 0 && usize::from(permutation[outer - 1]) == outer - 1 {
        run *= target_dims[outer - 1];
        outer -= 1;
    }
    let run_bytes = run * element_bytes;
    let mut index = [0usize; MAX_DIMS];
    let mut from = 0usize;
    for to in (0..count).step_by(run) {
        // SAFETY: `to` and `from` are the indices of the first element of a run inside the tensors.
        unsafe {
            target.add(to * element_bytes).copy_from_nonoverlapping(source.add(from * element_bytes), run_bytes);
        }
        for i in (0..outer).rev() {
            index[i] += 1;
            from += strides[i];
            if index[i] < target_dims[i] {
                break;
            }
            from -= strides[i] * index[i];
            index[i] = 0;
        }
    }
}
