//! TensorRT's DistCollective layer as a library: collectives are layers of a network, whose shapes,
//! types and participants are checked when the network is built, and which run on the communicator
//! of an execution context.
//!
//! There are three ways to use it, which run the same code:
//!
//! - **the network**, for graphs, plans and memory planning;
//! - **the layer by itself**, for engines with a graph of their own;
//! - **eager calls**, for those who know torch.distributed: the methods of [`Communicator`].
//!
//! ```text
//!  the network             the layer by itself       eager calls
//!
//!  Network                 DistCollectiveLayer
//!     | build                 | bind
//!  Engine                  BoundLayer
//!     |                       |
//!  ExecutionContext           |                         |
//!     | execute, enqueue      | execute, enqueue        | all_reduce, ...
//!     v                       v                         v
//!  +--------------------------------------------------------------+
//!  |                        Communicator                          |
//!  |      host: shared memory       |         NCCL: GPUs          |
//!  +--------------------------------------------------------------+
//! ```
//!
//! The types of every day are here, at the root. The others are in the module of their subject:
//!
//! | module | what it has |
//! |---|---|
//! | [`network`] | layers, tensors of a network, shuffles, plugins |
//! | [`engine`], [`context`] | inputs and outputs of an engine, inspection; bindings, options |
//! | [`dist_collective`] | the layer on a communicator, without a network |
//! | [`collective`] | the rules of shapes and buffers; partitions into groups |
//! | [`comm`] | making communicators, backends, time limits, calls on raw memory |
//! | [`environment`] | starting by the launcher's variables |
//! | [`stream`] | where enqueued work runs, and its errors |
//! | [`tensor`] | element types, shapes, views |
//! | [`tensor_dict`] | the weights of a model by name: broadcast, files |
//! | [`log`] | what the library logs, and to whom |
//! | [`interrupt`] | how a program ends waits of the library |
//!
//! Ranks are threads of one process or processes, with a GPU each or without any.
//! [`Environment::from_env`] finds what the launcher started; [`Communicator::spawn`] is for
//! threads. Engines in C and C++ use the library in the same three ways, through
//! `distcollective.h`.
//!
//! [`output_shape`](collective::output_shape) has the rules of shapes, and
//! [`InPlace`](collective::InPlace) says where buffers may share memory. `docs/src/operations.md`
//! has all operations and types, and the bits of results on the host and on GPUs.
//!
//! # On GPUs
//!
//! The NCCL backend has run on one GPU, never on two; CI runs it on stand-ins for CUDA and NCCL. It
//! loads `libnccl.so.2` (from 2.19 on), CUDA's driver and NVRTC when they are first used. Where one
//! is missing, a call that needs it returns an [`ErrorKind::Unsupported`]. A call is enqueued on a
//! CUDA stream ([`Stream::cuda`], [`Stream::from_raw_cuda`]) with tensors in the GPU's memory
//! ([`Communicator::allocate`], [`Buffer::zeroed_in`]); on the inline stream, and with slices and
//! arrays, it is done when it returns, and tensors may be in host memory too. What is enqueued
//! allocates nothing after the first time on a stream and waits for nothing, so it can be captured
//! into a CUDA graph; [`ContextOptions::cuda_graph`](context::ContextOptions::cuda_graph) does that
//! by itself.
//!
//! # Failure
//!
//! Every call returns by its deadline. See the contract of [`Communicator`], and [`Error`] for what
//! errors say.
//!
//! # Features
//!
//! All are on by default.
//!
//! - `float8`: conversions between [`F8E4M3`](tensor::F8E4M3), [`F8E5M2`](tensor::F8E5M2) and the
//!   types of the crate `float8`.
//! - `ndarray`: arrays and views of the crate `ndarray` as tensors.
//! - `safetensors`: files of that format as dictionaries of tensors.

#[cfg(not(target_os = "linux"))]
compile_error!("distcollective supports Linux only");
#[cfg(target_endian = "big")]
compile_error!("distcollective supports little-endian processors only");

#[cfg(test)]
mod backend_contract;
pub mod collective;
pub mod comm;
pub mod context;
mod cuda;
pub mod dist_collective;
mod element;
pub mod engine;
pub mod environment;
mod executor;
mod framing;
#[cfg(doctest)]
mod guides;
mod handshake;
mod issue_order;
mod memory;
mod moved_type;
mod mpi;
pub mod network;
pub mod stream;
mod sync;
pub mod system;
pub mod tensor_dict;
mod util;

use distcollective_elements::{compute, data_type, error, layout, rank, shape};

/// Tensors: element types, shapes, the memory that a call reads and writes.
pub mod tensor {
    #[doc(inline)]
    pub use crate::Buffer;
    #[doc(inline)]
    pub use crate::data_type::DataType;
    #[doc(inline)]
    pub use crate::element::{Bool, Element, F8E4M3, F8E5M2};
    pub use crate::element::{bf16, f16};
    pub use crate::memory::{MemorySpace, TensorView, TensorViewMut};
    #[doc(inline)]
    pub use crate::shape::{Dims, MAX_DIMS, Shape};
}

/// What the library logs, and to whom: warnings to stderr, unless `DCL_LOG` or a handler says
/// otherwise.
pub mod log {
    pub use crate::util::log::{LogLevel, clear_log_handler, set_log_handler};
}

/// How a program ends waits of the library: for Ctrl-C in a host language.
pub mod interrupt {
    pub use crate::util::interrupt::{clear_interrupt_hook, set_interrupt_hook};
}

#[doc(inline)]
pub use collective::{CollectiveOperation, Determinism, Groups, ReduceOperation, Root, WireType};
#[doc(inline)]
pub use comm::Communicator;
#[doc(inline)]
pub use context::ExecutionContext;
#[doc(inline)]
pub use data_type::DataType;
#[doc(inline)]
pub use dist_collective::{DistCollective, DistCollectiveLayer};
#[doc(inline)]
pub use engine::Engine;
#[doc(inline)]
pub use environment::Environment;
#[doc(inline)]
pub use error::{Error, ErrorKind, Result};
pub use memory::Buffer;
#[doc(inline)]
pub use network::Network;
#[doc(inline)]
pub use rank::Rank;
#[doc(inline)]
pub use stream::{Stream, Work};
#[doc(inline)]
pub use tensor_dict::TensorDict;
