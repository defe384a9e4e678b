//! Memory that a tensor owns.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::fmt;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::MemorySpace;
use crate::cuda::{CudaStream, Device, DeviceMemory, Owner, PinnedMemory};
use crate::data_type::DataType;
use crate::element::Element;
use crate::error::{Result, bail};
use crate::shape::{Dims, Shape};
use crate::util::interrupt;

/// The alignment of the host memory that buffers allocate, in bytes: a page.
const ALIGN: usize = 4096;

/// The time that a GPU may take to fill a new buffer.
const FILL_TIMEOUT: Duration = Duration::from_secs(60);

/// A tensor that owns its memory: a type, a shape and bytes.
///
/// An asynchronous call takes the buffer, and [`Work::wait`](crate::Work::wait) hands it back. So
/// the program cannot read the buffer while peers write it. A `Work` that is leaked keeps the
/// memory for ever.
///
/// ```
/// use distcollective::{Buffer, DataType};
///
/// let mut zeros = Buffer::zeroed(DataType::Float32, [2, 3])?;
/// zeros.as_mut_slice::<f32>()?[0] = 1.0;
/// let ones = Buffer::from(vec![1.0f32; 3]); // takes the vector's memory
/// assert_eq!(ones.shape().as_slice(), [3]);
/// let mut copy = zeros.try_clone()?;
/// copy.write(0, &2f32.to_ne_bytes())?; // into whichever memory the buffer is in
/// assert_eq!((zeros.as_slice::<f32>()?[0], copy.as_slice::<f32>()?[0]), (1.0, 2.0));
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Panics
///
/// A buffer of [`Communicator::allocate`](crate::Communicator::allocate) on the host gets private
/// memory with the same bytes when it is next used after its communicator has failed. Every method
/// that reads or writes it, or gives its address, panics if the system has no memory for that.
pub struct Buffer {
    memory: BufferMemory,
    data_type: DataType,
    shape: Shape,
}

/// Where a buffer's bytes are.
enum BufferMemory {
    /// Memory of the global allocator; none if the layout has no bytes.
    Heap { address: NonNull<u8>, layout: Layout },
    /// Memory of a communicator or a GPU.
    Leased(Box<dyn Lease>),
}

/// Memory that a buffer holds until it drops this.
pub(crate) trait Lease: Send + Sync {
    /// The address, always the same.
    fn address(&self) -> NonNull<u8>;

    /// Says whether a mutable slice of the memory may exist while a collective writes the memory. A
    /// peer that is still in a failed collective may write the memory it reaches, so it must not
    /// reach memory with such a slice.
    fn set_sliced(&self, _is_sliced: bool) {}

    /// A number that differs from that of other memory of a GPU at the same address.
    fn generation(&self) -> u64 {
        0
    }

    /// The GPU that the memory is on; `None` for host memory.
    fn device(&self) -> Option<&Arc<Device>> {
        None
    }

    /// What keeps the memory, if that is a value of the program's.
    fn owner(&mut self) -> Option<&mut Owner> {
        None
    }
}

impl Lease for DeviceMemory {
    fn address(&self) -> NonNull<u8> {
        self.start()
    }

    fn device(&self) -> Option<&Arc<Device>> {
        Some(&self.device)
    }

    fn generation(&self) -> u64 {
        self.generation
    }
}

/// Pinned memory is host memory, so the lease names no GPU.
impl Lease for PinnedMemory {
    fn address(&self) -> NonNull<u8> {
        self.start()
    }
}

// SAFETY: a buffer is plain memory that only its owner reads and writes.
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

    /// A buffer of zeros in this memory. Collectives are faster on buffers of
    /// [`Communicator::allocate`](crate::Communicator::allocate).
    ///
    /// # Errors
    ///
    /// - Dimensions that are not a shape (see [`Shape::new`]), or more memory than there is.
    /// - No GPU has this number, or CUDA does not work.
    pub fn zeroed_in(
        space: MemorySpace,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<crate::Error>>,
    ) -> Result<Self> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        match space {
            MemorySpace::Host => Self::with_shape(data_type, shape),
            MemorySpace::Cuda(ordinal) => {
                let byte_len = shape.byte_len(data_type);
                // SAFETY: the memory is as long.
                Self::on_gpu(&Device::open(ordinal)?, byte_len, |stream, address| unsafe {
                    stream.zero(address, byte_len)
                })?
                .reshaped(data_type, shape)
            }
        }
    }

    /// Zeros in pinned host memory, from which this GPU copies without the processor.
    pub(crate) fn pinned(device: &Arc<Device>, data_type: DataType, shape: Shape) -> Result<Self> {
        let byte_len = shape.byte_len(data_type);
        let memory = PinnedMemory::new(device, byte_len)?;
        // SAFETY: the memory is as long, and only this function has it.
        unsafe { memory.start().write_bytes(0, byte_len) };
        // SAFETY: the memory is as long, zeroed, aligned to a page by CUDA, and only this buffer
        // has it.
        unsafe { Self::leased(Box::new(memory), byte_len) }?.reshaped(data_type, shape)
    }

    /// Bytes on a GPU, which `fill` enqueues.
    fn on_gpu(
        device: &Arc<Device>,
        byte_len: usize,
        fill: impl FnOnce(&CudaStream, *mut u8) -> Result<()>,
    ) -> Result<Self> {
        // After an error the GPU might still read what `fill` copies.
        let _mask = interrupt::mask();
        let memory = DeviceMemory::new(device, byte_len)?;
        let stream = CudaStream::new(device)?;
        fill(&stream, memory.address())?;
        stream.synchronize(Instant::now() + FILL_TIMEOUT, || Ok(()))?;
        // SAFETY: the memory is as long, filled, aligned to 256 bytes by CUDA, and only this buffer
        // has it.
        unsafe { Self::leased(Box::new(memory), byte_len) }
    }

    /// A copy in memory of its own, of the same kind: host memory, or memory of the same GPU.
    ///
    /// # Errors
    ///
    /// There is not enough memory; a GPU fails.
    pub fn try_clone(&self) -> Result<Self> {
        let Some(device) = self.device() else {
            let mut copy = Self::with_shape(self.data_type, self.shape)?;
            copy.as_mut_bytes()?.copy_from_slice(self.as_bytes()?);
            return Ok(copy);
        };
        // SAFETY: both are as long, and this buffer is not written while it is borrowed.
        Self::on_gpu(device, self.byte_len(), |stream, address| unsafe {
            stream.copy(self.as_ptr(), address, self.byte_len())
        })?
        .reshaped(self.data_type, self.shape)
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
        Ok(Buffer { memory: BufferMemory::Heap { address, layout }, data_type, shape })
    }

    /// A buffer of bytes in memory of a lease.
    ///
    /// # Safety
    ///
    /// Until the lease is dropped, `byte_len` bytes at its address are valid in the memory that it
    /// names, initialized, aligned to every element type, and used by the buffer's owner only.
    pub(crate) unsafe fn leased(lease: Box<dyn Lease>, byte_len: usize) -> Result<Self> {
        Ok(Buffer { memory: BufferMemory::Leased(lease), data_type: DataType::Uint8, shape: Shape::new(&[byte_len])? })
    }

    fn address(&self) -> NonNull<u8> {
        match &self.memory {
            BufferMemory::Heap { address, .. } => *address,
            BufferMemory::Leased(lease) => lease.address(),
        }
    }

    pub(super) fn lease(&self) -> Option<&dyn Lease> {
        match &self.memory {
            BufferMemory::Heap { .. } => None,
            BufferMemory::Leased(lease) => Some(&**lease),
        }
    }

    pub(super) fn lease_mut(&mut self) -> Option<&mut dyn Lease> {
        match &mut self.memory {
            BufferMemory::Heap { .. } => None,
            BufferMemory::Leased(lease) => Some(&mut **lease),
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

    /// The same memory as another tensor of the same length in bytes. The memory has to be aligned
    /// to the type.
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

    /// The memory that the buffer is in.
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
        // SAFETY: as above, `self` is borrowed mutably, and every bit pattern is valid for every
        // element type.
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

    /// Copies bytes from this offset on into `bytes`, whichever memory the buffer is in, and waits
    /// until that is done.
    ///
    /// # Errors
    ///
    /// The buffer has fewer bytes from `offset` on; a GPU fails.
    pub fn read(&self, offset: usize, bytes: &mut [u8]) -> Result<()> {
        // SAFETY: the slice is as long.
        unsafe { self.copy_to(offset, bytes.as_mut_ptr(), bytes.len()) }
    }

    /// Copies `bytes` to this offset, whichever memory the buffer is in, and waits until that is
    /// done.
    ///
    /// # Errors
    ///
    /// `bytes` does not fit into the buffer from `offset` on; a GPU fails.
    pub fn write(&mut self, offset: usize, bytes: &[u8]) -> Result<()> {
        // SAFETY: the slice is as long.
        unsafe { self.copy_from(offset, bytes.as_ptr(), bytes.len()) }
    }

    /// [`read`](Self::read) into host memory, which may be this buffer's.
    ///
    /// # Safety
    ///
    /// The caller may write `byte_len` bytes from `bytes` on.
    pub unsafe fn copy_to(&self, offset: usize, bytes: *mut u8, byte_len: usize) -> Result<()> {
        self.check_range(offset, byte_len)?;
        if byte_len == 0 {
            return Ok(());
        }
        // SAFETY: the buffer holds that many bytes, which are not written while it is borrowed; the
        // caller's promise. Host memory does not overlap a GPU's.
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

    /// [`write`](Self::write) from host memory, which may be this buffer's.
    ///
    /// # Safety
    ///
    /// `byte_len` bytes from `bytes` on are valid, and are not written during the call.
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

    /// The address of the first byte, in the memory that [`space`](Self::space) names.
    pub fn as_ptr(&self) -> *const u8 {
        self.address().as_ptr()
    }

    /// The address of the first byte, for writing.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        // This borrows the buffer mutably, so there is no slice of it.
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
        // SAFETY: the memory holds that many initialized elements of `T`, for which every bit
        // pattern is valid.
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

impl<T: Element> From<Vec<T>> for Buffer {
    /// A tensor of one dimension in the vector's memory. Room that the vector does not use is given
    /// back, which may move the elements.
    ///
    /// # Panics
    ///
    /// On a 32-bit target, if there are more than `isize::MAX / 8` elements: see [`Shape`].
    fn from(elements: Vec<T>) -> Self {
        let shape = Shape::new(&[elements.len()]).unwrap_or_else(|error| panic!("{error}"));
        let elements = Box::leak(elements.into_boxed_slice());
        // A box of a slice has its memory from the global allocator, with the slice's layout.
        let layout = Layout::for_value(elements);
        let memory = BufferMemory::Heap { address: NonNull::from(elements).cast(), layout };
        Buffer { memory, data_type: T::DATA_TYPE, shape }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        if let BufferMemory::Heap { address, layout } = self.memory
            && layout.size() > 0
        {
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
