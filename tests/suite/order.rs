//! The issue order: a rank's calls on one communicator take effect in the order in which the rank
//! makes them, whatever streams they run on and whether they block.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use distcollective::{
    Bindings, BoundLayer, Buffer, Builder, Collective, Communicator, DataType, DistCollective, Engine, ErrorKind,
    ExecutionContext, Network, Operands, Plugin, PluginCall, Rank, ReduceOperation, Result, Shape, Stream, Work,
};

use crate::random::Random;
use crate::ranks::{DEADLINE, on_communicators, on_ranks};

const SUM: ReduceOperation = ReduceOperation::Sum;

/// How often a test with a race in it goes round.
const ROUNDS: usize = 50;

fn sum_async(communicator: &Communicator, value: i32, stream: &Stream) -> Work<Operands> {
    let operands = Operands::in_place(Buffer::from_slice(&[value], [1]).expect("a buffer"));
    let all_reduce = Collective::AllReduce { reduce_op: SUM };
    communicator.collective_async(all_reduce, operands, stream).unwrap_or_else(|error| panic!("{error}"))
}

fn sum_of(work: Work<Operands>) -> i32 {
    let operands = work.wait().unwrap_or_else(|error| panic!("{error}"));
    operands.output.expect("in place").as_slice::<i32>().expect("int32")[0]
}

#[test]
fn a_blocking_call_runs_after_the_work_that_was_issued_before() {
    on_ranks(3, |communicator| {
        let worker = Stream::worker().expect("a thread");
        for round in 0..ROUNDS as i32 {
            let work = sum_async(&communicator, round, &worker);
            communicator.barrier().expect("a barrier");
            assert_eq!(sum_of(work), 3 * round);
        }
    });
}

#[test]
fn work_on_several_streams_runs_in_the_order_of_issue() {
    on_ranks(3, |communicator| {
        let streams = [(); 3].map(|()| Stream::worker().expect("a thread"));
        for round in 0..ROUNDS as i32 {
            // Clones and handles with another timeout are in the same order.
            let handles = [communicator.clone(), communicator.with_timeout(DEADLINE / 2), communicator.clone()];
            let work: Vec<_> =
                (0..9).map(|i| sum_async(&handles[i % 3], round + i as i32, &streams[i * 2 % 3])).collect();
            let mut x = [round as f32; 4];
            communicator.all_reduce(&mut x, ReduceOperation::Max).expect("a maximum");
            for (i, work) in work.into_iter().enumerate() {
                assert_eq!(sum_of(work), 3 * (round + i as i32));
            }
        }
    });
}

/// Two threads of each rank hand work to two streams, each in its own order. Which thread comes first is a race, and differs
/// between the ranks; so each thread has a communicator of its own, and what is left to go wrong is a deadlock.
#[test]
fn two_threads_that_use_two_streams_do_not_block_each_other() {
    on_ranks(2, |communicator| {
        let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
        let halves = [0, 1].map(|key| communicator.split(Some(0), key).expect("a split").expect("a color"));
        std::thread::scope(|scope| {
            for (i, half) in halves.iter().enumerate() {
                let streams = if i == 0 { [&streams[0]; 2] } else { [&streams[1]; 2] };
                scope.spawn(move || {
                    for round in 0..4 * ROUNDS as i32 {
                        let first = sum_async(half, round, streams[0]);
                        let second = sum_async(half, round, streams[1]);
                        half.barrier().expect("a barrier");
                        assert_eq!([sum_of(first), sum_of(second)], [2 * round; 2]);
                    }
                });
            }
        });
    });
}

/// Several threads of one rank, alone in its communicator, use one order and two streams.
#[test]
fn threads_of_one_rank_that_issue_on_two_streams_do_not_deadlock() {
    on_ranks(1, |communicator| {
        let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
        std::thread::scope(|scope| {
            for thread in 0..4usize {
                let (streams, communicator) = (&streams, &communicator);
                scope.spawn(move || {
                    let work: Vec<_> =
                        (0..200).map(|i| sum_async(communicator, i, &streams[(i as usize + thread) % 2])).collect();
                    communicator.barrier().expect("a barrier");
                    for (i, work) in work.into_iter().enumerate() {
                        assert_eq!(sum_of(work), i as i32);
                    }
                });
            }
        });
    });
}

/// What a plugin of these tests does: it copies its input, and runs this.
type Act = Box<dyn FnMut() -> Result<()> + Send>;

#[derive(Clone, Default)]
struct Acting(Arc<Mutex<Option<Act>>>);

impl fmt::Debug for Acting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acting")
    }
}

impl Plugin for Acting {
    fn type_name(&self) -> &str {
        "acting"
    }

    fn output_types(&self, inputs: &[DataType]) -> Result<Vec<DataType>> {
        Ok(inputs.to_vec())
    }

    fn output_shapes(&self, inputs: &[Shape]) -> Result<Vec<Shape>> {
        Ok(inputs.to_vec())
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        if let Some(act) = &mut *self.0.lock().expect("no panic") {
            act()?;
        }
        let input = call.input(0)?.as_slice::<i32>()?.to_vec();
        call.output(0)?.as_mut_slice::<i32>()?.copy_from_slice(&input);
        Ok(())
    }
}

/// A network with a plugin, then a sum over all ranks.
fn acting_engine(n: u32) -> (Engine, Acting) {
    let acting = Acting::default();
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [1]).expect("an input");
    let y = network.add_plugin("act", acting.clone(), &[x]).expect("a plugin");
    let y = network.add(DistCollective::all_reduce(SUM).nb_rank(n), y).expect("a sum");
    network.mark_output(y, "y").expect("an output");
    (Builder::new().build(&network).unwrap_or_else(|error| panic!("{error}")), acting)
}

fn bind(context: &ExecutionContext, x: i32) -> Bindings {
    let mut bindings = context.create_bindings();
    bindings.bind_input("x", Buffer::from_slice(&[x], [1]).expect("a buffer")).expect("x");
    bindings.bind_output("y", Buffer::from_slice(&[0], [1]).expect("a buffer")).expect("y");
    bindings
}

fn y_of(work: Work<Bindings>) -> i32 {
    let bindings = work.wait().unwrap_or_else(|error| panic!("{error}"));
    bindings.get("y").expect("y").as_slice::<i32>().expect("int32")[0]
}

fn context_on(communicator: &Communicator) -> (ExecutionContext, Acting) {
    let (engine, acting) = acting_engine(communicator.world_size());
    let mut context = engine.create_execution_context().expect("a context");
    context.set_communicator(communicator).expect("the plans are the same");
    (context, acting)
}

#[test]
fn a_barrier_after_a_run_waits_for_the_run_and_its_plugins() {
    on_ranks(2, |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let pause = || {
            std::thread::sleep(Duration::from_millis(20));
            Ok(())
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(pause));
        let group = communicator.split(Some(0), 0).expect("a split").expect("a color");
        let worker = Stream::worker().expect("a thread");
        for round in 0..5 {
            let work = context.enqueue(bind(&context, round), &worker).unwrap_or_else(|error| panic!("{error}"));
            // A group of the communicator is in the run's place too.
            if round % 2 == 0 { &communicator } else { &group }.barrier().expect("a barrier");
            assert_eq!(y_of(work), 2 * round);
        }
    });
}

#[test]
fn contexts_on_two_streams_of_one_communicator_run_in_the_order_of_issue() {
    on_ranks(3, |communicator| {
        let mut contexts = [(); 2].map(|()| context_on(&communicator).0);
        let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
        for round in 0..ROUNDS as i32 {
            let work: Vec<_> = (contexts.iter_mut().zip(&streams).enumerate())
                .map(|(i, (context, stream))| {
                    let bindings = bind(context, round + i as i32);
                    context.enqueue(bindings, stream).unwrap_or_else(|error| panic!("{error}"))
                })
                .collect();
            for (i, work) in work.into_iter().enumerate() {
                assert_eq!(y_of(work), 3 * (round + i as i32));
            }
        }
    });
}

#[test]
fn a_call_of_a_plugin_belongs_to_the_place_of_its_run() {
    on_ranks(2, |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let group = communicator.split(Some(0), 0).expect("a split").expect("a color");
        let inner = communicator.clone();
        let act = move || {
            group.barrier()?;
            inner.barrier()
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let worker = Stream::worker().expect("a thread");
        for round in 0..ROUNDS as i32 {
            let work = context.enqueue(bind(&context, round), &worker).unwrap_or_else(|error| panic!("{error}"));
            let mut x = [round];
            communicator.all_reduce(&mut x, SUM).expect("a sum");
            assert_eq!((x[0], y_of(work)), (2 * round, 2 * round));
        }
    });
}

/// A plugin that enqueues the context that runs it would wait for itself.
#[test]
fn a_plugin_that_runs_its_own_context_gets_an_error() {
    on_ranks(2, |communicator| {
        let (context, acting) = context_on(&communicator);
        let context = Arc::new(Mutex::new(context));
        let (sender, errors): (Sender<_>, Receiver<_>) = channel();
        let act = {
            let context = Arc::clone(&context);
            move || {
                let mut context = context.lock().expect("no panic");
                let bindings = bind(&context, 0);
                let inner = context.enqueue(bindings, &Stream::inline());
                let error = inner.and_then(|work| work.wait()).expect_err("it would wait for itself").error;
                sender.send((error.kind(), error.to_string())).expect("the test listens");
                Ok(())
            }
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let worker = Stream::worker().expect("a thread");
        let work = {
            let mut context = context.lock().expect("no panic");
            let bindings = bind(&context, 3);
            context.enqueue(bindings, &worker).unwrap_or_else(|error| panic!("{error}"))
        };
        assert_eq!(y_of(work), 6);
        let (kind, text) = errors.recv_timeout(DEADLINE).expect("the plugin ran");
        assert_eq!(kind, ErrorKind::InvalidArgument);
        assert!(text.ends_with("a plugin cannot run the context that runs it"), "{text}");
    });
}

/// Work that a plugin issues on another stream has a place after the run; the plugin cannot wait for it.
#[test]
fn a_plugin_cannot_wait_for_work_that_begins_after_its_run() {
    on_ranks(2, |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let (sender, issued) = channel();
        let other = Stream::worker().expect("a thread");
        let inner = communicator.clone();
        let act = move || {
            let work = sum_async(&inner, 5, &other);
            assert!(!work.is_done(), "the work began before the run ended");
            let waited = catch_unwind(AssertUnwindSafe(|| drop(sum_async(&inner, 6, &other).wait())));
            let panic = waited.expect_err("it would wait for itself");
            let text = panic.downcast_ref::<String>().expect("a text").clone();
            sender.send((work, text)).expect("the test listens");
            Ok(())
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let worker = Stream::worker().expect("a thread");
        let run = context.enqueue(bind(&context, 1), &worker).unwrap_or_else(|error| panic!("{error}"));
        let (work, text) = issued.recv_timeout(DEADLINE).expect("the plugin ran");
        assert!(text.contains("a plugin cannot wait for work on its own run's communicator"), "{text}");
        assert_eq!(y_of(run), 2);
        assert_eq!(sum_of(work), 10);
        // The sum of 6 runs too, although its handle is gone.
        communicator.barrier().expect("a barrier");
    });
}

/// A call whose turn does not come ends at its deadline, which runs from the moment of issue, and ends the communicator.
#[test]
fn a_call_behind_work_that_does_not_end_fails_at_its_deadline() {
    let results = on_ranks(2, |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let (go_on, wait) = channel::<()>();
        let act = move || {
            let _ = wait.recv_timeout(DEADLINE);
            Ok(())
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let worker = Stream::worker().expect("a thread");
        let run = context.enqueue(bind(&context, 1), &worker).unwrap_or_else(|error| panic!("{error}"));
        let barrier = communicator.with_timeout(Duration::from_millis(50)).barrier();
        drop(go_on);
        (barrier.expect_err("the run does not end"), run.wait().expect_err("the communicator ended").error)
    });
    for (rank, (barrier, run)) in results.into_iter().enumerate() {
        assert!(matches!(barrier.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Aborted), "{barrier}");
        let text = "an earlier call of this rank on the same communicator did not end before the deadline";
        assert!(barrier.to_string().contains(text), "rank {rank}: {barrier}");
        assert!(run.to_string().contains(text), "rank {rank}: {run}");
    }
}

/// What a random program waits for.
enum Pending {
    Sum(Box<Work<Operands>>),
    Run(Work<Bindings>),
}

impl Pending {
    fn result(self) -> i32 {
        match self {
            Pending::Sum(work) => sum_of(*work),
            Pending::Run(work) => y_of(work),
        }
    }
}

/// A program that every rank runs on one thread: blocking calls, work on worker streams, groups, runs of contexts, bound layers,
/// new groups and memory, in the order that a seed gives. The numbers drawn are the same on every rank.
fn random_program(seed: u64, communicator: &Communicator) {
    let mut random = Random(seed);
    let (n, rank) = (communicator.world_size(), communicator.rank().0 as i32);
    let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
    // This rank may not be in a group.
    let mut groups = vec![Some(communicator.clone())];
    let (mut contexts, mut layers) = (Vec::new(), Vec::new());
    let mut pending: Vec<(Pending, i32)> = Vec::new();
    let all_runs = |value: i32| (0..n as i32).map(|rank| rank + value).sum::<i32>();
    for _ in 0..24 {
        let [choice, which, other] = [random.below(100), random.below(60), random.below(60)];
        let group = groups[which % groups.len()].clone();
        let stream = &streams[other % 2];
        let value = random.below(1000) as i32;
        match (choice, group) {
            (0..20, Some(group)) => {
                let mut x = [given(&group, group.rank(), value)];
                group.all_reduce(&mut x, SUM).expect("a sum");
                assert_eq!(x[0], sum_given(&group, value));
            }
            (20..25, Some(group)) => group.barrier().expect("a barrier"),
            (25..35, Some(group)) => {
                let root = Rank(other as u32 % group.world_size());
                let mut x = vec![given(&group, group.rank(), value); 1 + other];
                group.broadcast(&mut x, root).expect("a broadcast");
                assert!(x.iter().all(|x| *x == given(&group, root, value)));
            }
            (35..60, Some(group)) => {
                let work = sum_async(&group, given(&group, group.rank(), value), stream);
                pending.push((Pending::Sum(Box::new(work)), sum_given(&group, value)));
            }
            (60..64, _) if groups.len() < 5 => {
                let ranks: Vec<Rank> = (0..n).map(Rank).filter(|rank| rank.0 as usize != other % 4).collect();
                groups.push(communicator.new_group(&ranks).expect("a group"));
            }
            (64..68, _) if groups.len() < 5 => {
                let color = communicator.rank().0 % 2;
                groups.push(communicator.split(Some(color), -rank).expect("a split"));
            }
            (68..72, Some(group)) => {
                let mut memory = group.allocate(DataType::Int32, [40]).expect("memory");
                memory.as_mut_slice::<i32>().expect("int32").fill(given(&group, group.rank(), value));
                group.all_reduce(&mut memory, SUM).expect("a sum");
                assert_eq!(memory.as_slice::<i32>().expect("int32"), [sum_given(&group, value); 40]);
            }
            (72..76, _) if contexts.len() < 3 => contexts.push(context_on(communicator).0),
            (76..78, _) if layers.len() < 2 => {
                let layer = DistCollective::all_reduce(SUM).nb_rank(n).into_layer();
                layers.push(layer.bind(communicator, DataType::Int32).expect("the same layer"));
            }
            (78..90, _) if !contexts.is_empty() => {
                let number = which % contexts.len();
                let context: &mut ExecutionContext = &mut contexts[number];
                let bindings = bind(context, rank + value);
                let work = context.enqueue(bindings, stream).unwrap_or_else(|error| panic!("{error}"));
                pending.push((Pending::Run(work), all_runs(value)));
            }
            (90..94, _) if !layers.is_empty() => {
                let layer: &BoundLayer = &layers[which % layers.len()];
                let (x, mut y) = ([rank + value], [0]);
                layer.execute(Some((&x).into()), Some((&mut y).into()), &[1]).expect("a sum");
                assert_eq!(y[0], all_runs(value));
            }
            (94.., _) => drop(pending.drain(..).map(|(work, sum)| assert_eq!(work.result(), sum)).collect::<Vec<_>>()),
            _ => {}
        }
    }
    pending.into_iter().rev().for_each(|(work, sum)| assert_eq!(work.result(), sum));
    communicator.clone().finalize().expect("all ranks agree");
}

/// What a rank of a group gives.
fn given(group: &Communicator, rank: Rank, value: i32) -> i32 {
    value * (rank.0 as i32 + 1) + group.world_size() as i32
}

fn sum_given(group: &Communicator, value: i32) -> i32 {
    (0..group.world_size()).map(|rank| given(group, Rank(rank), value)).sum()
}

#[test]
fn random_programs_never_disagree() {
    let programs = if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 10_000 } else { 1_000 };
    for seed in 0..programs {
        let n = 2 + (seed % 3) as u32;
        let communicators = Communicator::in_process(n).expect("ranks");
        on_communicators(DEADLINE, communicators, move |communicator| random_program(seed, &communicator));
    }
}
