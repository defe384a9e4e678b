//! What the public API takes and gives, beside what collectives mean: conversions of arguments,
//! ranks as threads, buffers, plans in files, text for people.

use std::sync::{Arc, Mutex};

use distcollective::collective::{Collective, GroupRank, Partition};
use distcollective::comm::{CommunicatorBuilder, NcclId, Operands, RawCollective};
use distcollective::context::Bindings;
use distcollective::dist_collective::BoundLayer;
use distcollective::engine::Inspection;
use distcollective::network::{Layer, Plugin, PluginCall, PluginRegistry, Shuffle};
use distcollective::tensor::{MemorySpace, Shape, TensorView, TensorViewMut, f16};
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Environment, Error, ErrorKind,
    ExecutionContext, Groups, Network, Rank, ReduceOperation, Result, Stream, Work, inputs, outputs,
};
use ndarray::{Array2, arr2, s};

use crate::ranks::{DEADLINE, on_ranks};

const SUM: ReduceOperation = ReduceOperation::Sum;

/// What may go to another thread, and be used by several.
#[test]
fn public_types_are_send_and_sync() {
    const fn send<T: Send>() {}
    const fn both<T: Send + Sync>() {}
    const {
        both::<Bindings>();
        both::<BoundLayer>();
        both::<Buffer>();
        both::<Communicator>();
        both::<CommunicatorBuilder>();
        both::<DistCollectiveLayer>();
        both::<Engine>();
        both::<Environment>();
        both::<Error>();
        both::<Groups>();
        both::<Inspection>();
        both::<NcclId>();
        both::<Network>();
        both::<Operands>();
        both::<Partition>();
        both::<PluginRegistry>();
        both::<RawCollective>();
        both::<Shuffle>();
        both::<Stream>();
        both::<TensorView<'_>>();
        both::<TensorViewMut<'_>>();
        // A context runs on one thread at a time, and work is waited for once.
        send::<ExecutionContext>();
        send::<Work<Operands>>();
        send::<Work<RawCollective>>();
    };
}

fn ranks(n: u32) -> Vec<Communicator> {
    let ranks = Communicator::builder().in_process(n).expect("n is not zero").into_iter();
    ranks.map(|communicator| communicator.with_timeout(DEADLINE)).collect()
}

#[test]
fn spawn_gives_what_each_rank_returns() {
    let offset = [10, 20];
    let ranks = Communicator::spawn(2, |communicator| {
        // What the closure borrows may live on the caller's stack.
        let mut x = offset[communicator.rank().index()];
        communicator.with_timeout(DEADLINE).all_reduce(&mut x, SUM)?;
        Ok((communicator.rank(), x))
    });
    assert_eq!(ranks.expect("no error"), [(Rank(0), 30), (Rank(1), 30)]);
    assert_eq!(Communicator::spawn(0, |_| Ok(())).expect_err("no rank").kind(), ErrorKind::InvalidArgument);
}

#[test]
fn spawn_gives_the_error_that_the_others_follow_from() {
    let fails = |communicator: Communicator| match communicator.rank() {
        Rank(2) => Err(Error::new(ErrorKind::Unsupported, "not here")),
        _ => communicator.barrier(),
    };
    let error = Communicator::builder().timeout(DEADLINE).spawn(3, fails).expect_err("rank 2 fails");
    assert_eq!((error.kind(), error.rank()), (ErrorKind::Unsupported, Some(Rank(2))));
    assert_eq!(error.to_string(), "rank 2: not here");
}

#[test]
fn spawn_gives_a_panic_as_an_error() {
    let panics = |communicator: Communicator| match communicator.rank() {
        Rank(1) => panic!("no such luck"),
        _ => communicator.barrier(),
    };
    let error = Communicator::builder().timeout(DEADLINE).spawn(2, panics).expect_err("rank 1 panics");
    assert_eq!(error.to_string(), "rank 1: the rank panicked: no such luck");
}

#[test]
fn eager_calls_take_whatever_is_a_tensor() {
    let results = on_ranks(2, |c| -> Result<()> {
        let one = c.rank().0 as f32 + 1.0;
        let mut scalar = one;
        c.all_reduce(&mut scalar, SUM)?;
        assert_eq!(scalar, 3.0);

        let mut array = Array2::from_elem((2, 2), one);
        c.all_reduce(&mut array, SUM)?;
        c.broadcast(&mut array.slice_mut(s![..1, ..]), 0)?;
        c.broadcast(array.slice_mut(s![1.., ..]), 0)?;
        assert_eq!(array, arr2(&[[3.0, 3.0], [3.0, 3.0]]));
        let mut vector = vec![0f32; 8];
        c.all_gather(&array, &mut vector)?;
        c.all_gather(array.view(), &mut vector)?;
        assert_eq!(vector, [3.0; 8]);

        let mut sum = Buffer::zeroed(DataType::Float32, [2])?;
        c.collective(Collective::AllReduce { reduce_op: SUM }, Some(&[one, 0.0]), Some(&mut sum))?;
        assert_eq!(sum.as_slice::<f32>()?, [3.0, 0.0]);

        // The same code on the root and on the other ranks.
        let mut all = (c.rank() == Rank(1)).then(|| vec![0f32; 2]);
        c.gather(&one, all.as_mut(), 1)?;
        assert_eq!(all, (c.rank() == Rank(1)).then(|| vec![1.0, 2.0]));
        let mut part = 0.0;
        c.scatter(all.as_ref(), &mut part, Rank(1))?;
        assert_eq!(part, one);
        let mut out = [0f32; 2];
        c.gather(&one, Some(&mut out), 0)?;
        assert_eq!(out, if c.rank() == Rank(0) { [1.0, 2.0] } else { [0.0; 2] });
        Ok(())
    });
    results.into_iter().for_each(|result| result.expect("no error"));
}

#[test]
fn an_array_that_is_not_contiguous_is_an_error_before_anything_moves() {
    let communicator = ranks(1).remove(0);
    let mut array = Array2::<f32>::zeros((2, 2));
    let error = communicator.all_reduce(&mut array.slice_mut(s![.., ..1]), SUM).expect_err("a column");
    assert_eq!(
        error.to_string(),
        "rank 0: all_reduce: the array [2, 1] is not contiguous in row-major order; give an array that is, and copy the \
         result with `assign`"
    );
    communicator.check().expect("the communicator works");
}

#[test]
fn groups_are_lists_of_whatever_is_a_rank() {
    let groups = on_ranks(3, |c| -> Result<_> {
        let last = c.new_group([2, 0])?.map(|group| group.rank());
        let list = [Rank(2), Rank(0)];
        let same = c.new_group(list.iter())?.map(|group| group.rank());
        assert_eq!(last, same);
        Ok(last)
    });
    let groups: Vec<_> = groups.into_iter().map(|group| group.expect("no error")).collect();
    assert_eq!(groups, [Some(Rank(1)), None, Some(Rank(0))]);
    let layer = DistCollective::broadcast(1).group(vec![1u32, 0]).into_layer();
    assert_eq!(layer, DistCollective::broadcast(Rank(1)).group([Rank(1), Rank(0)]).into_layer());
    let partition = Partition::new([[Rank(0)], [Rank(1)]]);
    assert_eq!(partition, Partition::new([[0], [1]]));
    assert!(Groups::Partition(partition.clone()).contains(1) && !Groups::Partition(partition.clone()).contains(2));
    let layer = partition.gather(0).into_layer();
    assert_eq!(layer.root(), Some(GroupRank(0).into()));
}

#[test]
fn a_buffer_takes_a_vector_and_copies_itself() {
    let mut vector = Vec::with_capacity(100);
    vector.extend([1i64, 2, 3]);
    let mut buffer = Buffer::from(vector);
    assert_eq!((buffer.data_type(), buffer.shape().as_slice()), (DataType::Int64, &[3][..]));
    let copy = buffer.try_clone().expect("memory");
    buffer.as_mut_slice::<i64>().expect("int64")[0] = 7;
    assert_eq!(buffer.as_slice::<i64>().expect("int64"), [7, 2, 3]);
    assert_eq!(copy.as_slice::<i64>().expect("int64"), [1, 2, 3]);

    let empty = Buffer::from(Vec::<f16>::new());
    assert_eq!(empty.try_clone().expect("nothing").byte_len(), 0);
    assert_eq!(empty.as_slice::<f16>().expect("float16"), []);

    let copies = on_ranks(2, |c| -> Result<_> {
        let mut symmetric = c.allocate(DataType::Float32, [2, 2])?;
        symmetric.as_mut_slice::<f32>()?.fill(c.rank().0 as f32);
        let copy = symmetric.try_clone()?;
        c.all_reduce(&mut symmetric, SUM)?;
        assert_eq!((copy.space(), copy.shape()), (MemorySpace::Host, Shape::new(&[2, 2])?));
        Ok(copy.as_slice::<f32>()?.to_vec())
    });
    let copies: Vec<_> = copies.into_iter().map(|copy| copy.expect("no error")).collect();
    assert_eq!(copies, [[0.0; 4], [1.0; 4]]);
}

#[test]
fn an_engine_is_saved_and_loaded() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [2]).expect("an input");
    let y = network.add(DistCollective::all_reduce(SUM).nb_rank(2), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = network.build().expect("a network");
    let path = std::env::temp_dir().join(format!("dcl-api-{}.plan", std::process::id()));
    engine.save(&path).expect("a folder for temporary files");
    let loaded = Engine::load(&path).expect("the plan");
    std::fs::write(&path, b"no plan").expect("the file");
    let damaged = Engine::load(&path).expect_err("no plan");
    std::fs::remove_file(&path).expect("the file");
    assert_eq!(loaded.fingerprint(), engine.fingerprint());
    assert_eq!(damaged.kind(), ErrorKind::InvalidPlan);
    assert!(damaged.to_string().starts_with(&format!("plan {}: ", path.display())), "{damaged}");
    let missing = Engine::load(&path).expect_err("no file");
    assert_eq!(missing.kind(), ErrorKind::System);
    assert!(missing.to_string().starts_with(&format!("the plan {} cannot be read: ", path.display())), "{missing}");
}

/// A plugin that copies, and keeps what its call prints.
#[derive(Clone, Debug, Default)]
struct Recorder(Arc<Mutex<String>>);

impl Plugin for Recorder {
    fn type_name(&self) -> &str {
        "recorder"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        *self.0.lock().expect("no panic") = format!("{call:?}");
        let input = call.input(0)?;
        call.output(0)?.as_mut_slice::<i8>()?.copy_from_slice(input.as_slice()?);
        Ok(())
    }
}

#[test]
fn a_plugin_call_says_what_it_is() {
    let recorder = Recorder::default();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [2]).expect("an input");
    let y = network.add_plugin("copy", recorder.clone(), &[x]).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let layer = network.producer(y).expect("a tensor").expect("a layer");
    assert_eq!(network.layer(layer).expect("a layer").kind(), "recorder");
    let engine = network.build().expect("a network");
    assert_eq!((engine.io_index("x").expect("x"), engine.io_index("y").expect("y")), (0, 1));
    let mut y = [0i8; 2];
    let mut context = engine.create_execution_context().expect("memory");
    context.execute(inputs!["x" => &[1i8, 2]], outputs!["y" => &mut y]).expect("no error");
    assert_eq!(y, [1, 2]);
    assert_eq!(
        *recorder.0.lock().expect("no panic"),
        "PluginCall { inputs: [int8 [2]], outputs: [int8 [2]], cuda_stream: None }"
    );
}

#[test]
fn a_layer_of_no_network_has_name_and_kind() {
    let mut layer = Layer::from(DistCollective::all_gather().into_layer());
    layer.set_name("gather");
    assert_eq!((layer.name(), layer.kind(), layer.inputs().len()), ("gather", "all_gather", 0));
}

#[test]
fn views_say_what_they_are() {
    let mut array = Array2::<f32>::zeros((2, 3));
    assert_eq!(format!("{:?}", TensorView::from(&[1i8, 2])), "TensorView(int8 [2])");
    assert_eq!(format!("{:?}", TensorView::try_from(&array).expect("an array")), "TensorView(float32 [2, 3])");
    let view = TensorViewMut::try_from(&mut array).expect("an array");
    assert_eq!(format!("{view:?}"), "TensorViewMut(float32 [2, 3])");
}
