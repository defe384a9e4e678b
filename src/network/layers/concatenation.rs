//! The Concatenation layer: TensorRT's `IConcatenationLayer`.

use serde::{Deserialize, Serialize};

use super::{Attributes, LayerBody, LayerOp, LayerRun, one_type};
use crate::cuda::Kernel;
use crate::data_type::DataType;
use crate::error::{Result, bail, error};
use crate::network::{Network, TensorId};
use crate::shape::{MAX_DIMS, Shape};

/// See [`Network::add_concatenation`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct ConcatenationLayer {
    axis: usize,
}

impl ConcatenationLayer {
    /// The dimension along which inputs are joined.
    pub fn axis(&self) -> usize {
        self.axis
    }

    /// Sets the dimension along which inputs are joined. Whether the inputs have it is checked at
    /// build.
    ///
    /// # Errors
    ///
    /// A dimension that no tensor has.
    pub fn set_axis(&mut self, axis: usize) -> Result<()> {
        check_axis(axis)?;
        self.axis = axis;
        Ok(())
    }
}

impl LayerOp for ConcatenationLayer {
    fn kind(&self) -> &str {
        "concatenation"
    }

    fn has_arity(&self, inputs: usize, outputs: usize) -> bool {
        inputs > 0 && outputs == 1
    }

    fn check(&self) -> Result<()> {
        check_axis(self.axis)
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        one_type(inputs).map(|data_type| vec![data_type])
    }

    fn output_shapes(&self, inputs: &[&Shape]) -> Result<Vec<Shape>> {
        let (axis, first) = (self.axis, inputs[0]);
        let rank = first.dim_count();
        if axis >= rank {
            bail!(InvalidShape, "the axis is {axis}, and input 0 is {first}, which has no dimension {axis}");
        }
        let mut dims = [0; MAX_DIMS];
        dims[..rank].copy_from_slice(first.as_slice());
        for (number, input) in inputs.iter().enumerate().skip(1) {
            if input.dim_count() != rank {
                bail!(
                    InvalidShape,
                    "input 0 is {first} and input {number} is {input}; inputs have equally many dimensions"
                );
            }
            let mut lens = first.as_slice().iter().zip(input.as_slice()).enumerate();
            if let Some((dim, (len, other))) = lens.find(|(dim, (len, other))| *dim != axis && len != other) {
                bail!(
                    InvalidShape,
                    "dimension {dim} is {len} in input 0 and {other} in input {number}; only dimension {axis}, the \
                     axis, may differ; the inputs are {first} and {input}"
                );
            }
            dims[axis] = dims[axis].checked_add(input.as_slice()[axis]).ok_or_else(|| {
                error!(
                    InvalidShape,
                    "the sum of dimension {axis} over inputs 0 to {number} is too large for any tensor"
                )
            })?;
        }
        Ok(vec![Shape::new(&dims[..rank])?])
    }

    fn kernels(&self, inputs: &[DataType]) -> Result<Vec<Kernel>> {
        Ok(Kernel::of_copy_rows(inputs[0].byte_len()).collect())
    }

    fn attributes(&self) -> Attributes {
        Attributes::new([("axis", self.axis.into())], format!("along dimension {}", self.axis))
    }

    /// The elements of one input are rows of the output.
    unsafe fn run(&self, run: &LayerRun<'_>) -> Result<()> {
        let output = run.output();
        if output.byte_len == 0 {
            return Ok(());
        }
        let row_count: usize = output.shape.unwrap_or_default().as_slice()[..self.axis].iter().product();
        let mut offset = 0;
        for input in (0..run.layer.inputs.len()).map(|index| run.input(index)) {
            let row_bytes = input.byte_len / row_count;
            let (target, pitch_bytes) = (output.address.wrapping_add(offset), output.byte_len / row_count);
            // SAFETY: the caller's promise; the rows of all inputs fill the output.
            unsafe { run.executor.copy_rows(input.address, target, row_count, row_bytes, pitch_bytes)? };
            offset += row_bytes;
        }
        Ok(())
    }
}

/// Checks what needs no input.
fn check_axis(axis: usize) -> Result<()> {
    if axis >= MAX_DIMS {
        bail!(InvalidArgument, "the axis is {axis}; a tensor has at most {MAX_DIMS} dimensions, from 0 on");
    }
    Ok(())
}

impl Network {
    /// Adds a Concatenation layer, which joins tensors along the dimension `axis`: TensorRT's
    /// `addConcatenation` and `setAxis`.
    ///
    /// All inputs have one type, of any kind, and are equal in all dimensions but `axis`. The
    /// output's dimension there is the sum of theirs.
    ///
    /// ```
    /// use distcollective::{DataType, Network};
    ///
    /// let mut network = Network::new();
    /// let a = network.add_input("a", DataType::Float16, [4, 3])?;
    /// let b = network.add_input("b", DataType::Float16, [4, 5])?;
    /// let y = network.add_concatenation(&[a, b], 1)?;
    /// network.mark_output(y, "y")?;
    /// assert_eq!(network.build()?.io_tensor("y")?.dims.as_slice(), [4, 8]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - No input, or a tensor that this network does not have.
    /// - Inputs of two types.
    /// - An `axis` that no tensor has.
    pub fn add_concatenation(&mut self, inputs: &[TensorId], axis: usize) -> Result<TensorId> {
        if inputs.is_empty() {
            bail!(InvalidArgument, "a Concatenation layer has at least one input, and none is given");
        }
        self.add_layer(LayerBody::Concatenation(ConcatenationLayer { axis }), inputs)
    }
}
