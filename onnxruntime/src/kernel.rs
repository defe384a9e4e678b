//! One node of a session.

use std::sync::{Mutex, PoisonError};

use distcollective::dist_collective::BoundLayer;
use distcollective::{Communicator, DataType, DistCollectiveLayer, Error, ErrorKind, Result, Stream};
use ort_sys::{ONNXTensorElementDataType as ElementType, OrtKernelContext};

use crate::api::{Api, Tensor};
use crate::node::Node;

/// One node of a session. The node's type is known at the first run, which binds the layer to the
/// communicator. All ranks do so in the same order: that of the nodes.
pub(crate) struct Kernel {
    api: Api,
    communicator: Communicator,
    layer: DistCollectiveLayer,
    bound: Mutex<Option<(DataType, BoundLayer)>>,
}

impl Kernel {
    pub(crate) fn new(api: Api, node: &Node, communicator: Communicator) -> Result<Self> {
        let layer = node.layer(communicator.world_size())?;
        Ok(Kernel { api, communicator, layer, bound: Mutex::new(None) })
    }

    pub(crate) fn api(&self) -> Api {
        self.api
    }

    /// Runs the node.
    ///
    /// # Safety
    ///
    /// The context is that of a run of the node.
    pub(crate) unsafe fn compute(&self, context: *mut OrtKernelContext) -> Result<()> {
        let about = |error: Error| error.about(|| format!("node {:?} (DistCollective)", self.layer.name()));
        // SAFETY: the caller's promise.
        let Tensor { element_type, dims, data: input } = unsafe { self.api.input(context)? };
        let data_type = data_type_of(element_type).map_err(about)?;
        let bound = self.bound(data_type)?;
        let shape = bound.output_shape(&dims)?;
        // SAFETY: as above.
        let output = unsafe { self.api.output(context, shape.as_slice())? };
        // SAFETY: ONNX Runtime gives the input, and memory for the output that nothing else uses,
        // until the run ends; the wait ends before.
        unsafe {
            if !bound.writes_output() {
                output.write_bytes(0, shape.byte_len(data_type));
            }
            bound.enqueue(input, output, &dims, &Stream::inline())?.wait()?;
        }
        Ok(())
    }

    /// Compares the node's name with the other ranks', whose nodes may be in another order.
    /// Collective.
    fn compare_names(&self) -> Result<()> {
        let names = self.communicator.all_gather_bytes(self.layer.name().as_bytes())?;
        let names: Vec<_> = names.iter().map(|name| String::from_utf8_lossy(name)).collect();
        match names.iter().position(|name| *name != names[0]) {
            None => Ok(()),
            Some(rank) => {
                let text = format!(
                    "ranks run different nodes: rank 0 runs {:?}, rank {rank} runs {:?}; give the ranks models with equal \
                     nodes, and sessions the execution mode ORT_SEQUENTIAL",
                    names[0], names[rank]
                );
                Err(Error::new(ErrorKind::Disagreement, text))
            }
        }
    }

    fn bound(&self, data_type: DataType) -> Result<BoundLayer> {
        let mut bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        match &*bound {
            Some((bound_type, layer)) if *bound_type == data_type => Ok(layer.clone()),
            _ => {
                self.compare_names()?;
                let layer = self.layer.bind(&self.communicator, data_type)?;
                *bound = Some((data_type, layer.clone()));
                Ok(layer)
            }
        }
    }
}

/// The library's type of an `ONNXTensorElementDataType`.
fn data_type_of(element_type: i32) -> Result<DataType> {
    const TYPES: [(ElementType, DataType); 10] = [
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT, DataType::Float32),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT16, DataType::Float16),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BFLOAT16, DataType::Bfloat16),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FN, DataType::Float8E4M3),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2, DataType::Float8E5M2),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64, DataType::Int64),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32, DataType::Int32),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT8, DataType::Int8),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT8, DataType::Uint8),
        (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_BOOL, DataType::Bool),
    ];
    let found = TYPES.into_iter().find(|(number, _)| *number as i32 == element_type);
    found.map(|(_, data_type)| data_type).ok_or_else(|| {
        let types: Vec<&str> = TYPES.iter().map(|(_, data_type)| data_type.name()).collect();
        let name = OTHER_TYPES.into_iter().find(|(number, _)| *number as i32 == element_type);
        let name = name.map_or_else(|| format!("number {element_type} of ONNX's types"), |(_, name)| name.to_owned());
        let text = format!("the input's elements are {name}; the operator takes {}", types.join(", "));
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

/// Types that the operator does not take.
const OTHER_TYPES: [(ElementType, &str); 7] = [
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING, "strings"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE, "float64"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16, "uint16"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16, "int16"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32, "uint32"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64, "uint64"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT4, "int4"),
];
