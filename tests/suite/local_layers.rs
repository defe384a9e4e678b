//! ElementWise, Concatenation, Slice and Identity layers: every type and operation, shapes at the
//! edge, and collectives beside them.

use distcollective::network::{ElementWiseOperation, LayerBody, TensorId};
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Buffer, DataType, DistCollective, Engine, Network, ReduceOperation, Result, inputs, outputs};
use ndarray::{ArrayD, IxDyn};

use crate::ranks::on_ranks;
use crate::reference::{self, Bits};
use crate::values::{elements, to_bits, to_bytes};

fn tensor(data_type: DataType, dims: &[usize], seed: u64) -> Bits {
    let bits = elements(data_type, dims.iter().product(), seed);
    ArrayD::from_shape_vec(IxDyn(dims), bits).expect("count of dims")
}

fn bits(x: &Bits) -> Vec<u64> {
    x.iter().copied().collect()
}

/// Runs a network that is described on inputs, with one output.
fn run(
    data_type: DataType,
    values: &[&Bits],
    describe: impl FnOnce(&mut Network, &[TensorId]) -> Result<TensorId>,
) -> (Vec<usize>, Vec<u64>) {
    let mut network = Network::new();
    let mut buffers = Vec::new();
    let mut tensors = Vec::new();
    for (number, value) in values.iter().enumerate() {
        let dims: Vec<i64> = value.shape().iter().map(|&dim| dim as i64).collect();
        let mut buffer = Buffer::zeroed(data_type, dims.as_slice()).expect("a buffer");
        let bytes = to_bytes(data_type, value.iter().copied());
        buffer.as_mut_bytes().expect("host memory").copy_from_slice(&bytes);
        tensors.push(network.add_input(&format!("x{number}"), data_type, dims).expect("an input"));
        buffers.push((format!("x{number}"), buffer));
    }
    let y = describe(&mut network, &tensors).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = network.build().expect("an engine");
    let mut context = engine.create_execution_context().expect("a context");
    let shape = context.tensor_shape("y").expect("a shape");
    let mut y = Buffer::zeroed(data_type, shape).expect("a buffer");
    let inputs = buffers.iter().map(|(name, buffer)| (name.as_str(), Ok(TensorView::from(buffer))));
    context.execute(inputs, [("y", Ok(TensorViewMut::from(&mut y)))]).expect("a run");
    (shape.as_slice().to_vec(), to_bits(data_type, y.as_bytes().expect("host memory")))
}

#[track_caller]
fn check_elementwise(operation: ElementWiseOperation, data_type: DataType, a: &Bits, b: &Bits) {
    let (shape, got) = run(data_type, &[a, b], |network, x| network.add_elementwise(x[0], x[1], operation));
    let want = reference::element_wise(operation, data_type, a, b);
    assert_eq!(shape, want.shape());
    let different = want.iter().zip(&got).position(|(want, got)| want != got);
    assert_eq!(different, None, "{operation} of {data_type} {:?} and {:?}: {want:x?}\n{got:x?}", a.shape(), b.shape());
}

fn combinations() -> impl Iterator<Item = (DataType, ElementWiseOperation)> {
    let all =
        DataType::LAYER_TYPES.into_iter().flat_map(|data_type| ElementWiseOperation::ALL.map(|op| (data_type, op)));
    all.filter(|(data_type, operation)| operation.applies_to(*data_type))
}

/// Special values meet each other, in rows that are shorter and longer than a block of the
/// library's loops.
#[test]
fn every_type_and_operation_broadcasts_both_inputs() {
    let shapes: [[&[usize]; 2]; 8] = [
        [&[1000], &[1000]],
        [&[70, 1], &[1, 70]],
        [&[3, 1, 200], &[3, 4, 1]],
        [&[2, 3, 4], &[1, 1, 1]],
        [&[1, 3, 1], &[2, 3, 4]],
        [&[2, 1, 3, 1, 2, 1, 2, 1], &[1, 2, 1, 3, 1, 2, 1, 2]],
        [&[1, 65], &[4, 65]],
        [&[64, 1], &[64, 2]],
    ];
    for (data_type, operation) in combinations() {
        for (seed, [a, b]) in (0..).zip(shapes) {
            check_elementwise(operation, data_type, &tensor(data_type, a, seed), &tensor(data_type, b, seed + 100));
        }
    }
}

/// Every pair of elements of one byte.
#[test]
fn every_pair_of_bytes() {
    let column = ArrayD::from_shape_fn(IxDyn(&[256, 1]), |index| index[0] as u64);
    let row = ArrayD::from_shape_fn(IxDyn(&[1, 256]), |index| index[1] as u64);
    for (data_type, operation) in combinations().filter(|(data_type, _)| data_type.byte_len() == 1) {
        check_elementwise(operation, data_type, &column, &row);
    }
}

#[test]
fn tensors_without_dimensions_and_without_elements() {
    for (data_type, operation) in combinations() {
        check_elementwise(operation, data_type, &tensor(data_type, &[], 1), &tensor(data_type, &[], 2));
        for [a, b] in [[&[0][..], &[1][..]], [&[3, 0], &[3, 1]], [&[0, 5], &[1, 5]], [&[2, 0], &[1, 1]]] {
            check_elementwise(operation, data_type, &tensor(data_type, a, 1), &tensor(data_type, b, 2));
        }
    }
    let int = DataType::Int32;
    let one = tensor(int, &[], 3);
    assert_eq!(run(int, &[&one], |network, x| network.add_identity(x[0])), (vec![], bits(&one)));
    let sliced = run(int, &[&one], |network, x| network.add_slice(x[0], &[], &[], &[]));
    assert_eq!(sliced, (vec![], bits(&one)));
    let (empty, two) = (tensor(int, &[2, 0], 4), tensor(int, &[2, 2], 5));
    let joined = run(int, &[&empty, &two, &empty], |network, x| network.add_concatenation(x, 1));
    assert_eq!(joined, (vec![2, 2], bits(&two)));
    let joined = run(int, &[&empty, &empty], |network, x| network.add_concatenation(x, 0));
    assert_eq!(joined, (vec![4, 0], vec![]));
    assert_eq!(
        run(int, &[&two], |network, x| network.add_slice(x[0], &[2, 9], &[0, 0], &[1, 1])),
        (vec![0, 0], vec![])
    );
    assert_eq!(run(int, &[&empty], |network, x| network.add_identity(x[0])), (vec![2, 0], vec![]));
}

#[test]
fn every_type_is_joined_and_cut_along_every_dimension() {
    for data_type in DataType::LAYER_TYPES {
        let x = tensor(data_type, &[3, 4, 5], 7);
        for axis in 0..3 {
            let mut dims = [3, 4, 5];
            dims[axis] = 2;
            let other = tensor(data_type, &dims, 8);
            let views = [x.view(), other.view(), x.view()];
            let want = ndarray::concatenate(ndarray::Axis(axis), &views).expect("shapes that fit");
            let got = run(data_type, &[&x, &other], |network, t| network.add_concatenation(&[t[0], t[1], t[0]], axis));
            assert_eq!(got, (want.shape().to_vec(), want.iter().copied().collect()), "axis {axis}");

            // What was joined is cut out again.
            let (mut start, size) = ([0; 3], dims.map(|dim| dim as i64));
            start[axis] = x.shape()[axis] as i64;
            let cut = run(data_type, &[&x, &other], |network, t| {
                let joined = network.add_concatenation(t, axis)?;
                network.add_slice(joined, &start, &size, &[1; 3])
            });
            assert_eq!(cut, (dims.to_vec(), bits(&other)), "axis {axis}");
        }
    }
}

#[test]
fn slices_with_strides_of_every_sign() {
    let x = ArrayD::from_shape_fn(IxDyn(&[4, 6]), |index| (10 * index[0] + index[1]) as u64);
    let sliced = |start: [i64; 2], size: [i64; 2], stride: [i64; 2]| {
        let (shape, got) = run(DataType::Uint8, &[&x], |network, t| network.add_slice(t[0], &start, &size, &stride));
        assert_eq!(shape, size.map(|dim| dim as usize));
        got
    };
    assert_eq!(sliced([1, 1], [2, 3], [2, 2]), [11, 13, 15, 31, 33, 35]);
    assert_eq!(sliced([3, 5], [2, 3], [-2, -1]), [35, 34, 33, 15, 14, 13]);
    assert_eq!(sliced([2, 0], [3, 2], [0, 5]), [20, 25, 20, 25, 20, 25]);
    assert_eq!(sliced([2, 4], [2, 2], [0, 0]), [24, 24, 24, 24]);
    assert_eq!(sliced([0, 2], [1, 1], [i64::MIN, i64::MAX]), [2]);
    let reversed: Vec<u64> = bits(&x).into_iter().rev().collect();
    assert_eq!(sliced([3, 5], [4, 6], [-1, -1]), reversed);
}

/// Sums of parts of what ranks exchange; on rank 1 the reduction is not written, and reads as
/// zeros.
#[test]
fn collectives_before_and_after() {
    let results = on_ranks(2, |communicator| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float16, [2, 3])?;
        let bias = network.add_constant(&[0.5f32], [1, 1])?;
        let bias = network.add_cast(bias, DataType::Float16)?;
        let gathered = network.add(DistCollective::all_gather().nb_rank(2), x)?;
        let other = network.add_slice(gathered, &[3, 2], &[2, 3], &[-3, -1])?;
        let reduced = network.add(DistCollective::reduce(ReduceOperation::Sum, 0).nb_rank(2), x)?;
        let joined = network.add_concatenation(&[reduced, other], 1)?;
        let shifted = network.add_elementwise(joined, bias, ElementWiseOperation::Sub)?;
        let copied = network.add_identity(shifted)?;
        let y = network.add(DistCollective::all_reduce(ReduceOperation::Max).nb_rank(2), copied)?;
        let y = network.add_cast(y, DataType::Float32)?;
        network.mark_output(y, "y")?;
        let shifted = network.add_cast(shifted, DataType::Float32)?;
        network.mark_output(shifted, "shifted")?;
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x =
            [0, 1, 2, 3, 4, 5].map(|i| distcollective::tensor::f16::from_f32((10 * communicator.rank().0 + i) as f32));
        let (mut y, mut shifted) = ([0f32; 12], [0f32; 12]);
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "shifted" => &mut shifted])?;
        Ok((y, shifted))
    });
    let results: Vec<_> = results.into_iter().map(|result: Result<_>| result.expect("a run")).collect();
    let on_root = [9.5, 11.5, 13.5, 14.5, 13.5, 12.5, 15.5, 17.5, 19.5, 1.5, 0.5, -0.5];
    let elsewhere = [-0.5, -0.5, -0.5, 14.5, 13.5, 12.5, -0.5, -0.5, -0.5, 1.5, 0.5, -0.5];
    assert_eq!(results, [(on_root, on_root), (on_root, elsewhere)]);
}

/// An input of the network may be joined with itself, and every output may be read again.
#[test]
fn outputs_that_are_read_and_inputs_that_are_read_twice() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2]).expect("an input");
    let copy = network.add_identity(x).expect("a layer");
    let twice = network.add_elementwise(copy, copy, ElementWiseOperation::Sum).expect("a layer");
    let all = network.add_concatenation(&[x, copy, twice, twice], 0).expect("a layer");
    for (tensor, name) in [(copy, "copy"), (twice, "twice"), (all, "all")] {
        network.mark_output(tensor, name).expect("an output");
    }
    let plan = network.build().expect("an engine").serialize().expect("a plan");
    let mut context = Engine::deserialize(&plan).expect("an engine").create_execution_context().expect("a context");
    let (mut copy, mut twice, mut all) = ([0; 2], [0; 2], [0; 8]);
    let outputs = outputs!["copy" => &mut copy, "twice" => &mut twice, "all" => &mut all];
    context.execute(inputs!["x" => &[3, 4]], outputs).expect("a run");
    assert_eq!((copy, twice, all), ([3, 4], [6, 8], [3, 4, 3, 4, 6, 8, 6, 8]));
}

#[test]
fn attributes_can_be_read_and_changed() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2, 2]).expect("an input");
    let a = network.add_elementwise(x, x, ElementWiseOperation::Sum).expect("a layer");
    let b = network.add_concatenation(&[x, a], 0).expect("a layer");
    let c = network.add_slice(b, &[0, 0], &[1, 1], &[1, 1]).expect("a layer");
    let d = network.add_identity(c).expect("a layer");
    for (tensor, name) in [(a, "a"), (b, "b"), (c, "c"), (d, "d")] {
        let layer = network.layer_of_mut(tensor).expect("a layer");
        layer.set_metadata(format!("of {name}"));
        match layer.body_mut() {
            LayerBody::ElementWise(layer) => {
                assert_eq!(layer.operation, ElementWiseOperation::Sum);
                layer.operation = ElementWiseOperation::Prod;
            }
            LayerBody::Concatenation(layer) => {
                assert_eq!(layer.axis(), 0);
                assert!(layer.set_axis(8).is_err());
                layer.set_axis(1).expect("an axis");
            }
            LayerBody::Slice(layer) => {
                assert_eq!((layer.start(), layer.size(), layer.stride()), (&[0, 0][..], &[1, 1][..], &[1, 1][..]));
                assert!(layer.set_start(&[-1]).is_err() && layer.set_size(&[-1]).is_err());
                assert!(layer.set_stride(&[1; 9]).is_err());
                layer.set_start(&[1, 3]).expect("a start");
                layer.set_size(&[2, 2]).expect("a size");
                layer.set_stride(&[-1, -2]).expect("a stride");
            }
            LayerBody::Identity(_) => {}
            other => panic!("{other:?}"),
        }
        network.mark_output(tensor, name).expect("an output");
    }
    let engine = network.build().expect("an engine");
    let text = engine.inspect().to_string();
    for line in [
        "0  elementwise_0 (elementwise) prod: x, x -> a",
        "1  concatenation_1 (concatenation) along dimension 1: x, a -> b",
        "2  slice_2 (slice) from [1, 3], size [2, 2], stride [-1, -2]: b -> c",
        "3  identity_3 (identity): c -> d",
    ] {
        assert!(text.contains(line), "{line}\n{text}");
    }
    let layers = &engine.inspect().to_json()["layers"];
    assert_eq!((&layers[0]["operation"], &layers[1]["axis"]), (&"prod".into(), &1.into()));
    assert_eq!((&layers[2]["start"], &layers[2]["stride"]), (&serde_json::json!([1, 3]), &serde_json::json!([-1, -2])));
    assert_eq!((layers[3].get("operation"), &layers[3]["metadata"]), (None, &"of d".into()));
    assert!(engine.inspect().to_dot().contains("concatenation along dimension 1"));
    let mut context = engine.create_execution_context().expect("a context");
    let (mut a, mut b, mut c, mut d) = ([0; 4], [0; 8], [0; 4], [0; 4]);
    let outputs = outputs!["a" => &mut a, "b" => &mut b, "c" => &mut c, "d" => &mut d];
    context.execute(inputs!["x" => &[1, 2, 3, 4]], outputs).expect("a run");
    assert_eq!((a, b, c), ([1, 4, 9, 16], [1, 2, 1, 4, 3, 4, 9, 16], [16, 4, 4, 2]));
    assert_eq!(d, c);
}

/// Between other layers an Identity layer has no memory of its own.
#[test]
fn an_identity_is_done_in_place() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [64]).expect("an input");
    let a = network.add_elementwise(x, x, ElementWiseOperation::Sum).expect("a layer");
    let b = network.add_identity(a).expect("a layer");
    let c = network.add_elementwise(b, b, ElementWiseOperation::Sum).expect("a layer");
    network.mark_output(c, "c").expect("an output");
    let inspection = network.build().expect("an engine").inspect().to_json();
    assert_eq!(inspection["memory"]["private_bytes"], 256);
}
