//! Elements as values to compute with, and the arithmetic of these values.

use std::ops::{Add, BitAnd, BitOr, BitXor, Div, Mul};

use super::float::{Float, Lanes};
use super::vector::{Instructions, LANES};
use crate::element::{Bool, F8E4M3, F8E5M2, bf16, f16};

/// An element that is read, and the value in which it is accumulated.
pub(super) trait Source: Copy {
    type Value: Copy + Default;

    fn load<I: Instructions>(from: &[Self; LANES]) -> [Self::Value; LANES];
    fn load_one(self) -> Self::Value;
}

/// An element that is written, too.
pub(super) trait Operand: Source + Default {
    fn store<I: Instructions>(from: &[Self::Value; LANES]) -> [Self; LANES];
    fn store_one(value: Self::Value) -> Self;
}

macro_rules! floats {
    ($($type:ty),*) => { $(
        impl Source for $type {
            type Value = f32;

            #[inline(always)]
            fn load<I: Instructions>(from: &[Self; LANES]) -> [f32; LANES] {
                Self::widen_block::<I>(from)
            }

            #[inline(always)]
            fn load_one(self) -> f32 {
                self.widen()
            }
        }

        impl Operand for $type {
            #[inline(always)]
            fn store<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
                Self::narrow_block::<I>(from)
            }

            #[inline(always)]
            fn store_one(value: f32) -> Self {
                Self::narrow(value)
            }
        }
    )* };
}

floats!(f32, f16, bf16, F8E4M3, F8E5M2);

/// An operand whose blocks are converted one element after the other.
macro_rules! operands {
    ($($type:ty as $value:ty: $load:expr, $store:expr;)*) => { $(
        impl Source for $type {
            type Value = $value;

            #[inline(always)]
            fn load<I: Instructions>(from: &[Self; LANES]) -> [$value; LANES] {
                from.map_lanes(Self::load_one)
            }

            #[inline(always)]
            fn load_one(self) -> $value {
                $load(self)
            }
        }

        impl Operand for $type {
            #[inline(always)]
            fn store<I: Instructions>(from: &[$value; LANES]) -> [Self; LANES] {
                from.map_lanes(Self::store_one)
            }

            #[inline(always)]
            fn store_one(value: $value) -> Self {
                $store(value)
            }
        }
    )* };
}

operands! {
    i64 as i64: keep, keep;
    i32 as i32: keep, keep;
    i8 as i8: keep, keep;
    u8 as u8: keep, keep;
    u32 as u32: keep, keep;
    u64 as u64: keep, keep;
    Bool as u8: |x: Bool| u8::from(x.0 != 0), Bool;
    f64 as f64: keep, |x: f64| if x.is_nan() { f64::from_bits(0x7ff8 << 48) } else { x };
}

/// Sums, products and differences wrap in the element's width.
pub(super) trait Integer:
    Operand<Value = Self> + Ord + BitAnd<Output = Self> + BitOr<Output = Self> + BitXor<Output = Self>
{
    fn add(self, other: Self) -> Self;
    fn multiply(self, other: Self) -> Self;
    fn subtract(self, other: Self) -> Self;
    /// Divides towards zero. A division by 0 gives 0, and the smallest number divided by -1 wraps.
    fn quotient(self, other: Self) -> Self;
    /// Divides by a number of ranks, towards zero.
    fn divide(self, ranks: usize) -> Self;
}

macro_rules! integers {
    ($($type:ty: $divide:expr;)*) => { $(
        impl Integer for $type {
            #[inline(always)]
            fn add(self, other: Self) -> Self {
                self.wrapping_add(other)
            }

            #[inline(always)]
            fn multiply(self, other: Self) -> Self {
                self.wrapping_mul(other)
            }

            #[inline(always)]
            fn subtract(self, other: Self) -> Self {
                self.wrapping_sub(other)
            }

            #[inline(always)]
            fn quotient(self, other: Self) -> Self {
                if other == 0 { 0 } else { self.wrapping_div(other) }
            }

            #[inline(always)]
            fn divide(self, ranks: usize) -> Self {
                $divide(self, ranks)
            }
        }
    )* };
}

// float64 holds 32-bit integers exactly. A quotient that is not an integer is at least 1/ranks away
// from one, and the rounding moves it by less than 2^-22; so it truncates to the right integer.
integers! {
    i64: |a: i64, ranks: usize| a / ranks as i64;
    u64: |a: u64, ranks: usize| a / ranks as u64;
    i32: |a: i32, ranks: usize| (f64::from(a) / ranks as f64) as i32;
    i8: |a: i8, ranks: usize| (f64::from(a) / ranks as f64) as i8;
    u8: |a: u8, ranks: usize| (f64::from(a) / ranks as f64) as u8;
    u32: |a: u32, ranks: usize| (f64::from(a) / ranks as f64) as u32;
}

/// The value in which floating-point elements are accumulated.
pub(super) trait Real:
    Copy + Default + PartialOrd + Add<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    fn of_count(count: usize) -> Self;
    fn is_nan(self) -> bool;
    /// Of two equal numbers, which have the same bits or are both zeros, the one that is below.
    fn lower_of_equal(self, other: Self) -> Self;
    /// As [`lower_of_equal`](Self::lower_of_equal), the one that is above.
    fn upper_of_equal(self, other: Self) -> Self;
}

macro_rules! reals {
    ($($type:ty),*) => { $(
        impl Real for $type {
            #[inline(always)]
            fn of_count(count: usize) -> Self {
                count as Self
            }

            #[inline(always)]
            fn is_nan(self) -> bool {
                <$type>::is_nan(self)
            }

            // The sign is a zero's only bit.
            #[inline(always)]
            fn lower_of_equal(self, other: Self) -> Self {
                <$type>::from_bits(self.to_bits() | other.to_bits())
            }

            #[inline(always)]
            fn upper_of_equal(self, other: Self) -> Self {
                <$type>::from_bits(self.to_bits() & other.to_bits())
            }
        }
    )* };
}

reals!(f32, f64);

#[inline(always)]
pub(super) fn keep<V>(value: V) -> V {
    value
}

#[inline(always)]
pub(super) fn add<V: Real>(a: V, b: V) -> V {
    a + b
}

#[inline(always)]
pub(super) fn multiply<V: Real>(a: V, b: V) -> V {
    a * b
}

/// A NaN loses to a number, and -0 is below +0.
#[inline(always)]
pub(super) fn max<V: Real>(a: V, b: V) -> V {
    let larger = if a >= b || b.is_nan() { a } else { b };
    if a == b { a.upper_of_equal(b) } else { larger }
}

/// As [`max`].
#[inline(always)]
pub(super) fn min<V: Real>(a: V, b: V) -> V {
    let smaller = if a <= b || b.is_nan() { a } else { b };
    if a == b { a.lower_of_equal(b) } else { smaller }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_wins_over_a_nan_and_zeros_have_an_order() {
        let magnitudes = [0.0, f32::from_bits(1), f32::MIN_POSITIVE, 1.0, f32::MAX, f32::INFINITY];
        // A quiet NaN and a signaling one.
        let nans = [0x7fc0_0000, 0x7f80_0001].map(f32::from_bits);
        let values: Vec<f32> = magnitudes.into_iter().chain(nans).flat_map(|x| [x, -x]).collect();
        for (&a, &b) in values.iter().flat_map(|a| values.iter().map(move |b| (a, b))) {
            let [smaller, larger] = match (a.is_nan(), b.is_nan()) {
                (false, false) if a.total_cmp(&b).is_gt() => [b, a],
                (false, false) => [a, b],
                (true, _) => [b, b],
                (false, true) => [a, a],
            };
            let [wide_a, wide_b] = [a, b].map(f64::from);
            for (got, wide, expected) in
                [(max(a, b), max(wide_a, wide_b), larger), (min(a, b), min(wide_a, wide_b), smaller)]
            {
                assert!(got.to_bits() == expected.to_bits() || got.is_nan() && expected.is_nan(), "{a} and {b}: {got}");
                assert!(wide.to_bits() == f64::from(expected).to_bits() || wide.is_nan() && expected.is_nan());
            }
        }
    }
}
