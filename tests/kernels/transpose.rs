//! Transposes and slices: of any dimensions, and of matrices by tiles.

use std::ffi::c_void;

use crate::memory::{Buffer, Random, launch};

#[repr(C)]
struct TransposeArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    dim_count: u64,
    dims: [u64; 8],
    strides: [i64; 8],
}

#[repr(C)]
struct TiledArguments {
    input: *const c_void,
    output: *mut c_void,
    batch: u64,
    rows: u64,
    columns: u64,
}

/// Gathers elements at the strides, and compares. The buffers begin `offset` elements after a
/// multiple of 16 bytes.
fn check(bytes: usize, dims: &[usize], strides: &[isize], offset: usize, grid: u32, random: &mut Random) {
    let count: usize = dims.iter().product();
    let reach = |dim: usize, stride: isize| dim.saturating_sub(1) as isize * stride;
    let reaches = || dims.iter().zip(strides).map(|(&dim, &stride)| reach(dim, stride));
    let (below, above) = (reaches().map(|r| r.min(0)).sum::<isize>(), reaches().map(|r| r.max(0)).sum::<isize>());
    let first = below.unsigned_abs();
    let source = random.bytes((first + above as usize + 1) * bytes);
    let mut input = Buffer::of(&source, offset * bytes);
    let mut output = Buffer::new(count * bytes, offset * bytes);
    let (count64, dim_count) = (count as u64, dims.len() as u64);
    // The kernel does not read behind the last dimension.
    let (mut all_dims, mut all_strides) = ([0; 8], [i64::MAX; 8]);
    for (i, (&dim, &stride)) in dims.iter().zip(strides).enumerate() {
        (all_dims[i], all_strides[i]) = (dim as u64, stride as i64);
    }
    let arguments = TransposeArguments {
        input: input.address().wrapping_byte_add(first * bytes),
        output: output.address(),
        count: count64,
        dim_count,
        dims: all_dims,
        strides: all_strides,
    };
    // SAFETY: the input has elements at the smallest and at the largest index, and the output has
    // as many elements as the product of the dimensions.
    unsafe { launch(&format!("dcl_transpose_{bytes}"), &arguments, grid) };
    let got = output.bytes();
    let mut index = vec![0; dims.len()];
    for i in 0..count {
        let from: isize = index.iter().zip(strides).map(|(&index, stride)| index as isize * stride).sum();
        let from = first.wrapping_add_signed(from);
        assert!(
            got[i * bytes..][..bytes] == source[from * bytes..][..bytes],
            "element {i} of {dims:?} at strides {strides:?}, {bytes} bytes each"
        );
        for dim in (0..dims.len()).rev() {
            index[dim] += 1;
            if index[dim] < dims[dim] {
                break;
            }
            index[dim] = 0;
        }
    }
}

#[test]
fn any_permutation_of_up_to_eight_dimensions_with_gaps() {
    let mut random = Random(8);
    for case in 0..600 {
        let rank = random.below(9);
        let mut order: Vec<usize> = (0..rank).collect();
        for i in (1..rank).rev() {
            order.swap(i, random.below(i + 1));
        }
        let largest = [0, 3000, 100, 30, 12, 7, 5, 4, 3][rank] + 1;
        let dims: Vec<usize> = (0..rank).map(|_| 1 + random.below(largest)).collect();
        // The dimensions have another order in the input, whose rows may have gaps between them.
        let (mut strides, mut next) = (vec![0; rank], 1);
        for &dim in &order {
            strides[dim] = next;
            next = next * dims[dim] as isize + if case % 2 == 0 { 0 } else { random.below(3) as isize };
        }
        if case % 5 == 0 {
            // A slice goes backwards, or repeats elements.
            strides.iter_mut().for_each(|stride| *stride *= [1, -1, 0][random.below(3)]);
        }
        let bytes = [1, 2, 4, 8, 16][random.below(5)];
        check(bytes, &dims, &strides, random.below(3), 1 + random.below(4) as u32, &mut random);
    }
}

#[test]
fn a_transpose_of_nothing_and_of_one() {
    let mut random = Random(9);
    for bytes in [1, 2, 4, 8, 16] {
        check(bytes, &[], &[], 0, 2, &mut random);
        check(bytes, &[0], &[1], 0, 2, &mut random);
        check(bytes, &[3, 0, 2], &[2, 6, 1], 0, 2, &mut random);
        check(bytes, &[1; 8], &[7; 8], 1, 1, &mut random);
        check(bytes, &[4, 3], &[0, 1], 0, 1, &mut random);
    }
}

/// Transposes matrices with a kernel, and compares. The buffers begin `offset` bytes after a
/// multiple of 16.
fn check_tiled(kernel: &str, bytes: usize, dims: [usize; 3], offset: usize, grid: u32, random: &mut Random) {
    let [batch, rows, columns] = dims;
    let source = random.bytes(batch * rows * columns * bytes);
    let mut input = Buffer::of(&source, offset);
    let mut output = Buffer::new(source.len(), offset);
    let [batch64, rows64, columns64] = [batch, rows, columns].map(|n| n as u64);
    let (from, to) = (input.address(), output.address());
    let arguments = TiledArguments { input: from, output: to, batch: batch64, rows: rows64, columns: columns64 };
    // SAFETY: the buffers have as many elements as the matrices.
    unsafe { launch(kernel, &arguments, grid) };
    let got = output.bytes();
    for matrix in 0..batch {
        for row in 0..rows {
            for column in 0..columns {
                let from = ((matrix * rows + row) * columns + column) * bytes;
                let to = ((matrix * columns + column) * rows + row) * bytes;
                assert!(
                    got[to..][..bytes] == source[from..][..bytes],
                    "row {row}, column {column} of matrix {matrix} of {batch} {rows} x {columns}, {bytes} bytes each"
                );
            }
        }
    }
}

#[test]
fn matrices_of_any_size() {
    let mut random = Random(10);
    for bytes in [1, 2, 4, 8] {
        for rows in [0, 1, 2, 31, 32, 33, 63, 64, 65, 100, 129] {
            for columns in [0, 1, 5, 32, 33, 64, 66, 127, 128] {
                let batch = random.below(4);
                for offset in [0, bytes] {
                    let (kernel, grid) = (format!("dcl_transpose_tiled_{bytes}"), 1 + random.below(9) as u32);
                    check_tiled(&kernel, bytes, [batch, rows, columns], offset, grid, &mut random);
                }
            }
        }
    }
}

/// The buffers' addresses are multiples of four, and not of more.
#[test]
fn bytes_that_are_moved_as_words() {
    let mut random = Random(11);
    for rows in [0, 4, 8, 60, 64, 68, 100, 128, 132] {
        for columns in [0, 4, 16, 60, 64, 68, 124, 128, 200] {
            let (batch, grid) = (random.below(4), 1 + random.below(9) as u32);
            for offset in [0, 4] {
                check_tiled("dcl_transpose_words", 1, [batch, rows, columns], offset, grid, &mut random);
            }
        }
    }
}
