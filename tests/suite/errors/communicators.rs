//! What setting a communicator and making an environment find.

use distcollective::{
    DataType, DistCollective, DistCollectiveLayer, Engine, Environment, ErrorKind, Network, Rank, ReduceOperation,
};

use super::{build_one, typed_network};
use crate::ranks::on_ranks;

#[test]
fn setting_a_communicator() {
    use ErrorKind::InvalidCommunicator;
    let refusals = |layer: DistCollectiveLayer, n: u32| {
        let engine = build_one(&[4], layer).expect("an engine");
        let mut errors = on_ranks(n, move |communicator| {
            let mut context = engine.create_execution_context().expect("a context");
            let error = context.set_communicator(&communicator).expect_err("it does not fit");
            // The communicator still works.
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

/// Both ranks have the plan of rank 0, whose plugin has rank 0's weights.
#[test]
fn a_network_that_was_made_for_another_rank() {
    let (mut network, x) = typed_network(DataType::Float32, &[4]);
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let error = network.for_rank(Rank(2), 2).expect_err("ranks count from 0");
    assert_eq!((error.kind(), error.to_string().as_str()), (ErrorKind::InvalidArgument, "there is no rank 2 of 2"));
    network.for_rank(Rank(0), 2).expect("a rank");
    let engine = network.build().expect("an engine");
    assert!(engine.inspect().to_string().lines().next().is_some_and(|line| line.ends_with(", for rank 0 of 2")));
    assert_eq!(engine.inspect().to_json()["for_rank"], serde_json::json!({ "rank": 0, "world_size": 2 }));
    let plan = engine.serialize().expect("a plan");
    let refused = on_ranks(2, move |communicator| {
        let engine = Engine::deserialize(&plan).expect("an engine");
        let mut context = engine.create_execution_context().expect("a context");
        let error = context.set_communicator(&communicator).expect_err("rank 1 has another number");
        // Rank 1's own works.
        let mut own = network.clone();
        own.for_rank(communicator.rank(), 2).expect("a rank");
        let mut context = own.build().expect("an engine").create_execution_context().expect("a context");
        context.set_communicator(&communicator).expect("the right rank");
        // Rank 0 of a group of one rank is not rank 0 of 2.
        let alone = communicator.split(Some(communicator.rank().0), 0).expect("a split").expect("a group");
        let error_alone = engine.create_execution_context().expect("a context").set_communicator(&alone);
        assert!(
            error_alone
                .expect_err("a group of one")
                .to_string()
                .contains("made for rank 0 of 2, and this is rank 0 of 1")
        );
        (error.kind(), error.to_string())
    });
    let text = "the network was made for rank 0 of 2, and this is rank 1 of 2";
    assert_eq!(
        refused,
        [format!("rank 0: the communicator is set on no rank: rank 1 refuses it: {text}"), format!("rank 1: {text}")]
            .map(|text| (ErrorKind::InvalidCommunicator, text))
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
        let mut engine = network.build().expect("an engine");
        if communicator.rank() == Rank(1) {
            // The first collective is the same. This rank has no second one.
            network = Network::new();
            let x = network.add_input("x", DataType::Float32, [64, 4096]).expect("an input");
            let g = network.add(DistCollective::all_to_all().group([Rank(3), Rank(0)]).named("way"), x);
            network.mark_output(g.expect("a layer"), "y").expect("an output");
            engine = network.build().expect("an engine");
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

/// A program may log the configuration of an environment. The secret is not in it.
#[test]
fn a_secret_is_not_shown() {
    let builder = Environment::builder().rank(3).secret("xyzzy");
    let shown = format!("{builder:?} {builder:#?}");
    assert!(shown.contains("secret") && !shown.contains("xyzzy"), "{shown}");
}
