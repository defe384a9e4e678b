//! Converts floating-point elements to float32 and back. A NaN becomes the positive quiet NaN of
//! the type that it is written in.

use std::sync::LazyLock;

use half::slice::HalfFloatSliceExt;

use crate::element::{Element, F8E4M3, F8E5M2, bf16, f16};

/// The positive quiet NaN of float32.
pub(super) const QUIET_NAN: f32 = f32::from_bits(0x7fc0_0000);

/// A floating-point element. float32 holds all its values exactly.
pub(super) trait Float: Element {
    /// Writes each element as float32.
    fn widen(from: &[Self], to: &mut [f32]);

    /// Rounds each float32 to nearest even; float8 saturates, infinity too.
    fn narrow(from: &[f32], to: &mut [Self]);
}

impl Float for f32 {
    fn widen(from: &[Self], to: &mut [f32]) {
        to.copy_from_slice(from);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        for (to, &x) in to.iter_mut().zip(from) {
            *to = if x.is_nan() { QUIET_NAN } else { x };
        }
    }
}

impl Float for f16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        from.convert_to_f32_slice(to);
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        to.convert_from_f32_slice(from);
        for to in to {
            *to = if to.is_nan() { f16::from_bits(0x7e00) } else { *to };
        }
    }
}

impl Float for bf16 {
    fn widen(from: &[Self], to: &mut [f32]) {
        for (to, x) in to.iter_mut().zip(from) {
            *to = f32::from_bits(u32::from(x.to_bits()) << 16);
        }
    }

    fn narrow(from: &[f32], to: &mut [Self]) {
        for (to, x) in to.iter_mut().zip(from) {
            let bits = x.to_bits();
            // Adds half of the last place, less one if the kept part is even. This carries exactly
            // if the dropped part is above a half, or if it is a half and the kept part is odd.
            let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            *to = bf16::from_bits(if x.is_nan() { 0x7fc0 } else { rounded as u16 });
        }
    }
}

macro_rules! float8 {
    ($type:ty, $quiet_nan:literal) => {
        impl Float for $type {
            fn widen(from: &[Self], to: &mut [f32]) {
                static TABLE: LazyLock<[f32; 256]> =
                    LazyLock::new(|| std::array::from_fn(|bits| <$type>::from_bits(bits as u8).to_f32()));
                let table: &[f32; 256] = &TABLE;
                for (to, x) in to.iter_mut().zip(from) {
                    *to = table[usize::from(x.to_bits())];
                }
            }

            fn narrow(from: &[f32], to: &mut [Self]) {
                for (to, &x) in to.iter_mut().zip(from) {
                    *to = if x.is_nan() { <$type>::from_bits($quiet_nan) } else { <$type>::from_f32(x) };
                }
            }
        }
    };
}

float8!(F8E4M3, 0x7f);
float8!(F8E5M2, 0x7e);

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
            let (mut a, mut b) = ([F8E4M3::from_bits(0)], [F8E5M2::from_bits(0)]);
            F8E4M3::narrow(&[x], &mut a);
            F8E5M2::narrow(&[x], &mut b);
            assert_eq!(a[0].to_bits(), nearest(&e4m3, x), "float8_e4m3 of {x:e}");
            assert_eq!(b[0].to_bits(), nearest(&e5m2, x), "float8_e5m2 of {x:e}");
        }
        widens_to(&e4m3, F8E4M3::from_bits);
        widens_to(&e5m2, F8E5M2::from_bits);
    }

    fn widens_to<T: Float>(values: &[(f64, u8)], from_bits: impl Fn(u8) -> T) {
        for &(value, bits) in values {
            let mut wide = [0.0; 2];
            T::widen(&[from_bits(bits), from_bits(bits | 0x80)], &mut wide);
            assert_eq!(wide.map(f64::from), [value, -value]);
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
        let mut halves = vec![f16::ZERO; probes.len()];
        let mut brains = vec![bf16::ZERO; probes.len()];
        f16::narrow(&probes, &mut halves);
        bf16::narrow(&probes, &mut brains);
        for (i, &x) in probes.iter().enumerate() {
            if x.is_nan() {
                assert_eq!((halves[i].to_bits(), brains[i].to_bits()), (0x7e00, 0x7fc0));
            } else {
                assert_eq!(halves[i].to_bits(), f16::from_f32_const(x).to_bits(), "{x:e}");
                assert_eq!(brains[i].to_bits(), bf16::from_f32(x).to_bits(), "{x:e}");
            }
        }
        let all: Vec<f16> = (0..=u16::MAX).map(f16::from_bits).collect();
        let mut wide = vec![0.0; all.len()];
        f16::widen(&all, &mut wide);
        for (h, w) in all.iter().zip(wide) {
            assert!(h.is_nan() && w.is_nan() || h.to_f32_const() == w);
        }
    }
}
