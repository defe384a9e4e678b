//! Ranks whose canceled shuffles differ, or whose elements are in other orders.

use distcollective::network::{Shuffle, TensorId};
use distcollective::tensor::TensorViewMut;
use distcollective::{Builder, Communicator, DataType, ErrorKind, ExecutionContext, Network, Result, inputs, outputs};

use super::{SUM, all_reduced, around_all_reduce, counts, turned};
use crate::ranks::on_ranks;

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
    // The engine in which all shuffles run needs memory that the other one does not need.
    let with_casts = on_both(|communicator, network, x| {
        let before = network.add_shuffle(x, turned())?;
        if communicator.rank().0 == 1 {
            network.mark_output(before, "seen")?;
        }
        let y = network.add_cast(before, DataType::Int64)?;
        let y = all_reduced(network, y)?;
        let y = network.add_shuffle(y, turned())?;
        network.add_cast(y, DataType::Int32)
    });
    assert_eq!(with_casts, [straight; 2]);
}

/// Shuffles that look alike and give other orders of elements: the tensor before them, or the
/// shuffles around them, differ.
#[test]
fn ranks_compare_all_that_decides_the_order_of_elements() {
    type Shuffles = (Vec<Shuffle>, Vec<Shuffle>);
    let of_dims: fn(usize) -> Shuffles = |rank| {
        let (dims, turned) = [([1, 2, 2], [1, 2, 2]), ([2, 2, 1], [2, 1, 2])][rank];
        let there = vec![Shuffle::reshape(dims), Shuffle::transpose([0, 2, 1]).then_reshape([-1])];
        (there, vec![Shuffle::reshape(turned).then_transpose([0, 2, 1])])
    };
    let of_others: fn(usize) -> Shuffles = |rank| {
        let outer = || Shuffle::transpose([[1, 0], [0, 1]][rank]);
        (vec![outer(), Shuffle::reshape([4])], vec![Shuffle::reshape([2, 2]), outer()])
    };
    for shuffles in [of_dims, of_others] {
        let results = on_both(move |communicator, network, mut x| {
            let (there, back) = shuffles(communicator.rank().index());
            for shuffle in there {
                x = network.add_shuffle(x, shuffle)?;
            }
            x = all_reduced(network, x)?;
            for shuffle in back {
                x = network.add_shuffle(x, shuffle)?;
            }
            Ok(x)
        });
        assert_eq!(results, [[11, 32, 23, 44], [11, 23, 32, 44]]);
    }
}

/// Ranks compare how many elements they have, and not their dimensions. So shuffles around a
/// collective run if as many elements can have other dimensions.
#[test]
fn ranks_with_other_dimensions_get_the_described_results() {
    let results = on_ranks(2, |communicator| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [-1, -1])?;
        network.set_optimization_profile(x, [2, 2], [2, 3], [3, 3])?;
        let cast = network.add_shuffle(x, turned())?;
        let cast = network.add_cast(cast, DataType::Int32)?;
        let cast = network.add_shuffle(cast, turned())?;
        let [.., y] = around_all_reduce(&mut network, cast)?;
        network.mark_output(y, "y")?;
        let engine = Builder::new().build(&network)?;
        assert_eq!(counts(&engine), [4, 1]);
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        context.set_input_shape("x", [[2, 3], [3, 2]][communicator.rank().index()])?;
        let x = [1, 2, 3, 4, 5, 6].map(|i| i * 10i32.pow(communicator.rank().0));
        let mut y = [0; 6];
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
        Ok(y)
    });
    let results: Vec<_> = results.into_iter().map(|result: Result<_>| result.expect("a run")).collect();
    assert_eq!(results, [[11, 52, 43, 34, 25, 66], [11, 25, 34, 43, 52, 66]]);
}

/// A context that sums `[2, 2]` between these shuffles and those that undo them.
fn summing_context(communicator: &Communicator, there: &Shuffle) -> Result<ExecutionContext> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2, 2])?;
    let y = network.add_shuffle(x, there.clone())?;
    let y = all_reduced(&mut network, y)?;
    let y = network.add_shuffle(y, there.clone())?;
    network.mark_output(y, "y")?;
    let engine = Builder::new().build(&network)?;
    assert_eq!(counts(&engine), [1, 1]);
    let mut context = engine.create_execution_context()?;
    context.set_communicator(communicator)?;
    Ok(context)
}

/// A peer that makes the same call has its elements in the described order, or in another one.
#[test]
fn calls_of_peers_with_another_order_of_elements_are_an_error() {
    let run = |context: &mut ExecutionContext| {
        let mut y = [0; 4];
        context.execute(inputs!["x" => &[1, 2, 3, 4]], outputs!["y" => &mut y]).map(|()| y)
    };
    for peer_is_context in [true, false] {
        let results = on_ranks(2, move |communicator| {
            let mut contexts = [[1, 0], [1, 0], [0, 1]]
                .map(|there| summing_context(&communicator, &Shuffle::transpose(there)).expect("the same on both"));
            // Two contexts with one order, which ranks may exchange.
            contexts[..2].rotate_left(communicator.rank().index());
            for context in &mut contexts {
                assert_eq!(run(context).expect("the same order"), [2, 4, 6, 8]);
            }
            match communicator.rank().0 {
                0 => run(&mut contexts[0]).map(drop),
                _ if peer_is_context => run(&mut contexts[2]).map(drop),
                _ => communicator.all_reduce(&mut [1, 3, 2, 4], SUM),
            }
        });
        for result in results {
            let error = result.expect_err("another order");
            let text = error.to_string();
            let call = "calls all_reduce(sum) of 4 int32 between shuffles that do not run (order ";
            assert_eq!(error.kind(), ErrorKind::Disagreement, "{text}");
            assert_eq!(text.matches(call).count(), 1 + usize::from(peer_is_context), "{text}");
        }
    }
}
