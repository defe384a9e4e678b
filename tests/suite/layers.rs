//! Layers of a network: attributes, changes, long chains.

use distcollective::network::{LayerBody, Shuffle};
use distcollective::tensor::Dims;
use distcollective::{Buffer, DataType, DistCollective, Network, Rank, ReduceOperation, Root, Stream, inputs, outputs};

use crate::ranks::on_ranks;

/// A chain of layers that is too long for a recursion on a small stack.
#[test]
fn a_long_chain_of_layers() {
    let body = || {
        let mut network = Network::new();
        let mut tensor = network.add_input("x", DataType::Float32, [1]).expect("an input");
        for _ in 0..1500 {
            tensor = network.add_cast(tensor, DataType::Float32).expect("a layer");
        }
        network.mark_output(tensor, "y").expect("an output");
        network.build().expect("an engine").serialize().expect("a plan")
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(body);
    assert!(thread.expect("a thread").join().is_ok());
}

#[test]
fn layers_have_get_and_set_for_every_attribute() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4]).expect("an input");
    let y = network.add(DistCollective::gather(Rank(1)).nb_rank(2).named("a").metadata("b"), x).expect("a layer");
    let layer = network.layer_of_mut(y).expect("a layer");
    assert_eq!((layer.name(), layer.metadata(), layer.nb_rank()), ("a", "b", 2));
    let collective = layer.as_dist_collective_mut().expect("a collective");
    assert_eq!(collective.root(), Some(Root::Rank(Rank(1))));
    collective.set_name("c");
    collective.set_metadata("d");
    collective.set_collective_operation(distcollective::CollectiveOperation::Reduce);
    collective.set_reduce_op(Some(ReduceOperation::Min));
    collective.set_root(Some(Rank(0).into()));
    collective.set_nb_rank(3).expect("a number");
    collective.set_groups(distcollective::Groups::Group(vec![Rank(2), Rank(0), Rank(1)])).expect("groups");
    assert_eq!(collective.collective_operation().name(), "reduce");
    assert_eq!(collective.reduce_op(), Some(ReduceOperation::Min));
    assert_eq!(collective.nb_rank(), Some(3));
    assert_eq!(collective.groups().to_string(), "[2, 0, 1]");
    assert_eq!((layer.name(), layer.metadata()), ("c", "d"));
    let z = network.add_cast(y, DataType::Int8).expect("a layer");
    let cast = network.layer_of_mut(z).expect("a layer");
    cast.set_name("e");
    cast.set_metadata("f");
    cast.set_nb_rank(1).expect("one is what it has");
    assert_eq!((cast.name(), cast.metadata(), cast.nb_rank()), ("e", "f", 1));
    assert!(cast.as_dist_collective().is_err());
    network.mark_output(z, "z").expect("an output");
    let inspection = network.build().expect("an engine").inspect().to_json();
    assert_eq!(inspection["layers"][0]["collective"]["groups"], serde_json::json!([[2, 0, 1]]));
    assert_eq!(inspection["layers"][0]["metadata"], "d");
}

#[test]
fn a_layer_by_itself_tells_its_output_dims() {
    let mut layer = DistCollective::all_gather().nb_rank(4).into_layer();
    let dims = |d: &[i64]| Dims::new(d).expect("dims");
    assert_eq!(layer.output_dims(&dims(&[3, 5])).expect("dims"), dims(&[12, 5]));
    assert_eq!(layer.output_dims(&dims(&[-1, 5])).expect("dims"), dims(&[-1, 5]));
    assert_eq!(layer.output_dims(&dims(&[3, -1])).expect("dims"), dims(&[12, -1]));
    layer.set_collective_operation(distcollective::CollectiveOperation::AllToAll);
    assert_eq!(
        layer.output_dims(&dims(&[3, 5])).expect_err("3 rows").to_string(),
        "layer (all_to_all): dimension 0 is 3, which is not a multiple of 4 ranks"
    );
}

#[test]
fn a_collective_of_no_elements_needs_no_buffers() {
    on_ranks(3, |communicator| {
        let layers = [
            DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(3).into_layer(),
            DistCollective::reduce_scatter(ReduceOperation::Avg).nb_rank(3).into_layer(),
            DistCollective::reduce(ReduceOperation::Max, Rank(2)).nb_rank(3).into_layer(),
            DistCollective::broadcast(Rank(1)).nb_rank(3).into_layer(),
            DistCollective::all_gather().nb_rank(3).into_layer(),
            DistCollective::all_to_all().nb_rank(3).into_layer(),
        ];
        for layer in layers {
            let layer = layer.bind(&communicator, DataType::Float32).expect("the same layer");
            for dims in [[0, 5], [3, 0]] {
                // SAFETY: there is nothing to read or write.
                let work = unsafe { layer.enqueue(std::ptr::null(), std::ptr::null_mut(), &dims, &Stream::inline()) };
                drop(work.expect("a call").wait().expect("it ends"));
            }
        }
    });
}

#[test]
fn a_layer_changed_into_another_kind_is_found() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2]).expect("an input");
    let y = network.add_cast(x, DataType::Int8).expect("a layer");
    let k = network.add_constant(&[1i32], [1]).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    network.mark_output(k, "k").expect("an output");
    let body = network.layer_of_mut(y).expect("a layer").body().clone();
    *network.layer_of_mut(k).expect("a layer").body_mut() = body;
    let error = network.build().expect_err("a cast without input");
    assert_eq!(error.to_string(), "layer \"constant_1\" (cast): its kind does not have 0 inputs and 1 output");
}

#[test]
fn layers_that_move_and_convert_can_be_changed() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2, 3]).expect("an input");
    let t = network.add_shuffle(x, Shuffle::transpose([0, 1])).expect("a layer");
    let c = network.add_cast(t, DataType::Bool).expect("a layer");
    let k = network.add_constant(&[1u8], [1]).expect("a layer");
    match network.layer_of_mut(t).expect("a layer").body_mut() {
        LayerBody::Shuffle(layer) => {
            assert_eq!(layer.first_transpose.as_deref(), Some(&[0u8, 1][..]));
            *layer = Shuffle::transpose([1, 0]).then_reshape([6]).then_transpose([0]);
            layer.check().expect("a permutation");
            assert_eq!(layer.reshape_dims.as_deref(), Some(&[6i64][..]));
            assert_eq!(layer.second_transpose.as_deref(), Some(&[0u8][..]));
            assert!(Shuffle::transpose([1]).check().is_err());
        }
        other => panic!("{other:?}"),
    }
    match network.layer_of_mut(c).expect("a layer").body_mut() {
        LayerBody::Cast(layer) => layer.to = DataType::Float32,
        other => panic!("{other:?}"),
    }
    match network.layer_of_mut(k).expect("a layer").body_mut() {
        LayerBody::Constant(layer) => layer.value = Buffer::from_slice(&[7i64, 8], [2]).expect("a buffer").into(),
        other => panic!("{other:?}"),
    }
    // The cast gives float32 now, which has an average.
    assert_eq!(network.tensor_data_type(c).expect("a tensor"), DataType::Float32);
    let y =
        network.add(DistCollective::all_reduce(ReduceOperation::Avg).nb_rank(1), c).expect("float32 has an average");
    network.mark_output(y, "y").expect("an output");
    network.mark_output(k, "k").expect("an output");
    let engine = network.build().expect("an engine");
    let mut context = engine.create_execution_context().expect("a context");
    let (mut y, mut k) = ([0f32; 6], [0i64; 2]);
    context.execute(inputs!["x" => &[1, 2, 3, 4, 5, 6]], outputs!["y" => &mut y, "k" => &mut k]).expect("a run");
    assert_eq!((y, k), ([1.0, 4.0, 2.0, 5.0, 3.0, 6.0], [7, 8]));
}
