//! Collectives as operations of candle.

use std::slice;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::backend::{BackendDevice, BackendStorage};
use candle_core::cpu_backend::CpuDevice;
use candle_core::{CpuStorage, CudaStorage, CustomOp1, DType, Layout, MetalStorage, Result, Shape, Tensor};
use distcollective::dist_collective::BoundLayer;
use distcollective::tensor::{Element, F8E4M3};
use distcollective::{Communicator, DataType, DistCollective, DistCollectiveLayer, Error, ErrorKind, Groups};

/// candle's types that the layer takes.
const TYPES: [DType; 9] =
    [DType::F64, DType::F32, DType::F16, DType::BF16, DType::F8E4M3, DType::I64, DType::I32, DType::U32, DType::U8];

/// A collective on tensors of candle: a layer on a communicator.
///
/// The layer comes from a constructor of [`DistCollective`], such as `all_reduce`, `all_gather`,
/// `reduce_scatter` and `broadcast`. Its name is in every error. Without groups all ranks of the
/// communicator take part, and [`nb_rank`](DistCollective::nb_rank) need not be set.
///
/// ```
/// use candle_core::{Device, Tensor};
/// use distcollective::{Communicator, DistCollective, ErrorKind, ReduceOperation};
/// use distcollective_candle::Collective;
///
/// let run = |communicator: &Communicator| {
///     let sum = DistCollective::all_reduce(ReduceOperation::Sum).named("sum");
///     let sum = Collective::new(sum, communicator);
///     let x = Tensor::new(&[1f32, 2.0], &Device::Cpu)?;
///     sum.apply(&x)?.to_vec1::<f32>()
/// };
/// let sums = Communicator::spawn(2, |communicator| {
///     run(&communicator).map_err(|e| distcollective::Error::new(ErrorKind::Plugin, e.to_string()))
/// })?;
/// assert_eq!(sums, [[2.0, 4.0]; 2]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// It is also a [`CustomOp1`]: `x.apply_op1(sum.clone())` is the same as `sum.apply(&x)`. Clones
/// share the layer.
///
/// A contiguous input is read where it is; another one is copied first. The output is new memory.
/// Where the operation does not write it, as off the root of `gather`, it is zero.
///
/// An input has the shape that the operation takes: one to eight dimensions, and blocks along
/// dimension 0. Its type is one of
///
/// | candle | layer |
/// |---|---|
/// | `F64`, `F32`, `F16`, `BF16` | `float64`, `float32`, `float16`, `bfloat16` |
/// | `F8E4M3` | `float8` |
/// | `I64`, `I32`, `U32`, `U8` | `int64`, `int32`, `uint32`, `uint8` |
///
/// There is no gradient: `backward` through a collective is an error. Megatron-LM's layers and
/// torch.distributed differ in what it would be.
#[derive(Clone, Debug)]
pub struct Collective {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    layer: DistCollectiveLayer,
    communicator: Communicator,
    /// The layer on the communicator. The type of the tensors is known at the first run.
    bound: Mutex<Option<(DataType, BoundLayer)>>,
}

impl Collective {
    /// A layer on a communicator. Not collective: the first run compares it with the other ranks'.
    pub fn new<R>(layer: DistCollective<R>, communicator: &Communicator) -> Self {
        let (layer, communicator) = (layer.into_layer(), communicator.clone());
        Collective { inner: Arc::new(Inner { layer, communicator, bound: Mutex::default() }) }
    }

    /// The output for an input. Collective.
    ///
    /// # Errors
    ///
    /// - A tensor that is not on the CPU, or of a type or shape that the operation cannot take.
    /// - Ranks that differ, fail or do not come before the deadline; see the contract of
    ///   [`Communicator`].
    pub fn apply(&self, x: &Tensor) -> Result<Tensor> {
        x.apply_op1(self.clone())
    }

    /// What errors are about.
    pub(crate) fn subject(&self) -> String {
        let operation = self.inner.layer.collective_operation();
        match self.inner.layer.name() {
            "" => format!("layer ({operation})"),
            name => format!("layer {name:?} ({operation})"),
        }
    }

    fn refuse<T>(&self, text: impl Into<String>) -> Result<T> {
        let error = Error::new(ErrorKind::Unsupported, text).about(|| self.subject());
        Err(candle_core::Error::wrap(error))
    }

    fn refuse_device<T>(&self, device: &str) -> Result<T> {
        let text =
            format!("the tensor is on a {device} device; it takes tensors on the CPU; move the tensor with to_device");
        self.refuse(text)
    }

    fn bound(&self, data_type: DataType) -> distcollective::Result<BoundLayer> {
        let Inner { layer, communicator, bound } = &*self.inner;
        let mut bound = bound.lock().unwrap_or_else(PoisonError::into_inner);
        match &*bound {
            Some((bound_type, layer)) if *bound_type == data_type => Ok(layer.clone()),
            _ => {
                let mut layer = layer.clone();
                if layer.nb_rank().is_none() && *layer.groups() == Groups::All {
                    layer.set_nb_rank(communicator.world_size())?;
                }
                let layer = layer.bind(communicator, data_type)?;
                *bound = Some((data_type, layer.clone()));
                Ok(layer)
            }
        }
    }

    /// Runs the layer on a contiguous tensor. `storage` makes candle's storage of the output.
    fn run<T: Element>(
        &self,
        input: &[T],
        dims: &[usize],
        storage: fn(Vec<T>) -> CpuStorage,
    ) -> Result<(CpuStorage, Shape)> {
        let run = || {
            let bound = self.bound(T::DATA_TYPE)?;
            let shape = bound.output_shape(dims)?;
            let mut output = vec![T::default(); shape.element_count()];
            bound.execute(Some(input), Some(&mut output), dims)?;
            Ok((storage(output), shape.as_slice().into()))
        };
        run().map_err(|error: Error| candle_core::Error::wrap(error.about(|| self.subject())))
    }
}

impl CustomOp1 for Collective {
    fn name(&self) -> &'static str {
        self.inner.layer.collective_operation().name()
    }

    fn cpu_fwd(&self, storage: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        let Some((start, end)) = layout.contiguous_offsets() else {
            let mut copy = CpuDevice.zeros_impl(layout.shape(), storage.dtype())?;
            storage.copy_strided_src(&mut copy, 0, layout)?;
            return self.cpu_fwd(&copy, &Layout::contiguous(layout.shape()));
        };
        let dims = layout.dims();
        match storage {
            CpuStorage::F64(x) => self.run(&x[start..end], dims, CpuStorage::F64),
            CpuStorage::F32(x) => self.run(&x[start..end], dims, CpuStorage::F32),
            CpuStorage::F16(x) => self.run(&x[start..end], dims, CpuStorage::F16),
            CpuStorage::BF16(x) => self.run(&x[start..end], dims, CpuStorage::BF16),
            CpuStorage::F8E4M3(x) => {
                let x = &x[start..end];
                // SAFETY: both types are transparent over a byte, and every byte is a value of
                // both.
                let x = unsafe { slice::from_raw_parts(x.as_ptr().cast::<F8E4M3>(), x.len()) };
                self.run(x, dims, |y| CpuStorage::F8E4M3(y.into_iter().map(Into::into).collect()))
            }
            CpuStorage::I64(x) => self.run(&x[start..end], dims, CpuStorage::I64),
            CpuStorage::I32(x) => self.run(&x[start..end], dims, CpuStorage::I32),
            CpuStorage::U32(x) => self.run(&x[start..end], dims, CpuStorage::U32),
            CpuStorage::U8(x) => self.run(&x[start..end], dims, CpuStorage::U8),
            other => {
                let types = TYPES.map(|dtype| dtype.as_str()).join(", ");
                let dtype = other.dtype().as_str();
                self.refuse(format!("the tensor is {dtype}; it takes {types}; convert the tensor with to_dtype"))
            }
        }
    }

    fn cuda_fwd(&self, _: &CudaStorage, _: &Layout) -> Result<(CudaStorage, Shape)> {
        self.refuse_device("CUDA")
    }

    fn metal_fwd(&self, _: &MetalStorage, _: &Layout) -> Result<(MetalStorage, Shape)> {
        self.refuse_device("Metal")
    }

    fn bwd(&self, _: &Tensor, _: &Tensor, _: &Tensor) -> Result<Option<Tensor>> {
        self.refuse("it has no gradient; detach its input")
    }
}
