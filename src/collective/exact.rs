//! How much memory exact reductions and calls with a transport type need on GPUs. It follows from
//! the call alone, so that plans show it.

use super::{Call, CollectiveOperation};

/// The length of all ranks' contributions together, in bytes, up to which they are not reduced by
/// shares. A small collective of NCCL's takes 5 to 15 µs. To receive the additional bytes takes 1
/// to 25 µs, at 20 to 400 GB/s. (Estimated, not measured.)
const LONGEST_EXCHANGE: usize = 512 << 10;

/// The bytes that kernels handle at once.
const PACKET_BYTES: usize = 16;

/// How a kernel reduces the contributions of all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ExactReduction {
    /// Each rank that wants the result gets all contributions.
    Exchange,
    /// Each rank reduces its share, and ranks exchange the results.
    Shares,
}

/// How the elements of a reduction are shared among the ranks. Each rank reduces `share` elements,
/// a number of whole packets. The `rest`, less than a packet for each rank, is reduced by every
/// rank that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shares {
    pub(crate) share: usize,
    pub(crate) rest: usize,
}

/// How many elements fill a packet, in the type in which they travel.
fn packet_elements(call: &Call) -> usize {
    PACKET_BYTES / call.moved_type().byte_len()
}

impl Shares {
    pub(crate) fn of(call: &Call, rank_count: usize) -> Self {
        let packet = packet_elements(call);
        let share = call.block_elements / rank_count / packet * packet;
        Shares { share, rest: call.block_elements - rank_count * share }
    }
}

impl ExactReduction {
    pub(crate) fn of(call: &Call, rank_count: usize) -> Self {
        let is_long = call.block_bytes().saturating_mul(rank_count) > LONGEST_EXCHANGE;
        match call.collective.operation() {
            CollectiveOperation::ReduceScatter => ExactReduction::Exchange,
            _ if is_long && Shares::of(call, rank_count).share > 0 => ExactReduction::Shares,
            _ => ExactReduction::Exchange,
        }
    }

    /// The memory that it needs between its steps. A longer call does not need less: memory is
    /// planned for the longest.
    pub(crate) fn scratch_bytes(self, call: &Call, rank_count: usize) -> usize {
        let contributions = match self {
            ExactReduction::Exchange => call.block_bytes().saturating_mul(rank_count),
            ExactReduction::Shares => {
                let share = Shares::of(call, rank_count).share;
                let most_of_rest = rank_count.saturating_mul(packet_elements(call));
                let elements = rank_count.saturating_mul(share.max(most_of_rest));
                LONGEST_EXCHANGE.max(elements.saturating_mul(call.data_type.byte_len()))
            }
        };
        match call.wire_type {
            // They are also there in that type, before and after they are exchanged: each half as
            // long.
            Some(_) => whole_packets(contributions).saturating_mul(2).saturating_add(PACKET_BYTES),
            None => contributions,
        }
    }
}

/// The length of memory after which other memory begins that kernels use: they handle whole packets
/// fastest.
pub(crate) fn whole_packets(byte_len: usize) -> usize {
    byte_len.checked_next_multiple_of(PACKET_BYTES).unwrap_or(byte_len)
}

/// The memory on GPUs for the two sides of movement in its transport type.
pub(crate) fn narrow_scratch_bytes(call: &Call, rank_count: usize) -> usize {
    let [given, taken] = [call.input(), call.output()]
        .map(|side| side.blocks(rank_count).saturating_mul(call.block_elements * call.moved_type().byte_len()));
    whole_packets(given).saturating_add(taken)
}

/// The memory that a call needs between its steps on every GPU, whatever NCCL can do there.
pub(crate) fn step_scratch_bytes(call: &Call, rank_count: usize) -> usize {
    if rank_count == 1 {
        0
    } else if call.reduces_in_rank_order() {
        ExactReduction::of(call, rank_count).scratch_bytes(call, rank_count)
    } else if call.wire_type.is_some() {
        narrow_scratch_bytes(call, rank_count)
    } else {
        0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collective::{Collective, Determinism, ReduceOperation, WireType};
    use crate::data_type::DataType;

    /// The exact all_reduce of so many elements.
    fn call(data_type: DataType, block_elements: usize) -> Call {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Call::of_blocks(collective, data_type, block_elements).at_least(Determinism::Exact)
    }

    #[test]
    fn what_a_call_needs_is_enough_for_shorter_calls() {
        let plain = [DataType::Int8, DataType::Float16, DataType::Float32, DataType::Int64].map(|of| (of, None));
        let sent_as = WireType::ALL.map(|wire_type| (DataType::Float32, Some(wire_type)));
        for (data_type, wire_type) in plain.into_iter().chain(sent_as) {
            for n in [2, 3, 8, 100, 1000] {
                let mut most = 0;
                let lengths = (0..5000).chain((5000..600_000).step_by(997));
                for call in lengths.map(|elements| call(data_type, elements).sent_as(wire_type, n)) {
                    let reduction = ExactReduction::of(&call, n);
                    let bytes = reduction.scratch_bytes(&call, n);
                    assert!(bytes >= most, "{call} among {n}: {bytes} bytes, and {most} for a shorter one");
                    most = bytes;
                    let Shares { share, rest } = Shares::of(&call, n);
                    let used = match reduction {
                        ExactReduction::Shares => share.max(rest) * n,
                        ExactReduction::Exchange => call.block_elements * n,
                    };
                    // Contributions in float32 and, before and after the exchange, in the transport
                    // type.
                    let of_wire = wire_type.map_or(0, |wire_type| {
                        let narrow = used * wire_type.data_type().byte_len();
                        whole_packets(narrow) + narrow
                    });
                    let wide = used * data_type.byte_len();
                    let needed = if of_wire > 0 { whole_packets(wide) + of_wire } else { wide };
                    assert!(bytes >= needed, "{call} among {n}: {bytes} bytes, and {needed} are used");
                }
            }
        }
    }

    #[test]
    fn the_largest_call_among_the_most_ranks_has_a_length() {
        for block_elements in [1 << 37, isize::MAX as usize / 8] {
            for wire_type in [None, Some(WireType::Float16)] {
                let call = call(DataType::Float32, block_elements).sent_as(wire_type, 2);
                assert!(step_scratch_bytes(&call, u32::MAX as usize) > block_elements, "{call}");
                let moved = Call { collective: Collective::AllGather, determinism: Determinism::Backend, ..call };
                assert_eq!(step_scratch_bytes(&moved, u32::MAX as usize) > 0, wire_type.is_some(), "{moved}");
            }
        }
    }

    #[test]
    fn shares_are_whole_packets_and_leave_little() {
        for (elements, share, rest) in [(1 << 20, 1 << 18, 0), (1_000_003, 250_000, 3), (15, 0, 15), (31, 4, 15)] {
            assert_eq!(Shares::of(&call(DataType::Float32, elements), 4), Shares { share, rest });
        }
        // In the type in which they travel.
        let call = call(DataType::Float32, 8 * 4 + 31).sent_as(Some(WireType::Float16), 4);
        assert_eq!(Shares::of(&call, 4), Shares { share: 8, rest: 31 });
    }
}
