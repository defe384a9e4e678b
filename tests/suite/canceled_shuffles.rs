//! Shuffles that undo each other around layers that work element by element do not run.

use distcollective::collective::Partition;
use distcollective::network::{ElementWiseOperation, Shuffle, TensorId};
use distcollective::tensor::TensorViewMut;
use distcollective::{
    Builder, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Network, ReduceOperation, Result,
    inputs, outputs,
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
        let (json, text) = (engine.inspect().to_json(), engine.inspect().to_string());
        let count = |list: &str| json[list].as_array().map_or(0, Vec::len);
        assert_eq!(text.matches(" undo each other and move nothing\n").count(), count("canceled"), "{text}");
        Ok::<_, distcollective::Error>([count("layers"), network.layers().count(), count("canceled")])
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
            let x = all_reduced(network, x)?;
            network.add_shuffle(x, turned())
        };
        assert_eq!(runs(dims, several), [4, 6, 1]);
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
        let layers = engine.inspect().to_json()["layers"].as_array().map_or(0, Vec::len);
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

/// What each of two ranks gets from a network of its own with an input `[2, 2]`.
fn on_both(
    describe: impl Fn(&Communicator, &mut Network, TensorId) -> Result<TensorId> + Clone + Send + Sync + 'static,
) -> [[i32; 4]; 2] {
    let results = on_ranks(2, move |communicator| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [2, 2])?;
        let y = describe(&communicator, &mut network, x)?;
        network.mark_output(y, "y")?;
        let mut context = Builder::new().build(&network)?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x = [1, 2, 3, 4].map(|i| i * 10i32.pow(communicator.rank().0));
        let (mut y, mut seen) = ([0; 4], [0; 4]);
        let watched = network.outputs().len() == 2;
        let outputs =
            [("y", &mut y), ("seen", &mut seen)].map(|(name, output)| (name, Ok(TensorViewMut::from(output))));
        context.execute(inputs!["x" => &x], outputs.into_iter().take(1 + usize::from(watched)))?;
        Ok(y)
    });
    let mut results = results.into_iter().map(|result: Result<_>| result.expect("a run"));
    [0, 1].map(|_| results.next().expect("a result"))
}

/// The dimensions do not tell the order of elements, so nothing but the agreement keeps these ranks
/// from adding elements that do not belong together.
#[test]
fn ranks_that_cancel_other_shuffles_give_the_described_results() {
    let straight = [11, 22, 33, 44];
    assert_eq!(on_both(|_, network, x| Ok(around_all_reduce(network, x)?[2])), [straight; 2]);
    // A rank looks at the tensor between its shuffles, so they run.
    let watching = on_both(|communicator, network, x| {
        let [_, reduced, y] = around_all_reduce(network, x)?;
        if communicator.rank().0 == 1 {
            network.mark_output(reduced, "seen")?;
        }
        Ok(y)
    });
    assert_eq!(watching, [straight; 2]);
    // A rank has its elements in the other order already.
    let without = on_both(|communicator, network, x| match communicator.rank().0 {
        0 => Ok(around_all_reduce(network, x)?[2]),
        _ => all_reduced(network, x),
    });
    assert_eq!(without, [[11, 32, 23, 44], [11, 23, 32, 44]]);
    // Both ranks cancel, and put their elements in different orders.
    let different = on_both(|communicator, network, x| {
        let [there, back] = match communicator.rank().0 {
            0 => [turned(), turned()],
            _ => [Shuffle::transpose([0, 1]), Shuffle::transpose([0, 1])],
        };
        let x = network.add_shuffle(x, there)?;
        let x = all_reduced(network, x)?;
        network.add_shuffle(x, back)
    });
    assert_eq!(different, without);
}
