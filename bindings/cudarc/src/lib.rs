//! Collectives for [cudarc]: on its streams, and on memory of its slices.
//!
//! [`CudarcStream`] is a `CudaStream` of cudarc as a [`Stream`](distcollective::Stream), and takes
//! slices to collectives in three ways:
//!
//! | for | from | call |
//! |---|---|---|
//! | all eight operations, in the order of the stream | slices and views | [`enqueue`](CudarcStream::enqueue), [`enqueue_in_place`](CudarcStream::enqueue_in_place) |
//! | calls that wait for their result, messages too; [`ExecutionContext::execute`] | slices and views | [`view`](CudarcStream::view), [`view_mut`](CudarcStream::view_mut) |
//! | asynchronous calls and messages, bindings of a context | slices | [`buffer`](CudarcStream::buffer) |
//!
//! ```no_run
//! use cudarc::driver::CudaContext;
//! use distcollective::collective::Collective;
//! use distcollective::comm::BackendKind;
//! use distcollective::{Communicator, ReduceOperation};
//! use distcollective_cudarc::CudarcStream;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! // Two ranks are threads here, with a GPU each. `Environment::from_env` is for processes.
//! let communicators = Communicator::builder().backend(BackendKind::Nccl).in_process(2)?;
//! let rank = |communicator: Communicator| -> Result<Vec<f32>, Box<dyn std::error::Error>> {
//!     let context = CudaContext::new(communicator.rank().index())?;
//!     let cuda = context.new_stream()?;
//!     let stream = CudarcStream::new(&cuda)?; // once
//!
//!     // In the order of the stream: this thread waits for nothing.
//!     let mut x = cuda.clone_htod(&[1.0f32, 2.0])?;
//!     let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
//!     let work = stream.enqueue_in_place(&communicator, sum, &mut x)?;
//!     let copy = x.try_clone()?; // what is enqueued on `x` now comes after the sum
//!     work.wait()?; // says whether the call has succeeded
//!
//!     // This thread waits until the result is there.
//!     communicator.all_reduce(stream.view_mut(&mut x)?, ReduceOperation::Max)?;
//!     Ok(cuda.clone_dtoh(&copy)?)
//! };
//! std::thread::scope(|scope| {
//!     for communicator in communicators {
//!         scope.spawn(move || println!("{:?}", rank(communicator).unwrap()));
//!     }
//! });
//! # Ok(())
//! # }
//! ```
//!
//! # Lifetimes and order
//!
//! - [`CudarcStream`] holds the `Arc<CudaStream>`. The library drops it when the work on it has
//!   ended.
//! - Before a call the stream waits for what cudarc's events say of the slices: earlier writes,
//!   and for an output earlier reads too. After a call cudarc records its events on the stream. So
//!   a slice may be used on another stream, or dropped, right after the call.
//! - A [`Buffer`](distcollective::Buffer) owns its slice.
//!   [`into_owner::<CudaSlice<T>>`](distcollective::Buffer::into_owner) gives it back.
//! - If the program turns cudarc's event tracking off, it has to order its streams itself.
//!
//! # Waits and failures
//!
//! A peer may fail or come late. Waits of this library have deadlines; those of cudarc, such as
//! `CudaStream::synchronize`, have none. So wait for the [`Work`](distcollective::Work) first, as
//! above: it returns an error at the communicator's deadline, and ends the work. If the library
//! then warns that work on the GPU goes on, keep the slices until the process ends: no event of
//! cudarc's is behind that work.
//!
//! A [`Buffer`](distcollective::Buffer) that is dropped frees its slice a little later. Before you
//! capture a stream of cudarc's, take the slices back, and drop them yourself.
//!
//! # What there is not
//!
//! - Collectives in graphs that cudarc captures: cudarc's graphs do not keep the slices. For that,
//!   [`Stream::from_raw_cuda`](distcollective::Stream::from_raw_cuda) is unsafe. A context's own
//!   graphs are not used either on memory of CUDA's pools, from which cudarc allocates.
//! - Contexts that are not primary ones (`CudaContext::new_non_primary`), and the per-thread
//!   stream.
//! - Memory of other kinds, such as `UnifiedSlice`.
//!
//! # How CUDA is found
//!
//! This package leaves cudarc's choices to the program: name cudarc with its features
//! `dynamic-linking` or `dynamic-loading`, and `cuda-13000` or another version. By default cudarc
//! loads CUDA at run time, and has the version of `nvcc`, or without one its newest. If `nvcc` is
//! newer than cudarc, cudarc's build fails: then set `CUDARC_CUDA_VERSION` to `13000`, or name a
//! version. The collectives need no feature of cudarc's: NCCL is loaded by distcollective.
//!
//! Elements are the types of [`Element`](distcollective::tensor::Element). cudarc makes slices of
//! `f16` and `bf16` with its feature `f16`.
//!
//! [cudarc]: https://docs.rs/cudarc
//! [`ExecutionContext::execute`]: distcollective::ExecutionContext::execute

mod stream;

pub use stream::CudarcStream;
