//! A stream of cudarc, and collectives on slices.

use std::sync::Arc;

use cudarc::driver::{CudaSlice, CudaStream, DevicePtr, DevicePtrMut, SyncOnDrop};
use distcollective::collective::Collective;
use distcollective::comm::RawCollective;
use distcollective::tensor::{Element, MemorySpace, Shape, TensorView, TensorViewMut};
use distcollective::{Buffer, Communicator, Error, ErrorKind, Rank, Result, Stream, Work};

mod private {
    use cudarc::driver::{CudaSlice, CudaView, CudaViewMut};

    /// What lies in memory of a GPU's. cudarc's traits can be implemented for anything, also with a
    /// wrong address, in safe code.
    pub trait Sealed {}
    impl<T> Sealed for CudaSlice<T> {}
    impl<T> Sealed for CudaView<'_, T> {}
    impl<T> Sealed for CudaViewMut<'_, T> {}
}

use private::Sealed;

/// A stream of cudarc, for collectives on slices of the same `CudaContext`.
///
/// Clones are the same stream. Make it once for a `CudaStream`: each new one costs a look at the
/// driver, and a thread of the library drops it.
#[derive(Clone, Debug)]
pub struct CudarcStream {
    cudarc: Arc<CudaStream>,
    stream: Stream,
    space: MemorySpace,
}

impl CudarcStream {
    /// A stream of cudarc, which this one holds until all work on it has ended.
    ///
    /// # Errors
    ///
    /// - `Unsupported`: the stream is CUDA's per-thread stream, or its context is not the primary
    ///   one of the GPU.
    /// - `System`: CUDA reports an error.
    pub fn new(stream: &Arc<CudaStream>) -> Result<Self> {
        if !stream.context().is_primary() {
            let text = "the stream's CudaContext is not the GPU's primary one; make it with CudaContext::new";
            return Err(Error::new(ErrorKind::Unsupported, text));
        }
        let ordinal = stream.context().ordinal() as u32;
        let (raw, owner) = (stream.cu_stream().cast(), Arc::clone(stream));
        // SAFETY: the context is primary, and a stream of cudarc exists until its last `Arc` is
        // dropped. For one of another library the caller of `wrap_borrowed_stream` promises that.
        let ours = unsafe { Stream::from_raw_cuda_with_owner(raw, ordinal, owner) }?;
        Ok(CudarcStream { cudarc: Arc::clone(stream), stream: ours, space: MemorySpace::Cuda(ordinal) })
    }

    /// The stream for calls of distcollective that take one.
    pub fn stream(&self) -> &Stream {
        &self.stream
    }

    /// Enqueues any of the eight operations, and waits for nothing. Lengths, and what the call
    /// does, are those of [`Communicator::collective`]. Collective.
    ///
    /// Other work of cudarc on the slices, on any stream, comes after the call; so does the free of
    /// a slice that is dropped. [`Work::wait`] says how the call ended.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: a slice is of another `CudaContext`.
    /// - `Unsupported`: the stream is being captured; the communicator is on the host.
    /// - `System`: cudarc reports an error.
    /// - Those of [`Communicator::collective`]. Those that the arguments show come from this call,
    ///   all others from [`Work::wait`].
    pub fn enqueue<I: Element, O: Element>(
        &self,
        communicator: &Communicator,
        collective: Collective<Rank>,
        input: Option<&(impl DevicePtr<I> + Sealed)>,
        output: Option<&mut (impl DevicePtrMut<O> + Sealed)>,
    ) -> Result<Work<RawCollective>> {
        let (input, after_read) = input.map(|slice| self.read(slice)).transpose()?.unzip();
        let (output, after_write) = output.map(|slice| self.write(slice)).transpose()?.unzip();
        // SAFETY: the slices are borrowed until the guards are dropped. That records events behind
        // the call, for which cudarc waits before it uses or frees the memory.
        let work = unsafe { communicator.enqueue_views(collective, input, output, &self.stream) }?;
        drop((after_read, after_write));
        match self.check() {
            Ok(()) => Ok(work),
            // There may be no event.
            Err(error) => work.wait().map_err(Error::from).and(Err(error)),
        }
    }

    /// [`enqueue`](Self::enqueue) of all_reduce, broadcast or reduce on one slice. Collective.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue`](Self::enqueue).
    pub fn enqueue_in_place<T: Element>(
        &self,
        communicator: &Communicator,
        collective: Collective<Rank>,
        slice: &mut (impl DevicePtrMut<T> + Sealed),
    ) -> Result<Work<RawCollective>> {
        self.enqueue::<T, T>(communicator, collective, None::<&CudaSlice<T>>, Some(slice))
    }

    /// A slice as a tensor to read, for calls that wait for their result. Waits until earlier
    /// writes are done, and the work of this stream.
    ///
    /// # Errors
    ///
    /// Those of [`enqueue`](Self::enqueue) that are about a slice, and those of
    /// [`Stream::synchronize`].
    pub fn view<'a, T: Element>(&self, slice: &'a (impl DevicePtr<T> + Sealed)) -> Result<TensorView<'a>> {
        let address = self.read(slice)?.0.as_ptr();
        self.settle()?;
        // SAFETY: the view borrows the slice, whose earlier writes are done.
        Ok(unsafe { TensorView::from_raw_parts(self.space, address, T::DATA_TYPE, slice.len()) })
    }

    /// A slice as a tensor to write, for calls that wait for their result. Waits until earlier uses
    /// are done, and the work of this stream.
    ///
    /// # Errors
    ///
    /// Those of [`view`](Self::view).
    pub fn view_mut<'a, T: Element>(
        &self,
        slice: &'a mut (impl DevicePtrMut<T> + Sealed),
    ) -> Result<TensorViewMut<'a>> {
        let address = self.write(slice)?.0.as_mut_ptr();
        self.settle()?;
        // SAFETY: the view borrows the slice mutably, and its earlier uses are done.
        Ok(unsafe { TensorViewMut::from_raw_parts(self.space, address, T::DATA_TYPE, slice.len()) })
    }

    /// A slice as a buffer of this shape, for calls that take or bind buffers. Waits as
    /// [`view_mut`](Self::view_mut). [`Buffer::into_owner`] gives the `CudaSlice<T>` back.
    ///
    /// # Errors
    ///
    /// `InvalidBuffer`: the shape has not as many elements; and those of
    /// [`view_mut`](Self::view_mut). The slice is dropped.
    pub fn buffer<T: Element>(&self, mut slice: CudaSlice<T>, dims: &[usize]) -> Result<Buffer> {
        let (shape, len) = (Shape::new(dims)?, slice.len());
        if shape.element_count() != len {
            let text = format!("{shape} has {} elements, and the slice {len}", shape.element_count());
            return Err(Error::new(ErrorKind::InvalidBuffer, text));
        }
        let address = self.view_mut(&mut slice)?.as_mut_ptr();
        // SAFETY: the memory is the slice's, which is freed when the slice is dropped; it has as
        // many elements, and its earlier uses are done.
        unsafe { Buffer::from_raw_with_owner(self.space, address, T::DATA_TYPE, shape, slice) }
    }

    /// A slice that is read on this stream after earlier writes. It borrows the slice until the
    /// guard is dropped, which records the read.
    fn read<'a, T: Element>(&'a self, slice: &'a impl DevicePtr<T>) -> Result<(TensorView<'a>, SyncOnDrop<'a>)> {
        self.check_context(slice.stream())?;
        let len = slice.len();
        let (address, guard) = slice.device_ptr(&self.cudarc);
        self.check()?;
        // SAFETY: the view borrows the slice. Every bit pattern is an element, so the memory counts
        // as initialized.
        let view = unsafe { TensorView::from_raw_parts(self.space, address as *const u8, T::DATA_TYPE, len) };
        Ok((view, guard))
    }

    /// A slice that is written on this stream after earlier uses, as in [`read`](Self::read).
    fn write<'a, T: Element>(
        &'a self,
        slice: &'a mut impl DevicePtrMut<T>,
    ) -> Result<(TensorViewMut<'a>, SyncOnDrop<'a>)> {
        self.check_context(slice.stream())?;
        let len = slice.len();
        let (address, guard) = slice.device_ptr_mut(&self.cudarc);
        self.check()?;
        // SAFETY: as in `read`, and the view borrows the slice mutably.
        let view = unsafe { TensorViewMut::from_raw_parts(self.space, address as *mut u8, T::DATA_TYPE, len) };
        Ok((view, guard))
    }

    /// Waits until the work of the stream is done.
    fn settle(&self) -> Result<()> {
        self.stream.synchronize()?;
        self.check()
    }

    /// cudarc tracks the streams of one `CudaContext` only.
    fn check_context(&self, other: &CudaStream) -> Result<()> {
        if Arc::ptr_eq(self.cudarc.context(), other.context()) {
            return Ok(());
        }
        let (own, other) = (self.cudarc.context().ordinal(), other.context().ordinal());
        let text = format!(
            "the slice is of a CudaContext of GPU {other}, and the stream of another one, of GPU {own}; slice and \
             stream have to be of one CudaContext"
        );
        Err(Error::new(ErrorKind::InvalidArgument, text))
    }

    /// Checks whether cudarc has kept an error, as of a wait or an event.
    fn check(&self) -> Result<()> {
        let error = |error| Error::new(ErrorKind::System, format!("cudarc reports an error: {error}"));
        self.cudarc.context().check_err().map_err(error)
    }
}
