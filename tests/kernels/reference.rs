//! The values of elements, by the crates `half` and `float8` and Rust's own conversions. An element
//! is its bits in a `u64`.

use distcollective::DataType;
use distcollective::tensor::{F8E4M3, F8E5M2, bf16, f16};

#[derive(Clone, Copy, Debug)]
pub enum Value {
    Float(f32),
    Integer(i64),
}

/// The value of an element, exactly.
pub fn value(data_type: DataType, bits: u64) -> Value {
    match data_type {
        DataType::Float32 => Value::Float(f32::from_bits(bits as u32)),
        DataType::Float16 => Value::Float(f16::from_bits(bits as u16).to_f32_const()),
        DataType::Bfloat16 => Value::Float(bf16::from_bits(bits as u16).to_f32()),
        DataType::Float8E4M3 => Value::Float(F8E4M3::from_bits(bits as u8).to_f32()),
        DataType::Float8E5M2 => Value::Float(F8E5M2::from_bits(bits as u8).to_f32()),
        DataType::Int64 => Value::Integer(bits as i64),
        DataType::Int32 => Value::Integer(i64::from(bits as i32)),
        DataType::Int8 => Value::Integer(i64::from(bits as i8)),
        DataType::Uint8 => Value::Integer(i64::from(bits as u8)),
        DataType::Bool => Value::Integer(i64::from(bits != 0)),
        other => panic!("no kernel for {other}"),
    }
}

/// The element that a value becomes.
pub fn element(data_type: DataType, value: Value) -> u64 {
    match value {
        Value::Float(x) => element_of_float(data_type, x),
        Value::Integer(x) => element_of_integer(data_type, x),
    }
}

pub fn element_of_float(data_type: DataType, x: f32) -> u64 {
    match data_type {
        DataType::Float32 if x.is_nan() => 0x7fc0_0000,
        DataType::Float16 if x.is_nan() => 0x7e00,
        DataType::Bfloat16 if x.is_nan() => 0x7fc0,
        DataType::Float8E4M3 if x.is_nan() => 0x7f,
        DataType::Float8E5M2 if x.is_nan() => 0x7e,
        DataType::Float32 => u64::from(x.to_bits()),
        DataType::Float16 => u64::from(f16::from_f32_const(x).to_bits()),
        DataType::Bfloat16 => u64::from(bf16::from_f32(x).to_bits()),
        DataType::Float8E4M3 => u64::from(F8E4M3::from_f32(x).to_bits()),
        DataType::Float8E5M2 => u64::from(F8E5M2::from_f32(x).to_bits()),
        DataType::Int64 => x as i64 as u64,
        DataType::Int32 => u64::from(x as i32 as u32),
        DataType::Int8 => u64::from(x as i8 as u8),
        DataType::Uint8 => u64::from(x as u8),
        DataType::Bool => u64::from(x != 0.0),
        DataType::Float64 if x.is_nan() => 0x7ff8 << 48,
        DataType::Float64 => f64::from(x).to_bits(),
        DataType::Uint32 => u64::from(x as u32),
        DataType::Uint64 => x as u64,
        other => panic!("no kernel for {other}"),
    }
}

fn element_of_integer(data_type: DataType, x: i64) -> u64 {
    match data_type {
        DataType::Float32 => u64::from((x as f32).to_bits()),
        // float32 holds integers up to 2^24 exactly. There float16 is infinite and float8
        // saturated.
        DataType::Float16 | DataType::Float8E4M3 | DataType::Float8E5M2 => element_of_float(data_type, x as f32),
        DataType::Bfloat16 => u64::from(nearest_bfloat16(x)),
        DataType::Int64 => x as u64,
        DataType::Int32 => u64::from(x as u32),
        DataType::Int8 | DataType::Uint8 => u64::from(x as u8),
        DataType::Bool => u64::from(x != 0),
        other => panic!("no kernel for {other}"),
    }
}

/// The nearest one, found among the neighbours of the result of two roundings.
fn nearest_bfloat16(x: i64) -> u16 {
    let near = bf16::from_f32(x as f32).to_bits();
    if x.unsigned_abs() < 1 << 24 {
        return near;
    }
    let distance = |bits: u16| (bf16::from_bits(bits).to_f32() as i128 - i128::from(x)).abs();
    (near - 1..=near + 1).min_by_key(|&bits| (distance(bits), bits & 1)).expect("three candidates")
}

/// The elements one after the other, as they lie in memory.
pub fn encode(data_type: DataType, elements: &[u64]) -> Vec<u8> {
    elements.iter().flat_map(|bits| bits.to_le_bytes().into_iter().take(data_type.byte_len())).collect()
}

/// The elements that lie in memory.
pub fn decode(data_type: DataType, bytes: &[u8]) -> Vec<u64> {
    bytes
        .chunks(data_type.byte_len())
        .map(|chunk| chunk.iter().rev().fold(0, |bits, &byte| bits << 8 | u64::from(byte)))
        .collect()
}
