//! The Concatenation layer: TensorRT's `IConcatenationLayer`.

use super::elementwise::one_type;
use super::layer::Info;
use super::{LayerBody, Network, TensorId};
use crate::data_type::DataType;
use crate::error::{Result, bail, error};
use crate::shape::{MAX_DIMS, Shape};

/// See [`Network::add_concatenation`].
#[derive(Clone, Debug)]
pub struct ConcatenationLayer {
    pub(crate) info: Info,
    pub(crate) axis: usize,
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

    pub(super) fn output_type(&self, inputs: &[DataType]) -> Result<DataType> {
        one_type(inputs)
    }

    /// The output's shape.
    pub(crate) fn output_shape(&self, mut inputs: impl Iterator<Item = Shape>) -> Result<Shape> {
        let (axis, first) = (self.axis, inputs.next().unwrap_or_default());
        let rank = first.dim_count();
        if axis >= rank {
            bail!(InvalidShape, "the axis is {axis}, and input 0 is {first}, which has no dimension {axis}");
        }
        let mut dims = [0; MAX_DIMS];
        dims[..rank].copy_from_slice(first.as_slice());
        for (number, input) in (1..).zip(inputs) {
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
        Shape::new(&dims[..rank])
    }
}

/// Checks what needs no input.
pub(super) fn check_axis(axis: usize) -> Result<()> {
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
    /// use distcollective::{Builder, DataType, Network};
    ///
    /// let mut network = Network::new();
    /// let a = network.add_input("a", DataType::Float16, [4, 3])?;
    /// let b = network.add_input("b", DataType::Float16, [4, 5])?;
    /// let y = network.add_concatenation(&[a, b], 1)?;
    /// network.mark_output(y, "y")?;
    /// assert_eq!(Builder::new().build(&network)?.io_tensor("y")?.dims.as_slice(), [4, 8]);
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
        self.add_typed("concatenation", inputs, |info| LayerBody::Concatenation(ConcatenationLayer { info, axis }))
    }
}
