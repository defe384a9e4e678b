//! Reductions of every type.

use std::ffi::c_void;

use distcollective::DataType;

use crate::memory::{Buffer, Random, launch};
use crate::reference::{Value, decode, element, encode, value};

const OPERATIONS: [&str; 5] = ["sum", "prod", "max", "min", "avg"];

#[repr(C)]
struct ReduceArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    stride: u64,
    ranks: u64,
}

/// Every type with every reduction that it has.
fn reductions() -> impl Iterator<Item = (DataType, &'static str)> {
    let pairs = DataType::ALL.into_iter().flat_map(|data_type| OPERATIONS.map(|operation| (data_type, operation)));
    pairs.filter(|pair| *pair != (DataType::Bool, "avg"))
}

/// The reduction of the ranks' elements, as the table in docs/src/operations.md defines it.
fn reduced(data_type: DataType, operation: &str, elements: &[u64]) -> u64 {
    if let [element] = elements {
        return *element;
    }
    match data_type {
        DataType::Bool => reduced_bools(operation, elements),
        DataType::Float64 => {
            let x = reduced_float64(operation, elements.iter().copied().map(f64::from_bits));
            if x.is_nan() { 0x7ff8 << 48 } else { x.to_bits() }
        }
        _ if data_type.is_float() => {
            let float = |&bits: &u64| match value(data_type, bits) {
                Value::Float(x) => x,
                Value::Integer(_) => unreachable!("the type is a float"),
            };
            element(data_type, Value::Float(reduced_float32(operation, elements.iter().map(float))))
        }
        _ => reduced_integers(data_type, operation, elements),
    }
}

macro_rules! reduced_floats {
    ($($name:ident: $float:ident),*) => { $(
        fn $name(operation: &str, floats: impl ExactSizeIterator<Item = $float>) -> $float {
            let ranks = floats.len() as $float;
            let result = match operation {
                "sum" => floats.reduce(|a, b| a + b),
                "prod" => floats.reduce(|a, b| a * b),
                "avg" => floats.reduce(|a, b| a + b).map(|sum| sum / ranks),
                "max" => floats.filter(|x| !x.is_nan()).max_by($float::total_cmp),
                "min" => floats.filter(|x| !x.is_nan()).min_by($float::total_cmp),
                _ => unreachable!("one of the five"),
            };
            result.unwrap_or($float::NAN)
        }
    )* };
}

reduced_floats!(reduced_float32: f32, reduced_float64: f64);

/// Sums and products wrap in the width of the type, one rank after the other.
fn reduced_integers(data_type: DataType, operation: &str, elements: &[u64]) -> u64 {
    let mask = u64::MAX >> (64 - 8 * data_type.byte_len());
    let integer = |bits: u64| match data_type {
        DataType::Uint32 | DataType::Uint64 => i128::from(bits),
        _ => match value(data_type, bits) {
            Value::Integer(x) => x.into(),
            Value::Float(_) => unreachable!("the type is an integer"),
        },
    };
    let integers = elements.iter().map(|&bits| integer(bits));
    let ranks = elements.len() as i128;
    let wrapped = |x: i128| integer(x as u64 & mask);
    let result = match operation {
        "sum" => integers.reduce(|a, b| wrapped(a + b)),
        "prod" => integers.reduce(|a, b| wrapped(a.wrapping_mul(b))),
        "avg" => integers.reduce(|a, b| wrapped(a + b)).map(|sum| sum / ranks),
        "max" => integers.max(),
        "min" => integers.min(),
        _ => unreachable!("one of the five"),
    };
    result.expect("there is a rank") as u64 & mask
}

fn reduced_bools(operation: &str, elements: &[u64]) -> u64 {
    u64::from(match operation {
        "sum" | "max" => elements.iter().any(|&bits| bits != 0),
        _ => elements.iter().all(|&bits| bits != 0),
    })
}

/// Reduces elements at a stride, and compares. In place the output is the first rank's elements.
/// Offsets are in elements.
fn check(
    (data_type, operation): (DataType, &str),
    bytes: &[u8],
    (count, stride, ranks): (usize, usize, usize),
    (input_offset, output_offset): (usize, Option<usize>),
    grid: u32,
) {
    let size = data_type.byte_len();
    let mut input = Buffer::of(bytes, input_offset * size);
    let mut output = Buffer::new(count * size, output_offset.unwrap_or(0) * size);
    let target = if output_offset.is_some() { output.address() } else { input.address() };
    let arguments = ReduceArguments {
        input: input.address(),
        output: target,
        count: count as u64,
        stride: stride as u64,
        ranks: ranks as u64,
    };
    // SAFETY: the input has the elements of all ranks at this stride, and the output those of one
    // rank.
    unsafe { launch(&format!("dcl_reduce_{data_type}_{operation}"), &arguments, grid) };
    let got = if output_offset.is_some() { output.bytes() } else { input.bytes() };
    let given = decode(data_type, bytes);
    for (i, got) in decode(data_type, &got).into_iter().take(count).enumerate() {
        let elements: Vec<u64> = (0..ranks).map(|rank| given[rank * stride + i]).collect();
        let expected = reduced(data_type, operation, &elements);
        assert!(
            got == expected,
            "{operation} of {elements:#x?} ({data_type}, element {i} of {count}): {got:#x}, and should be {expected:#x}"
        );
    }
    if output_offset.is_none() {
        assert!(got[count * size..] == bytes[count * size..], "other ranks' elements were written");
    }
}

#[test]
fn every_pair_of_elements_of_one_byte() {
    let bytes: Vec<u8> = (0..1 << 16).map(|i| (i >> 8) as u8).chain((0..1 << 16).map(|i| i as u8)).collect();
    for reduction in reductions().filter(|(data_type, _)| data_type.byte_len() == 1) {
        check(reduction, &bytes, (1 << 16, 1 << 16, 2), (0, Some(0)), 5);
    }
}

#[test]
fn any_number_of_ranks_at_any_address() {
    let mut random = Random(6);
    for reduction in reductions() {
        let size = reduction.0.byte_len();
        for ranks in (1..=9).chain([17, 32]) {
            for case in 0..12 {
                let count: usize = [0, 1, 15, 16, 17, 100, 1500][random.below(7)];
                let stride = if case % 2 == 0 { count.next_multiple_of(16) } else { count + random.below(9) };
                let offset = random.below(16);
                let output_offset = [None, Some(offset), Some(random.below(16))][case % 3];
                let bytes = random.bytes(((ranks - 1) * stride + count) * size);
                let grid = 1 + random.below(4) as u32;
                check(reduction, &bytes, (count, stride, ranks), (offset, output_offset), grid);
            }
        }
    }
}

/// Of random bits, hardly any product is neither zero nor infinite, hardly any sum is a tie, and
/// few elements are equal. These values have such results: those of floats are from 1/4 to 4, or so
/// small that sums are subnormal.
#[test]
fn values_of_middling_size() {
    let mut random = Random(7);
    for reduction in reductions() {
        let one = element(reduction.0, Value::Float(1.0));
        let sign = 1 << (8 * reduction.0.byte_len() - 1);
        for ranks in 2..=8 {
            let (count, stride) = (2000, 2000);
            let bits = |random: &mut Random| {
                let bits = random.next();
                let magnitude = if bits & 0x700 == 0 { bits & 15 } else { one.wrapping_sub(8).wrapping_add(bits & 15) };
                (magnitude & (sign - 1)) | if bits & 0x800 == 0 { 0 } else { sign }
            };
            let elements: Vec<u64> = (0..ranks * stride).map(|_| bits(&mut random)).collect();
            check(reduction, &encode(reduction.0, &elements), (count, stride, ranks), (0, Some(0)), 3);
        }
    }
}

/// Zeros of both signs, infinities, NaN of both signs, and the smallest number.
#[test]
fn special_floats_in_every_order() {
    for reduction in reductions().filter(|(data_type, _)| data_type.is_float()) {
        let of = |x: f32| element(reduction.0, Value::Float(x));
        let sign = 1 << (8 * reduction.0.byte_len() - 1);
        let nan = of(f32::NAN);
        let special = [of(0.0), sign, of(1.0), of(f32::INFINITY), of(f32::INFINITY) | sign, nan, nan | sign, 1];
        let n = special.len();
        let count = n * n * n;
        let rank = |step: usize| (0..count).map(move |i| special[i / step % n]);
        let elements: Vec<u64> = rank(1).chain(rank(n)).chain(rank(n * n)).collect();
        check(reduction, &encode(reduction.0, &elements), (count, count, 3), (0, Some(0)), 2);
    }
}
