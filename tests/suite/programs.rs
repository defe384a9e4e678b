//! Random programs of eager calls: every operation, blocking and asynchronous, lists, barriers,
//! bytes, messages, groups, several streams, and several threads of one rank. Every result is
//! compared with the reference.

use std::sync::Arc;

use distcollective::collective::Collective;
use distcollective::comm::{Message, Messages, Operands, RawCollective, Received, Source};
use distcollective::{Buffer, CollectiveOperation, Communicator, DataType, Error, Rank, ReduceOperation, Stream, Work};
use ndarray::{ArrayD, IxDyn};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::eager::block_on;
use crate::ranks::on_ranks;
use crate::reference;
use crate::values::{elements, to_bits, to_bytes};

/// How a collective is called.
#[derive(Clone, Copy, Debug)]
enum How {
    Blocking,
    /// On the communicator's own stream.
    OwnStream,
    /// On one of the thread's two worker streams.
    Worker(bool),
}

/// How a rank sends and receives at the same time.
#[derive(Clone, Copy, Debug)]
enum Exchange {
    Batch,
    /// An isend and an irecv, in this order or the other.
    Apart {
        receives_first: bool,
    },
    /// A send and a recv on two threads.
    Threads,
}

/// One call of a program. It is the same on every rank; numbers are taken modulo what there is.
#[derive(Clone, Debug)]
enum Step {
    Collective {
        operation: usize,
        reduce_op: usize,
        data_type: usize,
        root: u32,
        blocks: usize,
        how: How,
    },
    /// The list form of all_gather, gather or scatter.
    List {
        operation: usize,
        root: u32,
        elements: usize,
        how: How,
    },
    Bytes {
        call: u8,
        root: u32,
        len: usize,
    },
    Barrier {
        how: How,
    },
    MonitoredBarrier,
    /// A send of one rank and a recv of another one, or of any: then no other message has the tag.
    Message {
        ranks: (u32, u32),
        tag: Option<u32>,
        data_type: usize,
        elements: usize,
    },
    /// Every rank sends to the one that is `shift` after it.
    Exchange {
        shift: u32,
        tag: u32,
        data_type: usize,
        elements: usize,
        exchange: Exchange,
    },
    /// Waits for all that was started, in this order or the other, blocking or in an `async` way.
    Wait {
        backwards: bool,
        is_async: bool,
    },
    /// The steps on a group of those ranks whose bit is set.
    Group {
        members: u8,
        steps: Vec<Step>,
    },
}

fn how() -> impl Strategy<Value = How> {
    prop_oneof![Just(How::Blocking), Just(How::OwnStream), any::<bool>().prop_map(How::Worker)]
}

/// Messages of all lengths: none, inline, more than one cell, more than one copy.
fn messages() -> impl Strategy<Value = Step> {
    let elements = || prop_oneof![8 => 0usize..50, 4 => 400usize..5_000, 1 => Just(150_000usize)];
    let types = || 0..DataType::ALL.len();
    let tag = proptest::option::of(0..3u32);
    let message = ((0..4u32, 0..4u32), tag, types(), elements())
        .prop_map(|(ranks, tag, data_type, elements)| Step::Message { ranks, tag, data_type, elements });
    let exchange = prop_oneof![
        Just(Exchange::Batch),
        any::<bool>().prop_map(|receives_first| Exchange::Apart { receives_first }),
        Just(Exchange::Threads)
    ];
    let exchange =
        (0..4u32, 0..3u32, types(), elements(), exchange).prop_map(|(shift, tag, data_type, elements, exchange)| {
            Step::Exchange { shift, tag, data_type, elements, exchange }
        });
    prop_oneof![1 => message, 2 => exchange]
}

fn step() -> impl Strategy<Value = Step> {
    // The longest needs more than one access.
    let blocks = prop_oneof![8 => 0usize..4, 8 => 20usize..60, 1 => Just(9_000usize)];
    let collective = (0..8usize, 0..5usize, 0..DataType::ALL.len(), 0..4u32, blocks.clone(), how());
    let collective = collective.prop_map(|(operation, reduce_op, data_type, root, blocks, how)| Step::Collective {
        operation,
        reduce_op,
        data_type,
        root,
        blocks,
        how,
    });
    let list = (0..3usize, 0..4u32, blocks, how());
    let leaf = prop_oneof![
        6 => collective,
        2 => list.prop_map(|(operation, root, elements, how)| Step::List { operation, root, elements, how }),
        1 => (0..4u8, 0..4u32, 0..3000usize).prop_map(|(call, root, len)| Step::Bytes { call, root, len }),
        1 => how().prop_map(|how| Step::Barrier { how }),
        1 => Just(Step::MonitoredBarrier),
        4 => messages(),
        2 => any::<(bool, bool)>().prop_map(|(backwards, is_async)| Step::Wait { backwards, is_async }),
    ];
    leaf.prop_recursive(2, 24, 6, |inner| {
        (any::<u8>(), vec(inner, 1..6)).prop_map(|(members, steps)| Step::Group { members, steps })
    })
}

/// What was started, and the bits that it gives; `None` for a barrier.
enum Started {
    Operands(Box<Work<Operands>>, Expected),
    Barrier(Box<Work<RawCollective>>),
    Batch(Box<Work<Messages>>, Arriving),
    Receive(Box<Work<Messages>>, Arriving),
    Send(Box<Work<Messages>>),
}

/// A message that is received, as bits.
#[derive(Debug)]
struct Arriving {
    source: Rank,
    data_type: DataType,
    bits: Vec<u64>,
}

/// How many elements a receive's buffer has more than the message.
const MORE: usize = 3;

impl Arriving {
    fn buffer(&self) -> Buffer {
        buffer(self.data_type, &vec![0; self.bits.len() + MORE])
    }

    fn check(&self, received: Option<Received>, buffer: &Buffer) {
        assert_eq!(received, Some(Received { source: self.source, element_count: self.bits.len() }));
        let all = bits(self.data_type, buffer);
        let (message, more) = all.split_at(self.bits.len());
        assert_eq!((message, more), (&self.bits[..], &[0; MORE][..]), "from rank {}", self.source);
    }
}

/// The output, and the list of a list form, as bits.
#[derive(Debug, PartialEq)]
struct Expected {
    data_type: DataType,
    output: Option<Vec<u64>>,
    list: Option<Vec<Vec<u64>>>,
}

/// A thread of one rank.
struct Thread {
    workers: [Stream; 2],
    started: Vec<Started>,
    /// Counts the steps, so that each has other inputs.
    seed: u64,
}

fn buffer(data_type: DataType, bits: &[u64]) -> Buffer {
    let mut buffer = Buffer::zeroed(data_type, [bits.len() as i64]).expect("a buffer");
    buffer.write(0, &to_bytes(data_type, bits.iter().copied())).expect("as long");
    buffer
}

fn bits(data_type: DataType, buffer: &Buffer) -> Vec<u64> {
    to_bits(data_type, buffer.as_bytes().expect("host memory"))
}

impl Thread {
    fn new(number: u64) -> Self {
        Thread {
            workers: [(); 2].map(|()| Stream::worker().expect("a thread")),
            started: Vec::new(),
            seed: number << 32,
        }
    }

    fn run(&mut self, communicator: &Communicator, steps: &[Step]) {
        for step in steps {
            self.seed += 1;
            self.step(communicator, step);
        }
    }

    fn step(&mut self, communicator: &Communicator, step: &Step) {
        let (n, rank) = (communicator.world_size(), communicator.rank());
        match *step {
            Step::Collective { operation, reduce_op, data_type, root, blocks, how } => {
                let operation = CollectiveOperation::ALL[operation];
                let (reduce_op, data_type) = (ReduceOperation::ALL[reduce_op], DataType::ALL[data_type]);
                let reduce_op = if reduce_op.applies_to(data_type) { reduce_op } else { ReduceOperation::Max };
                self.collective(communicator, operation, (reduce_op, data_type), root % n, blocks, how);
            }
            Step::List { operation, root, elements, how } => {
                self.list(communicator, operation, root % n, elements, how)
            }
            Step::Bytes { call, root, len } => self.bytes(communicator, call, root % n, len),
            Step::Barrier { how: How::Blocking } => communicator.barrier().expect("every rank comes"),
            Step::Barrier { how } => {
                let work = communicator.enqueue_barrier(&self.stream(communicator, how));
                self.started.push(Started::Barrier(Box::new(work.expect("a stream of the host"))));
            }
            Step::MonitoredBarrier => communicator.monitored_barrier(communicator.timeout()).expect("every rank comes"),
            Step::Message { ranks: (from, to), tag, data_type, elements } => {
                let data_type = DataType::ALL[data_type];
                self.message(communicator, Rank(from % n), Rank(to % n), tag, data_type, elements);
            }
            Step::Exchange { shift, tag, data_type, elements, exchange } => {
                self.exchange(communicator, shift % n, tag, DataType::ALL[data_type], elements, exchange);
            }
            Step::Wait { backwards, is_async } => self.wait(backwards, is_async),
            Step::Group { members, ref steps } => {
                // In backward order, so that numbers differ.
                let members: Vec<Rank> = (0..n).rev().filter(|rank| members >> rank & 1 == 1).map(Rank).collect();
                let group = communicator.new_group(&members).expect("the same on every rank");
                assert_eq!(group.is_some(), members.contains(&rank));
                match group {
                    Some(group) => self.run(&group, steps),
                    // Every rank counts the same steps.
                    None => self.seed += count(steps),
                }
            }
        }
    }

    fn stream(&self, communicator: &Communicator, how: How) -> Stream {
        match how {
            How::Blocking => Stream::inline(),
            How::OwnStream => communicator.stream().expect("a thread"),
            How::Worker(which) => self.workers[usize::from(which)].clone(),
        }
    }

    /// A rank's input of this step.
    fn input(&self, data_type: DataType, count: usize, rank: u32) -> Vec<u64> {
        elements(data_type, count, self.seed * 64 + u64::from(rank))
    }

    fn start(
        &mut self,
        communicator: &Communicator,
        collective: Collective<Rank>,
        operands: Operands,
        how: How,
        expected: Expected,
    ) {
        let work = communicator.collective_async(collective, operands, &self.stream(communicator, how));
        let started = Started::Operands(Box::new(work.unwrap_or_else(|error| panic!("{error}"))), expected);
        match how {
            How::Blocking => finish(started, false),
            _ => self.started.push(started),
        }
    }

    fn collective(
        &mut self,
        communicator: &Communicator,
        operation: CollectiveOperation,
        (reduce_op, data_type): (ReduceOperation, DataType),
        root: u32,
        blocks: usize,
        how: How,
    ) {
        let (n, rank) = (communicator.world_size(), communicator.rank());
        let count = blocks * operation.input_blocks(n as usize);
        let all: Vec<Vec<u64>> = (0..n).map(|rank| self.input(data_type, count, rank)).collect();
        let arrays =
            all.iter().map(|bits| ArrayD::from_shape_vec(IxDyn(&[count]), bits.clone()).expect("one dimension"));
        let (arrays, reduces): (Vec<_>, _) = (arrays.collect(), operation.reduces().then_some(reduce_op));
        let output = reference::collective(operation, reduces, data_type, root as usize, rank.index(), &arrays);
        let output = output.map(|bits| bits.iter().copied().collect::<Vec<u64>>());
        let own = buffer(data_type, &all[rank.index()]);
        let zeros = |blocks: usize| Buffer::zeroed(data_type, [blocks as i64]).expect("a buffer");
        let out = || zeros(blocks * operation.output_blocks(n as usize));
        let root_rank = Rank(root);
        let is_root = rank == root_rank;
        let (collective, operands) = match operation {
            CollectiveOperation::AllReduce => (Collective::AllReduce { reduce_op }, Operands::in_place(own)),
            CollectiveOperation::Broadcast => (Collective::Broadcast { root: root_rank }, Operands::in_place(own)),
            CollectiveOperation::Reduce => (Collective::Reduce { reduce_op, root: root_rank }, Operands::in_place(own)),
            CollectiveOperation::AllGather => (Collective::AllGather, Operands::new(own, out())),
            CollectiveOperation::AllToAll => (Collective::AllToAll, Operands::new(own, out())),
            CollectiveOperation::ReduceScatter => (Collective::ReduceScatter { reduce_op }, Operands::new(own, out())),
            CollectiveOperation::Gather => {
                (Collective::Gather { root: root_rank }, Operands::new(own, is_root.then(out)))
            }
            CollectiveOperation::Scatter => {
                (Collective::Scatter { root: root_rank }, Operands::new(is_root.then_some(own), out()))
            }
            other => panic!("{other} is new"),
        };
        // In place, a rank that has no result keeps its input.
        let kept = (operation == CollectiveOperation::Reduce).then(|| all[rank.index()].clone());
        let expected = Expected { data_type, output: output.or(kept), list: None };
        self.start(communicator, collective, operands, how, expected);
    }

    fn list(&mut self, communicator: &Communicator, operation: usize, root: u32, count: usize, how: How) {
        let (n, rank, data_type) = (communicator.world_size(), communicator.rank(), DataType::Bfloat16);
        let all: Vec<Vec<u64>> = (0..n).map(|rank| self.input(data_type, count, rank)).collect();
        let own = || buffer(data_type, &all[rank.index()]);
        let zeros = || buffer(data_type, &vec![0; count]);
        let root = Rank(root);
        let has_list = operation == 0 || rank == root;
        let list_of = |tensor: &dyn Fn(&Vec<u64>) -> Buffer| match has_list {
            true => all.iter().map(tensor).collect(),
            false => Vec::new(),
        };
        let list = Some(if has_list { all.clone() } else { Vec::new() });
        let (collective, operands, output) = match operation {
            0 => (Collective::AllGather, Operands::with_list(own(), None, list_of(&|_| zeros())), None),
            1 => (Collective::Gather { root }, Operands::with_list(own(), None, list_of(&|_| zeros())), None),
            _ => {
                let operands = Operands::with_list(None, zeros(), list_of(&|bits| buffer(data_type, bits)));
                (Collective::Scatter { root }, operands, Some(all[rank.index()].clone()))
            }
        };
        self.start(communicator, collective, operands, how, Expected { data_type, output, list });
    }

    fn bytes(&mut self, communicator: &Communicator, call: u8, root: u32, len: usize) {
        let (n, rank) = (communicator.world_size(), communicator.rank().index());
        let is_root = rank == root as usize;
        let of_rank = |rank: u32| {
            let bits = self.input(DataType::Uint8, len * rank as usize % 4001, rank);
            to_bytes(DataType::Uint8, bits)
        };
        let all: Vec<Vec<u8>> = (0..n).map(of_rank).collect();
        match call {
            0 => {
                let mut bytes = if is_root { all[rank].clone() } else { vec![1; len] };
                communicator.broadcast_bytes(&mut bytes, root).expect("bytes");
                assert_eq!(bytes, all[root as usize]);
            }
            1 => assert_eq!(communicator.all_gather_bytes(&all[rank]).expect("bytes"), all),
            2 => {
                let gathered = communicator.gather_bytes(&all[rank], root).expect("bytes");
                assert_eq!(gathered, is_root.then_some(all));
            }
            _ => {
                let own = communicator.scatter_bytes(is_root.then_some(&all[..]), root).expect("bytes");
                assert_eq!(own, all[rank]);
            }
        }
    }

    /// The message of this step that a rank sends.
    fn arriving(&self, source: Rank, data_type: DataType, count: usize) -> Arriving {
        Arriving { source, data_type, bits: self.input(data_type, count, source.0) }
    }

    fn message(
        &self,
        communicator: &Communicator,
        from: Rank,
        to: Rank,
        tag: Option<u32>,
        data_type: DataType,
        count: usize,
    ) {
        let rank = communicator.rank();
        // A receive from any rank fails when all other ranks have left.
        let source = if tag.is_some() || from == to { Source::Rank(from) } else { Source::Any };
        // No other step of this communicator has the number.
        let tag = tag.unwrap_or(100 + (self.seed % 30_000) as u32);
        let arriving = self.arriving(from, data_type, count);
        let sent = buffer(data_type, &arriving.bits);
        std::thread::scope(|scope| {
            let sending = (rank == from).then(|| scope.spawn(|| communicator.send(&sent, to, tag)));
            if rank == to {
                let mut buffer = arriving.buffer();
                let received = communicator.recv(&mut buffer, source, tag).expect("a message");
                arriving.check(Some(received), &buffer);
            }
            if let Some(sending) = sending {
                sending.join().expect("no panic").expect("a send");
            }
        });
    }

    fn exchange(
        &mut self,
        communicator: &Communicator,
        shift: u32,
        tag: u32,
        data_type: DataType,
        count: usize,
        exchange: Exchange,
    ) {
        let (n, rank) = (communicator.world_size(), communicator.rank());
        let (next, before) = (Rank((rank.0 + shift) % n), Rank((rank.0 + n - shift) % n));
        let arriving = self.arriving(before, data_type, count);
        let sent = buffer(data_type, &self.arriving(rank, data_type, count).bits);
        match exchange {
            Exchange::Batch => {
                let messages = vec![Message::send(sent, next, tag), Message::recv(arriving.buffer(), before, tag)];
                let work = communicator.batch_isend_irecv(messages).expect("right arguments");
                self.started.push(Started::Batch(Box::new(work), arriving));
            }
            Exchange::Apart { receives_first } => {
                let receive = |arriving: Arriving| {
                    let work = communicator.irecv(arriving.buffer(), before, tag).expect("right arguments");
                    Started::Receive(Box::new(work), arriving)
                };
                let send =
                    |sent| Started::Send(Box::new(communicator.isend(sent, next, tag).expect("right arguments")));
                self.started.extend(match receives_first {
                    true => {
                        let receiving = receive(arriving);
                        [receiving, send(sent)]
                    }
                    false => {
                        let sending = send(sent);
                        [sending, receive(arriving)]
                    }
                });
            }
            Exchange::Threads => std::thread::scope(|scope| {
                let sending = scope.spawn(|| communicator.send(&sent, next, tag));
                let mut buffer = arriving.buffer();
                let received = communicator.recv(&mut buffer, before, tag).expect("a message");
                arriving.check(Some(received), &buffer);
                sending.join().expect("no panic").expect("a send");
            }),
        }
    }

    fn wait(&mut self, backwards: bool, is_async: bool) {
        let mut started = std::mem::take(&mut self.started);
        if backwards {
            started.reverse();
        }
        started.into_iter().for_each(|started| finish(started, is_async));
    }
}

/// Waits for work, and compares what it gives.
fn finish(started: Started, is_async: bool) {
    match started {
        Started::Operands(work, expected) => {
            let operands = result(*work, is_async);
            let data_type = expected.data_type;
            let output = operands.output.map(|buffer| bits(data_type, &buffer));
            let list = operands.list.map(|list| list.iter().map(|buffer| bits(data_type, buffer)).collect());
            assert_eq!(Expected { data_type, output, list }, expected);
        }
        Started::Barrier(work) => drop(result(*work, is_async)),
        Started::Batch(work, arriving) => {
            let done = result(*work, is_async);
            assert_eq!(done.received()[0], None);
            arriving.check(done.received()[1], &done.messages[1].buffer);
        }
        Started::Receive(work, arriving) => {
            let done = result(*work, is_async);
            arriving.check(done.received()[0], &done.messages[0].buffer);
        }
        Started::Send(work) => assert_eq!(result(*work, is_async).received(), [None]),
    }
}

/// Waits for work, blocking or in an `async` way, and gives what it owned.
fn result<T: Send + 'static>(work: Work<T>, is_async: bool) -> T {
    let error: Error = match is_async {
        true => match block_on(work.into_future()) {
            Ok(result) => return result,
            Err(failed) => failed.into(),
        },
        false => match work.wait() {
            Ok(result) => return result,
            Err(error) => error.into(),
        },
    };
    panic!("{error}")
}

/// How many steps a thread counts in a group.
fn count(steps: &[Step]) -> u64 {
    let inside = |step: &Step| match step {
        Step::Group { steps, .. } => count(steps),
        _ => 0,
    };
    steps.iter().map(|step| 1 + inside(step)).sum()
}

fn cases() -> u32 {
    if std::env::var_os("DCL_EXHAUSTIVE").is_some() { 10_000 } else { 100 }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), max_shrink_iters: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_program_gives_what_the_reference_gives(
        n in 2u32..=4,
        threads in vec(vec(step(), 1..16), 1..=3),
    ) {
        let threads = Arc::new(threads);
        on_ranks(n, move |communicator| {
            // Threads of one rank have no common order, so each has a communicator of its own.
            let communicators: Vec<Communicator> = threads
                .iter()
                .map(|_| communicator.split(Some(0), 0).expect("a split").expect("a color"))
                .collect();
            std::thread::scope(|scope| {
                for (number, (steps, communicator)) in threads.iter().zip(&communicators).enumerate() {
                    scope.spawn(move || {
                        let mut thread = Thread::new(number as u64);
                        thread.run(communicator, steps);
                        thread.wait(false, false);
                    });
                }
            });
            communicator.finalize().expect("all ranks agree");
        });
    }
}
