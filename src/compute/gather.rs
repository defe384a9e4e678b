//! Elements in another order, for the Shuffle layer and the Slice layer.

use crate::layout::Layout;

/// Writes the elements that the layout reaches from `source` on, each of `element_bytes` bytes, to
/// `target`, one after the other.
///
/// # Safety
///
/// `element_bytes` is 1, 2, 4 or 8. The layout's elements are valid for reads, and the target is
/// valid for writes of as many elements, all aligned to their size. They do not overlap, and
/// nothing else writes them during the call.
pub(crate) unsafe fn gather(source: *const u8, target: *mut u8, layout: &Layout<1>, element_bytes: usize) {
    // SAFETY: the caller's promise.
    unsafe {
        match element_bytes {
            1 => gather_elements::<u8>(source.cast(), target.cast(), layout),
            2 => gather_elements::<u16>(source.cast(), target.cast(), layout),
            4 => gather_elements::<u32>(source.cast(), target.cast(), layout),
            _ => gather_elements::<u64>(source.cast(), target.cast(), layout),
        }
    }
}

/// # Safety
///
/// As [`gather`], for elements of the size of `T`.
unsafe fn gather_elements<T: Copy>(source: *const T, mut target: *mut T, layout: &Layout<1>) {
    let (len, [step]) = layout.row();
    for [start] in layout.rows() {
        let row = source.wrapping_offset(start);
        // SAFETY: the caller promises the elements of the row, and as many of the target.
        unsafe {
            if step == 1 {
                target.copy_from_nonoverlapping(row, len);
            } else {
                for i in 0..len {
                    *target.add(i) = *row.offset(i as isize * step);
                }
            }
        }
        target = target.wrapping_add(len);
    }
}

/// Copies rows that lie one after the other to rows that begin `pitch_bytes` apart.
///
/// # Safety
///
/// The source is valid for reads of `row_count` rows of `row_bytes` bytes, and the target for
/// writes of as many at their distance. They do not overlap, and nothing else writes them during
/// the call.
pub(crate) unsafe fn copy_rows(
    source: *const u8,
    target: *mut u8,
    row_count: usize,
    row_bytes: usize,
    pitch_bytes: usize,
) {
    for row in 0..row_count {
        // SAFETY: the caller promises the rows.
        unsafe { target.add(row * pitch_bytes).copy_from_nonoverlapping(source.add(row * row_bytes), row_bytes) };
    }
}
