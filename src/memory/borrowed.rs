//! Buffers in memory that the program owns.

use std::ptr::NonNull;
use std::sync::Arc;

use super::{Buffer, Lease, MemorySpace};
use crate::cuda::{Device, Owner};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail};
use crate::shape::Dims;

/// Memory that the program keeps until it drops the buffer, or that an owner keeps.
struct Borrowed {
    address: NonNull<u8>,
    /// The GPU that it is on.
    device: Option<Arc<Device>>,
    owner: Owner,
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

    fn owner(&mut self) -> Option<&mut Owner> {
        Some(&mut self.owner)
    }
}

impl Drop for Borrowed {
    /// The owner's drop may wait for the GPU.
    fn drop(&mut self) {
        let owner = std::mem::take(&mut self.owner);
        if let Some(device) = self.device.as_ref().filter(|_| owner.is_some()) {
            device.release_later("memory with an owner", move || {
                drop(owner);
                Ok(())
            });
        }
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
        // SAFETY: the caller's promise.
        unsafe { Self::borrowed(space, address, data_type, dims, Owner::default()) }
    }

    /// A buffer in memory that exists until `owner` is dropped, such as another library's tensor.
    /// The buffer drops `owner`, that of a GPU's memory on a thread of the library;
    /// [`into_owner`](Self::into_owner) gives it back.
    ///
    /// # Safety
    ///
    /// Until `owner` is dropped or given back, the elements of a tensor of this type and shape at
    /// `address` in `space` are valid and initialized, and only the buffer uses them, on any
    /// thread.
    ///
    /// # Errors
    ///
    /// Those of [`from_raw_borrowed`](Self::from_raw_borrowed); `owner` is dropped.
    pub unsafe fn from_raw_with_owner(
        space: MemorySpace,
        address: *mut u8,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
        owner: impl Send + Sync + 'static,
    ) -> Result<Self> {
        // SAFETY: the caller's promise.
        unsafe { Self::borrowed(space, address, data_type, dims, Owner::new(owner)) }
    }

    /// The owner of [`from_raw_with_owner`](Self::from_raw_with_owner), with what is now in its
    /// memory.
    ///
    /// # Errors
    ///
    /// The buffer, if it has no owner of this type.
    pub fn into_owner<T: 'static>(mut self) -> Result<T, Self> {
        self.lease_mut().and_then(Lease::owner).and_then(Owner::take).ok_or(self)
    }

    /// # Safety
    ///
    /// That of [`from_raw_with_owner`](Self::from_raw_with_owner).
    unsafe fn borrowed(
        space: MemorySpace,
        address: *mut u8,
        data_type: DataType,
        dims: impl TryInto<Dims, Error: Into<Error>>,
        owner: Owner,
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
        unsafe { Self::leased(Box::new(Borrowed { address, device, owner }), byte_len) }?.reshaped(data_type, shape)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    #[test]
    fn a_buffer_keeps_its_owner_and_gives_it_back() {
        let owner = Arc::new([1i32, 2]);
        let buffer = || {
            let address = owner.as_ptr().cast_mut().cast();
            // SAFETY: the array is in the owner, and is only read.
            unsafe { Buffer::from_raw_with_owner(MemorySpace::Host, address, DataType::Int32, [2], Arc::clone(&owner)) }
        };
        let first = buffer().expect("it fits");
        assert_eq!(Arc::strong_count(&owner), 2);
        drop(first);
        assert_eq!(Arc::strong_count(&owner), 1);
        let other = buffer().map(Buffer::into_owner::<Vec<i32>>).expect("it fits");
        let buffer = other.expect_err("another type");
        assert_eq!(buffer.as_slice::<i32>().expect("host memory"), [1, 2]);
        assert_eq!(buffer.into_owner::<Arc<[i32; 2]>>().expect("the owner"), owner);
        assert_eq!(Arc::strong_count(&owner), 1);
        Buffer::from(vec![1i32]).into_owner::<Vec<i32>>().expect_err("it has no owner");
    }

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
