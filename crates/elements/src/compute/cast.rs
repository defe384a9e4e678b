//! Conversion between element types, as the Cast layer defines it.

use std::slice;

use super::float::{Float, QUIET_NAN};
use super::float_env;
use super::vector::{self, Instructions, VectorKernel};
use crate::data_type::DataType;
use crate::element::{F8E4M3, F8E5M2, bf16, f16};

/// The elements of one step: enough for vector instructions, few enough for the stack and the L1
/// cache.
const BLOCK_ELEMENTS: usize = 512;

/// A block of elements in a type that holds every value of theirs exactly.
enum Wide<'a> {
    Floats(&'a mut [f32]),
    Integers(&'a mut [i64]),
}

/// Converts each element.
struct Convert<'a, S, T, F> {
    from: &'a [S],
    to: &'a mut [T],
    convert: F,
}

impl<S: Copy, T, F: Fn(S) -> T> VectorKernel for Convert<'_, S, T, F> {
    #[inline(always)]
    fn run<I: Instructions>(self) {
        for (to, &from) in self.to.iter_mut().zip(self.from) {
            *to = (self.convert)(from);
        }
    }
}

/// Converts `element_count` elements.
///
/// - To a float: rounded to nearest even; float8 saturates; a NaN becomes the target's positive
///   quiet NaN.
/// - From a float to an integer: truncated, saturated; NaN gives 0.
/// - From an integer to a narrower one: wrapped.
/// - To bool: whether it is not zero.
/// - To the same type, other than bool: the bytes are copied.
///
/// # Safety
///
/// The source is valid for reads and the target for writes of `element_count` elements of their
/// types, aligned to their sizes, and nothing else writes them during the call. They may be the
/// same if the element sizes are equal; otherwise they do not overlap.
pub unsafe fn cast(from: DataType, source: *const u8, to: DataType, target: *mut u8, element_count: usize) {
    if from == to && to != DataType::Bool {
        // SAFETY: the caller promises both ranges; `copy_from` allows them to be the same.
        unsafe { target.copy_from(source, element_count * from.byte_len()) };
        return;
    }
    float_env::with_default(|| {
        let mut floats = [0f32; BLOCK_ELEMENTS];
        let mut integers = [0i64; BLOCK_ELEMENTS];
        let mut start = 0;
        while start < element_count {
            let len = BLOCK_ELEMENTS.min(element_count - start);
            // SAFETY: the block is within both ranges, and it is read before it is written.
            unsafe {
                let source = source.add(start * from.byte_len());
                let target = target.add(start * to.byte_len());
                let wide = load(from, source, &mut floats[..len], &mut integers[..len]);
                store(wide, to, target, len);
            }
            start += len;
        }
    });
}

/// # Safety
///
/// `source` is valid for reads of as many elements as `floats` and `integers` hold.
unsafe fn load<'a>(from: DataType, source: *const u8, floats: &'a mut [f32], integers: &'a mut [i64]) -> Wide<'a> {
    let len = floats.len();
    macro_rules! block {
        ($type:ty) => {
            // SAFETY: the caller promises `len` elements; the slice ends with this function.
            unsafe { slice::from_raw_parts(source.cast::<$type>(), len) }
        };
    }
    macro_rules! float {
        ($type:ty) => {{
            vector::run(Convert { from: block!($type), to: &mut *floats, convert: <$type>::widen });
            Wide::Floats(floats)
        }};
    }
    macro_rules! integer {
        ($type:ty, $convert:expr) => {{
            integers.iter_mut().zip(block!($type)).for_each(|(to, &x)| *to = $convert(x));
            Wide::Integers(integers)
        }};
    }
    match from {
        DataType::Float32 => float!(f32),
        DataType::Float16 => float!(f16),
        DataType::Bfloat16 => float!(bf16),
        DataType::Float8E4M3 => float!(F8E4M3),
        DataType::Float8E5M2 => float!(F8E5M2),
        DataType::Int64 => integer!(i64, i64::from),
        DataType::Int32 => integer!(i32, i64::from),
        DataType::Int8 => integer!(i8, i64::from),
        DataType::Uint8 => integer!(u8, i64::from),
        DataType::Bool => integer!(u8, |x| i64::from(x != 0)),
        DataType::Float64 | DataType::Uint32 | DataType::Uint64 => unreachable!("no layer has {from}"),
    }
}

/// # Safety
///
/// `target` is valid for writes of `len` elements, the length of the block.
unsafe fn store(wide: Wide<'_>, to: DataType, target: *mut u8, len: usize) {
    macro_rules! block {
        ($type:ty) => {
            // SAFETY: the caller promises `len` elements; the slice ends with this function.
            unsafe { slice::from_raw_parts_mut(target.cast::<$type>(), len) }
        };
    }
    macro_rules! float {
        ($type:ty, $from_integer:expr) => {
            match wide {
                Wide::Floats(floats) => {
                    vector::run(Convert { from: floats, to: block!($type), convert: <$type>::narrow })
                }
                Wide::Integers(integers) => {
                    let mut floats = [QUIET_NAN; BLOCK_ELEMENTS];
                    floats.iter_mut().zip(integers).for_each(|(to, &mut x)| *to = $from_integer(x));
                    vector::run(Convert { from: &floats[..len], to: block!($type), convert: <$type>::narrow });
                }
            }
        };
    }
    macro_rules! integer {
        ($type:ty, $from_float:expr, $from_integer:expr) => {
            match wide {
                Wide::Floats(floats) => {
                    block!($type).iter_mut().zip(floats).for_each(|(to, &mut x)| *to = $from_float(x))
                }
                Wide::Integers(integers) => {
                    block!($type).iter_mut().zip(integers).for_each(|(to, &mut x)| *to = $from_integer(x));
                }
            }
        };
        ($type:ty) => {
            integer!($type, |x: f32| x as $type, |x: i64| x as $type)
        };
    }
    match to {
        DataType::Float32 => float!(f32, |x: i64| x as f32),
        DataType::Float16 => float!(f16, round_to_odd),
        DataType::Bfloat16 => float!(bf16, round_to_odd),
        DataType::Float8E4M3 => float!(F8E4M3, round_to_odd),
        DataType::Float8E5M2 => float!(F8E5M2, round_to_odd),
        DataType::Int64 => integer!(i64),
        DataType::Int32 => integer!(i32),
        DataType::Int8 => integer!(i8),
        DataType::Uint8 => integer!(u8),
        DataType::Bool => integer!(u8, |x: f32| u8::from(x != 0.0), |x: i64| u8::from(x != 0)),
        DataType::Float64 | DataType::Uint32 | DataType::Uint64 => unreachable!("no layer has {to}"),
    }
}

/// An integer as float32, rounded to odd: towards zero, and the last bit is set if the result is
/// not exact. Rounding it once more, to a narrower type, gives the same as one rounding of the
/// integer.
fn round_to_odd(x: i64) -> f32 {
    let nearest = x as f32;
    let (rounded, exact) = (nearest as i128, i128::from(x));
    if rounded == exact {
        return nearest;
    }
    let towards_zero = nearest.to_bits() - u32::from(rounded.abs() > exact.abs());
    f32::from_bits(towards_zero | 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compute::Typed;
    use crate::element::Bool;

    fn cast_all<S: Typed, T: Typed>(values: &[S]) -> Vec<T> {
        let mut out = vec![T::default(); values.len()];
        // SAFETY: both slices have `values.len()` elements of their types.
        unsafe { cast(S::DATA_TYPE, values.as_ptr().cast(), T::DATA_TYPE, out.as_mut_ptr().cast(), values.len()) };
        out
    }

    #[test]
    fn floats_to_integers_truncate_and_saturate() {
        let x = [1.9f32, -1.9, 300.0, -300.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0];
        assert_eq!(cast_all::<f32, i8>(&x), [1, -1, 127, -128, 0, 127, -128, 0]);
        assert_eq!(cast_all::<f32, u8>(&x), [1, 0, 255, 0, 0, 255, 0, 0]);
        assert_eq!(cast_all::<f32, i64>(&x)[5..7], [i64::MAX, i64::MIN]);
    }

    #[test]
    fn integers_wrap_into_narrower_ones_and_bool_is_not_zero() {
        assert_eq!(cast_all::<i64, i32>(&[1 << 32 | 5, -1]), [5, -1]);
        assert_eq!(cast_all::<i32, u8>(&[257, -1]), [1, 255]);
        let truths: Vec<u8> = cast_all::<f32, Bool>(&[0.0, -0.0, f32::NAN, 1e-45]).iter().map(|b| b.0).collect();
        assert_eq!(truths, [0, 0, 1, 1]);
        assert_eq!(cast_all::<Bool, i32>(&[Bool(7), Bool(0)]), [1, 0]);
    }

    #[test]
    fn a_large_integer_is_rounded_once_on_its_way_to_bfloat16() {
        // Just above the middle between two bfloat16 values. Rounding to float32 first gives the
        // middle.
        let x = (1i64 << 40) + (1 << 32) + 1;
        let up = bf16::from_bits(bf16::from_f32((1i64 << 40) as f32).to_bits() + 1);
        assert_eq!(cast_all::<i64, bf16>(&[x, -x, x - 1]), [up, -up, bf16::from_f32((1i64 << 40) as f32)]);
        assert_eq!(cast_all::<i64, f32>(&[i64::MAX, 16_777_217]), [i64::MAX as f32, 16_777_216.0]);
        assert_eq!(cast_all::<i64, f16>(&[65_519, 65_520, -70_000]), [f16::MAX, f16::INFINITY, f16::NEG_INFINITY]);
    }

    #[test]
    fn float8_saturates_and_nan_is_the_quiet_one() {
        let values = [f32::INFINITY, -1e9, f32::from_bits(0xffc0_1234)];
        let bits: Vec<u8> = cast_all::<f32, F8E4M3>(&values).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0x7e, 0xfe, 0x7f]);
        let bits: Vec<u8> = cast_all::<f32, F8E5M2>(&values).iter().map(|x| x.to_bits()).collect();
        assert_eq!(bits, [0x7b, 0xfb, 0x7e]);
    }
}
