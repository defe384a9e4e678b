//! Engines and contexts: listing, plans, binding, plugins, several contexts, leaks.

use std::sync::Arc;

use distcollective::engine::IoMode;
use distcollective::network::{LayerBody, Plugin, PluginCall, PluginRegistry, Shuffle};
use distcollective::tensor::{Dims, Shape};
use distcollective::{
    Buffer, Builder, Communicator, DataType, DistCollective, Engine, Error, ErrorKind, Network, Rank, ReduceOperation,
    Result, Root, Stream, inputs, outputs,
};

use crate::ranks::on_ranks;

/// x -> all_reduce "sync" -> y, among `n` ranks.
fn sum_engine(n: u32, elements: i64) -> Engine {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [elements]).expect("an input");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n).named("sync"), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    Builder::new().build(&network).expect("an engine")
}

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
        Builder::new().build(&network).expect("an engine").serialize().expect("a plan")
    };
    let thread = std::thread::Builder::new().stack_size(128 << 10).spawn(body);
    assert!(thread.expect("a thread").join().is_ok());
}

/// Bindings do not hold the communicator of a finished run: a rank that drops its communicator has
/// left.
#[test]
fn finished_runs_keep_no_communicator() {
    let errors = on_ranks(2, |communicator| {
        let mut context = sum_engine(2, 1).create_execution_context()?;
        context.set_communicator(&communicator)?;
        let mut kept = Vec::new();
        for stream in [Stream::inline(), Stream::worker()?] {
            let mut bindings = context.create_bindings();
            bindings.bind_input("x", Buffer::from_slice(&[1i32], [1])?)?;
            bindings.bind_output("y", Buffer::zeroed(DataType::Int32, [1])?)?;
            kept.push(context.enqueue(bindings, &stream)?.wait()?);
        }
        drop(context);
        if communicator.rank() == Rank(0) {
            // The bindings exist until the other rank has its error.
            return Ok((None, kept));
        }
        let error = communicator.barrier().expect_err("the other rank has left");
        Ok::<_, Error>((Some(error.kind()), kept))
    });
    let kinds: Vec<_> = errors.into_iter().map(|error| error.expect("a rank").0).collect();
    assert_eq!(kinds, [None, Some(ErrorKind::PeerLost)]);
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
    let inspection = Builder::new().build(&network).expect("an engine").inspect().to_json();
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

/// Memory for the longest shape stays bound while shapes change. The run does not touch the bytes
/// behind the tensor.
#[test]
fn longer_memory_stays_bound() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1]).expect("an input");
    network.set_optimization_profile(x, [1], [2], [4]).expect("a profile");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let ran = on_ranks(2, move |communicator| -> Result<()> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (mut given, mut taken) = ([1i32, 2, 3, 4], [0i32; 4]);
        let mut bindings = context.create_bindings();
        // SAFETY: both outlive the runs, and no other code uses them meanwhile.
        unsafe {
            bindings.bind_address("x", given.as_mut_ptr().cast(), 16)?;
            bindings.bind_address("y", taken.as_mut_ptr().cast(), 16)?;
        }
        context.set_input_shape("x", [3])?;
        bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
        assert_eq!(taken, [2, 4, 6, 0]);
        context.set_input_shape("x", [4])?;
        bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
        assert_eq!(taken, [2, 4, 6, 8]);
        // SAFETY: as above.
        unsafe { bindings.bind_address("y", taken.as_mut_ptr().cast(), 12)? };
        let error = context.enqueue(bindings, &Stream::inline()).expect_err("too short").error;
        assert_eq!(error.kind(), ErrorKind::InvalidBuffer);
        Ok(())
    });
    ran.into_iter().for_each(|result| result.expect("a run"));
}

#[test]
fn engine_and_context_list_their_tensors() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float16, [-1, 6]).expect("an input");
    network.set_optimization_profile(x, [2, 6], [4, 6], [8, 6]).expect("a profile");
    let y = network.add(DistCollective::all_gather().nb_rank(1), x).expect("a layer");
    let y = network.add_shuffle(y, Shuffle::reshape([-1, 4])).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let listed: Vec<_> = engine.io_tensors().iter().map(|t| (t.name.as_str(), t.mode, t.data_type, t.dims)).collect();
    let dims = |d: &[i64]| Dims::new(d).expect("dims");
    assert_eq!(
        listed,
        [
            ("x", IoMode::Input, DataType::Float16, dims(&[-1, 6])),
            ("y", IoMode::Output, DataType::Float16, dims(&[-1, 4]))
        ]
    );
    let mut context = engine.create_execution_context().expect("a context");
    context.set_input_shape("x", [6, 6]).expect("a shape");
    assert_eq!(context.tensor_shape("y").expect("a shape").as_slice(), [9, 4]);
    assert_eq!(engine.profile_shapes("y", 0).expect("a profile")[2].as_slice(), [12, 4]);
}

#[test]
fn inspect_shows_memory_that_is_reused_and_what_may_be_unwritten() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1024]).expect("an input");
    let mut h = x;
    for i in 0..10 {
        h = network.add_plugin(&format!("add.{i}"), AddOne, &[h]).expect("a layer");
        h = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), h).expect("a layer");
    }
    let r =
        network.add(DistCollective::reduce(ReduceOperation::Sum, Rank(0)).nb_rank(2).named("r"), h).expect("a layer");
    let z = network.add_shuffle(r, Shuffle::reshape([2, 512])).expect("a layer");
    network.mark_output(r, "r").expect("an output");
    network.mark_output(z, "z").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let inspection = engine.inspect();
    let json = inspection.to_json();
    // Ten sums in place, a plugin's input and output at a time: two tensors of 4096 bytes, in the
    // communicator's memory.
    assert_eq!(
        json["memory"],
        serde_json::json!({"communicator_bytes": 8192, "private_bytes": 0, "constant_bytes": 0})
    );
    let warning = "layer \"shuffle_21\" (shuffle) reads the output of layer \"r\" (reduce) on rank 1, which does not write it: \
                   it reads zeros there";
    assert_eq!(engine.warnings(), [warning]);
    let text = inspection.to_string();
    for line in [
        "r                      float32 [1024], 4096 bytes, communicator memory at",
        "copied to the output, not written on every rank",
        "20  r (reduce) among 2 ranks, sum, root 0: all_reduce_19.output0 -> r",
        warning,
    ] {
        assert!(text.contains(line), "{line:?} is not in\n{text}");
    }
}

#[test]
fn every_byte_of_a_plan_counts() {
    let engine = sum_engine(2, 3);
    let plan = engine.serialize().expect("a plan");
    assert_eq!(Engine::deserialize(&plan).expect("an engine").serialize().expect("a plan"), plan);
    assert_eq!(Engine::deserialize(&plan).expect("an engine").fingerprint(), engine.fingerprint());
    for at in 0..plan.len() {
        for bit in 0..8 {
            let mut altered = plan.clone();
            altered[at] ^= 1 << bit;
            let error = Engine::deserialize(&altered).expect_err("one bit is another");
            assert_eq!(error.kind(), ErrorKind::InvalidPlan, "{error}");
        }
        let error = Engine::deserialize(&plan[..at]).expect_err("it is cut");
        assert_eq!(error.kind(), ErrorKind::InvalidPlan, "{error}");
    }
    let message = |plan: &[u8]| Engine::deserialize(plan).expect_err("no plan").to_string();
    let mut longer = plan.clone();
    longer.push(0);
    let body = plan.len() - 58;
    assert_eq!(
        message(&longer),
        format!("the plan is damaged: its header promises {body} bytes after it, and {} follow", body + 1)
    );
    for (bytes, beginning) in
        [(&b"ONNX model"[..], "[4f, 4e, 4e, 58, 20, 6d, 6f, 64]"), (b"hello", "[68, 65, 6c, 6c, 6f]")]
    {
        assert_eq!(message(bytes), format!("these bytes are no distcollective plan: they begin with {beginning}"));
    }
    assert_eq!(message(b""), "the plan is empty: there are no bytes");
    assert_eq!(message(&plan[..5]), "the plan ends after 5 bytes, within its magic");
    assert_eq!(message(&plan[..10]), "the plan ends after 10 bytes, within its format version");
    let mut newer = plan.clone();
    newer[8] = 4;
    assert_eq!(
        message(&newer),
        "the plan has format 4, written by distcollective \"0.1.0\"; this is 0.1.0, which reads format 3"
    );
    let mut altered = plan.clone();
    *altered.last_mut().expect("bytes") ^= 1;
    assert_eq!(message(&altered), format!("the plan is damaged: its checksum does not fit its {} bytes", plan.len()));
}

/// Adds one to each float. It does not say how it is serialized.
#[derive(Debug)]
struct AddOne;

impl Plugin for AddOne {
    fn type_name(&self) -> &str {
        "add_one"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(inputs.to_vec())
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let input = call.input(0)?.as_slice::<f32>()?;
        for (y, x) in call.output(0)?.as_mut_slice::<f32>()?.iter_mut().zip(input) {
            *y = x + 1.0;
        }
        Ok(())
    }
}

/// Splits the rows of a matrix into two outputs. A negative number is an error, and NaN a panic.
#[derive(Debug)]
struct Split {
    at: u8,
}

impl Plugin for Split {
    fn type_name(&self) -> &str {
        "split"
    }

    fn version(&self) -> &str {
        "2"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![inputs[0], inputs[0]])
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        let [rows, columns] = *inputs[0].as_slice() else {
            return Err(Error::new(ErrorKind::InvalidShape, "it wants a matrix"));
        };
        let at = usize::from(self.at);
        Ok(vec![Shape::new(&[at, columns])?, Shape::new(&[rows - at, columns])?])
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let input = call.input(0)?.as_array::<f32>()?;
        if input[[0, 0]] < 0.0 {
            return Err(Error::new(ErrorKind::Plugin, "a negative number"));
        }
        assert!(!input[[0, 0]].is_nan(), "not a number");
        let at = usize::from(self.at);
        call.output(0)?.as_array_mut::<f32>()?.assign(&input.slice(ndarray::s![..at, ..]).into_dyn());
        call.output(1)?.as_array_mut::<f32>()?.assign(&input.slice(ndarray::s![at.., ..]).into_dyn());
        Ok(())
    }

    fn serialize(&self) -> Result<Vec<u8>> {
        Ok(vec![self.at])
    }
}

fn split_network() -> Network {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [3, 2]).expect("an input");
    let top = network.add_plugin("cut", Split { at: 1 }, &[x]).expect("a layer");
    let cut = network.producer(top).expect("a tensor").expect("a layer");
    let bottom = network.layer_outputs(cut).expect("a layer")[1];
    let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), bottom).expect("a layer");
    network.mark_output(top, "top").expect("an output");
    network.mark_output(sum, "sum").expect("an output");
    network
}

#[test]
fn plugins_are_made_again_from_a_plan() {
    let engine = Builder::new().build(&split_network()).expect("an engine");
    let plan = engine.serialize().expect("a plan");
    let mut registry = PluginRegistry::new();
    registry.register("split", "1", |_| Ok(Split { at: 0 })).expect("a plugin");
    assert_eq!(
        Engine::deserialize_with(&plan, &registry).expect_err("version 2 is wanted").to_string(),
        "layer \"cut\" (split): plugin \"split\" version \"2\" is not registered; registered: \"split\" \"1\""
    );
    registry.register("split", "2", |bytes| Ok(Split { at: bytes[0] })).expect("a plugin");
    assert!(registry.register("split", "2", |_| Ok(AddOne)).is_err(), "twice");
    let engine = Engine::deserialize_with(&plan, &registry).expect("an engine");
    let outputs = on_ranks(2, move |communicator| -> Result<_> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let x = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0];
        let (mut top, mut sum) = ([0f32; 2], ndarray::Array2::<f32>::zeros((2, 2)));
        context.execute(inputs!["x" => &x], outputs!["top" => &mut top, "sum" => &mut sum])?;
        Ok((top, sum))
    });
    for output in outputs {
        assert_eq!(output.expect("no error"), ([1.0, 2.0], ndarray::arr2(&[[6.0, 8.0], [10.0, 12.0]])));
    }
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [1]).expect("an input");
    let y = network.add_plugin("add", AddOne, &[x]).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    assert_eq!(
        Builder::new().build(&network).expect("an engine").serialize().expect_err("no bytes").to_string(),
        "layer \"add\" (add_one): plugin \"add_one\" does not say how it is serialized"
    );
}

#[test]
fn a_plugin_that_fails_on_one_rank_tells_the_others_at_once() {
    for (bad, why) in [(-1.0, "a negative number"), (f32::NAN, "the plugin panicked: not a number")] {
        let engine = Builder::new().build(&split_network()).expect("an engine");
        let errors = on_ranks(2, move |communicator| {
            let mut context = engine.create_execution_context().expect("a context");
            context.set_communicator(&communicator).expect("it fits");
            let x = if communicator.rank() == Rank(1) { [bad; 6] } else { [1.0; 6] };
            let (mut top, mut sum) = ([0f32; 2], [0f32; 4]);
            let error = context.execute(inputs!["x" => &x], outputs!["top" => &mut top, "sum" => &mut sum]);
            error.expect_err("rank 1 fails").to_string()
        });
        assert_eq!(errors[1], format!("rank 1: layer \"cut\" (split): {why}"));
        let told = format!("rank 1 ended the communicator: layer \"cut\" (split): {why}");
        // Rank 0 may return the error before its own layer, or from it.
        assert!(errors[0].starts_with("rank 0: ") && errors[0].ends_with(&told), "{}", errors[0]);
    }
}

#[test]
fn what_a_rank_does_not_use_may_be_absent() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2]).expect("an input");
    let b = network.add(DistCollective::broadcast(Rank(1)).nb_rank(2).named("b"), x).expect("a layer");
    let g = network.add(DistCollective::gather(Rank(0)).nb_rank(2).named("g"), b).expect("a layer");
    network.mark_output(g, "g").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let texts = on_ranks(2, move |communicator| -> Result<_> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        if communicator.rank() == Rank(1) {
            let missing = context.execute(inputs![], outputs![]).expect_err("the root gives the input").to_string();
            context.execute(inputs!["x" => &[7, 8]], outputs![])?;
            Ok((missing, [0; 4]))
        } else {
            let missing = context.execute(inputs![], outputs![]).expect_err("the root gets the output").to_string();
            let mut g = [0; 4];
            context.execute(inputs![], outputs!["g" => &mut g])?;
            Ok((missing, g))
        }
    });
    let [zero, one] = texts.map_to_array();
    assert_eq!(zero, ("rank 0: output \"g\": nothing is bound to it; it is int32 [4]".to_owned(), [7, 8, 7, 8]));
    assert_eq!(one.0, "rank 1: input \"x\": nothing is bound to it; it is int32 [2]");
}

trait MapToArray<T> {
    fn map_to_array(self) -> [T; 2];
}

impl<T: std::fmt::Debug> MapToArray<T> for Vec<Result<T>> {
    fn map_to_array(self) -> [T; 2] {
        let all: Vec<T> = self.into_iter().map(|r| r.expect("no error")).collect();
        all.try_into().expect("two ranks")
    }
}

#[test]
fn several_contexts_streams_and_rebinding() {
    let engine = sum_engine(2, 2);
    let sums = on_ranks(2, move |communicator| -> Result<_> {
        let r = communicator.rank().0 as i32;
        let mut first = engine.create_execution_context()?;
        let mut second = engine.create_execution_context()?;
        first.set_communicator(&communicator)?;
        // The runs of two communicators do not wait for each other.
        let apart = communicator.split(Some(0), communicator.rank().0 as i32)?.expect("a color");
        second.set_communicator(&apart)?;
        let streams = [Stream::worker()?, Stream::inline()];
        let shared = Arc::new(Buffer::from_slice(&[r, 10], [2])?);
        let mut sums = Vec::new();
        let mut a = first.create_bindings();
        let mut b = second.create_bindings();
        a.bind_output("y", Buffer::zeroed(DataType::Int32, [2])?)?;
        b.bind_output("y", Buffer::zeroed(DataType::Int32, [2])?)?;
        a.bind_input("x", Arc::clone(&shared))?;
        b.bind_input("x", shared)?;
        for i in 0..3 {
            let work_a = first.enqueue(a, &streams[0])?;
            let work_b = second.enqueue(b, &streams[1])?;
            assert!(work_b.is_done(), "an inline stream is done when enqueue returns");
            b = work_b.wait()?;
            a = work_a.wait()?;
            sums.push(a.get("y")?.as_slice::<i32>()?[0] + b.get("y")?.as_slice::<i32>()?[0]);
            a.bind_input("x", Buffer::from_slice(&[r + i, 10], [2])?)?;
        }
        assert!(a.get_mut("x").is_ok() && b.get_mut("x").is_err(), "a shared buffer is not written");
        assert!(first.enqueue(sum_engine(2, 2).create_execution_context()?.create_bindings(), &streams[1]).is_err());
        Ok(sums)
    });
    let [zero, one] = sums.map_to_array();
    assert_eq!((zero, one), (vec![2, 2, 4], vec![2, 2, 4]));
}

#[test]
fn an_identity_needs_no_communicator_and_keeps_every_byte() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Bool, [4]).expect("an input");
    let mut h = x;
    for collective in [
        DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(1),
        DistCollective::all_to_all().nb_rank(1),
        DistCollective::all_gather(),
    ] {
        h = network.add(collective, h).expect("a layer");
    }
    network.mark_output(h, "y").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let run = move |communicator: Option<&Communicator>| -> Result<[distcollective::tensor::Bool; 4]> {
        let mut context = engine.create_execution_context()?;
        if let Some(communicator) = communicator {
            context.set_communicator(communicator)?;
        }
        let mut y = [distcollective::tensor::Bool(0); 4];
        context.execute(inputs!["x" => &[0, 1, 2, 255].map(distcollective::tensor::Bool)], outputs!["y" => &mut y])?;
        Ok(y)
    };
    let bytes = |y: [distcollective::tensor::Bool; 4]| y.map(|b| b.0);
    assert_eq!(bytes(run(None).expect("no communicator is needed")), [0, 1, 2, 255]);
    let alone = &Communicator::in_process(1).expect("one rank")[0];
    assert_eq!(bytes(run(Some(alone)).expect("one rank")), [0, 1, 2, 255]);
    // On several ranks the layers with nb_rank 1 are still the identity, and the layer without it
    // is an error.
    let errors = on_ranks(2, move |communicator| run(Some(&communicator)).expect_err("nb_rank is not set").kind());
    assert_eq!(errors, [ErrorKind::InvalidCommunicator; 2]);
}

#[test]
fn leaking_contexts_and_work_is_sound() {
    let engine = sum_engine(2, 1 << 16);
    let last = on_ranks(2, move |communicator| -> Result<i32> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let stream = Stream::worker()?;
        let bindings = |context: &distcollective::ExecutionContext| -> Result<_> {
            let mut bindings = context.create_bindings();
            bindings.bind_input("x", Buffer::from_slice(&vec![1; 1 << 16], [1 << 16])?)?;
            bindings.bind_output("y", Buffer::zeroed(DataType::Int32, [1 << 16])?)?;
            Ok(bindings)
        };
        std::mem::forget(context.enqueue(bindings(&context)?, &stream)?);
        drop(context.enqueue(bindings(&context)?, &stream)?);
        let work = context.enqueue(bindings(&context)?, &stream)?;
        std::mem::forget(context);
        Ok(work.wait()?.get("y")?.as_slice::<i32>()?[0])
    });
    assert_eq!(last.map_to_array(), [2, 2]);
}

#[test]
fn a_network_without_elements_agrees_all_the_same() {
    let engine = sum_engine(2, 0);
    let results = on_ranks(2, move |communicator| -> Result<()> {
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let mut y = [0i32; 0];
        context.execute(inputs!["x" => &[0i32; 0]], outputs!["y" => &mut y])
    });
    results.map_to_array();
}

#[test]
fn buffers_of_no_elements_may_be_absent() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Float32, [0, 3]).expect("an input");
    let y = network.add_cast(x, DataType::Int8).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    engine.create_execution_context().expect("a context").execute(inputs![], outputs![]).expect("nothing to bind");
}

#[test]
fn a_call_that_panicked_leaves_nothing_bound() {
    let engine = sum_engine(1, 2);
    let mut context = engine.create_execution_context().expect("a context");
    let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let x = [1, 2];
        let inputs = std::iter::once(("x", Ok((&x).into()))).chain(std::iter::once_with(|| panic!("in the iterator")));
        let _ = context.execute(inputs, outputs![]);
    }));
    assert!(panics.is_err());
    let error = context.execute(inputs![], outputs!["y" => &mut [0; 2]]).expect_err("x is gone");
    assert_eq!(error.to_string(), "input \"x\": nothing is bound to it; it is int32 [2]");
}

/// Its output is larger for a shape inside the profile than at min, opt and max.
#[derive(Debug)]
struct Hill;

impl Plugin for Hill {
    fn type_name(&self) -> &str {
        "hill"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        let rows = inputs[0].as_slice()[0];
        Ok(vec![Shape::new(&[if rows == 3 { 1_000_000 } else { 4 }, 2])?])
    }

    fn enqueue(&self, _call: &mut PluginCall<'_>) -> Result<()> {
        Ok(())
    }
}

#[test]
fn a_shape_for_which_no_room_was_planned_is_refused() {
    for marked in [false, true] {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Float32, [-1, 2]).expect("an input");
        network.set_optimization_profile(x, [2, 2], [4, 2], [8, 2]).expect("a profile");
        let h = network.add_plugin("hill", Hill, &[x]).expect("a layer");
        if marked {
            network.mark_output(h, "h").expect("an output");
        }
        let y = network.add_shuffle(h, Shuffle::transpose([1, 0]).then_transpose([1, 0])).expect("a layer");
        network.mark_output(y, "y").expect("an output");
        let engine = Builder::new().build(&network).expect("an engine");
        let mut context = engine.create_execution_context().expect("a context");
        context.set_input_shape("x", [2, 2]).expect("a shape");
        let error = context.set_input_shape("x", [3, 2]).expect_err("a million rows");
        let tensor = if marked { "y" } else { "hill.output0" };
        assert_eq!(
            error.to_string(),
            format!(
                "tensor {tensor:?}: float32 [1000000, 2] is larger than at any point of the profile (8000000 bytes, 32 planned)"
            )
        );
        assert_eq!(context.tensor_shape("x").expect("the shape before").as_slice(), [2, 2]);
    }
}

#[test]
fn a_network_larger_than_memory_is_an_error() {
    let mut network = Network::new();
    let mut h = network.add_input("x", DataType::Int64, [(1 << 60) - 1, 1]).expect("an input");
    for _ in 0..2 {
        h = network.add_shuffle(h, Shuffle::transpose([1, 0])).expect("a layer");
        h = network.add_cast(h, DataType::Float32).expect("a layer");
        h = network.add_cast(h, DataType::Int64).expect("a layer");
    }
    network.mark_output(h, "y").expect("an output");
    assert_eq!(
        Builder::new().build(&network).expect_err("too large").to_string(),
        "the tensors inside the network need more memory than an address space has"
    );
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [1 << 56]).expect("an input");
    let h = network.add_cast(x, DataType::Int32).expect("a layer");
    let h = network.add_cast(h, DataType::Int8).expect("a layer");
    network.mark_output(h, "y").expect("an output");
    let engine = Builder::new().build(&network).expect("it fits an address space");
    let error = engine.create_execution_context().expect_err("but no memory");
    assert_eq!(error.to_string(), "no memory for uint8 [288230376151711744], 288230376151711744 bytes");
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
    let error = Builder::new().build(&network).expect_err("a cast without input");
    assert_eq!(error.to_string(), "layer \"cast_0\" (cast): its kind does not have 0 inputs and 1 output");
}

#[test]
fn a_context_has_a_timeout_of_its_own() {
    let engine = sum_engine(2, 1);
    let kinds = on_ranks(2, move |communicator| {
        let mut context = engine.create_execution_context().expect("a context");
        context.set_communicator(&communicator).expect("it fits");
        if communicator.rank() == Rank(1) {
            while communicator.check().is_ok() {
                std::thread::yield_now();
            }
            return communicator.check().expect_err("it ended").kind();
        }
        context.set_timeout(std::time::Duration::from_millis(50));
        context.execute(inputs!["x" => &[1]], outputs!["y" => &mut [0]]).expect_err("rank 1 does not come").kind()
    });
    assert_eq!(kinds, [ErrorKind::DeadlineExceeded, ErrorKind::Aborted]);
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
            assert_eq!(layer.shuffle().first_transpose(), Some(&[0u8, 1][..]));
            let shuffle = Shuffle::transpose([1, 0]).then_reshape([6]).then_transpose([0]);
            layer.set_shuffle(shuffle).expect("a permutation");
            assert_eq!(layer.shuffle().reshape_dims(), Some(&[6i64][..]));
            assert_eq!(layer.shuffle().second_transpose(), Some(&[0u8][..]));
            assert!(layer.set_shuffle(Shuffle::transpose([1])).is_err());
        }
        other => panic!("{other:?}"),
    }
    match network.layer_of_mut(c).expect("a layer").body_mut() {
        LayerBody::Cast(layer) => layer.set_to(DataType::Float32),
        other => panic!("{other:?}"),
    }
    match network.layer_of_mut(k).expect("a layer").body_mut() {
        LayerBody::Constant(layer) => layer.set_value(Buffer::from_slice(&[7i64, 8], [2]).expect("a buffer")),
        other => panic!("{other:?}"),
    }
    // The cast gives float32 now, which has an average.
    assert_eq!(network.tensor_data_type(c).expect("a tensor"), DataType::Float32);
    let y =
        network.add(DistCollective::all_reduce(ReduceOperation::Avg).nb_rank(1), c).expect("float32 has an average");
    network.mark_output(y, "y").expect("an output");
    network.mark_output(k, "k").expect("an output");
    let engine = Builder::new().build(&network).expect("an engine");
    let mut context = engine.create_execution_context().expect("a context");
    let (mut y, mut k) = ([0f32; 6], [0i64; 2]);
    context.execute(inputs!["x" => &[1, 2, 3, 4, 5, 6]], outputs!["y" => &mut y, "k" => &mut k]).expect("a run");
    assert_eq!((y, k), ([1.0, 4.0, 2.0, 5.0, 3.0, 6.0], [7, 8]));
}

/// Writes two outputs together: quotient and remainder.
#[derive(Debug)]
struct DivideByThree;

impl Plugin for DivideByThree {
    fn type_name(&self) -> &str {
        "divide_by_three"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(vec![inputs[0]; 2])
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(vec![inputs[0]; 2])
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        assert!(call.input(1).is_err() && call.output(2).is_err());
        let x = call.input(0)?.as_slice::<i32>()?;
        let mut outputs: Vec<_> = call.outputs().collect();
        let [quotients, remainders] = &mut outputs[..] else {
            return Err(Error::new(ErrorKind::Plugin, "two outputs"));
        };
        for ((q, r), x) in quotients.as_mut_slice()?.iter_mut().zip(remainders.as_mut_slice()?).zip(x) {
            (*q, *r) = (x / 3, x % 3);
        }
        Ok(())
    }
}

#[test]
fn a_plugin_writes_its_outputs_together() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [3]).expect("an input");
    let q = network.add_plugin("divide", DivideByThree, &[x]).expect("a layer");
    let layer = network.producer(q).expect("a tensor").expect("a layer");
    let r = network.layer_outputs(layer).expect("a layer")[1];
    network.mark_output(q, "q").expect("an output");
    network.mark_output(r, "r").expect("an output");
    assert_eq!((network.inputs(), network.outputs()), (&[x][..], &[q, r][..]));
    let mut context = Builder::new().build(&network).expect("an engine").create_execution_context().expect("a context");
    let (mut q, mut r) = ([0; 3], [0; 3]);
    context.execute(inputs!["x" => &[7, 9, 11]], outputs!["q" => &mut q, "r" => &mut r]).expect("a run");
    assert_eq!((q, r), ([2, 3, 3], [1, 0, 2]));
}

/// A program can use `?` to turn these errors into its own.
#[test]
fn errors_with_operands_are_errors_for_threads() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<distcollective::stream::EnqueueError<distcollective::context::Bindings>>();
    is_error::<distcollective::stream::EnqueueError<distcollective::comm::Operands>>();
    is_error::<distcollective::stream::EnqueueError<distcollective::dist_collective::LayerTask>>();
}
