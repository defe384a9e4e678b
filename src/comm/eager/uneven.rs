//! Collectives with a length for each block: MPI's `Alltoallv`, `Allgatherv`, `Gatherv`, `Scatterv`
//! and `Reduce_scatter`.

use super::raw::RawCollective;
use super::uneven_blocks::UnevenBlocks;
use crate::collective::{Call, Collective, Purpose, ReduceOperation, check_blocks, check_type};
use crate::comm::backend::Checked;
use crate::comm::{Communicator, Request};
use crate::data_type::DataType;
use crate::error::{Error, Result, bail};
use crate::memory::{Address, RawTensor, TensorView, TensorViewMut};
use crate::moved_type::TransferType;
use crate::rank::{GroupRank, Rank};
use crate::stream::{Stream, Work};
use crate::util::text::count_of;

/// One side of a call with counts: where its blocks are, and how many elements each has. There is a
/// block for each rank, or one. A rank that does not use the side gives none.
#[derive(Clone, Copy, Debug, Default)]
pub struct RawBlocks<'a> {
    /// Where each block begins. The address of an empty block may be null.
    pub addresses: &'a [*mut u8],
    /// The number of elements of each block.
    pub counts: &'a [usize],
}

/// A buffer whose blocks lie one after the other, and their counts if it has more than one.
type Packed<'a> = Option<(RawTensor, Option<&'a [usize]>)>;

/// # Blocks of different lengths
///
/// These calls mean the same as those without `_v`, with a count of elements for each block: what
/// MPI calls the v-forms. Blocks lie one after the other in rank order, and may be empty. The
/// counts of a buffer add up to its length. All ranks make the form with counts.
///
/// Each rank says what it gives to and takes from each other. If two ranks differ, every rank gets
/// a `Disagreement` that names both before an element moves, and the communicator ends.
///
/// There is no transport type. A buffer shares memory with the other one only if the input is the
/// rank's own block of the output (all_gather, gather), or the output that of the input (scatter,
/// reduce_scatter).
///
/// On GPUs the buffers are in the memory of the GPU, and blocks move in one group of NCCL's sends
/// and receives, or are reduced one after the other. A call waits on the caller's thread until the
/// ranks have exchanged their counts, on a CUDA stream too. In a capture it ends the communicator.
/// A rank that makes another call is found by the deadline.
///
/// ```
/// use distcollective::{Communicator, ReduceOperation};
///
/// Communicator::spawn(2, |communicator| {
///     let (rank, is_root) = (communicator.rank().index(), communicator.rank().0 == 1);
///     // Rank 0 gives 1 element to rank 0 and 2 to rank 1, and rank 1 gives 3 and 0.
///     let (given, taken) = [([1, 2], [1, 3]), ([3, 0], [2, 0])][rank];
///     let mut output = vec![0; taken.iter().sum()];
///     communicator.all_to_all_v(&[rank as i32; 3], &given, &mut output, &taken)?;
///     assert_eq!(output, if is_root { vec![0, 0] } else { vec![0, 1, 1, 1] });
///
///     let (counts, mut all) = ([1, 2], [0; 3]);
///     let own = vec![rank as i32 + 5; counts[rank]];
///     communicator.all_gather_v(&own, &mut all, &counts)?;
///     assert_eq!(all, [5, 6, 6]);
///     communicator.gather_v(&own, is_root.then_some((&mut all, &counts[..])), 1)?;
///     let mut part = vec![0; counts[rank]];
///     communicator.scatter_v(is_root.then_some((&all, &counts[..])), &mut part, 1)?;
///     assert_eq!(part, own);
///     communicator.reduce_scatter_v(&[1, 2, 3], &counts, &mut part, ReduceOperation::Sum)?;
///     assert_eq!(part, if is_root { vec![4, 6] } else { vec![2] });
///     Ok(())
/// })?;
/// # Ok::<(), distcollective::Error>(())
/// ```
impl Communicator {
    /// Sends each rank its block of `input`, and puts what comes from each into its block of
    /// `output`.
    #[doc = include_str!("errors.md")]
    pub fn all_to_all_v<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        input_counts: &[usize],
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        output_counts: &[usize],
    ) -> Result<()> {
        let input = (*self.view(&Collective::AllToAll, input)?.raw(), Some(input_counts));
        let output = (*self.view_mut(&Collective::AllToAll, output)?.raw(), Some(output_counts));
        self.complete_uneven(Collective::AllToAll, [Some(input), Some(output)])
    }

    /// Gives every rank all inputs. `counts` has the length of each rank's.
    #[doc = include_str!("errors.md")]
    pub fn all_gather_v<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        counts: &[usize],
    ) -> Result<()> {
        let input = (*self.view(&Collective::AllGather, input)?.raw(), None);
        let output = (*self.view_mut(&Collective::AllGather, output)?.raw(), Some(counts));
        self.complete_uneven(Collective::AllGather, [Some(input), Some(output)])
    }

    /// Gives the root all inputs. The root gives an output and the length of each rank's input; the
    /// other ranks may give `None::<(&mut [f32], _)>`.
    #[doc = include_str!("errors.md")]
    pub fn gather_v<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        output: Option<(impl TryInto<TensorViewMut<'b>, Error: Into<Error>>, &[usize])>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let collective = Collective::Gather { root: root.into() };
        let input = (*self.view(&collective, input)?.raw(), None);
        let output = match output {
            Some((output, counts)) => Some((*self.view_mut(&collective, output)?.raw(), Some(counts))),
            None => None,
        };
        self.complete_uneven(collective, [Some(input), output])
    }

    /// Gives each rank its block of the root's input. The root gives an input and the length of
    /// each block; the other ranks may give `None::<(&[f32], _)>`.
    #[doc = include_str!("errors.md")]
    pub fn scatter_v<'a, 'b>(
        &self,
        input: Option<(impl TryInto<TensorView<'a>, Error: Into<Error>>, &[usize])>,
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        root: impl Into<Rank>,
    ) -> Result<()> {
        let collective = Collective::Scatter { root: root.into() };
        let input = match input {
            Some((input, counts)) => Some((*self.view(&collective, input)?.raw(), Some(counts))),
            None => None,
        };
        let output = (*self.view_mut(&collective, output)?.raw(), None);
        self.complete_uneven(collective, [input, Some(output)])
    }

    /// Gives each rank its block of the reduction of all inputs. `counts` has the length of each
    /// block.
    #[doc = include_str!("errors.md")]
    pub fn reduce_scatter_v<'a, 'b>(
        &self,
        input: impl TryInto<TensorView<'a>, Error: Into<Error>>,
        counts: &[usize],
        output: impl TryInto<TensorViewMut<'b>, Error: Into<Error>>,
        reduce_op: ReduceOperation,
    ) -> Result<()> {
        let collective = Collective::ReduceScatter { reduce_op };
        let input = (*self.view(&collective, input)?.raw(), Some(counts));
        let output = (*self.view_mut(&collective, output)?.raw(), None);
        self.complete_uneven(collective, [Some(input), Some(output)])
    }

    /// Any of these calls on raw addresses, on a stream. The addresses are in the memory of the
    /// communicator, [`space`](Self::space), and blocks need not lie one after the other.
    /// Collective.
    ///
    /// # Safety
    ///
    /// As [`enqueue`](Self::enqueue), for each block.
    ///
    /// # Errors
    ///
    /// - `InvalidArgument`: the operation has no counts; the root is not a rank; the type does not
    ///   have the reduction.
    /// - `InvalidBuffer`: a side that this rank uses has not as many blocks as the operation has;
    ///   this rank gives itself more or less than it takes from itself; the elements are more than
    ///   memory can hold; the address of a block with elements is null or not aligned; buffers
    ///   overlap that may not.
    /// - `Unsupported`: a transport type is set.
    /// - Those of [`enqueue_barrier`](Self::enqueue_barrier).
    pub unsafe fn enqueue_v(
        &self,
        collective: Collective<Rank>,
        data_type: impl Into<TransferType>,
        [input, output]: [RawBlocks<'_>; 2],
        stream: &Stream,
    ) -> Result<Work<RawCollective>> {
        let task = self.uneven_task(collective, data_type.into(), [input, output], stream);
        Ok(self.submit(task.map_err(|error| self.label(&collective, error))?, stream))
    }

    /// Makes the call on this thread, on buffers that the caller borrows meanwhile.
    fn complete_uneven(&self, collective: Collective<Rank>, sides: [Packed<'_>; 2]) -> Result<()> {
        let (stream, mut data_type) = (Stream::inline(), None);
        let mut task = || {
            let (mut addresses, mut counts) = ([Vec::new(), Vec::new()], [Vec::new(), Vec::new()]);
            for (index, (name, side)) in ["input", "output"].into_iter().zip(&sides).enumerate() {
                let Some((raw, given)) = side else { continue };
                let other: DataType = *data_type.get_or_insert(raw.data_type);
                if other != raw.data_type {
                    bail!(InvalidBuffer, "the input is {other} and the output {}", raw.data_type);
                }
                let len = raw.element_count();
                counts[index] = given.map_or_else(|| vec![len], <[usize]>::to_vec);
                let sum = counts[index].iter().try_fold(0usize, |sum, count| sum.checked_add(*count));
                if sum != Some(len) {
                    let elements = count_of(len, "element");
                    bail!(InvalidBuffer, "the {name} has {elements}, and its counts do not add up to that: {given:?}");
                }
                if raw.space != self.space() {
                    bail!(Unsupported, "the {name} is in {}; with counts it is in {}", raw.space, self.space());
                }
                let mut next = raw.address;
                for count in &counts[index] {
                    addresses[index].push(next);
                    next = next.wrapping_add(count * raw.data_type.byte_len());
                }
            }
            let blocks = [0, 1].map(|side| RawBlocks { addresses: &addresses[side], counts: &counts[side] });
            let Some(data_type) = data_type else { bail!(InvalidBuffer, "there is no buffer") };
            self.uneven_task(collective, data_type.into(), blocks, &stream)
        };
        let task = task().map_err(|error| self.label(&collective, error))?;
        self.submit(task, &stream).wait().map(drop).map_err(Error::from)
    }

    /// A call with counts, which has been checked.
    fn uneven_task(
        &self,
        collective: Collective<Rank>,
        data_type: TransferType,
        sides: [RawBlocks<'_>; 2],
        stream: &Stream,
    ) -> Result<RawCollective> {
        if matches!(collective, Collective::AllReduce { .. } | Collective::Broadcast { .. } | Collective::Reduce { .. })
        {
            bail!(
                InvalidArgument,
                "it has one block; all_to_all, all_gather, gather, scatter and reduce_scatter have counts"
            );
        }
        if let Some(root) = collective.root() {
            self.check_rank("root", root)?;
        }
        if let Some(wire_type) = self.wire_type {
            bail!(Unsupported, "with counts there is no transport type, and {wire_type} is set");
        }
        let longest = sides.iter().flat_map(|side| side.counts).copied().max().unwrap_or(0);
        self.check_transfer(&collective, data_type, longest)?;
        let (carrier, parts) =
            (data_type.carrier(collective.reduce_op()), data_type.carrier_count(collective.reduce_op()));
        check_type(collective.reduce_op(), None, carrier)?;
        self.check_reduction(collective.reduce_op())?;
        let call = Call {
            only_moved: data_type.moved(),
            ..Call::of_blocks(collective.with_root(|rank| GroupRank(rank.0)), carrier, 0)
        };
        let call = call.for_purpose(Purpose::UNEVEN).at_least(self.determinism);
        let counts = sides.map(|side| side.counts.iter().map(|count| count * parts).collect());
        let own_rank = GroupRank(self.rank().0);
        let is_used = [call.reads_input(own_rank), call.writes_output(own_rank)];
        let addresses = [0, 1].map(|index| if is_used[index] { sides[index].addresses } else { &[] });
        let addrs = addresses.each_ref().map(|list| list.iter().map(|address| address.addr()).collect::<Vec<_>>());
        let blocks = [0, 1].map(|index| (addrs[index].as_slice(), sides[index].counts, is_used[index]));
        check_blocks(&call, own_rank, self.world_size() as usize, blocks)?;
        let own = |counts: &[usize]| counts[if counts.len() > 1 { own_rank.index() } else { 0 }];
        if call.moves(own_rank, own_rank) && own(sides[0].counts) != own(sides[1].counts) {
            let [given, taken] = sides.map(|side| own(side.counts));
            bail!(InvalidBuffer, "this rank gives itself {given} elements and takes {taken}");
        }
        let located = |list: &[*mut u8]| list.iter().map(|&pointer| Address { pointer, space: self.space() }).collect();
        let none = Address { pointer: std::ptr::null_mut(), space: self.space() };
        let request = Request { stream: stream.as_cuda(), ..Request::new(call, [none; 2], self.deadline()) };
        self.check_spaces(&request, [0; 2])?;
        let checked = Checked { backend: Some(self.as_backend()), request: &request };
        let blocks = UnevenBlocks { addresses: addresses.map(located), counts };
        Ok(RawCollective::new(self, &checked, None).with_blocks(blocks))
    }
}
