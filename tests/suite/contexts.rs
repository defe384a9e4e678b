//! Engines and contexts: listing, plans, binding, several contexts, leaks.

use std::sync::{Arc, Barrier};

use distcollective::context::Bindings;
use distcollective::engine::IoMode;
use distcollective::network::Shuffle;
use distcollective::tensor::Dims;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Error, ErrorKind, ExecutionContext, Network, Rank,
    ReduceOperation, Result, Stream, inputs, outputs,
};

use crate::plugins::AddOne;
use crate::ranks::on_ranks;

/// x -> all_reduce "sync" -> y, among `n` ranks.
pub fn sum_engine(n: u32, elements: i64) -> Engine {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [elements]).expect("an input");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(n).named("sync"), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    network.build().expect("an engine")
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

/// A layer between shuffles has the elements in the order of the tensor's dimensions. So has the
/// layer of a peer that has no shuffles.
#[test]
fn a_layer_between_shuffles_meets_one_without() {
    let results = on_ranks(2, |communicator| {
        let mut network = Network::new();
        let is_turned = communicator.rank() == Rank(0);
        let turn = |network: &mut Network, tensor| match is_turned {
            true => network.add_shuffle(tensor, Shuffle::transpose([1, 0])),
            false => Ok(tensor),
        };
        let x = network.add_input("x", DataType::Int32, if is_turned { [2, 3] } else { [3, 2] })?;
        let turned = turn(&mut network, x)?;
        let sum = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), turned)?;
        let y = turn(&mut network, sum)?;
        network.mark_output(y, "y")?;
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        let (x, mut y) = (if is_turned { [1, 2, 3, 4, 5, 6] } else { [10, 40, 20, 50, 30, 60] }, [0; 6]);
        context.execute(inputs!["x" => &x], outputs!["y" => &mut y])?;
        Ok::<_, Error>(y)
    });
    let results: Vec<_> = results.into_iter().map(|result| result.expect("a sum")).collect();
    assert_eq!(results, [[11, 22, 33, 44, 55, 66], [11, 44, 22, 55, 33, 66]]);
}

/// A network that adds one to four numbers of two ranks.
fn sum_of_one_to_four() -> Engine {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [-1]).expect("an input");
    network.set_optimization_profile(x, [1], [2], [4]).expect("a profile");
    let y = network.add(DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2), x).expect("a layer");
    network.mark_output(y, "y").expect("an output");
    network.build().expect("an engine")
}

/// Memory for the longest shape stays bound while shapes change. The run does not touch the bytes
/// behind the tensor.
#[test]
fn longer_memory_stays_bound() {
    let engine = sum_of_one_to_four();
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

/// Bindings that ran are checked again after each change: of a binding, of a buffer in its place,
/// of a shape, and of the communicator.
#[test]
fn what_changed_after_a_run_is_checked_again() {
    let engine = sum_of_one_to_four();
    let have_run = Arc::new(Barrier::new(2));
    let ran = on_ranks(2, move |communicator| -> Result<()> {
        let buffer = |len| Buffer::zeroed(DataType::Int32, [len]);
        let mut context = engine.create_execution_context()?;
        context.set_communicator(&communicator)?;
        context.set_input_shape("x", [2])?;
        let run = |context: &mut ExecutionContext, mut bindings: Bindings| -> Result<Bindings> {
            for _ in 0..2 {
                bindings = context.enqueue(bindings, &Stream::inline())?.wait()?;
            }
            Ok(bindings)
        };
        let refused = |context: &mut ExecutionContext, bindings: Bindings, kind: ErrorKind| {
            let refused = context.enqueue(bindings, &Stream::inline()).expect_err("a refusal");
            assert_eq!(refused.error.kind(), kind, "{}", refused.error);
            // What was refused is not checked by halves the next time.
            let refused = context.enqueue(*refused.operands, &Stream::inline()).expect_err("a refusal");
            assert_eq!(refused.error.kind(), kind, "{}", refused.error);
            *refused.operands
        };
        let mut bindings = context.create_bindings();
        bindings.bind_input("x", buffer(2)?)?;
        bindings.bind_output("y", buffer(2)?)?;
        bindings = run(&mut context, bindings)?;

        bindings.bind_output("y", buffer(3)?)?;
        bindings = refused(&mut context, bindings, ErrorKind::InvalidBuffer);
        bindings.bind_output("y", buffer(2)?)?;
        bindings = run(&mut context, bindings)?;

        drop(bindings.take("y")?);
        bindings = refused(&mut context, bindings, ErrorKind::NotReady);
        bindings.bind_output("y", buffer(2)?)?;
        bindings = run(&mut context, bindings)?;

        *bindings.get_mut("x")? = buffer(4)?;
        bindings = refused(&mut context, bindings, ErrorKind::InvalidBuffer);
        *bindings.get_mut("x")? = Buffer::from_slice(&[1, 2], [2])?;
        bindings = run(&mut context, bindings)?;
        assert_eq!(bindings.get("y")?.as_slice::<i32>()?, [2, 4]);

        context.set_input_shape("x", [3])?;
        bindings = refused(&mut context, bindings, ErrorKind::InvalidBuffer);
        context.set_input_shape("x", [2])?;
        bindings = run(&mut context, bindings)?;

        // Another communicator, which ends when no rank is inside it.
        let other = communicator.split(Some(0), 0)?.expect("a group");
        context.set_communicator(&other)?;
        bindings = run(&mut context, bindings)?;
        have_run.wait();
        other.abort("the end")?;
        refused(&mut context, bindings, ErrorKind::Aborted);
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
    let engine = network.build().expect("an engine");
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
    let engine = network.build().expect("an engine");
    let inspection = engine.inspect();
    let json = inspection.to_json();
    // Ten sums in place, a plugin's input and output at a time: two tensors of 4096 bytes, in the
    // communicator's memory.
    assert_eq!(
        json["memory"],
        serde_json::json!({
            "communicator_bytes": 8192, "private_bytes": 0, "step_scratch_bytes": 0, "constant_bytes": 0
        })
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
    newer[8] = 2;
    assert_eq!(
        message(&newer),
        "the plan has format 2, written by distcollective \"0.1.0\"; this is 0.1.0, which reads format 1"
    );
    let mut altered = plan.clone();
    *altered.last_mut().expect("bytes") ^= 1;
    assert_eq!(message(&altered), format!("the plan is damaged: its checksum does not fit its {} bytes", plan.len()));
}

#[test]
fn what_a_rank_does_not_use_may_be_absent() {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [2]).expect("an input");
    let b = network.add(DistCollective::broadcast(Rank(1)).nb_rank(2).named("b"), x).expect("a layer");
    let g = network.add(DistCollective::gather(Rank(0)).nb_rank(2).named("g"), b).expect("a layer");
    network.mark_output(g, "g").expect("an output");
    let engine = network.build().expect("an engine");
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
        b.bind_input("x", Arc::clone(&shared))?;
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
        drop(shared);
        assert!(b.get_mut("x").is_ok(), "it is shared no longer");
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
    let engine = network.build().expect("an engine");
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
    let alone = &Communicator::builder().in_process(1).expect("one rank")[0];
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
        let bindings = |context: &ExecutionContext| -> Result<_> {
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
    let engine = network.build().expect("an engine");
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
        network.build().expect_err("too large").to_string(),
        "the tensors inside the network need more memory than an address space has"
    );
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int8, [1 << 56]).expect("an input");
    let h = network.add_cast(x, DataType::Int32).expect("a layer");
    let h = network.add_cast(h, DataType::Int8).expect("a layer");
    network.mark_output(h, "y").expect("an output");
    let engine = network.build().expect("it fits an address space");
    let error = engine.create_execution_context().expect_err("but no memory");
    assert_eq!(error.to_string(), "no memory for uint8 [288230376151711744], 288230376151711744 bytes");
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

/// A program can use `?` to turn these errors into its own.
#[test]
fn errors_with_operands_are_errors_for_threads() {
    fn is_error<T: std::error::Error + Send + Sync + 'static>() {}
    is_error::<distcollective::stream::EnqueueError<Bindings>>();
    is_error::<distcollective::stream::EnqueueError<distcollective::comm::Operands>>();
    is_error::<distcollective::stream::EnqueueError<distcollective::comm::RawCollective>>();
}
