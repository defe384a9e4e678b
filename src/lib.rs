//! TensorRT's DistCollective layer as a library: collectives are layers of a network, whose shapes, types and participants
//! are checked when the network is built, and which run on the communicator of an execution context.
//!
//! There are three doors, and behind them one piece of code:
//!
//! - **the network**, for graphs, plans and memory planning: [`Network`] → [`Builder`] → [`Engine`] → [`ExecutionContext`];
//! - **the layer by itself**, for engines with a graph of their own: [`DistCollectiveLayer`] → [`BoundLayer`];
//! - **eager calls**, for those who know torch.distributed: the methods of [`Communicator`].
//!
//! Ranks are threads of one process ([`Communicator::in_process`]) or processes of one machine ([`Environment::from_env`],
//! [`Communicator::builder`]). On them everything works that the layer means, without
//! any GPU: eight operations ([`CollectiveOperation`]), five reductions ([`ReduceOperation`]), ten element types
//! ([`DataType`]), groups and partitions ([`Groups`]).
//!
//! # What a collective means
//!
//! Shapes are checked by [`output_shape`], where buffers may share memory by [`InPlace`]. Floats are reduced in float32, in
//! the order of the group's ranks, and rounded once; maximum and minimum prefer a number to a NaN and order -0 below +0;
//! integers wrap; a reduction over one rank changes no byte, and neither does movement. Results have the same bits on every
//! rank and in every run.
//!
//! An output that an operation does not write on a rank (off the root of reduce and gather; on ranks that do not take part)
//! keeps the bytes of a buffer that was bound to it, and reads as zeros inside a network.
//!
//! # Failure
//!
//! Every call returns by its deadline. See the contract of [`Communicator`], and [`Error`] for what errors say.

#[cfg(not(target_os = "linux"))]
compile_error!("distcollective supports Linux only");
#[cfg(target_endian = "big")]
compile_error!("distcollective supports little-endian processors only");

mod builder;
mod collective;
mod comm;
mod compute;
mod context;
mod cuda;
mod data_type;
mod dist_collective;
mod element;
mod engine;
mod environment;
mod error;
mod lane;
mod memory;
mod network;
mod rank;
mod shape;
mod stream;
mod sync;

pub use builder::Builder;
pub use collective::{
    Collective, CollectiveOperation, Groups, InPlace, Partition, ReduceOperation, Root, output_dims, output_shape,
};
pub use comm::{Communicator, CommunicatorBuilder, DEFAULT_TIMEOUT, NcclId, Operands};
pub use context::{Bindings, ContextOptions, ExecutionContext, InputBuffer};
pub use data_type::DataType;
pub use dist_collective::{BoundLayer, DistCollective, DistCollectiveLayer, RawCall, Unrooted};
pub use element::{Bool, Element, F8E4M3, F8E5M2, bf16, f16};
pub use engine::{Engine, Inspection, IoMode, IoTensor};
pub use environment::{ChaCha20Rng, DEFAULT_SEED, Environment, EnvironmentBuilder, Launcher};
pub use error::{Error, ErrorKind, Result};
pub use memory::{Buffer, MemorySpace, TensorView, TensorViewMut};
pub use network::{
    CastLayer, ConstantLayer, Layer, LayerBody, LayerId, Network, Plugin, PluginCall, PluginLayer, PluginRegistry,
    Shuffle, ShuffleLayer, TensorId,
};
pub use rank::{GroupRank, Rank};
pub use shape::{Dims, MAX_DIMS, Shape};
pub use stream::{Failed, Stream, Work};

/// The README's example is compiled and run with the documentation's.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
pub struct Readme;
