//! Elements of tensors and what is computed of them on a processor: the values and the arithmetic
//! under [distcollective](https://docs.rs/distcollective), which exports what its callers need of
//! them.
//!
//! | module | what it has |
//! |---|---|
//! | [`data_type`], [`element`] | element types; the Rust types that stand for them |
//! | [`shape`], [`layout`] | dimensions; how the elements of inputs are reached in the order of an output |
//! | [`reduce_operation`], [`wire_type`] | how elements are reduced, and in which type they travel |
//! | [`compute`] | reductions, conversions, element-wise arithmetic, transposes and slices, on raw memory |
//! | [`mod@numbered`] | enums whose values have names and numbers |
//! | [`mod@error`], [`rank`] | the error of all calls, and the ranks that it names |
//!
//! # Features
//!
//! - `float8`: conversions between [`F8E4M3`](element::F8E4M3), [`F8E5M2`](element::F8E5M2) and the
//!   types of the crate `float8`.
//! - `num-traits`: the traits of that crate for [`f16`](element::f16) and
//!   [`bf16`](element::bf16).

#[cfg(target_endian = "big")]
compile_error!("distcollective supports little-endian processors only");

pub mod compute;
pub mod data_type;
pub mod element;
pub mod error;
pub mod layout;
pub mod numbered;
pub mod rank;
pub mod reduce_operation;
pub mod shape;
pub mod wire_type;
