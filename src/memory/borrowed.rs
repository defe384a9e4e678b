//! Buffers in memory that the program owns.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Buffer, Lease, MemorySpace};
use crate::cuda::Device;
use crate::data_type::DataType;
use crate::error::{Error, Result, bail};
use crate::shape::Dims;

/// Memory that the program keeps until it drops the buffer.
struct Borrowed {
    address: NonNull<u8>,
    /// The GPU that it is on.
    device: Option<Arc<Device>>,
}

// SAFETY: the caller of `from_raw_borrowed` promises that any thread may use the memory.
unsafe impl Send for Borrowed {}
// SAFETY: as above.
unsafe impl Sync for Borrowed {}

impl Lease for Borrowed {
    fn address(&self) -> NonNull<u8> {
        self.address
    }

    fn device(&self) -> Option<&Arc<Device>> {
        self.device.as_ref()
    }
}

impl Buffer {
    /// A buffer in memory that the program owns, such as that of another library's tensor. The
    /// buffer borrows it: dropping the buffer frees nothing.
    ///
    /// # Safety
    ///
    /// Until the buffer is dropped, the elements of a tensor of this type and shape at `address` in
    /// `space` are valid and initialized, and only the buffer uses them, on any thread.
    ///
    /// # Errors
    ///
    /// - `InvalidBuffer`: the address is null and the tensor has elements, or it is not aligned to
    ///   them.
    /// - `InvalidArgument`: dimensions that are not a shape (see [`Shape::new`]).
    /// - `Unsupported`: there is no such GPU, or CUDA does not work.
    ///
    /// [`Shape::new`]: crate::tensor::Shape::new
    pub unsafe fn from_raw_borrowed(
        space: MemorySpace,
        address: *mut u8,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
    ) -> Result<Self> {
        let shape = dims.try_into().map_err(Into::into)?.to_shape()?;
        let address = match NonNull::new(address) {
            Some(address) => address,
            None if shape.element_count() == 0 => NonNull::<u64>::dangling().cast(),
            None => bail!(InvalidBuffer, "the address of {data_type} {shape} is null"),
        };
        if !address.addr().get().is_multiple_of(data_type.byte_len()) {
            bail!(InvalidBuffer, "address {address:?} is not aligned to {data_type}");
        }
        let device = match space {
            MemorySpace::Host => None,
            MemorySpace::Cuda(ordinal) => Some(Device::open(ordinal)?),
        };
        let byte_len = shape.byte_len(data_type);
        // SAFETY: the caller's promise. The memory is aligned to the type that the buffer gets here
        // and keeps.
        unsafe { Self::leased(Box::new(Borrowed { address, device }), byte_len) }?.reshaped(data_type, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_borrowed_buffer_writes_the_programs_memory() {
        let mut elements = [1i32, 2, 3, 4];
        let address = elements.as_mut_ptr().cast::<u8>();
        // SAFETY: the array lives longer, and nothing else uses it meanwhile.
        let of = |address, dims: [i64; 1]| unsafe {
            Buffer::from_raw_borrowed(MemorySpace::Host, address, DataType::Int32, dims)
        };
        let mut buffer = of(address, [4]).expect("it fits");
        buffer.as_mut_slice::<i32>().expect("host memory")[3] = 7;
        assert_eq!(buffer.as_slice::<i32>().expect("host memory"), [1, 2, 3, 7]);
        drop(buffer);
        assert_eq!(elements, [1, 2, 3, 7]);
        let null = std::ptr::null_mut();
        assert_eq!(of(null, [0]).expect("no elements").byte_len(), 0);
        for wrong in [of(null, [1]), of(address.wrapping_add(2), [1])] {
            assert_eq!(wrong.expect_err("it does not fit").kind(), ErrorKind::InvalidBuffer);
        }
    }
}
