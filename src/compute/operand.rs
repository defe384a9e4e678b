//! Elements as values to compute with, and the arithmetic of these values.

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
    Bool as u8: |x: Bool| u8::from(x.0 != 0), Bool;
}

/// Sums, products and differences wrap in the element's width.
pub(super) trait Integer: Operand<Value = Self> + Ord {
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
    i32: |a: i32, ranks: usize| (f64::from(a) / ranks as f64) as i32;
    i8: |a: i8, ranks: usize| (f64::from(a) / ranks as f64) as i8;
    u8: |a: u8, ranks: usize| (f64::from(a) / ranks as f64) as u8;
}

#[inline(always)]
pub(super) fn keep<V>(value: V) -> V {
    value
}

#[inline(always)]
pub(super) fn add(a: f32, b: f32) -> f32 {
    a + b
}

#[inline(always)]
pub(super) fn multiply(a: f32, b: f32) -> f32 {
    a * b
}

/// An integer that orders floats as the reduction does: -0 < +0, and NaN is `nan`.
#[inline(always)]
fn order_key(x: f32, nan: i32) -> i32 {
    let bits = x.to_bits() as i32;
    let key = bits ^ ((bits >> 31) as u32 >> 1) as i32;
    if x.is_nan() { nan } else { key }
}

#[inline(always)]
pub(super) fn max(a: f32, b: f32) -> f32 {
    if order_key(b, i32::MIN) > order_key(a, i32::MIN) { b } else { a }
}

#[inline(always)]
pub(super) fn min(a: f32, b: f32) -> f32 {
    if order_key(b, i32::MAX) < order_key(a, i32::MAX) { b } else { a }
}
