//! Reductions: a partial result goes from machine to machine in rank order, and each adds what its
//! ranks give. So the bits are those of one machine.
//!
//! Between two machines that need not take turns, both send what their ranks give, and add it
//! themselves.
//!
//! The elements are cut into *slices*. On each machine one rank, the slice's *folder*, gets what
//! the others give to it, on the host. All slices of a *round* are on their way at once, and the
//! next rounds follow before the results of one have come back.

use std::collections::VecDeque;
use std::time::Instant;

use super::ClusterBackend;
use super::link::{Bytes, MessageKind, Tag};
use super::placement::RankPlacement;
use crate::collective::{Collective, ReduceOperation};
use crate::comm::backend::Request;
use crate::comm::transfer_path::TransferPath;
use crate::compute;
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::memory::Address;
use crate::rank::{GroupRank, Rank};

/// The most bytes of a slice.
const SLICE_BYTES: usize = 256 << 10;

/// How many rounds a rank begins before it needs the results of the first of them.
const ROUNDS_AHEAD: usize = 4;

/// Elements of a block that are reduced together.
#[derive(Clone, Copy)]
struct Slice {
    number: usize,
    block: usize,
    start: usize,
    len: usize,
}

/// One reduction.
struct SlicedReduction<'a> {
    place: &'a RankPlacement,
    request: &'a Request<'a>,
    reduce_op: ReduceOperation,
    /// The number of slices of a round: one for each block, or several of the only block.
    slice_count: usize,
    /// The most elements of a slice.
    slice_len: usize,
    round_count: usize,
    /// The two machines send each other partial results, which takes the link one step. The last
    /// partial result is of one rank, or the order of additions changes no bit.
    is_swapped: bool,
}

impl<'a> SlicedReduction<'a> {
    fn new(place: &'a RankPlacement, request: &'a Request<'a>, reduce_op: ReduceOperation) -> Self {
        let most = SLICE_BYTES / request.call.data_type.byte_len();
        let longest = request.call.block_elements;
        let (slice_count, slice_len) = match request.call.collective {
            Collective::ReduceScatter { .. } => (place.len(), most.min(longest)),
            _ => (place.widest(), most.min(longest.div_ceil(place.widest()))),
        };
        let of_round = if has_blocks(request) { slice_len } else { slice_count * slice_len };
        let round_count = longest.div_ceil(of_round);
        let is_ordered =
            request.call.data_type.is_float() && !matches!(reduce_op, ReduceOperation::Max | ReduceOperation::Min);
        // A root would take all of the other machine's partial results at once.
        let is_swapped = request.call.collective.root().is_none()
            && matches!(&place.runs[..], [_, last] if last.len() == 1 || !is_ordered);
        SlicedReduction { place, request, reduce_op, slice_count, slice_len, round_count, is_swapped }
    }

    fn data_type(&self) -> DataType {
        self.request.call.data_type
    }

    fn byte_len(&self, slice: Slice) -> usize {
        slice.len * self.data_type().byte_len()
    }

    /// A slice of a round; it may be empty.
    fn slice(&self, round: usize, number: usize) -> Slice {
        let (block, start, end) = match has_blocks(self.request) {
            true => (number, round * self.slice_len, self.request.block_len(self.place.own, GroupRank(number as u32))),
            false => (0, (round * self.slice_count + number) * self.slice_len, self.request.call.block_elements),
        };
        let start = start.min(end);
        Slice { number, block, start, len: self.slice_len.min(end - start) }
    }

    /// The slices of a round that have elements and this folder.
    fn slices_of(&self, round: usize, folder: GroupRank) -> impl Iterator<Item = Slice> {
        let machine = self.place.machine_of(folder);
        let slices = (0..self.slice_count).filter(move |number| self.folder(*number, machine) == folder);
        slices.map(move |number| self.slice(round, number)).filter(|slice| slice.len > 0)
    }

    /// The folder of a slice on a machine.
    fn folder(&self, number: usize, machine: usize) -> GroupRank {
        let ranks = self.place.ranks_of(machine);
        match self.receiver(number) {
            // What one rank gets, that rank folds, if it is where the result comes to be.
            Some(receiver) if self.place.machine_of(receiver) == machine && machine == self.last_machine() => receiver,
            Some(receiver) if has_blocks(self.request) => match self.place.machine_of(receiver) == machine {
                true => receiver,
                false => self.place.counterpart(receiver, machine).1,
            },
            _ => ranks[number * ranks.len() / self.slice_count],
        }
    }

    /// The rank that gets the result of a slice, if not all do.
    fn receiver(&self, number: usize) -> Option<GroupRank> {
        match self.request.call.collective {
            Collective::ReduceScatter { .. } => Some(GroupRank(number as u32)),
            collective => collective.root(),
        }
    }

    /// The machine of the last rank, where results come to be.
    fn last_machine(&self) -> usize {
        self.place.machine_of(GroupRank(self.place.len() as u32 - 1))
    }

    /// Whether a machine's ranks get the result of a slice.
    fn is_received_on(&self, number: usize, machine: usize) -> bool {
        self.receiver(number).is_none_or(|receiver| self.place.machine_of(receiver) == machine)
    }

    /// The machines in the order in which a result that all get goes from one to the next.
    fn way_back(&self) -> impl DoubleEndedIterator<Item = usize> {
        let last = self.last_machine();
        let others = (0..self.place.machine_count()).rev().filter(move |machine| *machine != last);
        std::iter::once(last).chain(others)
    }

    /// The machine to which one sends the results.
    fn after(&self, machine: usize) -> Option<usize> {
        self.way_back().skip_while(|other| *other != machine).nth(1)
    }

    /// The machine from which one gets the results.
    fn before(&self, machine: usize) -> Option<usize> {
        self.way_back().rev().skip_while(|other| *other != machine).nth(1)
    }

    fn output(&self, slice: Slice) -> *mut u8 {
        self.request.output.pointer.wrapping_add(slice.start * self.data_type().byte_len())
    }

    /// Where the result of a slice goes on the rank that gets it.
    fn block_output(&self, slice: Slice) -> *mut u8 {
        let own = if self.request.uneven.is_some() {
            self.request.output_for(self.place.own)
        } else {
            self.request.output.pointer
        };
        own.wrapping_add(slice.start * self.data_type().byte_len())
    }

    fn input(&self, slice: Slice) -> *const u8 {
        self.request.input_block(slice.block).wrapping_add(slice.start * self.data_type().byte_len())
    }

    /// Adds contributions to a partial result, or makes the first one.
    ///
    /// # Safety
    ///
    /// Each contribution is valid for reads of the slice's elements.
    unsafe fn add(&self, previous: Option<Bytes>, contributions: &[*const u8], len: usize) -> Bytes {
        let (partial_type, reduce_op) = compute::partial(self.reduce_op, self.data_type());
        let byte_len = len * partial_type.byte_len();
        let wide: Vec<Bytes> = match partial_type == self.data_type() {
            true => Vec::new(),
            false => contributions
                .iter()
                .map(|contribution| {
                    let mut wide = Bytes::of_len(byte_len);
                    // SAFETY: the caller's promise.
                    unsafe { compute::cast(self.data_type(), *contribution, partial_type, wide.as_mut_ptr(), len) };
                    wide
                })
                .collect(),
        };
        let mut partial = previous.unwrap_or_default();
        let mut sources: Vec<*const u8> = Vec::with_capacity(1 + contributions.len());
        if !partial.is_empty() {
            sources.push(partial.as_ptr());
        } else {
            partial = Bytes::of_len(byte_len);
        }
        match wide.is_empty() {
            true => sources.extend(contributions),
            false => sources.extend(wide.iter().map(|bytes| bytes.as_ptr())),
        }
        // SAFETY: all have as many elements of the partial type, and the target may be one of them.
        unsafe { compute::reduce(reduce_op, partial_type, &sources, partial.as_mut_ptr(), len) };
        partial
    }

    /// The result of two partial results. This machine has the first rank if `is_first`.
    ///
    /// # Safety
    ///
    /// This machine's partial result is valid for reads of the slice's elements.
    unsafe fn combine(&self, own: *const u8, mut theirs: Bytes, is_first: bool, len: usize) -> Bytes {
        let (partial_type, reduce_op) = compute::partial(self.reduce_op, self.data_type());
        let target = theirs.as_mut_ptr();
        let sources = if is_first { [own, target] } else { [target, own] };
        // SAFETY: both have as many elements, and the target may be one of them.
        unsafe { compute::reduce(reduce_op, partial_type, &sources, target, len) };
        self.finish(theirs, len)
    }

    fn finish(&self, partial: Bytes, len: usize) -> Bytes {
        let (partial_type, _) = compute::partial(self.reduce_op, self.data_type());
        if partial_type == self.data_type() && self.reduce_op != ReduceOperation::Avg {
            return partial;
        }
        let mut result = Bytes::of_len(len * self.data_type().byte_len());
        let (source, target) = (partial.as_ptr(), result.as_mut_ptr());
        // SAFETY: both have as many elements of their types.
        unsafe { compute::finish(self.reduce_op, self.data_type(), self.place.len(), source, target, len) };
        result
    }
}

/// Whether each rank gets a block of its own.
fn has_blocks(request: &Request<'_>) -> bool {
    request.call.input().is_per_rank
}

/// The results of a round that have come to be on this rank, by the numbers of their slices. Where
/// two machines exchange partial results, they are this machine's at first, and empty where that is
/// this rank's input.
type Results = Vec<(Slice, Bytes)>;

impl ClusterBackend {
    fn slice_tag(&self, kind: MessageKind) -> Tag {
        Tag { communicator: self.id, kind, number: 0 }
    }

    fn receive_slice(&self, kind: MessageKind, from: GroupRank, len: usize, deadline: Instant) -> Result<Bytes> {
        let from: Rank = self.placement.member(from);
        let missing = || format!("rank {from} did not send its slice");
        let bytes = self.job.receive(from, self.slice_tag(kind), deadline, &missing)?;
        if bytes.len() != len {
            bail!(System, "rank {from} sent a slice of {} bytes, which has {len}", bytes.len());
        }
        Ok(bytes)
    }

    /// Runs a reduction, and says how.
    ///
    /// # Safety
    ///
    /// As [`Backend::run`](crate::comm::backend::Backend::run). The ranks have agreed.
    pub(super) unsafe fn reduce(&self, request: &Request<'_>, reduce_op: ReduceOperation) -> Result<TransferPath> {
        let reduction = SlicedReduction::new(&self.placement, request, reduce_op);
        let mut begun = VecDeque::new();
        for round in 0..reduction.round_count {
            self.wait_for_room(request.deadline)?;
            // SAFETY: the caller's promise.
            begun.push_back((round, unsafe { self.fold_round(&reduction, round)? }));
            if begun.len() > ROUNDS_AHEAD
                && let Some((round, results)) = begun.pop_front()
            {
                // SAFETY: as above.
                unsafe { self.finish_round(&reduction, round, results)? };
            }
        }
        begun.into_iter().try_for_each(|(round, results)| {
            // SAFETY: as above.
            unsafe { self.finish_round(&reduction, round, results) }
        })?;
        Ok(if reduction.is_swapped { TransferPath::Swapped } else { TransferPath::Chained })
    }

    /// Adds what this machine's ranks give to the slices of a round that this rank folds.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce).
    unsafe fn fold_round(&self, reduction: &SlicedReduction<'_>, round: usize) -> Result<Results> {
        let (place, deadline) = (&self.placement, reduction.request.deadline);
        let own_slices: Vec<Slice> = reduction.slices_of(round, place.own).collect();
        // SAFETY: the caller's promise.
        let given = unsafe { self.give_to_folders(reduction, round, &own_slices)? };
        let machine_of_run = |run: usize| place.machine_of(GroupRank(place.runs[run].start as u32));
        let mut results = Results::new();
        for (run, ranks) in place.runs.iter().enumerate() {
            if machine_of_run(run) != place.own_machine() {
                continue;
            }
            let mut offset = 0;
            for slice in &own_slices {
                let (partial_type, _) = compute::partial(reduction.reduce_op, reduction.data_type());
                let partial_len = slice.len * partial_type.byte_len();
                let previous = match run.checked_sub(1).filter(|_| !reduction.is_swapped) {
                    None => None,
                    Some(previous) => {
                        let from = reduction.folder(slice.number, machine_of_run(previous));
                        Some(self.receive_slice(MessageKind::Partials, from, partial_len, deadline)?)
                    }
                };
                let contribution = |rank: usize| match &given {
                    Some((bytes, len)) => {
                        let at = place.local_index(GroupRank(rank as u32)) * len + offset;
                        bytes[at..].as_ptr()
                    }
                    None => reduction.input(*slice),
                };
                let contributions: Vec<*const u8> = ranks.clone().map(contribution).collect();
                // SAFETY: each is valid for the slice: in what the host has gathered, or in the
                // input of this rank, which is alone on its machine.
                let mut partial = unsafe { reduction.add(previous, &contributions, slice.len) };
                offset += reduction.byte_len(*slice);
                if reduction.is_swapped {
                    let other = machine_of_run(1 - run);
                    let is_sent = reduction.is_received_on(slice.number, other);
                    if reduction.is_received_on(slice.number, place.own_machine()) {
                        let own = match (given.is_none() && partial_type == reduction.data_type(), is_sent) {
                            // It is the input.
                            (true, _) => Bytes::default(),
                            (false, true) => Bytes::copy_of(&partial),
                            (false, false) => std::mem::take(&mut partial),
                        };
                        results.push((*slice, own));
                    }
                    if is_sent {
                        let to = place.member(reduction.folder(slice.number, other));
                        self.job.send(to, self.slice_tag(MessageKind::Partials), partial)?;
                    }
                } else if run + 1 < place.runs.len() {
                    let to = place.member(reduction.folder(slice.number, machine_of_run(run + 1)));
                    self.job.send(to, self.slice_tag(MessageKind::Partials), partial)?;
                } else {
                    let result = reduction.finish(partial, slice.len);
                    self.send_result(reduction, *slice, &result)?;
                    results.push((*slice, result));
                }
            }
        }
        Ok(results)
    }

    /// What this machine's ranks give to this rank's slices, one rank after the other, and the
    /// length of what each gives. `None` on a machine with one rank.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce).
    unsafe fn give_to_folders(
        &self,
        reduction: &SlicedReduction<'_>,
        round: usize,
        own_slices: &[Slice],
    ) -> Result<Option<(Bytes, usize)>> {
        let locals = self.placement.local_ranks();
        if locals.len() == 1 {
            return Ok(None);
        }
        let len_for =
            |folder: GroupRank| reduction.slices_of(round, folder).map(|slice| reduction.byte_len(slice)).sum();
        let lens: Vec<usize> = locals.iter().map(|folder| len_for(*folder)).collect();
        let own_len = own_slices.iter().map(|slice| reduction.byte_len(*slice)).sum::<usize>();
        let mut packed: Vec<Bytes> = Vec::new();
        let mut inputs = Vec::with_capacity(locals.len());
        for (folder, len) in locals.iter().zip(&lens) {
            let slices: Vec<Slice> = reduction.slices_of(round, *folder).collect();
            let follows =
                |pair: &[Slice]| pair[0].block == pair[1].block && pair[0].start + pair[0].len == pair[1].start;
            let address = match slices.first() {
                None => std::ptr::null(),
                Some(first) if slices.windows(2).all(follows) => reduction.input(*first),
                Some(_) => {
                    let mut bytes = Bytes::of_len(*len);
                    let mut at = 0;
                    for slice in &slices {
                        let byte_len = reduction.byte_len(*slice);
                        // SAFETY: the slice is in the input, and the bytes have room for all.
                        unsafe { compute::copy(reduction.input(*slice), bytes[at..].as_mut_ptr(), byte_len) };
                        at += byte_len;
                    }
                    packed.push(bytes);
                    packed.last().map_or(std::ptr::null(), |bytes| bytes.as_ptr())
                }
            };
            inputs.push(Address::host(address));
        }
        let mut given = Bytes::of_len(own_len * locals.len());
        let outputs: Vec<Address> =
            (0..locals.len()).map(|from| Address::host(given.as_mut_ptr().wrapping_add(from * own_len))).collect();
        let len = |_: usize, to: usize| lens[to];
        // SAFETY: the inputs have as many bytes for each folder, and the output for each rank.
        unsafe { self.run_uneven_on_host(Collective::AllToAll, len, &inputs, &outputs, reduction.request)? };
        Ok(Some((given, own_len)))
    }

    /// Sends a result to the other machines, or to the rank that gets it.
    fn send_result(&self, reduction: &SlicedReduction<'_>, slice: Slice, result: &Bytes) -> Result<()> {
        let place = &self.placement;
        let tag = self.slice_tag(MessageKind::Results);
        match reduction.receiver(slice.number) {
            Some(receiver) if receiver == place.own => {
                // SAFETY: the output holds the slice, by the contract of `Backend`.
                unsafe { compute::copy(result.as_ptr(), reduction.block_output(slice), result.len()) };
                Ok(())
            }
            Some(receiver) => self.job.send(place.member(receiver), tag, Bytes::copy_of(result)),
            None => match reduction.after(place.own_machine()) {
                Some(next) => {
                    self.job.send(place.member(reduction.folder(slice.number, next)), tag, Bytes::copy_of(result))
                }
                None => Ok(()),
            },
        }
    }

    /// Takes the other machine's partial results of a round, and adds them to this machine's.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce).
    unsafe fn take_partials(&self, reduction: &SlicedReduction<'_>, results: &mut Results) -> Result<()> {
        let (place, deadline) = (&self.placement, reduction.request.deadline);
        let is_first = place.runs[0].contains(&place.own.index());
        let (partial_type, _) = compute::partial(reduction.reduce_op, reduction.data_type());
        for (slice, bytes) in results {
            let from = reduction.folder(slice.number, 1 - place.own_machine());
            let byte_len = slice.len * partial_type.byte_len();
            let theirs = self.receive_slice(MessageKind::Partials, from, byte_len, deadline)?;
            let own = if bytes.is_empty() { reduction.input(*slice) } else { bytes.as_ptr() };
            // SAFETY: the caller's promise, and the bytes are of the slice.
            *bytes = unsafe { reduction.combine(own, theirs, is_first, slice.len) };
            if reduction.receiver(slice.number).is_some() {
                // SAFETY: the output holds the slice, by the contract of `Backend`.
                unsafe { compute::copy(bytes.as_ptr(), reduction.block_output(*slice), bytes.len()) };
            }
        }
        Ok(())
    }

    /// Takes the results of a round.
    ///
    /// # Safety
    ///
    /// As [`reduce`](Self::reduce).
    unsafe fn finish_round(&self, reduction: &SlicedReduction<'_>, round: usize, mut results: Results) -> Result<()> {
        let (place, deadline) = (&self.placement, reduction.request.deadline);
        let last_machine = reduction.last_machine();
        let is_last = place.own_machine() == last_machine;
        let folder_there = |slice: Slice| reduction.folder(slice.number, last_machine);
        if reduction.is_swapped {
            // SAFETY: the caller's promise.
            unsafe { self.take_partials(reduction, &mut results)? };
        }
        if reduction.receiver(0).is_some() {
            let gets = |slice: &Slice| slice.len > 0 && reduction.receiver(slice.number) == Some(place.own);
            let slices = (0..reduction.slice_count).map(|number| reduction.slice(round, number)).filter(gets);
            for slice in slices.filter(|_| !is_last && !reduction.is_swapped) {
                let len = reduction.byte_len(slice);
                let result = self.receive_slice(MessageKind::Results, folder_there(slice), len, deadline)?;
                // SAFETY: the output holds the slice, by the contract of `Backend`.
                unsafe { compute::copy(result.as_ptr(), reduction.block_output(slice), len) };
            }
            return Ok(());
        }
        if let Some(machine) = reduction.before(place.own_machine()).filter(|_| !reduction.is_swapped) {
            for slice in reduction.slices_of(round, place.own) {
                let from = reduction.folder(slice.number, machine);
                let result = self.receive_slice(MessageKind::Results, from, reduction.byte_len(slice), deadline)?;
                self.send_result(reduction, slice, &result)?;
                results.push((slice, result));
            }
        }
        let locals = place.local_ranks();
        if locals.len() == 1 {
            for (slice, result) in &results {
                // SAFETY: as above.
                unsafe { compute::copy(result.as_ptr(), reduction.output(*slice), result.len()) };
            }
            return Ok(());
        }
        let own = match &results[..] {
            [(_, result)] => Bytes::copy_of(result),
            results => {
                Bytes::copy_of(&results.iter().flat_map(|(_, result)| result.iter().copied()).collect::<Vec<_>>())
            }
        };
        // The slices of a folder follow one another.
        let first_of = |folder: &GroupRank| reduction.slices_of(round, *folder).next();
        let output =
            |folder| Address::host(first_of(folder).map_or(std::ptr::null_mut(), |slice| reduction.output(slice)));
        let outputs: Vec<Address> = locals.iter().map(output).collect();
        let len_of =
            |from: usize| reduction.slices_of(round, locals[from]).map(|slice| reduction.byte_len(slice)).sum();
        // SAFETY: the caller's promise: the output holds the slices of all folders.
        unsafe { self.gather_on_host(len_of, own.as_ptr(), &outputs, reduction.request) }
    }
}
