//! The calls of NCCL that one collective is made of.

use std::sync::Arc;
use std::time::Instant;

use super::NcclBackend;
use super::bindings::*;
use super::library::function;
use super::route::{Route, exchange};
use super::scratch::Scratch;
use crate::collective::{Call, Collective, ReduceOperation};
use crate::cuda::CudaStream;
use crate::data_type::DataType;
use crate::error::{Result, bail};
use crate::rank::GroupRank;

/// What NCCL moves or reduces: blocks of elements of one type.
#[derive(Clone, Copy)]
struct Elements {
    data_type: ncclDataType_t,
    /// The bytes of one element.
    byte_len: usize,
    block: usize,
}

impl Elements {
    fn new(data_type: DataType, block: usize) -> Self {
        let nccl_type = match data_type {
            DataType::Float32 => ncclFloat32,
            DataType::Float16 => ncclFloat16,
            DataType::Bfloat16 => ncclBfloat16,
            DataType::Float8E4M3 => ncclFloat8e4m3,
            DataType::Float8E5M2 => ncclFloat8e5m2,
            DataType::Int64 => ncclInt64,
            DataType::Int32 => ncclInt32,
            DataType::Int8 => ncclInt8,
            DataType::Uint8 | DataType::Bool => ncclUint8,
        };
        Elements { data_type: nccl_type, byte_len: data_type.byte_len(), block }
    }

    /// Movement of bytes, which every NCCL has: older ones do not know float8.
    fn bytes(block: usize) -> Self {
        Elements::new(DataType::Uint8, block)
    }

    fn of(call: &Call) -> Self {
        match call.collective.reduce_op() {
            Some(_) => Elements::new(call.data_type, call.block_elements),
            None if call.data_type.byte_len() == 1 => Elements::bytes(call.block_elements),
            None => Elements::new(call.data_type, call.block_elements),
        }
    }
}

/// The type and the count of elements that only move.
pub(super) fn nccl_type(data_type: DataType, element_count: usize) -> (ncclDataType_t, usize) {
    let elements = match data_type.byte_len() {
        1 => Elements::bytes(element_count),
        _ => Elements::new(data_type, element_count),
    };
    (elements.data_type, elements.block)
}

fn nccl_op(reduce_op: ReduceOperation) -> ncclRedOp_t {
    match reduce_op {
        ReduceOperation::Sum => ncclSum,
        ReduceOperation::Prod => ncclProd,
        ReduceOperation::Max => ncclMax,
        ReduceOperation::Min => ncclMin,
        ReduceOperation::Avg => ncclAvg,
    }
}

/// NCCL's name of a collective.
fn name_of(collective: &Collective) -> &'static str {
    match collective {
        Collective::AllReduce { .. } => "ncclAllReduce",
        Collective::AllGather => "ncclAllGather",
        Collective::Broadcast { .. } => "ncclBroadcast",
        Collective::Reduce { .. } => "ncclReduce",
        Collective::ReduceScatter { .. } => "ncclReduceScatter",
        Collective::AllToAll => "ncclAlltoAll",
        Collective::Gather { .. } => "ncclGather",
        Collective::Scatter { .. } => "ncclScatter",
    }
}

/// The collective with another reduction.
fn with_reduction(collective: &Collective, reduce_op: ReduceOperation) -> Collective {
    match *collective {
        Collective::AllReduce { .. } => Collective::AllReduce { reduce_op },
        Collective::Reduce { root, .. } => Collective::Reduce { reduce_op, root },
        Collective::ReduceScatter { .. } => Collective::ReduceScatter { reduce_op },
        other => other,
    }
}

impl NcclBackend {
    /// Enqueues a call.
    ///
    /// # Safety
    ///
    /// Until it is done, the buffers that the call uses on this rank are valid on the GPU for the
    /// lengths that it says, and used by nothing else.
    pub(super) unsafe fn issue(
        &self,
        scratch: &mut Scratch,
        call: &Call,
        sides: [*mut u8; 2],
        stream: &Arc<CudaStream>,
        deadline: Instant,
    ) -> Result<()> {
        if call.block_elements == 0 {
            return Ok(());
        }
        let n = self.origins.len();
        let writes = call.writes_output(self.rank);
        let [input, output] = sides.map(|side| self.or_stand_in(side));
        let route = Route::of(call, n, &self.features);
        self.prepare(route, call, stream)?;
        let scratch = scratch.take(route.scratch_bytes(call, n), stream)?;
        let input_elements = call.input_bytes(n) / call.data_type.byte_len();
        let output_elements = call.output_bytes(n) / call.data_type.byte_len();
        // SAFETY: the caller's promise; scratch is as long as the route asked for; a side that is
        // not used is the stand-in.
        unsafe {
            match route {
                Route::Copy => stream.copy(input, output, call.block_bytes()),
                Route::Direct => self.call(&call.collective, Elements::of(call), [input, output], stream, deadline),
                Route::Average if call.data_type == DataType::Float32 => {
                    let sum = with_reduction(&call.collective, ReduceOperation::Sum);
                    self.call(&sum, Elements::of(call), [input, output], stream, deadline)?;
                    if writes {
                        stream.divide(output, n as f32, DataType::Float32, output, output_elements)?;
                    }
                    Ok(())
                }
                Route::Average => {
                    let sum = with_reduction(&call.collective, ReduceOperation::Sum);
                    let wide = Elements::new(DataType::Float32, call.block_elements);
                    // In place as NCCL has it: output = input + rank · block.
                    let at = match call.collective {
                        Collective::ReduceScatter { .. } => self.rank.index() * call.block_elements * wide.byte_len,
                        _ => 0,
                    };
                    let result = scratch.wrapping_add(at);
                    stream.cast(call.data_type, input, DataType::Float32, scratch, input_elements)?;
                    self.call(&sum, wide, [scratch, result], stream, deadline)?;
                    if writes {
                        stream.divide(result, n as f32, call.data_type, output, output_elements)?;
                    }
                    Ok(())
                }
                Route::Bool => {
                    let reduce_op = match call.collective.reduce_op() {
                        Some(ReduceOperation::Prod | ReduceOperation::Min) => ReduceOperation::Min,
                        _ => ReduceOperation::Max,
                    };
                    stream.normalize_bool(input, scratch, input_elements)?;
                    let collective = with_reduction(&call.collective, reduce_op);
                    self.call(&collective, Elements::of(call), [scratch, output], stream, deadline)
                }
                Route::Exchange => {
                    let Some(reduce_op) = call.collective.reduce_op() else { return Ok(()) };
                    let bytes = Elements::bytes(call.block_bytes());
                    self.call(&exchange(call), bytes, [input, scratch], stream, deadline)?;
                    if writes {
                        stream.reduce((call.data_type, reduce_op), scratch, output, call.block_elements, n)?;
                    }
                    Ok(())
                }
            }
        }
    }

    /// Compiles the kernels of a route that are not compiled yet.
    fn prepare(&self, route: Route, call: &Call, stream: &CudaStream) -> Result<()> {
        let kernels = route.kernels(call).into_iter().flatten();
        if kernels.clone().all(|kernel| self.device().has(kernel)) {
            return Ok(());
        }
        if stream.is_capturing()? {
            bail!(
                NotReady,
                "the first call of this kind compiles a kernel, which a capture does not allow; run it once before"
            );
        }
        self.device().prepare(kernels)
    }

    /// Makes NCCL's call of a call whose route is [`Route::Direct`], inside a group. The thread
    /// holds the communicator.
    ///
    /// # Safety
    ///
    /// As [`issue`](Self::issue).
    pub(super) unsafe fn call_in_group(
        &self,
        call: &Call,
        sides: [*mut u8; 2],
        stream: &Arc<CudaStream>,
    ) -> Result<ncclResult_t> {
        let sides = sides.map(|side| self.or_stand_in(side));
        // SAFETY: the caller's promise.
        unsafe { self.call_raw(&call.collective, Elements::of(call), sides, self.handle.raw(), stream) }
    }

    /// The address that NCCL gets: it wants one even for a side that the rank does not use.
    fn or_stand_in(&self, side: *mut u8) -> *mut u8 {
        if side.is_null() { self.stand_in.address() } else { side }
    }

    /// Makes NCCL's call of a collective.
    ///
    /// # Safety
    ///
    /// As [`issue`](Self::issue), for these elements; both addresses are valid on every rank.
    unsafe fn call(
        &self,
        collective: &Collective,
        elements: Elements,
        sides: [*mut u8; 2],
        stream: &Arc<CudaStream>,
        deadline: Instant,
    ) -> Result<()> {
        self.handle.call(name_of(collective), deadline, &|| self.domain.check(), |raw| {
            // SAFETY: the caller's promise.
            unsafe { self.call_raw(collective, elements, sides, raw, stream) }
        })
    }

    /// The call itself. The thread holds the communicator.
    ///
    /// # Safety
    ///
    /// As [`call`](Self::call).
    unsafe fn call_raw(
        &self,
        collective: &Collective,
        elements: Elements,
        [input, output]: [*mut u8; 2],
        raw: ncclComm_t,
        stream: &Arc<CudaStream>,
    ) -> Result<ncclResult_t> {
        let library = self.handle.library;
        let Elements { data_type, block, .. } = elements;
        let (input, output, stream) = (input.cast_const().cast(), output.cast(), stream.as_ptr().cast());
        let root = collective.root().map_or(0, |root| root.0 as i32);
        let op = collective.reduce_op().map_or(ncclSum, nccl_op);
        // SAFETY: the caller's promise.
        Ok(unsafe {
            match collective {
                Collective::AllReduce { .. } => {
                    function!(library, ncclAllReduce)?(input, output, block, data_type, op, raw, stream)
                }
                Collective::AllGather => {
                    function!(library, ncclAllGather)?(input, output, block, data_type, raw, stream)
                }
                Collective::Broadcast { .. } => {
                    function!(library, ncclBroadcast)?(input, output, block, data_type, root, raw, stream)
                }
                Collective::Reduce { .. } => {
                    function!(library, ncclReduce)?(input, output, block, data_type, op, root, raw, stream)
                }
                Collective::ReduceScatter { .. } => {
                    function!(library, ncclReduceScatter)?(input, output, block, data_type, op, raw, stream)
                }
                _ if !self.features.has_all_to_all => {
                    return self.send_and_receive(collective, elements, [input, output.cast_const()], raw, stream);
                }
                Collective::AllToAll => function!(library, ncclAlltoAll)?(input, output, block, data_type, raw, stream),
                Collective::Gather { .. } => {
                    function!(library, ncclGather)?(input, output, block, data_type, root, raw, stream)
                }
                Collective::Scatter { .. } => {
                    function!(library, ncclScatter)?(input, output, block, data_type, root, raw, stream)
                }
            }
        })
    }

    /// all_to_all, gather and scatter before NCCL 2.28: sends and receives in one group.
    ///
    /// # Safety
    ///
    /// As [`call`](Self::call).
    unsafe fn send_and_receive(
        &self,
        collective: &Collective,
        elements: Elements,
        [input, output]: [*const std::ffi::c_void; 2],
        raw: ncclComm_t,
        stream: cudaStream_t,
    ) -> Result<ncclResult_t> {
        let library = self.handle.library;
        let (send, receive) = (function!(library, ncclSend)?, function!(library, ncclRecv)?);
        let (start, end) = (function!(library, ncclGroupStart)?, function!(library, ncclGroupEnd)?);
        let Elements { data_type, byte_len, block } = elements;
        // What goes to a rank and comes from it: the number of a block of the input, and of one of
        // the output.
        let geometry = collective.operation().geometry();
        let uses = |from, to| collective.reads_input(from) && collective.writes_output(to);
        let block_of = |is_per_rank: bool, peer: usize| if is_per_rank { peer } else { 0 };
        let [to, from] = [geometry.input.is_per_rank, geometry.output.is_per_rank];
        let sends = |peer| uses(self.rank, GroupRank(peer as u32)).then_some(block_of(to, peer));
        let receives = |peer| uses(GroupRank(peer as u32), self.rank).then_some(block_of(from, peer));
        // SAFETY: the caller's promise; blocks are within the buffers.
        unsafe {
            let mut result = start();
            for peer in 0..self.origins.len() {
                if let Some(at) = sends(peer).filter(|_| result == ncclSuccess) {
                    let from = input.wrapping_byte_add(at * block * byte_len);
                    result = send(from, block, data_type, peer as i32, raw, stream);
                }
                if let Some(at) = receives(peer).filter(|_| result == ncclSuccess) {
                    let to = output.wrapping_byte_add(at * block * byte_len).cast_mut();
                    result = receive(to, block, data_type, peer as i32, raw, stream);
                }
            }
            // A group that was begun is ended, whatever happened in it.
            let ended = end();
            Ok(if result == ncclSuccess { ended } else { result })
        }
    }
}
