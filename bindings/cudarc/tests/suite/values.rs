//! What is in the slices after calls, read through cudarc.

use cudarc::driver::CudaSlice;
use distcollective::collective::Collective;
use distcollective::comm::{Message, Operands};
use distcollective::tensor::{bf16, f16};
use distcollective::{DataType, DistCollective, Network, ReduceOperation, inputs, outputs};

use crate::{OnRank, SUM, test_of_two_ranks};

test_of_two_ranks!(all_types_are_reduced, |on: OnRank| {
    macro_rules! check {
        ($($type:ty: $number:expr),* $(,)?) => { $(
            let number: fn(u8) -> $type = $number;
            let own = on.rank() as u8 + 1;
            let mut x = on.cuda.clone_htod(&[number(own), number(10 * own)])?;
            let work = on.stream.enqueue_in_place(&on.communicator, SUM, &mut x)?;
            assert_eq!(on.cuda.clone_dtoh(&x)?, [number(3), number(30)]);
            work.wait()?;
        )* };
    }
    check! {
        f32: f32::from, f64: f64::from, f16: f16::from, bf16: bf16::from, i8: |n| n as i8, u8: |n| n,
        i32: i32::from, u32: u32::from, i64: i64::from, u64: u64::from,
    }
    Ok(())
});

test_of_two_ranks!(all_operations_run_on_slices_and_views, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let (rank, sum, root) = (on.rank() as i32, ReduceOperation::Sum, distcollective::Rank(1));
    let is_root = rank == 1;
    let none = None::<&CudaSlice<i32>>;
    let input = cuda.clone_htod(&[rank + 1, rank + 10])?;
    let mut whole = cuda.alloc_zeros::<i32>(6)?;
    let mut part = cuda.clone_htod(&[7, 8, 9])?;
    let mut works = Vec::new();

    works.push(stream.enqueue(communicator, SUM, Some(&input), Some(&mut whole.slice_mut(1..3)))?);
    assert_eq!(cuda.clone_dtoh(&whole)?, [0, 3, 21, 0, 0, 0]);
    works.push(stream.enqueue(communicator, Collective::AllGather, Some(&input), Some(&mut whole.slice_mut(..4)))?);
    assert_eq!(cuda.clone_dtoh(&whole)?, [1, 10, 2, 11, 0, 0]);
    works.push(stream.enqueue(
        communicator,
        Collective::ReduceScatter { reduce_op: sum },
        Some(&whole.slice(..4)),
        Some(&mut part.slice_mut(1..)),
    )?);
    assert_eq!(cuda.clone_dtoh(&part)?, if is_root { [7, 4, 22] } else { [7, 2, 20] });
    works.push(stream.enqueue(communicator, Collective::AllToAll, Some(&input), Some(&mut part.slice_mut(..2)))?);
    assert_eq!(cuda.clone_dtoh(&part.slice(..2))?, if is_root { [10, 11] } else { [1, 2] });

    let mut x = input.try_clone()?;
    works.push(stream.enqueue_in_place(communicator, Collective::Broadcast { root }, &mut x)?);
    assert_eq!(cuda.clone_dtoh(&x)?, [2, 11]);
    works.push(stream.enqueue_in_place(communicator, Collective::Reduce { reduce_op: sum, root }, &mut x)?);
    assert_eq!(cuda.clone_dtoh(&x)?, if is_root { [4, 22] } else { [2, 11] });
    let mut all = whole.slice_mut(..4);
    works.push(stream.enqueue(communicator, Collective::Gather { root }, Some(&input), is_root.then_some(&mut all))?);
    let all = is_root.then_some(all.as_view());
    works.push(stream.enqueue(communicator, Collective::Scatter { root }, all.as_ref(), Some(&mut x))?);
    assert_eq!(cuda.clone_dtoh(&x)?, [rank + 1, rank + 10]);
    works.push(stream.enqueue(communicator, Collective::Broadcast { root }, none, Some(&mut x))?);
    assert_eq!(cuda.clone_dtoh(&x)?, [2, 11]);
    works.into_iter().try_for_each(|work| work.wait().map(drop))?;
    Ok(())
});

test_of_two_ranks!(calls_that_wait_take_views, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let (rank, other) = (on.rank() as u32, 1 - on.rank() as u32);
    let mut x = cuda.clone_htod(&[rank as f32, 1.0, 2.0])?;
    communicator.all_reduce(stream.view_mut(&mut x.slice_mut(..2))?, ReduceOperation::Sum)?;
    assert_eq!(cuda.clone_dtoh(&x)?, [1.0, 2.0, 2.0]);
    let mut all = cuda.alloc_zeros::<f32>(4)?;
    communicator.all_gather(stream.view(&x.slice(1..))?, stream.view_mut(&mut all)?)?;
    assert_eq!(cuda.clone_dtoh(&all)?, [2.0; 4]);

    let numbers = cuda.clone_htod(&[rank; 5])?;
    let mut received = cuda.alloc_zeros::<u32>(5)?;
    if rank == 0 {
        communicator.send(stream.view(&numbers)?, 1, 0)?;
        communicator.recv(stream.view_mut(&mut received)?, other, 0)?;
    } else {
        communicator.recv(stream.view_mut(&mut received)?, other, 0)?;
        communicator.send(stream.view(&numbers)?, 0, 0)?;
    }
    assert_eq!(cuda.clone_dtoh(&received)?, [other; 5]);
    Ok(())
});

test_of_two_ranks!(asynchronous_calls_own_slices, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let other = 1 - on.rank() as u32;
    let x = stream.buffer(cuda.clone_htod(&[1.5f64, on.rank() as f64])?, &[2, 1])?;
    let work = communicator.collective_async(SUM, Operands::in_place(x), stream.stream())?;
    let x = work.wait()?.output.expect("the work hands it back");
    assert_eq!(x.shape().as_slice(), [2, 1]);
    let x = x.into_owner::<CudaSlice<f32>>().expect_err("it is of f64");
    let x = x.into_owner::<CudaSlice<f64>>().expect("the slice");
    assert_eq!(cuda.clone_dtoh(&x)?, [3.0, 1.0]);

    let numbers = stream.buffer(cuda.clone_htod(&[on.rank() as i64; 5])?, &[5])?;
    let received = stream.buffer(cuda.alloc_zeros::<i64>(5)?, &[5])?;
    let messages = vec![Message::send(numbers, other, 0), Message::recv(received, other, 0)];
    let mut messages = communicator.batch_isend_irecv(messages)?.wait()?.messages;
    let received = messages.pop().expect("two").buffer.into_owner::<CudaSlice<i64>>().expect("the slice");
    assert_eq!(cuda.clone_dtoh(&received)?, [i64::from(other); 5]);
    Ok(())
});

test_of_two_ranks!(a_context_runs_on_slices, |on: OnRank| {
    let OnRank { communicator, cuda, stream, .. } = &on;
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1, 2])?;
    let y = network.add(DistCollective::all_gather().nb_rank(2), x)?;
    network.mark_output(y, "y")?;
    let engine = network.build()?;
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;

    let mut bindings = context.create_bindings();
    bindings.bind_input("x", stream.buffer(cuda.clone_htod(&[on.rank() as f32, 5.0])?, &[1, 2])?)?;
    bindings.bind_output("y", stream.buffer(cuda.alloc_zeros::<f32>(4)?, &[2, 2])?)?;
    let mut bindings = context.enqueue(bindings, stream.stream())?.wait()?;
    let y = bindings.take("y")?.expect("it is bound").into_owner::<CudaSlice<f32>>().expect("the slice");
    assert_eq!(cuda.clone_dtoh(&y)?, [0.0, 5.0, 1.0, 5.0]);

    let (x, mut y) = (cuda.clone_htod(&[7.0f32, on.rank() as f32])?, y);
    context.execute(inputs!["x" => stream.view(&x)?], outputs!["y" => stream.view_mut(&mut y)?])?;
    assert_eq!(cuda.clone_dtoh(&y)?, [7.0, 0.0, 7.0, 1.0]);
    Ok(())
});
