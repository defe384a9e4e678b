//! Memory that a tensor owns.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::MemorySpace;
use crate::cuda::{CudaStream, Device, DeviceMemory};
use crate::data_type::DataType;
use crate::element::Element;
use crate::error::{Result, bail};
use crate::shape::{Dims, Shape};

/// The alignment of every buffer in host memory, in bytes: pages for the copy, and more than any vector instruction wants.
const ALIGN: usize = 4096;

/// How long a GPU may take to write zeros.
const ZEROING_TIMEOUT: Duration = Duration::from_secs(60);

/// A tensor that owns its memory: a type, a shape and zeroed bytes to begin with.
///
/// There is one owner at a time. An asynchronous call takes the buffer and [`crate::Work::wait`] hands it back, so that
/// nobody can read it while peers write; a `Work` that is leaked keeps the memory for ever.
pub struct Buffer {
    memory: Memory,
    data_type: DataType,
    shape: Shape,
}

/// Where a buffer's bytes are.
enum Memory {
    Heap { address: NonNull<u8>, layout: Layout },
    Leased(Box<dyn Lease>),
}

/// Memory that a communicator lends out, until it is dropped.
pub(crate) trait Lease: Send + Sync {
    /// Where it is: always at the same address.
    fn address(&self) -> NonNull<u8>;

    /// Says whether a slice of it, which can be written, may be alive while a collective writes it. Peers that a failed
    /// collective has left behind may write what they reach, so they must not reach that.
    fn set_sliced(&self, is_sliced: bool);

    /// What tells it from other memory of a GPU at the same address.
    fn generation(&self) -> u64 {
        0
    }

    /// The GPU whose memory it is, if it is not the host's.
    fn device(&self) -> Option<&Arc<Device>> {
        None
    }
}

impl Lease for DeviceMemory {
    fn address(&self) -> NonNull<u8> {
        self.start()
    }

    fn set_sliced(&self, _is_sliced: bool) {}

    fn device(&self) -> Option<&Arc<Device>> {
        Some(DeviceMemory::device(self))
    }

    fn generation(&self) -> u64 {
        DeviceMemory::generation(self)
    }
}

// SAFETY: a buffer is plain memory that its one owner reads and writes.
unsafe impl Send for Buffer {}
// SAFETY: a shared reference only reads.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// A buffer of zeros.
    ///
    /// # Errors
    ///
    /// Dimensions that are not a shape (see [`Shape::new`]), or more memory than there is.
    pub fn zeroed(data_type: DataType, dims: impl TryInto<Dims, Error: Into<crate::Error>>) -> Result<Self> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        Self::with_shape(data_type, shape)
    }

    /// A buffer of zeros in this memory. What [`Communicator::allocate`](crate::Communicator::allocate) gives is faster where
    /// collectives use it.
    ///
    /// # Errors
    ///
    /// As [`zeroed`](Self::zeroed); no such GPU, or none that works.
    pub fn zeroed_in(
        space: MemorySpace,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<crate::Error>>,
    ) -> Result<Self> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        let ordinal = match space {
            MemorySpace::Host => return Self::with_shape(data_type, shape),
            MemorySpace::Cuda(ordinal) => ordinal,
        };
        let byte_len = shape.byte_len(data_type);
        let memory = DeviceMemory::new(&Device::open(ordinal)?, byte_len)?;
        let stream = CudaStream::new(memory.device())?;
        // SAFETY: the memory is as long, aligned as CUDA aligns it (256 bytes), and nobody else has it.
        unsafe {
            stream.zero(memory.address(), byte_len)?;
            stream.synchronize(Instant::now() + ZEROING_TIMEOUT, || Ok(()))?;
            Self::leased(Box::new(memory), byte_len)?.reshaped(data_type, shape)
        }
    }

    pub(crate) fn with_shape(data_type: DataType, shape: Shape) -> Result<Self> {
        // At least one byte, so that there is an allocation and an address.
        let Ok(layout) = Layout::from_size_align(shape.byte_len(data_type).max(1), ALIGN) else {
            bail!(InvalidArgument, "{data_type} {shape} is larger than memory can be");
        };
        // SAFETY: the layout's size is not zero.
        let memory = unsafe { alloc_zeroed(layout) };
        let Some(address) = NonNull::new(memory) else {
            bail!(System, "no memory for {data_type} {shape}, {} bytes", shape.byte_len(data_type));
        };
        Ok(Buffer { memory: Memory::Heap { address, layout }, data_type, shape })
    }

    /// A buffer of bytes in memory that is lent.
    ///
    /// # Safety
    ///
    /// Until the lease is dropped, so many bytes at its address are valid in the memory that it says, initialized, aligned to every
    /// element type, and used by nobody but the buffer's owner.
    pub(crate) unsafe fn leased(lease: Box<dyn Lease>, byte_len: usize) -> Result<Self> {
        Ok(Buffer { memory: Memory::Leased(lease), data_type: DataType::Uint8, shape: Shape::new(&[byte_len])? })
    }

    fn address(&self) -> NonNull<u8> {
        match &self.memory {
            Memory::Heap { address, .. } => *address,
            Memory::Leased(lease) => lease.address(),
        }
    }

    /// Who lends the memory, if somebody does.
    pub(super) fn lease(&self) -> Option<&dyn Lease> {
        match &self.memory {
            Memory::Heap { .. } => None,
            Memory::Leased(lease) => Some(&**lease),
        }
    }

    fn address_for_writing(&mut self, is_sliced: bool) -> *mut u8 {
        if let Some(lease) = self.lease() {
            lease.set_sliced(is_sliced);
        }
        self.address().as_ptr()
    }

    /// A buffer with a copy of `elements`.
    ///
    /// # Errors
    ///
    /// Dimensions whose product is not the number of elements.
    pub fn from_slice<T: Element>(elements: &[T], dims: impl TryInto<Dims, Error: Into<crate::Error>>) -> Result<Self> {
        let mut buffer = Self::zeroed(T::DATA_TYPE, dims)?;
        if buffer.shape.element_count() != elements.len() {
            bail!(
                InvalidBuffer,
                "{} has {} elements, and the slice {}",
                buffer.shape,
                buffer.shape.element_count(),
                elements.len()
            );
        }
        buffer.as_mut_slice()?.copy_from_slice(elements);
        Ok(buffer)
    }

    /// The same memory as another tensor of the same length in bytes.
    pub(crate) fn reshaped(mut self, data_type: DataType, shape: Shape) -> Result<Self> {
        if shape.byte_len(data_type) != self.byte_len() {
            bail!(InvalidBuffer, "{data_type} {shape} has not the length of {self:?}");
        }
        self.data_type = data_type;
        self.shape = shape;
        Ok(self)
    }

    /// The type of the elements.
    pub fn data_type(&self) -> DataType {
        self.data_type
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// The length in bytes.
    pub fn byte_len(&self) -> usize {
        self.shape.byte_len(self.data_type)
    }

    /// Which memory the buffer is in.
    pub fn space(&self) -> MemorySpace {
        self.device().map_or(MemorySpace::Host, |device| MemorySpace::Cuda(device.ordinal()))
    }

    fn device(&self) -> Option<&Arc<Device>> {
        self.lease().and_then(Lease::device)
    }

    pub(super) fn generation(&self) -> u64 {
        self.lease().map_or(0, Lease::generation)
    }

    fn check_host(&self) -> Result<()> {
        match self.space() {
            MemorySpace::Host => Ok(()),
            space => bail!(
                InvalidBuffer,
                "the buffer is in {space}, which the processor cannot touch; `read` and `write` copy from and to it"
            ),
        }
    }

    /// The bytes.
    ///
    /// # Errors
    ///
    /// The buffer is not in host memory; see [`read`](Self::read).
    pub fn as_bytes(&self) -> Result<&[u8]> {
        self.check_host()?;
        // SAFETY: the memory holds that many initialized bytes.
        Ok(unsafe { slice::from_raw_parts(self.address().as_ptr(), self.byte_len()) })
    }

    /// The bytes, for writing.
    ///
    /// # Errors
    ///
    /// The buffer is not in host memory; see [`write`](Self::write).
    pub fn as_mut_bytes(&mut self) -> Result<&mut [u8]> {
        self.check_host()?;
        // SAFETY: as above, `self` is borrowed mutably, and every bit pattern is valid for every element type.
        Ok(unsafe { slice::from_raw_parts_mut(self.address_for_writing(true), self.byte_len()) })
    }

    fn check_range(&self, offset: usize, byte_len: usize) -> Result<()> {
        if offset.checked_add(byte_len).is_none_or(|end| end > self.byte_len()) {
            bail!(
                InvalidBuffer,
                "the buffer has {} bytes, and not {byte_len} more after its first {offset}",
                self.byte_len()
            );
        }
        Ok(())
    }

    /// Copies bytes out, from this offset on, from whichever memory the buffer is in, and waits for it.
    ///
    /// # Errors
    ///
    /// More bytes than there are; a GPU that fails.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is as long.
        unsafe { self.copy_to(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies bytes in, from this offset on, to whichever memory the buffer is in, and waits for it.
    ///
    /// # Errors
    ///
    /// More bytes than there is room for; a GPU that fails.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: the slice is as long.
        unsafe { self.copy_from(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// [`read`](Self::read) into memory of the host's, which may be this buffer's own.
    ///
    /// # Safety
    ///
    /// So many bytes from `bytes` on are the caller's to write.
    pub unsafe fn copy_to(&self, offset: usize, bytes: *mut u8, byte_len: usize) -> Result<()> {
        self.check_range(offset, byte_len)?;
        if byte_len == 0 {
            return Ok(());
        }
        // SAFETY: the buffer holds that many bytes, and nobody writes them while it is borrowed; the caller's promise. Memory of the host's
        // is apart from a GPU's.
        unsafe {
            let source = self.as_ptr().add(offset);
            match self.device() {
                Some(device) => device.read(source, slice::from_raw_parts_mut(bytes, byte_len)),
                None => {
                    std::ptr::copy(source, bytes, byte_len);
                    Ok(())
                }
            }
        }
    }

    /// [`write`](Self::write) from memory of the host's, which may be this buffer's own.
    ///
    /// # Safety
    ///
    /// So many bytes from `bytes` on are valid, and nobody writes them meanwhile.
    pub unsafe fn copy_from(&mut self, offset: usize, bytes: *const u8, byte_len: usize) -> Result<()> {
        self.check_range(offset, byte_len)?;
        if byte_len == 0 {
            return Ok(());
        }
        // SAFETY: the buffer holds that many bytes, and is borrowed mutably; the caller's promise.
        unsafe {
            let target = self.as_mut_ptr().add(offset);
            match self.device() {
                Some(device) => device.write(slice::from_raw_parts(bytes, byte_len), target),
                None => {
                    std::ptr::copy(bytes, target, byte_len);
                    Ok(())
                }
            }
        }
    }

    /// The address of the first byte, in the memory that [`space`](Self::space) says.
    pub fn as_ptr(&self) -> *const u8 {
        self.address().as_ptr()
    }

    /// The address of the first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // Nobody has a slice: this borrows the buffer.
        self.address_for_writing(false)
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        self.check_host()?;
        if T::DATA_TYPE != self.data_type {
            bail!(InvalidBuffer, "the buffer is {}, not {}", self.data_type, T::DATA_TYPE);
        }
        Ok(())
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the buffer is not in host memory.
    pub fn as_slice<T: Element>(&self) -> Result<&[T]> {
        self.check_type::<T>()?;
        // SAFETY: the memory holds that many initialized elements of `T`, for which every bit pattern is valid.
        Ok(unsafe { slice::from_raw_parts(self.address().as_ptr().cast(), self.shape.element_count()) })
    }

    /// The elements, for writing.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the buffer is not in host memory.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.check_type::<T>()?;
        // SAFETY: as above, and `self` is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts_mut(self.address_for_writing(true).cast(), self.shape.element_count()) })
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let Memory::Heap { address, layout } = self.memory {
            // SAFETY: allocated with this layout, and freed once.
            unsafe { dealloc(address.as_ptr(), layout) };
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} {})", self.data_type, self.shape)
    }
}
