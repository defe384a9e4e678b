//! One tensor of a dictionary: its type, its shape, and where its elements are.

use std::fmt;
use std::sync::Arc;

use super::element_type::{ElementType, OpaqueType};
use super::strided::Strided;
use crate::cuda::Device;
use crate::data_type::DataType;
use crate::error::{Error, Result, bail};
use crate::memory::{Buffer, MemorySpace, RawTensor, ReadOnlyMemory, TensorView, TensorViewMut};
use crate::shape::{Dims, Shape};

/// A tensor of a [`TensorDict`](super::TensorDict). It owns its elements, or reads those in a
/// mapped file or in memory that ranks share.
pub struct Tensor {
    element_type: ElementType,
    shape: Shape,
    byte_len: usize,
    storage: Storage,
}

enum Storage {
    /// The elements one after the other. An opaque type's are a buffer of bytes.
    Contiguous(Buffer),
    Strided(Strided),
    /// Elements that several tensors share and none of them writes: those of a mapped file, or of
    /// memory that ranks share.
    ReadOnly {
        memory: ReadOnlyMemory,
        start: usize,
    },
}

impl From<Buffer> for Tensor {
    fn from(buffer: Buffer) -> Self {
        Tensor {
            element_type: buffer.data_type().into(),
            shape: buffer.shape(),
            byte_len: buffer.byte_len(),
            storage: Storage::Contiguous(buffer),
        }
    }
}

impl Tensor {
    /// A tensor of a type that the library does not know, with its elements as bytes, row by row.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: `bytes` is not as long as the tensor, or not of type uint8.
    /// - `InvalidArgument`: dimensions that are not a shape (see [`Shape::new`]); elements that do
    ///   not fill whole bytes.
    pub fn opaque(
        opaque: OpaqueType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
        bytes: impl Into<Buffer>,
    ) -> Result<Self> {
        let (element_type, shape) = (ElementType::from(opaque), dims.try_into().map_err(Into::into)?.to_shape()?);
        let (byte_len, buffer) = (element_type.byte_len(&shape)?, bytes.into());
        if buffer.data_type() != DataType::Uint8 || buffer.byte_len() != byte_len {
            bail!(InvalidBuffer, "{element_type} {shape} is {byte_len} bytes, and what is given is {buffer:?}");
        }
        Self::new(element_type, shape, Storage::Contiguous(buffer))
    }

    fn new(element_type: ElementType, shape: Shape, storage: Storage) -> Result<Self> {
        Ok(Tensor { byte_len: element_type.byte_len(&shape)?, element_type, shape, storage })
    }

    /// A tensor whose elements are not one after the other in `buffer`, which is in host memory.
    /// The element with the indices `i` is number `offset + Σ i · strides` of the buffer. Offset
    /// and strides are in elements; a stride may be negative, or zero.
    ///
    /// Such a tensor can be broadcast, read and saved. A receiver replaces it.
    ///
    /// ```
    /// use distcollective::Buffer;
    /// use distcollective::tensor_dict::Tensor;
    ///
    /// let matrix = Buffer::from_slice(&[1i32, 2, 3, 4, 5, 6], [2, 3])?;
    /// let transposed = Tensor::strided(matrix, 0, [3, 2], &[1, 3])?;
    /// let mut bytes = [0; 24];
    /// transposed.read(0, &mut bytes)?;
    /// let first_bytes: Vec<u8> = bytes.into_iter().step_by(4).collect();
    /// assert_eq!(first_bytes, [1, 4, 2, 5, 3, 6]);
    /// # Ok::<(), distcollective::Error>(())
    /// ```
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: dimensions that are not a shape (see [`Shape::new`]); not one stride
    ///   for each dimension; an element outside of the buffer.
    /// - `Unsupported`: the buffer is on a GPU.
    pub fn strided(
        buffer: Buffer,
        offset: usize,
        dims: impl TryInto<Dims, Error: Into<Error>>,
        strides: &[isize],
    ) -> Result<Self> {
        let (element_type, shape) =
            (ElementType::from(buffer.data_type()), dims.try_into().map_err(Into::into)?.to_shape()?);
        Self::new(element_type, shape, Storage::Strided(Strided::new(buffer, offset, &shape, strides)?))
    }

    /// A tensor of zeros, in host memory that is pinned for a GPU if one is given.
    pub(super) fn zeroed(
        element_type: ElementType,
        shape: Shape,
        space: MemorySpace,
        pinning: Option<&Arc<Device>>,
    ) -> Result<Self> {
        let buffer = zeroed_buffer(&element_type, shape, space, pinning)?;
        Self::new(element_type, shape, Storage::Contiguous(buffer))
    }

    /// A tensor in read-only memory, from a byte on that has as many bytes behind it.
    pub(super) fn read_only(
        element_type: ElementType,
        shape: Shape,
        memory: &ReadOnlyMemory,
        start: usize,
    ) -> Result<Self> {
        Self::new(element_type, shape, Storage::ReadOnly { memory: Arc::clone(memory), start })
    }

    /// The type of the elements.
    pub fn element_type(&self) -> &ElementType {
        &self.element_type
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The number of bytes of all elements.
    pub fn byte_len(&self) -> usize {
        self.byte_len
    }

    /// The memory that the elements are in.
    pub fn space(&self) -> MemorySpace {
        match &self.storage {
            Storage::Contiguous(buffer) => buffer.space(),
            _ => MemorySpace::Host,
        }
    }

    /// The elements as a buffer; `None` if they are strided or read-only. An opaque type's are a
    /// buffer of bytes.
    pub fn as_buffer(&self) -> Option<&Buffer> {
        match &self.storage {
            Storage::Contiguous(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The elements as a buffer, for writing; `None` if they are strided or read-only.
    pub fn as_mut_buffer(&mut self) -> Option<&mut Buffer> {
        match &mut self.storage {
            Storage::Contiguous(buffer) => Some(buffer),
            _ => None,
        }
    }

    /// The elements as a buffer, which is a copy if they are strided or read-only.
    ///
    /// # Errors
    ///
    /// - `System`: there is no memory for a copy.
    pub fn into_buffer(self) -> Result<Buffer> {
        match self.storage {
            Storage::Contiguous(buffer) => Ok(buffer),
            _ => {
                let mut buffer = zeroed_buffer(&self.element_type, self.shape, MemorySpace::Host, None)?;
                self.read(0, buffer.as_mut_bytes()?)?;
                Ok(buffer)
            }
        }
    }

    /// The elements as bytes, row by row.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: the elements are strided, or not in host memory; see
    ///   [`read`](Self::read).
    pub fn as_bytes(&self) -> Result<&[u8]> {
        match &self.storage {
            Storage::Contiguous(buffer) => buffer.as_bytes(),
            Storage::Strided(_) => bail!(InvalidBuffer, "the tensor is strided; `read` copies from it"),
            Storage::ReadOnly { memory, start } => Ok(&(**memory).as_ref()[*start..][..self.byte_len]),
        }
    }

    /// A view of the elements, for collectives.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: the type is opaque.
    /// - `InvalidBuffer`: the elements are strided, or in a mapped file at an address that is not
    ///   aligned to them; see [`into_buffer`](Self::into_buffer).
    pub fn view(&self) -> Result<TensorView<'_>> {
        let data_type = self.check_known()?;
        match &self.storage {
            Storage::Contiguous(buffer) => return Ok(buffer.into()),
            Storage::Strided(_) => bail!(InvalidBuffer, "the tensor is strided; `into_buffer` makes a copy"),
            Storage::ReadOnly { .. } => {}
        }
        let bytes = self.as_bytes()?;
        if !bytes.as_ptr().addr().is_multiple_of(data_type.byte_len()) {
            bail!(InvalidBuffer, "the file has the tensor at an address that is not aligned to {data_type}; copy it");
        }
        let raw = RawTensor {
            data_type,
            address: bytes.as_ptr().cast_mut(),
            space: MemorySpace::Host,
            generation: 0,
            byte_len: bytes.len(),
            shape: Some(self.shape),
        };
        // SAFETY: the view borrows the bytes, which are as long as the tensor and aligned, and do
        // not change.
        Ok(unsafe { TensorView::from_raw(raw) })
    }

    /// A view of the elements, for collectives that write them.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: the type is opaque.
    /// - `InvalidBuffer`: the elements are strided or read-only; see
    ///   [`into_buffer`](Self::into_buffer).
    pub fn view_mut(&mut self) -> Result<TensorViewMut<'_>> {
        self.check_known()?;
        match &mut self.storage {
            Storage::Contiguous(buffer) => Ok(buffer.into()),
            _ => bail!(InvalidBuffer, "the tensor is strided or read-only; `into_buffer` makes a copy"),
        }
    }

    fn check_known(&self) -> Result<DataType> {
        match &self.element_type {
            ElementType::Known(data_type) => Ok(*data_type),
            ElementType::Opaque(opaque) => bail!(
                Unsupported,
                "element type {} is opaque; only the broadcast of a dictionary takes it",
                opaque.name()
            ),
        }
    }

    /// Copies elements, as bytes in row-major order, from this offset on, whichever memory they are
    /// in. A strided tensor gives whole elements.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: more bytes than there are; a part of a strided element.
    /// - `System`: a GPU fails.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        if offset.checked_add(bytes.len()).is_none_or(|end| end > self.byte_len) {
            let len = bytes.len();
            bail!(InvalidBuffer, "the tensor has {} bytes, and not {len} more after its first {offset}", self.byte_len);
        }
        match &self.storage {
            Storage::Contiguous(buffer) => buffer.read(offset, bytes),
            Storage::Strided(strided) => {
                let element = self.element_type.bit_len() as usize / 8;
                if !(offset.is_multiple_of(element) && bytes.len().is_multiple_of(element)) {
                    bail!(InvalidBuffer, "bytes {offset} to {} are not whole elements", offset + bytes.len());
                }
                strided.read(&self.shape, offset, bytes)
            }
            Storage::ReadOnly { .. } => {
                bytes.copy_from_slice(&self.as_bytes()?[offset..][..bytes.len()]);
                Ok(())
            }
        }
    }

    /// Whether what arrives can be written into the tensor, which has to be in `place` if one is
    /// given.
    pub(super) fn is_fillable(&self, place: Option<MemorySpace>) -> bool {
        self.as_buffer().is_some_and(|buffer| place.is_none_or(|place| buffer.space() == place))
    }
}

/// A buffer for a tensor: of bytes if the type is opaque.
fn zeroed_buffer(
    element_type: &ElementType,
    shape: Shape,
    space: MemorySpace,
    pinning: Option<&Arc<Device>>,
) -> Result<Buffer> {
    let (data_type, elements) = match element_type.data_type() {
        Some(data_type) => (data_type, shape),
        None => (DataType::Uint8, Shape::new(&[element_type.byte_len(&shape)?])?),
    };
    match pinning {
        Some(device) => Buffer::pinned(device, data_type, elements),
        None => Buffer::zeroed_in(space, data_type, elements),
    }
}

impl fmt::Debug for Tensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tensor({} {})", self.element_type, self.shape)
    }
}
