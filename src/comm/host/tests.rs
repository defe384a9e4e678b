//! Calls of single ranks, with peers that stand still, fail or lie.

use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use super::arena::Arena;
use super::memory::SharedMemory;
use super::protocol::access_guard::Accessor;
use super::protocol::segment::Segment;
use super::protocol::slot::{BufferLocation, CallBody};
use super::world::World;
use super::{HostBackend, in_process};
use crate::collective::{Call, Collective, Purpose, ReduceOperation};
use crate::comm::backend::{Backend, Request};
use crate::comm::signature::Signature;
use crate::data_type::DataType;
use crate::error::{ErrorKind, Result};
use crate::memory::{Address, Lease, MemorySpace};
use crate::rank::GroupRank;

/// A call in place on the bytes of `x`.
fn call(rank: &HostBackend, collective: Collective<GroupRank>, x: &mut [u8], deadline: Instant) -> Result<()> {
    let call = Call::of_blocks(collective, DataType::Uint8, x.len());
    let buffer = Address { pointer: x.as_mut_ptr(), space: MemorySpace::Host };
    // SAFETY: the buffer is as long as the call says, and borrowed until the call returns.
    unsafe { rank.run_request(&Request::new(call, [buffer; 2], deadline)) }
}

const SUM: Collective<GroupRank> = Collective::AllReduce { reduce_op: ReduceOperation::Sum };

/// Rank 1 fails while the source writes memory for both. It is freed at once, not with the
/// communicator.
#[test]
fn memory_that_is_written_is_freed_at_a_failure() {
    let ranks = in_process(2, None).expect("ranks");
    let mut fill = |_: &mut [u8], keep_going: &dyn Fn() -> Result<()>| {
        keep_going().expect("no rank has failed");
        ranks[1].abort(ErrorKind::Aborted, "on purpose");
        keep_going()
    };
    let far = Instant::now() + Duration::from_secs(10);
    std::thread::scope(|scope| {
        let receiving = scope.spawn(|| ranks[1].share(Purpose::ALLOCATE, 1 << 20, GroupRank(0), None, far).map(drop));
        let error = ranks[0]
            .share(Purpose::ALLOCATE, 1 << 20, GroupRank(0), Some(&mut fill), far)
            .map(drop)
            .expect_err("rank 1 failed");
        assert_eq!(error.kind(), ErrorKind::Aborted);
        receiving.join().expect("no panic").expect_err("it failed itself");
    });
    let error = ranks[0].world.memory.find(1, 1 << 20).map(drop).expect_err("it is freed").to_string();
    assert_eq!(error, "the rank that allocated the memory has dropped it");
}

/// Rank 0 has arrived, so that rank 1, whose deadline is over, moves elements without a wait.
#[test]
fn a_rank_looks_at_the_clock_while_it_moves_elements() {
    const LEN: usize = 8 << 20;
    let far = Instant::now() + Duration::from_secs(10);
    let broadcast = Collective::Broadcast { root: GroupRank(0) };
    for collective in [SUM, broadcast] {
        let ranks = in_process(2, None).expect("ranks");
        std::thread::scope(|scope| {
            let first = scope.spawn(|| call(&ranks[0], collective, &mut vec![1; LEN], far));
            while ranks[1].own.segment.slot(GroupRank(0)).call_header(1).is_none() {
                std::thread::yield_now();
            }
            let error = call(&ranks[1], collective, &mut vec![1; LEN], Instant::now()).expect_err("it is too late");
            assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
            let text = "this rank did not finish moving the elements before the deadline; it had moved 1 MiB";
            assert!(error.to_string().ends_with(text), "{error}");
            first.join().expect("no panic").expect_err("rank 1 failed");
        });
    }
}

/// A call that moves no more than one check of the deadline allows succeeds after its deadline.
#[test]
fn a_rank_that_has_moved_everything_does_not_look_at_the_clock() {
    let ranks = in_process(2, None).expect("ranks");
    let far = Instant::now() + Duration::from_secs(10);
    let broadcast = Collective::Broadcast { root: GroupRank(0) };
    std::thread::scope(|scope| {
        let first = scope.spawn(|| call(&ranks[0], broadcast, &mut vec![1; 1 << 20], far));
        while ranks[1].own.segment.slot(GroupRank(0)).call_header(1).is_none() {
            std::thread::yield_now();
        }
        let mut x = vec![0; 1 << 20];
        call(&ranks[1], broadcast, &mut x, Instant::now()).expect("nothing is left to do");
        assert!(x.iter().all(|x| *x == 1));
        first.join().expect("no panic").expect("rank 1 is done");
    });
}

/// Rank 0 posts its header and then does nothing.
#[test]
fn a_rank_that_arrived_is_not_said_to_be_missing() {
    let ranks = in_process(2, None).expect("ranks");
    let (mut x, mut y) = (vec![1u8; 8192], vec![1u8; 8192]);
    let signature = Signature::new(Call::of_blocks(SUM, DataType::Uint8, x.len()), 0);
    let place = BufferLocation::Address(x.as_mut_ptr().expose_provenance());
    ranks[0].own.segment.post_header(GroupRank(0), 1, signature, CallBody::Locations([place, place], false));
    let error =
        call(&ranks[1], SUM, &mut y, Instant::now() + Duration::from_millis(20)).expect_err("rank 0 stands still");
    assert_eq!(
        error.to_string(),
        "all_reduce(sum) of 8192 uint8 (collective 1): rank 0 arrived, but did not finish moving the elements before the \
         deadline"
    );
    drop(x);
}

/// Rank 0 waits for rank 2; rank 1 waits for rank 0, which has arrived.
#[test]
fn a_rank_that_waits_for_another_one_is_not_said_to_be_missing() {
    const LEN: usize = 8192;
    let ranks = in_process(3, None).expect("ranks");
    let gather = Collective::Gather { root: GroupRank(0) };
    let request = |rank: &HostBackend, x: &mut [u8], deadline| {
        let call = Call::of_blocks(gather, DataType::Uint8, LEN);
        let input = Address { pointer: x.as_mut_ptr(), space: MemorySpace::Host };
        let output = Address { pointer: x.as_mut_ptr().wrapping_add(LEN), space: MemorySpace::Host };
        // SAFETY: the memory holds an input, and behind it an output of three blocks.
        unsafe { rank.run_request(&Request::new(call, [input, output], deadline)) }
    };
    let far = Instant::now() + Duration::from_secs(10);
    std::thread::scope(|scope| {
        let root = scope.spawn(|| request(&ranks[0], &mut vec![1; 4 * LEN], far));
        while ranks[1].own.segment.slot(GroupRank(0)).call_header(1).is_none() {
            std::thread::yield_now();
        }
        let soon = Instant::now() + Duration::from_millis(20);
        let error = request(&ranks[1], &mut vec![1; 4 * LEN], soon).expect_err("rank 2 does not come").to_string();
        assert!(error.ends_with("(collective 1): rank 2 did not arrive before the deadline"), "{error}");
        root.join().expect("no panic").expect_err("rank 1 failed");
    });
}

/// A peer is stopped in the middle of a copy while this rank's collective fails: the call returns
/// only afterwards.
#[test]
fn a_collective_that_fails_waits_for_a_peer_that_still_reads() {
    let mut ranks = in_process(2, None).expect("ranks");
    let (peer, failing) = (ranks.pop().expect("rank 1"), ranks.pop().expect("rank 0"));
    let (inside, entered) = channel();
    let (go_on, stopped) = channel::<()>();
    let reading = std::thread::spawn(move || {
        let access = peer.own.segment.begin_access(peer.own.rank, Accessor::Collective).expect("no abort yet");
        inside.send(()).expect("the test listens");
        stopped.recv().expect("the test says when");
        drop(access);
        peer
    });
    entered.recv().expect("the peer is inside");
    let (returned, failed) = channel();
    let call = std::thread::spawn(move || {
        let request = Request::barrier(Purpose::BARRIER, Instant::now() + Duration::from_millis(20));
        // SAFETY: without elements no buffer is used.
        let result = unsafe { failing.run_request(&request) };
        returned.send(()).expect("the test listens");
        result
    });
    assert!(failed.recv_timeout(Duration::from_millis(200)).is_err(), "the call returned while a peer was reading");
    go_on.send(()).expect("the peer listens");
    failed.recv_timeout(Duration::from_secs(10)).expect("the peer is out");
    assert_eq!(call.join().expect("no panic").expect_err("no peer came").kind(), ErrorKind::DeadlineExceeded);
    reading.join().expect("no panic");
}

/// Two ranks that take each other for ranks of another process.
fn ranks_of_processes() -> [HostBackend; 2] {
    let memory = SharedMemory::for_threads(Segment::root_size(2, true).byte_len).expect("memory");
    let world = World::of_one_process(Segment::root(memory, 2, 0..1, true, None));
    HostBackend::of_world(&world, 0..2).try_into().ok().expect("two ranks")
}

/// A peer in another process posts an address, which is other memory in this process, or that of a
/// list of addresses.
#[test]
fn an_address_that_another_process_gives_is_neither_read_nor_written() {
    refuses_what_another_process_posts(BufferLocation::Address, "rank 1 gives an address, and is in another process");
    let text = "rank 1 gives a list of addresses, and is in another process";
    refuses_what_another_process_posts(BufferLocation::List, text);
}

fn refuses_what_another_process_posts(posted: fn(usize) -> BufferLocation, text: &str) {
    const LEN: usize = 5000;
    let all_reduce = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
    for collective in [Collective::Broadcast { root: GroupRank(1) }, Collective::AllGather, all_reduce] {
        let [rank, peer] = ranks_of_processes();
        let secret = [3u8; LEN];
        let call = Call::of_blocks(collective, DataType::Uint8, LEN);
        let place = posted(secret.as_ptr().expose_provenance());
        let body = CallBody::Locations([place, place], false);
        peer.own.segment.post_header(peer.own.rank, 1, Signature::new(call, 0), body);
        // This rank's own buffers lie in symmetric memory, so that the call would be direct.
        let block = Arena::block_len(4 * LEN, 2).expect("a length");
        let memory = Arc::new(SharedMemory::for_threads(block).expect("memory"));
        let part = rank.own.arena.add_block(&rank.own.segment, rank.own.rank, 1, 4 * LEN, memory);
        let start = part.address().as_ptr();
        let sides = [Address::host(start), Address::host(start.wrapping_add(LEN))];
        let request = Request::new(call, sides, Instant::now() + Duration::from_secs(5));
        // SAFETY: the part holds an input, and behind it an output of two blocks.
        let error = unsafe { rank.run_request(&request) }.expect_err("it is refused");
        assert_eq!(error.to_string(), text);
        // SAFETY: as above, and no rank writes it any more.
        let output = unsafe { std::slice::from_raw_parts(start.wrapping_add(LEN), 2 * LEN) };
        assert!(output.iter().all(|byte| *byte == 0), "the peer's address was read");
        assert_eq!(secret, [3; LEN], "the peer's address was written");
    }
}

/// Rank 0's buffer is in symmetric memory and rank 1's is not. Only a broadcast from rank 0 is
/// direct.
#[test]
fn ranks_with_buffers_of_different_kinds_choose_the_same_transfer() {
    const LEN: usize = 8192;
    let [zero, one] = [GroupRank(0), GroupRank(1)];
    for (collective, expected) in
        [(SUM, 3), (Collective::Broadcast { root: zero }, 1), (Collective::Broadcast { root: one }, 2)]
    {
        let ranks = ranks_of_processes();
        let block = Arena::block_len(LEN, 2).expect("a length");
        let block = Arc::new(SharedMemory::for_threads(block).expect("memory"));
        let parts = [0, 1].map(|r: usize| {
            ranks[r].own.arena.add_block(&ranks[r].own.segment, ranks[r].own.rank, 1, LEN, Arc::clone(&block))
        });
        // SAFETY: the part is as long, and the ranks touch it only in the call that borrows it.
        let symmetric = unsafe { std::slice::from_raw_parts_mut(parts[0].address().as_ptr(), LEN) };
        let mut private = vec![2u8; LEN];
        symmetric.fill(1);
        let deadline = Instant::now() + Duration::from_secs(10);
        std::thread::scope(|scope| {
            let peer = scope.spawn(|| call(&ranks[1], collective, &mut private, deadline));
            call(&ranks[0], collective, symmetric, deadline).expect("rank 0 is done");
            peer.join().expect("no panic").expect("rank 1 is done");
        });
        assert!(symmetric.iter().chain(&private).all(|byte| *byte == expected), "{collective:?}");
    }
}

/// The numbers of the list in docs/src/internals.md count up from 1, comments cite no other number,
/// and each invariant is cited.
#[test]
fn comments_cite_the_invariants_of_the_list() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let Ok(text) = std::fs::read_to_string(root.join("docs/src/internals.md")) else {
        return; // The packaged library comes without it.
    };
    let (_, list) = text.split_once("## Invariants of the shared-memory protocol").expect("the section");
    let list = list.split_once("\n## ").map_or(list, |(list, _)| list);
    let numbers: Vec<usize> = list.lines().filter_map(|line| line.split_once(". *")?.0.parse().ok()).collect();
    assert!(!numbers.is_empty() && numbers.iter().copied().eq(1..=numbers.len()), "{numbers:?}");
    let mut cited = std::collections::BTreeSet::new();
    let mut folders = vec![root.join("src/comm/host")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            let code = std::fs::read_to_string(path).expect("a source file");
            // A comment may break a line between the word and the number.
            let words: Vec<&str> =
                code.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!")).collect();
            let word = |word: &str| word.trim_start_matches('(').to_owned();
            for (i, _) in words.iter().enumerate().filter(|(_, w)| ["invariant", "invariants"].contains(&&*word(w))) {
                let list = words[i + 1..]
                    .iter()
                    .take_while(|word| **word == "and" || word.starts_with(|c: char| c.is_ascii_digit()));
                for number in
                    list.filter_map(|word| word.trim_end_matches(|c: char| !c.is_ascii_digit()).parse::<usize>().ok())
                {
                    cited.insert(number);
                }
            }
        }
    }
    assert!(cited.iter().copied().eq(numbers), "cited are {cited:?}");
}
