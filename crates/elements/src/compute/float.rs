//! Floating-point elements as float32 and back. A NaN becomes the positive quiet NaN of the type
//! that it is written in.
//!
//! Conversions have no branches and no tables, so that the compiler makes vector instructions of
//! loops over them. They need the default floating-point environment (`float_env`).

use super::vector::{Instructions, LANES};
use crate::element::{F8E4M3, F8E5M2, bf16, f16};

/// The positive quiet NaN of float32.
pub(super) const QUIET_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// float32's infinity. The bits of a NaN without its sign are above it.
pub(super) const INFINITY: u32 = 0x7f80_0000;

/// A floating-point element. float32 holds all its values exactly.
pub(super) trait Float: Copy + Default {
    /// The same number as float32.
    fn widen(self) -> f32;

    /// Rounds to nearest even; float8 saturates, infinity too.
    fn narrow(x: f32) -> Self;

    /// [`widen`](Self::widen) of a block.
    #[inline(always)]
    fn widen_block<I: Instructions>(from: &[Self; LANES]) -> [f32; LANES] {
        from.map_lanes(Self::widen)
    }

    /// [`narrow`](Self::narrow) of a block.
    #[inline(always)]
    fn narrow_block<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
        from.map_lanes(Self::narrow)
    }
}

/// A block of elements.
pub(super) trait Lanes<T> {
    /// The block of what `f` makes of each element. (The array's own `map` is not vectorized.)
    fn map_lanes<U: Copy + Default>(&self, f: impl Fn(T) -> U) -> [U; LANES];
}

impl<T: Copy> Lanes<T> for [T; LANES] {
    #[inline(always)]
    fn map_lanes<U: Copy + Default>(&self, f: impl Fn(T) -> U) -> [U; LANES] {
        let mut to = [U::default(); LANES];
        for (to, &from) in to.iter_mut().zip(self) {
            *to = f(from);
        }
        to
    }
}

impl Float for f32 {
    #[inline(always)]
    fn widen(self) -> f32 {
        self
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        if x.is_nan() { QUIET_NAN } else { x }
    }
}

impl Float for bf16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        let bits = x.to_bits();
        // Adds half of the last place, less one if the kept part is even. This carries exactly if
        // the dropped part is above a half, or if it is a half and the kept part is odd.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
    }

    #[inline(always)]
    fn narrow_block<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
        I::narrow_bfloat16(from)
    }
}

/// A format with fewer bits than float32's 8 of exponent and 23 of mantissa.
pub(super) struct Narrow {
    pub(super) mantissa_bits: u32,
    /// What is added to an exponent.
    bias: u32,
    /// Larger magnitudes become these bits.
    pub(super) largest: u32,
    /// The first magnitude that is infinity or a NaN.
    special: u32,
    pub(super) quiet_nan: u32,
}

impl Narrow {
    const FLOAT16: Narrow = Narrow { mantissa_bits: 10, bias: 15, largest: 0x7c00, special: 0x7c00, quiet_nan: 0x7e00 };
    const E4M3: Narrow = Narrow { mantissa_bits: 3, bias: 7, largest: 0x7e, special: 0x7f, quiet_nan: 0x7f };
    const E5M2: Narrow = Narrow { mantissa_bits: 2, bias: 15, largest: 0x7b, special: 0x7c, quiet_nan: 0x7e };

    /// The bits of the smallest normal number as float32.
    pub(super) const fn smallest_normal(&self) -> u32 {
        (127 + 1 - self.bias) << 23
    }

    /// The value of `magnitude`, which is an element of the format without its sign.
    #[inline(always)]
    pub(super) const fn widen(&self, magnitude: u32) -> f32 {
        let shifted = magnitude << (23 - self.mantissa_bits);
        // float32 with these bits has an exponent that is too small by the difference of the
        // biases. The product is exact, also where the number is subnormal.
        let scale = f32::from_bits((127 + 127 - self.bias) << 23);
        let value = f32::from_bits(shifted) * scale;
        if magnitude >= self.special { f32::from_bits(shifted | INFINITY) } else { value }
    }

    /// Rounds the magnitude of a number to nearest even.
    #[inline(always)]
    fn narrow(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let dropped = 23 - self.mantissa_bits;
        // A normal number of the format: as for bfloat16, with the other bias.
        let is_odd = magnitude >> dropped & 1;
        let rebias = (127 - self.bias) << 23;
        let half = (1 << (dropped - 1)) - 1;
        let normal = magnitude.wrapping_sub(rebias).wrapping_add(half + is_odd) >> dropped;
        // A subnormal one: the addition of a number whose last place is the format's smallest
        // number rounds, and leaves the result in the low bits.
        let anchor = f32::from_bits((127 + 1 - self.bias + dropped) << 23);
        let subnormal = (f32::from_bits(magnitude) + anchor).to_bits().wrapping_sub(anchor.to_bits());
        let rounded = if magnitude < self.smallest_normal() { subnormal } else { normal };
        let number = if rounded < self.largest { rounded } else { self.largest };
        if magnitude > INFINITY { self.quiet_nan } else { number }
    }
}

/// The sign of `x` as the top bit of `bits` bits; a NaN has none.
#[inline(always)]
fn sign_of(x: f32, bits: u32) -> u32 {
    if x.is_nan() { 0 } else { (x.to_bits() >> 31) << (bits - 1) }
}

impl Float for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = Narrow::FLOAT16.widen(bits & 0x7fff);
        f32::from_bits(magnitude.to_bits() | (bits & 0x8000) << 16)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        f16::from_bits((Narrow::FLOAT16.narrow(x) | sign_of(x, 16)) as u16)
    }

    #[inline(always)]
    fn widen_block<I: Instructions>(from: &[Self; LANES]) -> [f32; LANES] {
        I::widen_float16(from)
    }

    #[inline(always)]
    fn narrow_block<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
        I::narrow_float16(from)
    }
}

/// An 8-bit float.
pub(super) trait Float8: Copy + Default {
    const FORMAT: Narrow;
    /// What [`scaled_float16`](Self::scaled_float16) is to be multiplied by.
    const SCALE: f32;

    fn from_bits(bits: u8) -> Self;
    fn to_bits(self) -> u8;

    /// The number divided by [`SCALE`](Self::SCALE), exactly.
    fn scaled_float16(self) -> f16;
}

impl Float8 for F8E4M3 {
    const FORMAT: Narrow = Narrow::E4M3;
    const SCALE: f32 = 256.0;

    #[inline(always)]
    fn from_bits(bits: u8) -> Self {
        F8E4M3::from_bits(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u8 {
        F8E4M3::to_bits(self)
    }

    #[inline(always)]
    fn scaled_float16(self) -> f16 {
        let bits = u16::from(self.to_bits());
        // As a float16, the exponent is too small by the difference of the biases.
        let number = (bits & 0x80) << 8 | (bits & 0x7f) << 7;
        f16::from_bits(if bits & 0x7f == 0x7f { 0x7e00 } else { number })
    }
}

impl Float8 for F8E5M2 {
    const FORMAT: Narrow = Narrow::E5M2;
    const SCALE: f32 = 1.0;

    #[inline(always)]
    fn from_bits(bits: u8) -> Self {
        F8E5M2::from_bits(bits)
    }

    #[inline(always)]
    fn to_bits(self) -> u8 {
        F8E5M2::to_bits(self)
    }

    #[inline(always)]
    fn scaled_float16(self) -> f16 {
        // The first byte of a float16.
        f16::from_bits(u16::from(self.to_bits()) << 8)
    }
}

impl<T: Float8> Float for T {
    #[inline(always)]
    fn widen(self) -> f32 {
        let bits = u32::from(self.to_bits());
        let magnitude = T::FORMAT.widen(bits & 0x7f);
        f32::from_bits(magnitude.to_bits() | (bits & 0x80) << 24)
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        T::from_bits((T::FORMAT.narrow(x) | sign_of(x, 8)) as u8)
    }

    #[inline(always)]
    fn widen_block<I: Instructions>(from: &[Self; LANES]) -> [f32; LANES] {
        I::widen_float8(from)
    }

    #[inline(always)]
    fn narrow_block<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
        I::narrow_float8(from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every finite value of a float8 format with its bits, by the format's definition.
    fn finite_values(exponent_bits: u32, mantissa_bits: u32, largest: u8) -> Vec<(f64, u8)> {
        let bias = (1 << (exponent_bits - 1)) - 1;
        (0..=largest)
            .map(|bits| {
                let mantissa = f64::from(bits & ((1 << mantissa_bits) - 1)) / f64::from(1 << mantissa_bits);
                let exponent = i32::from(bits >> mantissa_bits);
                let value = if exponent == 0 {
                    mantissa * 2f64.powi(1 - bias)
                } else {
                    (1.0 + mantissa) * 2f64.powi(exponent - bias)
                };
                (value, bits)
            })
            .collect()
    }

    /// The nearest value, ties to even bits, saturating. Found by search, not by bit operations.
    fn nearest(values: &[(f64, u8)], x: f32) -> u8 {
        let sign = if x.is_sign_negative() { 0x80 } else { 0 };
        let x = f64::from(x).abs();
        if x > values[values.len() - 1].0 {
            return sign | values[values.len() - 1].1;
        }
        let (_, bits) = values
            .iter()
            .copied()
            .min_by(|a, b| {
                let (da, db) = ((a.0 - x).abs(), (b.0 - x).abs());
                da.total_cmp(&db).then((a.1 & 1).cmp(&(b.1 & 1)))
            })
            .expect("the list is not empty");
        sign | bits
    }

    fn probes(values: &[(f64, u8)]) -> Vec<f32> {
        let mut probes =
            vec![0.0, -0.0, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, f32::MIN, 1e-45, -1e-45, 464.0, 465.0, 61440.0];
        for pair in values.windows(2) {
            let middle = ((pair[0].0 + pair[1].0) / 2.0) as f32;
            for x in [pair[0].0 as f32, middle, middle.next_up(), middle.next_down()] {
                probes.extend([x, -x]);
            }
        }
        let mut state = 1u32;
        for _ in 0..20_000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let x = f32::from_bits(state);
            if !x.is_nan() {
                probes.push(x);
            }
        }
        probes
    }

    #[test]
    fn float8_is_the_nearest_value_with_ties_to_even_and_saturates() {
        let e4m3 = finite_values(4, 3, 0x7e);
        let e5m2 = finite_values(5, 2, 0x7b);
        for x in probes(&e4m3).into_iter().chain(probes(&e5m2)) {
            assert_eq!(F8E4M3::narrow(x).to_bits(), nearest(&e4m3, x), "float8_e4m3 of {x:e}");
            assert_eq!(F8E5M2::narrow(x).to_bits(), nearest(&e5m2, x), "float8_e5m2 of {x:e}");
        }
        widens_to(&e4m3, F8E4M3::from_bits);
        widens_to(&e5m2, F8E5M2::from_bits);
    }

    fn widens_to<T: Float>(values: &[(f64, u8)], from_bits: impl Fn(u8) -> T) {
        for &(value, bits) in values {
            let wide = [from_bits(bits), from_bits(bits | 0x80)].map(|x| f64::from(x.widen()));
            assert_eq!(wide, [value, -value]);
        }
    }

    #[test]
    fn half_types_round_as_the_half_crate_and_widen_exactly() {
        let mut probes: Vec<f32> =
            (0..=u16::MAX).flat_map(|b| [f16::from_bits(b).to_f32(), bf16::from_bits(b).to_f32()]).collect();
        let near: Vec<f32> = probes
            .iter()
            .filter(|x| x.is_finite())
            .flat_map(|x| {
                [x.next_up(), x.next_down(), f32::from_bits(x.to_bits() | 0x8000), f32::from_bits(x.to_bits() | 0x1000)]
            })
            .collect();
        probes.extend(near);
        for x in probes {
            let (half, brain) = (f16::narrow(x).to_bits(), bf16::narrow(x).to_bits());
            if x.is_nan() {
                assert_eq!((half, brain), (0x7e00, 0x7fc0));
            } else {
                assert_eq!(half, f16::from_f32_const(x).to_bits(), "{x:e}");
                assert_eq!(brain, bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
        for half in (0..=u16::MAX).map(f16::from_bits) {
            let wide = half.widen();
            assert!(half.is_nan() && wide.is_nan() || half.to_f32_const().to_bits() == wide.to_bits());
        }
    }
}
