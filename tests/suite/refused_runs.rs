//! Runs that single ranks refuse: no answer mixes two requests, every rank learns which run was
//! refused, and all go on to the next one.

use distcollective::collective::Partition;
use distcollective::context::Bindings;
use distcollective::network::TensorId;
use distcollective::{
    Buffer, Communicator, DataType, DistCollective, DistCollectiveLayer, Engine, Error, ErrorKind, ExecutionContext,
    Network, Rank, ReduceOperation, Result, Stream, inputs, outputs,
};

use crate::messages::on_both;
use crate::random::Random;

/// How many requests a test has.
const REQUESTS: i32 = 60;

/// How many elements a tensor has: its bytes travel in the header, in eager memory or otherwise.
const LENS: [i64; 3] = [2, 300, 20_000];

/// The ranks that refuse each request: mostly none, sometimes one or all.
fn refusals(n: u32) -> Vec<Vec<u32>> {
    let mut random = Random(n.into());
    let refusal = |_| match random.below(8) {
        0..2 => vec![random.below(n as usize) as u32],
        2 => (0..n).collect(),
        _ => Vec::new(),
    };
    (0..REQUESTS).map(refusal).collect()
}

/// Checks what a rank got for a request that some ranks refuse: its own error, or that of the
/// lowest rank that refuses.
fn check_refused(rank: Rank, refusing: &[u32], error: &Error, own: ErrorKind) {
    match refusing.contains(&rank.0) {
        true => assert_eq!(error.kind(), own, "{error}"),
        false => {
            assert_eq!(error.kind(), ErrorKind::RunRefused, "{error}");
            let expected = format!("rank {} refused run ", refusing[0]);
            assert!(error.to_string().contains(&expected), "{error}");
        }
    }
}

/// x -> layers -> y.
fn engine(len: i64, add: impl FnOnce(&mut Network, TensorId) -> Result<TensorId>) -> Result<Engine> {
    let mut network = Network::new();
    let x = network.add_input("x", DataType::Int32, [len])?;
    let y = add(&mut network, x)?;
    network.mark_output(y, "y")?;
    network.build()
}

fn sum_context(communicator: &Communicator, len: i64) -> Result<ExecutionContext> {
    let sum = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(communicator.world_size());
    let mut context = engine(len, |network, x| network.add(sum, x))?.create_execution_context()?;
    context.set_communicator(communicator)?;
    Ok(context)
}

/// A run of a context, which the rank refuses in one of four ways. Gives `y` and how the rank would
/// refuse.
fn execute(context: &mut ExecutionContext, len: i64, request: i32, refuses: bool) -> (Result<Vec<i32>>, ErrorKind) {
    let x = vec![request; len as usize];
    let mut y = vec![0; len as usize];
    let (ran, kind) = match request % 4 {
        _ if !refuses => (context.execute(inputs!["x" => &x], outputs!["y" => &mut y]), ErrorKind::System),
        0 => (context.execute(inputs!["x" => &x[1..]], outputs!["y" => &mut y]), ErrorKind::InvalidBuffer),
        1 => (context.execute(inputs!["x" => &x], outputs![]), ErrorKind::NotReady),
        2 => (context.execute(inputs!["z" => &x], outputs!["y" => &mut y]), ErrorKind::InvalidArgument),
        _ => {
            let told = context.refuse_run("it has no image");
            let own = Error::new(ErrorKind::Plugin, "the program's own");
            (told.and(Err(own)), ErrorKind::Plugin)
        }
    };
    (ran.map(|()| y), kind)
}

#[test]
fn contexts_go_on_to_the_next_run() {
    for n in 2..=4 {
        let ran = on_both(n, move |communicator| -> Result<()> {
            for len in LENS {
                let mut context = sum_context(&communicator, len)?;
                for (request, refusing) in (0..).zip(refusals(n)) {
                    let refuses = refusing.contains(&communicator.rank().0);
                    match execute(&mut context, len, request, refuses) {
                        (Ok(y), _) => {
                            assert_eq!(refusing, [0; 0], "request {request}");
                            assert_eq!(y, vec![request * n as i32; len as usize]);
                        }
                        (Err(error), own) => check_refused(communicator.rank(), &refusing, &error, own),
                    }
                }
            }
            communicator.finalize()
        });
        ran.into_iter().flatten().for_each(|result| result.expect("runs"));
    }
}

/// Several runs are on their way when one is refused.
#[test]
fn enqueued_runs_are_refused_in_their_place() {
    let n = 3;
    let ran = on_both(n, move |communicator| -> Result<()> {
        let stream = Stream::worker()?;
        let mut context = sum_context(&communicator, 2)?;
        let mut works = Vec::new();
        for (request, refusing) in (0..).zip(refusals(n)) {
            let len = if refusing.contains(&communicator.rank().0) { 1 } else { 2 };
            let mut bindings: Bindings = context.create_bindings();
            bindings.bind_input("x", Buffer::from_slice(&vec![request; len], [len as i64])?)?;
            bindings.bind_output("y", Buffer::zeroed(DataType::Int32, [2])?)?;
            works.push(context.enqueue(bindings, &stream).map_err(|refused| refused.error));
        }
        for ((request, refusing), work) in (0..).zip(refusals(n)).zip(works) {
            match work.and_then(|work| work.wait().map_err(Error::from)) {
                Ok(bindings) => {
                    assert_eq!(refusing, [0; 0], "request {request}");
                    assert_eq!(bindings.get("y")?.as_slice::<i32>()?, [3 * request; 2]);
                }
                Err(error) => check_refused(communicator.rank(), &refusing, &error, ErrorKind::InvalidBuffer),
            }
        }
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("runs"));
}

/// The eight operations, with the root 1.
fn layers(n: u32) -> Vec<DistCollectiveLayer> {
    let (sum, root) = (ReduceOperation::Sum, Rank(1));
    let layers: [DistCollectiveLayer; 8] = [
        DistCollective::all_reduce(sum).nb_rank(n).into(),
        DistCollective::all_gather().nb_rank(n).into(),
        DistCollective::reduce_scatter(sum).nb_rank(n).into(),
        DistCollective::all_to_all().nb_rank(n).into(),
        DistCollective::broadcast(root).nb_rank(n).into(),
        DistCollective::reduce(sum, root).nb_rank(n).into(),
        DistCollective::gather(root).nb_rank(n).into(),
        DistCollective::scatter(root).nb_rank(n).into(),
    ];
    layers.into()
}

#[test]
fn bound_layers_go_on_to_the_next_run() {
    for n in 2..=4 {
        let ran = on_both(n, move |communicator| -> Result<()> {
            let stream = Stream::worker()?;
            for (layer, len) in layers(n).iter().flat_map(|layer| LENS.map(|len| (layer, len as usize * 12))) {
                let reduces = layer.collective_operation().reduces();
                let bound = layer.bind(&communicator, DataType::Int32)?;
                let output_len = bound.output_shape(&[len])?.element_count();
                let (x, mut y) = (vec![0; len], vec![0; output_len]);
                // The last runs are on a stream.
                for (request, refusing) in (0..).zip(refusals(n)).take(20) {
                    let x: Vec<i32> = x.iter().map(|_| request).collect();
                    let refuses = refusing.contains(&communicator.rank().0);
                    let dims: &[usize] = if refuses { &[len + 1] } else { &[len] };
                    let (input, output) = (x.as_ptr().cast(), y.as_mut_ptr().cast());
                    let ran = match (refuses, request < 10) {
                        (true, false) => {
                            bound.refuse_run("it has no image")?;
                            Err(Error::new(ErrorKind::InvalidBuffer, "the program's own"))
                        }
                        (_, true) => bound.execute(Some(&x), Some(&mut y), dims),
                        // SAFETY: both have the lengths of these dimensions, and outlive the work.
                        (false, false) => unsafe { bound.enqueue(input, output, dims, &stream) }
                            .and_then(|work| work.wait().map(drop).map_err(Error::from)),
                    };
                    match ran {
                        Ok(()) => {
                            assert_eq!(refusing, [0; 0], "{layer:?} {request}");
                            let expected = if reduces { request * n as i32 } else { request };
                            assert!(!bound.writes_output() || y[0] == expected, "{layer:?} {request}: {}", y[0]);
                        }
                        Err(error) if refuses => assert!(
                            matches!(error.kind(), ErrorKind::InvalidBuffer | ErrorKind::InvalidShape),
                            "{layer:?}: {error}"
                        ),
                        Err(error) => check_refused(communicator.rank(), &refusing, &error, ErrorKind::System),
                    }
                }
            }
            communicator.finalize()
        });
        ran.into_iter().flatten().for_each(|result| result.expect("runs"));
    }
}

/// x -> all_reduce among all -> all_reduce in pairs, or the other way round.
fn two_levels(communicator: &Communicator, pairs_first: bool) -> Result<ExecutionContext> {
    let all = || DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(4);
    let pairs = || DistCollective::all_reduce(ReduceOperation::Sum).partition(Partition::new([[0, 1], [2, 3]]));
    let engine = engine(2, |network, x| {
        let sum = if pairs_first { network.add(pairs(), x)? } else { network.add(all(), x)? };
        if pairs_first { network.add(all(), sum) } else { network.add(pairs(), sum) }
    });
    let mut context = engine?.create_execution_context()?;
    context.set_communicator(communicator)?;
    Ok(context)
}

/// A run with two communicators is refused in both.
#[test]
fn a_run_is_refused_in_all_its_groups() {
    let ran = on_both(4, |communicator| -> Result<()> {
        let mut context = two_levels(&communicator, false)?;
        for request in 0..20 {
            let refuses = request % 3 == 1 && communicator.rank() == Rank(request as u32 % 4);
            match execute(&mut context, 2, request, refuses) {
                (Ok(y), _) => assert_eq!((request % 3 == 1, y), (false, vec![8 * request; 2])),
                (Err(error), own) => check_refused(communicator.rank(), &[request as u32 % 4], &error, own),
            }
        }
        communicator.finalize()
    });
    ran.into_iter().flatten().for_each(|result| result.expect("runs"));
}

/// Ranks 2 and 3 have done a collective of the run when they learn that rank 0 refuses it. That
/// ends the communicator.
#[test]
fn a_run_that_a_rank_has_begun_ends_the_communicator() {
    let kinds = on_both(4, |communicator| -> Result<(ErrorKind, ErrorKind)> {
        let mut context = two_levels(&communicator, true)?;
        let (ran, _) = execute(&mut context, 2, 0, communicator.rank() == Rank(0));
        let error = ran.expect_err("rank 0 refuses it");
        assert!(communicator.rank() == Rank(0) || error.to_string().contains("input \"x\""), "{error}");
        Ok((error.kind(), communicator.barrier().expect_err("it has ended").kind()))
    });
    for kinds in kinds {
        let kinds: Vec<_> = kinds.into_iter().map(|kinds| kinds.expect("errors")).collect();
        assert_eq!(kinds[0].0, ErrorKind::InvalidBuffer);
        assert!(matches!(kinds[1].0, ErrorKind::RunRefused | ErrorKind::Aborted), "{kinds:?}");
        assert!(kinds[2..].iter().all(|(run, _)| *run == ErrorKind::Aborted), "{kinds:?}");
        assert!(kinds.iter().all(|(_, next)| *next == ErrorKind::Aborted), "{kinds:?}");
    }
}

/// Equal calls of different contexts, runs and layers are no agreement.
#[test]
fn runs_of_other_contexts_and_eager_calls_differ() {
    let run = |communicator: &Communicator, choice: u32| -> Result<()> {
        let mut contexts = [sum_context(communicator, 2)?, sum_context(communicator, 2)?];
        let layer = DistCollective::all_reduce(ReduceOperation::Sum).nb_rank(2).into_layer();
        let bound = layer.bind(communicator, DataType::Int32)?;
        let mut y = [0; 2];
        match choice {
            0 | 1 => contexts[choice as usize].execute(inputs!["x" => &[1, 2]], outputs!["y" => &mut y]),
            2 => bound.execute(Some(&[1, 2]), Some(&mut y), &[2]),
            _ => communicator.all_reduce(&mut y, ReduceOperation::Sum),
        }
    };
    for (a, b) in [(0, 1), (0, 2), (0, 3), (2, 3)] {
        for errors in on_both(2, move |communicator| run(&communicator, [a, b][communicator.rank().index()])) {
            for error in errors {
                let error = error.expect_err("the calls differ");
                assert_eq!(error.kind(), ErrorKind::Disagreement);
                let text = error.to_string();
                let says = |what: &str| text.contains(what);
                assert!(says("in run 1 of context or layer") && says("outside of runs") == (b == 3), "{text}");
            }
        }
    }
}

/// Reasons of all lengths arrive, up to 4 KiB.
#[test]
fn a_reason_arrives_whole() {
    for len in [0usize, 1, 90, 96, 97, 4000, 9000] {
        let ran = on_both(2, move |communicator| -> Result<()> {
            let mut context = sum_context(&communicator, 2)?;
            let reason = "é".repeat(len / 2) + &"x".repeat(len % 2);
            if communicator.rank() == Rank(1) {
                context.refuse_run(&reason)?;
            } else {
                let (ran, _) = execute(&mut context, 2, 1, false);
                let text = ran.expect_err("refused").to_string();
                let told = text.split_once("refused run 1: ").expect("the sentence").1;
                let expected = if len <= 4096 { &reason } else { &reason[..4096] };
                assert_eq!(told, expected);
            }
            let (ran, _) = execute(&mut context, 2, 7, false);
            assert_eq!(ran?, [14, 14]);
            communicator.finalize()
        });
        ran.into_iter().flatten().for_each(|result| result.expect("runs"));
    }
}
