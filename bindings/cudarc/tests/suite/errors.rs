//! What is refused, on both ranks.

use cudarc::driver::{CudaContext, sys};
use distcollective::{Communicator, Error, ErrorKind};
use distcollective_cudarc::CudarcStream;

use crate::{OnRank, SUM, test_of_two_ranks};

/// Checks an error's kind and words.
fn is_refused<T>(result: Result<T, Error>, kind: ErrorKind, words: &str) {
    let error = result.err().expect("it is refused");
    assert!(error.kind() == kind && error.to_string().contains(words), "{:?}: {error}", error.kind());
}

test_of_two_ranks!(mistakes_are_errors, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let (x, mut y) = (cuda.clone_htod(&[1f32; 3])?, cuda.alloc_zeros::<f32>(2)?);
    let result = stream.enqueue(communicator, SUM, Some(&x), Some(&mut y));
    is_refused(result, ErrorKind::InvalidBuffer, "the output has 2 elements; with 2 ranks it must have 3");
    let result = stream.enqueue(communicator, SUM, Some(&x), Some(&mut cuda.alloc_zeros::<i32>(3)?));
    is_refused(result, ErrorKind::InvalidBuffer, "the input is float32 and the output int32");
    is_refused(stream.buffer(x, &[2, 2]), ErrorKind::InvalidBuffer, "[2, 2] has 4 elements, and the slice 3");

    // Another `CudaContext` of the same GPU, and another GPU.
    for gpu in [on.rank(), 2] {
        let other = CudaContext::new(gpu)?.new_stream()?;
        let words = format!("of a CudaContext of GPU {gpu}");
        is_refused(stream.view(&other.alloc_zeros::<f32>(1)?), ErrorKind::InvalidArgument, &words);
    }
    let other = CudaContext::new(2)?.new_stream()?;
    let result = CudarcStream::new(&other)?.enqueue_in_place(communicator, SUM, &mut other.alloc_zeros::<f32>(1)?);
    is_refused(result, ErrorKind::InvalidArgument, "GPU 2");
    let host = Communicator::builder().in_process(1)?.remove(0);
    is_refused(stream.enqueue_in_place(&host, SUM, &mut y), ErrorKind::Unsupported, "CUDA stream");

    // The next call goes on.
    stream.enqueue_in_place(communicator, SUM, &mut y)?.wait()?;
    Ok(())
});

test_of_two_ranks!(a_captured_stream_is_refused, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let mut x = cuda.alloc_zeros::<f32>(1)?;
    cuda.synchronize()?;
    // SAFETY: this test waits before it uses a slice on another stream.
    unsafe { cuda.context().disable_event_tracking() };
    cuda.begin_capture(sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL)?;
    let work = stream.enqueue_in_place(communicator, SUM, &mut x)?;
    is_refused(work.wait().map_err(Error::from), ErrorKind::Unsupported, "the stream is being captured");
    is_refused(stream.view(&x), ErrorKind::NotReady, "captured");
    let graph = cuda.end_capture(sys::CUgraphInstantiate_flags(0))?;
    assert!(graph.is_some());
    stream.enqueue_in_place(communicator, SUM, &mut x)?.wait()?;
    Ok(())
});

test_of_two_ranks!(streams_of_other_kinds_are_refused, |on: OnRank| {
    let per_thread = on.cuda.context().per_thread_stream();
    is_refused(CudarcStream::new(&per_thread), ErrorKind::Unsupported, "per-thread");
    let (device, raw) = (on.cuda.context().cu_device(), on.cuda.context().cu_ctx());
    // SAFETY: the context is valid. It is leaked, so it is not destroyed.
    let context = unsafe { CudaContext::from_raw_context(on.rank(), device, raw) }?;
    is_refused(CudarcStream::new(&context.default_stream()), ErrorKind::Unsupported, "not the GPU's primary one");
    std::mem::forget(context);
    Ok(())
});
