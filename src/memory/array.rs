//! Arrays of [`ndarray`] as tensors, and tensors as arrays.

use ndarray::{ArrayBase, ArrayView, ArrayViewD, ArrayViewMut, ArrayViewMutD, Data, DataMut, Dimension, IxDyn};

use super::view::RawTensor;
use super::{TensorView, TensorViewMut};
use crate::element::Element;
use crate::error::{Error, Result, error};
use crate::shape::Shape;

impl<'a> TensorView<'a> {
    /// The tensor as an array; a view of a slice has one dimension.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the tensor is not in host memory.
    pub fn as_array<T: Element>(&self) -> Result<ArrayViewD<'a, T>> {
        ArrayViewD::from_shape(dims(&self.raw), self.as_slice()?).map_err(not_an_array)
    }
}

impl TensorViewMut<'_> {
    /// The tensor as an array; a view of a slice has one dimension.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the tensor is not in host memory.
    pub fn as_array_mut<T: Element>(&mut self) -> Result<ArrayViewMutD<'_, T>> {
        ArrayViewMutD::from_shape(dims(&self.raw), self.as_mut_slice()?).map_err(not_an_array)
    }
}

impl<'a, T: Element, S: Data<Elem = T>, D: Dimension> TryFrom<&'a ArrayBase<S, D>> for TensorView<'a> {
    type Error = Error;

    /// # Errors
    ///
    /// The array is not contiguous in standard (row-major) layout, or has more than
    /// [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
    fn try_from(array: &'a ArrayBase<S, D>) -> Result<Self> {
        array.view().try_into()
    }
}

impl<'a, T: Element, S: DataMut<Elem = T>, D: Dimension> TryFrom<&'a mut ArrayBase<S, D>> for TensorViewMut<'a> {
    type Error = Error;

    /// # Errors
    ///
    /// The array is not contiguous in standard (row-major) layout, or has more than
    /// [`MAX_DIMS`](crate::tensor::MAX_DIMS) dimensions.
    fn try_from(array: &'a mut ArrayBase<S, D>) -> Result<Self> {
        array.view_mut().try_into()
    }
}

impl<'a, T: Element, D: Dimension> TryFrom<ArrayView<'a, T, D>> for TensorView<'a> {
    type Error = Error;

    /// # Errors
    ///
    /// As for a reference to an array.
    fn try_from(array: ArrayView<'a, T, D>) -> Result<Self> {
        let shape = Shape::new(array.shape())?;
        let slice = array.to_slice().ok_or_else(|| not_contiguous(&shape, "make a copy with `as_standard_layout`"))?;
        Ok(TensorView::from(slice).with_shape(shape))
    }
}

impl<'a, T: Element, D: Dimension> TryFrom<ArrayViewMut<'a, T, D>> for TensorViewMut<'a> {
    type Error = Error;

    /// # Errors
    ///
    /// As for a reference to an array.
    fn try_from(array: ArrayViewMut<'a, T, D>) -> Result<Self> {
        let shape = Shape::new(array.shape())?;
        let instead = "give an array that is, and copy the result with `assign`";
        let slice = array.into_slice().ok_or_else(|| not_contiguous(&shape, instead))?;
        Ok(TensorViewMut::from(slice).with_shape(shape))
    }
}

fn dims(raw: &RawTensor) -> IxDyn {
    match raw.shape {
        Some(shape) => IxDyn(shape.as_slice()),
        None => IxDyn(&[raw.element_count()]),
    }
}

fn not_an_array(cause: ndarray::ShapeError) -> Error {
    error!(InvalidBuffer, "the tensor is not an array").with_source(cause)
}

fn not_contiguous(shape: &Shape, instead: &str) -> Error {
    error!(InvalidBuffer, "the array {shape} is not contiguous in row-major order; {instead}")
}
