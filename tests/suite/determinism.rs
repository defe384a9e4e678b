//! The determinism of communicators and layers: where it is kept, and ranks that differ in it.

use distcollective::collective::Collective;
use distcollective::{
    Communicator, DataType, Determinism, DistCollective, DistCollectiveLayer, Engine, ErrorKind, Network, Rank,
    ReduceOperation, Result,
};

use crate::ranks::on_ranks;

fn sum(ranks: u32, determinism: Determinism) -> DistCollective<distcollective::dist_collective::NoRoot> {
    DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(ranks).named("sum").determinism(determinism)
}

/// A network of one layer.
pub fn engine_of(layer: impl Into<DistCollectiveLayer>) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [4])?;
    let y = network.add(layer, x)?;
    network.mark_output(y, "y")?;
    network.build()
}

/// Exact on rank 0 only.
fn mode_of(rank: Rank) -> Determinism {
    if rank == Rank(0) { Determinism::Exact } else { Determinism::Backend }
}

/// Where ranks differ, every rank gets an error that names both sides, and the communicator still
/// works. What counts is the stricter one of layer and communicator.
pub fn differences_are_errors(communicator: &Communicator) -> Result<()> {
    let n = communicator.world_size();
    let own = mode_of(communicator.rank());
    let handle = communicator.with_determinism(own);
    let plain = engine_of(sum(n, Determinism::Backend))?;
    let own_plan = engine_of(sum(n, own))?;
    let set = |engine: &Engine, communicator: &Communicator| -> Result<()> {
        engine.create_execution_context()?.set_communicator(communicator)
    };
    let bind = |layer: DistCollectiveLayer, communicator: &Communicator| layer.bind(communicator, DataType::Bool);

    let all = format!("among {n} ranks");
    for error in [
        set(&own_plan, communicator).expect_err("the layers differ"),
        set(&plain, &handle).expect_err("the communicators differ"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        let text = error.to_string();
        assert!(text.contains(&format!("rank 0 has all_reduce(sum) of float32 [4] {all} in exact mode")), "{text}");
        assert!(text.contains(&format!(" all_reduce(sum) of float32 [4] {all} (plan")), "{text}");
    }
    for error in [
        bind(sum(n, own).into_layer(), communicator).expect_err("the layers differ"),
        bind(sum(n, Determinism::Backend).into_layer(), &handle).expect_err("the communicators differ"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        assert!(error.to_string().contains("of bool among"), "{error}");
        assert!(error.to_string().contains(&format!("{all} in exact mode")), "{error}");
    }
    for error in [
        handle.split(Some(0), 0).map(drop).expect_err("the handles differ"),
        handle.new_group([0]).map(drop).expect_err("the handles differ"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        let sides = match own {
            Determinism::Exact => "this rank has exact, rank 1 has backend",
            _ => "this rank has backend, rank 0 has exact",
        };
        let text = error.to_string();
        assert!(text.contains(&format!("split wants the same determinism on every rank: {sides}")), "{text}");
    }

    // The layer is exact on one rank, and the communicator on the others.
    let other = communicator.with_determinism(if own == Determinism::Exact {
        Determinism::Backend
    } else {
        Determinism::Exact
    });
    set(&own_plan, &other)?;
    // Nothing is reduced.
    handle.all_gather(&[1u8], &mut vec![0u8; n as usize])?;
    bind(DistCollective::all_gather().nb_rank(n).determinism(own).into_layer(), communicator)?;
    communicator.barrier()
}

/// At the largest shape, the longest scratch memory of the exact reductions: 3 contributions of up
/// to 512 KiB together, or a share of each rank for each.
#[test]
fn a_plan_shows_the_memory_of_exact_reductions() {
    let engine = |determinism, longest: i64| -> Result<Engine> {
        let mut network = Network::new();
        for (name, len) in [("short", 1000), ("long", longest)] {
            let x = network.add_input(name, DataType::Float32, [-1])?;
            network.set_optimization_profile(x, [3], [3], [len])?;
            let y = network.add(sum(3, determinism).named(name), x)?;
            network.mark_output(y, &format!("{name} sum"))?;
        }
        let z = network.add_input("z", DataType::Float32, [1 << 20])?;
        let z = network.add(DistCollective::all_gather().nb_rank(3).determinism(determinism), z)?;
        network.mark_output(z, "gathered")?;
        network.build()
    };
    let bytes = |engine: &Engine| engine.inspect().to_json()["memory"]["step_scratch_bytes"].clone();
    assert_eq!(bytes(&engine(Determinism::Backend, 1000).expect("an engine")), 0);
    assert_eq!(bytes(&engine(Determinism::Exact, 999).expect("an engine")), 12_000);
    assert_eq!(bytes(&engine(Determinism::Exact, 600_000).expect("an engine")), 2_400_000);
    let plan = engine(Determinism::Exact, 600_000).and_then(|engine| engine.serialize()).expect("a plan");
    let text = Engine::deserialize(&plan).expect("an engine").inspect().to_string();
    assert!(text.contains("\n  2400000 bytes between the steps of collectives in exact mode"), "{text}");
}

#[test]
fn ranks_that_differ_disagree() {
    for result in on_ranks(3, |communicator| differences_are_errors(&communicator)) {
        result.expect("the errors are as expected");
    }
}

#[test]
fn eager_calls_that_differ_disagree() {
    let errors = on_ranks(2, |communicator| {
        let handle = communicator.with_determinism(mode_of(communicator.rank()));
        let error = handle.all_reduce(&mut [1f32], ReduceOperation::Sum).expect_err("the handles differ");
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        error.to_string()
    });
    for error in errors {
        let call = "calls all_reduce(sum) of 1 float32";
        assert!(error.contains(&format!("rank 0 {call} in exact mode; rank 1 {call}")), "{error}");
    }
}

#[test]
fn a_group_has_the_determinism_of_its_origin() {
    let builder = Communicator::builder().determinism(Determinism::Exact);
    let groups = builder.spawn(2, |communicator| {
        assert_eq!(communicator.determinism(), Determinism::Exact);
        let plain = communicator.with_determinism(Determinism::Backend);
        let of = |group: Option<Communicator>| group.expect("every rank has a color").determinism();
        Ok([of(communicator.split(Some(1), 0)?), of(communicator.new_group([1, 0])?), of(plain.split(Some(1), 0)?)])
    });
    let expected = [Determinism::Exact, Determinism::Exact, Determinism::Backend];
    assert_eq!(groups.expect("no error"), [expected; 2]);
}

#[test]
fn plans_and_layers_keep_it() -> Result<()> {
    for determinism in Determinism::ALL {
        let layer = sum(2, determinism).into_layer();
        assert_eq!(layer.determinism(), determinism);
        assert_eq!(DistCollectiveLayer::deserialize(&layer.serialize()?)?, layer);
        let engine = Engine::deserialize(&engine_of(layer)?.serialize()?)?;
        let inspection = engine.inspect();
        assert_eq!(inspection.to_json()["layers"][0]["collective"]["determinism"], determinism.name());
        let shown = if determinism == Determinism::Exact { "among 2 ranks, sum, exact" } else { "among 2 ranks, sum" };
        assert!(inspection.to_string().contains(&format!("{shown}: x -> ")), "{inspection}");
        assert!(inspection.to_dot().contains(&format!("{shown}\"")), "{}", inspection.to_dot());
    }
    let engine = engine_of(DistCollective::all_gather().nb_rank(2).determinism(Determinism::Exact))?;
    assert!(engine.inspect().to_json()["layers"][0]["collective"]["determinism"].is_null(), "it moves only");
    Ok(())
}

#[test]
fn names_and_numbers_are_read_back() {
    for determinism in Determinism::ALL {
        assert_eq!(determinism.name().to_uppercase().parse::<Determinism>().expect("a name"), determinism);
        assert_eq!(Determinism::from_number(determinism.number()).expect("a number"), determinism);
    }
    let error = |result: Result<Determinism>| result.expect_err("none").to_string();
    assert_eq!(error("fast".parse()), "\"fast\" is not a determinism; they are backend, exact");
    let text = "2 is not the number of a determinism; they are 0 (backend), 1 (exact)";
    assert_eq!(error(Determinism::from_number(2)), text);
}

/// On the host every mode is exact.
#[test]
fn both_modes_give_the_same_on_the_host() {
    let results = on_ranks(3, |communicator| {
        let x = [1e8f32, 1.0, f32::NAN].map(|x| x * (communicator.rank().0 as f32 - 1.0));
        Determinism::ALL.map(|determinism| {
            let mut y = [0f32; 3];
            let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
            let handle = communicator.with_determinism(determinism);
            handle.collective(sum, Some(&x), Some(&mut y)).expect("no error");
            y.map(f32::to_bits)
        })
    });
    assert!(results.iter().all(|[backend, exact]| backend == exact), "{results:?}");
}
