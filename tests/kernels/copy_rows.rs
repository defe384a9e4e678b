//! Copies of rows, for concatenations.

use std::ffi::c_void;

use crate::memory::{Buffer, Random, launch};

#[repr(C)]
struct CopyRowsArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    row: u64,
    pitch: u64,
}

/// Copies rows, and checks them and what is between them.
fn check(bytes: usize, rows: usize, row: usize, pitch: usize, offset: usize, grid: u32, random: &mut Random) {
    let source = random.bytes(rows * row * bytes);
    let before = random.bytes(rows.saturating_sub(1) * pitch * bytes + row * bytes);
    let mut input = Buffer::of(&source, offset * bytes);
    let mut output = Buffer::of(&before, offset * bytes);
    let (from, to) = (input.address(), output.address());
    let [count, row64, pitch64] = [rows * row, row, pitch].map(|n| n as u64);
    let arguments = CopyRowsArguments { input: from, output: to, count, row: row64, pitch: pitch64 };
    // SAFETY: the input has all rows, and the output as many at their distance.
    unsafe { launch(&format!("dcl_copy_rows_{bytes}"), &arguments, grid) };
    let mut expected = before;
    for (number, row) in source.chunks(row * bytes).enumerate() {
        expected[number * pitch * bytes..][..row.len()].copy_from_slice(row);
    }
    assert!(output.bytes() == expected, "{rows} rows of {row} elements, {pitch} apart, {bytes} bytes each");
}

#[test]
fn rows_of_any_length_at_any_distance() {
    let mut random = Random(12);
    for case in 0..600 {
        let (rows, row) = (1 + random.below(40), 1 + random.below([3, 40, 400][case % 3]));
        let pitch = row + [0, 1, random.below(50)][random.below(3)];
        let bytes = [1, 2, 4, 8, 16][random.below(5)];
        check(bytes, rows, row, pitch, random.below(3), 1 + random.below(4) as u32, &mut random);
    }
}
