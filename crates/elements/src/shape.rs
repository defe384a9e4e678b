//! Dimensions of tensors: [`Dims`], which may be dynamic, and [`Shape`], which are not.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::data_type::DataType;
use crate::error::{Error, Result, bail};

/// The most dimensions a tensor may have, as in TensorRT (`Dims::MAX_DIMS`).
pub const MAX_DIMS: usize = 8;

/// The dimensions of a tensor in a network's description. -1 is a dynamic dimension: an
/// optimization profile gives its range, and `set_input_shape` its value.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "Vec<i64>", into = "Vec<i64>")]
pub struct Dims {
    len: u8,
    dims: [i64; MAX_DIMS],
}

impl Dims {
    /// Dimensions from a slice.
    ///
    /// # Errors
    ///
    /// More than [`MAX_DIMS`] dimensions, or one below -1.
    pub fn new(dims: &[i64]) -> Result<Self> {
        if dims.len() > MAX_DIMS {
            bail!(InvalidArgument, "{dims:?} has {} dimensions; a tensor has at most {MAX_DIMS}", dims.len());
        }
        if let Some(bad) = dims.iter().find(|&&d| d < -1) {
            bail!(InvalidArgument, "dimension {bad} in {dims:?}: a dimension is at least 0, or -1 where it is dynamic");
        }
        let mut out = [0; MAX_DIMS];
        out[..dims.len()].copy_from_slice(dims);
        Ok(Dims { len: dims.len() as u8, dims: out })
    }

    /// The dimensions as a slice.
    #[inline]
    pub fn as_slice(&self) -> &[i64] {
        &self.dims[..usize::from(self.len)]
    }

    /// The number of dimensions.
    #[inline]
    pub fn dim_count(&self) -> usize {
        usize::from(self.len)
    }

    /// Whether a dimension is -1.
    pub fn is_dynamic(&self) -> bool {
        self.as_slice().contains(&-1)
    }

    /// The dimensions as a shape.
    ///
    /// # Errors
    ///
    /// A dimension is -1, or memory cannot hold the tensor.
    pub fn to_shape(&self) -> Result<Shape> {
        if self.is_dynamic() {
            bail!(InvalidArgument, "{self} has a dynamic dimension where a shape is needed");
        }
        let mut dims = [0; MAX_DIMS];
        for (to, &from) in dims.iter_mut().zip(self.as_slice()) {
            *to = from as usize;
        }
        Shape::new(&dims[..self.dim_count()])
    }
}

impl<const N: usize> TryFrom<[i64; N]> for Dims {
    type Error = Error;

    fn try_from(dims: [i64; N]) -> Result<Self> {
        Dims::new(&dims)
    }
}

impl TryFrom<&[i64]> for Dims {
    type Error = Error;

    fn try_from(dims: &[i64]) -> Result<Self> {
        Dims::new(dims)
    }
}

impl TryFrom<Vec<i64>> for Dims {
    type Error = Error;

    fn try_from(dims: Vec<i64>) -> Result<Self> {
        Dims::new(&dims)
    }
}

impl TryFrom<Shape> for Dims {
    type Error = Error;

    fn try_from(shape: Shape) -> Result<Self> {
        Ok(shape.to_dims())
    }
}

impl From<Dims> for Vec<i64> {
    fn from(dims: Dims) -> Self {
        dims.as_slice().to_vec()
    }
}

/// The shape of a tensor: at most [`MAX_DIMS`] dimensions. A tensor of eight-byte elements of any
/// shape fits the address space.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Shape {
    len: u8,
    dims: [usize; MAX_DIMS],
}

impl Shape {
    /// A shape from a slice.
    ///
    /// # Errors
    ///
    /// More than [`MAX_DIMS`] dimensions, or more elements than memory can hold.
    pub fn new(dims: &[usize]) -> Result<Self> {
        if dims.len() > MAX_DIMS {
            bail!(InvalidArgument, "{dims:?} has {} dimensions; a tensor has at most {MAX_DIMS}", dims.len());
        }
        const LARGEST_ELEMENT: usize = 8;
        let limit = isize::MAX as usize / LARGEST_ELEMENT;
        let fits = dims.contains(&0)
            || dims.iter().try_fold(1usize, |product, &d| product.checked_mul(d)).is_some_and(|count| count <= limit);
        if !fits {
            bail!(InvalidArgument, "{dims:?} has more elements than memory can hold");
        }
        let mut out = [0; MAX_DIMS];
        out[..dims.len()].copy_from_slice(dims);
        Ok(Shape { len: dims.len() as u8, dims: out })
    }

    /// The dimensions as a slice.
    #[inline]
    pub fn as_slice(&self) -> &[usize] {
        &self.dims[..usize::from(self.len)]
    }

    /// The number of dimensions.
    #[inline]
    pub fn dim_count(&self) -> usize {
        usize::from(self.len)
    }

    /// The number of elements: the product of the dimensions. It is 1 if there are none.
    #[inline]
    pub fn element_count(&self) -> usize {
        let dims = self.as_slice();
        if dims.contains(&0) { 0 } else { dims.iter().product() }
    }

    /// The number of bytes of a tensor of this shape.
    #[inline]
    pub fn byte_len(&self, data_type: DataType) -> usize {
        self.element_count() * data_type.byte_len()
    }

    /// The same shape with another first dimension. The shape has at least one dimension.
    ///
    /// # Errors
    ///
    /// More elements than memory can hold.
    pub fn with_first(&self, first: usize) -> Result<Self> {
        let mut dims = self.dims;
        dims[0] = first;
        Shape::new(&dims[..self.dim_count()])
    }

    /// The same dimensions as [`Dims`].
    pub fn to_dims(&self) -> Dims {
        let mut dims = [0; MAX_DIMS];
        for (to, &from) in dims.iter_mut().zip(self.as_slice()) {
            // Only a dimension beside a zero can exceed i64. It then prints as the largest number.
            *to = i64::try_from(from).unwrap_or(i64::MAX);
        }
        Dims { len: self.len, dims }
    }
}

/// Both print as lists: `[2, -1]`.
macro_rules! prints_as_list {
    ($($trait:ident for $type:ident),*) => { $(
        impl fmt::$trait for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", self.as_slice())
            }
        }
    )* };
}

prints_as_list!(Display for Dims, Debug for Dims, Display for Shape, Debug for Shape);
