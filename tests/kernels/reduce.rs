//! Reductions of float8.

use std::ffi::c_void;

use distcollective::DataType;

use crate::memory::{Buffer, Random, launch};
use crate::reference::{Value, element_of_float, value};

pub const OPERATIONS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

const TYPES: [DataType; 2] = [DataType::Float8E4M3, DataType::Float8E5M2];

#[repr(C)]
struct ReduceArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    stride: u64,
    ranks: u64,
}

/// The reduction of the ranks' elements, as the README's table defines it.
fn reduced(data_type: DataType, operation: &str, elements: &[u8]) -> u8 {
    if let [element] = elements {
        return *element;
    }
    let floats = elements.iter().map(|&bits| match value(data_type, u64::from(bits)) {
        Value::Float(x) => x,
        Value::Integer(_) => unreachable!("the type is a float"),
    });
    let numbers = floats.clone().filter(|x| !x.is_nan());
    let result = match operation {
        "sum" => floats.reduce(|a, b| a + b),
        "prod" => floats.reduce(|a, b| a * b),
        "avg" => floats.reduce(|a, b| a + b).map(|sum| sum / elements.len() as f32),
        "max" => numbers.max_by(f32::total_cmp),
        "min" => numbers.min_by(f32::total_cmp),
        _ => unreachable!("one of the five"),
    };
    element_of_float(data_type, result.unwrap_or(f32::NAN)) as u8
}

/// Reduces elements at a stride, and compares. In place the output is the first rank's elements.
fn check(
    data_type: DataType,
    operation: &str,
    bytes: &[u8],
    (count, stride, ranks): (usize, usize, usize),
    (input_offset, output_offset): (usize, Option<usize>),
    grid: u32,
) {
    let mut input = Buffer::of(bytes, input_offset);
    let mut output = Buffer::new(count, output_offset.unwrap_or(0));
    let target = if output_offset.is_some() { output.address() } else { input.address() };
    let (count64, stride64) = (count as u64, stride as u64);
    let arguments = ReduceArguments {
        input: input.address(),
        output: target,
        count: count64,
        stride: stride64,
        ranks: ranks as u64,
    };
    // SAFETY: the input has the elements of all ranks at this stride, and the output those of one
    // rank.
    unsafe { launch(&format!("dcl_reduce_{data_type}_{operation}"), &arguments, grid) };
    let got = if output_offset.is_some() { output.bytes() } else { input.bytes() };
    for (i, &got) in got.iter().take(count).enumerate() {
        let elements: Vec<u8> = (0..ranks).map(|rank| bytes[rank * stride + i]).collect();
        let expected = reduced(data_type, operation, &elements);
        assert!(
            got == expected,
            "{operation} of {elements:#x?} ({data_type}, element {i} of {count}): {got:#x}, and should be {expected:#x}"
        );
    }
    if output_offset.is_none() {
        assert!(got[count..] == bytes[count..], "other ranks' elements were written");
    }
}

#[test]
fn every_pair_of_elements() {
    let bytes: Vec<u8> = (0..1 << 16).map(|i| (i >> 8) as u8).chain((0..1 << 16).map(|i| i as u8)).collect();
    for data_type in TYPES {
        for operation in OPERATIONS {
            check(data_type, operation, &bytes, (1 << 16, 1 << 16, 2), (0, Some(0)), 5);
        }
    }
}

#[test]
fn any_number_of_ranks_at_any_address() {
    let mut random = Random(6);
    for data_type in TYPES {
        for operation in OPERATIONS {
            for ranks in (1..=9).chain([17, 32]) {
                for case in 0..12 {
                    let count: usize = [0, 1, 15, 16, 17, 100, 3000][random.below(7)];
                    let stride = if case % 2 == 0 { count.next_multiple_of(16) } else { count + random.below(9) };
                    let offset = random.below(16);
                    let output_offset = [None, Some(offset), Some(random.below(16))][case % 3];
                    let bytes = random.bytes((ranks - 1) * stride + count);
                    let grid = 1 + random.below(4) as u32;
                    check(data_type, operation, &bytes, (count, stride, ranks), (offset, output_offset), grid);
                }
            }
        }
    }
}

/// Of random bits, hardly any product is neither zero nor infinite, and hardly any sum is a tie.
/// These values have such results.
#[test]
fn values_of_middling_size() {
    let mut random = Random(7);
    for data_type in TYPES {
        for operation in OPERATIONS {
            for ranks in 2..=8 {
                let (count, stride) = (20_000, 20_000);
                let one = if data_type == DataType::Float8E4M3 { 0x38 } else { 0x3c };
                let element = |bits: u64| (one - 8 + (bits & 15) as u8) | (bits >> 8 & 0x80) as u8;
                let bytes: Vec<u8> = (0..ranks * stride).map(|_| element(random.next())).collect();
                check(data_type, operation, &bytes, (count, stride, ranks), (0, Some(0)), 3);
            }
        }
    }
}
