//! The reference interpreter: what operations mean, in plain single-threaded code on arrays of
//! bits, independent of the library's.

use std::cmp::Ordering;
use std::sync::LazyLock;

use distcollective::network::ElementWiseOperation;
use distcollective::tensor::{bf16, f16};
use distcollective::{CollectiveOperation, DataType, ReduceOperation, WireType};
use float8::{F8E4M3, F8E5M2};
use ndarray::{ArrayD, Axis, IxDyn, Slice, concatenate};

/// A tensor of one rank: each element is its bits.
pub type Bits = ArrayD<u64>;

/// A rank's output in the group of `inputs`. `None` if the rank does not write it. `root` is a
/// group rank.
pub fn collective(
    operation: CollectiveOperation,
    reduce_op: Option<ReduceOperation>,
    data_type: DataType,
    root: usize,
    rank: usize,
    inputs: &[Bits],
) -> Option<Bits> {
    let n = inputs.len();
    let reduced = || reduce(reduce_op.expect("a reduction"), data_type, inputs);
    let gathered = || {
        let views: Vec<_> = inputs.iter().map(|x| x.view()).collect();
        concatenate(Axis(0), &views).expect("equal shapes")
    };
    let block = |x: &Bits, b: usize| {
        let rows = x.shape()[0] / n;
        x.slice_axis(Axis(0), Slice::from(b * rows..(b + 1) * rows)).to_owned()
    };
    match operation {
        CollectiveOperation::AllReduce => Some(reduced()),
        CollectiveOperation::AllGather => Some(gathered()),
        CollectiveOperation::Broadcast => Some(inputs[root].clone()),
        CollectiveOperation::Reduce => (rank == root).then(reduced),
        CollectiveOperation::ReduceScatter => Some(block(&reduced(), rank)),
        CollectiveOperation::AllToAll => {
            let blocks: Vec<Bits> = inputs.iter().map(|x| block(x, rank)).collect();
            let views: Vec<_> = blocks.iter().map(|x| x.view()).collect();
            Some(concatenate(Axis(0), &views).expect("equal shapes"))
        }
        CollectiveOperation::Gather => (rank == root).then(gathered),
        CollectiveOperation::Scatter => Some(block(&inputs[root], rank)),
        other => panic!("{other} is new"),
    }
}

/// The contributions, each rounded once to the transport type, as float32. Of one rank nothing is
/// rounded.
pub fn sent_as(wire_type: Option<WireType>, inputs: Vec<Bits>) -> Vec<Bits> {
    let Some(wire) = wire_type.map(WireType::data_type).filter(|_| inputs.len() > 1) else { return inputs };
    let sent = |x: u64| cast_element(wire, DataType::Float32, cast_element(DataType::Float32, wire, x));
    inputs.into_iter().map(|input| input.mapv_into(sent)).collect()
}

/// The reduction, element by element, in the order of the inputs. Of one input it is that input.
pub fn reduce(reduce_op: ReduceOperation, data_type: DataType, inputs: &[Bits]) -> Bits {
    if let [one] = inputs {
        return one.clone();
    }
    let flat: Vec<&[u64]> = inputs.iter().map(|x| x.as_slice().expect("row-major")).collect();
    let element = |i: usize| {
        let elements: Vec<u64> = flat.iter().map(|x| x[i]).collect();
        reduce_element(reduce_op, data_type, &elements)
    };
    let reduced = (0..inputs[0].len()).map(element).collect();
    ArrayD::from_shape_vec(IxDyn(inputs[0].shape()), reduced).expect("as many elements")
}

fn reduce_element(reduce_op: ReduceOperation, data_type: DataType, elements: &[u64]) -> u64 {
    if data_type == DataType::Bool {
        let mut truths = elements.iter().map(|&x| x != 0);
        return u64::from(match reduce_op {
            ReduceOperation::Sum | ReduceOperation::Max | ReduceOperation::Bor => truths.any(|x| x),
            ReduceOperation::Prod | ReduceOperation::Min | ReduceOperation::Band => truths.all(|x| x),
            ReduceOperation::Bxor => truths.filter(|x| *x).count() % 2 == 1,
            other => panic!("bool has no {other}"),
        });
    }
    if data_type.is_float() {
        if data_type == DataType::Float64 {
            let result = reduce_f64(reduce_op, elements.iter().copied().map(f64::from_bits));
            return if result.is_nan() { 0x7ff8 << 48 } else { result.to_bits() };
        }
        return from_f32(data_type, reduce_f32(reduce_op, elements.iter().map(|&x| to_f32(data_type, x))));
    }
    let integers = elements.iter().map(|&x| to_integer(data_type, x));
    // Wrapping in 128 bits and truncating is wrapping in the element's width. The average divides
    // the truncated sum.
    let cut = |x: i128| to_integer(data_type, from_integer(data_type, x));
    let result = match reduce_op {
        ReduceOperation::Sum => integers.reduce(i128::wrapping_add),
        ReduceOperation::Prod => integers.reduce(i128::wrapping_mul),
        ReduceOperation::Max => integers.max(),
        ReduceOperation::Min => integers.min(),
        ReduceOperation::Band => integers.reduce(|a, b| a & b),
        ReduceOperation::Bor => integers.reduce(|a, b| a | b),
        ReduceOperation::Bxor => integers.reduce(|a, b| a ^ b),
        ReduceOperation::Avg => integers.reduce(i128::wrapping_add).map(|sum| cut(sum) / elements.len() as i128),
        other => panic!("{other} is new"),
    };
    from_integer(data_type, result.expect("at least two inputs"))
}

macro_rules! reduce_floats {
    ($($name:ident: $float:ident),*) => { $(
        fn $name(reduce_op: ReduceOperation, floats: impl ExactSizeIterator<Item = $float>) -> $float {
            // -0 is below +0, and any number is preferred to a NaN.
            let order = |a: $float, b: $float, nan: Ordering| match (a.is_nan(), b.is_nan()) {
                (true, true) => Ordering::Equal,
                (true, false) => nan,
                (false, true) => nan.reverse(),
                (false, false) => {
                    a.partial_cmp(&b).expect("numbers").then(b.is_sign_negative().cmp(&a.is_sign_negative()))
                }
            };
            let ranks = floats.len() as $float;
            let result = match reduce_op {
                ReduceOperation::Sum => floats.reduce(|a, b| a + b),
                ReduceOperation::Prod => floats.reduce(|a, b| a * b),
                ReduceOperation::Max => floats.max_by(|a, b| order(*a, *b, Ordering::Less)),
                ReduceOperation::Min => floats.min_by(|a, b| order(*a, *b, Ordering::Greater)),
                ReduceOperation::Avg => floats.reduce(|a, b| a + b).map(|sum| sum / ranks),
                other => panic!("{other} is new"),
            };
            result.expect("at least two inputs")
        }
    )* };
}

reduce_floats!(reduce_f32: f32, reduce_f64: f64);

/// The combination of two tensors, of which each repeats its dimensions of 1. The arithmetic is
/// that of a reduction over two ranks.
pub fn element_wise(operation: ElementWiseOperation, data_type: DataType, a: &Bits, b: &Bits) -> Bits {
    let dims: Vec<usize> = a.shape().iter().zip(b.shape()).map(|(&a, &b)| if a == 1 { b } else { a }).collect();
    ArrayD::from_shape_fn(IxDyn(&dims), |index| {
        let at = |x: &Bits| {
            let place = |dim: usize| if x.shape()[dim] == 1 { 0 } else { index[dim] };
            x[IxDyn(&(0..dims.len()).map(place).collect::<Vec<_>>())]
        };
        combine(operation, data_type, at(a), at(b))
    })
}

fn combine(operation: ElementWiseOperation, data_type: DataType, a: u64, b: u64) -> u64 {
    let reduced = |reduce_op| reduce_element(reduce_op, data_type, &[a, b]);
    let computed = |floats: fn(f32, f32) -> f32, integers: fn(i128, i128) -> i128| match data_type.is_float() {
        true => from_f32(data_type, floats(to_f32(data_type, a), to_f32(data_type, b))),
        false => from_integer(data_type, integers(to_integer(data_type, a), to_integer(data_type, b))),
    };
    match operation {
        ElementWiseOperation::Sum => reduced(ReduceOperation::Sum),
        ElementWiseOperation::Prod => reduced(ReduceOperation::Prod),
        ElementWiseOperation::Max => reduced(ReduceOperation::Max),
        ElementWiseOperation::Min => reduced(ReduceOperation::Min),
        ElementWiseOperation::Sub => computed(|a, b| a - b, i128::wrapping_sub),
        ElementWiseOperation::Div => computed(|a, b| a / b, |a, b| if b == 0 { 0 } else { a.wrapping_div(b) }),
        other => panic!("{other} is new"),
    }
}

/// A cast of one element.
pub fn cast_element(from: DataType, to: DataType, x: u64) -> u64 {
    if from == to && to != DataType::Bool {
        return x;
    }
    let float = from.is_float().then(|| to_f32(from, x));
    match (float, to) {
        (Some(x), DataType::Bool) => u64::from(x != 0.0),
        (Some(x), to) if to.is_float() => from_f32(to, x),
        (Some(x), DataType::Int64) => x as i64 as u64,
        (Some(x), DataType::Int32) => u64::from(x as i32 as u32),
        (Some(x), DataType::Int8) => u64::from(x as i8 as u8),
        (Some(x), _) => u64::from(x as u8),
        (None, DataType::Bool) => u64::from(to_integer(from, x) != 0),
        (None, DataType::Float32) => u64::from((to_integer(from, x) as f32).to_bits()),
        (None, to) if to.is_float() => nearest(to, to_integer(from, x)),
        (None, to) => from_integer(to, to_integer(from, x)),
    }
}

/// An integer as a narrow float: its leading bits, as many as the type keeps, rounded to nearest
/// even.
fn nearest(to: DataType, x: i128) -> u64 {
    let kept = match to {
        DataType::Float16 => 11,
        DataType::Bfloat16 => 8,
        DataType::Float8E4M3 => 4,
        DataType::Float8E5M2 => 3,
        _ => panic!("{to} is no narrow float"),
    };
    let magnitude = x.unsigned_abs();
    let dropped = (128 - magnitude.leading_zeros()).saturating_sub(kept);
    let rest = magnitude & ((1 << dropped) - 1);
    let half = (1 << dropped) >> 1;
    let leading = magnitude >> dropped;
    let up = rest > half || rest == half && dropped > 0 && leading % 2 == 1;
    let rounded = ((leading + u128::from(up)) << dropped) as f32;
    from_f32(to, if x < 0 { -rounded } else { rounded })
}

fn largest_finite(to: DataType) -> u64 {
    match to {
        DataType::Float16 => 0x7bff,
        DataType::Bfloat16 => 0x7f7f,
        DataType::Float8E4M3 => 0x7e,
        DataType::Float8E5M2 => 0x7b,
        _ => panic!("{to} is no narrow float"),
    }
}

pub fn to_f32(data_type: DataType, bits: u64) -> f32 {
    match data_type {
        DataType::Float32 => f32::from_bits(bits as u32),
        DataType::Float16 => f16::from_bits(bits as u16).to_f32_const(),
        DataType::Bfloat16 => bf16::from_bits(bits as u16).to_f32_const(),
        DataType::Float8E4M3 => F8E4M3::from_bits(bits as u8).to_f32(),
        DataType::Float8E5M2 => F8E5M2::from_bits(bits as u8).to_f32(),
        _ => panic!("{data_type} is no float"),
    }
}

/// The value of a floating-point element.
pub fn to_f64(data_type: DataType, bits: u64) -> f64 {
    if data_type == DataType::Float64 { f64::from_bits(bits) } else { to_f32(data_type, bits).into() }
}

/// Rounds once to nearest even. float8 saturates. A NaN becomes the positive quiet NaN.
pub fn from_f32(data_type: DataType, x: f32) -> u64 {
    match data_type {
        DataType::Float32 if x.is_nan() => 0x7fc0_0000,
        DataType::Float16 if x.is_nan() => 0x7e00,
        DataType::Bfloat16 if x.is_nan() => 0x7fc0,
        DataType::Float8E4M3 if x.is_nan() => 0x7f,
        DataType::Float8E5M2 if x.is_nan() => 0x7e,
        DataType::Float32 => x.to_bits().into(),
        DataType::Float16 => f16::from_f32_const(x).to_bits().into(),
        DataType::Bfloat16 => bf16::from_f32_const(x).to_bits().into(),
        DataType::Float8E4M3 | DataType::Float8E5M2 => float8_by_search(data_type, x),
        _ => panic!("{data_type} is no float"),
    }
}

/// The float8 value nearest to `x`, by search among all values.
fn float8_by_search(data_type: DataType, x: f32) -> u64 {
    static TABLES: LazyLock<[Vec<f32>; 2]> = LazyLock::new(|| {
        let table = |t: DataType| (0..=largest_finite(t)).map(|bits| to_f32(t, bits)).collect();
        [table(DataType::Float8E4M3), table(DataType::Float8E5M2)]
    });
    let values = &TABLES[usize::from(data_type == DataType::Float8E5M2)];
    let sign = if x.is_sign_negative() { 0x80 } else { 0 };
    let x = x.abs();
    let above = values.partition_point(|&v| v < x);
    if above == 0 {
        return sign;
    }
    if above == values.len() {
        return sign | (above - 1) as u64;
    }
    let (low, high) = (x - values[above - 1], values[above] - x);
    let up = high < low || high == low && above % 2 == 0;
    sign | (if up { above } else { above - 1 }) as u64
}

fn to_integer(data_type: DataType, bits: u64) -> i128 {
    match data_type {
        DataType::Int64 => (bits as i64).into(),
        DataType::Int32 => (bits as i32).into(),
        DataType::Int8 => (bits as i8).into(),
        DataType::Uint8 | DataType::Uint32 | DataType::Uint64 => bits.into(),
        DataType::Bool => i128::from(bits != 0),
        _ => panic!("{data_type} is no integer"),
    }
}

fn from_integer(data_type: DataType, x: i128) -> u64 {
    x as u64 & u64::MAX >> (64 - 8 * data_type.byte_len())
}
