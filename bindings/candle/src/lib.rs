//! Collectives for [candle](https://docs.rs/candle-core): tensor parallelism for engines in Rust,
//! over distcollective's layer by itself.
//!
//! - [`Collective`] is a layer on tensors of candle, such as all_reduce, all_gather,
//!   reduce_scatter and broadcast.
//! - [`ColumnParallelLinear`] and [`RowParallelLinear`] are the linear layers of Megatron-LM and
//!   vLLM. Each rank loads its part of one safetensors file.
//!
//! Each rank is a thread or a process, with a communicator of its own: from
//! [`Communicator::spawn`](distcollective::Communicator::spawn), or from the variables of a
//! launcher by [`Environment::from_env`](distcollective::Environment::from_env).
//!
//! # Agreement and errors
//!
//! Every rank has to make the same collectives in the same order. At the first run of a layer ranks
//! compare operation, reduction, root and type; in every run they compare operation, type and
//! length. If they differ, each rank gets an error that shows both sides. A rank that fails, dies
//! or does not come before the deadline is an error on the others, and not a hang. The deadline is
//! that of the communicator ([`with_timeout`](distcollective::Communicator::with_timeout)).
//!
//! Errors are `candle_core::Error` with the text of [`distcollective::Error`]: the rank, the layer,
//! what is wrong.
//!
//! # What there is not
//!
//! - GPUs: a tensor on a CUDA or Metal device is an error. candle's feature `cuda` needs CUDA's
//!   compiler to build, and this crate has neither been built nor run with it.
//! - Gradients: `backward` through a collective is an error.

mod collective;
mod linear;

pub use collective::Collective;
pub use linear::{ColumnParallelLinear, RowParallelLinear};

/// The programs in the guide are tests.
#[cfg(doctest)]
#[doc = include_str!("../../../docs/src/candle.md")]
pub struct Guide;
