//! What each rank gets when one rank makes another call than the others: the table in
//! `docs/src/errors.md`, row by row.

use distcollective::collective::Collective;
use distcollective::tensor::{TensorView, TensorViewMut};
use distcollective::{Communicator, Error, ErrorKind, Rank, ReduceOperation, Result};

use crate::messages::on_both;

/// A collective of blocks of so many bytes.
type Call = (Collective<Rank>, usize);

fn calls() -> Vec<Call> {
    let reduce_op = ReduceOperation::Sum;
    let mut calls = vec![
        (Collective::AllReduce { reduce_op }, 8),
        (Collective::AllReduce { reduce_op: ReduceOperation::Max }, 8),
        (Collective::AllReduce { reduce_op }, 6000),
        (Collective::AllGather, 8),
        (Collective::ReduceScatter { reduce_op }, 8),
        (Collective::AllToAll, 8),
    ];
    for root in [Rank(0), Rank(1)] {
        for bytes in [8, 6000] {
            calls.push((Collective::Broadcast { root }, bytes));
            calls.push((Collective::Reduce { reduce_op, root }, bytes));
            calls.push((Collective::Gather { root }, bytes));
            calls.push((Collective::Scatter { root }, bytes));
        }
    }
    calls
}

/// Whether a rank takes elements from a peer.
fn takes(collective: Collective<Rank>, rank: Rank, peer: Rank) -> bool {
    match collective {
        Collective::Broadcast { root } | Collective::Scatter { root } => peer == root,
        Collective::Reduce { root, .. } | Collective::Gather { root } => rank == root,
        _ => true,
    }
}

fn run(communicator: &Communicator, (collective, bytes): Call) -> Result<()> {
    let n = communicator.world_size() as usize;
    let (whole_input, whole_output) = match collective {
        Collective::AllGather | Collective::Gather { .. } => (false, true),
        Collective::ReduceScatter { .. } | Collective::Scatter { .. } => (true, false),
        Collective::AllToAll => (true, true),
        _ => (false, false),
    };
    let [input, mut output] = [whole_input, whole_output].map(|whole| vec![1u8; if whole { n * bytes } else { bytes }]);
    let (input, output) = (TensorView::from(&input), TensorViewMut::from(&mut output));
    communicator.collective(collective, Some(input), Some(output))
}

/// What a rank does after the call, or has begun before it.
#[derive(Clone, Copy, Debug)]
enum Next {
    Barrier,
    Receive,
    /// On another thread, since before the call.
    ReceiveMeanwhile,
    /// Since before the call.
    Work,
}

/// The result of a rank's call, and of what it does next.
fn play(communicator: &Communicator, call: Call, next: Next) -> [Result<()>; 2] {
    let (rank, n) = (communicator.rank().0, communicator.world_size());
    let peer = Rank((rank + 1) % n);
    let receive = || communicator.recv(&mut [0u8], peer, 0).map(drop);
    match next {
        Next::Barrier => [run(communicator, call), communicator.barrier()],
        Next::Receive => [run(communicator, call), receive()],
        Next::ReceiveMeanwhile => std::thread::scope(|scope| {
            let receiving = scope.spawn(receive);
            [run(communicator, call), receiving.join().expect("no panic")]
        }),
        Next::Work => match communicator.irecv(vec![0u8], peer, 0) {
            Ok(work) => [run(communicator, call), work.wait().map(drop).map_err(Error::from)],
            Err(error) => {
                let error = Error::from(error);
                [Err(error.clone()), Err(error)]
            }
        },
    }
}

/// In the calls of some pairs, one rank makes the second.
fn check(n: u32, nexts: &'static [Next]) {
    let calls = calls();
    let pairs = calls.iter().flat_map(|a| calls.iter().filter(move |b| *b != a).map(move |b| (*a, *b)));
    // Each case has another rank that differs.
    for (case, (common, other)) in pairs.enumerate().filter(|(case, _)| case % 5 == n as usize) {
        let next = nexts[case / 5 % nexts.len()];
        let odd = Rank((case % n as usize) as u32);
        let call_of = move |rank| if rank == odd { other } else { common };
        for results in on_both(n, move |communicator| play(&communicator, call_of(communicator.rank()), next)) {
            for (rank, [called, then]) in (0..n).map(Rank).zip(results) {
                let what = format!("rank {rank} of {n}; {common:?}, rank {odd} {other:?}; {next:?}");
                let (collective, _) = call_of(rank);
                let is_served = |peer| takes(collective, rank, peer) && call_of(peer) != call_of(rank);
                if (0..n).map(Rank).filter(|peer| *peer != rank).any(is_served) {
                    assert!(called.is_err(), "it takes from a rank whose call differs: {what}");
                }
                for error in [called.err(), Some(then.expect_err(&what))].into_iter().flatten() {
                    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}; {what}");
                }
            }
        }
    }
}

#[test]
fn two_ranks() {
    check(2, &[Next::Barrier, Next::Receive, Next::ReceiveMeanwhile, Next::Work]);
}

#[test]
fn three_ranks() {
    check(3, &[Next::Work, Next::Barrier, Next::Receive, Next::ReceiveMeanwhile]);
}

#[test]
fn four_ranks() {
    check(4, &[Next::ReceiveMeanwhile, Next::Work, Next::Barrier, Next::Receive]);
}
