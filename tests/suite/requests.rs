//! Requests that threads of each rank take in any order, and of which single ranks fail some: every
//! answer is right, or an error on every rank.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use distcollective::dist_collective::BoundLayer;
use distcollective::network::{Plugin, PluginCall};
use distcollective::{
    Communicator, DataType, DistCollective, DistCollectiveLayer, Error, ErrorKind, ExecutionContext, Network, Rank,
    ReduceOperation, Result, inputs, outputs,
};

use crate::messages::on_both;
use crate::random::Random;

/// Where a rank fails in a request.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    /// In a shape that the library does not take.
    Shape,
    /// In the program's own code, before the run.
    Before,
    /// In the buffers of the run.
    Run,
    /// In the program's own code, after the run.
    After,
}

/// A server's request, and the rank that fails.
#[derive(Clone, Copy, Debug)]
struct Job {
    id: u64,
    failure: Option<(Rank, Stage)>,
}

fn jobs(n: u32, count: u64) -> Vec<Job> {
    let mut random = Random(n.into());
    let stages = [Stage::Shape, Stage::Before, Stage::Run, Stage::After];
    let mut job = |number| {
        let failure = (Rank(random.below(n as usize) as u32), stages[random.below(4)]);
        Job { id: number * 7 + 3, failure: (random.below(3) == 0).then_some(failure) }
    };
    (0..count).map(&mut job).collect()
}

fn own_error() -> Error {
    Error::new(ErrorKind::Plugin, "the program's own")
}

/// What one rank does for a request: with a context of dynamic shapes, or with another runner.
fn answer(runner: &mut impl Runner, id: u64, fails: Option<Stage>) -> Result<i32> {
    let len = 1 + id as usize % 3;
    runner.set_len(if fails == Some(Stage::Shape) { 99 } else { len })?;
    if fails == Some(Stage::Before) {
        return Err(own_error());
    }
    let x = vec![id as i32; len + usize::from(fails == Some(Stage::Run))];
    let y = runner.run(&x)?;
    if fails == Some(Stage::After) {
        return Err(own_error());
    }
    assert!(y.iter().all(|other| *other == y[0]), "{y:?}");
    Ok(y[0])
}

/// A sum over the ranks, of tensors of 1 to 3 elements.
trait Runner: Send {
    fn set_len(&mut self, len: usize) -> Result<()>;
    fn run(&mut self, x: &[i32]) -> Result<Vec<i32>>;
}

struct ContextRunner {
    context: ExecutionContext,
    len: usize,
}

impl ContextRunner {
    fn new(communicator: &Communicator) -> Result<Self> {
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [-1])?;
        network.set_optimization_profile(x, [1], [2], [3])?;
        let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
        let y = network.add(sum, x)?;
        network.mark_output(y, "y")?;
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(communicator)?;
        Ok(ContextRunner { context, len: 0 })
    }
}

impl Runner for ContextRunner {
    fn set_len(&mut self, len: usize) -> Result<()> {
        self.context.set_input_shape("x", [len as i64])?;
        self.len = len;
        Ok(())
    }

    fn run(&mut self, x: &[i32]) -> Result<Vec<i32>> {
        let mut y = vec![0; self.len];
        self.context.execute(inputs!["x" => x], outputs!["y" => &mut y])?;
        Ok(y)
    }
}

/// Two bound layers with a root: a sum to rank 1, which gives it to all.
struct LayerRunner {
    layers: [BoundLayer; 2],
    len: usize,
}

impl LayerRunner {
    fn new(communicator: &Communicator) -> Result<Self> {
        let n = communicator.world_size();
        let reduce = DistCollective::reduce(ReduceOperation::Sum, Rank(1)).nb_rank(n).into_layer();
        let broadcast = DistCollective::broadcast(Rank(1)).nb_rank(n).into_layer();
        let bind = |layer: DistCollectiveLayer| layer.bind(communicator, DataType::Int32);
        Ok(LayerRunner { layers: [bind(reduce)?, bind(broadcast)?], len: 0 })
    }
}

impl Runner for LayerRunner {
    fn set_len(&mut self, len: usize) -> Result<()> {
        self.len = len;
        if len > 3 { Err(Error::new(ErrorKind::InvalidShape, "it is too long")) } else { Ok(()) }
    }

    fn run(&mut self, x: &[i32]) -> Result<Vec<i32>> {
        let [reduce, broadcast] = &self.layers;
        let (mut sum, mut y) = (x.to_vec(), x.to_vec());
        let dims = [self.len];
        reduce.execute(Some(x), Some(&mut sum), &dims)?;
        broadcast.execute(Some(&sum), Some(&mut y), &dims)?;
        Ok(y)
    }
}

/// Serves the jobs on this rank with so many threads. Gives the order in which it began them.
fn serve(communicator: &Communicator, jobs: &[Job], threads: usize, runner: impl Runner) -> Vec<u64> {
    let (next, order, runner) = (AtomicU64::new(0), Mutex::new(Vec::new()), Mutex::new(runner));
    let rank = communicator.rank();
    let n = communicator.world_size();
    let work = |thread: usize| {
        let mut random = Random(u64::from(rank.0) * 100 + thread as u64);
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed) as usize) {
            std::thread::sleep(Duration::from_micros(random.below(100) as u64));
            let fails = job.failure.filter(|(failing, _)| *failing == rank).map(|(_, stage)| stage);
            let result = communicator.request(job.id, || {
                order.lock().expect("no panic").push(job.id);
                answer(&mut *runner.lock().expect("no panic"), job.id, fails)
            });
            match (result, job.failure) {
                (Ok(sum), None) => assert_eq!(sum, job.id as i32 * n as i32, "{job:?}"),
                (Err(error), Some((failing, _))) if failing != rank => {
                    assert_eq!(error.kind(), ErrorKind::RunRefused, "{job:?}: {error}");
                    assert!(error.to_string().contains(&format!("rank {failing} left the request")), "{error}");
                }
                (Err(error), Some((_, Stage::Before | Stage::After))) => {
                    assert_eq!(error.kind(), ErrorKind::Plugin, "{job:?}: {error}");
                }
                (Err(error), Some((_, Stage::Shape))) => {
                    assert_eq!(error.kind(), ErrorKind::InvalidShape, "{job:?}: {error}");
                }
                (Err(error), Some((_, Stage::Run))) => {
                    assert!(matches!(error.kind(), ErrorKind::InvalidBuffer | ErrorKind::InvalidShape), "{error}");
                }
                (result, _) => panic!("{job:?} on rank {rank}: {result:?}"),
            }
        }
    };
    let work = &work;
    std::thread::scope(|scope| (0..threads).for_each(|thread| drop(scope.spawn(move || work(thread)))));
    order.into_inner().expect("no panic")
}

fn check<R: Runner + 'static>(threads: usize, runner: fn(&Communicator) -> Result<R>) {
    check_in_orders(move |_| threads, |_, _| {}, runner);
}

/// `threads_of` says how many threads a rank has, and `reorder` changes the order of its jobs.
fn check_in_orders<R: Runner + 'static>(
    threads_of: impl Fn(Rank) -> usize + Copy + Send + Sync + 'static,
    reorder: fn(Rank, &mut [Job]),
    runner: fn(&Communicator) -> Result<R>,
) {
    for n in 2..=4 {
        let orders = on_both(n, move |communicator| {
            let runner = runner(&communicator).expect("it fits");
            let (rank, mut jobs) = (communicator.rank(), jobs(n, 100));
            reorder(rank, &mut jobs);
            let order = serve(&communicator, &jobs, threads_of(rank), runner);
            communicator.finalize().expect("the communicator works");
            order
        });
        for orders in orders {
            assert!(orders[0].len() == 100 && orders.iter().all(|order| *order == orders[0]), "{orders:?}");
        }
    }
}

#[test]
fn one_thread_of_each_rank_runs_contexts() {
    check(1, ContextRunner::new);
}

#[test]
fn two_threads_of_each_rank_run_contexts() {
    check(2, ContextRunner::new);
}

#[test]
fn four_threads_of_each_rank_run_bound_layers() {
    check(4, LayerRunner::new);
}

#[test]
fn sixteen_threads_of_each_rank_run_contexts() {
    check(16, ContextRunner::new);
}

/// Rank 0 takes the requests one by one, and the others have threads enough for their own order.
#[test]
fn ranks_take_requests_in_orders_of_their_own() {
    let shuffle = |rank: Rank, jobs: &mut [Job]| {
        let mut random = Random(rank.0.into());
        for window in jobs.chunks_mut(8).filter(|_| rank != Rank(0)) {
            (1..window.len()).for_each(|i| window.swap(i, random.below(i + 1)));
        }
    };
    check_in_orders(|rank| if rank == Rank(0) { 1 } else { 8 }, shuffle, ContextRunner::new);
}

/// What both ranks of a pair get in request 1, which rank 1 fails, and from a barrier afterwards.
fn after_a_failure(body: impl Fn(&Communicator) -> Result<()> + Send + Sync + 'static) -> Vec<[Option<ErrorKind>; 2]> {
    let kinds = on_both(2, move |communicator| {
        let is_first = communicator.rank() == Rank(0);
        let answered = communicator.request(1, || {
            body(&communicator)?;
            if is_first { Ok(()) } else { Err(own_error()) }
        });
        [answered, communicator.barrier()].map(|result| result.err().map(|error| error.kind()))
    });
    kinds.into_iter().flatten().collect()
}

#[test]
fn a_failed_request_with_messages_ends_the_communicator() {
    let ended = Some(ErrorKind::Aborted);
    // A message that arrives before it is received, and one that never comes.
    let sends = |communicator: &Communicator| match communicator.rank().0 {
        0 => communicator.send(&[1i32], 1, 0),
        _ => Ok(()),
    };
    let receives = |communicator: &Communicator| match communicator.rank().0 {
        0 => communicator.recv(&mut [0i32], 1, 0).map(drop),
        _ => Ok(()),
    };
    for kinds in [after_a_failure(sends), after_a_failure(receives)] {
        for [own, next] in kinds {
            assert!(matches!(own, Some(ErrorKind::RunRefused | ErrorKind::Aborted | ErrorKind::Plugin)), "{own:?}");
            assert_eq!(next, ended);
        }
    }
    // Without messages it goes on.
    for [own, next] in after_a_failure(|_| Ok(())) {
        assert!(matches!(own, Some(ErrorKind::RunRefused | ErrorKind::Plugin)), "{own:?}");
        assert_eq!(next, None);
    }
}

/// A receive that waits since before a failed request gets its message later.
#[test]
fn a_failed_request_leaves_earlier_receives_alone() {
    let ran = on_both(2, |communicator| -> Result<()> {
        let is_first = communicator.rank() == Rank(0);
        let receiving = if is_first { Some(communicator.irecv(vec![0i32], 1, 0)?) } else { None };
        let failed = communicator.request(1, || if is_first { communicator.barrier() } else { Err(own_error()) });
        failed.expect_err("rank 1 fails");
        communicator.barrier()?;
        match receiving {
            Some(receiving) => assert!(receiving.wait()?.received()[0].is_some()),
            None => communicator.send(&[7i32], 0, 0)?,
        }
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("a message"));
}

/// Adds one, if the input is not negative.
#[derive(Debug)]
struct NotNegative;

impl Plugin for NotNegative {
    fn type_name(&self) -> &str {
        "not_negative"
    }

    fn enqueue(&self, call: &mut PluginCall<'_>) -> Result<()> {
        let x = call.input(0)?.as_slice::<i32>()?[0];
        if x < 0 {
            return Err(own_error());
        }
        call.output(0)?.as_mut_slice::<i32>()?[0] = x + 1;
        Ok(())
    }
}

/// x -> plugin -> all_reduce -> y.
fn context_with_a_plugin(communicator: &Communicator) -> Result<ExecutionContext> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [1])?;
    let checked = network.add_plugin("checked", NotNegative, &[x])?;
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
    let y = network.add(sum, checked)?;
    network.mark_output(y, "y")?;
    let mut context = network.build()?.create_execution_context()?;
    context.set_communicator(communicator)?;
    Ok(context)
}

#[test]
fn a_plugin_that_fails_in_a_request_ends_the_request_only() {
    let ran = on_both(2, |communicator| -> Result<()> {
        let mut context = context_with_a_plugin(&communicator)?;
        let mut y = [0];
        for id in 0..6 {
            let fails = id % 2 == 1;
            let x = if fails && communicator.rank() == Rank(1) { -1 } else { id as i32 };
            let ran = communicator.request(id, || context.execute(inputs!["x" => &[x]], outputs!["y" => &mut y]));
            match (ran, x) {
                (Ok(()), _) => assert_eq!((fails, y), (false, [2 * id as i32 + 2])),
                (Err(error), -1) => assert_eq!(error.kind(), ErrorKind::Plugin, "{error}"),
                (Err(error), _) => assert!(fails && error.kind() == ErrorKind::RunRefused, "{error}"),
            }
        }
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("runs"));
}

/// A plugin may make calls of its own, in which the other ranks would wait.
#[test]
fn a_refused_run_with_plugins_ends_the_communicator() {
    let kinds = on_both(2, |communicator| -> Result<ErrorKind> {
        let mut context = context_with_a_plugin(&communicator)?;
        match communicator.rank().0 {
            0 => context.refuse_run("no image")?,
            _ => drop(context.execute(inputs!["x" => &[1]], outputs!["y" => &mut [0]]).expect_err("refused")),
        }
        Ok(communicator.barrier().expect_err("it has ended").kind())
    });
    kinds.into_iter().flatten().for_each(|kind| assert_eq!(kind.expect("an error"), ErrorKind::Aborted));
}

/// On one rank, a failed call keeps no other rank waiting.
#[test]
fn a_mistake_of_a_rank_that_is_alone_ends_nothing() {
    let communicator = Communicator::builder().in_process(1).expect("one rank").remove(0);
    let mut context = context_with_a_plugin(&communicator).expect("it fits");
    context.execute(inputs!["x" => &[1, 2]], outputs!["y" => &mut [0]]).expect_err("two elements");
    communicator.check().expect("it works");
}

/// Rank 2 is in no group. All ranks count the runs alike, in requests and outside.
#[test]
fn runs_with_groups_are_counted_alike_in_requests_and_outside() {
    let ran = on_both(3, |communicator| -> Result<()> {
        let sum = || DistCollective::all_reduce(ReduceOperation::Sum);
        let mut network = Network::new();
        let x = network.add_input("x", DataType::Int32, [1])?;
        let all = network.add(sum().nb_rank(3), x)?;
        let some = network.add(sum().group([0, 1]), all)?;
        network.mark_output(some, "y")?;
        let mut context = network.build()?.create_execution_context()?;
        context.set_communicator(&communicator)?;
        for id in 0..6 {
            let mut y = [0];
            let mut run = || context.execute(inputs!["x" => &[1]], outputs!["y" => &mut y]);
            if id % 3 == 0 {
                communicator.request(id, run)?
            } else {
                run()?
            }
            assert!(communicator.rank() == Rank(2) || y == [6], "{y:?}");
        }
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("runs"));
}

/// Rank 0 waits on another thread for a message that rank 1 would send in its request.
#[test]
fn a_receive_on_another_thread_ends_with_the_request() {
    let kinds = on_both(2, |communicator| -> Result<ErrorKind> {
        let answer = || {
            std::thread::scope(|scope| {
                let receiving = scope.spawn(|| communicator.recv(&mut [0i32], 1, 0).map(drop));
                let sum = communicator.all_reduce(&mut [1i32], ReduceOperation::Sum);
                receiving.join().expect("no panic").and(sum)
            })
        };
        let ended =
            communicator.request(1, || if communicator.rank() == Rank(0) { answer() } else { Err(own_error()) });
        ended.expect_err("rank 1 fails");
        Ok(communicator.barrier().expect_err("it has ended").kind())
    });
    kinds.into_iter().flatten().for_each(|kind| assert_eq!(kind.expect("an error"), ErrorKind::Aborted));
}

/// A message in a group would come in a later request, though the rank that fails is not in the
/// group.
#[test]
fn a_failed_request_of_ranks_with_groups_ends_the_communicator() {
    let kinds = on_both(3, |communicator| -> Result<ErrorKind> {
        let rank = communicator.rank();
        let group = communicator.split((rank != Rank(2)).then_some(0), 0)?;
        let answered = communicator.request(1, || match (rank.0, &group) {
            (0, Some(group)) => group.send(&[1i32], 1, 0).and_then(|()| communicator.barrier()),
            (1, Some(group)) => communicator.barrier().and_then(|()| group.recv(&mut [0i32], 0, 0).map(drop)),
            _ => Err(own_error()),
        });
        answered.expect_err("rank 2 fails");
        Ok(communicator.barrier().expect_err("it has ended").kind())
    });
    kinds.into_iter().flatten().for_each(|kind| assert_eq!(kind.expect("an error"), ErrorKind::Aborted));
}

/// Peers may wait in a group for the rank that fails, where nothing tells them.
#[test]
fn a_rank_that_fails_and_has_a_group_ends_the_communicator() {
    let kinds = on_both(2, |communicator| -> Result<ErrorKind> {
        let group = communicator.split(Some(0), 0)?.expect("a member");
        let in_group = || match communicator.rank().0 {
            0 => group.barrier(),
            _ => Err(own_error()),
        };
        communicator.request(1, in_group).expect_err("rank 1 fails");
        Ok(communicator.barrier().expect_err("it has ended").kind())
    });
    kinds.into_iter().flatten().for_each(|kind| assert_eq!(kind.expect("an error"), ErrorKind::Aborted));
}

#[test]
fn a_request_in_a_request_is_an_error_and_a_queue_may_be_long() {
    let ran = on_both(2, |communicator| -> Result<()> {
        let inner = || communicator.request(2, || Ok(()));
        let error = communicator.request(1, || Ok(inner().expect_err("it would wait for itself")))?;
        assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
        assert!(communicator.end_request(None).is_err(), "none is open");
        // All requests together take longer than one of them may.
        let impatient = communicator.with_timeout(Duration::from_secs(2) * test_support::patience());
        let answer = |id| {
            impatient.request(id, || {
                std::thread::sleep(Duration::from_millis(150));
                Ok(())
            })
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (10..30).map(|id| scope.spawn(move || answer(id))).collect();
            threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
        })?;
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("requests"));
}

/// A rank that panics in a request has left it, and one that never comes is missed by its deadline.
#[test]
fn a_panic_leaves_the_request_and_a_rank_that_does_not_come_is_late() {
    let ran = on_both(2, |communicator| -> Result<()> {
        let panics = communicator.rank() == Rank(1);
        let request = || communicator.request(1, || if panics { panic!("on purpose") } else { communicator.barrier() });
        let answered = std::panic::catch_unwind(std::panic::AssertUnwindSafe(request));
        assert_eq!(answered.is_err(), panics);
        if let Ok(answered) = answered {
            let error = answered.expect_err("rank 1 has panicked");
            assert!(error.to_string().contains("rank 1 left the request: it panicked"), "{error}");
        }
        if !panics {
            let short = communicator.with_timeout(Duration::from_millis(100));
            let error = short.request(2, || Ok(())).expect_err("rank 1 does not come");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded, "{error}");
        }
        while communicator.check().is_ok() {
            std::thread::yield_now();
        }
        Ok(())
    });
    ran.into_iter().flatten().for_each(|result| result.expect("requests"));
}
