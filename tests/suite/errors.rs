//! Every rule, broken once: the kind of the error and its wording.

use distcollective::{
    Bool, Buffer, Builder, CollectiveOperation as Op, Communicator, DataType, Dims, DistCollective,
    DistCollectiveLayer, Element, Engine, Environment, Error, ErrorKind, ExecutionContext, GroupRank, Groups, InPlace,
    Network, Partition, Plugin, PluginCall, Rank, ReduceOperation, Result, Root, Shape, Shuffle, Stream, TensorId,
    inputs, outputs,
};

use crate::ranks::on_ranks;

const SUM: Option<ReduceOperation> = Some(ReduceOperation::Sum);

#[track_caller]
fn expect<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    match result {
        Ok(_) => panic!("no error, instead of: {text}"),
        Err(error) => {
            assert_eq!(error.to_string(), text);
            assert_eq!(error.kind(), kind, "{error}");
        }
    }
}

/// A network with one float32 input "x" of these dimensions.
fn network(dims: &[i64]) -> (Network, TensorId) {
    typed_network(DataType::Float32, dims)
}

fn typed_network(data_type: DataType, dims: &[i64]) -> (Network, TensorId) {
    let mut network = Network::new();
    let x = network.add_input("x", data_type, dims).expect("an input");
    (network, x)
}

/// A network of one collective, built.
fn build_one(dims: &[i64], layer: impl Into<DistCollectiveLayer>) -> Result<Engine> {
    let (mut network, x) = network(dims);
    let mut layer = layer.into();
    layer.set_name("sync");
    let y = network.add(layer, x)?;
    network.mark_output(y, "y")?;
    Builder::new().build(&network)
}

#[test]
fn numbers_and_names() {
    use ErrorKind::{InvalidArgument, Unsupported};
    let types = "the types are float32, float16, bfloat16, float8_e4m3, float8_e5m2, int64, int32, int8, uint8, bool (float8 \
                 means float8_e4m3)";
    expect(
        Op::from_number(8),
        InvalidArgument,
        "8 is not the number of a collective operation; they are 0 (all_reduce) to 7 (scatter)",
    );
    expect(
        ReduceOperation::from_number(6),
        InvalidArgument,
        "6 is not the number of a reduce operation; they are 0 (sum) to 4 (avg), and 5 for none",
    );
    expect(DataType::from_number(12), InvalidArgument, &format!("12 is not the number of a data type; {types}"));
    expect(DataType::from_number(9), Unsupported, &format!("data type INT4 has no collective; {types}"));
    expect(DataType::from_number(10), Unsupported, &format!("data type FP4 has no collective; {types}"));
    expect(DataType::from_number(11), Unsupported, &format!("data type E8M0 has no collective; {types}"));
    expect("float64".parse::<DataType>(), InvalidArgument, &format!("\"float64\" is not a data type; {types}"));
    expect(
        "allreduce".parse::<Op>(),
        InvalidArgument,
        "\"allreduce\" is not a collective operation; they are all_reduce, all_gather, broadcast, reduce, reduce_scatter, \
         all_to_all, gather, scatter",
    );
    expect(
        "mean".parse::<ReduceOperation>(),
        InvalidArgument,
        "\"mean\" is not a reduce operation; they are sum, prod, max, min, avg",
    );
    assert_eq!(ReduceOperation::from_number(5).expect("none"), None);
    assert_eq!("FLOAT8".parse::<DataType>().expect("a type"), DataType::Float8E4M3);
    assert_eq!("Reduce_Scatter".parse::<Op>().expect("an operation"), Op::ReduceScatter);
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
    expect(new(Op::Broadcast, None, -1, &[]), InvalidArgument, "broadcast: root is -1; it needs a rank, 0 or more");
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
        Builder::new().build(&network),
        InvalidNetwork,
        "layer \"swap\" (all_to_all): dimension 0 is 5, which is not a multiple of 2 ranks; input is float32 [5, 4] (at max \
         of the profile)",
    );

    let (mut network, x) = self::network(&[3, 4]);
    let y = network.add_shuffle(x, Shuffle::reshape([0, 0, 2])).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    expect(
        Builder::new().build(&network),
        InvalidNetwork,
        "layer \"shuffle_0\" (shuffle): reshape [0, 0, 2] gives 24 elements, and [3, 4] has 12",
    );
}

/// A plugin that is wrong in the ways it is told to be.
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
    // What hangs on a mistake is not reported: it would be right if the mistake were mended.
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

    let error = Builder::new().build(&network).expect_err("mistakes");
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

    expect(
        Builder::new().build(&Network::new()),
        ErrorKind::InvalidNetwork,
        "the network has no output; mark_output makes one",
    );
    let (mut network, x) = typed_network(DataType::Bool, &[1]);
    expect(
        network.add_plugin("odd", Odd { shapes: 1 }, &[x]),
        ErrorKind::Plugin,
        "layer \"odd\" (odd): it takes no bool",
    );
}

#[test]
fn setting_a_communicator() {
    use ErrorKind::InvalidCommunicator;
    let refusals = |layer: DistCollectiveLayer, n: u32| {
        let engine = build_one(&[4], layer).expect("an engine");
        let mut errors = on_ranks(n, move |communicator| {
            let mut context = engine.create_execution_context().expect("a context");
            let error = context.set_communicator(&communicator).expect_err("it does not fit");
            // The communicator is as good as before.
            communicator.barrier().expect("a barrier");
            error
        });
        let error = errors.swap_remove(1);
        assert_eq!(error.kind(), InvalidCommunicator);
        error.to_string()
    };
    let sum = || DistCollective::all_reduce(ReduceOperation::Sum);
    assert_eq!(
        refusals(sum().into(), 2),
        "rank 1: layer \"sync\" (all_reduce): nb_rank is not set, which means 1 without groups, but the communicator has 2 \
         ranks; set nb_rank to 2, or to 1 for the identity"
    );
    assert_eq!(
        refusals(sum().nb_rank(4).into(), 2),
        "rank 1: layer \"sync\" (all_reduce): nb_rank is 4, but the communicator has 2 ranks"
    );
    assert_eq!(
        refusals(sum().group([Rank(0), Rank(2)]).into(), 2),
        "rank 1: layer \"sync\" (all_reduce): rank 2 is not in a communicator of 2 ranks; groups is [0, 2]"
    );
}

#[test]
fn setting_a_communicator_on_which_another_rank_refuses() {
    let errors = on_ranks(2, |communicator| {
        let nb_rank = if communicator.rank() == Rank(0) { 2 } else { 3 };
        let engine = build_one(&[4], DistCollective::all_gather().nb_rank(nb_rank)).expect("an engine");
        let mut context = engine.create_execution_context().expect("a context");
        context.set_communicator(&communicator).expect_err("rank 1 does not fit").to_string()
    });
    assert_eq!(
        errors,
        [
            "rank 0: the communicator is set on no rank: rank 1 refuses it: layer \"sync\" (all_gather): nb_rank is 3, but the \
             communicator has 2 ranks",
            "rank 1: layer \"sync\" (all_gather): nb_rank is 3, but the communicator has 2 ranks",
        ]
    );
}

#[test]
fn plans_that_differ() {
    let errors = on_ranks(4, |communicator| {
        let (mut network, x) = typed_network(
            if communicator.rank() == Rank(2) { DataType::Float16 } else { DataType::Float32 },
            &[64, 4096],
        );
        let g = network.add(DistCollective::all_to_all().group([Rank(3), Rank(0)]).named("route"), x).expect("a layer");
        let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(4).named("mlp.3.down"), g);
        network.mark_output(y.expect("a layer"), "y").expect("an output");
        let mut engine = Builder::new().build(&network).expect("an engine");
        if communicator.rank() == Rank(1) {
            // The first collective is the same, and then there is none.
            network = Network::new();
            let x = network.add_input("x", DataType::Float32, [64, 4096]).expect("an input");
            let g = network.add(DistCollective::all_to_all().group([Rank(3), Rank(0)]).named("way"), x);
            network.mark_output(g.expect("a layer"), "y").expect("an output");
            engine = Builder::new().build(&network).expect("an engine");
        }
        let mut context = engine.create_execution_context().expect("a context");
        let error = context.set_communicator(&communicator).expect_err("they differ");
        assert_eq!(error.kind(), ErrorKind::Disagreement);
        communicator.barrier().expect("a barrier");
        (engine.fingerprint().to_owned(), error.to_string())
    });
    let plan = |rank: usize| &errors[rank].0;
    let sides = format!(
        "the plans of the ranks differ at collective 1: ranks 0 and 3 have all_to_all of float32 [64, 4096] among 2 ranks of \
         [3, 0] (plan {}); rank 1 has all_to_all of float32 [64, 4096] among 2 ranks of [3, 0] (plan {}); rank 2 has \
         all_to_all of float16 [64, 4096] among 2 ranks of [3, 0] (plan {})",
        plan(0),
        plan(1),
        plan(2)
    );
    for (rank, (_, error)) in errors.iter().enumerate() {
        let layer = if rank == 1 { "way" } else { "route" };
        assert_eq!(*error, format!("rank {rank}: layer \"{layer}\" (all_to_all): {sides}"));
    }
}

/// A context of one identity layer on an input of 2 to 8 rows.
fn context() -> ExecutionContext {
    let (mut network, x) = network(&[-1, 2]);
    network.set_optimization_profile(x, [1, 2], [4, 2], [8, 2]).expect("a profile");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1).named("sync"), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let flat = network.add_shuffle(y, Shuffle::reshape([-1, 4])).expect("a layer");
    network.mark_output(flat, "flat").expect("an output");
    network
        .layer_mut(network.producer(flat).expect("a tensor").expect("a layer"))
        .expect("a layer")
        .set_name("flatten");
    let error = Builder::new().build(&network).expect_err("1 row of 2 does not make rows of 4");
    assert!(error.to_string().contains("(at min of the profile)"), "{error}");
    network.set_optimization_profile(x, [2, 2], [4, 2], [8, 2]).expect("a profile");
    Builder::new().build(&network).expect("an engine").create_execution_context().expect("a context")
}

#[test]
fn setting_a_shape() {
    use ErrorKind::{InvalidArgument, InvalidShape, NotReady};
    let mut context = context();
    expect(context.tensor_shape("y"), NotReady, "input \"x\": its shape is not set; it is float32 [-1, 2]");
    expect(
        context.set_input_shape("x", [9, 2]),
        InvalidShape,
        "input \"x\": [9, 2] is not in its profile, which is between [2, 2] and [8, 2]",
    );
    expect(
        context.set_input_shape("x", [4]),
        InvalidShape,
        "input \"x\": [4] is not in its profile, which is between [2, 2] and [8, 2]",
    );
    expect(
        context.set_input_shape("x", [3, 2]),
        InvalidShape,
        "layer \"flatten\" (shuffle): reshape [-1, 4]: the 6 elements of [3, 2] are not a multiple of 4",
    );
    expect(
        context.set_input_shape("z", [3, 2]),
        InvalidArgument,
        "\"z\" is not an input or output; inputs are \"x\"; outputs are \"y\", \"flat\"",
    );
    expect(
        context.set_input_shape("y", [3, 2]),
        InvalidArgument,
        "input \"y\": it is an output; its shape follows from those of the inputs",
    );
    context.set_input_shape("x", Dims::new(&[4, 2]).expect("dims")).expect("a shape");
    assert_eq!(context.tensor_shape("flat").expect("a shape").as_slice(), [2, 4]);
}

#[test]
fn enqueue_finds_what_is_missing_or_does_not_fit() {
    use ErrorKind::{InvalidArgument, InvalidBuffer, NotReady};
    let mut context = context();
    let (x, mut y, mut flat) = ([0f32; 8], [0f32; 8], [0f32; 8]);
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        NotReady,
        "input \"x\": its shape is not set; it is float32 [-1, 2]",
    );
    context.set_input_shape("x", [4, 2]).expect("a shape");
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]),
        NotReady,
        "output \"flat\": nothing is bound to it; it is float32 [2, 4]",
    );
    expect(
        context.execute(inputs!["x" => &[0i32; 8]], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], and what is bound to it is int32",
    );
    expect(
        context.execute(inputs!["x" => &x[..6]], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], 8 elements or 32 bytes; what is bound to it has 6 elements or 24 bytes",
    );
    let array = ndarray::arr2(&[[0f32; 4]; 2]);
    expect(
        context.execute(inputs!["x" => &array], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": it is float32 [4, 2], and what is bound to it is float32 [2, 4]",
    );
    let transposed = array.t();
    expect(
        context.execute(inputs!["x" => &transposed], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidBuffer,
        "input \"x\": the array [4, 2] is not contiguous in row-major order; make a copy with `as_standard_layout`",
    );
    expect(
        context.execute(inputs!["x" => &x, "x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidArgument,
        "\"x\" is given twice",
    );
    expect(
        context.execute(inputs!["y" => &x], outputs!["y" => &mut y, "flat" => &mut flat]),
        InvalidArgument,
        "\"y\" is an output and stands among the inputs",
    );
    context.execute(inputs!["x" => &x], outputs!["y" => &mut y, "flat" => &mut flat]).expect("all is well");
}

#[test]
fn enqueue_needs_the_communicator() {
    let engine = build_one(&[2], DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2)).expect("an engine");
    let mut context = engine.create_execution_context().expect("a context");
    let (x, mut y) = ([0f32; 2], [0f32; 2]);
    expect(
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]),
        ErrorKind::NotReady,
        "layer \"sync\" (all_reduce): no communicator is set, and the layer needs one",
    );
}

/// Binds raw addresses of one allocation, and enqueues.
fn enqueue_raw(engine: &Engine, addresses: &[(&str, usize, usize)]) -> Result<()> {
    let mut context = engine.create_execution_context()?;
    context.set_communicator(&Communicator::in_process(1)?.remove(0))?;
    let mut memory = Buffer::zeroed(DataType::Uint8, [4096])?;
    let mut bindings = context.create_bindings();
    for &(name, offset, byte_len) in addresses {
        // SAFETY: the memory outlives the work, and nobody else uses it.
        unsafe { bindings.bind_address(name, memory.as_mut_ptr().add(offset), byte_len)? };
    }
    context.enqueue(bindings, &Stream::inline())?.wait()?;
    Ok(())
}

/// Addresses are not the same in every run.
fn without_addresses(result: Result<()>) -> Result<()> {
    result.map_err(|error| {
        let words = error.to_string();
        let words = words.split(' ').map(|word| if word.starts_with("0x") { "0x…" } else { word });
        Error::new(error.kind(), words.collect::<Vec<_>>().join(" "))
    })
}

#[test]
fn enqueue_finds_overlap_and_misalignment() {
    use ErrorKind::InvalidBuffer;
    let sum = || DistCollective::all_reduce(ReduceOperation::Sum).group([Rank(0)]);
    let engine = build_one(&[4], sum()).expect("an engine");
    enqueue_raw(&engine, &[("x", 0, 16), ("y", 0, 16)]).expect("in place");
    expect(
        without_addresses(enqueue_raw(&engine, &[("x", 0, 16), ("y", 4, 16)])),
        InvalidBuffer,
        "rank 0: input \"x\" and output \"y\": input 0x… and output 0x… overlap; in place is the same address",
    );
    expect(
        without_addresses(enqueue_raw(&engine, &[("x", 2, 16), ("y", 64, 16)])),
        InvalidBuffer,
        "rank 0: input \"x\": 0x… is not aligned to the 4 bytes of a float32",
    );
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y", 64, 12)]),
        InvalidBuffer,
        "rank 0: output \"y\": it is float32 [4], 4 elements or 16 bytes; what is bound to it has 3 elements or 12 bytes",
    );

    let (mut network, x) = network(&[4]);
    for i in 0..2 {
        let y = network.add(sum(), x).expect("a layer");
        network.mark_output(y, &format!("y{i}")).expect("an output");
    }
    let engine = Builder::new().build(&network).expect("an engine");
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y0", 0, 16), ("y1", 64, 16)]),
        InvalidBuffer,
        "rank 0: input \"x\" and output \"y0\": they are bound to memory that overlaps; only a collective that reads the one, \
         as its only reader, and writes the other works in place",
    );
    expect(
        enqueue_raw(&engine, &[("x", 0, 16), ("y0", 64, 16), ("y1", 72, 16)]),
        InvalidBuffer,
        "rank 0: outputs \"y0\" and \"y1\" are bound to memory that overlaps",
    );
}

#[test]
fn eager_calls() {
    use ErrorKind::{InvalidArgument, InvalidBuffer};
    let communicator = &Communicator::in_process(1).expect("a communicator")[0];
    expect(
        communicator.all_gather(&[1f32], &mut [0f32; 2]),
        InvalidBuffer,
        "rank 0: all_gather: the output has 2 elements; with 1 rank it must have 1",
    );
    expect(
        communicator.all_gather(&[1f32], &mut [0i32; 1]),
        InvalidBuffer,
        "rank 0: all_gather: the input is float32 and the output int32",
    );
    expect(
        communicator.broadcast(&mut [0i32; 1], Rank(1)),
        InvalidArgument,
        "rank 0: broadcast: root 1 is not one of 1 rank",
    );
    expect(
        communicator.all_reduce(&mut [Bool::TRUE], ReduceOperation::Avg),
        InvalidArgument,
        "rank 0: all_reduce: bool has no average; sum and max mean or, prod and min mean and; cast to a number to average",
    );
    expect(
        communicator.gather(&[1f32], None::<&mut [f32]>, 0),
        InvalidBuffer,
        "rank 0: gather: this rank needs an output",
    );
    expect(communicator.new_group(&[Rank(0), Rank(0)]), InvalidArgument, "rank 0 occurs twice");
    expect(communicator.new_group(&[Rank(1)]), InvalidArgument, "rank 1 is not in a communicator of 1 rank");
    assert_eq!(<f32 as Element>::DATA_TYPE, DataType::Float32);
}

/// Every operation with every distance between input and output at which they overlap and which is
/// not its in-place rule; and null addresses. All of it is found before anything is sent, so no
/// rank waits for the other.
#[test]
fn illegal_overlap_and_null_are_refused_for_every_operation() {
    on_ranks(2, |communicator| {
        let layers: [DistCollectiveLayer; 8] = [
            DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).into(),
            DistCollective::all_gather().nb_rank(2).into(),
            DistCollective::broadcast(Rank(1)).nb_rank(2).into(),
            DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(2).into(),
            DistCollective::reduce_scatter(ReduceOperation::Sum).nb_rank(2).into(),
            DistCollective::all_to_all().nb_rank(2).into(),
            DistCollective::gather(Rank(1)).nb_rank(2).into(),
            DistCollective::scatter(Rank(1)).nb_rank(2).into(),
        ];
        const ELEMENTS: usize = 4;
        let mut refused = 0;
        for layer in layers {
            let bound = layer.bind(&communicator, DataType::Int32).expect("it fits");
            let operation = layer.collective_operation();
            let output_len = bound.output_shape(&[ELEMENTS]).expect("a shape").element_count() as isize;
            let mut memory = [0i32; 64];
            let input: *mut i32 = &mut memory[32];
            let enqueue = |input: *const i32, output: *mut i32| {
                // SAFETY: all addresses lie well within the array; what is not refused is not
                // reached, see below.
                let work = unsafe { bound.enqueue(input.cast(), output.cast(), &[ELEMENTS], &Stream::inline()) };
                work.map(|_| ()).expect_err("it is refused").to_string()
            };
            for distance in -output_len + 1..ELEMENTS as isize {
                let legal = match bound.in_place(&[ELEMENTS]).expect("a shape") {
                    InPlace::SameAddress => distance == 0,
                    InPlace::InputAt { element_offset } => distance == -(element_offset as isize),
                    InPlace::OutputAt { element_offset } => distance == element_offset as isize,
                    InPlace::Never => false,
                    InPlace::Unused => true,
                };
                if legal || !bound.reads_input() || !bound.writes_output() {
                    continue;
                }
                let text = enqueue(input, input.wrapping_offset(distance));
                assert!(text.contains(" overlap; in place is "), "{operation} at {distance}: {text}");
                refused += 1;
            }
            let far = input.wrapping_sub(30);
            if bound.reads_input() {
                assert!(
                    enqueue(std::ptr::null(), far).contains("the input is null, and this rank uses it"),
                    "{operation}"
                );
            }
            if bound.writes_output() {
                assert!(enqueue(input, std::ptr::null_mut()).contains("the output is null"), "{operation}");
                let crooked = far.cast::<u8>().wrapping_add(2).cast();
                assert!(enqueue(input, crooked).contains("is not aligned to the 4 bytes of a int32"), "{operation}");
            }
        }
        assert!(refused > 20, "{refused}");
    });
}

#[test]
fn a_bound_layer_checks_its_buffers() {
    let communicator = &Communicator::in_process(1).expect("one rank")[0];
    let layer = DistCollective::all_gather().nb_rank(1).named("sync").into_layer();
    let bound = layer.bind(communicator, DataType::Int32).expect("it fits");
    let run = |input: &[i32], output: &mut [i32], dims: &[usize]| {
        bound.execute(Some(input.into()), Some(output.into()), dims)
    };
    run(&[1, 2], &mut [0; 2], &[2]).expect("it fits");
    expect(
        run(&[1, 2], &mut [0; 2], &[3]),
        ErrorKind::InvalidBuffer,
        "rank 0: layer \"sync\" (all_gather): the input has 2 elements, and its shape is [3]",
    );
    expect(
        bound.execute(Some((&[1f32]).into()), None, &[1]),
        ErrorKind::InvalidBuffer,
        "rank 0: layer \"sync\" (all_gather): the input is float32, and the layer's type int32",
    );
    expect(
        bound.execute(Some((&[1i32]).into()), None, &[1]),
        ErrorKind::NotReady,
        "rank 0: layer \"sync\" (all_gather): this rank needs an output",
    );
    expect(
        distcollective::output_shape(Op::AllGather, 0, &Shape::new(&[1]).expect("a shape")),
        ErrorKind::InvalidArgument,
        "a collective has at least one rank",
    );
    let mut unfinished = DistCollective::all_gather().into_layer();
    unfinished.set_collective_operation(Op::AllReduce);
    let (mut network, x) = network(&[4]);
    expect(
        network.add(unfinished, x),
        ErrorKind::InvalidArgument,
        "layer \"all_reduce_0\" (all_reduce): it needs a reduce operation: sum, prod, max, min or avg",
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
        expect(Builder::new().build(&network), ErrorKind::InvalidNetwork, &text);
    }
    let (mut network, x) = network(&[0, 4]);
    let y = network.add_shuffle(x, Shuffle::reshape([0, -1])).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    expect(
        Builder::new().build(&network),
        ErrorKind::InvalidNetwork,
        "layer \"shuffle_0\" (shuffle): reshape [0, -1] of [0, 4] has a dimension of 0 beside the -1, so nothing can be inferred",
    );
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
    let mut other = Network::new();
    expect(
        other.add_cast(x, DataType::Int8),
        ErrorKind::InvalidArgument,
        "TensorId(0) is not a tensor of this network",
    );
    network.layer_of_mut(y).expect("a layer").set_name("");
    network.mark_output(y, "").expect("an output");
    let error = Builder::new().build(&network).expect_err("no names");
    assert_eq!(error.to_string(), "2 mistakes:\n  a cast layer has no name\n  output 0 has no name");
}

#[test]
fn what_is_allowed_but_deserves_a_second_look_is_in_the_log() {
    #[derive(Clone, Default)]
    struct Log(std::sync::Arc<std::sync::Mutex<Vec<u8>>>);
    impl std::io::Write for Log {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().expect("one thread").extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().with_writer(move || writer.clone()).with_ansi(false).finish();
    tracing::subscriber::with_default(subscriber, || {
        DistCollectiveLayer::new(Op::AllGather, None, 3, &[]).expect("a root too many");
        let (mut network, x) = network(&[4]);
        let y = network
            .add(DistCollective::reduce(ReduceOperation::Sum, Rank(0)).nb_rank(2).named("r"), x)
            .expect("a layer");
        let z = network.add_cast(y, DataType::Int8).expect("a layer");
        network.mark_output(z, "z").expect("an output");
        Builder::new().build(&network).expect("an engine");
    });
    let text = String::from_utf8(log.0.lock().expect("one thread").clone()).expect("text");
    assert!(
        text.contains("WARN") && text.contains("all_gather has no root: 3 is ignored; -1 says that there is none"),
        "{text}"
    );
    assert!(text.contains("layer \"cast_1\" (cast) reads the output of layer \"r\" (reduce)"), "{text}");
}

/// Who configures an environment may log that; the secret stays out of it.
#[test]
fn a_secret_is_not_shown() {
    let builder = Environment::builder().rank(3).secret("xyzzy");
    let shown = format!("{builder:?} {builder:#?}");
    assert!(shown.contains("secret") && !shown.contains("xyzzy"), "{shown}");
}
