//! Element-wise reduction of the inputs of several ranks.

use std::marker::PhantomData;
use std::ops::BitXor;

use super::float::{Float, Lanes};
use super::float_env;
use super::operand::{Integer, Operand, Real, Source, add, keep, max, min, multiply};
use super::vector::{self, Instructions, LANES, VectorKernel};
use crate::data_type::DataType;
use crate::element::{Bool, F8E4M3, F8E5M2, bf16, f16};
use crate::reduce_operation::ReduceOperation;
use crate::wire_type::WireType;

/// Reduces `sources`, in their order, element by element into `target`. One source is copied byte
/// for byte. The type [has the reduction](ReduceOperation::applies_to).
///
/// # Safety
///
/// Each source is valid for reads, and the target for writes, of `element_count` elements of
/// `data_type`, aligned to its size, and nothing else writes them during the call. The target may
/// be one of the sources, and overlaps no other.
pub unsafe fn reduce(
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
    debug_assert!(reduce_op.applies_to(data_type), "{data_type} has no {reduce_op}");
    let buffers = ReduceBuffers { sources, target, len: element_count };
    match data_type {
        DataType::Float32 => reduce_floats::<f32, f32>(reduce_op, buffers),
        DataType::Float16 => reduce_floats::<f16, f16>(reduce_op, buffers),
        DataType::Bfloat16 => reduce_floats::<bf16, bf16>(reduce_op, buffers),
        DataType::Float8E4M3 => reduce_floats::<F8E4M3, F8E4M3>(reduce_op, buffers),
        DataType::Float8E5M2 => reduce_floats::<F8E5M2, F8E5M2>(reduce_op, buffers),
        DataType::Int64 => reduce_integers::<i64>(reduce_op, buffers),
        DataType::Int32 => reduce_integers::<i32>(reduce_op, buffers),
        DataType::Int8 => reduce_integers::<i8>(reduce_op, buffers),
        DataType::Uint8 => reduce_integers::<u8>(reduce_op, buffers),
        DataType::Bool => reduce_bools(reduce_op, buffers),
        DataType::Float64 => reduce_floats::<f64, f64>(reduce_op, buffers),
        DataType::Uint32 => reduce_integers::<u32>(reduce_op, buffers),
        DataType::Uint64 => reduce_integers::<u64>(reduce_op, buffers),
    }
}

/// How contributions lie in memory that have a transport type.
#[derive(Clone, Copy, Debug)]
pub enum Stored {
    /// As float32, which is rounded when it is read.
    AsFloat32,
    /// Rounded, in the transport type.
    AsWireType,
}

/// Reduces contributions that are rounded to a transport type, in the order of `sources`, into a
/// target of float32. One source is rounded too.
///
/// # Safety
///
/// As [`reduce`], with sources of the type that `stored` says; the target may be one of them only
/// if they are float32.
pub unsafe fn reduce_rounded(
    reduce_op: ReduceOperation,
    wire_type: WireType,
    stored: Stored,
    sources: &[*const u8],
    target: *mut u8,
    element_count: usize,
) {
    let buffers = ReduceBuffers { sources, target, len: element_count };
    match (wire_type, stored) {
        (WireType::Float16, Stored::AsFloat32) => reduce_floats::<Rounded<f16>, f32>(reduce_op, buffers),
        (WireType::Float16, Stored::AsWireType) => reduce_floats::<f16, f32>(reduce_op, buffers),
        (WireType::Bfloat16, Stored::AsFloat32) => reduce_floats::<Rounded<bf16>, f32>(reduce_op, buffers),
        (WireType::Bfloat16, Stored::AsWireType) => reduce_floats::<bf16, f32>(reduce_op, buffers),
    }
}

/// Makes float32 of one contribution that is rounded to a transport type.
///
/// # Safety
///
/// As [`reduce_rounded`].
pub unsafe fn round(wire_type: WireType, stored: Stored, source: *const u8, target: *mut u8, element_count: usize) {
    // The sum of one number is the number.
    // SAFETY: the caller's promise.
    unsafe { reduce_rounded(ReduceOperation::Sum, wire_type, stored, &[source], target, element_count) };
}

/// Rounds float32 to a transport type.
///
/// # Safety
///
/// The source is valid for reads of `element_count` float32, and the target for writes of as many
/// elements of the transport type, both aligned; they do not overlap, and nothing else writes them
/// during the call.
pub unsafe fn narrow(wire_type: WireType, source: *const u8, target: *mut u8, element_count: usize) {
    let buffers = ReduceBuffers { sources: &[source], target, len: element_count };
    // The sum of one number is the number.
    float_env::with_default(|| match wire_type {
        WireType::Float16 => run::<f32, f16>(buffers, add, keep),
        WireType::Bfloat16 => run::<f32, bf16>(buffers, add, keep),
    });
}

/// The type and the reduction by which ranks in rank order add their contributions to a partial
/// result, so that [`finish`] makes of the last one what [`reduce`] makes of all contributions.
pub fn partial(reduce_op: ReduceOperation, data_type: DataType) -> (DataType, ReduceOperation) {
    let accumulates = matches!(reduce_op, ReduceOperation::Sum | ReduceOperation::Avg | ReduceOperation::Prod);
    let is_narrow = data_type.is_float() && data_type.byte_len() < 4;
    let partial_type = if accumulates && is_narrow { DataType::Float32 } else { data_type };
    (partial_type, if reduce_op == ReduceOperation::Avg { ReduceOperation::Sum } else { reduce_op })
}

/// Makes the result of a [`partial`] one over `rank_count` ranks, of which there are two or more.
///
/// # Safety
///
/// The source is valid for reads of `element_count` elements of the partial type, and the target
/// for writes of as many of `data_type`, both aligned; they do not overlap, and nothing else writes
/// them during the call.
pub unsafe fn finish(
    reduce_op: ReduceOperation,
    data_type: DataType,
    rank_count: usize,
    source: *const u8,
    target: *mut u8,
    element_count: usize,
) {
    let buffers = ReduceBuffers { sources: &[source], target, len: element_count };
    let is_average = reduce_op == ReduceOperation::Avg;
    float_env::with_default(|| match data_type {
        DataType::Float64 => finish_floats::<f64, f64>(is_average, rank_count, buffers),
        DataType::Float32 => finish_floats::<f32, f32>(is_average, rank_count, buffers),
        _ if partial(reduce_op, data_type).0 == data_type => match data_type {
            DataType::Int64 if is_average => finish_integers::<i64>(rank_count, buffers),
            DataType::Int32 if is_average => finish_integers::<i32>(rank_count, buffers),
            DataType::Int8 if is_average => finish_integers::<i8>(rank_count, buffers),
            DataType::Uint8 if is_average => finish_integers::<u8>(rank_count, buffers),
            DataType::Uint32 if is_average => finish_integers::<u32>(rank_count, buffers),
            DataType::Uint64 if is_average => finish_integers::<u64>(rank_count, buffers),
            // SAFETY: the caller's promise.
            _ => unsafe { target.copy_from(source, element_count * data_type.byte_len()) },
        },
        DataType::Float16 => finish_floats::<f32, f16>(is_average, rank_count, buffers),
        DataType::Bfloat16 => finish_floats::<f32, bf16>(is_average, rank_count, buffers),
        DataType::Float8E4M3 => finish_floats::<f32, F8E4M3>(is_average, rank_count, buffers),
        _ => finish_floats::<f32, F8E5M2>(is_average, rank_count, buffers),
    });
}

fn finish_floats<S: Source<Value: Real>, T: Operand<Value = S::Value>>(
    is_average: bool,
    rank_count: usize,
    buffers: ReduceBuffers<'_>,
) {
    let ranks = S::Value::of_count(rank_count);
    match is_average {
        true => run::<S, T>(buffers, add, |sum| sum / ranks),
        false => run::<S, T>(buffers, add, keep),
    }
}

fn finish_integers<T: Integer>(rank_count: usize, buffers: ReduceBuffers<'_>) {
    run::<T, T>(buffers, T::add, |sum| sum.divide(rank_count));
}

/// The buffers of one reduction, which are as [`reduce`] asks for.
#[derive(Clone, Copy)]
struct ReduceBuffers<'a> {
    sources: &'a [*const u8],
    target: *mut u8,
    len: usize,
}

/// A float32 that is rounded to another type when it is read.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Rounded<T>(f32, PhantomData<T>);

impl<T: Float> Source for Rounded<T> {
    type Value = f32;

    #[inline(always)]
    fn load<I: Instructions>(from: &[Self; LANES]) -> [f32; LANES] {
        T::widen_block::<I>(&T::narrow_block::<I>(&from.map_lanes(|x| x.0)))
    }

    #[inline(always)]
    fn load_one(self) -> f32 {
        T::narrow(self.0).widen()
    }
}

/// Combines the elements of all sources, in their order, and finishes each result.
struct Reduction<'a, S, T, C, F> {
    buffers: ReduceBuffers<'a>,
    combine: C,
    finish: F,
    elements: PhantomData<(S, T)>,
}

impl<S, T, C, F> VectorKernel for Reduction<'_, S, T, C, F>
where
    S: Source,
    T: Operand<Value = S::Value>,
    C: Fn(S::Value, S::Value) -> S::Value,
    F: Fn(S::Value) -> S::Value,
{
    // No other element of one byte is a float32 when it is widened.
    #[cfg(target_arch = "x86_64")]
    const WIDENS_FLOAT8: bool = size_of::<S>() == 1 && size_of::<S::Value>() == 4;

    #[inline(always)]
    fn run<I: Instructions>(self) {
        let ReduceBuffers { sources, target, len } = self.buffers;
        let Some((first, others)) = sources.split_first() else { return };
        let in_blocks = len / LANES * LANES;
        for start in (0..in_blocks).step_by(LANES) {
            // SAFETY: `ReduceBuffers`: the block is within each source, and it is read before the
            // target is written.
            let block = |source: *const u8| unsafe { source.cast::<S>().add(start).cast::<[S; LANES]>().read() };
            let mut values = S::load::<I>(&block(*first));
            for source in others {
                let next = S::load::<I>(&block(*source));
                for (value, &next) in values.iter_mut().zip(&next) {
                    *value = (self.combine)(*value, next);
                }
            }
            for value in &mut values {
                *value = (self.finish)(*value);
            }
            let results = T::store::<I>(&values);
            // SAFETY: `ReduceBuffers`: the block is within the target.
            unsafe { target.cast::<T>().add(start).cast::<[T; LANES]>().write(results) };
        }
        for i in in_blocks..len {
            // SAFETY: `ReduceBuffers`: `i` is within each source.
            let element = |source: *const u8| unsafe { *source.cast::<S>().add(i) }.load_one();
            let value = others.iter().fold(element(*first), |value, &source| (self.combine)(value, element(source)));
            // SAFETY: `ReduceBuffers`: `i` is within the target.
            unsafe { *target.cast::<T>().add(i) = T::store_one((self.finish)(value)) };
        }
    }
}

/// Accumulates in float32 or float64, and rounds once to `T`.
fn reduce_floats<S: Source<Value: Real>, T: Operand<Value = S::Value>>(
    reduce_op: ReduceOperation,
    buffers: ReduceBuffers<'_>,
) {
    let ranks = S::Value::of_count(buffers.sources.len());
    float_env::with_default(|| match reduce_op {
        ReduceOperation::Avg => run::<S, T>(buffers, add, |sum| sum / ranks),
        ReduceOperation::Prod => run::<S, T>(buffers, multiply, keep),
        ReduceOperation::Max => run::<S, T>(buffers, max, keep),
        ReduceOperation::Min => run::<S, T>(buffers, min, keep),
        _ => run::<S, T>(buffers, add, keep),
    });
}

/// Sums and products wrap in the element's width.
fn reduce_integers<T: Integer>(reduce_op: ReduceOperation, buffers: ReduceBuffers<'_>) {
    let ranks = buffers.sources.len();
    match reduce_op {
        ReduceOperation::Sum => run::<T, T>(buffers, T::add, keep),
        ReduceOperation::Avg => run::<T, T>(buffers, T::add, |sum| sum.divide(ranks)),
        ReduceOperation::Prod => run::<T, T>(buffers, T::multiply, keep),
        ReduceOperation::Max => run::<T, T>(buffers, T::max, keep),
        ReduceOperation::Min => run::<T, T>(buffers, T::min, keep),
        ReduceOperation::Band => run::<T, T>(buffers, T::bitand, keep),
        ReduceOperation::Bor => run::<T, T>(buffers, T::bitor, keep),
        ReduceOperation::Bxor => run::<T, T>(buffers, T::bitxor, keep),
    }
}

/// Results are 0 or 1.
fn reduce_bools(reduce_op: ReduceOperation, buffers: ReduceBuffers<'_>) {
    match reduce_op {
        ReduceOperation::Sum | ReduceOperation::Max | ReduceOperation::Bor => run::<Bool, Bool>(buffers, u8::max, keep),
        ReduceOperation::Bxor => run::<Bool, Bool>(buffers, u8::bitxor, keep),
        _ => run::<Bool, Bool>(buffers, u8::min, keep),
    }
}

fn run<S: Source, T: Operand<Value = S::Value>>(
    buffers: ReduceBuffers<'_>,
    combine: impl Fn(S::Value, S::Value) -> S::Value,
    finish: impl Fn(S::Value) -> S::Value,
) {
    let reduction = Reduction { buffers, combine, finish, elements: PhantomData::<(S, T)> };
    if buffers.len < LANES { vector::run_baseline(reduction) } else { vector::run(reduction) }
}

#[cfg(test)]
mod tests {
    use std::slice;

    use super::*;

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn a_caller_that_changes_the_floating_point_environment_gets_the_same_sums() {
        fn sums<T: Operand>(data_type: DataType, x: T) -> [T; 600] {
            let x = [x; 600];
            let sources = [x.as_ptr().cast::<u8>(); 2];
            let mut sums = [T::default(); 600];
            let target = sums.as_mut_ptr().cast();
            // SAFETY: the arrays have as many elements as the call says.
            float_env::in_an_unusual_one(|| unsafe {
                reduce(ReduceOperation::Sum, data_type, &sources, target, x.len());
            });
            sums
        }
        let tiny = sums(DataType::Float32, f32::from_bits(1));
        assert!(tiny.iter().all(|x| x.to_bits() == 2));
        let large = sums(DataType::Float16, f16::MAX);
        assert!(large.iter().all(|x| *x == f16::INFINITY));
    }

    /// Reduces two sources with each set of instructions, and one element after the other.
    fn compare<T: Operand>(
        [a, b]: [&[T]; 2],
        combine: impl Fn(T::Value, T::Value) -> T::Value + Copy,
        finish: impl Fn(T::Value) -> T::Value + Copy,
    ) {
        let bytes_of = |elements: &[T]| {
            // SAFETY: integers and floats have no padding; the slice ends with this closure.
            unsafe { slice::from_raw_parts(elements.as_ptr().cast::<u8>(), size_of_val(elements)) }.to_vec()
        };
        let single = |i: usize| T::store_one(finish(combine(a[i].load_one(), b[i].load_one())));
        let expected: Vec<T> = (0..a.len()).map(single).collect();
        let sources = [a.as_ptr().cast(), b.as_ptr().cast()];
        let mut results: Vec<(&str, Vec<T>)> = Vec::new();
        vector::run_with_each(|name| {
            results.push((name, vec![T::default(); a.len()]));
            let target = results.last_mut().expect("the result that was pushed").1.as_mut_ptr().cast();
            let buffers = ReduceBuffers { sources: &sources, target, len: a.len() };
            Reduction { buffers, combine, finish, elements: PhantomData::<(T, T)> }
        });
        for (name, result) in &results {
            if bytes_of(result) != bytes_of(&expected) {
                let differs = |i: &usize| bytes_of(&result[*i..*i + 1]) != bytes_of(&expected[*i..*i + 1]);
                let at = (0..a.len()).find(differs).expect("an element that differs");
                let shown = [&a[at..], &b[at..], &result[at..], &expected[at..]].map(|list| bytes_of(&list[..1]));
                panic!("{}, {name}: {shown:x?} are a, b, result and what was expected", std::any::type_name::<T>());
            }
        }
    }

    fn compare_floats<T: Operand<Value: Real>>(sources: [&[T]; 2]) {
        compare(sources, add, keep);
        compare(sources, add, |sum| sum / T::Value::of_count(2));
        compare(sources, multiply, keep);
        compare(sources, max, keep);
        compare(sources, min, keep);
    }

    fn compare_integers<T: Integer>(sources: [&[T]; 2]) {
        compare(sources, T::add, keep);
        compare(sources, T::add, |sum| sum.divide(3));
        compare(sources, T::multiply, keep);
        compare(sources, T::max, keep);
        compare(sources, T::min, keep);
        compare(sources, T::bitand, keep);
        compare(sources, T::bitor, keep);
        compare(sources, T::bitxor, keep);
    }

    /// Every pair of the two lists.
    fn pairs<T: Copy>(first: &[T], second: &[T]) -> [Vec<T>; 2] {
        let all = first.iter().flat_map(|&a| second.iter().map(move |&b| (a, b)));
        let (a, b) = all.unzip();
        [a, b]
    }

    #[test]
    fn every_set_of_instructions_reduces_every_pair_of_bytes_alike() {
        let bytes: Vec<u8> = (0..=u8::MAX).collect();
        let [a, b] = pairs(&bytes, &bytes);
        fn of<T>(bytes: &[u8], from: impl Fn(u8) -> T) -> Vec<T> {
            bytes.iter().map(|&byte| from(byte)).collect()
        }
        compare_integers([&a, &b]);
        compare_integers([&of(&a, |x| x as i8), &of(&b, |x| x as i8)]);
        compare_floats([&of(&a, F8E4M3::from_bits), &of(&b, F8E4M3::from_bits)]);
        compare_floats([&of(&a, F8E5M2::from_bits), &of(&b, F8E5M2::from_bits)]);
        let bools = [of(&a, Bool), of(&b, Bool)];
        compare([&bools[0], &bools[1]], u8::max, keep);
        compare([&bools[0], &bools[1]], u8::min, keep);
        compare([&bools[0], &bools[1]], u8::bitxor, keep);
    }

    #[test]
    fn every_set_of_instructions_reduces_16_bit_floats_alike() {
        let all: Vec<u16> = (0..=u16::MAX).collect();
        // Zeros, subnormals, ones, ties, the largest numbers, infinities, NaN, of both formats.
        let few =
            [0, 1, 0x03ff, 0x0400, 0x0080, 0x3c00, 0x3c01, 0x3f80, 0x3f81, 0x7bff, 0x7c00, 0x7c01, 0x7f7f, 0x7f80];
        let few: Vec<u16> = few.iter().flat_map(|&bits: &u16| [bits, bits | 0x8000]).collect();
        let [a, b] = pairs(&all, &few);
        let half = |bits: &[u16]| bits.iter().map(|&bits| f16::from_bits(bits)).collect::<Vec<_>>();
        let brain = |bits: &[u16]| bits.iter().map(|&bits| bf16::from_bits(bits)).collect::<Vec<_>>();
        compare_floats([&half(&a), &half(&b)]);
        compare_floats([&brain(&a), &brain(&b)]);
    }

    #[test]
    fn every_set_of_instructions_reduces_random_words_alike() {
        let mut state = 1u64;
        let mut words = || {
            let next = |_| {
                // The constants of Knuth's MMIX generator. The high bits are the random ones.
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state ^ state >> 32
            };
            (0..1_000_000).map(next).collect::<Vec<u64>>()
        };
        let [a, b] = [words(), words()];
        // One float in 16 is a tie's half, a subnormal or a NaN more often than chance has it.
        let float = |&word: &u64| match word % 16 {
            0 => f32::from_bits(word as u32 & 0x807f_ffff),
            1 => f32::from_bits(word as u32 | 0x7f80_0000),
            2 => f32::from_bits(word as u32 & 0xffff_0000 | 0x8000),
            _ => f32::from_bits(word as u32),
        };
        compare_floats([&a.iter().map(float).collect::<Vec<_>>(), &b.iter().map(float).collect::<Vec<_>>()]);
        // The same for float64, whose exponent and sign are the highest 12 bits.
        let float = |&word: &u64| match word % 16 {
            0 => f64::from_bits(word & 0x800f_ffff_ffff_ffff),
            1 => f64::from_bits(word | 0x7ff0_0000_0000_0000),
            _ => f64::from_bits(word),
        };
        compare_floats([&a.iter().map(float).collect::<Vec<_>>(), &b.iter().map(float).collect::<Vec<_>>()]);
        let narrow = |words: &[u64]| words.iter().map(|&word| word as i32).collect::<Vec<_>>();
        let wide = |words: &[u64]| words.iter().map(|&word| word as i64).collect::<Vec<_>>();
        compare_integers([&narrow(&a), &narrow(&b)]);
        compare_integers([&wide(&a), &wide(&b)]);
        compare_integers([&a, &b]);
        let narrow = |words: &[u64]| words.iter().map(|&word| word as u32).collect::<Vec<_>>();
        compare_integers([&narrow(&a), &narrow(&b)]);
    }

    /// Rounds with each set of instructions: to the type, and to it and back.
    fn compare_rounding<T: Float + Operand<Value = f32>>(floats: &[f32], bits: fn(T) -> u16) {
        let sources = [floats.as_ptr().cast()];
        let mut narrow: Vec<(&str, Vec<T>)> = Vec::new();
        let mut rounded: Vec<(&str, Vec<f32>)> = Vec::new();
        vector::run_with_each(|name| {
            narrow.push((name, vec![T::default(); floats.len()]));
            let target = narrow.last_mut().expect("the result that was pushed").1.as_mut_ptr().cast();
            let buffers = ReduceBuffers { sources: &sources, target, len: floats.len() };
            Reduction { buffers, combine: add, finish: keep, elements: PhantomData::<(f32, T)> }
        });
        vector::run_with_each(|name| {
            rounded.push((name, vec![0.0; floats.len()]));
            let target = rounded.last_mut().expect("the result that was pushed").1.as_mut_ptr().cast();
            let buffers = ReduceBuffers { sources: &sources, target, len: floats.len() };
            Reduction { buffers, combine: add, finish: keep, elements: PhantomData::<(Rounded<T>, f32)> }
        });
        for (i, &x) in floats.iter().enumerate() {
            let expected = T::narrow(x);
            for ((name, narrow), (_, rounded)) in narrow.iter().zip(&rounded) {
                assert_eq!(bits(narrow[i]), bits(expected), "{name}: {x:e}");
                let wide = f32::store_one(expected.widen());
                assert_eq!(rounded[i].to_bits(), wide.to_bits(), "{name}: {x:e}");
            }
        }
    }

    #[test]
    fn every_set_of_instructions_rounds_alike() {
        let near = |half: u16| {
            let exact = [f16::from_bits(half).widen(), bf16::from_bits(half).widen()];
            // Halves of the last place, and their neighbours.
            exact.into_iter().flat_map(|x| [0, 1, 0xfff, 0x1000, 0x7fff, 0x8000, 0xffff].map(|bits| x.to_bits() ^ bits))
        };
        let floats: Vec<f32> = (0..=u16::MAX).flat_map(near).map(f32::from_bits).chain([f32::NAN; 3]).collect();
        compare_rounding::<f16>(&floats, f16::to_bits);
        compare_rounding::<bf16>(&floats, bf16::to_bits);
        compare_rounding::<F8E4M3>(&floats, |x| x.to_bits().into());
        compare_rounding::<F8E5M2>(&floats, |x| x.to_bits().into());
    }

    #[test]
    fn averages_of_integers_are_truncated() {
        for ranks in [2usize, 3, 7, 255, 65_535, 65_536] {
            for base in [0, 1, ranks as i64, i64::from(i32::MAX) / ranks as i64 * ranks as i64] {
                for a in [base - 1, base, base + 1].into_iter().flat_map(|a| [a, -a]) {
                    let Ok(a) = i32::try_from(a) else { continue };
                    assert_eq!(a.divide(ranks), (i64::from(a) / ranks as i64) as i32, "{a} / {ranks}");
                }
            }
            for byte in 0..=u8::MAX {
                assert_eq!(usize::from(byte.divide(ranks)), usize::from(byte) / ranks);
                let signed = byte as i8;
                assert_eq!(i64::from(signed.divide(ranks)), i64::from(signed) / ranks as i64);
            }
        }
    }
}
