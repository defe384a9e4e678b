//! Collectives with a count for each block.

use distcollective::collective::Collective;
use distcollective::comm::{BackendKind, MovedType, RawBlocks, TransferType};
use distcollective::tensor::MemorySpace;
use distcollective::{Buffer, Communicator, DataType, Determinism, ErrorKind, Rank, ReduceOperation, Result, Stream};

use crate::conformance::Place;
use crate::ranks::on_ranks;
use crate::reference;
use crate::values::{Random, elements, to_bytes};
use ndarray::{ArrayD, IxDyn};

/// Whether the blocks of a side lie one after the other, with gaps, or in reverse.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Layout {
    Packed,
    Apart,
    Reversed,
}

/// One call on all ranks: how many elements go from each rank to each.
#[derive(Debug)]
struct Case {
    collective: Collective<Rank>,
    data_type: DataType,
    /// `lens[from][to]`.
    lens: Vec<Vec<usize>>,
    layouts: [Layout; 2],
    in_place: bool,
    seed: u64,
}

/// Rarely none at all, mostly a few, and sometimes more than a stage holds.
fn some_len(random: &mut Random, data_type: DataType) -> usize {
    match random.below(12) {
        0..3 => 0,
        3..9 => 1 + random.below(20),
        9..11 => 1 + random.below(2_000),
        _ => (70_000 + random.below(70_000)) / data_type.byte_len(),
    }
}

impl Case {
    fn of(number: u64, n: usize) -> Self {
        let mut random = Random(number);
        let root = Rank(random.below(n) as u32);
        let data_type = *random.pick(&DataType::ALL);
        let reduce_op = *random.pick(&ReduceOperation::ALL);
        let reduce_op = if reduce_op.applies_to(data_type) { reduce_op } else { ReduceOperation::Max };
        let collective = match number % 5 {
            0 => Collective::AllToAll,
            1 => Collective::AllGather,
            2 => Collective::Gather { root },
            3 => Collective::Scatter { root },
            _ => Collective::ReduceScatter { reduce_op },
        };
        let counts: Vec<usize> = (0..n).map(|_| some_len(&mut random, data_type)).collect();
        let mut len = |from: usize, to: usize| match collective {
            Collective::AllToAll => some_len(&mut random, data_type),
            Collective::AllGather => counts[from],
            Collective::Gather { root } if root.index() == to => counts[from],
            Collective::Scatter { root } if root.index() == from => counts[to],
            Collective::ReduceScatter { .. } => counts[to],
            _ => 0,
        };
        let lens = (0..n).map(|from| (0..n).map(|to| len(from, to)).collect()).collect();
        let layouts = [0, 1].map(|_| *random.pick(&[Layout::Packed, Layout::Apart, Layout::Reversed]));
        Case { collective, data_type, lens, layouts, in_place: random.below(4) == 0, seed: number }
    }

    /// The lengths of the blocks of a rank's input and output.
    fn counts(&self, rank: usize) -> [Vec<usize>; 2] {
        let n = self.lens.len();
        let given = self.lens[rank].clone();
        let taken: Vec<usize> = (0..n).map(|from| self.lens[from][rank]).collect();
        match self.collective {
            Collective::AllToAll => [given, taken],
            Collective::AllGather => [vec![given[0]], taken],
            Collective::Gather { root } if root.index() == rank => [vec![given[rank]], taken],
            Collective::Gather { root } => [vec![given[root.index()]], Vec::new()],
            Collective::Scatter { root } if root.index() == rank => [given, vec![taken[rank]]],
            Collective::Scatter { root } => [Vec::new(), vec![taken[root.index()]]],
            _ => [given, vec![taken[0]]],
        }
    }

    /// The elements of the blocks of a rank's input.
    fn input(&self, rank: usize) -> Vec<Vec<u64>> {
        let block = |(index, len): (usize, &usize)| {
            elements(self.data_type, *len, self.seed * 1000 + (rank * 32 + index) as u64)
        };
        self.counts(rank)[0].iter().enumerate().map(block).collect()
    }

    /// The blocks of a rank's output.
    fn expected(&self, rank: usize) -> Vec<Vec<u64>> {
        let n = self.lens.len();
        let block = |from: usize, to: usize| {
            let input = self.input(from);
            input[if input.len() > 1 { to } else { 0 }].clone()
        };
        match self.collective {
            Collective::Scatter { root } => vec![block(root.index(), rank)],
            Collective::ReduceScatter { reduce_op } => {
                let array = |from| {
                    let block = block(from, rank);
                    ArrayD::from_shape_vec(IxDyn(&[block.len()]), block).expect("one dimension")
                };
                let inputs: Vec<_> = (0..n).map(array).collect();
                vec![reference::reduce(reduce_op, self.data_type, &inputs).into_iter().collect()]
            }
            Collective::Gather { root } if root.index() != rank => Vec::new(),
            _ => (0..n).map(|from| block(from, rank)).collect(),
        }
    }

    /// Where the blocks of a side begin, in bytes, and where the last ends.
    fn places(&self, layout: Layout, counts: &[usize], start: usize) -> (Vec<usize>, usize) {
        let mut at = start;
        let mut places = vec![0; counts.len()];
        let order: Vec<usize> = match layout {
            Layout::Reversed => (0..counts.len()).rev().collect(),
            _ => (0..counts.len()).collect(),
        };
        for index in order {
            places[index] = at;
            at += counts[index] * self.data_type.byte_len() + if layout == Layout::Packed { 0 } else { 64 };
        }
        (places, at)
    }

    /// Makes the call, and compares every byte of the memory.
    fn run(&self, communicator: &Communicator, memory: &mut Buffer, stream: &Stream) -> Result<()> {
        let rank = communicator.rank().index();
        let counts = self.counts(rank);
        let (mut inputs, end) = self.places(self.layouts[0], &counts[0], 64);
        let (outputs, end) = self.places(self.layouts[1], &counts[1], end.next_multiple_of(64) + 64);
        let is_one_sided = |side: usize| counts[side].len() == 1 && counts[1 - side].len() > 1;
        let mut outputs = outputs;
        if self.in_place && is_one_sided(0) {
            inputs[0] = outputs[rank];
        } else if self.in_place && is_one_sided(1) {
            outputs[0] = inputs[rank];
        }
        let mut before = vec![0xa5; end + 64];
        let put = |memory: &mut Vec<u8>, at: usize, bits: Vec<u64>| {
            let bytes = to_bytes(self.data_type, bits);
            memory[at..at + bytes.len()].copy_from_slice(&bytes);
        };
        for (at, block) in inputs.iter().zip(self.input(rank)) {
            put(&mut before, *at, block);
        }
        memory.write(0, &before)?;
        let base = memory.as_mut_ptr();
        let address = |places: &[usize]| places.iter().map(|at| base.wrapping_add(*at)).collect::<Vec<_>>();
        let [input, output] = [address(&inputs), address(&outputs)];
        let blocks =
            [RawBlocks { addresses: &input, counts: &counts[0] }, RawBlocks { addresses: &output, counts: &counts[1] }];
        // SAFETY: the blocks are in the memory, which outlives the work.
        unsafe { communicator.enqueue_v(self.collective, self.data_type, blocks, stream)?.wait()? };
        let mut after = before;
        for (at, block) in outputs.iter().zip(self.expected(rank)) {
            put(&mut after, *at, block);
        }
        let mut got = vec![0; after.len()];
        memory.read(0, &mut got)?;
        let differs = got.iter().zip(&after).position(|(got, after)| got != after);
        assert_eq!(differs, None, "rank {rank}: inputs at {inputs:?}, outputs at {outputs:?}, {self:?}");
        Ok(())
    }
}

/// Random calls give what the reference does, in this memory and on this stream.
pub fn forms_match(communicator: &Communicator, place: Place, stream: &Stream, cases: u64) {
    let n = communicator.world_size() as usize;
    let dims = [4 << 20];
    let memory = match place {
        Place::Symmetric => communicator.allocate(DataType::Uint8, dims),
        _ => Buffer::zeroed_in(communicator.space(), DataType::Uint8, dims),
    };
    let mut memory = memory.unwrap_or_else(|error| panic!("{error}"));
    // Reductions of NCCL's own have other bits.
    let exact = communicator.with_determinism(Determinism::Exact);
    for number in 0..cases {
        let case = Case::of(number, n);
        let is_bitwise = case.collective.reduce_op().is_some_and(ReduceOperation::is_bitwise);
        if is_bitwise && communicator.backend() == BackendKind::Nccl {
            continue;
        }
        case.run(&exact, &mut memory, stream).unwrap_or_else(|error| panic!("{case:?}: {error}"));
    }
}

#[test]
fn random_calls_match_the_reference() {
    for n in 1..=6 {
        on_ranks(n, |communicator| {
            let cases = 240 / u64::from(communicator.world_size());
            forms_match(&communicator, Place::Own, &Stream::inline(), cases);
            forms_match(&communicator, Place::Own, &communicator.stream().expect("a thread"), cases / 4);
        });
    }
}

/// Calls whose counts differ between two ranks, and what the error says on every rank.
pub fn differences_are_errors(communicator: &Communicator, number: usize) -> bool {
    let rank = communicator.rank().index();
    let (mut x, mut y) = ([0f32; 6], [7f32; 6]);
    let is_other = rank == 1;
    let (result, says) = match number {
        0 => {
            // Rank 0 gives rank 1 two elements, and rank 1 takes three.
            let [given, taken] = if is_other { [[2, 3], [3, 3]] } else { [[2, 2], [2, 2]] };
            let result =
                communicator.all_to_all_v(&x[..given[0] + given[1]], &given, &mut y[..taken[0] + taken[1]], &taken);
            (
                result,
                "ranks disagree on the blocks of all_to_all: rank 0 gives rank 1 2 float32, and rank 1 takes 3 from rank 0",
            )
        }
        1 => {
            let counts = if is_other { [2, 4] } else { [2, 3] };
            let result = communicator.all_gather_v(&x[..counts[rank]], &mut y[..counts[0] + counts[1]], &counts);
            (result, "blocks of all_gather: rank 1 gives rank 0 4 float32, and rank 0 takes 3 from rank 1")
        }
        2 => {
            let counts = [1, 2];
            let output = (!is_other).then_some((&mut y[..3], &counts[..]));
            let result = communicator.gather_v(&x[..if is_other { 3 } else { 1 }], output, 0);
            (result, "gather to group rank 0: rank 1 gives rank 0 3 float32, and rank 0 takes 2 from rank 1")
        }
        3 => {
            let counts = [1, 2];
            let input = (!is_other).then_some((&x[..3], &counts[..]));
            let result = communicator.scatter_v(input, &mut y[..1], 0);
            (result, "scatter from group rank 0: rank 0 gives rank 1 2 float32, and rank 1 takes 1 from rank 0")
        }
        4 => {
            let counts = if is_other { [3, 2] } else { [3, 3] };
            let result = communicator.reduce_scatter_v(
                &x[..counts[0] + 3 - rank],
                &counts,
                &mut y[..counts[rank]],
                ReduceOperation::Sum,
            );
            (result, "reduce_scatter(sum): rank 0 gives rank 1 3 float32, and rank 1 takes 2 from rank 0")
        }
        5 => {
            let root = u32::from(is_other);
            let result = communicator.gather_v(&x[..1], Some((&mut y[..2], &[1, 1])), root);
            (
                result,
                "ranks disagree on a call with blocks of different lengths: rank 0 calls gather to group rank 0 of float32; \
                 rank 1 calls gather to group rank 1 of float32",
            )
        }
        6 => {
            let mut z = [0i32; 2];
            let result = match is_other {
                true => communicator.all_to_all_v(&[0i32; 2], &[1, 1], &mut z, &[1, 1]),
                false => communicator.all_to_all_v(&x[..2], &[1, 1], &mut y[..2], &[1, 1]),
            };
            (result, "rank 0 calls all_to_all of float32; rank 1 calls all_to_all of int32")
        }
        7 => {
            let result = match is_other {
                true => communicator.all_reduce(&mut x, ReduceOperation::Sum),
                false => communicator.all_to_all_v(&x[..2], &[1, 1], &mut y[..2], &[1, 1]),
            };
            (result, "rank 0 calls a collective with counts; rank 1 calls all_reduce(sum) of 6 float32")
        }
        _ => return false,
    };
    let error = result.expect_err("the ranks differ");
    assert_eq!(error.kind(), ErrorKind::Disagreement, "{error}");
    assert!(error.to_string().contains(says), "rank {rank}: {error}");
    assert!(y == [7.0; 6] && x == [0.0; 6], "nothing was written");
    assert!(communicator.barrier().is_err(), "the communicator has ended");
    true
}

#[test]
fn ranks_whose_counts_differ_get_one_error() {
    for number in 0.. {
        let found = on_ranks(2, move |communicator| differences_are_errors(&communicator, number));
        if found == [false; 2] {
            break;
        }
    }
}

#[test]
fn wrong_arguments_end_nothing() {
    on_ranks(2, |communicator| {
        let (x, mut y) = ([0f32; 4], [0f32; 4]);
        let refused = |result: Result<()>, kind: ErrorKind, says: &str| {
            let error = result.expect_err("a wrong argument");
            assert_eq!((error.kind(), error.to_string().contains(says)), (kind, true), "{error}");
        };
        use ErrorKind::{InvalidArgument, InvalidBuffer, Unsupported};
        let sum = "the input has 4 elements, and its counts do not add up to that: Some([1, 2])";
        refused(communicator.all_to_all_v(&x, &[1, 2], &mut y, &[2, 2]), InvalidBuffer, sum);
        refused(
            communicator.all_to_all_v(&x, &[4], &mut y, &[2, 2]),
            InvalidBuffer,
            "1 block and 1 count; with 2 ranks",
        );
        refused(communicator.all_to_all_v(&x, &[usize::MAX, 5], &mut y, &[2, 2]), InvalidBuffer, "do not add up");
        refused(
            communicator.all_to_all_v(&x, &[2, 2], &mut [0i32; 2], &[1, 1]),
            InvalidBuffer,
            "is float32 and the output int32",
        );
        refused(communicator.gather_v(&x, Some((&mut y, &[2, 2])), 2), InvalidArgument, "root 2 is not one of 2 ranks");
        let narrow = communicator.with_wire_type(distcollective::WireType::Float16);
        refused(narrow.all_gather_v(&x[..2], &mut y, &[2, 2]), Unsupported, "no transport type, and float16 is set");
        refused(
            communicator.reduce_scatter_v(
                &[distcollective::tensor::Bool(1); 2],
                &[1, 1],
                &mut [distcollective::tensor::Bool(0)],
                ReduceOperation::Avg,
            ),
            InvalidArgument,
            "bool has no average",
        );
        let own = "this rank gives itself";
        refused(communicator.all_to_all_v(&x[..2], &[1, 1], &mut y, &[2, 2]), InvalidBuffer, own);
        let (stream, at) = (Stream::inline(), y.as_mut_ptr().cast::<u8>());
        let raw = |collective, data_type: TransferType, input: &[*mut u8], output: &[*mut u8]| {
            let count = |list: &[*mut u8]| vec![1; list.len()];
            let (input_counts, output_counts) = (count(input), count(output));
            let sides = [
                RawBlocks { addresses: input, counts: &input_counts },
                RawBlocks { addresses: output, counts: &output_counts },
            ];
            // SAFETY: the call is refused.
            unsafe { communicator.enqueue_v(collective, data_type, sides, &stream) }.map(drop)
        };
        let (float32, two) = (DataType::Float32.into(), [at, at.wrapping_add(4)]);
        refused(
            raw(Collective::AllToAll, float32, &two, &two),
            InvalidBuffer,
            "a block of the input overlaps the output",
        );
        refused(
            raw(Collective::AllGather, float32, &[at.wrapping_add(8)], &[at, at]),
            InvalidBuffer,
            "two blocks of the output",
        );
        refused(
            raw(Collective::AllGather, float32, &[at.wrapping_add(9)], &two),
            InvalidBuffer,
            "null or not aligned to float32",
        );
        let sum = Collective::ReduceScatter { reduce_op: ReduceOperation::Sum };
        refused(raw(sum, float32, &[at, at], &[at]), InvalidBuffer, "a block of the input overlaps the output");
        refused(raw(Collective::AllGather, float32, &[std::ptr::null_mut()], &two), InvalidBuffer, "at 0x0 is null");
        let sum = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        refused(
            raw(sum, float32, &[at], &[at]),
            InvalidArgument,
            "all_to_all, all_gather, gather, scatter and reduce_scatter",
        );
        let moved = TransferType::Moved(MovedType::from_name("complex64").expect("a type"));
        let reduce_scatter = Collective::ReduceScatter { reduce_op: ReduceOperation::Max };
        refused(raw(reduce_scatter, moved, &two, &[at]), InvalidArgument, "complex64 has no max");
        communicator.all_gather_v(&x[..1], &mut y[..2], &[1, 1]).expect("the communicator works");
    });
}

/// A type that only moves, whose elements are several of the type that carries them.
#[test]
fn types_that_only_move() {
    on_ranks(3, |communicator| {
        let rank = communicator.rank().index();
        let moved = TransferType::Moved(MovedType::from_name("complex128").expect("a type"));
        let (counts, mut all) = ([2, 0, 3], [[0u8; 16]; 5]);
        let mut own = vec![[rank as u8 + 1; 16]; counts[rank]];
        let places = [0, 2, 2].map(|at| all.as_mut_ptr().wrapping_add(at).cast());
        let sides = [
            RawBlocks { addresses: &[own.as_mut_ptr().cast()], counts: &[counts[rank]] },
            RawBlocks { addresses: &places, counts: &counts },
        ];
        // SAFETY: the arrays outlive the work.
        unsafe { communicator.enqueue_v(Collective::AllGather, moved, sides, &Stream::inline()) }
            .and_then(|work| Ok(work.wait().map(drop)?))
            .expect("equal calls");
        assert_eq!(all.map(|element| element[15]), [1, 1, 3, 3, 3]);
        assert_eq!(communicator.space(), MemorySpace::Host);
    });
}
