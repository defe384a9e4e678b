//! The ways in which elements move between ranks: many calls of random operations, roots and
//! lengths, ranks of different speeds, and the lengths at which one way ends and the next begins.

use std::time::Duration;

use distcollective::{Buffer, Communicator, DataType, ErrorKind, Rank, ReduceOperation, Result};

use crate::limits::children;
use crate::random::Random;
use crate::ranks::{DEADLINE, on_ranks, wait_all};

/// How many calls each rank makes.
const CALLS: usize = 300;

/// The longest block, in elements of 4 bytes: longer than all stages of a rank together.
const MOST: usize = 700_000;

/// What each rank of a child does.
pub fn make_random_calls(communicator: &Communicator) {
    // All ranks draw the same calls, and each draws its own delays.
    let (mut calls, mut delays) = (Random(17), Random(100 + u64::from(communicator.rank().0)));
    let mut symmetric = communicator.allocate(DataType::Int32, [2000]).expect("symmetric memory");
    // More rounds than a rank has stages, of which none uses a stage.
    for _ in 0..40 {
        broadcast_directly(communicator, &mut symmetric, Rank(0)).unwrap_or_else(|error| panic!("{error}"));
    }
    make_calls_of_each_way(communicator);
    make_shared_all_reduces(communicator);
    // A root that only gives fills all stages, and then writes each again.
    for root in [Rank(0), Rank(communicator.world_size() - 1)] {
        call(communicator, BROADCAST, root, MOST).unwrap_or_else(|error| panic!("{error}"));
    }
    for number in 0..CALLS {
        // Few calls are long.
        let block = match calls.below(10) {
            0 => 1 + calls.below(MOST),
            1..=4 => 1 + calls.below(40_000),
            5..=6 => 1 + calls.below(2000),
            _ => 1 + calls.below(300),
        };
        let operation = calls.below(OPERATIONS + 1);
        let root = Rank(calls.below(communicator.world_size() as usize) as u32);
        delay(&mut delays);
        let result = match operation {
            OPERATIONS => broadcast_directly(communicator, &mut symmetric, root),
            _ => call(communicator, operation, root, block),
        };
        result.unwrap_or_else(|error| panic!("call {number}, operation {operation} of {block}: {error}"));
    }
}

/// Stops now and then, so that peers run ahead.
fn delay(delays: &mut Random) {
    if delays.below(8) == 0 {
        std::thread::sleep(Duration::from_micros(delays.below(300) as u64));
    }
}

/// Makes calls of the lengths at which inline transfers end, at 104 bytes of input, and eager ones,
/// at 4 KiB, for one block and for one for each of two to four ranks. Of each length a rank makes
/// more calls than its slot has headers.
fn make_calls_of_each_way(communicator: &Communicator) {
    let mut delays = Random(200 + u64::from(communicator.rank().0));
    let last = Rank(communicator.world_size() - 1);
    for block in [6, 7, 8, 9, 13, 14, 26, 27, 256, 257, 341, 342, 512, 513, 1024, 1025] {
        for operation in 0..OPERATIONS {
            for root in [Rank(0), last] {
                delay(&mut delays);
                call(communicator, operation, root, block)
                    .unwrap_or_else(|error| panic!("operation {operation} of {block}: {error}"));
            }
        }
    }
}

/// Makes all_reduces whose work the ranks share, which are those from 64 KiB on, of lengths at
/// which chunks and parts of them end for two, three and four ranks. Before and after each is a
/// call of other rounds.
fn make_shared_all_reduces(communicator: &Communicator) {
    let mut delays = Random(300 + u64::from(communicator.rank().0));
    for chunk in [16384, 16368] {
        for block in [1, 2, 3].into_iter().flat_map(|count| [count * chunk - 1, count * chunk, count * chunk + 1]) {
            for (operation, block) in [(ALL_REDUCE, block), (BROADCAST, 9000)] {
                delay(&mut delays);
                call(communicator, operation, Rank(0), block)
                    .unwrap_or_else(|error| panic!("operation {operation} of {block}: {error}"));
            }
        }
    }
}

/// Broadcasts symmetric memory, which goes through no stage but counts as a round.
fn broadcast_directly(communicator: &Communicator, buffer: &mut Buffer, root: Rank) -> Result<()> {
    buffer.as_mut_slice::<i32>()?.fill(communicator.rank().0 as i32);
    communicator.broadcast(&mut *buffer, root)?;
    assert!(buffer.as_slice::<i32>()?.iter().all(|x| *x == root.0 as i32), "a direct broadcast");
    Ok(())
}

/// How many operations [`call`] has: the eight, and the three that have a list form in that form.
const OPERATIONS: usize = 11;

const ALL_REDUCE: usize = 0;
const BROADCAST: usize = 1;

/// Makes a call and checks its result.
fn call(communicator: &Communicator, operation: usize, root: Rank, block: usize) -> Result<()> {
    let (n, rank) = (communicator.world_size() as i32, communicator.rank());
    // The elements of the block that `from` gives to `to`.
    let given = |from: i32, to: i32| (0..block as i32).map(move |i| i.wrapping_mul(7919) ^ (from << 8) ^ to);
    let own = rank.0 as i32;
    let to_each = || (0..n).flat_map(|to| given(own, to)).collect::<Vec<i32>>();
    let from_each = |to| (0..n).flat_map(|from| given(from, to)).collect::<Vec<i32>>();
    let sum = |to| -> Vec<i32> {
        let mut sums: Vec<i32> = given(0, to).collect();
        (1..n).for_each(|from| sums.iter_mut().zip(given(from, to)).for_each(|(sum, x)| *sum = sum.wrapping_add(x)));
        sums
    };
    let mut x: Vec<i32> = given(own, 0).collect();
    let mut all = vec![-1; block * n as usize];
    let is_root = rank == root;
    match operation {
        ALL_REDUCE => {
            communicator.all_reduce(&mut x, ReduceOperation::Sum)?;
            assert!(x == sum(0), "all_reduce");
        }
        BROADCAST => {
            communicator.broadcast(&mut x, root)?;
            assert!(given(root.0 as i32, 0).eq(x), "broadcast");
        }
        2 => {
            communicator.reduce(&mut x, ReduceOperation::Sum, root)?;
            assert!(if is_root { x == sum(0) } else { given(own, 0).eq(x) }, "reduce");
        }
        3 => {
            communicator.gather(&x, is_root.then_some(&mut all), root)?;
            assert!(!is_root || all == from_each(0), "gather");
        }
        4 => {
            let input = to_each();
            communicator.scatter(is_root.then_some(&input), &mut x, root)?;
            assert!(given(root.0 as i32, own).eq(x), "scatter");
        }
        5 => {
            communicator.all_gather(&x, &mut all)?;
            assert!(all == from_each(0), "all_gather");
        }
        6 => {
            communicator.all_to_all(&to_each(), &mut all)?;
            assert!(all == from_each(own), "all_to_all");
        }
        7 => {
            communicator.reduce_scatter(&to_each(), &mut x, ReduceOperation::Sum)?;
            assert!(x == sum(own), "reduce_scatter");
        }
        8 => {
            let input = to_each();
            let list = is_root.then(|| input.chunks(block));
            communicator.scatter_list(list, &mut x, root)?;
            assert!(given(root.0 as i32, own).eq(x), "scatter_list");
        }
        9 => {
            communicator.gather_list(&x, is_root.then(|| all.chunks_mut(block)), root)?;
            assert!(!is_root || all == from_each(0), "gather_list");
        }
        _ => {
            communicator.all_gather_list(&x, all.chunks_mut(block))?;
            assert!(all == from_each(0), "all_gather_list");
        }
    }
    Ok(())
}

/// What each rank of a child does. Rank 0 broadcasts more than its stages hold, and waits for rank
/// 1 to take some. Rank 1 only gives, in another call, and makes no further collective.
pub fn make_two_calls_that_only_give(communicator: &Communicator) {
    let result = if communicator.rank() == Rank(0) {
        communicator.with_timeout(3 * DEADLINE).broadcast(&mut vec![0i32; MOST], Rank(0))
    } else {
        // By then rank 0 waits.
        std::thread::sleep(Duration::from_millis(100));
        communicator.gather(&[0i32], None::<&mut [i32]>, Rank(0)).expect("it only gives");
        communicator.with_timeout(DEADLINE / 2).recv(&mut [0i32], Rank(0), 0).map(drop)
    };
    let error = result.expect_err("the calls differ");
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
}

/// What each rank of a child does. Rank 1 has staging memory, gives in one round, and leaves. Rank
/// 2 comes later, and allocates its own first.
pub fn give_and_leave(communicator: &Communicator) {
    let mut block = vec![7i32; 2000];
    communicator.broadcast(&mut block, Rank(1)).expect("a broadcast");
    if communicator.rank() == Rank(2) {
        std::thread::sleep(Duration::from_millis(100));
    }
    let mut all = vec![0i32; 6000];
    communicator.gather(&block, (communicator.rank() == Rank(0)).then_some(&mut all), Rank(0)).expect("a gather");
    assert!(communicator.rank() != Rank(0) || all == [7; 6000]);
}

#[test]
fn a_giver_that_leaves_has_given() {
    for (rank, (success, text)) in
        wait_all(children(&[], "a giver that leaves", &[1, 1, 1]), DEADLINE).into_iter().enumerate()
    {
        assert!(success, "process {rank}: {text}");
    }
}

#[test]
fn a_root_that_waits_for_a_stage_learns_that_its_peer_made_another_call() {
    let results = wait_all(children(&[], "two calls that only give", &[1, 1]), DEADLINE);
    for (rank, (success, text)) in results.into_iter().enumerate() {
        assert!(success, "process {rank}: {text}");
    }
}

/// A root runs ahead until a slow receiver keeps it from replacing a header, and eager memory.
#[test]
fn a_root_waits_for_the_slowest_receiver() {
    on_ranks(2, |communicator| {
        let communicator = communicator.with_timeout(Duration::from_secs(2));
        for len in [1, 200] {
            for value in 0..60i32 {
                let mut block = vec![if communicator.rank() == Rank(0) { value } else { -1 }; len];
                if communicator.rank() != Rank(0) {
                    std::thread::sleep(Duration::from_micros(300));
                }
                communicator.broadcast(&mut block, Rank(0)).unwrap_or_else(|error| panic!("{value}: {error}"));
                assert_eq!(block, vec![value; len]);
            }
        }
    });
}

#[test]
fn threads_move_elements_in_each_way() {
    for n in 1..=4 {
        on_ranks(n, |communicator| make_calls_of_each_way(&communicator));
    }
}

#[test]
fn ranks_of_different_speeds_get_what_their_peers_gave() {
    for processes in [&[1, 1][..], &[1, 1, 1], &[2, 1, 1]] {
        for (rank, (success, text)) in
            wait_all(children(&[], "random calls", processes), DEADLINE).into_iter().enumerate()
        {
            assert!(success, "process {rank} of {processes:?}: {text}");
        }
    }
}
