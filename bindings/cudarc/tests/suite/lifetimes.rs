//! Slices and streams that are used or dropped while a call has not ended.

use std::sync::Arc;

use cudarc::driver::CudaContext;
use distcollective::collective::Collective;
use distcollective::comm::Operands;
use distcollective_cudarc::CudarcStream;
use test_support::processes::wait_until;

use crate::{OnRank, SUM, test_of_two_ranks};

/// Longer than what a library might keep of freed memory, which the test library fills.
const LONG: usize = 1 << 20;

test_of_two_ranks!(other_streams_wait_for_the_call, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let (before, after) = (cuda.context().new_stream()?, cuda.context().new_stream()?);
    on.come_late();
    let mut x = before.clone_htod(&vec![1i32; LONG])?;
    let work = stream.enqueue_in_place(communicator, SUM, &mut x)?;
    assert!(on.rank() == 1 || !work.is_settled());
    assert_eq!(after.clone_dtoh(&x)?, vec![2; LONG]);
    // This write comes after the call has read.
    let mut y = before.alloc_zeros::<i32>(2 * LONG)?;
    on.come_late();
    let gather = stream.enqueue(communicator, Collective::AllGather, Some(&x), Some(&mut y))?;
    after.memset_zeros(&mut x)?;
    assert_eq!(before.clone_dtoh(&y)?, vec![2; 2 * LONG]);
    work.wait()?;
    gather.wait()?;
    Ok(())
});

test_of_two_ranks!(a_slice_is_dropped_right_after_the_call, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let allocating = cuda.context().new_stream()?;
    on.come_late();
    let x = allocating.clone_htod(&vec![1i32; LONG])?;
    let mut y = allocating.alloc_zeros::<i32>(2 * LONG)?;
    let dropped = stream.enqueue(communicator, Collective::AllGather, Some(&x), Some(&mut y))?;
    drop(x);
    let result = y.try_clone()?;
    drop(y);
    // The `Work` is dropped too. The test library ends the process if the call writes freed memory.
    drop(dropped);
    assert_eq!(allocating.clone_dtoh(&result)?, vec![1; 2 * LONG]);
    cuda.context().synchronize()?;
    Ok(())
});

test_of_two_ranks!(a_stream_lives_until_its_work_has_ended, |on: OnRank| {
    let context = Arc::clone(on.cuda.context());
    let (own, weak) = {
        let cuda = context.new_stream()?;
        (CudarcStream::new(&cuda)?, Arc::downgrade(&cuda))
    };
    on.come_late();
    let x = own.buffer(on.cuda.clone_htod(&vec![1i32; LONG])?, &[LONG])?;
    let work = on.communicator.collective_async(SUM, Operands::in_place(x), own.stream())?;
    drop((own, work));
    assert!(on.rank() == 1 || weak.upgrade().is_some());
    wait_until("the stream is dropped", || weak.upgrade().is_none());
    Ok(())
});

test_of_two_ranks!(the_default_stream_needs_no_events, |on: OnRank| {
    let context = CudaContext::new(on.cuda.context().ordinal())?;
    let cuda = context.default_stream();
    let stream = CudarcStream::new(&cuda)?;
    assert!(!context.is_managing_stream_synchronization());
    on.come_late();
    let mut x = cuda.clone_htod(&[1u8, 2, 3])?;
    let work = stream.enqueue_in_place(&on.communicator, SUM, &mut x.slice_mut(1..))?;
    let y = x.try_clone()?;
    drop(x);
    assert_eq!(cuda.clone_dtoh(&y)?, [1, 4, 6]);
    work.wait()?;
    Ok(())
});
