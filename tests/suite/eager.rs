//! Eager calls beyond the eight blocking ones: asynchronous forms, waiting in `async` functions,
//! bytes of unknown length, barriers that name who is missing, numbers of ranks in groups.

use std::cell::RefCell;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, RawWaker, RawWakerVTable, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

use distcollective::collective::Collective;
use distcollective::comm::{Operands, RawCollective, RawOperands};
use distcollective::stream::{EnqueueError, Work};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, Error, ErrorKind, Rank, ReduceOperation};
use ndarray::{ArrayD, IxDyn};

use crate::messages::on_both;
use crate::ranks::{DEADLINE, on_ranks};
use crate::reference;
use crate::values::{elements, to_bits, to_bytes};

const SUM: ReduceOperation = ReduceOperation::Sum;

/// Runs a future on this thread, which sleeps until it is woken.
pub fn block_on<F: Future>(future: F) -> F::Output {
    struct Unpark(Thread);

    impl Wake for Unpark {
        fn wake(self: Arc<Self>) {
            self.0.unpark();
        }
    }

    let mut future = pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let end = Instant::now() + DEADLINE;
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        let left = end.saturating_duration_since(Instant::now());
        assert!(!left.is_zero(), "the future was not woken");
        std::thread::park_timeout(left);
    }
}

/// Starts an operation on buffers that hold these bits; the root is the last rank.
fn start(
    communicator: &Communicator,
    operation: CollectiveOperation,
    data_type: DataType,
    input: &[u64],
) -> Result<Work<Operands>, EnqueueError<Operands>> {
    let n = communicator.world_size() as usize;
    let root = Rank(n as u32 - 1);
    let is_root = communicator.rank() == root;
    let mut buffer = Buffer::zeroed(data_type, [input.len() as i64]).expect("a buffer");
    buffer.write(0, &to_bytes(data_type, input.iter().copied())).expect("as long");
    let zeros = |elements: usize| Buffer::zeroed(data_type, [elements as i64]).expect("a buffer");
    let (whole, block) = (|| zeros(n * input.len()), || zeros(input.len() / n));
    let (collective, operands) = match operation {
        CollectiveOperation::AllReduce => (Collective::AllReduce { reduce_op: SUM }, Operands::in_place(buffer)),
        CollectiveOperation::AllGather => (Collective::AllGather, Operands::new(buffer, whole())),
        CollectiveOperation::Broadcast => (Collective::Broadcast { root }, Operands::in_place(buffer)),
        CollectiveOperation::Reduce => (Collective::Reduce { reduce_op: SUM, root }, Operands::in_place(buffer)),
        CollectiveOperation::ReduceScatter => {
            (Collective::ReduceScatter { reduce_op: SUM }, Operands::new(buffer, block()))
        }
        CollectiveOperation::AllToAll => (Collective::AllToAll, Operands::new(buffer, zeros(input.len()))),
        CollectiveOperation::Gather => (Collective::Gather { root }, Operands::new(buffer, is_root.then(whole))),
        CollectiveOperation::Scatter => {
            (Collective::Scatter { root }, Operands::new(is_root.then_some(buffer), block()))
        }
        other => panic!("{other} is new"),
    };
    communicator.collective_async(collective, operands, &communicator.stream().expect("a thread"))
}

/// A barrier on the communicator's own stream.
fn begin_barrier(communicator: &Communicator) -> Work<RawCollective> {
    let stream = communicator.stream().expect("a thread");
    communicator.enqueue_barrier(&stream).expect("the communicator works")
}

/// An all_reduce of one number on the communicator's own stream.
fn begin_sum(communicator: &Communicator, number: i32) -> Work<Operands> {
    let (sum, operands) = (Collective::AllReduce { reduce_op: SUM }, Operands::in_place(vec![number]));
    let work = communicator.collective_async(sum, operands, &communicator.stream().expect("a thread"));
    work.unwrap_or_else(|error| panic!("{error}"))
}

/// Compares the asynchronous form of every operation with the reference. All are started before the
/// first wait, and end in this order.
pub fn asynchronous_forms_match_the_reference(communicator: &Communicator, data_types: &[DataType]) {
    let (n, rank) = (communicator.world_size() as usize, communicator.rank().index());
    for &data_type in data_types {
        let input = |rank: usize, operation: CollectiveOperation| {
            elements(data_type, 3 * n, (rank * 10) as u64 + operation.number() as u64)
        };
        let started = CollectiveOperation::ALL.map(|operation| {
            let work = start(communicator, operation, data_type, &input(rank, operation));
            (operation, work.unwrap_or_else(|error| panic!("{error}")))
        });
        for (operation, work) in started {
            let operands = work.wait().unwrap_or_else(|error| panic!("{error}"));
            let inputs = (0..n).map(|rank| ArrayD::from_shape_vec(IxDyn(&[3 * n]), input(rank, operation)));
            let inputs: Vec<_> = inputs.map(|input| input.expect("one dimension")).collect();
            let reduce_op = operation.reduces().then_some(SUM);
            let expected = reference::collective(operation, reduce_op, data_type, n - 1, rank, &inputs);
            // In place, a rank that does not write its output keeps its input.
            let in_place = (operation == CollectiveOperation::Reduce).then(|| inputs[rank].clone());
            let got = operands.output.map(|buffer| to_bits(data_type, buffer.as_bytes().expect("host memory")));
            let expected = expected.or(in_place).map(|bits| bits.iter().copied().collect::<Vec<_>>());
            assert_eq!(got, expected, "rank {rank}: {operation} of {data_type}");
        }
    }
}

#[test]
fn asynchronous_forms_match() {
    for n in 1..=8 {
        on_both(n, |communicator| asynchronous_forms_match_the_reference(&communicator, &DataType::ALL));
    }
}

#[test]
fn an_asynchronous_barrier_ends_when_every_rank_has_come() {
    on_ranks(2, |communicator| {
        let work = begin_barrier(&communicator);
        if communicator.rank().0 == 0 {
            // Rank 1 comes to the next call only after this rank has seen its own work.
            work.wait().expect("rank 1 comes");
            communicator.barrier().expect("rank 1 comes");
        } else {
            communicator.barrier().expect("rank 0 comes");
            work.wait().expect("rank 0 has come to it before");
        }
        // Alone, this rank's work does not end.
        let signal = communicator.split(Some(0), 0).expect("a split").expect("a color");
        if communicator.rank().0 == 0 {
            let work = begin_barrier(&communicator);
            let pending = work.wait_timeout(Duration::from_millis(20)).expect_err("rank 1 has not come");
            assert!(!pending.is_done() && pending.exception().is_none());
            signal.barrier().expect("rank 1 comes");
            pending.wait().expect("rank 1 has come");
        } else {
            signal.barrier().expect("rank 0 comes");
            communicator.barrier().expect("rank 0 has come");
        }
    });
}

/// The own stream is one thread, whichever handle is used, and that of a group is another one.
#[test]
fn a_communicator_has_one_stream() {
    fn thread_of(communicator: &Communicator, signal: &Communicator) -> std::thread::ThreadId {
        struct Tell(std::sync::mpsc::Sender<std::thread::ThreadId>);
        impl Wake for Tell {
            fn wake(self: Arc<Self>) {
                self.0.send(std::thread::current().id()).expect("the test listens");
            }
        }
        let (sender, receiver) = std::sync::mpsc::channel();
        let waker = Waker::from(Arc::new(Tell(sender)));
        let mut future = begin_barrier(communicator).into_future();
        let polled = std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_pending(), "rank 1 waits for the signal");
        signal.barrier().expect("rank 1 comes");
        receiver.recv_timeout(DEADLINE).expect("the stream's thread wakes")
    }

    on_ranks(2, |communicator| {
        let [group, signal] = [(); 2].map(|()| communicator.split(Some(0), 0).expect("a split").expect("a color"));
        if communicator.rank().0 == 0 {
            let other_timeout = communicator.with_timeout(DEADLINE / 2);
            let mut threads = Vec::new();
            for handle in [&communicator, &communicator.clone(), &other_timeout, &group] {
                threads.push(thread_of(handle, &signal));
            }
            assert_eq!(threads[..2], threads[1..3]);
            assert_ne!(threads[2], threads[3]);
        } else {
            for handle in [&communicator, &communicator, &communicator, &group] {
                signal.barrier().expect("rank 0 comes");
                handle.barrier().expect("rank 0 comes");
            }
        }
    });
}

#[test]
fn wrong_arguments_come_back_with_the_buffers() {
    on_ranks(1, |communicator| {
        let (broadcast, stream) = (Collective::Broadcast { root: Rank(3) }, communicator.stream().expect("a thread"));
        let failed = communicator.collective_async(broadcast, Operands::in_place(vec![1i32, 2]), &stream);
        let failed = failed.expect_err("there is no rank 3");
        assert_eq!(failed.error.to_string(), "rank 0: broadcast: root 3 is not one of 1 rank");
        assert_eq!(failed.operands.output.expect("the buffer").as_slice::<i32>().expect("int32"), [1, 2]);
        communicator.barrier().expect("the communicator works");
    });
}

#[test]
fn the_error_of_work_is_told_without_taking_it() {
    on_ranks(2, |communicator| {
        if communicator.rank().0 == 1 {
            drop(communicator);
            return;
        }
        let work = begin_sum(&communicator, 1);
        let end = Instant::now() + DEADLINE;
        while !work.is_done() {
            assert!(work.exception().is_none() && Instant::now() < end, "the work ends");
            std::thread::yield_now();
        }
        let told = work.exception().expect("rank 1 has left");
        assert_eq!(told.kind(), ErrorKind::PeerLost);
        let again = work.exception().expect("it stays");
        let waited = Error::from(work.wait().expect_err("rank 1 has left"));
        assert_eq!([told.to_string(), again.to_string()], [waited.to_string(), waited.to_string()]);
    });
    let work = begin_barrier(&Communicator::builder().in_process(1).expect("a rank")[0]);
    let work = work.wait_timeout(DEADLINE).expect("it ends");
    work.expect("well");
}

/// A waker that counts.
#[derive(Default)]
struct Count(AtomicUsize);

impl Wake for Count {
    fn wake(self: Arc<Self>) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn work_wakes_the_task_that_polled_last_and_once() {
    on_ranks(2, |communicator| {
        if communicator.rank().0 == 1 {
            communicator.split(Some(0), 0).expect("rank 0 comes").expect("a color").barrier().expect("after the polls");
            return communicator.barrier().expect("rank 0 comes");
        }
        let group = communicator.split(Some(0), 0).expect("rank 1 comes").expect("a color");
        let mut future = begin_barrier(&communicator).into_future();
        let counts = [(); 2].map(|()| Arc::new(Count::default()));
        for count in &counts {
            let waker = Waker::from(Arc::clone(count));
            let polled = std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
            assert!(polled.is_pending(), "rank 1 waits for this rank");
        }
        group.barrier().expect("rank 1 comes");
        let end = Instant::now() + DEADLINE;
        while counts[1].0.load(Ordering::SeqCst) == 0 {
            assert!(Instant::now() < end, "nothing woke the task");
            std::thread::yield_now();
        }
        block_on(future).expect("it has ended");
        assert_eq!(counts.map(|count| count.0.load(Ordering::SeqCst)), [0, 1]);
    });
}

/// A waker that does something when it is stored, and wakes nothing.
struct WhenStored;

thread_local! {
    static WHEN_STORED: RefCell<Option<Box<dyn FnOnce()>>> = const { RefCell::new(None) };
}

impl WhenStored {
    const TABLE: RawWakerVTable = RawWakerVTable::new(|_| Self::stored(), drop, drop, drop);

    fn stored() -> RawWaker {
        WHEN_STORED.take().into_iter().for_each(|act| act());
        RawWaker::new(std::ptr::null(), &Self::TABLE)
    }

    fn waker(act: impl FnOnce() + 'static) -> Waker {
        // SAFETY: the functions of the table do not use the pointer, and run on any thread.
        let waker = unsafe { Waker::from_raw(Self::stored()) };
        WHEN_STORED.set(Some(Box::new(act)));
        waker
    }
}

/// The work has ended, and its stream has looked for a waker, before the waker is there.
#[test]
fn work_that_ends_while_its_waker_is_stored_is_ready() {
    on_ranks(1, |_| {
        let [rank, peer] = Communicator::builder().in_process(2).expect("ranks").try_into().expect("two");
        let mut future = begin_barrier(&rank).into_future();
        let waker = WhenStored::waker(move || {
            // When the second barrier has begun, the stream has nothing to do with the first.
            let second = begin_barrier(&rank);
            (0..2).for_each(|_| peer.barrier().expect("rank 0 comes"));
            second.wait().expect("rank 1 comes");
        });
        let polled = std::pin::Pin::new(&mut future).poll(&mut Context::from_waker(&waker));
        assert!(polled.is_ready(), "nothing would wake the task");
    });
}

/// Many waits, some of which begin before the work ends and some after.
#[test]
fn no_wake_up_is_lost() {
    on_ranks(2, |communicator| {
        for round in 0..500i32 {
            let work = begin_sum(&communicator, round);
            let operands = block_on(work.into_future()).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(sum(operands), 2 * round);
        }
    });
}

fn sum(operands: Operands) -> i32 {
    operands.output.expect("in place").as_slice::<i32>().expect("int32")[0]
}

#[test]
fn an_error_reaches_the_task_that_waits() {
    let kinds = on_ranks(2, |communicator| {
        if communicator.rank().0 == 1 {
            std::thread::sleep(Duration::from_millis(20));
            communicator.abort("no more data").expect("not a fork");
            return ErrorKind::Aborted;
        }
        let work = begin_barrier(&communicator);
        block_on(work.into_future()).expect_err("rank 1 ends it").error.kind()
    });
    assert_eq!(kinds, [ErrorKind::Aborted; 2]);
}

#[test]
fn a_monitored_barrier_names_the_missing_ranks_on_every_rank() {
    let errors = on_ranks(4, |communicator| {
        let present = communicator.split(Some(communicator.rank().0 % 2), 0).expect("a split").expect("a color");
        communicator.monitored_barrier(DEADLINE).expect("every rank comes");
        if communicator.rank().0 % 2 == 1 {
            // Too late.
            while communicator.check().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        let _ = present.barrier();
        communicator.monitored_barrier(Duration::from_secs(2)).expect_err("ranks 1 and 3 do not come")
    });
    let text = "monitored_barrier (collective 2): ranks 1 and 3 did not arrive before the deadline";
    for (rank, error) in errors.iter().enumerate() {
        assert!(error.to_string().contains(text), "rank {rank}: {error}");
    }
    assert!(errors.iter().any(|error| error.kind() == ErrorKind::DeadlineExceeded));
}

#[test]
fn a_monitored_barrier_is_not_another_barrier() {
    let errors = on_ranks(2, |communicator| match communicator.rank().0 {
        0 => communicator.barrier(),
        _ => communicator.monitored_barrier(DEADLINE),
    });
    for error in errors {
        let error = error.expect_err("the calls differ").to_string();
        assert!(error.contains("rank 0 calls barrier; rank 1 calls monitored_barrier"), "{error}");
    }
}

/// Bytes that a rank has: none, few, or more than one round takes.
fn bytes_of(rank: usize, longest: usize) -> Vec<u8> {
    let len = [0, 1, longest, 77][rank % 4];
    // No round repeats another.
    (0..len as u32).map(|i| ((i + rank as u32).wrapping_mul(2_654_435_761) >> 24) as u8).collect()
}

/// Moves bytes of lengths that only their owner knows, in every way.
pub fn bytes_arrive(communicator: &Communicator, longest: usize) {
    let (n, rank) = (communicator.world_size() as usize, communicator.rank().index());
    let all: Vec<Vec<u8>> = (0..n).map(|rank| bytes_of(rank, longest)).collect();
    for root in [0, n - 1] {
        let mut bytes = if rank == root { all[(root + 2) % n].clone() } else { vec![9; 3] };
        communicator.broadcast_bytes(&mut bytes, root as u32).expect("bytes");
        assert_eq!(bytes, all[(root + 2) % n]);
        let gathered = communicator.gather_bytes(&all[rank], root as u32).expect("bytes");
        assert_eq!(gathered, (rank == root).then(|| all.clone()));
        let list = (rank == root).then_some(&all[..]);
        assert_eq!(communicator.scatter_bytes(list, root as u32).expect("bytes"), all[rank]);
    }
    assert_eq!(communicator.all_gather_bytes(&all[rank]).expect("bytes"), all);
    // Nothing at all.
    assert_eq!(communicator.all_gather_bytes(&[]).expect("bytes"), vec![Vec::<u8>::new(); n]);
    let mut bytes = vec![1; rank];
    communicator.broadcast_bytes(&mut bytes, 0).expect("bytes");
    assert!(bytes.is_empty());
}

/// A rank that takes from no peer returns before its peers come, in a call so small that they find
/// a copy of its elements.
#[test]
fn a_rank_that_only_gives_does_not_wait() {
    for len in [2, 300] {
        let has_given = Arc::new(std::sync::Barrier::new(2));
        on_ranks(2, move |communicator| {
            let (x, mut y) = (vec![communicator.rank().0 as i32; len], vec![0; 2 * len]);
            for operation in ["broadcast", "scatter", "gather", "reduce"] {
                let giver = Rank(u32::from(matches!(operation, "gather" | "reduce")));
                if communicator.rank() != giver {
                    has_given.wait();
                }
                match operation {
                    "broadcast" => communicator.broadcast(&mut x.clone(), 0),
                    "scatter" => communicator.scatter(Some(&y), &mut x.clone(), 0),
                    "gather" => communicator.gather(&x, Some(&mut y), 0),
                    _ => communicator.reduce(&mut x.clone(), ReduceOperation::Sum, 0),
                }
                .expect(operation);
                if communicator.rank() == giver {
                    has_given.wait();
                }
            }
        });
    }
}

/// The root of a broadcast or scatter has its own elements at once. Where it may yet learn that the
/// calls differ, it writes them when it knows that they do not.
#[test]
fn a_root_writes_nothing_if_it_returns_a_disagreement() {
    for is_scatter in [false, true] {
        on_ranks(2, move |communicator| {
            let is_root = communicator.rank() == Rank(0);
            // Longer than what a rank gives as a copy.
            let len = if is_root { 5000 } else { 3000 };
            let (x, mut y) = (vec![1i32; 2 * len], vec![0; len]);
            if !is_root {
                // The root has come long before.
                std::thread::sleep(Duration::from_millis(50));
            }
            let collective = match is_scatter {
                true => Collective::Scatter { root: Rank(0) },
                false => Collective::Broadcast { root: Rank(0) },
            };
            let input = &x[..if is_scatter { 2 * len } else { len }];
            let result = communicator.collective(collective, Some(input), Some(&mut y));
            assert_eq!(result.expect_err("the lengths differ").kind(), ErrorKind::Disagreement);
            assert!(y.iter().all(|y| *y == 0), "{collective:?}");
        });
    }
}

#[test]
fn bytes_of_unknown_length_arrive() {
    for n in 1..=8 {
        on_both(n, |communicator| bytes_arrive(&communicator, 100_000));
    }
}

/// Among 4 ranks a round takes 4 MiB of each.
#[test]
fn bytes_of_several_rounds_arrive() {
    on_ranks(4, |communicator| bytes_arrive(&communicator, (9 << 20) + 5));
}

#[test]
fn wrong_arguments_of_byte_calls_leave_the_communicator_as_it_was() {
    on_ranks(2, |communicator| {
        let rank = communicator.rank();
        let none = None::<&[Vec<u8>]>;
        let texts = [
            communicator.broadcast_bytes(&mut Vec::new(), 2).expect_err("no rank 2"),
            communicator.gather_bytes(&[], 2).expect_err("no rank 2"),
            communicator.scatter_bytes(none, rank).expect_err("the root needs a list"),
            communicator.scatter_bytes(Some(&[[1u8]]), rank).expect_err("one is missing"),
        ]
        .map(|error| error.to_string());
        let expected = [
            "broadcast_bytes: root 2 is not one of 2 ranks",
            "gather_bytes: root 2 is not one of 2 ranks",
            "scatter_bytes: the root's list has 0 elements; it must have one for each of 2 ranks",
            "scatter_bytes: the root's list has 1 element; it must have one for each of 2 ranks",
        ]
        .map(|text| format!("rank {rank}: {text}"));
        assert_eq!(texts, expected);
        communicator.barrier().expect("it works");
    });
}

#[test]
fn different_byte_calls_are_a_disagreement() {
    let errors = on_ranks(2, |communicator| match communicator.rank().0 {
        0 => communicator.all_gather_bytes(b"x").map(drop),
        _ => communicator.gather_bytes(b"x", 0).map(drop),
    });
    for error in errors {
        let text = error.expect_err("the calls differ").to_string();
        assert!(text.contains("rank 0 calls all_gather_bytes; rank 1 calls gather_bytes"), "{text}");
    }

    // A root waits for no rank, so each gets the error from its next call.
    let errors = on_ranks(2, |communicator| {
        communicator.broadcast_bytes(&mut vec![1], communicator.rank()).and_then(|()| communicator.barrier())
    });
    for error in errors {
        let text = error.expect_err("the roots differ").to_string();
        let call = |root| format!("broadcast_bytes (broadcast from group rank {root} of 1 int64)");
        assert!(text.contains(&format!("rank 0 calls {}; rank 1 calls {}", call(0), call(1))), "{text}");
    }
}

#[test]
fn numbers_of_ranks_are_translated() {
    on_ranks(4, |communicator| {
        assert_eq!(communicator.global_ranks(), [0, 1, 2, 3].map(Rank));
        let Some(group) = communicator.new_group([3, 0, 2]).expect("a group") else { return };
        assert_eq!(group.global_ranks(), [3, 0, 2].map(Rank));
        for (rank, global) in [3, 0, 2].into_iter().enumerate() {
            assert_eq!(group.global_rank(rank as u32).expect("a rank"), Rank(global));
            assert_eq!(group.group_rank(global).expect("a member"), Rank(rank as u32));
        }
        // A group of a group counts from the first communicator too.
        let part = group.split(Some(u32::from(group.rank().0 == 0)), 0).expect("a split").expect("a color");
        assert_eq!(part.global_rank(part.rank()).expect("a rank"), communicator.rank());
        let own = communicator.rank();
        let error = group.group_rank(1).expect_err("rank 1 is outside");
        assert_eq!(error.kind(), ErrorKind::NotAMember);
        assert_eq!(
            error.to_string(),
            format!("rank {own}: rank 1 is not a member of the group, which has ranks 3, 0 and 2")
        );
        let error = group.global_rank(3).expect_err("there are three");
        assert_eq!(error.to_string(), format!("rank {own}: global_rank: rank 3 is not one of 3 ranks"));
    });
}

#[test]
fn names_of_torch_are_read() {
    use ReduceOperation::{Avg, Bor, Bxor, Prod};
    for (name, reduce_op) in [("product", Prod), ("PRODUCT", Prod), ("AVG", Avg), ("BOR", Bor), ("bxor", Bxor)] {
        assert_eq!(name.parse::<ReduceOperation>().expect("a name"), reduce_op);
    }
    let error = "premul_sum".parse::<ReduceOperation>().expect_err("not offered");
    assert_eq!(error.kind(), ErrorKind::Unsupported);
}

/// [`lists_match_on_host_tensors`], and an input in symmetric memory.
pub fn lists_match(communicator: &Communicator) {
    lists_match_on_host_tensors(communicator);
    let (n, rank) = (communicator.world_size() as usize, communicator.rank().0);
    let mut symmetric = communicator.allocate(DataType::Int32, [200]).expect("memory");
    symmetric.write(0, &to_bytes(DataType::Int32, [u64::from(rank); 200])).expect("as long");
    let mut list = vec![[-1; 200]; n];
    communicator.all_gather_list(&symmetric, list.iter_mut().map(|tensor| &mut tensor[..])).expect("a list");
    assert!(list.iter().enumerate().all(|(rank, tensor)| *tensor == [rank as i32; 200]));
}

/// Compares the list forms with those on one tensor.
pub fn lists_match_on_host_tensors(communicator: &Communicator) {
    let (n, rank) = (communicator.world_size() as usize, communicator.rank().index());
    let run = |collective, operands| {
        let work = communicator.collective_async(collective, operands, &communicator.stream().expect("a thread"));
        work.unwrap_or_else(|error| panic!("{error}")).wait().expect("a list")
    };
    // In a header, in one access, and in several.
    for len in [0, 1, 3, 100, 40_000] {
        let input: Vec<i32> = (0..len).map(|i| (i * n + rank) as i32).collect();
        let lists = || vec![vec![-1i32; len]; n];
        let mut all = vec![0; n * len];
        communicator.all_gather(&input, &mut all).expect("a gather");
        let expected: Vec<Vec<i32>> = (0..n).map(|r| all[r * len..(r + 1) * len].to_vec()).collect();

        let mut list = lists();
        communicator.all_gather_list(&input, &mut list).expect("a list");
        assert_eq!(list, expected, "{len}");
        for root in [0, n - 1] {
            let is_root = rank == root;
            let mut list = lists();
            communicator.gather_list(&input, is_root.then_some(&mut list), root as u32).expect("a list");
            assert_eq!(list, if is_root { expected.clone() } else { lists() }, "{len} to {root}");
            let mut own = vec![-1; len];
            communicator.scatter_list(is_root.then_some(&expected), &mut own, root as u32).expect("a list");
            assert_eq!(own, expected[rank], "{len} from {root}");

            // The same with buffers of the work.
            let buffers = |lists: &[Vec<i32>]| lists.iter().map(|list| Buffer::from(list.clone())).collect::<Vec<_>>();
            let of_root = |lists: &[Vec<i32>]| if is_root { buffers(lists) } else { Vec::new() };
            let operands = Operands::with_list(Buffer::from(input.clone()), None, of_root(&lists()));
            let gathered = run(Collective::Gather { root: Rank(root as u32) }, operands).list.expect("it comes back");
            let operands = Operands::with_list(None, Buffer::from(vec![-1i32; len]), of_root(&expected));
            let own = run(Collective::Scatter { root: Rank(root as u32) }, operands).output.expect("it comes back");
            assert_eq!(own.as_slice::<i32>().expect("int32"), expected[rank]);
            assert_eq!(gathered.len(), if is_root { n } else { 0 });
            for (got, want) in gathered.iter().zip(&expected) {
                assert_eq!(got.as_slice::<i32>().expect("int32"), want);
            }
        }
        let zeros = lists().into_iter().map(Buffer::from).collect();
        let operands = Operands::with_list(Buffer::from(input), None, zeros);
        let gathered = run(Collective::AllGather, operands).list.expect("it comes back");
        for (got, want) in gathered.iter().zip(&expected) {
            assert_eq!(got.as_slice::<i32>().expect("int32"), want);
        }
    }
    // The root may give one tensor to all.
    let same = [rank as i32; 200];
    let mut own = [-1; 200];
    communicator.scatter_list((rank == 0).then(|| vec![&same; n]), &mut own, 0).expect("a list");
    assert_eq!(own, [0; 200]);
}

#[test]
fn list_forms_match_the_others() {
    for n in 1..=8 {
        on_both(n, |communicator| lists_match(&communicator));
    }
}

#[test]
fn wrong_lists_are_refused() {
    on_ranks(2, |communicator| {
        let rank = communicator.rank().0;
        let input = [1i32; 2];
        let [mut one, mut two, mut short] = [vec![0i32; 2], vec![0; 2], vec![0; 1]];
        let texts = [
            communicator.all_gather_list(&input, [&mut one]).expect_err("one is missing"),
            communicator.all_gather_list(&input, [&mut one, &mut short]).expect_err("one is short"),
            communicator.all_gather_list(&[1f32; 2], [&mut one, &mut two]).expect_err("another type"),
            communicator.all_gather_list(&[1i32; 3], [&mut one, &mut two]).expect_err("another length"),
            communicator.scatter_list(None::<[&[i32]; 0]>, &mut one, rank).expect_err("the root has none"),
            communicator.gather_list(&input, Some([&mut one, &mut two]), 2u32).expect_err("no rank 2"),
        ]
        .map(|error| error.to_string());
        let expected = [
            "all_gather: the output list has 1 tensor; it must have one for each of 2 ranks",
            "all_gather: tensor 1 of the output list is int32 [1], and tensor 0 is int32 [2]",
            "all_gather: the input is float32 and the output int32",
            "all_gather: the output has 4 elements; with 2 ranks it must have 6",
            "scatter: the input list has 0 tensors; it must have one for each of 2 ranks",
            "gather: root 2 is not one of 2 ranks",
        ]
        .map(|text| format!("rank {rank}: {text}"));
        assert_eq!(texts, expected);

        // Addresses show what borrowed tensors cannot.
        let sum = Collective::AllReduce { reduce_op: SUM };
        let gather = Collective::AllGather;
        let address = one.as_mut_ptr().cast::<u8>();
        let input = two.as_mut_ptr().cast::<u8>();
        let error_of = |collective, one: *mut u8, list: &[*mut u8]| {
            let stream = distcollective::Stream::inline();
            // SAFETY: the call is refused, so no address is used.
            let work = unsafe {
                communicator.enqueue(collective, DataType::Int32, 2, RawOperands::List { one, list }, &stream)
            };
            work.map(drop).expect_err("a mistake").to_string()
        };
        let inside = address.wrapping_add(4);
        let apart = address.wrapping_add(1 << 20);
        for (error, text) in [
            (error_of(gather, input, &[address, inside]), "two tensors of the output list overlap"),
            (error_of(gather, inside, &[address, apart]), "a tensor of the list overlaps the call's other buffer"),
            (error_of(gather, std::ptr::null_mut(), &[address, apart]), "is null, and this rank uses it (8 bytes)"),
            (error_of(gather, input, &[address, apart.wrapping_add(1)]), "is not aligned to 4 bytes"),
            (error_of(sum, input, &[address, apart]), "there is no list form; scatter, gather and all_gather have one"),
        ] {
            assert!(error.contains(text), "{error}");
        }
        communicator.barrier().expect("it works");
    });
}
