//! One node of a session.

use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

use distcollective::dist_collective::BoundLayer;
use distcollective::{Communicator, DataType, DistCollectiveLayer, Error, ErrorKind, Groups, Result, Stream};
use ort_sys::{ONNXTensorElementDataType as ElementType, OrtKernelContext};

use crate::api::{Api, Tensor};
use crate::node::Node;

/// One node of a session. The node's type is known at the first run, which binds the layer to the
/// communicator. All ranks do so in the same order: that of the nodes.
pub(crate) struct Kernel {
    api: Api,
    communicator: Communicator,
    /// Locked while a node runs, for all nodes of the sessions that were given the communicator.
    running: &'static Mutex<()>,
    layer: DistCollectiveLayer,
    bound: Mutex<Option<(DataType, BoundLayer)>>,
}

impl Kernel {
    pub(crate) fn new(api: Api, node: &Node, communicator: Communicator, running: &'static Mutex<()>) -> Result<Self> {
        let layer = node.layer(communicator.world_size())?;
        Ok(Kernel { api, communicator, running, layer, bound: Mutex::new(None) })
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
        // SAFETY: the caller's promise.
        unsafe { self.run(context) }
            .map_err(|error| error.about(|| format!("node {:?} (DistCollective)", self.layer.name())))
    }

    /// # Safety
    ///
    /// As for [`compute`](Self::compute).
    unsafe fn run(&self, context: *mut OrtKernelContext) -> Result<()> {
        // SAFETY: the caller's promise.
        let input = unsafe { self.api.input(context) };
        let typed = input.and_then(|input| Ok((data_type_of(input.element_type)?, input)));
        let _running = self.running_alone()?;
        let (data_type, Tensor { shape: input_shape, data: input, .. }) =
            typed.inspect_err(|error| self.refuse(error))?;
        let bound = self.bound(data_type)?;
        let output = bound.output_shape(input_shape.as_slice()).and_then(|shape| {
            // SAFETY: as above.
            Ok((unsafe { self.api.output(context, &shape)? }, shape))
        });
        let (output, shape) = output.inspect_err(|error| self.refuse(error))?;
        // SAFETY: ONNX Runtime gives the input, and memory for the output that nothing else uses,
        // until the run ends; the wait ends before.
        unsafe {
            if !bound.writes_output() {
                output.write_bytes(0, shape.byte_len(data_type));
            }
            bound.enqueue(input, output, input_shape.as_slice(), &Stream::inline())?.wait()?;
        }
        Ok(())
    }

    /// Whether the node copies its input on every rank, and concerns no other rank.
    fn is_identity(&self) -> bool {
        self.layer.nb_rank() == Some(1) && *self.layer.groups() == Groups::All
    }

    /// Makes sure that no other node runs on the communicator at the same time: ranks would run
    /// such nodes in different orders. If one does, the communicator ends, so that no rank waits.
    fn running_alone(&self) -> Result<Option<MutexGuard<'static, ()>>> {
        if self.is_identity() {
            // Such nodes need no order.
            return Ok(None);
        }
        match self.running.try_lock() {
            Ok(guard) => Ok(Some(guard)),
            Err(TryLockError::Poisoned(poisoned)) => Ok(Some(poisoned.into_inner())),
            Err(TryLockError::WouldBlock) => {
                let text = "two nodes run at once on one communicator, so ranks may run them in different orders; give \
                            sessions the execution mode ORT_SEQUENTIAL, run one session after the other, or give each \
                            a communicator of its own";
                self.communicator.abort(&format!("node {:?} (DistCollective): {text}", self.layer.name()))?;
                Err(Error::new(ErrorKind::InvalidArgument, text))
            }
        }
    }

    /// Tells the other ranks that this one leaves out the run of the node, because of this error.
    fn refuse(&self, error: &Error) {
        let bound = self.bound.lock().unwrap_or_else(PoisonError::into_inner);
        // If this rank cannot tell them, its communicator has ended.
        let _cannot_tell = match &*bound {
            _ if self.is_identity() => Ok(()),
            Some((_, layer)) => layer.refuse_run(&error.to_string()),
            None => self.compare_names(Some(error)),
        };
    }

    /// Compares the node's name with the other ranks', whose nodes may be in another order. Tells
    /// them why this rank refuses the first run of the node, if it does. Collective.
    fn compare_names(&self, refusal: Option<&Error>) -> Result<()> {
        const NAME: u8 = 0;
        const REFUSAL: u8 = 1;
        let (kind, text) = refusal.map_or((NAME, self.layer.name().to_owned()), |error| (REFUSAL, error.to_string()));
        let said = self.communicator.all_gather_bytes(&[&[kind], text.as_bytes()].concat())?;
        let names: Vec<_> =
            said.iter().map(|said| String::from_utf8_lossy(said.get(1..).unwrap_or_default())).collect();
        if let Some(rank) = said.iter().position(|said| said.first() == Some(&REFUSAL)) {
            let text = format!("rank {rank} refused the first run: {}", names[rank]);
            return Err(Error::new(ErrorKind::RunRefused, text));
        }
        match names.iter().position(|name| *name != names[0]) {
            None => Ok(()),
            Some(rank) => {
                let text = format!(
                    "ranks run different nodes: rank 0 runs {:?}, rank {rank} runs {:?}; give the ranks models with equal \
                     nodes, and sessions with equal options",
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
                if !self.is_identity() {
                    self.compare_names(None)?;
                }
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
        let name = OTHER_TYPES.into_iter().find(|(number, _)| *number == element_type);
        let name = name.map_or_else(|| format!("number {element_type} of ONNX's types"), |(_, name)| name.to_owned());
        let text = format!("the input's elements are {name}; the operator takes {}", types.join(", "));
        Error::new(ErrorKind::InvalidArgument, text)
    })
}

/// Types that the operator does not take, by ONNX's numbers: ONNX Runtime 1.17 does not have the
/// last ones.
const OTHER_TYPES: [(i32, &str); 15] = [
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT16 as i32, "uint16"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT16 as i32, "int16"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_STRING as i32, "strings"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_DOUBLE as i32, "float64"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT32 as i32, "uint32"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_UINT64 as i32, "uint64"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX64 as i32, "complex64"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_COMPLEX128 as i32, "complex128"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E4M3FNUZ as i32, "float8_e4m3fnuz"),
    (ElementType::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT8E5M2FNUZ as i32, "float8_e5m2fnuz"),
    (21, "uint4"),
    (22, "int4"),
    (23, "float4_e2m1"),
    (24, "uint2"),
    (25, "int2"),
];
