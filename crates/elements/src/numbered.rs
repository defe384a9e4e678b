//! Enums whose values have names and numbers.

use crate::error::{Error, ErrorKind};

/// Gives an enum what follows from the names of its variants: `ALL`, `name`, `number` and
/// `Display`, and `from_number` and `FromStr`, which reads names in upper or lower case. The enum
/// has discriminants, which are the numbers.
///
/// - `or none` behind the enum: `from_number` gives an `Option`, which is `None` for its
///   `NONE_NUMBER`, and there is no `FromStr`.
/// - `names` before the enum leaves out `from_number` and `FromStr`, `text` all but `FromStr`.
///
/// ```
/// #[derive(Clone, Copy, Debug, PartialEq)]
/// pub enum Side {
///     Left = 1,
///     Right = 2,
/// }
///
/// distcollective_elements::numbered!(Side, "a side": Left "left", Right "right");
///
/// assert_eq!("Left".parse::<Side>()?, Side::from_number(1)?);
/// let error = Side::from_number(0).unwrap_err().to_string();
/// assert!(error.ends_with("they are 1 (left), 2 (right)"), "{error}");
/// # Ok::<(), distcollective_elements::error::Error>(())
/// ```
#[macro_export]
macro_rules! numbered {
    (names $enum:ident: $($variant:ident $name:literal),+ $(,)?) => {
        impl $enum {
            /// Every value.
            pub const ALL: [$enum; [$($name),+].len()] = [$($enum::$variant),+];

            /// The name in text.
            pub const fn name(self) -> &'static str {
                match self {
                    $($enum::$variant => $name,)+
                }
            }

            /// The number in C, which is TensorRT's if TensorRT has one.
            #[inline]
            pub const fn number(self) -> i32 {
                self as i32
            }

            fn with_name(text: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| text.eq_ignore_ascii_case(value.name()))
            }

            fn with_number(number: i32) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.number() == number)
            }
        }

        impl ::std::fmt::Display for $enum {
            fn fmt(&self, f: &mut ::std::fmt::Formatter<'_>) -> ::std::fmt::Result {
                f.pad(self.name())
            }
        }
    };
    (text $enum:ident, $what:literal) => {
        impl ::std::str::FromStr for $enum {
            type Err = $crate::error::Error;

            /// Reads a name in upper or lower case.
            fn from_str(text: &str) -> $crate::error::Result<Self> {
                let known = || Self::ALL.map(Self::name);
                Self::with_name(text).ok_or_else(|| $crate::numbered::unknown_name($what, text, &known()))
            }
        }
    };
    ($enum:ident or none, $what:literal: $($variant:ident $name:literal),+ $(,)?) => {
        $crate::numbered!(names $enum: $($variant $name),+);

        impl $enum {
            /// The value with this [`number`](Self::number); `None` for
            /// [`NONE_NUMBER`](Self::NONE_NUMBER).
            ///
            /// # Errors
            ///
            /// No value has the number.
            pub fn from_number(number: i32) -> $crate::error::Result<Option<Self>> {
                match Self::with_number(number) {
                    None if number != Self::NONE_NUMBER => {
                        let known = Self::ALL.map(|value| (value.number(), value.name()));
                        Err($crate::numbered::unknown_number($what, number, &known)
                            .followed_by(&format!(", and {} for none", Self::NONE_NUMBER)))
                    }
                    found => Ok(found),
                }
            }
        }
    };
    ($enum:ident, $what:literal: $($variant:ident $name:literal),+ $(,)?) => {
        $crate::numbered!(names $enum: $($variant $name),+);

        impl $enum {
            /// The value with this [`number`](Self::number).
            ///
            /// # Errors
            ///
            /// No value has the number.
            pub fn from_number(number: i32) -> $crate::error::Result<Self> {
                let known = || Self::ALL.map(|value| (value.number(), value.name()));
                Self::with_number(number).ok_or_else(|| $crate::numbered::unknown_number($what, number, &known()))
            }
        }

        $crate::numbered!(text $enum, $what);
    };
}

/// The error of a number that no value has. `what` is what the values are: `a data type`.
pub fn unknown_number(what: &str, number: i32, known: &[(i32, &str)]) -> Error {
    let known: Vec<String> = known.iter().map(|(number, name)| format!("{number} ({name})")).collect();
    let text = format!("{number} is not the number of {what}; they are {}", known.join(", "));
    Error::new(ErrorKind::InvalidArgument, text)
}

/// The error of a name that no value has.
pub fn unknown_name(what: &str, text: &str, known: &[&str]) -> Error {
    Error::new(ErrorKind::InvalidArgument, format!("{text:?} is not {what}; they are {}", known.join(", ")))
}
