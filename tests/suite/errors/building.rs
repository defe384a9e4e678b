//! Numbers, names, and what adding a layer and building find.

use distcollective::collective::{GroupRank, Partition};
use distcollective::network::{LayerBody, Plugin, PluginCall, Shuffle};
use distcollective::tensor::Shape;
use distcollective::{
    CollectiveOperation as Op, DataType, DistCollective, DistCollectiveLayer, Error, ErrorKind, Groups, Network, Rank,
    ReduceOperation, Result, Root,
};

use super::{SUM, build_one, expect, network, typed_network};
use crate::ranks::logged;

#[test]
fn numbers_and_names() {
    use ErrorKind::{InvalidArgument, Unsupported};
    let types = "the types are float32, float16, bfloat16, float8_e4m3, float8_e5m2, int64, int32, int8, uint8, bool, \
                 float64, uint32, uint64 (float8 means float8_e4m3)";
    expect(
        Op::from_number(8),
        InvalidArgument,
        "8 is not the number of a collective operation; they are 0 (all_reduce), 1 (all_gather), 2 (broadcast), \
         3 (reduce), 4 (reduce_scatter), 5 (all_to_all), 6 (gather), 7 (scatter)",
    );
    expect(
        ReduceOperation::from_number(6),
        InvalidArgument,
        "6 is not the number of a reduce operation; they are 0 (sum), 1 (prod), 2 (max), 3 (min), 4 (avg), \
         101 (band), 102 (bor), 103 (bxor), and 5 for none",
    );
    expect(DataType::from_number(12), InvalidArgument, &format!("12 is not the number of a data type; {types}"));
    expect(DataType::from_number(9), Unsupported, &format!("data type INT4 has no collective; {types}"));
    expect(DataType::from_number(10), Unsupported, &format!("data type FP4 has no collective; {types}"));
    expect(DataType::from_number(11), Unsupported, &format!("data type E8M0 has no collective; {types}"));
    expect("float65".parse::<DataType>(), InvalidArgument, &format!("\"float65\" is not a data type; {types}"));
    expect("fp4".parse::<DataType>(), Unsupported, &format!("data type FP4 has no collective; {types}"));
    expect(
        "allreduce".parse::<Op>(),
        InvalidArgument,
        "\"allreduce\" is not a collective operation; they are all_reduce, all_gather, broadcast, reduce, reduce_scatter, \
         all_to_all, gather, scatter",
    );
    expect(
        "mean".parse::<ReduceOperation>(),
        InvalidArgument,
        "\"mean\" is not a reduce operation; they are sum, prod (or product), max, min, avg, band, bor, bxor",
    );
    assert_eq!(ReduceOperation::from_number(5).expect("none"), None);
    assert_eq!("FLOAT8".parse::<DataType>().expect("a type"), DataType::Float8E4M3);
    assert_eq!("Reduce_Scatter".parse::<Op>().expect("an operation"), Op::ReduceScatter);
}

#[test]
fn names_and_numbers_that_are_not_there() {
    let (mut network, x) = network(&[4]);
    let y = network.add_cast(x, DataType::Int8).expect("a layer");
    expect(
        network.set_optimization_profile(y, [1], [1], [1]),
        ErrorKind::InvalidArgument,
        "input \"cast_0.output0\": the tensor is the output of a layer; profiles are for inputs",
    );
    expect(
        network.set_optimization_profile(x, [-1], [4], [4]),
        ErrorKind::InvalidArgument,
        "input \"x\": [-1] in a profile has a dimension of -1",
    );
    network.layer_of_mut(y).expect("a layer").set_name("");
    network.mark_output(y, "").expect("an output");
    let error = network.build().expect_err("no names");
    assert_eq!(error.to_string(), "2 mistakes:\n  a cast layer has no name\n  output 0 has no name");
}

/// Types of eager calls are no types of a network.
#[test]
fn types_that_no_layer_has() {
    for (name, data_type) in
        [("float64", DataType::Float64), ("uint32", DataType::Uint32), ("uint64", DataType::Uint64)]
    {
        let says = format!("{name} is a type of eager calls; a tensor of a network is float32, ");
        let (mut network, x) = network(&[4]);
        let about = |subject: &str| format!("{subject}: {says}");
        let starts = |error: Error, start: &str| {
            assert!(error.kind() == ErrorKind::Unsupported && error.to_string().starts_with(start), "{error}");
        };
        starts(network.add_input("z", data_type, [4]).expect_err("no type"), &about("input \"z\""));
        starts(network.add_cast(x, data_type).expect_err("no type"), &about("layer \"cast_0\" (cast)"));
        let value = distcollective::Buffer::zeroed(data_type, [4]).expect("a buffer");
        starts(network.add_constant_buffer(value).expect_err("no type"), &about("layer \"constant_0\" (constant)"));
        // A layer that is changed later.
        let y = network.add_cast(x, DataType::Int8).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        let LayerBody::Cast(cast) = network.layer_of_mut(y).expect("a layer").body_mut() else { panic!("a cast") };
        cast.to = data_type;
        let error = network.build().expect_err("no type");
        assert!(error.to_string().contains(&says), "{error}");
    }
}

/// Tensors and layers are of the network that gave them, and of its clones.
#[test]
fn ids_of_another_network() {
    let (mut network, x) = network(&[4]);
    let y = network.add_cast(x, DataType::Int8).expect("a layer");
    let layer = network.producer(y).expect("a tensor").expect("a layer");
    let (mut other, other_x) = self::network(&[4]);
    let other_y = other.add_cast(other_x, DataType::Int8).expect("a layer");
    let other_layer = other.producer(other_y).expect("a tensor").expect("a layer");
    assert_ne!((x, layer), (other_x, other_layer));
    // The numbers of the networks depend on what the process made before.
    let number_of = |debug: String| debug.trim_end_matches(')').rsplit(' ').next().expect("a number").to_owned();
    let (own, given) = (number_of(format!("{x:?}")), number_of(format!("{other_x:?}")));
    let wrong = |what: &str| {
        format!("{what} is of network {given}, and this is network {own}; an id is for the network that gave it")
    };
    let kind = ErrorKind::InvalidArgument;
    expect(network.add_cast(other_x, DataType::Int8), kind, &wrong("tensor 0"));
    expect(network.add_shuffle(other_x, Shuffle::default()), kind, &wrong("tensor 0"));
    expect(network.add(DistCollective::all_gather(), other_x), kind, &wrong("tensor 0"));
    expect(network.add_plugin("odd", Odd { shapes: 1 }, &[x, other_x]), kind, &wrong("tensor 0"));
    expect(network.mark_output(other_y, "y"), kind, &wrong("tensor 1"));
    expect(network.set_tensor_name(other_x, "z"), kind, &wrong("tensor 0"));
    expect(network.set_optimization_profile(other_x, [4], [4], [4]), kind, &wrong("tensor 0"));
    expect(network.set_input(layer, 0, other_x), kind, &wrong("tensor 0"));
    expect(network.set_input(other_layer, 0, x), kind, &wrong("layer 0"));
    expect(network.layer_mut(other_layer), kind, &wrong("layer 0"));
    expect(network.layer_of_mut(other_y), kind, &wrong("tensor 1"));
    expect(network.tensor_data_type(other_y), kind, &wrong("tensor 1"));

    let mut clone = network.clone();
    let z = clone.add_cast(y, DataType::Bool).expect("a clone has the tensors of the original");
    expect(
        network.mark_output(z, "z"),
        kind,
        &format!("tensor 2 was added to another clone of network {own}; this one has 2"),
    );
    // A whole layer of another network in the place of one of this network.
    *network.layer_mut(layer).expect("a layer") = other.layer(other_layer).expect("a layer").clone();
    network.mark_output(y, "y").expect("an output");
    let error = network.build().expect_err("a layer of another network");
    assert_eq!(error.to_string(), format!("layer \"cast_0\" (cast): {}", wrong("tensor 0")));
    // One that names tensors that do not exist here. Types are asked for before anything is built.
    let (mut small, x) = self::network(&[4]);
    let cast = small.add_cast(x, DataType::Int8).expect("a layer");
    let (mut large, mut last) = self::network(&[4]);
    for _ in 0..9 {
        last = large.add_cast(last, DataType::Bool).expect("a layer");
    }
    let far = large.producer(last).expect("a tensor").expect("a layer");
    let layer = small.producer(cast).expect("a tensor").expect("a layer");
    *small.layer_mut(layer).expect("a layer") = large.layer(far).expect("a layer").clone();
    assert_eq!(small.tensor_data_type(cast).expect("a tensor"), DataType::Int8);
    small.add_cast(cast, DataType::Int32).expect("a layer");
    small.build().expect_err("a layer of another network");
    // A layer of this network in two places.
    let (mut twice, x) = self::network(&[4]);
    let layers = [0, 1].map(|_| {
        let output = twice.add_cast(x, DataType::Int8).expect("a layer");
        twice.producer(output).expect("a tensor").expect("a layer")
    });
    *twice.layer_mut(layers[1]).expect("a layer") = twice.layer(layers[0]).expect("a layer").clone();
    let error = twice.build().expect_err("two layers compute one tensor");
    assert_eq!(error.to_string(), "layer \"cast_0\" (cast): another layer computes its output");
}

#[test]
fn names_have_a_most() {
    let (mut network, x) = network(&[4]);
    let y = network.add_cast(x, DataType::Int8).expect("a layer");
    network.layer_of_mut(y).expect("a layer").set_name("n".repeat(4095));
    network.mark_output(y, &"o".repeat(4095)).expect("an output");
    network.build().expect("the longest names");
    network.layer_of_mut(y).expect("a layer").set_name("n".repeat(4096));
    network.set_tensor_name(y, &"o".repeat(4096)).expect("a tensor");
    let sides = |letter: &str| format!("{0}…{0}", letter.repeat(60));
    expect(
        network.build(),
        ErrorKind::InvalidNetwork,
        &format!(
            "2 mistakes:\n  the name \"{}\" of a layer has 4096 bytes; at most 4095 are allowed\n  the name \"{}\" of an output \
             has 4096 bytes; at most 4095 are allowed",
            sides("n"),
            sides("o")
        ),
    );
}

/// Names that the library gives are different from those that the caller gave.
#[test]
fn default_names_are_new() {
    let (mut network, x) = network(&[4]);
    let first = network.add_cast(x, DataType::Int8).expect("a layer");
    network.layer_of_mut(first).expect("a layer").set_name("cast_1");
    let names: Vec<String> = (0..3)
        .map(|_| {
            let output = network.add_cast(first, DataType::Int8).expect("a layer");
            network.layer_of_mut(output).expect("a layer").name().to_owned()
        })
        .collect();
    assert_eq!(names, ["cast_2", "cast_3", "cast_4"]);
}

#[test]
fn adding_a_layer() {
    use ErrorKind::InvalidArgument;
    let new = DistCollectiveLayer::new;
    expect(
        new(Op::AllReduce, None, -1, &[]),
        InvalidArgument,
        "all_reduce: it needs a reduce operation: sum, prod, max, min or avg",
    );
    expect(
        new(Op::AllGather, SUM, -1, &[]),
        InvalidArgument,
        "all_gather: it does not reduce, so its reduce operation is none, not sum",
    );
    expect(
        new(Op::Broadcast, None, -1, &[]),
        InvalidArgument,
        "broadcast: it has a root, and root is -1; give a rank, 0 or more",
    );
    expect(
        new(Op::AllReduce, SUM, -1, &[0, -2]),
        InvalidArgument,
        "all_reduce: groups has -2, which is not a rank; groups is [0, -2]",
    );
    expect(
        new(Op::AllReduce, SUM, -1, &[2, 0, 2]),
        InvalidArgument,
        "all_reduce: rank 2 occurs twice; groups is [2, 0, 2]",
    );
    let layer = new(Op::AllReduce, SUM, 3, &[]).expect("a root that is not needed is ignored");
    assert_eq!(layer.root(), None);

    let (mut network, x) = network(&[4]);
    let partition = |groups: Vec<Vec<u32>>| DistCollective::all_gather().partition(Partition::new(groups)).named("g");
    expect(
        network.add(partition(vec![vec![0, 1], vec![2]]), x),
        InvalidArgument,
        "layer \"g\" (all_gather): the groups of a partition have equal lengths, here 2 and 1; groups is [[0, 1], [2]]",
    );
    expect(
        network.add(partition(vec![vec![0, 1], vec![1, 2]]), x),
        InvalidArgument,
        "layer \"g\" (all_gather): rank 1 occurs twice; groups is [[0, 1], [1, 2]]",
    );
    expect(
        network.add(partition(vec![]), x),
        InvalidArgument,
        "layer \"g\" (all_gather): a group has at least one rank; groups is []",
    );
    expect(
        network.add(DistCollective::all_gather().nb_rank(0).named("g"), x),
        InvalidArgument,
        "layer \"g\" (all_gather): nb_rank is 0; a collective has at least one rank",
    );
    let (mut network, x) = typed_network(DataType::Bool, &[4]);
    expect(
        network.add(DistCollective::all_reduce(ReduceOperation::Avg).named("a"), x),
        InvalidArgument,
        "layer \"a\" (all_reduce): bool has no average; sum and max mean or, prod and min mean and; cast to a number to average",
    );
}

#[test]
fn layers_reduce_no_bits() {
    let text = "bxor is a reduction of eager calls; a layer of a network has sum, prod, max, min, avg";
    let (mut network, x) = typed_network(DataType::Int32, &[4]);
    let layer = DistCollective::all_reduce(ReduceOperation::Bxor).nb_rank(2).named("x");
    expect(network.add(layer, x), ErrorKind::Unsupported, &format!("layer \"x\" (all_reduce): {text}"));
    // A layer that is changed later is found when the network is built.
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).named("y");
    let y = network.add(sum, x).expect("a layer");
    network.mark_output(y, "out").expect("an output");
    let (layer, _) = network.layers().last().expect("a layer");
    let layer = network.layer_mut(layer).expect("the network's").as_dist_collective_mut().expect("it is one");
    layer.set_reduce_op(Some(ReduceOperation::Bxor));
    expect(network.build(), ErrorKind::InvalidNetwork, &format!("layer \"y\" (all_reduce): {text}"));
}

#[test]
fn adding_other_things() {
    use ErrorKind::InvalidArgument;
    let (mut network, x) = network(&[-1, 4]);
    expect(
        network.add_input("z", DataType::Int8, [1i64; 9].as_slice()),
        InvalidArgument,
        "input \"z\": [1, 1, 1, 1, 1, 1, 1, 1, 1] has 9 dimensions; a tensor has at most 8",
    );
    expect(
        network.add_input("z", DataType::Int8, [-2]),
        InvalidArgument,
        "input \"z\": dimension -2 in [-2]: a dimension is at least 0, or -1 where it is dynamic",
    );
    expect(
        network.set_optimization_profile(x, [4, 4], [2, 4], [8, 4]),
        InvalidArgument,
        "input \"x\": a profile has min <= opt <= max in each dimension, not [4, 4], [2, 4], [8, 4]",
    );
    expect(
        network.set_optimization_profile(x, [1, 4], [2, 4], [8, 5]),
        InvalidArgument,
        "input \"x\": [8, 5] in a profile does not fit the input's dimensions [-1, 4]",
    );
    expect(
        network.mark_output(x, "y"),
        InvalidArgument,
        "output \"y\": an input cannot be an output; no layer computes it",
    );
    expect(
        network.add_shuffle(x, Shuffle::transpose([0, 0])),
        InvalidArgument,
        "layer \"shuffle_0\" (shuffle): [0, 0] is not a permutation of 0 to 1",
    );
    expect(
        network.add_shuffle(x, Shuffle::reshape([-1, -1])),
        InvalidArgument,
        "layer \"shuffle_0\" (shuffle): reshape [-1, -1] has more than one -1; one dimension can be inferred",
    );
    expect(network.add_constant(&[1.0f32, 2.0], [3]), ErrorKind::InvalidBuffer, "[3] has 3 elements, and the slice 2");
    let y = network.add_shuffle(x, Shuffle::transpose([1, 0])).expect("a layer");
    let layer = network.producer(y).expect("a tensor").expect("a layer");
    expect(
        network.layer_mut(layer).expect("a layer").set_nb_rank(2),
        InvalidArgument,
        "layer \"shuffle_0\" (shuffle): nb_rank is 2; only a DistCollective layer has more than one rank",
    );
    network.mark_output(y, "y").expect("an output");
    expect(network.mark_output(y, "z"), InvalidArgument, "output \"z\": the tensor is an output already");
    expect(
        network.set_input(layer, 1, x),
        InvalidArgument,
        "layer \"shuffle_0\" (shuffle): there is no input 1; the layer has 1",
    );
}

#[test]
fn building_a_layer() {
    use ErrorKind::InvalidNetwork;
    let sum = || DistCollective::all_reduce(ReduceOperation::Sum);
    expect(
        build_one(&[4], sum().nb_rank(4).group([Rank(0), Rank(2)])),
        InvalidNetwork,
        "layer \"sync\" (all_reduce): nb_rank is 4, but each group has 2 ranks; groups is [0, 2]",
    );
    expect(
        build_one(&[4], DistCollective::broadcast(Rank(1)).group([Rank(0), Rank(2)])),
        InvalidNetwork,
        "layer \"sync\" (broadcast): root 1 is not a member of the group; groups is [0, 2]",
    );
    expect(
        build_one(&[4], DistCollective::gather(Rank(4)).nb_rank(4)),
        InvalidNetwork,
        "layer \"sync\" (gather): root 4 is not one of 4 ranks",
    );
    expect(
        build_one(&[4], DistCollective::gather(Rank(1))),
        InvalidNetwork,
        "layer \"sync\" (gather): root 1 is not one of 1 rank (nb_rank is not set and counts as 1)",
    );
    expect(
        build_one(&[4], Partition::new([[0, 1], [2, 3]]).gather(GroupRank(2))),
        InvalidNetwork,
        "layer \"sync\" (gather): root 2 is not a group rank of groups of 2; with a partition the root counts within each \
         group; groups is [[0, 1], [2, 3]]",
    );
    let mut layer = DistCollective::gather(Rank(1)).into_layer();
    layer.set_groups(Groups::Partition(Partition::new([[0, 1], [2, 3]]))).expect("groups");
    expect(
        build_one(&[4], layer.clone()),
        InvalidNetwork,
        "layer \"sync\" (gather): with a partition the root is a GroupRank, counted within each group, not a Rank of the \
         communicator",
    );
    layer.set_groups(Groups::Group(vec![Rank(1)])).expect("groups");
    layer.set_root(Some(Root::GroupRank(GroupRank(0))));
    expect(
        build_one(&[4], layer.clone()),
        InvalidNetwork,
        "layer \"sync\" (gather): the root is a Rank of the communicator; a GroupRank goes with a partition only",
    );
    layer.set_root(None);
    expect(build_one(&[4], layer), ErrorKind::InvalidArgument, "layer \"sync\" (gather): it needs a root");
}

#[test]
fn building_shapes() {
    use ErrorKind::InvalidNetwork;
    let cases: [(DistCollectiveLayer, &str); 3] = [
        (DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(4).into(), "reduce_scatter"),
        (DistCollective::all_to_all().nb_rank(4).into(), "all_to_all"),
        (DistCollective::scatter(Rank(0)).nb_rank(4).into(), "scatter"),
    ];
    for (layer, name) in cases {
        expect(
            build_one(&[10, 8], layer),
            InvalidNetwork,
            &format!(
                "layer \"sync\" ({name}): dimension 0 is 10, which is not a multiple of 4 ranks; input is float32 [10, 8]"
            ),
        );
    }
    expect(
        build_one(&[], DistCollective::all_gather().nb_rank(2)),
        InvalidNetwork,
        "layer \"sync\" (all_gather): the input has no dimensions; a layer's collective needs 1 to 8; input is float32 []",
    );
    expect(
        build_one(&[1 << 58], DistCollective::all_gather().nb_rank(16)),
        InvalidNetwork,
        "layer \"sync\" (all_gather): [4611686018427387904] has more elements than memory can hold; input is float32 \
         [288230376151711744]",
    );

    let (mut network, x) = network(&[-1, 4]);
    network.set_optimization_profile(x, [2, 4], [4, 4], [5, 4]).expect("a profile");
    let y = network.add(DistCollective::all_to_all().nb_rank(2).named("swap"), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    expect(
        network.build(),
        InvalidNetwork,
        "layer \"swap\" (all_to_all): dimension 0 is 5, which is not a multiple of 2 ranks; input is float32 [5, 4] (at max \
         of the profile)",
    );

    let (mut network, x) = self::network(&[3, 4]);
    let y = network.add_shuffle(x, Shuffle::reshape([0, 0, 2])).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    expect(
        network.build(),
        InvalidNetwork,
        "layer \"shuffle_0\" (shuffle): reshape [0, 0, 2] gives 24 elements, and [3, 4] has 12",
    );
}

#[test]
fn shapes_that_a_shuffle_cannot_take() {
    let cases = [
        (Shuffle::transpose([0, 1, 2]), "transpose [0, 1, 2] is for 3 dimensions, and the tensor is [3, 4]"),
        (Shuffle::reshape([3, 4, 0]), "reshape [3, 4, 0] copies dimension 2, and the tensor is [3, 4]"),
        (Shuffle::reshape([5, -1]), "reshape [5, -1]: the 12 elements of [3, 4] are not a multiple of 5"),
    ];
    for (shuffle, text) in cases {
        let (mut network, x) = network(&[3, 4]);
        let y = network.add_shuffle(x, shuffle).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        let text = format!("layer \"shuffle_0\" (shuffle): {text}");
        expect(network.build(), ErrorKind::InvalidNetwork, &text);
    }
    let (mut network, x) = network(&[0, 4]);
    let y = network.add_shuffle(x, Shuffle::reshape([0, -1])).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    expect(
        network.build(),
        ErrorKind::InvalidNetwork,
        "layer \"shuffle_0\" (shuffle): reshape [0, -1] of [0, 4] has a dimension of 0 beside the -1, so nothing can be inferred",
    );
}

/// A plugin with the mistakes that its fields name.
#[derive(Debug)]
struct Odd {
    shapes: usize,
}

impl Plugin for Odd {
    fn type_name(&self) -> &str {
        "odd"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        if inputs[0] == DataType::Bool {
            return Err(Error::new(ErrorKind::Plugin, "it takes no bool"));
        }
        Ok(vec![inputs[0]])
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(vec![inputs[0]; self.shapes])
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn building_finds_all_mistakes_at_once() {
    let (mut network, x) = network(&[10, 4]);
    network.add_input("unread", DataType::Int8, [1]).expect("an input");
    let dynamic = network.add_input("dynamic", DataType::Int8, [-1]).expect("an input");
    let a =
        network.add(DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(4).named("a"), x).expect("a layer");
    // A layer that depends on a mistake is not reported: it is valid without the mistake.
    let b = network.add_shuffle(a, Shuffle::reshape([5, 4])).expect("a layer");
    network.mark_output(b, "x").expect("an output");
    let c = network.add(DistCollective::gather(Rank(7)).nb_rank(4).named("a"), x).expect("a layer");
    network.mark_output(c, "c").expect("an output");
    let d = network.add_cast(dynamic, DataType::Float32).expect("a layer");
    network.mark_output(d, "d").expect("an output");
    network.add_cast(x, DataType::Float16).expect("a layer");
    let e = network.add_plugin("odd", Odd { shapes: 2 }, &[x]).expect("a layer");
    network.mark_output(e, "e").expect("an output");
    let f = network.add_cast(x, DataType::Int8).expect("a layer");
    let g = network.add_cast(f, DataType::Int8).expect("a layer");
    network.set_input(network.producer(f).expect("a tensor").expect("a layer"), 0, g).expect("an input");
    network.mark_output(g, "g").expect("an output");

    let error = network.build().expect_err("mistakes");
    assert_eq!(error.kind(), ErrorKind::InvalidNetwork);
    let texts: Vec<String> = error.mistakes().iter().map(Error::to_string).collect();
    assert_eq!(
        texts,
        [
            "layer \"a\" (gather): two layers have this name",
            "output \"x\": two inputs or outputs have this name",
            "layers wait for each other in a cycle: \"cast_6\", \"cast_7\"",
            "input \"unread\": no layer reads it",
            "layer \"cast_4\" (cast): no layer reads its output, and it is not an output of the network",
            "layer \"a\" (gather): root 7 is not one of 4 ranks",
            "input \"dynamic\": [-1] has a dimension of -1 and no optimization profile says between which values it lies",
            "layer \"a\" (reduce_scatter): dimension 0 is 10, which is not a multiple of 4 ranks; input is float32 [10, 4]",
            "layer \"odd\" (odd): the plugin gave 2 shapes for 1 output",
        ]
    );
    assert_eq!(error.to_string(), format!("9 mistakes:\n  {}", texts.join("\n  ")));

    expect(Network::new().build(), ErrorKind::InvalidNetwork, "the network has no output; mark_output makes one");
    let (mut network, x) = typed_network(DataType::Bool, &[1]);
    expect(
        network.add_plugin("odd", Odd { shapes: 1 }, &[x]),
        ErrorKind::Plugin,
        "layer \"odd\" (odd): it takes no bool",
    );
}

#[test]
fn what_is_allowed_but_deserves_a_second_look_is_in_the_log() {
    let text = logged(|| {
        DistCollectiveLayer::new(Op::AllGather, None, 3, &[]).expect("a root too many");
        let (mut network, x) = network(&[4]);
        let y = network
            .add(DistCollective::reduce(ReduceOperation::Sum, Rank(0)).nb_rank(2).named("r"), x)
            .expect("a layer");
        let z = network.add_cast(y, DataType::Int8).expect("a layer");
        network.mark_output(z, "z").expect("an output");
        network.build().expect("an engine");
    });
    assert!(
        text.contains("WARN") && text.contains("all_gather has no root: 3 is ignored; -1 says that there is none"),
        "{text}"
    );
    assert!(text.contains("layer \"cast_1\" (cast) reads the output of layer \"r\" (reduce)"), "{text}");
}
