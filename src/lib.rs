//! TensorRT's DistCollective layer as a library.

mod builder;
mod collective;
mod comm;
mod compute;
mod context;
mod data_type;
mod dist_collective;
mod element;
mod engine;
mod error;
mod memory;
mod network;
mod rank;
mod shape;
mod stream;
mod sync;

pub use builder::Builder;
pub use collective::{
    Call, Collective, CollectiveOperation, Groups, InPlace, Partition, ReduceOperation, Root, output_dims, output_shape,
};
pub use comm::{Communicator, DEFAULT_TIMEOUT, Operands};
pub use context::{Bindings, ExecutionContext, InputBuffer};
pub use data_type::DataType;
pub use dist_collective::{BoundLayer, DistCollective, DistCollectiveLayer, RawCall, Unrooted};
pub use element::{Bool, Element, F8E4M3, F8E5M2, bf16, f16};
pub use engine::{Engine, Inspection, IoMode, IoTensor};
pub use error::{Error, ErrorKind, Result};
pub use memory::{Buffer, TensorView, TensorViewMut};
pub use network::{
    CastLayer, ConstantLayer, Layer, LayerBody, LayerId, Network, Plugin, PluginCall, PluginLayer, PluginRegistry,
    Shuffle, ShuffleLayer, TensorId,
};
pub use rank::{GroupRank, Rank};
pub use shape::{Dims, MAX_DIMS, Shape};
pub use stream::{Failed, Stream, Work};
