//! Element-wise reduction of the inputs of several ranks.

use std::slice;

use super::float::Float;
use super::{BLOCK_ELEMENTS, float_env};
use crate::collective::ReduceOperation;
use crate::data_type::DataType;
use crate::element::{F8E4M3, F8E5M2, bf16, f16};

/// Reduces `sources`, in their order, element by element into `target`. One source is copied byte
/// for byte.
///
/// # Safety
///
/// Each source is valid for reads, and the target for writes, of `element_count` elements of
/// `data_type`, aligned to its size, and nothing else writes them during the call. The target may
/// be one of the sources, and overlaps no other.
pub(crate) unsafe fn reduce(
    reduce_op: ReduceOperation,
    data_type: DataType,
    sources: &[*const u8],
    target: *mut u8,
    element_count: usize,
) {
    if let [source] = sources {
        // SAFETY: the caller promises both ranges; `copy_from` allows them to be the same.
        unsafe { target.copy_from(*source, element_count * data_type.byte_len()) };
        return;
    }
    // SAFETY: the caller promises the ranges; `T` is the Rust type of `data_type`.
    float_env::with_default(|| unsafe {
        match data_type {
            DataType::Float32 => reduce_floats::<f32>(reduce_op, sources, target, element_count),
            DataType::Float16 => reduce_floats::<f16>(reduce_op, sources, target, element_count),
            DataType::Bfloat16 => reduce_floats::<bf16>(reduce_op, sources, target, element_count),
            DataType::Float8E4M3 => reduce_floats::<F8E4M3>(reduce_op, sources, target, element_count),
            DataType::Float8E5M2 => reduce_floats::<F8E5M2>(reduce_op, sources, target, element_count),
            DataType::Int64 => reduce_integers::<i64>(reduce_op, sources, target, element_count),
            DataType::Int32 => reduce_integers::<i32>(reduce_op, sources, target, element_count),
            DataType::Int8 => reduce_integers::<i8>(reduce_op, sources, target, element_count),
            DataType::Uint8 => reduce_integers::<u8>(reduce_op, sources, target, element_count),
            DataType::Bool => reduce_bools(reduce_op, sources, target, element_count),
        }
    });
}

/// An integer that orders floats as the reduction does: -0 < +0, and NaN is `nan`. Comparisons of
/// integers vectorize.
fn order_key(x: f32, nan: i32) -> i32 {
    let bits = x.to_bits() as i32;
    let key = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() { nan } else { key }
}

fn max(a: f32, b: f32) -> f32 {
    if order_key(b, i32::MIN) > order_key(a, i32::MIN) { b } else { a }
}

fn min(a: f32, b: f32) -> f32 {
    if order_key(b, i32::MAX) < order_key(a, i32::MAX) { b } else { a }
}

/// Accumulates in float32, in the order of the sources, and rounds once to `T`.
///
/// # Safety
///
/// As [`reduce`], with `T` the type of the elements.
unsafe fn reduce_floats<T: Float>(
    reduce_op: ReduceOperation,
    sources: &[*const u8],
    target: *mut u8,
    element_count: usize,
) {
    let mut sum = [0f32; BLOCK_ELEMENTS];
    let mut next = [0f32; BLOCK_ELEMENTS];
    let mut start = 0;
    while start < element_count {
        let len = BLOCK_ELEMENTS.min(element_count - start);
        let (sum, next) = (&mut sum[..len], &mut next[..len]);
        // SAFETY: this block is within the source. The slice ends before the target is written.
        let block = |source: *const u8| unsafe { slice::from_raw_parts(source.cast::<T>().add(start), len) };
        T::widen(block(sources[0]), sum);
        for &source in &sources[1..] {
            T::widen(block(source), next);
            let pairs = sum.iter_mut().zip(next.iter());
            match reduce_op {
                ReduceOperation::Sum | ReduceOperation::Avg => pairs.for_each(|(a, &b)| *a += b),
                ReduceOperation::Prod => pairs.for_each(|(a, &b)| *a *= b),
                ReduceOperation::Max => pairs.for_each(|(a, &b)| *a = max(*a, b)),
                ReduceOperation::Min => pairs.for_each(|(a, &b)| *a = min(*a, b)),
            }
        }
        if reduce_op == ReduceOperation::Avg {
            let n = sources.len() as f32;
            sum.iter_mut().for_each(|a| *a /= n);
        }
        // SAFETY: this block is within the target, and no slice of a source is alive.
        T::narrow(sum, unsafe { slice::from_raw_parts_mut(target.cast::<T>().add(start), len) });
        start += len;
    }
}

trait Integer: Copy + Ord {
    fn add(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    /// Divides towards zero. The quotient by a positive number always fits the type.
    fn divide(self, divisor: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty),*) => { $(
        impl Integer for $type {
            fn add(self, other: Self) -> Self { self.wrapping_add(other) }
            fn mul(self, other: Self) -> Self { self.wrapping_mul(other) }
            fn divide(self, divisor: usize) -> Self { (self as i64 / divisor as i64) as $type }
        }
    )* };
}

integers!(i64, i32, i8, u8);

/// Reduces integers. Sums and products wrap in the element's width.
///
/// # Safety
///
/// As [`reduce`], with `T` the type of the elements.
unsafe fn reduce_integers<T: Integer>(
    reduce_op: ReduceOperation,
    sources: &[*const u8],
    target: *mut u8,
    element_count: usize,
) {
    let fold = |combine: fn(T, T) -> T| {
        for i in 0..element_count {
            // SAFETY: `i` is within every source and the target.
            unsafe {
                let mut value = *sources[0].cast::<T>().add(i);
                for &source in &sources[1..] {
                    value = combine(value, *source.cast::<T>().add(i));
                }
                if reduce_op == ReduceOperation::Avg {
                    value = value.divide(sources.len());
                }
                *target.cast::<T>().add(i) = value;
            }
        }
    };
    match reduce_op {
        ReduceOperation::Sum | ReduceOperation::Avg => fold(T::add),
        ReduceOperation::Prod => fold(T::mul),
        ReduceOperation::Max => fold(T::max),
        ReduceOperation::Min => fold(T::min),
    }
}

/// Reduces bools to 0 or 1. The builder and eager calls refuse the average of bool.
///
/// # Safety
///
/// As [`reduce`], with elements of one byte.
unsafe fn reduce_bools(reduce_op: ReduceOperation, sources: &[*const u8], target: *mut u8, element_count: usize) {
    let any = matches!(reduce_op, ReduceOperation::Sum | ReduceOperation::Max);
    for i in 0..element_count {
        // SAFETY: `i` is within every source and the target.
        unsafe {
            let mut truths = sources.iter().map(|source| *source.add(i) != 0);
            *target.add(i) = u8::from(if any { truths.any(|t| t) } else { truths.all(|t| t) });
        }
    }
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use std::arch::asm;

    use super::*;

    #[test]
    fn a_caller_that_flushes_to_zero_gets_the_same_sums() {
        let tiny = [f32::from_bits(1); 600];
        let sources = [tiny.as_ptr().cast::<u8>(), tiny.as_ptr().cast::<u8>()];
        let mut sum = [0f32; 600];
        let (mut before, flushing) = (0u32, 0x9fc0u32);
        // SAFETY: the thread's control register is changed for one call, which does not depend on
        // it, and then restored. The arrays have as many elements as the call says.
        unsafe {
            asm!("stmxcsr [{}]", in(reg) &mut before, options(nostack));
            asm!("ldmxcsr [{}]", in(reg) &flushing, options(nostack));
            reduce(ReduceOperation::Sum, DataType::Float32, &sources, sum.as_mut_ptr().cast(), sum.len());
            asm!("ldmxcsr [{}]", in(reg) &before, options(nostack));
        }
        assert!(sum.iter().all(|x| x.to_bits() == 2));
    }
}
