//! Borrowed tensors, for calls that block.

use std::fmt;
use std::marker::PhantomData;
use std::slice;

use super::{Address, Buffer, Lease, MemorySpace};
use crate::data_type::DataType;
use crate::element::Element;
use crate::error::{Result, bail};
use crate::shape::Shape;

/// A borrowed tensor to read: from a slice, an array, a `Vec`, a scalar or a [`Buffer`]; with the
/// feature `ndarray`, from a contiguous array or view of that crate.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    pub(super) raw: RawTensor,
    borrow: PhantomData<&'a [u8]>,
}

/// A borrowed tensor to write: from a slice, an array, a `Vec`, a scalar or a [`Buffer`]; with the
/// feature `ndarray`, from a contiguous array or view of that crate.
pub struct TensorViewMut<'a> {
    pub(super) raw: RawTensor,
    /// The lease of a [`Buffer`], which learns when a slice is made.
    lease: Option<&'a dyn Lease>,
    borrow: PhantomData<&'a mut [u8]>,
}

/// What both kinds of views have. They differ by `mut`.
macro_rules! view {
    ($view:ident, $of_scalar:path $(, $mut:tt)?) => {
        // SAFETY: a view is a reference to memory of `Send + Sync` elements.
        unsafe impl Send for $view<'_> {}
        // SAFETY: as above; a shared reference to a view gives no way to write.
        unsafe impl Sync for $view<'_> {}

        impl $view<'_> {
            /// The view as a tensor of a shape with as many elements.
            #[cfg(feature = "ndarray")]
            pub(super) fn with_shape(mut self, shape: Shape) -> Self {
                self.raw.shape = Some(shape);
                self
            }

            /// The type of the elements.
            pub fn data_type(&self) -> DataType {
                self.raw.data_type
            }

            /// The number of elements.
            pub fn element_count(&self) -> usize {
                self.raw.element_count()
            }

            /// The shape; a view of a slice has none.
            pub fn shape(&self) -> Option<Shape> {
                self.raw.shape
            }

            /// The memory that the tensor is in.
            pub fn space(&self) -> MemorySpace {
                self.raw.space
            }
        }

        impl<'a, T: Element> From<&'a $($mut)? T> for $view<'a> {
            fn from(scalar: &'a $($mut)? T) -> Self {
                Self::from($of_scalar(scalar))
            }
        }

        impl<'a, T: Element, const N: usize> From<&'a $($mut)? [T; N]> for $view<'a> {
            fn from(array: &'a $($mut)? [T; N]) -> Self {
                Self::from(&$($mut)? array[..])
            }
        }

        impl<'a, T: Element> From<&'a $($mut)? Vec<T>> for $view<'a> {
            fn from(vec: &'a $($mut)? Vec<T>) -> Self {
                Self::from(&$($mut)? vec[..])
            }
        }

        impl fmt::Debug for $view<'_> {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}({:?})", stringify!($view), self.raw)
            }
        }
    };
}

view!(TensorView, slice::from_ref);
view!(TensorViewMut, slice::from_mut, mut);

impl<'a> TensorView<'a> {
    /// # Safety
    ///
    /// During `'a` the memory is initialized, aligned to the element size, at least as long as
    /// `raw` says, and not written.
    pub(crate) unsafe fn from_raw(raw: RawTensor) -> Self {
        TensorView { raw, borrow: PhantomData }
    }

    /// A view of elements at an address in `space`, such as those of another library's tensor.
    ///
    /// # Safety
    ///
    /// During `'a` the elements are valid, initialized and not written, and the address is aligned
    /// to them.
    pub unsafe fn from_raw_parts(
        space: MemorySpace,
        address: *const u8,
        data_type: DataType,
        element_count: usize,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::from_raw(RawTensor::flat(space, address.cast_mut(), data_type, element_count)) }
    }

    pub(crate) fn raw(&self) -> &RawTensor {
        &self.raw
    }

    /// The address of the first byte, in the memory that [`space`](Self::space) names.
    pub fn as_ptr(&self) -> *const u8 {
        self.raw.address
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the tensor is not in host memory.
    pub fn as_slice<T: Element>(&self) -> Result<&'a [T]> {
        self.raw.check_type::<T>()?;
        // SAFETY: the view borrows that many initialized, aligned elements of `T` for `'a`.
        Ok(unsafe { slice::from_raw_parts(self.raw.slice_ptr(), self.element_count()) })
    }
}

impl<'a> TensorViewMut<'a> {
    /// # Safety
    ///
    /// During `'a` the memory is initialized, aligned to the element size, at least as long as
    /// `raw` says, and used through this view only.
    pub(crate) unsafe fn from_raw(raw: RawTensor) -> Self {
        TensorViewMut { raw, lease: None, borrow: PhantomData }
    }

    /// A view of elements at an address in `space`, such as those of another library's tensor.
    ///
    /// # Safety
    ///
    /// During `'a` the elements are valid, initialized and used through this view only, and the
    /// address is aligned to them.
    pub unsafe fn from_raw_parts(
        space: MemorySpace,
        address: *mut u8,
        data_type: DataType,
        element_count: usize,
    ) -> Self {
        // SAFETY: the caller's promise.
        unsafe { Self::from_raw(RawTensor::flat(space, address, data_type, element_count)) }
    }

    pub(crate) fn raw(&mut self) -> &RawTensor {
        &self.raw
    }

    /// The address of the first byte, in the memory that [`space`](Self::space) names.
    pub fn as_mut_ptr(&mut self) -> *mut u8 {
        self.raw.address
    }

    /// The elements.
    ///
    /// # Errors
    ///
    /// `T` is not the type of the elements; the tensor is not in host memory.
    pub fn as_mut_slice<T: Element>(&mut self) -> Result<&mut [T]> {
        self.raw.check_type::<T>()?;
        if let Some(lease) = self.lease {
            lease.set_sliced(true);
        }
        // SAFETY: the view borrows that many initialized, aligned elements of `T` mutably, and
        // `self` is borrowed mutably.
        Ok(unsafe { slice::from_raw_parts_mut(self.raw.slice_ptr(), self.element_count()) })
    }
}

impl<'a, T: Element> From<&'a [T]> for TensorView<'a> {
    fn from(slice: &'a [T]) -> Self {
        TensorView { raw: RawTensor::of_slice(slice.as_ptr().cast_mut(), slice.len()), borrow: PhantomData }
    }
}

impl<'a, T: Element> From<&'a mut [T]> for TensorViewMut<'a> {
    fn from(slice: &'a mut [T]) -> Self {
        TensorViewMut { raw: RawTensor::of_slice(slice.as_mut_ptr(), slice.len()), lease: None, borrow: PhantomData }
    }
}

impl<'a> From<&'a Buffer> for TensorView<'a> {
    fn from(buffer: &'a Buffer) -> Self {
        TensorView { raw: RawTensor::of_buffer(buffer, buffer.as_ptr().cast_mut()), borrow: PhantomData }
    }
}

impl<'a> From<&'a mut Buffer> for TensorViewMut<'a> {
    fn from(buffer: &'a mut Buffer) -> Self {
        let address = buffer.as_mut_ptr();
        TensorViewMut { raw: RawTensor::of_buffer(buffer, address), lease: buffer.lease(), borrow: PhantomData }
    }
}

/// The memory that a view borrows.
#[derive(Clone, Copy)]
pub(crate) struct RawTensor {
    pub(crate) data_type: DataType,
    pub(crate) address: *mut u8,
    pub(crate) space: MemorySpace,
    /// A number that differs from that of other memory of a GPU at the same address; 0 for memory
    /// of the caller. [`UNKNOWN`](Self::UNKNOWN) is not even equal to itself.
    pub(crate) generation: u64,
    pub(crate) byte_len: usize,
    /// A slice has a length but no shape.
    pub(crate) shape: Option<Shape>,
}

impl RawTensor {
    /// The generation of memory whose pages the caller may replace: it is not known.
    pub(crate) const UNKNOWN: u64 = u64::MAX;

    fn of_slice<T: Element>(address: *mut T, element_count: usize) -> Self {
        Self::flat(MemorySpace::Host, address.cast(), T::DATA_TYPE, element_count)
    }

    fn of_buffer(buffer: &Buffer, address: *mut u8) -> Self {
        RawTensor {
            data_type: buffer.data_type(),
            address,
            space: buffer.space(),
            generation: buffer.generation(),
            byte_len: buffer.byte_len(),
            shape: Some(buffer.shape()),
        }
    }

    /// Elements at an address, without a shape.
    pub(crate) fn flat(space: MemorySpace, address: *mut u8, data_type: DataType, element_count: usize) -> Self {
        RawTensor {
            data_type,
            address,
            space,
            generation: 0,
            byte_len: element_count * data_type.byte_len(),
            shape: None,
        }
    }

    pub(crate) fn element_count(&self) -> usize {
        self.byte_len / self.data_type.byte_len()
    }

    pub(crate) fn located(&self) -> Address {
        Address { pointer: self.address, space: self.space }
    }

    fn check_type<T: Element>(&self) -> Result<()> {
        if self.space != MemorySpace::Host {
            bail!(InvalidBuffer, "the tensor is in {}, which the processor cannot touch", self.space);
        }
        if T::DATA_TYPE != self.data_type {
            bail!(InvalidBuffer, "the tensor is {}, not {}", self.data_type, T::DATA_TYPE);
        }
        Ok(())
    }

    /// The address to make a slice from. It is not null, even if the view's is.
    fn slice_ptr<T>(&self) -> *mut T {
        if self.byte_len == 0 { std::ptr::dangling_mut() } else { self.address.cast() }
    }
}

impl fmt::Debug for RawTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.shape {
            Some(shape) => write!(f, "{} {shape}", self.data_type)?,
            None => write!(f, "{} [{}]", self.data_type, self.element_count())?,
        }
        match self.space {
            MemorySpace::Host => Ok(()),
            space => write!(f, " in {space}"),
        }
    }
}
