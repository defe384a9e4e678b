//! Element-wise operations on two inputs, of every type.

use std::ffi::c_void;

use distcollective::DataType;

use crate::memory::{Buffer, Random, launch};
use crate::reference::{Value, decode, element, encode, value};

const OPERATIONS: [&str; 6] = ["sum", "prod", "max", "min", "sub", "div"];

#[repr(C)]
struct ElementWiseArguments {
    inputs: [*const c_void; 2],
    output: *mut c_void,
    count: u64,
    packets: u64,
    dim_count: u64,
    dims: [u64; 8],
    strides: [[i64; 8]; 2],
}

/// Every type with every operation that it has.
fn operations() -> impl Iterator<Item = (DataType, &'static str)> {
    let pairs =
        DataType::LAYER_TYPES.into_iter().flat_map(|data_type| OPERATIONS.map(|operation| (data_type, operation)));
    pairs.filter(|(data_type, operation)| *data_type != DataType::Bool || !["sub", "div"].contains(operation))
}

/// The combination of two elements, as the documentation of the operations defines it.
fn combined(data_type: DataType, operation: &str, a: u64, b: u64) -> u64 {
    let result = match (value(data_type, a), value(data_type, b)) {
        (Value::Float(a), Value::Float(b)) => Value::Float(combined_floats(operation, a, b)),
        (Value::Integer(a), Value::Integer(b)) => Value::Integer(match operation {
            // The element has the lowest bits, and is whether the result is not 0 for bool.
            "sum" if data_type == DataType::Bool => a | b,
            "sum" => a.wrapping_add(b),
            "prod" => a.wrapping_mul(b),
            "max" => a.max(b),
            "min" => a.min(b),
            "sub" => a.wrapping_sub(b),
            _ => a.checked_div(b).unwrap_or(if b == 0 { 0 } else { i64::MIN }),
        }),
        _ => unreachable!("both are of one type"),
    };
    element(data_type, result)
}

fn combined_floats(operation: &str, a: f32, b: f32) -> f32 {
    match operation {
        "sum" => a + b,
        "prod" => a * b,
        "sub" => a - b,
        "div" => a / b,
        _ if a.is_nan() => b,
        _ if b.is_nan() => a,
        "max" => [a, b].into_iter().max_by(f32::total_cmp).expect("two"),
        _ => [a, b].into_iter().min_by(f32::total_cmp).expect("two"),
    }
}

/// The dimensions of the output, and the strides of both inputs: those of tensors without gaps, and
/// 0 where a tensor is broadcast.
struct Shapes {
    dims: Vec<usize>,
    strides: [Vec<usize>; 2],
}

impl Shapes {
    fn new(dims: &[usize], is_broadcast: [&[bool]; 2]) -> Self {
        let strides = is_broadcast.map(|is_broadcast| {
            let (mut strides, mut next) = (vec![0; dims.len()], 1);
            for dim in (0..dims.len()).rev().filter(|&dim| !is_broadcast[dim]) {
                strides[dim] = next;
                next *= dims[dim];
            }
            strides
        });
        Shapes { dims: dims.to_vec(), strides }
    }

    /// The positions in both inputs of an element of the output.
    fn sources(&self, mut element: usize) -> [usize; 2] {
        let mut sources = [0; 2];
        for (dim, &len) in self.dims.iter().enumerate().rev() {
            for (source, strides) in sources.iter_mut().zip(&self.strides) {
                *source += element % len * strides[dim];
            }
            element /= len;
        }
        sources
    }

    fn element_counts(&self) -> [usize; 2] {
        let last = |strides: &Vec<usize>| -> usize {
            self.dims.iter().zip(strides).map(|(&dim, stride)| (dim - 1) * stride).sum()
        };
        self.strides.each_ref().map(|strides| last(strides) + 1)
    }
}

/// Computes with packets if they are asked for and possible, and compares. Offsets are in elements.
fn check(
    (data_type, operation): (DataType, &str),
    shapes: &Shapes,
    inputs: [&[u64]; 2],
    (offsets, output_offset): ([usize; 2], usize),
    grid: u32,
) {
    let (size, count) = (data_type.byte_len(), shapes.dims.iter().product::<usize>());
    let packet = 16 / size;
    let mut buffers = [0, 1].map(|side| Buffer::of(&encode(data_type, inputs[side]), offsets[side] * size));
    let mut output = Buffer::new(count * size, output_offset * size);
    let (mut dims, mut strides) = ([1; 8], [[0; 8]; 2]);
    for (dim, &len) in shapes.dims.iter().enumerate() {
        dims[dim] = len as u64;
        (0..2).for_each(|side| strides[side][dim] = shapes.strides[side][dim] as i64);
    }
    let steps = |side: usize| shapes.strides[side].last() == Some(&1);
    let is_aligned = (0..2).all(|side| !steps(side) || offsets[side].is_multiple_of(packet));
    let is_whole = shapes.dims.len() <= 1 || shapes.dims.last().is_some_and(|len| len.is_multiple_of(packet));
    let has_packets = is_aligned && output_offset.is_multiple_of(packet) && is_whole;
    let arguments = ElementWiseArguments {
        inputs: buffers.each_mut().map(|buffer| buffer.address().cast_const()),
        output: output.address(),
        count: count as u64,
        packets: if has_packets { (count / packet) as u64 } else { 0 },
        dim_count: shapes.dims.len() as u64,
        dims,
        strides,
    };
    // SAFETY: the inputs have elements up to the largest index, and the output has as many elements
    // as the product of the dimensions.
    unsafe { launch(&format!("dcl_elementwise_{data_type}_{operation}"), &arguments, grid) };
    for (i, got) in decode(data_type, &output.bytes()).into_iter().enumerate() {
        let [a, b] = shapes.sources(i);
        let [a, b] = [inputs[0][a], inputs[1][b]];
        let expected = combined(data_type, operation, a, b);
        assert!(
            got == expected,
            "{operation} of {a:#x} and {b:#x} ({data_type}, element {i} of {:?}): {got:#x}, and should be {expected:#x}",
            shapes.dims
        );
    }
}

#[test]
fn every_pair_of_elements_of_one_byte() {
    let all: Vec<u64> = (0..256).collect();
    let shapes = Shapes::new(&[256, 256], [&[false, true], &[true, false]]);
    for operation in operations().filter(|(data_type, _)| data_type.byte_len() == 1) {
        check(operation, &shapes, [&all, &all], ([0, 0], 0), 5);
    }
}

fn random_elements(data_type: DataType, count: usize, random: &mut Random) -> Vec<u64> {
    let one = element(data_type, Value::Float(1.0));
    let sign = 1 << (8 * data_type.byte_len() - 1);
    let mask = if data_type.byte_len() == 8 { u64::MAX } else { (1 << (8 * data_type.byte_len())) - 1 };
    let mut next = || {
        let bits = random.next();
        let other_sign = (bits >> 8 & 1) * sign;
        match bits >> 60 {
            // Zeros, infinities, NaN, the largest and the smallest numbers, of both signs.
            0..3 => {
                let special = [0, 1, element(data_type, Value::Float(f32::INFINITY)), mask >> 1, mask, sign];
                (special[bits as usize % 6] ^ other_sign) & mask
            }
            // Numbers from 1/4 to 4, or small integers.
            3..10 if data_type.is_float() => one.wrapping_sub(8).wrapping_add(bits & 15) | other_sign,
            3..10 => (bits as i64 >> 59) as u64 & mask,
            _ => bits & mask,
        }
    };
    (0..count).map(|_| next()).collect()
}

#[test]
fn any_broadcast_at_any_address() {
    let mut random = Random(13);
    for operation in operations() {
        let packet = 16 / operation.0.byte_len();
        for case in 0..60 {
            let rank = random.below(5);
            let mut dims: Vec<usize> = (0..rank).map(|_| 2 + random.below([0, 600, 24, 9, 6][rank])).collect();
            if let Some(last) = dims.last_mut().filter(|_| case % 2 == 0) {
                *last = last.next_multiple_of(packet);
            }
            // A dimension of the output is broadcast in one input at most.
            let kinds: Vec<usize> = (0..rank).map(|_| random.below(4)).collect();
            let is_broadcast = [0, 1].map(|side| kinds.iter().map(|&kind| kind == side).collect::<Vec<bool>>());
            let shapes = Shapes::new(&dims, is_broadcast.each_ref().map(Vec::as_slice));
            let inputs = shapes.element_counts().map(|count| random_elements(operation.0, count, &mut random));
            let offset = |random: &mut Random| if case % 3 == 0 { random.below(packet) } else { 0 };
            let offsets = ([offset(&mut random), offset(&mut random)], offset(&mut random));
            let inputs = inputs.each_ref().map(Vec::as_slice);
            check(operation, &shapes, inputs, offsets, 1 + random.below(4) as u32);
        }
    }
}
