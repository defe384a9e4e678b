//! The issue order: a rank's calls on one communicator take effect in the order in which the rank
//! makes them, whatever streams they run on and whether they block.

use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use distcollective::collective::Collective;
use distcollective::comm::{Operands, RawOperands};
use distcollective::context::Bindings;
use distcollective::dist_collective::BoundLayer;
use distcollective::network::{Plugin, PluginCall};
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, Engine, Error, ErrorKind, ExecutionContext, Network, Rank,
    ReduceOperation, Result, Stream, Work, inputs, outputs,
};

use crate::random::Random;
use crate::ranks::{DEADLINE, on_communicators, on_ranks};

const SUM: ReduceOperation = ReduceOperation::Sum;

/// How often a test with a race repeats it.
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

/// A bound layer has a place in the groups of its communicator too.
#[test]
fn a_call_of_a_group_waits_for_the_bound_layer_that_was_issued_before() {
    let have_issued = Arc::new(Barrier::new(3));
    on_ranks(3, move |communicator| {
        let group = communicator.split(Some(communicator.rank().0 / 2), 0).expect("a split").expect("a group");
        let layer = DistCollective::all_reduce(SUM).nb_rank(3).into_layer();
        let bound = layer.bind(&communicator, DataType::Int32).expect("it fits");
        let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
        let (x, mut y) = ([1i32], [0i32]);
        if communicator.rank() == Rank(2) {
            have_issued.wait();
        }
        // SAFETY: both arrays outlive the wait below, and no other code uses them until then.
        let work = unsafe { bound.enqueue(x.as_ptr().cast(), y.as_mut_ptr().cast(), &[1], &streams[0]) };
        let work = work.expect("it fits");
        let of_group = sum_async(&group, 1, &streams[1]);
        if communicator.rank() != Rank(2) {
            std::thread::sleep(Duration::from_millis(20));
            assert!(!of_group.is_done(), "it came before the layer");
            have_issued.wait();
        }
        work.wait().expect("a run");
        assert_eq!((y, sum_of(of_group)), ([3], group.world_size() as i32));
    });
}

#[test]
fn work_on_several_streams_runs_in_the_order_of_issue() {
    on_ranks(3, |communicator| {
        let streams = [(); 3].map(|()| Stream::worker().expect("a thread"));
        for round in 0..ROUNDS as i32 {
            // Clones and handles with another timeout share the order.
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

/// What a plugin of these tests does after it has copied its input.
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
    (network.build().unwrap_or_else(|error| panic!("{error}")), acting)
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

/// A context that is enqueued on a worker stream. Its plugin ends on a signal; a flag says that it
/// has ended.
struct SlowRun {
    work: Work<Bindings>,
    go_on: Sender<()>,
    has_ended: Arc<AtomicBool>,
}

/// The engine of [`acting_engine`] on a communicator. Its plugin waits for the signal.
fn slow_run(context: &mut ExecutionContext, acting: &Acting, stream: &Stream) -> SlowRun {
    let (go_on, wait) = channel::<()>();
    let has_ended = Arc::new(AtomicBool::new(false));
    let act = {
        let has_ended = Arc::clone(&has_ended);
        move || {
            wait.recv_timeout(DEADLINE).expect("the test goes on");
            has_ended.store(true, Ordering::SeqCst);
            Ok(())
        }
    };
    *acting.0.lock().expect("no panic") = Some(Box::new(act));
    let work = context.enqueue(bind(context, 1), stream).unwrap_or_else(|error| panic!("{error}"));
    SlowRun { work, go_on, has_ended }
}

/// A call of a rank: on this thread, or on a stream of its own.
type Call<'a> = (&'static str, Box<dyn FnMut() -> Result<()> + 'a>);

fn all_calls<'a>(communicator: &'a Communicator, group: &'a Communicator, other: &'a Stream) -> Vec<Call<'a>> {
    let n = communicator.world_size();
    let layer = DistCollective::all_reduce(SUM).nb_rank(n).into_layer().bind(communicator, DataType::Int32);
    let layer = layer.expect("the same layer");
    let bound = layer.clone();
    let (mut context, _) = context_on(communicator);
    let (mut second, _) = context_on(communicator);
    let sum = Collective::AllReduce { reduce_op: SUM };
    let raw = move |communicator: &Communicator| {
        let mut x = [1i32];
        let output = x.as_mut_ptr().cast::<u8>();
        let operands = RawOperands::Pair { input: output, output };
        // SAFETY: the memory exists until the work is done, and nothing else uses it.
        let work = unsafe { communicator.enqueue(sum, DataType::Int32, 1, operands, other)? };
        work.wait().map(drop).map_err(Into::into)
    };
    vec![
        ("barrier", Box::new(|| communicator.barrier())),
        ("barrier of a group", Box::new(|| group.barrier())),
        ("all_reduce", Box::new(|| communicator.all_reduce(&mut [1i32], SUM))),
        ("all_gather of a group", Box::new(move || group.all_gather(&[1i32], &mut vec![0; n as usize]))),
        ("collective_async", Box::new(|| sum_async(communicator, 1, other).wait().map(drop).map_err(Into::into))),
        ("enqueue", Box::new(move || raw(communicator))),
        ("enqueue on a group", Box::new(move || raw(group))),
        ("split", Box::new(|| communicator.split(Some(0), 0).map(drop))),
        ("new_group", Box::new(move || communicator.new_group(0..n).map(drop))),
        ("allocate", Box::new(|| communicator.allocate(DataType::Int32, [1]).map(drop))),
        ("set_communicator", Box::new(|| context_on(communicator).0.communicator().map_or(Ok(()), |_| Ok(())))),
        ("bound layer", Box::new(move || layer.execute(Some(&[1]), Some(&mut [0]), &[1]))),
        (
            "bound layer on a stream",
            Box::new(move || {
                let (x, mut y) = ([1i32], [0i32]);
                // SAFETY: the memory exists until the work is done, and nothing else uses it.
                let work = unsafe { bound.enqueue(x.as_ptr().cast(), y.as_mut_ptr().cast(), &[1], other)? };
                work.wait().map(drop).map_err(Into::into)
            }),
        ),
        ("execute", Box::new(move || context.execute(inputs!["x" => &[1]], outputs!["y" => &mut [0]]))),
        (
            "enqueue a context",
            Box::new(move || second.enqueue(bind(&second, 1), other)?.wait().map(drop).map_err(Into::into)),
        ),
        ("finalize", Box::new(|| communicator.clone().finalize())),
    ]
}

#[test]
fn every_call_waits_for_the_run_that_was_issued_before() {
    on_ranks(2, |communicator| {
        let group = communicator.split(Some(0), 0).expect("a split").expect("a color");
        let (mut context, acting) = context_on(&communicator);
        let [worker, other] = [(); 2].map(|()| Stream::worker().expect("a thread"));
        for (name, mut call) in all_calls(&communicator, &group, &other) {
            let SlowRun { work, go_on, has_ended } = slow_run(&mut context, &acting, &worker);
            // Most likely the plugin ends while the call waits. The call may also come later.
            let teller = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(5));
                go_on.send(()).expect("the plugin waits");
            });
            call().unwrap_or_else(|error| panic!("{name}: {error}"));
            assert!(has_ended.load(Ordering::SeqCst), "{name} ended before the run that was issued before it");
            assert_eq!(y_of(work), 2);
            teller.join().expect("no panic");
        }
    });
}

/// A call's deadline runs from the moment of issue. Work that waits too long on its stream, behind
/// a plugin, fails without a call to the peers, and ends the communicator for them.
#[test]
fn the_deadline_of_work_runs_from_the_moment_of_issue() {
    const SOON: Duration = Duration::from_millis(50);
    type Issue = fn(&Communicator, &Stream) -> Result<()>;
    // On rank 1 they wait for rank 0.
    let kinds: [Issue; 3] = [
        |communicator, stream| {
            sum_async(&communicator.with_timeout(SOON), 1, stream).wait().map(drop).map_err(Into::into)
        },
        |communicator, stream| {
            let (x, mut y) = ([1i32], [0i32]);
            let layer = DistCollective::all_reduce(SUM).nb_rank(2).into_layer();
            let layer = LAYER
                .with(|kept| kept.borrow_mut().take())
                .map_or_else(|| layer.bind(communicator, DataType::Int32), Ok)?;
            // SAFETY: the memory exists until the work is done, and nothing else uses it.
            let work =
                unsafe { layer.with_timeout(SOON).enqueue(x.as_ptr().cast(), y.as_mut_ptr().cast(), &[1], stream)? };
            work.wait().map(drop).map_err(Into::into)
        },
        |communicator, stream| {
            let mut context =
                CONTEXT.with(|kept| kept.borrow_mut().take()).unwrap_or_else(|| context_on(communicator).0);
            context.set_timeout(SOON);
            context.enqueue(bind(&context, 1), stream)?.wait().map(drop).map_err(Into::into)
        },
    ];
    for issue in kinds {
        let errors = on_ranks(2, move |communicator| {
            // Both calls are collective, so they are made before.
            let layer = DistCollective::all_reduce(SUM).nb_rank(2).into_layer().bind(&communicator, DataType::Int32);
            LAYER.with(|kept| *kept.borrow_mut() = Some(layer.expect("the same layer")));
            CONTEXT.with(|kept| *kept.borrow_mut() = Some(context_on(&communicator).0));
            let worker = Stream::worker().expect("a thread");
            if communicator.rank() == Rank(1) {
                // It waits for rank 0 without a limit of its own.
                return communicator.all_reduce(&mut [1i32], SUM).expect_err("rank 0 fails");
            }
            // An engine whose layers are all the identity needs no communicator. It takes no
            // ticket, but occupies the stream.
            let (engine, acting) = acting_engine(1);
            let mut alone = engine.create_execution_context().expect("a context");
            let busy = slow_run(&mut alone, &acting, &worker);
            let teller = std::thread::spawn(move || {
                std::thread::sleep(20 * SOON);
                busy.go_on.send(()).expect("the plugin waits");
                y_of(busy.work)
            });
            let error = issue(&communicator, &worker).expect_err("its deadline is over");
            assert_eq!(teller.join().expect("no panic"), 1);
            error
        });
        let text = "an earlier call of this rank did not end before the deadline of this one";
        assert_eq!(errors[0].kind(), ErrorKind::DeadlineExceeded);
        assert!(errors[0].to_string().contains(text), "{}", errors[0]);
        assert!(errors[1].to_string().contains("rank 0 ended the communicator: rank 0: "), "{}", errors[1]);
        assert!(errors[1].to_string().contains(text), "{}", errors[1]);
    }
}

thread_local! {
    static LAYER: RefCell<Option<BoundLayer>> = const { RefCell::new(None) };
    static CONTEXT: RefCell<Option<ExecutionContext>> = const { RefCell::new(None) };
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
                let error = inner.map_err(Error::from).and_then(|work| work.wait().map_err(Error::from));
                let error = error.expect_err("it would wait for itself");
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

/// The position of a plugin's work on another stream would depend on timing, so it is refused. A
/// plugin cannot wait for work that begins after its run, nor for the stream of that work.
#[test]
fn a_plugin_gets_an_error_for_work_that_cannot_begin_during_its_run() {
    on_ranks(2, |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let [worker, other] = [(); 2].map(|()| Stream::worker().expect("a thread"));
        let (hand_over, given) = channel::<Work<Operands>>();
        let (tell, told) = channel();
        let (inner, stream) = (communicator.clone(), other.clone());
        let act = move || {
            let refused = sum_async(&inner, 5, &stream).wait().expect_err("it would race");
            let after = given.recv_timeout(DEADLINE).expect("the test issues it");
            let waited = catch_unwind(AssertUnwindSafe(|| drop(after.wait())));
            let panic = waited.expect_err("it would wait for itself");
            let panic = panic.downcast_ref::<String>().expect("a text").clone();
            let synchronized = stream.synchronize().expect_err("it would wait for itself");
            tell.send([refused.to_string(), panic, synchronized.to_string()]).expect("the test listens");
            Ok(())
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let run = context.enqueue(bind(&context, 1), &worker).unwrap_or_else(|error| panic!("{error}"));
        hand_over.send(sum_async(&communicator, 6, &other)).expect("the plugin listens");
        let [refused, waited, synchronized] = told.recv_timeout(DEADLINE).expect("the plugin ran");
        assert!(
            refused.contains("a plugin cannot enqueue work on a worker stream for a communicator of its own run"),
            "{refused}"
        );
        for text in [waited, synchronized] {
            assert!(text.contains("a plugin cannot wait for work that was issued after its own run"), "{text}");
        }
        assert_eq!(y_of(run), 2);
        other.synchronize().expect("now it can");
        communicator.barrier().expect("a barrier");
    });
}

/// The run is on a group. Its plugin makes calls on the communicator that the group was split from,
/// and on another group. A run on the whole communicator waits behind the first run.
#[test]
fn a_plugin_may_use_communicators_that_its_run_has_no_place_in() {
    on_ranks(2, |communicator| {
        let [group, sibling] = [(); 2].map(|()| communicator.split(Some(0), 0).expect("a split").expect("a color"));
        let (mut on_group, acting) = context_on(&group);
        let (mut on_all, _) = context_on(&communicator);
        let layer = DistCollective::all_reduce(SUM).nb_rank(2).into_layer();
        let layer = layer.bind(&communicator, DataType::Int32).expect("the same layer");
        let (go_on, wait) = channel::<()>();
        let (world, beside) = (communicator.clone(), sibling.clone());
        let act = move || {
            wait.recv_timeout(DEADLINE).expect("the test goes on");
            world.barrier()?;
            beside.barrier()?;
            layer.execute(Some(&[1]), Some(&mut [0]), &[1])
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let [worker, other] = [(); 2].map(|()| Stream::worker().expect("a thread"));
        let first = on_group.enqueue(bind(&on_group, 1), &worker).unwrap_or_else(|error| panic!("{error}"));
        // One call behind the run on its stream, one behind it in the order, and one behind that.
        let second = sum_async(&sibling, 2, &worker);
        let third = on_all.enqueue(bind(&on_all, 3), &other).unwrap_or_else(|error| panic!("{error}"));
        go_on.send(()).expect("the plugin waits");
        communicator.barrier().expect("a barrier");
        assert_eq!((y_of(first), sum_of(second), y_of(third)), (2, 4, 6));
    });
}

/// A call whose turn does not come ends at its deadline, which runs from the moment of issue, and
/// ends the communicator.
#[test]
fn a_call_behind_work_that_does_not_end_fails_at_its_deadline() {
    let have_enqueued = Arc::new(Barrier::new(2));
    let results = on_ranks(2, move |communicator| {
        let (mut context, acting) = context_on(&communicator);
        let (go_on, wait) = channel::<()>();
        let act = move || {
            let _ = wait.recv_timeout(DEADLINE);
            Ok(())
        };
        *acting.0.lock().expect("no panic") = Some(Box::new(act));
        let worker = Stream::worker().expect("a thread");
        let run = context.enqueue(bind(&context, 1), &worker).unwrap_or_else(|error| panic!("{error}"));
        have_enqueued.wait();
        let barrier = communicator.with_timeout(Duration::from_millis(50)).barrier();
        drop(go_on);
        (barrier.expect_err("the run does not end"), Error::from(run.wait().expect_err("the communicator ended")))
    });
    for (rank, (barrier, run)) in results.into_iter().enumerate() {
        assert!(matches!(barrier.kind(), ErrorKind::DeadlineExceeded | ErrorKind::Aborted), "{barrier}");
        let text = "barrier: an earlier call of this rank did not end before the deadline of this one";
        assert!(barrier.to_string().contains(text), "rank {rank}: {barrier}");
        assert!(run.to_string().contains(text), "rank {rank}: {run}");
    }
}

/// What a random program has to wait for.
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

/// A program that every rank runs on one thread: blocking calls, work on worker streams, groups,
/// runs of contexts, bound layers, new groups and memory, in an order that a seed gives. Every rank
/// draws the same numbers.
fn random_program(seed: u64, communicator: &Communicator) {
    let mut random = Random(seed);
    let (n, rank) = (communicator.world_size(), communicator.rank().0 as i32);
    let streams = [(); 2].map(|()| Stream::worker().expect("a thread"));
    // This rank may be outside a group.
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
                layer.execute(Some(&x), Some(&mut y), &[1]).expect("a sum");
                assert_eq!(y[0], all_runs(value));
            }
            (94.., _) => drop(pending.drain(..).map(|(work, sum)| assert_eq!(work.result(), sum)).collect::<Vec<_>>()),
            _ => {}
        }
    }
    pending.into_iter().rev().for_each(|(work, sum)| assert_eq!(work.result(), sum));
    communicator.clone().finalize().expect("all ranks agree");
}

/// The input of a rank of a group.
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
        let communicators = Communicator::builder().in_process(n).expect("ranks");
        on_communicators(DEADLINE, communicators, move |communicator| random_program(seed, &communicator));
    }
}
