//! The 8-bit floating-point types of the Open Compute Project's "OCP 8-bit Floating Point
//! Specification (OFP8)", revision 1.0.

use std::cmp::Ordering;
use std::fmt;

use half::f16;

use super::format::FloatFormat;

/// An 8-bit float, for the arithmetic on blocks of it.
pub(crate) trait Float8: Copy + Default {
    const FORMAT: FloatFormat;
    /// What [`scaled_float16`](Self::scaled_float16) is to be multiplied by.
    const SCALE: f32 = f32::from_bits((127 + 15 - Self::FORMAT.bias) << 23);

    fn from_bits(bits: u8) -> Self;
    fn to_bits(self) -> u8;

    /// The number divided by [`SCALE`](Self::SCALE), exactly.
    #[inline(always)]
    fn scaled_float16(self) -> f16 {
        let bits = u16::from(self.to_bits());
        let magnitude = bits & 0x7f;
        // As a float16, the exponent is too small by the difference of the biases.
        let number = (bits & 0x80) << 8 | magnitude << (10 - Self::FORMAT.mantissa_bits);
        // E5M2 has a float16's exponent, for infinity and NaN too.
        let is_nan = Self::FORMAT.bias != 15 && u32::from(magnitude) >= Self::FORMAT.special;
        f16::from_bits(if is_nan { 0x7e00 } else { number })
    }
}

macro_rules! float8 {
    ($(#[$doc:meta])* $type:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default)]
        #[repr(transparent)]
        pub struct $type(u8);

        impl $type {
            /// The largest finite number.
            pub const MAX: Self = Self(FloatFormat::$type.largest as u8);
            /// The positive quiet NaN.
            pub const NAN: Self = Self(FloatFormat::$type.quiet_nan as u8);

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
                Self(FloatFormat::$type.narrow_anywhere(x) as u8)
            }

            /// The same number as float32.
            pub const fn to_f32(self) -> f32 {
                // Made by the compiler: this thread's floating-point environment has no say.
                const NUMBERS: [f32; 256] = FloatFormat::$type.numbers();
                NUMBERS[self.0 as usize]
            }

            /// Whether it is a NaN.
            pub const fn is_nan(self) -> bool {
                self.to_f32().is_nan()
            }
        }

        impl Float8 for $type {
            const FORMAT: FloatFormat = FloatFormat::$type;

            #[inline(always)]
            fn from_bits(bits: u8) -> Self {
                Self(bits)
            }

            #[inline(always)]
            fn to_bits(self) -> u8 {
                self.0
            }
        }

        impl From<$type> for f32 {
            fn from(x: $type) -> f32 {
                x.to_f32()
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
    F8E4M3
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
    F8E5M2
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
        let nans = [0x7d, 0x7e, 0x7f, 0xfd].map(|bits| F8E5M2::from_bits(bits).to_f32().to_bits());
        assert_eq!(nans, [0x7fc0_0000, 0x7fc0_0000, 0x7fc0_0000, 0xffc0_0000]);
        assert_eq!((F8E4M3::from_f32(-f32::NAN).to_bits(), F8E5M2::from_f32(-f32::NAN).to_bits()), (0x7f, 0x7e));
    }

    #[test]
    fn comparison_and_text_are_those_of_the_numbers() {
        let [zero, minus_zero, one, nan] = [0x00, 0x80, 0x38, 0x7f].map(F8E4M3::from_bits);
        assert!(zero == minus_zero && zero < one && nan != nan && nan.partial_cmp(&one).is_none());
        assert_eq!((format!("{one:?}"), format!("{one:.2}")), ("1.0".to_owned(), "1.00".to_owned()));
    }
}
