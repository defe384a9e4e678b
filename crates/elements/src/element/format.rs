//! Formats of narrow floats, and how a number is converted from and to float32.

/// A format of `bits` bits, fewer of exponent and of mantissa than float32 has: a sign, then
/// exponent, then mantissa.
///
/// [`widen`](Self::widen) and [`narrow`](Self::narrow) have no branches and no tables, so that the
/// compiler makes vector instructions of loops over them. They need the default floating-point
/// environment.
pub(crate) struct FloatFormat {
    bits: u32,
    pub(crate) mantissa_bits: u32,
    /// What is added to an exponent.
    pub(crate) bias: u32,
    /// Larger magnitudes become these bits.
    pub(crate) largest: u32,
    /// The first magnitude that is infinity or a NaN.
    pub(crate) special: u32,
    /// The positive quiet NaN.
    pub(crate) quiet_nan: u32,
}

impl FloatFormat {
    /// float32's infinity. The bits of a NaN without its sign are above it.
    pub(crate) const INFINITY: u32 = 0x7f80_0000;
    pub(crate) const FLOAT16: Self =
        FloatFormat { bits: 16, mantissa_bits: 10, bias: 15, largest: 0x7c00, special: 0x7c00, quiet_nan: 0x7e00 };
    pub(crate) const F8E4M3: Self =
        FloatFormat { bits: 8, mantissa_bits: 3, bias: 7, largest: 0x7e, special: 0x7f, quiet_nan: 0x7f };
    pub(crate) const F8E5M2: Self =
        FloatFormat { bits: 8, mantissa_bits: 2, bias: 15, largest: 0x7b, special: 0x7c, quiet_nan: 0x7e };

    /// The bits of the smallest normal number as float32.
    pub(crate) const fn smallest_normal(&self) -> u32 {
        (127 + 1 - self.bias) << 23
    }

    /// The number with these bits, exactly.
    #[inline(always)]
    pub(crate) const fn widen(&self, bits: u32) -> f32 {
        let sign = bits & 1 << (self.bits - 1);
        let magnitude = bits ^ sign;
        let shifted = magnitude << (23 - self.mantissa_bits);
        // float32 with these bits has an exponent that is too small by the difference of the
        // biases. The product is exact, also where the number is subnormal.
        let scale = f32::from_bits((127 + 127 - self.bias) << 23);
        let number = (f32::from_bits(shifted) * scale).to_bits();
        let value = if magnitude >= self.special { shifted | Self::INFINITY } else { number };
        f32::from_bits(value | sign << (32 - self.bits))
    }

    /// The bits of a number, rounded to nearest even. A NaN becomes the positive quiet NaN.
    #[inline(always)]
    pub(crate) const fn narrow(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        let dropped = 23 - self.mantissa_bits;
        // A normal number of the format. Adds half of the last place, less one if the kept part is
        // even. This carries exactly if the dropped part is above a half, or if it is a half and
        // the kept part is odd.
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
        let sign = (x.to_bits() >> 31) << (self.bits - 1);
        if magnitude > Self::INFINITY { self.quiet_nan } else { number | sign }
    }

    /// [`narrow`](Self::narrow), in any floating-point environment.
    pub(crate) const fn narrow_anywhere(&self, x: f32) -> u32 {
        let magnitude = x.to_bits() & 0x7fff_ffff;
        if magnitude >= self.smallest_normal() {
            return self.narrow(x);
        }
        let dropped = 24 - self.mantissa_bits + (127 - self.bias) - (magnitude >> 23);
        let sign = (x.to_bits() >> 31) << (self.bits - 1);
        if dropped > 24 {
            // Below half of the smallest number.
            return sign;
        }
        let mantissa = magnitude & 0x7f_ffff | 1 << 23;
        let half = (1 << (dropped - 1)) - 1 + (mantissa >> dropped & 1);
        sign | (mantissa + half) >> dropped
    }

    /// The numbers of a format of 8 bits. Each NaN is the quiet one.
    pub(crate) const fn numbers(&self) -> [f32; 256] {
        let mut numbers = [0.0; 256];
        let mut bits = 0;
        while bits < 256 {
            let number = self.widen(bits as u32);
            let quiet = f32::from_bits((bits as u32 & 0x80) << 24 | 0x7fc0_0000);
            numbers[bits] = if number.is_nan() { quiet } else { number };
            bits += 1;
        }
        numbers
    }
}
