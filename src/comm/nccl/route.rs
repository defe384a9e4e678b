//! What a call becomes: NCCL's own collective, or a sequence of steps if NCCL lacks it or computes
//! something else.

use super::handle::NcclHandle;
use super::library::Version;
use crate::collective::{Call, Collective, CollectiveOperation, Determinism, ReduceOperation};
use crate::cuda::{Device, Kernel};
use crate::data_type::DataType;

/// The features that all ranks of a communicator have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// NCCL reduces float8.
    pub(super) reduces_float8: bool,
    /// AlltoAll, Gather and Scatter are there.
    pub(super) has_all_to_all: bool,
    /// Memory can be registered as a symmetric window. (Before 2.28.7 small messages in windows are
    /// corrupted.)
    pub(super) has_windows: bool,
    /// So can memory that collectives in graphs use. (Before 2.30.7 symmetric kernels in graphs
    /// lack a barrier: sglang #37768.)
    pub(super) has_graph_windows: bool,
}

/// Whether NCCL reduces float8 on a GPU: from compute capability 9.0 on (NCCL's `enqueue.cc`).
pub(crate) fn reduces_float8(device: &Device) -> bool {
    device.capability >= (9, 0)
}

impl Features {
    pub(super) fn of(handle: &NcclHandle) -> Self {
        Features {
            reduces_float8: reduces_float8(&handle.device),
            has_all_to_all: handle.library.has_all_to_all(),
            has_windows: handle.library.has_windows() && handle.library.version >= Version::new(2, 28, 7),
            has_graph_windows: handle.library.has_windows() && handle.library.version >= Version::new(2, 30, 7),
        }
    }

    /// The features of both of two ranks.
    pub(super) fn common(self, other: Self) -> Self {
        Features {
            reduces_float8: self.reduces_float8 && other.reduces_float8,
            has_all_to_all: self.has_all_to_all && other.has_all_to_all,
            has_windows: self.has_windows && other.has_windows,
            has_graph_windows: self.has_graph_windows && other.has_graph_windows,
        }
    }

    pub(super) fn to_words(self) -> [i64; 4] {
        let Features { reduces_float8, has_all_to_all, has_windows, has_graph_windows } = self;
        [reduces_float8, has_all_to_all, has_windows, has_graph_windows].map(i64::from)
    }

    pub(super) fn from_words(words: [i64; 4]) -> Self {
        let [reduces_float8, has_all_to_all, has_windows, has_graph_windows] = words.map(|word| word != 0);
        Features { reduces_float8, has_all_to_all, has_windows, has_graph_windows }
    }
}

/// The steps of a call. They follow from the call and the common features, so every rank chooses
/// the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// One rank: a copy.
    Copy,
    /// NCCL's collective.
    Direct,
    /// The average of floats: the sum in float32, then one division and one rounding. NCCL's own
    /// rounds 1/n to the element type first, and gives other numbers for registered buffers (nccl
    /// #1950). Among a power of two of ranks 1/n is exact, and so is x/n unless it is subnormal:
    /// there the average is [`Direct`](Self::Direct), a sum of multiples by 1/n. Few values of
    /// float8 are that far from subnormal ones.
    Average,
    /// A reduction of bool: of bytes that are 0 or 1, the maximum for "or", the minimum for "and".
    Bool,
    /// A kernel reduces as the host does, in exact mode, and float8 where NCCL does not: ranks
    /// exchange their contributions first.
    Exchange,
    /// The same for long tensors: each rank reduces its share, and ranks exchange the results.
    Shares,
}

/// The length of all ranks' contributions together, in bytes, up to which they are not reduced by
/// shares. A small collective of NCCL's takes 5 to 15 µs. To receive the additional bytes takes 1
/// to 25 µs, at 20 to 400 GB/s. (Estimated, not measured.)
const LONGEST_EXCHANGE: usize = 512 << 10;

/// The bytes that kernels handle at once.
const PACKET_BYTES: usize = 16;

/// How the elements of a reduction are shared among the ranks. Each rank reduces `share` elements,
/// a number of whole packets. The `rest`, less than a packet for each rank, is reduced by every
/// rank that wants it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shares {
    pub(super) share: usize,
    pub(super) rest: usize,
}

impl Shares {
    pub(super) fn of(call: &Call, rank_count: usize) -> Self {
        let packet = PACKET_BYTES / call.data_type.byte_len();
        let share = call.block_elements / rank_count / packet * packet;
        Shares { share, rest: call.block_elements - rank_count * share }
    }
}

/// Whether 1/n, and with it each n-th of an element that is not subnormal, is exact in the type.
/// Between the largest and the smallest normal float16 are 30 powers of two.
fn averages_exactly(data_type: DataType, rank_count: usize) -> bool {
    let most = match data_type {
        DataType::Float32 | DataType::Bfloat16 => 1 << 30,
        DataType::Float16 => 1 << 14,
        _ => 0,
    };
    rank_count.is_power_of_two() && rank_count <= most
}

impl Route {
    pub(super) fn of(call: &Call, rank_count: usize, features: &Features) -> Self {
        let is_float8 = matches!(call.data_type, DataType::Float8E4M3 | DataType::Float8E5M2);
        match call.collective.reduce_op() {
            _ if rank_count == 1 => Route::Copy,
            None => Route::Direct,
            Some(_) if call.determinism == Determinism::Exact => Route::of_kernel(call, rank_count),
            Some(_) if call.data_type == DataType::Bool => Route::Bool,
            Some(_) if is_float8 && !features.reduces_float8 => Route::of_kernel(call, rank_count),
            Some(ReduceOperation::Avg)
                if call.data_type.is_float() && !averages_exactly(call.data_type, rank_count) =>
            {
                Route::Average
            }
            Some(_) => Route::Direct,
        }
    }

    /// The route of a reduction by a kernel.
    fn of_kernel(call: &Call, rank_count: usize) -> Self {
        let is_long = call.block_bytes() * rank_count > LONGEST_EXCHANGE;
        match call.collective.operation() {
            CollectiveOperation::ReduceScatter => Route::Exchange,
            _ if is_long && Shares::of(call, rank_count).share > 0 => Route::Shares,
            _ => Route::Exchange,
        }
    }

    /// The memory that it needs between its steps. A longer call does not need less: memory is
    /// reserved for the longest.
    pub(super) fn scratch_bytes(self, call: &Call, rank_count: usize) -> usize {
        let input_elements = call.input_bytes(rank_count) / call.data_type.byte_len();
        match self {
            Route::Copy | Route::Direct => 0,
            // float32 is summed into the output and divided there.
            Route::Average if call.data_type == DataType::Float32 => 0,
            Route::Average => input_elements * DataType::Float32.byte_len(),
            Route::Bool => input_elements,
            Route::Exchange => call.block_bytes() * rank_count,
            Route::Shares => {
                let share = Shares::of(call, rank_count).share * call.data_type.byte_len();
                let most_of_rest = rank_count * PACKET_BYTES;
                LONGEST_EXCHANGE.max(rank_count * share.max(most_of_rest))
            }
        }
    }

    /// The kernels that it launches.
    pub(super) fn kernels(self, call: &Call) -> [Option<Kernel>; 2] {
        let data_type = call.data_type;
        match (self, call.collective.reduce_op()) {
            (Route::Average, _) => [Kernel::of_cast(data_type, DataType::Float32), Some(Kernel::Divide(data_type))],
            (Route::Bool, _) => [Some(Kernel::NormalizeBool), None],
            (Route::Exchange | Route::Shares, Some(reduce_op)) => [Some(Kernel::Reduce(data_type, reduce_op)), None],
            _ => [None, None],
        }
    }
}

/// The collective that brings each rank the contributions that it reduces.
pub(super) fn contributions(collective: &Collective) -> Collective {
    match collective {
        Collective::ReduceScatter { .. } => Collective::AllToAll,
        _ => results(collective),
    }
}

/// The collective that brings the shares of a result to the ranks that want it.
pub(super) fn results(collective: &Collective) -> Collective {
    collective.root().map_or(Collective::AllGather, |root| Collective::Gather { root })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NCCL: Features =
        Features { reduces_float8: true, has_all_to_all: true, has_windows: true, has_graph_windows: true };

    /// The exact all_reduce of so many elements.
    fn call(data_type: DataType, block_elements: usize) -> Call {
        let collective = Collective::AllReduce { reduce_op: ReduceOperation::Sum };
        Call::of_blocks(collective, data_type, block_elements).at_least(Determinism::Exact)
    }

    #[test]
    fn what_a_call_needs_is_enough_for_shorter_calls() {
        for data_type in [DataType::Int8, DataType::Float16, DataType::Float32, DataType::Int64] {
            for n in [2, 3, 8, 100, 1000] {
                let mut most = 0;
                let lengths = (0..5000).chain((5000..600_000).step_by(997));
                for call in lengths.map(|elements| call(data_type, elements)) {
                    let route = Route::of(&call, n, &NCCL);
                    let bytes = route.scratch_bytes(&call, n);
                    assert!(bytes >= most, "{call} among {n}: {bytes} bytes, and {most} for a shorter one");
                    most = bytes;
                    let Shares { share, rest } = Shares::of(&call, n);
                    let used = match route {
                        Route::Shares => share.max(rest) * n,
                        _ => call.block_elements * n,
                    };
                    assert!(bytes >= used * data_type.byte_len(), "{call} among {n}: {bytes} bytes");
                }
            }
        }
    }

    #[test]
    fn shares_are_whole_packets_and_leave_little() {
        for (elements, share, rest) in [(1 << 20, 1 << 18, 0), (1_000_003, 250_000, 3), (15, 0, 15), (31, 4, 15)] {
            assert_eq!(Shares::of(&call(DataType::Float32, elements), 4), Shares { share, rest });
        }
    }
}
