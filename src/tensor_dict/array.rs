//! Arrays of `ndarray` as tensors of a dictionary.

use ndarray::{ArrayBase, Data, Dimension};

use super::Tensor;
use crate::element::Element;
use crate::error::{Error, Result};
use crate::memory::Buffer;
use crate::shape::Shape;

impl<T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&ArrayBase<S, D>> for Tensor {
    type Error = Error;

    /// A copy of the array, which may have any strides.
    ///
    /// # Errors
    ///
    /// The array has more than [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
    fn try_from(array: &ArrayBase<S, D>) -> Result<Self> {
        let shape = Shape::new(array.shape())?;
        let elements: Vec<T> = array.iter().copied().collect();
        Ok(Buffer::from(elements).reshaped(T::DATA_TYPE, shape)?.into())
    }
}
