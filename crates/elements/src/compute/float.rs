//! Floating-point elements as float32 and back. A NaN becomes the positive quiet NaN of the type
//! that it is written in.
//!
//! Conversions have no branches and no tables, so that the compiler makes vector instructions of
//! loops over them. They need the default floating-point environment (`float_env`).

use super::vector::{Instructions, LANES};
use crate::element::{Float8, FloatFormat, bf16, f16};

/// The positive quiet NaN of float32.
pub(super) const QUIET_NAN: f32 = f32::from_bits(0x7fc0_0000);

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
        // As `FloatFormat::narrow` of a normal number.
        let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
        bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 })
    }

    #[inline(always)]
    fn narrow_block<I: Instructions>(from: &[f32; LANES]) -> [Self; LANES] {
        I::narrow_bfloat16(from)
    }
}

impl Float for f16 {
    #[inline(always)]
    fn widen(self) -> f32 {
        FloatFormat::FLOAT16.widen(self.to_bits().into())
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        f16::from_bits(FloatFormat::FLOAT16.narrow(x) as u16)
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

impl<T: Float8> Float for T {
    #[inline(always)]
    fn widen(self) -> f32 {
        T::FORMAT.widen(self.to_bits().into())
    }

    #[inline(always)]
    fn narrow(x: f32) -> Self {
        T::from_bits(T::FORMAT.narrow(x) as u8)
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
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    use crate::compute::float_env::in_an_unusual_one;
    use crate::element::{F8E4M3, F8E5M2};

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
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn the_types_own_conversions_need_no_environment() {
        let probes = probes(&finite_values(4, 3, 0x7e)).into_iter().chain(probes(&finite_values(5, 2, 0x7b)));
        let probes: Vec<f32> = probes.collect();
        let convert = || {
            let narrow = |x: &f32| (F8E4M3::from_f32(*x).to_bits(), F8E5M2::from_f32(*x).to_bits());
            let widen = |bits| [F8E4M3::from_bits(bits).to_f32(), F8E5M2::from_bits(bits).to_f32()].map(f32::to_bits);
            let narrowed: Vec<_> = probes.iter().map(narrow).collect();
            (narrowed, (0..=u8::MAX).map(widen).collect::<Vec<_>>())
        };
        let expected = convert();
        assert!(probes.iter().zip(&expected.0).all(|(x, (e4m3, _))| *e4m3 == F8E4M3::narrow(*x).to_bits()));
        assert!(probes.iter().zip(&expected.0).all(|(x, (_, e5m2))| *e5m2 == F8E5M2::narrow(*x).to_bits()));
        assert_eq!(in_an_unusual_one(convert), expected);
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
