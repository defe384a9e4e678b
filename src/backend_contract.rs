//! The contract of a backend, by a backend that only these tests have: every way in reaches it, and
//! its optional operations are optional.

use crate::collective::Collective;
use crate::comm::Operands;
use crate::comm::loopback::communicator;
use crate::context::ContextOptions;
use crate::{
    Buffer, DataType, DistCollective, ErrorKind, Network, Rank, ReduceOperation, Result, Stream, inputs, outputs,
};

const SUM: Collective<Rank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

#[test]
fn an_engine_runs_on_any_backend() -> Result<()> {
    let (communicator, _) = communicator();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [2])?;
    let z = network.add_input("z", DataType::Float32, [3])?;
    let all_reduce = || DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2);
    // The first two do not depend on each other.
    let a = network.add(all_reduce(), x)?;
    let b = network.add(all_reduce(), z)?;
    let c = network.add(all_reduce(), a)?;
    network.mark_output(b, "b")?;
    network.mark_output(c, "c")?;
    let engine = network.build()?;
    let mut context = engine.create_execution_context_with(ContextOptions::default().cuda_graph(true))?;

    context.set_communicator(&communicator)?;

    let (mut b, mut c) = ([0f32; 3], [0f32; 2]);
    context.execute(inputs!["x" => &[1f32, 2.0], "z" => &[3f32; 3]], outputs!["b" => &mut b, "c" => &mut c])?;
    assert_eq!((b, c), ([6.0; 3], [4.0, 8.0]));

    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::from_slice(&[1f32, 2.0], [2])?)?;
    bindings.bind_input("z", Buffer::from_slice(&[3f32; 3], [3])?)?;
    bindings.bind_output("b", Buffer::zeroed(DataType::Float32, [3])?)?;
    bindings.bind_output("c", Buffer::zeroed(DataType::Float32, [2])?)?;
    let bindings = context.enqueue(bindings, &Stream::worker()?)?.wait()?;
    assert_eq!(bindings.get("c")?.as_slice::<f32>()?, [4.0, 8.0]);
    Ok(())
}

#[test]
fn a_run_that_fails_ends_the_communicator() -> Result<()> {
    let (communicator, _) = communicator();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2])?;
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(&communicator)?;
    let failed = context.execute(inputs!["x" => &[1i32, 2]], outputs!["y" => &mut [0i32; 2]]);
    assert_eq!(failed.expect_err("int32 is not looped back").kind(), ErrorKind::Unsupported);
    assert_eq!(communicator.barrier().expect_err("it has ended").kind(), ErrorKind::Unsupported);
    Ok(())
}

#[test]
fn a_layer_by_itself_runs_on_any_backend() -> Result<()> {
    let (communicator, _) = communicator();
    let layer = DistCollective::all_gather().group([Rank(0), Rank(1)]).into_layer();
    let bound = layer.bind(&communicator, DataType::Uint8)?;
    let (x, mut y) = ([1u8, 2, 3], [0u8; 6]);
    bound.execute(Some(&x), Some(&mut y), &[3])?;
    assert_eq!(y, [1, 2, 3, 1, 2, 3]);
    let mut z = [0u8; 6];
    for stream in [Stream::inline(), Stream::worker()?] {
        // SAFETY: the buffers are as long as the shapes, and outlive the work.
        unsafe { bound.enqueue(x.as_ptr(), z.as_mut_ptr(), &[3], &stream)? }.wait()?;
        assert_eq!(std::mem::take(&mut z), y);
    }
    Ok(())
}

#[test]
fn eager_calls_run_on_any_backend() -> Result<()> {
    let (communicator, _) = communicator();
    let mut x = [1f32, 2.0];
    communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
    assert_eq!(x, [2.0, 4.0]);
    communicator.all_reduce(&mut [0f32; 0], ReduceOperation::Sum)?;
    communicator.barrier()?;

    let mut list = [[0i32; 2]; 2];
    communicator.all_gather_list(&[5i32, 6], &mut list)?;
    assert_eq!(list, [[5, 6]; 2]);
    assert_eq!(communicator.all_gather_bytes(b"abc")?, [b"abc", b"abc"]);
    communicator.monitored_barrier(communicator.timeout())?;

    let buffer = communicator.allocate(DataType::Float32, [2])?;
    let work = communicator.collective_async(SUM, Operands::in_place(buffer), &Stream::worker()?)?;
    assert_eq!(work.wait()?.output.expect("handed back").as_slice::<f32>()?, [0.0, 0.0]);

    let pair = communicator.split(Some(7), 0)?.expect("a color");
    assert!(communicator.split(None, 0)?.is_none());

    pair.abort("enough")?;
    assert_eq!(communicator.check().expect_err("what was split ends together").kind(), ErrorKind::Aborted);
    pair.barrier().expect_err("it has ended");
    Ok(())
}
