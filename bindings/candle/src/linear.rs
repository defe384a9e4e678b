//! Linear layers whose weights are split among the ranks.

use candle_core::{D, Module, Result, Tensor};
use candle_nn::Linear;
use candle_nn::var_builder::{Shard, ShardedVarBuilder};
use distcollective::{Communicator, DistCollective, Error, ErrorKind, ReduceOperation};

use crate::Collective;

/// A linear layer whose outputs are split among the ranks: rank r has the r-th part of the rows of
/// the weight `W [out_dim, in_dim]` and of the bias.
///
/// ```text
/// x [.., in_dim]  ->  x·W_rᵀ + b_r  [.., out_dim / n]
/// ```
///
/// It communicates only with [`gather_output`](Self::gather_output). A [`RowParallelLinear`] takes
/// its output as it is, and what is between the two may be any function of single elements.
///
/// `backward` gives a gradient of this rank's part only, and with `gather_output` an error.
#[derive(Clone, Debug)]
pub struct ColumnParallelLinear {
    linear: Linear,
    all_gather: Collective,
    gather_output: bool,
}

impl ColumnParallelLinear {
    /// Loads this rank's part of the tensor `weight`, and with `bias` of the tensor `bias`, below
    /// the prefix of the builder. `in_dim` and `out_dim` are those of the whole layer.
    ///
    /// # Errors
    ///
    /// - `out_dim` is not a multiple of the number of ranks.
    /// - A tensor is missing, or is not `[out_dim, in_dim]` or `[out_dim]`.
    pub fn load(
        in_dim: usize,
        out_dim: usize,
        bias: bool,
        vb: ShardedVarBuilder<'_>,
        communicator: &Communicator,
    ) -> Result<Self> {
        let loader = Loader { kind: "column-parallel", vb, communicator };
        let part = loader.part("out_dim", out_dim)?;
        let weight = loader.get("weight", &[part, in_dim], loader.shard(0))?;
        let bias = bias.then(|| loader.get("bias", &[part], loader.shard(0))).transpose()?;
        let all_gather = DistCollective::all_gather().named(loader.vb.prefix());
        Ok(ColumnParallelLinear {
            linear: Linear::new(weight, bias),
            all_gather: Collective::new(all_gather, communicator),
            gather_output: false,
        })
    }

    /// Whether every rank gets the whole output, `[.., out_dim]`. The default is `false`: each rank
    /// gets its part.
    #[must_use]
    pub fn gather_output(self, gather_output: bool) -> Self {
        ColumnParallelLinear { gather_output, ..self }
    }
}

impl Module for ColumnParallelLinear {
    /// This rank's part of the output, or all of it. With
    /// [`gather_output`](ColumnParallelLinear::gather_output) it is collective. As for candle's
    /// `Linear`, `x` has two to four dimensions.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let y = self.linear.forward(x)?;
        if !self.gather_output {
            return Ok(y);
        }
        // [n, .., part]: the operation concatenates along dimension 0.
        let parts = self.all_gather.apply(&y.unsqueeze(0)?)?;
        let last = y.rank() - 1;
        let order: Vec<usize> = (1..=last).chain([0, last + 1]).collect();
        parts.permute(order)?.flatten_from(last)
    }
}

/// A linear layer whose inputs are split among the ranks: rank r has the r-th part of the columns
/// of the weight `W [out_dim, in_dim]`. An all_reduce adds the ranks' results, and then each rank
/// adds the bias, once.
///
/// ```text
/// x_r [.., in_dim / n]  ->  x_r·W_rᵀ  [.., out_dim]  ->  all_reduce  ->  + b
/// ```
///
/// `backward` is an error.
#[derive(Clone, Debug)]
pub struct RowParallelLinear {
    linear: Linear,
    bias: Option<Tensor>,
    all_reduce: Collective,
    in_dim: usize,
    /// The first of this rank's inputs, and their number.
    inputs: (usize, usize),
    input_is_parallel: bool,
}

impl RowParallelLinear {
    /// Loads this rank's part of the tensor `weight`, and with `bias` the whole tensor `bias`,
    /// below the prefix of the builder. `in_dim` and `out_dim` are those of the whole layer.
    ///
    /// # Errors
    ///
    /// - `in_dim` is not a multiple of the number of ranks.
    /// - A tensor is missing, or is not `[out_dim, in_dim]` or `[out_dim]`.
    pub fn load(
        in_dim: usize,
        out_dim: usize,
        bias: bool,
        vb: ShardedVarBuilder<'_>,
        communicator: &Communicator,
    ) -> Result<Self> {
        let loader = Loader { kind: "row-parallel", vb, communicator };
        let part = loader.part("in_dim", in_dim)?;
        let weight = loader.get("weight", &[out_dim, part], loader.shard(1))?;
        let bias = bias.then(|| loader.get("bias", &[out_dim], Shard::default())).transpose()?;
        let all_reduce = DistCollective::all_reduce(ReduceOperation::Sum).named(loader.vb.prefix());
        Ok(RowParallelLinear {
            linear: Linear::new(weight, None),
            bias,
            all_reduce: Collective::new(all_reduce, communicator),
            in_dim,
            inputs: (communicator.rank().index() * part, part),
            input_is_parallel: true,
        })
    }

    /// Whether an input is this rank's part, `[.., in_dim / n]`, which is the default. With `false`
    /// it is the whole input, `[.., in_dim]`, and the layer takes this rank's part of it.
    #[must_use]
    pub fn input_is_parallel(self, input_is_parallel: bool) -> Self {
        RowParallelLinear { input_is_parallel, ..self }
    }

    /// This rank's part of a whole input. One of another length has such a part too, so it is
    /// refused, on every rank.
    fn part_of(&self, x: &Tensor) -> Result<Tensor> {
        let (start, len) = self.inputs;
        let found = x.dim(D::Minus1)?;
        if found != self.in_dim {
            let text = format!("the input's last dimension is {found}, and in_dim is {}", self.in_dim);
            let error = Error::new(ErrorKind::InvalidShape, text).about(|| self.all_reduce.subject());
            return Err(candle_core::Error::wrap(error));
        }
        x.narrow(D::Minus1, start, len)
    }
}

impl Module for RowParallelLinear {
    /// The whole output, with the same bits on every rank. Collective. As for candle's `Linear`,
    /// `x` has two to four dimensions.
    fn forward(&self, x: &Tensor) -> Result<Tensor> {
        let part = if self.input_is_parallel { x.clone() } else { self.part_of(x)? };
        let y = self.all_reduce.apply(&self.linear.forward(&part)?)?;
        match &self.bias {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}

/// Loads one rank's part of a layer.
struct Loader<'a> {
    /// What errors call the layer.
    kind: &'static str,
    vb: ShardedVarBuilder<'a>,
    communicator: &'a Communicator,
}

impl Loader<'_> {
    fn world_size(&self) -> usize {
        self.communicator.world_size() as usize
    }

    fn shard(&self, dim: usize) -> Shard {
        Shard { dim, rank: self.communicator.rank().index(), world_size: self.world_size() }
    }

    fn fail<T>(&self, text: String) -> Result<T> {
        let subject = || format!("layer {:?} ({})", self.vb.prefix(), self.kind);
        Err(candle_core::Error::wrap(Error::new(ErrorKind::InvalidShape, text).about(subject)))
    }

    /// One rank's part of a dimension.
    fn part(&self, name: &str, dim: usize) -> Result<usize> {
        let n = self.world_size();
        match dim % n {
            0 => Ok(dim / n),
            _ => self.fail(format!("{name} is {dim}, which is not a multiple of {n} ranks")),
        }
    }

    /// This rank's shard of a tensor, which has to have the dimensions `dims`.
    fn get(&self, name: &str, dims: &[usize], shard: Shard) -> Result<Tensor> {
        // The builder compares the shape only if nothing is split, and would panic at a dimension
        // that the tensor does not have.
        if shard.world_size > 1 {
            let (found, needed) = (self.dim_count(name)?, dims.len());
            if found != needed {
                return self.fail(format!("the tensor {name:?} has {found} dimensions, and the layer needs {needed}"));
            }
        }
        let tensor = match self.vb.get_with_hints(dims, name, shard) {
            Err(candle_core::Error::ShapeMismatchSplit { shape, dim, n_parts }) => {
                let found = shape.dims();
                return self.fail(format!(
                    "the tensor {name:?} is {found:?}, and dimension {dim} is not a multiple of {n_parts} ranks"
                ));
            }
            tensor => tensor?,
        };
        if tensor.dims() != dims {
            let found = tensor.dims();
            return self.fail(format!(
                "this rank's part of the tensor {name:?} is {found:?}, and the layer's sizes need {dims:?}"
            ));
        }
        Ok(tensor)
    }

    /// The number of dimensions of a whole tensor, which is not read: no dimension is a multiple of
    /// so many ranks, and the builder's error has the shape.
    fn dim_count(&self, name: &str) -> Result<usize> {
        match self.vb.get_with_hints((), name, Shard { dim: 0, rank: 0, world_size: usize::MAX }) {
            Err(candle_core::Error::ShapeMismatchSplit { shape, .. }) => Ok(shape.rank()),
            other => Ok(other?.rank()),
        }
    }
}
