//! The protocol under a model checker, which tries every interleaving of two or three ranks, up to
//! a number of preemptions. It reports a missing wake-up as a deadlock, and a stage of staging
//! memory that is written while it is read as an error.
//!
//! `RUSTFLAGS="--cfg loom" cargo test --lib model`

use std::num::NonZeroU16;
use std::sync::Arc;
use std::time::{Duration, Instant};

use loom::thread;

use super::access_guard::Accessor;
use super::segment::{EAGER_BYTES, Milestone, STAGE_BYTES, Segment};
use super::slot::{CallBody, HEADER_RING_LEN, PAYLOAD_BYTES};
use crate::collective::{Call, Collective, Purpose, ReduceOperation};
use crate::comm::backend::{Backend, Request};
use crate::comm::host::HostBackend;
use crate::comm::host::arena::Arena;
use crate::comm::host::memory::SharedMemory;
use crate::comm::host::world::World;
use crate::comm::run_id::{CountedRun, RunCounter};
use crate::comm::signature::Signature;
use crate::data_type::DataType;
use crate::error::{ErrorKind, Result};
use crate::memory::Address;
use crate::rank::{GroupRank, Rank};
use crate::sync::Tracked;

pub(crate) fn explore(preemptions: usize, body: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    // One interleaving has more steps than the checker allows by default.
    builder.max_branches = 3000;
    builder.check(body);
}

/// Ranks that reach each other's buffers, or do not if `spans_processes`. The checker does not see
/// what std's `Arc` orders, so the test's thread keeps the world until the others have ended.
pub(crate) fn ranks(n: u32, spans_processes: bool) -> (Vec<HostBackend>, Arc<World>) {
    let memory = SharedMemory::for_threads(Segment::root_size(n, spans_processes).byte_len).expect("memory");
    let segment = Segment::root(memory, n, 0..n, spans_processes, None);
    // All values have to be constructed before the first thread starts.
    segment.has_lost(Milestone::Done(0));
    segment.domain.has_dead();
    segment.slot(ROOT);
    segment.ranks().for_each(|from| segment.ranks().for_each(|to| segment.ring(from, to).construct()));
    segment.domain.check().expect("alive");
    segment.domain.wake(std::iter::once(Rank(0)));
    segment.domain.is_dead(Rank(0));
    let world = World::of_one_process(segment);
    (HostBackend::of_world(&world, 0..n), world)
}

/// Runs each rank's part on a thread of its own. No rank leaves before all have ended, because that
/// would wake a rank that waits for another wake-up.
pub(crate) fn on_ranks(
    (ranks, world): (Vec<HostBackend>, Arc<World>),
    part: impl Fn(&HostBackend) + Copy + Send + 'static,
) {
    let mut ranks = ranks.into_iter();
    let first = ranks.next().expect("rank 0");
    let run = move |rank| {
        part(&rank);
        rank
    };
    let others: Vec<_> = ranks.map(|rank| thread::spawn(move || run(rank))).collect();
    let first = run(first);
    let others: Vec<_> = others.into_iter().map(|thread| thread.join().expect("no panic")).collect();
    drop((first, others, world));
}

fn run(rank: &HostBackend, collective: Collective<GroupRank>, input: &[u8], output: &mut [u8]) -> Result<()> {
    let block = input.len() / if matches!(collective, Collective::Scatter { .. }) { rank.own.segment.len() } else { 1 };
    let call = Call::of_blocks(collective, DataType::Uint8, block);
    let sides = [Address::host(input.as_ptr()), Address::host(output.as_mut_ptr())];
    let request = Request::new(call, sides, Instant::now() + Duration::from_secs(3600));
    // SAFETY: each test passes buffers of the right lengths.
    unsafe { rank.run_request(&request) }
}

fn barrier(rank: &HostBackend) -> Result<()> {
    let request = Request::barrier(Purpose::BARRIER, Instant::now() + Duration::from_secs(3600));
    // SAFETY: without elements no buffer is used.
    unsafe { rank.run_request(&request) }
}

const SUM: ReduceOperation = ReduceOperation::Sum;
const ROOT: GroupRank = GroupRank(0);

#[test]
fn barriers_end() {
    explore(3, || {
        on_ranks(ranks(2, false), |rank| {
            barrier(rank).expect("a barrier");
            barrier(rank).expect("a barrier");
        });
    });
}

#[test]
fn barriers_of_three_end() {
    explore(1, || on_ranks(ranks(3, false), |rank| barrier(rank).expect("a barrier")));
}

/// One more than the ring has headers, so that one is replaced.
#[test]
fn small_inputs_travel_in_headers() {
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            for round in 1..=HEADER_RING_LEN as u8 + 1 {
                let mut sum = [0];
                run(rank, Collective::AllReduce { reduce_op: SUM }, &[round + rank.own.rank.0 as u8], &mut sum)
                    .expect("a sum");
                assert_eq!(sum, [2 * round + 1]);
            }
        });
    });
}

/// As above, with inputs that are too long for a header.
#[test]
fn eager_memory_is_not_written_while_it_is_read() {
    const LEN: usize = EAGER_BYTES - 1;
    const _: () = assert!(LEN > PAYLOAD_BYTES);
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            for round in 1..=HEADER_RING_LEN as u8 + 1 {
                let mut output = [0; LEN];
                run(rank, Collective::Broadcast { root: ROOT }, &[round; LEN], &mut output).expect("a broadcast");
                assert_eq!(output, [round; LEN]);
            }
        });
    });
}

/// Rank 1 refuses a run, with a reason that is too long for a header. Both go on to the next run.
#[test]
fn a_run_is_left_out_by_both() {
    const REASON: &str = "a reason that is longer than forty bytes are";
    const _: () = assert!(REASON.len() > PAYLOAD_BYTES);
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            let (runs, far) = (RunCounter::new(NonZeroU16::MIN), Instant::now() + Duration::from_secs(3600));
            let begin = || {
                let (x, mut sum) = ([rank.own.rank.0 as u8 + 1], [0]);
                let call = Call::of_blocks(Collective::AllReduce { reduce_op: SUM }, DataType::Uint8, 1);
                let sides = [Address::host(x.as_ptr()), Address::host(sum.as_mut_ptr())];
                let run = CountedRun::new(&runs);
                let request = Request { run: Some(&run), ..Request::new(call, sides, far) };
                // SAFETY: both sides have one element.
                unsafe { rank.run_request(&request) }.map(|()| sum)
            };
            if rank.own.rank == ROOT {
                let error = begin().expect_err("rank 1 refuses it");
                assert_eq!(error.kind(), ErrorKind::RunRefused);
                assert!(error.to_string().ends_with(REASON), "{error}");
            } else {
                assert!(rank.refuse(&CountedRun::new(&runs), REASON, far).expect("there is room"));
            }
            assert_eq!(begin().expect("the next run"), [3]);
        });
    });
}

/// The root runs ahead until there is no room. Its peer reads each broadcast's own element.
#[test]
fn a_root_that_runs_ahead_overwrites_nothing() {
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            for round in 1..=HEADER_RING_LEN as u8 + 2 {
                let mut output = [0];
                run(rank, Collective::Broadcast { root: ROOT }, &[round], &mut output).expect("a broadcast");
                assert_eq!(output, [round]);
            }
        });
    });
}

/// Enough rounds to use stages twice.
#[test]
fn a_stage_is_not_written_before_it_is_read() {
    const LEN: usize = 5 * STAGE_BYTES + 1;
    const _: () = assert!(LEN > EAGER_BYTES);
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            let input: Vec<u8> = (0..LEN).map(|i| i as u8).collect();
            let mut output = vec![0; LEN];
            run(rank, Collective::Broadcast { root: ROOT }, &input, &mut output).expect("a broadcast");
            assert_eq!(output, input);
        });
    });
}

/// From the second call on, a header says that the first piece is there. A stage is used twice.
#[test]
fn a_first_piece_is_there_with_its_header() {
    const LEN: usize = EAGER_BYTES + 1;
    explore(1, || {
        on_ranks(ranks(2, true), |rank| {
            for call in 1..=5 {
                let mut all = vec![0; 2 * LEN];
                run(rank, Collective::AllGather, &[call + 10 * rank.own.rank.0 as u8; LEN], &mut all).expect("blocks");
                let (first, second) = all.split_at(LEN);
                assert!(first == [call; LEN] && second == [call + 10; LEN]);
            }
        });
    });
}

/// The ranks share the work on three chunks, which use stages twice.
#[test]
fn results_are_exchanged() {
    const LEN: usize = 2 * STAGE_BYTES + 1;
    explore(1, || {
        on_ranks(ranks(2, true), |rank| {
            let mut sum = vec![0; LEN];
            run(rank, Collective::AllReduce { reduce_op: SUM }, &[rank.own.rank.0 as u8 + 1; LEN], &mut sum)
                .expect("a sum");
            assert_eq!(sum, [3; LEN]);
        });
    });
}

/// Neither rank calls anything after its last wait.
#[test]
fn the_end_of_a_direct_transfer_wakes_a_rank() {
    const LEN: usize = EAGER_BYTES + 1;
    explore(2, || {
        on_ranks(ranks(2, false), |rank| {
            let mut sum = vec![0; LEN];
            run(rank, Collective::AllReduce { reduce_op: SUM }, &[rank.own.rank.0 as u8 + 1; LEN], &mut sum)
                .expect("a sum");
            assert_eq!(sum, [3; LEN]);
        });
    });
}

#[test]
fn an_abort_reaches_a_rank_that_waits() {
    explore(3, || {
        on_ranks(ranks(2, false), |rank| {
            if rank.own.rank == ROOT {
                let error = barrier(rank).expect_err("rank 1 does not come");
                assert_eq!(error.kind(), ErrorKind::Aborted);
            } else {
                rank.abort(ErrorKind::Aborted, "no");
            }
        });
    });
}

#[test]
fn a_rank_that_waits_sees_its_peer_leave() {
    explore(3, || {
        let (mut both, _shared) = ranks(2, false);
        let leaving = both.pop().expect("rank 1");
        let thread = thread::spawn(move || drop(leaving));
        assert_eq!(barrier(&both[0]).expect_err("rank 1 leaves").kind(), ErrorKind::PeerLost);
        thread.join().expect("no panic");
    });
}

#[test]
fn a_death_reaches_a_rank_that_waits() {
    explore(3, || {
        let (both, world) = ranks(2, false);
        let thread = thread::spawn({
            let domain = Arc::clone(&world.root.domain);
            move || domain.mark_dead(Rank(1))
        });
        let error = barrier(&both[0]).expect_err("rank 1 died");
        assert_eq!(error.kind(), ErrorKind::PeerLost);
        assert!(error.to_string().contains("rank 1 died"), "{error}");
        thread.join().expect("no panic");
    });
}

/// Another rank has left before, so that `has_lost` looks at every rank.
#[test]
fn a_rank_that_leaves_after_it_came_is_not_lost() {
    for dies in [false, true] {
        explore(3, move || {
            let (_ranks, world) = ranks(3, false);
            let segment = Arc::clone(&world.root);
            let call =
                |segment: &Segment, rank| segment.post_header(rank, 1, Signature::default(), CallBody::Payload(&[]));
            call(&segment, GroupRank(1));
            segment.leave(GroupRank(1));
            let thread = thread::spawn({
                let segment = Arc::clone(&segment);
                move || {
                    call(&segment, GroupRank(2));
                    if dies { segment.domain.mark_dead(Rank(2)) } else { segment.leave(GroupRank(2)) }
                }
            });
            assert!(!segment.has_lost(Milestone::Posted(1)), "each of them called before it was gone");
            thread.join().expect("no panic");
        });
    }
}

/// Two ranks that only give to each other both return. Their next calls return the error.
#[test]
fn givers_that_disagree_learn_of_it_in_their_next_call() {
    explore(2, || {
        on_ranks(ranks(2, true), |rank| {
            let other = GroupRank(1 - rank.own.rank.0);
            let gathered = run(rank, Collective::Gather { root: other }, &[1], &mut [0; 2]);
            let error = gathered.and_then(|()| barrier(rank)).expect_err("each gave to the other");
            assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
        });
    });
}

/// A rank that failed frees its memory when no peer has an access.
#[test]
fn an_access_ends_before_memory_is_freed() {
    explore(3, || {
        let (mut both, _shared) = ranks(2, false);
        let memory = Arc::new(Tracked::default());
        let reader = both.pop().expect("rank 1");
        let thread = thread::spawn({
            let memory = Arc::clone(&memory);
            move || {
                if let Ok(_access) = reader.own.segment.begin_access(reader.own.rank, Accessor::Collective) {
                    memory.read(|| ());
                }
            }
        });
        both[0].abort(ErrorKind::Aborted, "no");
        both[0].own.segment.wait_for_accesses(ROOT);
        memory.write(|| ());
        thread.join().expect("no panic");
    });
}

/// One thread of a rank is in a call that uses a peer's part, while another one drops the rank's
/// own part, which is the last.
#[test]
fn a_block_is_mapped_while_a_call_uses_it() {
    explore(3, || {
        let (ranks, _world) = ranks(2, false);
        let len = Arena::block_len(1, 2).expect("a length");
        let memory = Arc::new(SharedMemory::for_threads(len).expect("memory"));
        let mapped = memory.mapped();
        let segment = &ranks[0].own.segment;
        let [arena, peer]: [Arc<Arena>; 2] = Default::default();
        let part = arena.add_block(segment, ROOT, 1, 1, Arc::clone(&memory));
        drop(peer.add_block(segment, GroupRank(1), 1, 1, memory));
        let thread = thread::spawn(move || drop(part));
        if let Ok(bytes) = arena.bytes_of(Rank(1), 1, 0, 1) {
            mapped.read(|| ());
            drop(bytes);
        }
        thread.join().expect("no panic");
    });
}
