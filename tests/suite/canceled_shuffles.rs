//! Shuffles that undo each other around layers that work element by element do not run.

mod peers;

use distcollective::collective::Partition;
use distcollective::network::{ElementWiseOperation, Plugin, PluginCall, Shuffle, TensorId};
use distcollective::tensor::Shape;
use distcollective::{
    Builder, DataType, DistCollective, DistCollectiveLayer, Engine, Network, ReduceOperation, Result, inputs, outputs,
};

use crate::ranks::on_ranks;

const SUM: ReduceOperation = ReduceOperation::Sum;

fn turned() -> Shuffle {
    Shuffle::transpose([1, 0])
}

fn all_reduced(network: &mut Network, x: TensorId) -> Result<TensorId> {
    network.add(DistCollective::all_reduce(SUM).nb_rank(2), x)
}

/// Shuffle, all_reduce, and the Shuffle that undoes the first: the last tensors of all three.
fn around_all_reduce(network: &mut Network, x: TensorId) -> Result<[TensorId; 3]> {
    let before = network.add_shuffle(x, turned())?;
    let reduced = all_reduced(network, before)?;
    Ok([before, reduced, network.add_shuffle(reduced, turned())?])
}

/// How many layers of an engine run, and how many pairs of shuffles are canceled.
fn counts(engine: &Engine) -> [usize; 2] {
    let json = engine.inspect().to_json();
    ["layers", "canceled"].map(|list| json[list].as_array().map_or(0, Vec::len))
}

/// How many layers run in a network with an input `[-1, 6]` or `[4, 6]`, of how many, and how many
/// pairs of shuffles are canceled. Reading the plan gives the same.
fn runs(dims: [i64; 2], describe: impl FnOnce(&mut Network, TensorId) -> Result<TensorId>) -> [usize; 3] {
    let build = || {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, dims)?;
        if dims[0] == -1 {
            network.set_optimization_profile(x, [2, 6], [4, 6], [8, 6])?;
        }
        let y = describe(&mut network, x)?;
        network.mark_output(y, "y")?;
        let engine = Builder::new().build(&network)?;
        let read = Engine::deserialize(&engine.serialize()?)?;
        assert_eq!(read.inspect().to_json(), engine.inspect().to_json());
        // The graph has no tensor that comes from nowhere.
        assert!(!engine.inspect().to_dot().contains("   ->"), "{}", engine.inspect().to_dot());
        let ([layers, canceled], text) = (counts(&engine), engine.inspect().to_string());
        assert_eq!(text.matches(" undo each other and move nothing\n").count(), canceled, "{text}");
        Ok::<_, distcollective::Error>([layers, network.layers().count(), canceled])
    };
    build().expect("an engine")
}

#[test]
fn shuffles_around_what_works_element_by_element_do_not_run() {
    for dims in [[4, 6], [-1, 6]] {
        assert_eq!(runs(dims, |network, x| Ok(around_all_reduce(network, x)?[2])), [1, 3, 1]);
        // Several collectives, casts and copies between them.
        let several = |network: &mut Network, x| {
            let x = network.add_shuffle(x, turned())?;
            let x = network.add_cast(x, DataType::Float16)?;
            let x = network.add(DistCollective::broadcast(0u32).nb_rank(2), x)?;
            let x = network.add_identity(x)?;
            let x = network.add(DistCollective::all_gather().nb_rank(1), x)?;
            let x = all_reduced(network, x)?;
            network.add_shuffle(x, turned())
        };
        assert_eq!(runs(dims, several), [5, 7, 1]);
        // Pairs in each other, and reshapes beside transposes.
        let nested = |network: &mut Network, x| {
            let x = network.add_shuffle(x, Shuffle::reshape([0, 2, 3]).then_transpose([1, 2, 0]))?;
            let x = network.add_shuffle(x, Shuffle::transpose([2, 1, 0]))?;
            let x = all_reduced(network, x)?;
            let x = network.add_shuffle(x, Shuffle::transpose([2, 1, 0]))?;
            network.add_shuffle(x, Shuffle::transpose([2, 0, 1]).then_reshape([0, -1]))
        };
        assert_eq!(runs(dims, nested), [1, 5, 2]);
        // Nothing between them: the output of a network is copied from its input.
        let direct = |network: &mut Network, x| {
            let x = network.add_shuffle(x, turned())?;
            network.add_shuffle(x, turned())
        };
        assert_eq!(runs(dims, direct), [1, 2, 1]);
        assert_eq!(runs(dims, |network, x| direct(network, x).and_then(|x| all_reduced(network, x))), [1, 3, 1]);
    }
}

#[test]
fn shuffles_run_whose_order_of_elements_is_seen() {
    type Describe = fn(&mut Network, TensorId) -> Result<TensorId>;
    let seen: [(Describe, usize); 9] = [
        // The tensor before the collective, and the one after it, are outputs.
        (|network, x| around_all_reduce(network, x).and_then(|[t, _, y]| network.mark_output(t, "t").map(|()| y)), 3),
        (|network, x| around_all_reduce(network, x).and_then(|[_, t, y]| network.mark_output(t, "t").map(|()| y)), 3),
        // Another layer reads them.
        (
            |network, x| {
                let [before, reduced, y] = around_all_reduce(network, x)?;
                let sum = network.add_elementwise(before, reduced, ElementWiseOperation::Sum)?;
                network.mark_output(sum, "sum").map(|()| y)
            },
            4,
        ),
        // Blocks of rows are not elements.
        (
            |network, x| {
                let x = network.add_shuffle(x, turned())?;
                let x = network.add(DistCollective::all_to_all().nb_rank(2), x)?;
                network.add_shuffle(x, turned())
            },
            3,
        ),
        (
            |network, x| {
                let x = network.add_shuffle(x, turned())?;
                let x = network.add_slice(x, &[0, 0], &[6, 2], &[1, 1])?;
                network.add_shuffle(x, turned())
            },
            3,
        ),
        // The second does not undo the first: another transpose, and another shape.
        (
            |network, x| {
                let x = network.add_shuffle(x, Shuffle::reshape([0, 2, 3]).then_transpose([1, 2, 0]))?;
                let x = all_reduced(network, x)?;
                network.add_shuffle(x, Shuffle::transpose([1, 2, 0]))
            },
            3,
        ),
        (
            |network, x| {
                let x = network.add_shuffle(x, Shuffle::reshape([-1]))?;
                let x = all_reduced(network, x)?;
                network.add_shuffle(x, Shuffle::reshape([6, 4]))
            },
            3,
        ),
        (
            |network, x| {
                let x = network.add_shuffle(x, turned().then_reshape([-1]))?;
                let x = all_reduced(network, x)?;
                network.add_shuffle(x, Shuffle::reshape([4, 6]).then_transpose([1, 0]))
            },
            3,
        ),
        // One that was undone is not undone again.
        (
            |network, x| {
                let [.., y] = around_all_reduce(network, x)?;
                let y = all_reduced(network, y)?;
                network.add_shuffle(y, turned())
            },
            3,
        ),
    ];
    for (number, (describe, count)) in seen.into_iter().enumerate() {
        assert_eq!(runs([4, 6], describe)[0], count, "network {number}");
    }
    let rows = || Shuffle::reshape([2, 2, 6]);
    let not_undone = [
        [turned(), Shuffle::transpose([0, 1])],
        [turned().then_reshape([-1]), Shuffle::reshape([6, 4])],
        [turned().then_reshape([4, 6]), Shuffle::reshape([0, -1]).then_transpose([1, 0])],
        [rows().then_transpose([1, 0, 2]), Shuffle::reshape([4, 6])],
        [rows(), Shuffle::transpose([1, 0, 2]).then_reshape([4, 6])],
        [Shuffle::reshape([-1]), Shuffle::reshape([4, 6, 1])],
    ];
    for shuffles in not_undone {
        let [there, back] = shuffles.clone();
        let count = runs([4, 6], |network, x| {
            let x = network.add_shuffle(x, there)?;
            let x = all_reduced(network, x)?;
            network.add_shuffle(x, back)
        });
        assert_eq!(count, [3, 3, 0], "{shuffles:?}");
    }
    // What is right for some of the shapes only.
    let fixed = |network: &mut Network, x| {
        let x = network.add_shuffle(x, Shuffle::reshape([-1]).then_transpose([0]))?;
        let x = all_reduced(network, x)?;
        network.add_shuffle(x, Shuffle::reshape([2, -1]))
    };
    assert_eq!(runs([2, 6], fixed)[2], 1);
    assert_eq!(runs([-1, 6], fixed)[2], 0);
}

/// A rank that does not write a reduction still gives what the described shuffles give: zeros.
#[test]
fn ranks_that_do_not_write_the_collective_give_zeros() {
    let results = on_ranks(3, |communicator| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [2, 3])?;
        let layers = [
            DistCollectiveLayer::from(DistCollective::reduce(SUM, 1).nb_rank(3)),
            DistCollective::all_reduce(SUM).partition(Partition::new([[0, 1]])).into(),
        ];
        for (name, layer) in ["reduced", "of_two"].into_iter().zip(layers) {
            let y = network.add_shuffle(x, turned())?;
            let y = network.add(layer, y)?;
            let y = network.add_shuffle(y, turned())?;
            network.mark_output(y, name)?;
        }
        let engine = Builder::new().build(&network)?;
        let [layers, _] = counts(&engine);
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x = [1, 2, 3, 4, 5, 6].map(|i| i * 10i32.pow(communicator.rank().0));
        let (mut reduced, mut of_two) = ([-1; 6], [-1; 6]);
        context.execute(inputs!["x" => &x], outputs!["reduced" => &mut reduced, "of_two" => &mut of_two])?;
        Ok((layers, reduced, of_two))
    });
    let results: Vec<_> = results.into_iter().map(|result: Result<_>| result.expect("a run")).collect();
    let (three, two) = ([1, 2, 3, 4, 5, 6].map(|i| i * 111), [1, 2, 3, 4, 5, 6].map(|i| i * 11));
    assert_eq!(results, [(4, [0; 6], two), (4, three, two), (4, [0; 6], [0; 6])]);
}

/// The tensor behind two shuffles that undo each other.
fn turned_twice(network: &mut Network, x: TensorId) -> Result<TensorId> {
    let x = network.add_shuffle(x, turned())?;
    network.add_shuffle(x, turned())
}

#[test]
fn tensors_in_one_memory_keep_their_elements() -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2, 3])?;
    let k = network.add_constant(&[7.0f32, 8.0, 9.0, 10.0, 11.0, 12.0], [2, 3])?;
    // Two outputs from one tensor, an output from another one, and those of what runs cannot write.
    let a = network.add_cast(x, DataType::Float32)?;
    let b = network.add_cast(x, DataType::Float32)?;
    network.mark_output(b, "b")?;
    for (tensor, name) in [(a, "a0"), (a, "a1"), (b, "b0"), (k, "k0")] {
        let y = turned_twice(&mut network, tensor)?;
        network.mark_output(y, name)?;
    }
    // A tensor is read where it has another name, after a layer that could write over it.
    let c = network.add_cast(x, DataType::Float32)?;
    let again = turned_twice(&mut network, c)?;
    let cast = network.add_cast(c, DataType::Int32)?;
    let cast = network.add_cast(cast, DataType::Int64)?;
    network.mark_output(cast, "cast")?;
    let sum = network.add_elementwise(again, again, ElementWiseOperation::Sum)?;
    network.mark_output(sum, "sum")?;
    let engine = Builder::new().build(&network)?;
    assert_eq!(counts(&engine)[1], 5);
    let mut context = engine.create_execution_context()?;
    let [mut a0, mut a1, mut b, mut b0, mut k0, mut sum] = [[0.0f32; 6]; 6];
    let mut cast = [0i64; 6];
    let floats = outputs!["a0" => &mut a0, "a1" => &mut a1, "b" => &mut b, "b0" => &mut b0, "k0" => &mut k0];
    let others = outputs!["sum" => &mut sum, "cast" => &mut cast];
    context.execute(inputs!["x" => &[1, 2, 3, 4, 5, 6]], floats.into_iter().chain(others))?;
    let floats = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
    assert_eq!([a0, a1, b, b0], [floats; 4]);
    assert_eq!((k0, sum, cast), (floats.map(|x| x + 6.0), floats.map(|x| 2.0 * x), [1, 2, 3, 4, 5, 6]));
    Ok(())
}

/// Shuffles that do not run take no memory, and leave collectives in the communicator's memory.
#[test]
fn canceled_shuffles_change_nothing_in_the_memory_plan() -> Result<()> {
    for is_read_later in [false, true] {
        let memory = [false, true].map(|shuffles| {
            let shuffle = |network: &mut Network, x| {
                // In two steps, which need memory between them.
                let twice = turned().then_reshape([3, 2]).then_transpose([1, 0]);
                if shuffles { network.add_shuffle(x, twice) } else { Ok(x) }
            };
            let mut network = Network::new();
            let x = network.add_input("x", DataType::Int32, [2, 3])?;
            let c = network.add_cast(x, DataType::Int64)?;
            let y = shuffle(&mut network, c)?;
            let y = all_reduced(&mut network, y)?;
            let y = shuffle(&mut network, y)?;
            let y = network.add_cast(y, DataType::Int32)?;
            network.mark_output(y, "y")?;
            // The copy to an output.
            let copied = shuffle(&mut network, x)?;
            let copied = if shuffles { shuffle(&mut network, copied)? } else { network.add_identity(x)? };
            network.mark_output(copied, "copied")?;
            if is_read_later {
                let later = network.add_cast(c, DataType::Int8)?;
                network.mark_output(later, "later")?;
            }
            let engine = Builder::new().build(&network)?;
            assert_eq!(counts(&engine)[1], if shuffles { 2 } else { 0 });
            Ok::<_, distcollective::Error>(engine.inspect().to_json()["memory"].clone())
        });
        let [plain, shuffled] = memory.map(|memory| memory.expect("an engine"));
        assert_eq!(plain, shuffled);
    }
    Ok(())
}

/// A reshape gives the dimensions back in one profile only.
#[test]
fn shuffles_run_that_undo_each_other_in_some_profiles_only() -> Result<()> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [-1, 6])?;
    for rows in [2, 4] {
        let profile = network.add_optimization_profile()?;
        network.set_profile_shapes(profile, x, [rows, 6], [rows, 6], [rows, 6])?;
    }
    for (columns, name) in [([-1, 2], "of_some"), ([6, -1], "of_all")] {
        let y = network.add_shuffle(x, turned().then_reshape([-1]))?;
        let y = all_reduced(&mut network, y)?;
        let y = network.add_shuffle(y, Shuffle::reshape(columns).then_transpose([1, 0]))?;
        network.mark_output(y, name)?;
    }
    assert_eq!(counts(&Builder::new().build(&network)?), [4, 1]);
    Ok(())
}

/// Gives a tensor of other dimensions at 3 elements than at the points of the profile.
#[derive(Debug)]
struct Uneven {
    at_points: Vec<usize>,
    at_three: Vec<usize>,
}

impl Plugin for Uneven {
    fn type_name(&self) -> &str {
        "uneven"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        let dims = if inputs[0].as_slice() == [3] { &self.at_three } else { &self.at_points };
        Ok(vec![Shape::new(dims)?])
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let mut output = call.output(0)?;
        output.as_mut_slice::<i32>()?.iter_mut().zip(0..).for_each(|(element, number)| *element = number);
        Ok(())
    }
}

/// The network's tensor behind the plugin, which `x` of 2 to 4 elements gives its dimensions.
fn uneven(at_points: &[usize], at_three: &[usize]) -> Result<(Network, TensorId)> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1])?;
    network.set_optimization_profile(x, [2], [2], [4])?;
    let plugin = Uneven { at_points: at_points.to_vec(), at_three: at_three.to_vec() };
    let uneven = network.add_plugin("uneven", plugin, &[x])?;
    Ok((network, uneven))
}

/// What a plugin gives at the points of the profile says nothing about other shapes.
#[test]
fn shuffles_run_that_undo_each_other_for_some_outputs_of_a_plugin_only() -> Result<()> {
    let (mut network, x) = uneven(&[4, 2], &[2, 4])?;
    let y = network.add_shuffle(x, turned().then_reshape([-1]))?;
    let y = network.add_shuffle(y, Shuffle::reshape([2, -1]).then_transpose([1, 0]))?;
    network.mark_output(y, "y")?;
    let z = network.add_shuffle(x, turned())?;
    let z = network.add_shuffle(z, turned())?;
    network.mark_output(z, "z")?;
    // What a plugin computes may depend on the order.
    let between = network.add_shuffle(x, turned())?;
    let plugin = Uneven { at_points: vec![2, 4], at_three: vec![2, 4] };
    let between = network.add_plugin("between", plugin, &[between])?;
    let between = network.add_shuffle(between, turned())?;
    network.mark_output(between, "between")?;
    let engine = Builder::new().build(&network)?;
    assert_eq!(counts(&engine), [6, 1]);
    let mut context = engine.create_execution_context()?;
    context.set_input_shape("x", [3])?;
    let (mut y, mut z, mut between) = ([0; 8], [0; 8], [0; 8]);
    let outputs = outputs!["y" => &mut y, "z" => &mut z, "between" => &mut between];
    context.execute(inputs!["x" => &[0; 3]], outputs)?;
    assert_eq!(y, [0, 2, 4, 6, 1, 3, 5, 7]);
    assert_eq!(z, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(between, [0, 4, 1, 5, 2, 6, 3, 7]);
    Ok(())
}

/// The engine in which all shuffles run has to have room for them, because other ranks may need it.
#[test]
fn a_shape_for_which_the_described_engine_has_no_room_is_refused() -> Result<()> {
    let (mut network, x) = uneven(&[4], &[1_000_000])?;
    network.mark_output(x, "from_plugin")?;
    let y = network.add_shuffle(x, Shuffle::reshape([-1]))?;
    let y = all_reduced(&mut network, y)?;
    let y = network.add_shuffle(y, Shuffle::reshape([-1]))?;
    network.mark_output(y, "y")?;
    let engine = Builder::new().build(&network)?;
    assert_eq!(counts(&engine), [2, 1]);
    let mut context = engine.create_execution_context()?;
    context.set_input_shape("x", [2])?;
    let error = context.set_input_shape("x", [3]).expect_err("a million elements");
    assert!(error.to_string().contains("is larger than at any point of the profile"), "{error}");
    Ok(())
}

#[test]
fn tensors_without_elements_and_without_dimensions_keep_their_shapes() {
    let results = on_ranks(2, |communicator| {
        let mut network = Network::new();
        let empty = network.add_input("empty", DataType::Int32, [0, 3])?;
        let [.., empty] = around_all_reduce(&mut network, empty)?;
        let both = network.add_concatenation(&[empty, empty], 0)?;
        network.mark_output(empty, "no_sum")?;
        network.mark_output(both, "no_sums")?;
        let scalar = network.add_input("scalar", DataType::Int32, [0i64; 0])?;
        let sum = network.add_shuffle(scalar, Shuffle::reshape([1]))?;
        let sum = all_reduced(&mut network, sum)?;
        let sum = network.add_shuffle(sum, Shuffle::reshape([0i64; 0]))?;
        network.mark_output(sum, "sum")?;
        let engine = Builder::new().build(&network)?;
        assert_eq!(counts(&engine), [3, 2]);
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let mut sum = [0];
        context.execute(inputs!["scalar" => &[communicator.rank().0 as i32 + 1]], outputs!["sum" => &mut sum])?;
        let shape = |name| context.tensor_shape(name).map(|shape| shape.as_slice().to_vec());
        Ok((sum, shape("no_sum")?, shape("no_sums")?, shape("sum")?))
    });
    for result in results {
        let result: Result<_> = result;
        assert_eq!(result.expect("a run"), ([3], vec![0, 3], vec![0, 3], vec![]));
    }
}
