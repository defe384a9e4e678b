//! The 8-bit floating-point types of the Open Compute Project's "OCP 8-bit Floating Point
//! Specification (OFP8)", revision 1.0.

use std::cmp::Ordering;
use std::fmt;

/// How a format encodes numbers: one sign bit, then exponent, then mantissa.
#[derive(Clone, Copy)]
struct Format {
    mantissa_bits: u32,
    bias: u32,
    /// The bits of the largest finite number. All above are NaN, or in E5M2 infinity.
    largest: u8,
    /// The bits of the positive quiet NaN.
    nan: u8,
    /// The bits of infinity. E4M3 has none.
    infinity: Option<u8>,
}

const E4M3: Format = Format { mantissa_bits: 3, bias: 7, largest: 0x7e, nan: 0x7f, infinity: None };
const E5M2: Format = Format { mantissa_bits: 2, bias: 15, largest: 0x7b, nan: 0x7e, infinity: Some(0x7c) };

const F32_MANTISSA_BITS: u32 = 23;
const F32_BIAS: u32 = 127;

impl Format {
    /// Rounds to nearest even with integers only, so that the floating-point environment has no
    /// say. What is beyond the largest finite number becomes that, infinity too.
    const fn narrow(self, x: f32) -> u8 {
        let sign = (x.to_bits() >> 24) as u8 & 0x80;
        let magnitude = x.to_bits() & 0x7fff_ffff;
        if x.is_nan() {
            return self.nan;
        }
        if magnitude >= self.widen(self.largest).to_bits() {
            return sign | self.largest;
        }
        let exponent = magnitude >> F32_MANTISSA_BITS;
        // The exponent of the smallest normal number, as float32 writes it.
        let least = F32_BIAS + 1 - self.bias;
        // The bits that the format does not keep: more of them below the smallest normal number.
        let dropped = F32_MANTISSA_BITS - self.mantissa_bits + least.saturating_sub(exponent);
        if dropped > F32_MANTISSA_BITS + 1 {
            // Below half of the smallest number.
            return sign;
        }
        let mantissa = if exponent >= least {
            // With the exponent as the format writes it, into which a rounding may carry.
            magnitude - ((least - 1) << F32_MANTISSA_BITS)
        } else {
            magnitude & ((1 << F32_MANTISSA_BITS) - 1) | 1 << F32_MANTISSA_BITS
        };
        // Half of the last place kept, less one if the kept part is even: it carries if the dropped
        // part is more than a half, or a half beside an odd kept part.
        let half = (1 << (dropped - 1)) - 1 + (mantissa >> dropped & 1);
        sign | ((mantissa + half) >> dropped) as u8
    }

    /// Exact: every number of the format is one of float32.
    const fn widen(self, bits: u8) -> f32 {
        let sign = (bits as u32 & 0x80) << 24;
        let magnitude = bits & 0x7f;
        if magnitude > self.largest {
            let is_infinite = matches!(self.infinity, Some(infinity) if infinity == magnitude);
            return f32::from_bits(sign | if is_infinite { 0x7f80_0000 } else { 0x7fc0_0000 });
        }
        let magnitude = magnitude as u32;
        if magnitude >> self.mantissa_bits == 0 {
            // A multiple of the smallest number.
            let smallest = f32::from_bits((F32_BIAS + 1 - self.bias - self.mantissa_bits) << F32_MANTISSA_BITS);
            let value = magnitude as f32 * smallest;
            return f32::from_bits(sign | value.to_bits());
        }
        let rebias = (F32_BIAS - self.bias) << F32_MANTISSA_BITS;
        f32::from_bits(sign | ((magnitude << (F32_MANTISSA_BITS - self.mantissa_bits)) + rebias))
    }
}

macro_rules! float8 {
    ($(#[$doc:meta])* $type:ident, $format:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $type(u8);

        impl $type {
            /// The largest finite number.
            pub const MAX: Self = Self($format.largest);
            /// The positive quiet NaN.
            pub const NAN: Self = Self($format.nan);

            /// The value with these bits. Every byte is one.
            pub const fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            /// The bits.
            pub const fn to_bits(self) -> u8 {
                self.0
            }

            /// Rounds to nearest even. What is beyond [`MAX`](Self::MAX) becomes that, infinity
            /// too; a NaN becomes [`NAN`](Self::NAN).
            pub const fn from_f32(x: f32) -> Self {
                Self($format.narrow(x))
            }

            /// The same number as float32.
            pub const fn to_f32(self) -> f32 {
                $format.widen(self.0)
            }

            /// Whether it is a NaN.
            pub const fn is_nan(self) -> bool {
                self.to_f32().is_nan()
            }
        }

        impl From<$type> for f32 {
            fn from(x: $type) -> f32 {
                x.to_f32()
            }
        }

        impl From<$type> for f64 {
            fn from(x: $type) -> f64 {
                x.to_f32().into()
            }
        }

        #[cfg(feature = "float8")]
        impl From<float8::$type> for $type {
            fn from(x: float8::$type) -> Self {
                Self(x.to_bits())
            }
        }

        #[cfg(feature = "float8")]
        impl From<$type> for float8::$type {
            fn from(x: $type) -> Self {
                Self::from_bits(x.0)
            }
        }

        impl PartialEq for $type {
            /// Compares as numbers: -0 is 0, and a NaN is not itself.
            fn eq(&self, other: &Self) -> bool {
                self.to_f32() == other.to_f32()
            }
        }

        impl PartialOrd for $type {
            /// Compares as numbers: a NaN has no order.
            fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
                self.to_f32().partial_cmp(&other.to_f32())
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.to_f32(), f)
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.to_f32(), f)
            }
        }
    };
}

float8! {
    /// An 8-bit float with 4 bits of exponent (bias 7) and 3 of mantissa: OCP OFP8 E4M3, which
    /// others call E4M3FN. It has no infinity, one NaN with each sign (0x7f, 0xff), and 448 as its
    /// largest number.
    ///
    /// ```
    /// # use distcollective_elements::element::F8E4M3;
    /// assert_eq!(F8E4M3::from_f32(1.0).to_bits(), 0x38);
    /// assert_eq!(f32::from(F8E4M3::from_f32(f32::INFINITY)), 448.0);
    /// ```
    ///
    /// With the feature `float8` it converts from and to the type of that crate.
    F8E4M3, E4M3
}

float8! {
    /// An 8-bit float with 5 bits of exponent (bias 15) and 2 of mantissa: OCP OFP8 E5M2. It has
    /// infinities (0x7c, 0xfc), three NaNs with each sign, and 57344 as its largest finite number.
    ///
    /// ```
    /// # use distcollective_elements::element::F8E5M2;
    /// assert_eq!(F8E5M2::from_f32(1.0).to_bits(), 0x3c);
    /// assert_eq!(F8E5M2::from_bits(0x7c).to_f32(), f32::INFINITY);
    /// assert_eq!(F8E5M2::from_f32(f32::INFINITY), F8E5M2::MAX);
    /// ```
    ///
    /// With the feature `float8` it converts from and to the type of that crate.
    F8E5M2, E5M2
}

#[cfg(all(test, feature = "float8"))]
mod tests {
    use super::*;

    /// All 2^32 values would take minutes. These are every exponent with the mantissas around each
    /// value of a format, the middles between two, and some others.
    fn probes() -> impl Iterator<Item = f32> {
        (0..=u32::from(u16::MAX)).flat_map(|top| {
            let bits = top << 16;
            [0, 1, 0x7fff, 0x8000, 0x8001, 0xffff].map(|low| f32::from_bits(bits | low))
        })
    }

    #[test]
    fn conversions_are_those_of_the_float8_crate() {
        for bits in 0..=u8::MAX {
            let (e4m3, e5m2) = (F8E4M3::from_bits(bits).to_f32(), F8E5M2::from_bits(bits).to_f32());
            let theirs = (float8::F8E4M3::from_bits(bits).to_f32(), float8::F8E5M2::from_bits(bits).to_f32());
            assert!(e4m3.to_bits() == theirs.0.to_bits() || e4m3.is_nan() && theirs.0.is_nan(), "{bits:#x}");
            assert!(e5m2.to_bits() == theirs.1.to_bits() || e5m2.is_nan() && theirs.1.is_nan(), "{bits:#x}");
        }
        for x in probes().filter(|x| !x.is_nan()) {
            let (e4m3, e5m2) = (F8E4M3::from_f32(x), F8E5M2::from_f32(x));
            assert_eq!(e4m3.to_bits(), float8::F8E4M3::from_f32(x).to_bits(), "{x:e}");
            assert_eq!(e5m2.to_bits(), float8::F8E5M2::from_f32(x).to_bits(), "{x:e}");
        }
        assert_eq!((F8E4M3::from_f32(-f32::NAN).to_bits(), F8E5M2::from_f32(-f32::NAN).to_bits()), (0x7f, 0x7e));
    }

    #[test]
    fn comparison_and_text_are_those_of_the_numbers() {
        let [zero, minus_zero, one, nan] = [0x00, 0x80, 0x38, 0x7f].map(F8E4M3::from_bits);
        assert!(zero == minus_zero && zero < one && nan != nan && nan.partial_cmp(&one).is_none());
        assert_eq!((format!("{one:?}"), format!("{one:.2}")), ("1.0".to_owned(), "1.00".to_owned()));
    }
}
