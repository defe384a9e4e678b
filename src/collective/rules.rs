//! The rules of a collective's types, shapes and buffers, each written once.

use std::ops::Range;

use super::{Call, CollectiveOperation, InPlace, ReduceOperation, WireType};
use crate::data_type::DataType;
use crate::error::{Result, bail, error};
use crate::rank::GroupRank;
use crate::shape::{Dims, Shape};
use crate::util::text::count_of;

/// The rule of types: every type with every operation and reduction, except the average of bool,
/// and bits of floats. Only float32 has transport types.
pub(crate) fn check_type(
    reduce_op: Option<ReduceOperation>,
    wire_type: Option<WireType>,
    data_type: DataType,
) -> Result<()> {
    if let Some(wire_type) = wire_type.filter(|_| data_type != DataType::Float32) {
        bail!(
            InvalidArgument,
            "the transport type is {wire_type}, and the tensor is {data_type}; only float32 has a transport type"
        );
    }
    match reduce_op.filter(|reduce_op| !reduce_op.applies_to(data_type)) {
        Some(ReduceOperation::Avg) => bail!(
            InvalidArgument,
            "bool has no average; sum and max mean or, prod and min mean and; cast to a number to average"
        ),
        Some(reduce_op) => bail!(InvalidArgument, "{reduce_op} is of integers and bool, and not of {data_type}"),
        None => {}
    }
    Ok(())
}

/// The shape of each rank's output, from the shape of its input, among `rank_count` ranks. Source:
/// the DistCollective page of NVIDIA TensorRT's operators.
///
/// ```
/// use distcollective::collective::output_shape;
/// use distcollective::tensor::Shape;
/// use distcollective::CollectiveOperation;
///
/// let output = output_shape(CollectiveOperation::AllGather, 4, &Shape::new(&[2, 8])?)?;
/// assert_eq!(output.as_slice(), [8, 8]);
/// # Ok::<(), distcollective::Error>(())
/// ```
///
/// # Errors
///
/// - There is no rank.
/// - The input has no dimensions.
/// - The operation divides dimension 0 among the ranks, and it is not a multiple of their number.
/// - The output is longer than memory can be.
pub fn output_shape(operation: CollectiveOperation, rank_count: usize, input: &Shape) -> Result<Shape> {
    if rank_count == 0 {
        bail!(InvalidArgument, "a collective has at least one rank");
    }
    let Some(&rows) = input.as_slice().first() else {
        bail!(InvalidShape, "the input has no dimensions; a layer's collective needs 1 to 8");
    };
    let (divided_by, times) = (operation.input_blocks(rank_count), operation.output_blocks(rank_count));
    if rows % divided_by != 0 {
        bail!(InvalidShape, "dimension 0 is {rows}, which is not a multiple of {rank_count} ranks");
    }
    let rows = (rows / divided_by).checked_mul(times).ok_or_else(|| {
        error!(InvalidShape, "dimension 0 is {rows}; {rank_count} times that has more elements than memory can hold")
    })?;
    input.with_first(rows)
}

/// [`output_shape`] of dimensions that may be dynamic (-1). A dynamic dimension stays dynamic.
///
/// # Errors
///
/// The errors of [`output_shape`] that the other dimensions show.
pub fn output_dims(operation: CollectiveOperation, rank_count: usize, input: &Dims) -> Result<Dims> {
    let known: Vec<usize> = input.as_slice().iter().map(|&d| usize::try_from(d).unwrap_or(0)).collect();
    let output = output_shape(operation, rank_count, &Shape::new(&known)?)?;
    let dims: Vec<i64> =
        input.as_slice().iter().zip(output.to_dims().as_slice()).map(|(&i, &o)| if i == -1 { -1 } else { o }).collect();
    Dims::new(&dims)
}

/// Whether two ranges of addresses share a byte.
pub(crate) fn overlap(a: &Range<usize>, b: &Range<usize>) -> bool {
    a.start < b.end && b.start < a.end
}

/// Checks alignment and overlap of the buffers that a call uses on this rank. An address of 0 means
/// no buffer. That is allowed if this rank does not use the buffer, or if it has no elements. The
/// lengths are those that [`Call::used_bytes`] gives.
pub(crate) fn check_buffers(
    call: &Call,
    rank: GroupRank,
    [input_bytes, output_bytes]: [usize; 2],
    [input, output]: [usize; 2],
) -> Result<()> {
    let align = call.data_type.byte_len();
    for (name, address, byte_len) in [("input", input, input_bytes), ("output", output, output_bytes)] {
        if byte_len == 0 {
            continue;
        }
        if address == 0 {
            bail!(InvalidBuffer, "the {name} is null, and this rank uses it ({byte_len} bytes)");
        }
        if address % align != 0 {
            bail!(
                InvalidBuffer,
                "the {name} at {address:#x} is not aligned to the {align} bytes of a {}",
                call.data_type
            );
        }
    }
    if input_bytes == 0 || output_bytes == 0 {
        return Ok(());
    }
    let input_range = input..input + input_bytes;
    let output_range = output..output + output_bytes;
    if !overlap(&input_range, &output_range) {
        return Ok(());
    }
    let bytes = |elements: usize| elements * align;
    let legal = match call.in_place(rank) {
        InPlace::SameAddress => input == output,
        InPlace::InputAt { element_offset } => input == output + bytes(element_offset),
        InPlace::OutputAt { element_offset } => output == input + bytes(element_offset),
        InPlace::Never | InPlace::Unused => false,
    };
    if legal {
        return Ok(());
    }
    let rule = match call.in_place(rank) {
        InPlace::SameAddress => "the same address".to_owned(),
        InPlace::InputAt { .. } => format!("input = output + {rank} blocks of {} elements", call.block_elements),
        InPlace::OutputAt { .. } => format!("output = input + {rank} blocks of {} elements", call.block_elements),
        InPlace::Never | InPlace::Unused => "never".to_owned(),
    };
    bail!(
        InvalidBuffer,
        "input {:#x}..{:#x} and output {:#x}..{:#x} overlap; in place is {rule}",
        input_range.start,
        input_range.end,
        output_range.start,
        output_range.end
    );
}

/// Checks alignment and overlap of the blocks of a list form, of which a rank without a list has
/// none, and of the one buffer on the other side.
pub(crate) fn check_list(call: &Call, one: usize, blocks: impl Iterator<Item = usize> + Clone) -> Result<()> {
    let (block, align) = (call.block_bytes(), call.data_type.byte_len());
    if block == 0 {
        return Ok(());
    }
    if let Some(wrong) = blocks.clone().chain([one]).find(|address| *address == 0 || address % align != 0) {
        let why = if wrong == 0 { "null".to_owned() } else { format!("not aligned to {align} bytes") };
        bail!(InvalidBuffer, "a buffer at {wrong:#x} is {why}, and this rank uses it ({block} bytes)");
    }
    let mut ranges: Vec<Range<usize>> = blocks.map(|at| at..at + block).collect();
    if ranges.iter().any(|range| overlap(range, &(one..one + block))) {
        bail!(InvalidBuffer, "a tensor of the list overlaps the call's other buffer");
    }
    ranges.sort_by_key(|range| range.start);
    // Inputs may be the same tensor.
    if call.output().is_per_rank && ranges.windows(2).any(|pair| overlap(&pair[0], &pair[1])) {
        bail!(InvalidBuffer, "two tensors of the output list overlap");
    }
    Ok(())
}

/// Checks the blocks of a call with counts on this rank: how many there are, their alignment, and
/// what overlaps. A side is its addresses, its counts and whether the rank uses it.
pub(crate) fn check_blocks(
    call: &Call,
    rank: GroupRank,
    rank_count: usize,
    sides: [(&[usize], &[usize], bool); 2],
) -> Result<()> {
    let (transfer_type, align) = (call.transfer_type(), call.data_type.byte_len());
    let mut ranges: [Vec<Range<usize>>; 2] = [Vec::new(), Vec::new()];
    let of_sides = [("input", call.input()), ("output", call.output())];
    for (((name, side), (addresses, counts, is_used)), ranges) in of_sides.into_iter().zip(sides).zip(&mut ranges) {
        if !is_used {
            continue;
        }
        let expected = side.blocks(rank_count);
        if [addresses.len(), counts.len()] != [expected; 2] {
            let (blocks, counts) = (count_of(addresses.len(), "block"), count_of(counts.len(), "count"));
            bail!(InvalidBuffer, "the {name} has {blocks} and {counts}; with {rank_count} ranks it has {expected}");
        }
        let lens = counts.iter().map(|count| count.checked_mul(transfer_type.byte_len()));
        let lens = lens.collect::<Option<Vec<usize>>>().filter(|lens| {
            let sum = lens.iter().try_fold(0usize, |sum, len| sum.checked_add(*len));
            sum.is_some_and(|sum| isize::try_from(sum).is_ok())
        });
        let Some(lens) = lens else { bail!(InvalidBuffer, "the {name} is longer than memory") };
        for (address, len) in addresses.iter().zip(lens) {
            if len > 0 && (*address == 0 || address % align != 0) {
                bail!(InvalidBuffer, "a block of the {name} at {address:#x} is null or not aligned to {transfer_type}");
            }
            ranges.push(*address..address.saturating_add(len));
        }
    }
    let [inputs, outputs] = &ranges;
    let own = |ranges: &[Range<usize>]| if ranges.len() > 1 { rank.index() } else { 0 };
    let (own_input, own_output) = (own(inputs), own(outputs));
    // The rank's own block may be where it is on the other side.
    let is_in_place = call.input().is_per_rank != call.output().is_per_rank
        && inputs.get(own_input).is_some_and(|input| outputs.get(own_output) == Some(input));
    let mut written: Vec<&Range<usize>> = outputs.iter().filter(|range| !range.is_empty()).collect();
    for (index, input) in inputs.iter().enumerate().filter(|(_, input)| !input.is_empty()) {
        // In place, the rank's own block is one of the two, and overlaps no other.
        let others = |output: &&&Range<usize>| !(is_in_place && index == own_input && **output == input);
        if written.iter().filter(others).any(|output| overlap(input, output)) {
            bail!(InvalidBuffer, "a block of the input overlaps the output");
        }
    }
    written.sort_by_key(|range| range.start);
    if written.windows(2).any(|pair| overlap(pair[0], pair[1])) {
        bail!(InvalidBuffer, "two blocks of the output overlap");
    }
    Ok(())
}
