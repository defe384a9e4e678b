//! What a call becomes: NCCL's own collective, or a sequence of steps if NCCL lacks it or computes
//! something else.

use super::handle::NcclHandle;
use crate::collective::{Call, Collective, ExactReduction, ReduceOperation, WireType, narrow_scratch_bytes};
use crate::cuda::{Device, Kernel};
use crate::data_type::DataType;

/// The features that all ranks of a communicator have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Features {
    /// NCCL reduces float8.
    pub(super) reduces_float8: bool,
    /// AlltoAll, Gather and Scatter are there.
    pub(super) has_all_to_all: bool,
    /// Memory can be registered as a symmetric window.
    pub(super) has_windows: bool,
}

/// Whether NCCL reduces float8 on a GPU: from compute capability 9.0 on (NCCL's `enqueue.cc`).
pub(crate) fn reduces_float8(device: &Device) -> bool {
    device.capability >= (9, 0)
}

impl Features {
    pub(super) fn of(handle: &NcclHandle) -> Self {
        let library = handle.library;
        Features {
            reduces_float8: reduces_float8(&handle.device) && library.reduces_float8(),
            has_all_to_all: library.has_all_to_all(),
            has_windows: library.has_windows(),
        }
    }

    pub(super) fn to_words(self) -> [i64; 3] {
        let Features { reduces_float8, has_all_to_all, has_windows } = self;
        [reduces_float8, has_all_to_all, has_windows].map(i64::from)
    }

    /// The features of all of the ranks that gave these words.
    pub(super) fn common(all: &[[i64; 3]]) -> Self {
        let of_all = |index: usize| all.iter().all(|words| words[index] != 0);
        let [reduces_float8, has_all_to_all, has_windows] = [0, 1, 2].map(of_all);
        Features { reduces_float8, has_all_to_all, has_windows }
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
    /// A kernel reduces as the host does: in exact mode, float8 where NCCL does not, and the
    /// average of float64 where 1/n is not exact. Ranks exchange their contributions first.
    Exchange,
    /// The same for long tensors: each rank reduces its share, and ranks exchange the results.
    Shares,
    /// Movement with a transport type: casts before and after NCCL's collective.
    Narrow,
}

/// Whether 1/n, and with it each n-th of an element that is not subnormal, is exact in the type.
/// Between the largest and the smallest normal float16 are 30 powers of two.
fn averages_exactly(data_type: DataType, rank_count: usize) -> bool {
    let most = match data_type {
        DataType::Float64 | DataType::Float32 | DataType::Bfloat16 => 1 << 30,
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
            None if call.wire_type.is_some() => Route::Narrow,
            None => Route::Direct,
            Some(_) if call.reduces_in_rank_order() => Route::of_kernel(call, rank_count),
            Some(_) if call.data_type == DataType::Bool => Route::Bool,
            Some(_) if is_float8 && !features.reduces_float8 => Route::of_kernel(call, rank_count),
            Some(ReduceOperation::Avg)
                if call.data_type == DataType::Float64 && !averages_exactly(call.data_type, rank_count) =>
            {
                Route::of_kernel(call, rank_count)
            }
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
        match ExactReduction::of(call, rank_count) {
            ExactReduction::Exchange => Route::Exchange,
            ExactReduction::Shares => Route::Shares,
        }
    }

    /// The memory that it needs between its steps. A longer call does not need less: memory is
    /// reserved for the longest.
    pub(super) fn scratch_bytes(self, call: &Call, rank_count: usize) -> usize {
        let input_elements = || call.input_bytes(rank_count) / call.data_type.byte_len();
        match self {
            Route::Copy | Route::Direct => 0,
            // float32 is summed into the output and divided there.
            Route::Average if call.data_type == DataType::Float32 => 0,
            Route::Average => input_elements() * DataType::Float32.byte_len(),
            Route::Bool => input_elements(),
            Route::Exchange => ExactReduction::Exchange.scratch_bytes(call, rank_count),
            Route::Shares => ExactReduction::Shares.scratch_bytes(call, rank_count),
            Route::Narrow => narrow_scratch_bytes(call, rank_count),
        }
    }

    /// The kernels that it launches.
    pub(super) fn kernels(self, call: &Call) -> [Option<Kernel>; 3] {
        let data_type = call.data_type;
        let [narrow, widen] = match call.wire_type.map(WireType::data_type) {
            Some(wire) => [Kernel::of_cast(data_type, wire), Kernel::of_cast(wire, data_type)],
            None => [None; 2],
        };
        match (self, call.collective.reduce_op()) {
            (Route::Average, _) => {
                [Kernel::of_cast(data_type, DataType::Float32), Some(Kernel::Divide(data_type)), None]
            }
            (Route::Bool, _) => [Some(Kernel::NormalizeBool), None, None],
            (Route::Exchange | Route::Shares | Route::Narrow, reduce_op) => {
                [narrow, widen, reduce_op.map(|reduce_op| Kernel::Reduce(data_type, reduce_op))]
            }
            _ => [None; 3],
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
