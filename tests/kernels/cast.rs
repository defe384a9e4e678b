//! Casts, division and the normalization of bool.

use std::ffi::c_void;

use distcollective::DataType;

use crate::memory::{Buffer, Random, launch};
use crate::reference::{Value, decode, element, element_of_float, encode, value};

#[repr(C)]
struct CastArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
}

#[repr(C)]
struct DivideArguments {
    input: *const c_void,
    output: *mut c_void,
    count: u64,
    divisor: f32,
}

/// The offsets of the buffers from a multiple of 16 bytes, in elements, and the number of blocks.
#[derive(Clone, Copy, Debug)]
struct Setting {
    input_offset: usize,
    output_offset: usize,
    grid: u32,
}

const PLAIN: Setting = Setting { input_offset: 0, output_offset: 0, grid: 3 };

/// The result of a kernel that takes the structure of casts.
fn run(name: &str, from: DataType, to: DataType, elements: &[u64], setting: Setting) -> Vec<u64> {
    let mut input = Buffer::of(&encode(from, elements), setting.input_offset * from.byte_len());
    let mut output = Buffer::new(elements.len() * to.byte_len(), setting.output_offset * to.byte_len());
    let count = elements.len() as u64;
    let arguments = CastArguments { input: input.address(), output: output.address(), count };
    // SAFETY: the buffers have as many elements of their types.
    unsafe { launch(name, &arguments, setting.grid) };
    decode(to, &output.bytes())
}

fn run_in_place(name: &str, data_type: DataType, elements: &[u64], offset: usize) -> Vec<u64> {
    let mut both = Buffer::of(&encode(data_type, elements), offset * data_type.byte_len());
    let arguments = CastArguments { input: both.address(), output: both.address(), count: elements.len() as u64 };
    // SAFETY: the buffer has as many elements, and the sizes of both types are the same.
    unsafe { launch(name, &arguments, 2) };
    decode(data_type, &both.bytes())
}

fn assert_same(name: &str, elements: &[u64], got: &[u64], expected: impl Fn(u64) -> u64) {
    assert_eq!(elements.len(), got.len());
    for (i, (&bits, &got)) in elements.iter().zip(got).enumerate() {
        let expected = expected(bits);
        assert!(got == expected, "{name} of {bits:#x}, element {i}: {got:#x}, and should be {expected:#x}");
    }
}

/// Casts elements of a type to every other one, and compares.
fn check_casts(from: DataType, elements: &[u64]) {
    for to in DataType::LAYER_TYPES.into_iter().filter(|&to| to != from) {
        let name = format!("dcl_cast_{from}_{to}");
        let got = run(&name, from, to, elements, PLAIN);
        assert_same(&name, elements, &got, |bits| element(to, value(from, bits)));
    }
}

#[test]
fn every_value_of_one_or_two_bytes_to_every_type() {
    for from in DataType::LAYER_TYPES.into_iter().filter(|from| from.byte_len() <= 2) {
        let all: Vec<u64> = (0..1 << (8 * from.byte_len())).collect();
        check_casts(from, &all);
    }
}

/// Every value of the narrower floating-point types, the middle between it and the next value, and
/// the neighbours of the middle.
fn ties() -> Vec<f32> {
    let mut all = Vec::new();
    for (data_type, largest) in [
        (DataType::Float16, 0x7bffu64),
        (DataType::Bfloat16, 0x7f7f),
        (DataType::Float8E4M3, 0x7e),
        (DataType::Float8E5M2, 0x7b),
    ] {
        let float = |bits| match value(data_type, bits) {
            Value::Float(x) => f64::from(x),
            Value::Integer(_) => unreachable!("the type is a float"),
        };
        for bits in 0..=largest {
            let x = float(bits);
            // Above the largest value the next would be as far as the one below it.
            let step = if bits < largest { float(bits + 1) - x } else { x - float(bits - 1) };
            let middle = (x + step / 2.0) as f32;
            for x in [x as f32, middle, middle.next_up(), middle.next_down()] {
                all.extend([x, -x]);
            }
        }
    }
    all
}

/// The limits of the integer types as floats, and their neighbours.
fn edges_of_integers() -> Vec<f32> {
    let mut all = vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN];
    all.extend([0x7fc0_0000, 0xffc0_0000, 0x7f80_0001, 0xff80_1234, 0x7fff_ffff, 0xffff_ffff].map(f32::from_bits));
    for edge in [0.5, 1.0, 127.0, 128.0, 255.0, 256.0, 2f32.powi(31), 2f32.powi(32), 2f32.powi(63), 2f32.powi(64)] {
        for x in [edge, edge.next_up(), edge.next_down(), edge + 0.5, edge + 0.99, edge - 0.5, edge + 1.0] {
            all.extend([x, -x]);
        }
    }
    all
}

fn floats() -> Vec<u64> {
    let mut random = Random(1);
    let patterns = (0..1_000_000).map(|_| random.next() & 0xffff_ffff);
    ties().into_iter().chain(edges_of_integers()).map(|x| u64::from(x.to_bits())).chain(patterns).collect()
}

#[test]
fn float32_to_every_type() {
    check_casts(DataType::Float32, &floats());
}

/// Powers of two and sums of two of them, which are rounded or wrap, with neighbours and both
/// signs.
fn integers() -> Vec<u64> {
    let mut all = vec![0, i64::MAX as u64, i64::MIN as u64];
    for high in 0..63 {
        for low in 0..=high {
            for beside in [-2, -1, 0, 1, 2] {
                let x = ((1i64 << high) + ((1i64 << low) & !(1 << high))).wrapping_add(beside);
                let odd = x.wrapping_add((1i64 << high) >> 7);
                all.extend([x, x.wrapping_neg(), odd, odd.wrapping_neg()].map(|x| x as u64));
            }
        }
    }
    let mut random = Random(2);
    all.extend((0..100_000).map(|_| random.next() >> random.below(64)));
    all
}

#[test]
fn int64_and_int32_to_every_type() {
    check_casts(DataType::Int64, &integers());
    let narrow: Vec<u64> = integers().into_iter().map(|bits| bits & 0xffff_ffff).collect();
    check_casts(DataType::Int32, &narrow);
}

#[test]
fn in_place_where_the_sizes_are_equal() {
    let mut random = Random(3);
    for from in DataType::LAYER_TYPES {
        for to in DataType::LAYER_TYPES.into_iter().filter(|to| *to != from && to.byte_len() == from.byte_len()) {
            let elements: Vec<u64> = decode(from, &random.bytes(9001 * from.byte_len()));
            let name = format!("dcl_cast_{from}_{to}");
            for offset in [0, 1, 3] {
                let got = run_in_place(&name, to, &elements, offset);
                assert_same(&name, &elements, &got, |bits| element(to, value(from, bits)));
            }
        }
    }
}

#[test]
fn any_number_of_elements_at_any_address() {
    let mut random = Random(4);
    let pairs = [
        (DataType::Float8E4M3, DataType::Float8E5M2),
        (DataType::Float8E4M3, DataType::Float16),
        (DataType::Float8E5M2, DataType::Float32),
        (DataType::Int8, DataType::Int64),
        (DataType::Bfloat16, DataType::Bool),
        (DataType::Bfloat16, DataType::Float16),
        (DataType::Float16, DataType::Float32),
        (DataType::Float32, DataType::Float8E4M3),
        (DataType::Float32, DataType::Int32),
        (DataType::Int64, DataType::Uint8),
        (DataType::Int64, DataType::Float32),
    ];
    for (from, to) in pairs {
        let name = format!("dcl_cast_{from}_{to}");
        for _ in 0..400 {
            let count = [random.below(40), random.below(5000), random.below(40_000)][random.below(3)];
            let setting = Setting {
                input_offset: random.below(16),
                output_offset: random.below(16),
                grid: 1 + random.below(5) as u32,
            };
            // Every other case has equal offsets, so that packets follow a few loose elements.
            let setting =
                if random.below(2) == 0 { Setting { input_offset: setting.output_offset, ..setting } } else { setting };
            let elements = decode(from, &random.bytes(count * from.byte_len()));
            let got = run(&name, from, to, &elements, setting);
            assert_same(&format!("{name} ({setting:?})"), &elements, &got, |bits| element(to, value(from, bits)));
        }
    }
}

#[test]
fn bool_becomes_0_or_1() {
    let mut random = Random(5);
    let all: Vec<u64> = (0..256).chain((0..50_000).map(|_| random.next() & 3 & random.next())).collect();
    let truth = |bits: u64| u64::from(bits != 0);
    assert_same("normalize", &all, &run("dcl_normalize_bool", DataType::Bool, DataType::Bool, &all, PLAIN), truth);
    for offset in [0, 5] {
        assert_same("in place", &all, &run_in_place("dcl_normalize_bool", DataType::Bool, &all, offset), truth);
    }
}

#[test]
fn a_quotient_is_rounded_once() {
    let elements: Vec<u64> = floats().into_iter().step_by(3).collect();
    for to in DataType::LAYER_TYPES.into_iter().filter(|to| to.is_float()) {
        for divisor in [1.0f32, 2.0, 3.0, 7.0, 8.0, 1000.0] {
            let mut input = Buffer::of(&encode(DataType::Float32, &elements), 4);
            let mut output = Buffer::new(elements.len() * to.byte_len(), to.byte_len());
            let (input, target) = (input.address(), output.address());
            let arguments = DivideArguments { input, output: target, count: elements.len() as u64, divisor };
            // SAFETY: the buffers have as many elements of their types.
            unsafe { launch(&format!("dcl_divide_{to}"), &arguments, 4) };
            let got = decode(to, &output.bytes());
            let expected = |bits: u64| element_of_float(to, f32::from_bits(bits as u32) / divisor);
            assert_same(&format!("{to} / {divisor}"), &elements, &got, expected);
        }
    }
    let mut both = Buffer::of(&encode(DataType::Float32, &elements), 8);
    let count = elements.len() as u64;
    let arguments = DivideArguments { input: both.address(), output: both.address(), count, divisor: 6.0 };
    // SAFETY: the buffer has as many elements.
    unsafe { launch("dcl_divide_float32", &arguments, 1) };
    let expected = |bits: u64| element_of_float(DataType::Float32, f32::from_bits(bits as u32) / 6.0);
    assert_same("in place", &elements, &decode(DataType::Float32, &both.bytes()), expected);
}
