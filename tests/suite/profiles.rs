//! Optimization profiles: what building and contexts say of them, and running with several.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use distcollective::network::{MAX_PROFILES, Plugin, PluginCall, Shuffle};
use distcollective::tensor::Shape;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Error, ErrorKind, Network, ReduceOperation, Result, Stream,
    inputs, outputs,
};
use serde_json::json;

use crate::ranks::on_ranks;

#[track_caller]
fn expect<T>(result: Result<T>, kind: ErrorKind, text: &str) {
    let error = result.err().expect("an error");
    assert_eq!((error.kind(), error.to_string().as_str()), (kind, text));
}

/// y = the sum of x over `n` ranks, in rows of 2. Profile 0 has 1 to 4 rows, profile 1 has 16 to
/// 64.
fn network(n: u32) -> Network {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1, 2]).expect("an input");
    network.set_optimization_profile(x, [1, 2], [2, 2], [4, 2]).expect("a profile");
    let second = network.add_optimization_profile().expect("a profile");
    network.set_profile_shapes(second, x, [16, 2], [32, 2], [64, 2]).expect("shapes");
    let y = network.add_cast(x, DataType::Int64).expect("a layer");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n), y).expect("a layer");
    let y = network.add_cast(y, DataType::Int32).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    network
}

fn engine(n: u32) -> Engine {
    let built = network(n).build().expect("an engine");
    let plan = built.serialize().expect("a plan");
    let read = Engine::deserialize(&plan).expect("an engine");
    assert_eq!((read.serialize().expect("a plan"), read.fingerprint()), (plan, built.fingerprint()));
    read
}

#[test]
fn describing_profiles() {
    use ErrorKind::{InvalidArgument, InvalidNetwork};
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1, 2]).expect("an input");
    let z = network.add_input("z", DataType::Int32, [-1]).expect("an input");
    let fixed = network.add_input("fixed", DataType::Int32, [3]).expect("an input");
    expect(
        network.set_profile_shapes(0, x, [1, 2], [1, 2], [1, 2]),
        InvalidArgument,
        "there is no optimization profile 0; the network has 0 optimization profiles",
    );
    expect(
        network.set_optimization_profile(x, [1, 3], [1, 2], [1, 2]),
        InvalidArgument,
        "input \"x\": [1, 3] in a profile does not fit the input's dimensions [-1, 2]",
    );
    assert_eq!(network.optimization_profile_count(), 0, "the profile was not added");
    network.set_optimization_profile(x, [1, 2], [2, 2], [4, 2]).expect("a profile");
    expect(
        network.set_optimization_profile(x, [1, 2], [2, 2], [8, 2]),
        InvalidArgument,
        "input \"x\": optimization profile 0 has shapes for it already; add_optimization_profile makes another profile",
    );
    network.set_optimization_profile(z, [1], [1], [1]).expect("the same profile");
    network.set_optimization_profile(fixed, [3], [3], [3]).expect("the only shape");
    assert_eq!(network.add_optimization_profile().expect("a profile"), 1);
    network.set_profile_shapes(1, z, [2], [2], [2]).expect("shapes");
    for (input, name) in [(x, "a"), (z, "b"), (fixed, "c")] {
        let output = network.add_cast(input, DataType::Int8).expect("a layer");
        network.mark_output(output, name).expect("an output");
    }
    expect(
        network.build(),
        InvalidNetwork,
        "input \"x\": [-1, 2] has a dimension of -1 and optimization profile 1 has no shapes for it",
    );
    network.set_profile_shapes(1, x, [5, 2], [5, 2], [5, 2]).expect("shapes");
    network.build().expect("all dynamic inputs have shapes in all profiles");
    while network.optimization_profile_count() < MAX_PROFILES {
        network.add_optimization_profile().expect("a profile");
    }
    expect(
        network.add_optimization_profile(),
        InvalidArgument,
        "the network has 64 optimization profiles, and cannot have more",
    );
}

/// Every point of every profile is checked, and each layer is reported once.
#[test]
fn building_checks_every_profile() {
    let build = |points: [[i64; 3]; 2]| {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [-1]).expect("an input");
        for (index, [min, opt, max]) in points.into_iter().enumerate() {
            assert_eq!(network.add_optimization_profile().expect("a profile"), index);
            network.set_profile_shapes(index, x, [min], [opt], [max]).expect("shapes");
        }
        let y = network.add(DistCollective::all_to_all().nb_rank(2).named("swap"), x).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        network.build()
    };
    build([[2, 4, 6], [8, 10, 12]]).expect("multiples of 2");
    let odd = |rows: i64| {
        format!(
            "layer \"swap\" (all_to_all): dimension 0 is {rows}, which is not a multiple of 2 ranks; input is int32 [{rows}]"
        )
    };
    let kind = ErrorKind::InvalidNetwork;
    expect(build([[2, 4, 6], [8, 9, 11]]), kind, &(odd(9) + " (at opt of profile 1)"));
    expect(build([[2, 4, 5], [7, 9, 11]]), kind, &(odd(5) + " (at max of profile 0)"));
    expect(build([[3, 3, 3], [3, 3, 3]]), kind, &odd(3));
}

#[test]
fn an_engine_shows_its_profiles() {
    let engine = engine(2);
    assert_eq!(engine.optimization_profile_count(), 2);
    let shapes = |profile| engine.profile_shapes("y", profile).expect("a profile").map(|shape| shape.as_slice()[0]);
    assert_eq!((shapes(0), shapes(1)), ([1, 2, 4], [16, 32, 64]));
    expect(
        engine.profile_shapes("x", 2),
        ErrorKind::InvalidArgument,
        "there is no optimization profile 2; the engine has 2 optimization profiles",
    );
    let inspection = engine.inspect();
    let json = inspection.to_json();
    assert_eq!(json["profiles"][1], json!({"x": {"min": [16, 2], "opt": [32, 2], "max": [64, 2]}}));
    assert_eq!(json["io"][1]["dims"], json!([-1, 2]));
    // 64 rows of two int64.
    assert_eq!(json["memory"]["communicator_bytes"], 1024);
    let text = inspection.to_string();
    assert!(text.contains("optimization profile 1\n  x: from [16, 2] to [64, 2], usually [32, 2]\n"), "{text}");
}

/// A tensor may be largest in a profile that is not the last, and at a point that is not max.
#[test]
fn memory_is_for_the_largest_shape_of_all_profiles() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [-1]).expect("an input");
    for max in [5000, 300] {
        let profile = network.add_optimization_profile().expect("a profile");
        network.set_profile_shapes(profile, x, [1], [1], [max]).expect("shapes");
    }
    let h = network.add_cast(x, DataType::Int32).expect("a layer");
    let y = network.add_cast(h, DataType::Int8).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = network.build().expect("an engine");
    assert_eq!(engine.inspect().to_json()["memory"]["private_bytes"], 20224);
    let mut context = engine.create_execution_context().expect("a context");
    for (profile, len) in [(0, 5000), (1, 300), (0, 7)] {
        context.set_optimization_profile(profile).expect("a profile");
        context.set_input_shape("x", [len]).expect("a shape");
        let (x, mut y) = (vec![-5i8; len as usize], vec![0i8; len as usize]);
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]).expect("a run");
        assert_eq!(x, y);
    }
}

#[test]
fn a_context_runs_with_one_profile_at_a_time() {
    let engine = engine(2);
    let ran = on_ranks(2, move |communicator| -> Result<()> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let run = |context: &mut distcollective::ExecutionContext, rows: usize| -> Result<()> {
            let (x, mut y) = (vec![3; rows * 2], vec![0; rows * 2]);
            context.set_input_shape("x", [rows as i64, 2])?;
            context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
            assert_eq!(y, vec![6; rows * 2]);
            Ok(())
        };
        assert_eq!((context.optimization_profile(), context.engine().optimization_profile_count()), (0, 2));
        run(&mut context, 3)?;
        expect(
            context.set_input_shape("x", [16, 2]),
            ErrorKind::InvalidShape,
            "input \"x\": [16, 2] is not in optimization profile 0, which is between [1, 2] and [4, 2]; it is \
             in optimization profile 1, which set_optimization_profile chooses",
        );
        context.set_optimization_profile(1)?;
        let error = context.tensor_shape("x").expect_err("its shape is forgotten");
        assert_eq!(error.kind(), ErrorKind::NotReady);
        expect(
            context.set_input_shape("x", [4, 2]),
            ErrorKind::InvalidShape,
            "input \"x\": [4, 2] is not in optimization profile 1, which is between [16, 2] and [64, 2]; it \
             is in optimization profile 0, which set_optimization_profile chooses",
        );
        run(&mut context, 64)?;
        context.set_optimization_profile(0)?;
        run(&mut context, 1)?;
        expect(
            context.set_optimization_profile(2),
            ErrorKind::InvalidArgument,
            "there is no optimization profile 2; the engine has 2 optimization profiles",
        );
        assert_eq!(context.optimization_profile(), 0);
        run(&mut context, 1)
    });
    ran.into_iter().for_each(|result| result.expect("a run"));
}

/// Choosing is local. Ranks whose calls then have different lengths get both calls in the error.
#[test]
fn ranks_may_choose_different_profiles() {
    // Both profiles have shapes of 2 rows.
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1]).expect("an input");
    for max in [2, 8] {
        let profile = network.add_optimization_profile().expect("a profile");
        network.set_profile_shapes(profile, x, [1], [2], [max]).expect("shapes");
    }
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = network.build().expect("an engine");
    let errors = on_ranks(2, move |communicator: Communicator| {
        let rank = communicator.rank().index();
        let mut context = engine.create_execution_context().expect("a context");
        context.set_communicator(&communicator).expect("it fits");
        context.set_optimization_profile(rank).expect("a profile");
        context.set_input_shape("x", [2]).expect("a shape of both");
        let mut y = [0; 2];
        context.execute(inputs!["x" => &[1, 2]], outputs!["y" => &mut y]).expect("equal calls");
        assert_eq!(y, [2, 4]);
        let len = 2 - rank as i64;
        context.set_input_shape("x", [len]).expect("a shape");
        let (x, mut y) = (vec![1; len as usize], vec![0; len as usize]);
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y]).expect_err("other lengths")
    });
    for error in errors {
        assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    }
}

/// Ranks whose plans have other profiles do not agree.
#[test]
fn plans_with_other_profiles_differ() {
    let texts = on_ranks(2, |communicator: Communicator| {
        let mut network = network(2);
        let x = network.inputs()[0];
        let third = network.add_optimization_profile().expect("a profile");
        let max = 100 + i64::from(communicator.rank().0);
        network.set_profile_shapes(third, x, [2, 2], [2, 2], [max, 2]).expect("shapes");
        let mut context = network.build().expect("an engine").create_execution_context().expect("a context");
        context.set_communicator(&communicator).expect_err("other profiles").to_string()
    });
    for text in texts {
        assert!(text.contains("int64 [-1, 2] (from [1, 2] to [100, 2]) among 2 ranks"), "{text}");
    }
}

/// Waits for a message before it ends.
#[derive(Debug)]
struct Held(std::sync::Mutex<std::sync::mpsc::Receiver<()>>);

impl Plugin for Held {
    fn type_name(&self) -> &str {
        "held"
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        let held = self.0.lock().expect("one run").recv_timeout(crate::ranks::DEADLINE);
        held.map_err(|error| Error::new(ErrorKind::Plugin, error.to_string()))
    }
}

#[test]
fn a_profile_is_not_chosen_while_work_runs() {
    let (sender, receiver) = channel();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [-1]).expect("an input");
    network.set_optimization_profile(x, [1], [1], [1]).expect("a profile");
    let y = network.add_plugin("held", Held(receiver.into()), &[x]).expect("a layer");
    let y = network.add_shuffle(y, Shuffle::default()).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let mut context = network.build().expect("an engine").create_execution_context().expect("a context");
    context.set_input_shape("x", [1]).expect("a shape");
    let stream = Stream::worker().expect("a stream");
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::zeroed(DataType::Int8, [1]).expect("a buffer")).expect("an input");
    bindings.bind_output("y", Buffer::zeroed(DataType::Int8, [1]).expect("a buffer")).expect("an output");
    let work = context.enqueue(bindings, &stream).expect("work");
    let refused = "enqueued work of the context is not done; wait for it before you choose another profile";
    expect(context.set_optimization_profile(0), ErrorKind::NotReady, refused);
    assert_eq!(context.tensor_shape("y").expect("the shapes are as they were").as_slice(), [1]);
    sender.send(()).expect("the plugin listens");
    // It need not be waited for.
    stream.synchronize().expect("the work");
    context.set_optimization_profile(0).expect("nothing runs");
    let bindings = work.wait().expect("a run");
    // Nothing runs after a run that fails, nor on the inline stream.
    context.set_input_shape("x", [1]).expect("a shape");
    sender.send(()).expect("the plugin listens");
    let work = context.enqueue(bindings, &Stream::inline()).expect("work");
    context.set_optimization_profile(0).expect("nothing runs");
    let bindings = work.wait().expect("a run");
    // Work that was dropped counts until it has ended.
    context.set_input_shape("x", [1]).expect("a shape");
    drop(context.enqueue(bindings, &stream).expect("work"));
    expect(context.set_optimization_profile(0), ErrorKind::NotReady, refused);
    sender.send(()).expect("the plugin listens");
    stream.synchronize().expect("the work");
    context.set_optimization_profile(0).expect("nothing runs");
}

/// Counts how often it is asked for shapes.
#[derive(Debug)]
struct Counted(Arc<AtomicUsize>);

impl Plugin for Counted {
    fn type_name(&self) -> &str {
        "counted"
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(inputs.to_vec())
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        Ok(())
    }
}

/// A program that asks for the shapes of each of many outputs takes no quadratic time.
#[test]
fn the_shapes_of_a_profile_are_inferred_once() {
    let count = Arc::new(AtomicUsize::new(0));
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [-1]).expect("an input");
    network.set_optimization_profile(x, [1], [2], [3]).expect("a profile");
    let y = network.add_plugin("counted", Counted(Arc::clone(&count)), &[x]).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = network.build().expect("an engine");
    let built = count.load(Ordering::Relaxed);
    for name in ["x", "y", "x", "y"] {
        let shapes = engine.profile_shapes(name, 0).expect("a profile");
        assert_eq!(shapes.map(|shape| shape.as_slice()[0]), [1, 2, 3]);
    }
    assert_eq!(count.load(Ordering::Relaxed), built + 3);
}
