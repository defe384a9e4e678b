//! The calls of NCCL that one collective is made of.

use std::sync::Arc;
use std::time::Instant;

use super::NcclBackend;
use super::route::{Route, contributions, results};
use super::sys::*;
use crate::collective::{Call, Collective, ReduceOperation, Shares, WireType, whole_packets};
use crate::comm::backend::{Request, Uneven};
use crate::cuda::CudaStream;
use crate::data_type::DataType;
use crate::element::{bf16, f16};
use crate::error::{Result, bail};
use crate::memory::Address;
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
            DataType::Float64 => ncclFloat64,
            DataType::Uint32 => ncclUint32,
            DataType::Uint64 => ncclUint64,
            // Both packages have the same version.
            other => unreachable!("the library has no {other}"),
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
        // Both packages have the same version.
        other => unreachable!("the library has no {other}"),
    }
}

/// The types of which [`Route`] lets NCCL make averages.
const AVERAGED: [ncclDataType_t; 4] = [ncclFloat32, ncclFloat16, ncclBfloat16, ncclFloat64];

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

/// Makes a call of NCCL's for each item, in one group of this thread, up to the first that fails. A
/// group that was begun is ended, whatever happened in it.
///
/// # Safety
///
/// The thread has the communicators of the calls, until the group has ended.
pub(super) unsafe fn in_group<T>(
    items: impl IntoIterator<Item = T>,
    mut call: impl FnMut(T) -> Result<ncclResult_t>,
) -> Result<ncclResult_t> {
    // SAFETY: the caller's promise.
    let mut result = Ok(unsafe { ncclGroupStart() });
    for item in items {
        if !result.as_ref().is_ok_and(|result| is_well(*result)) {
            break;
        }
        result = call(item);
    }
    // SAFETY: as above.
    let ended = unsafe { ncclGroupEnd() };
    result.map(|result| if is_well(result) { ended } else { result })
}

/// Whether a call has not failed.
pub(super) fn is_well(result: ncclResult_t) -> bool {
    result == ncclSuccess || result == ncclInProgress
}

/// One call on a stream, of which NCCL's calls and kernels are the steps.
///
/// # Safety
///
/// For each unsafe method: until its steps are done, the buffers that they use on this rank are
/// valid on the GPU for the lengths that they say, and used by nothing else.
#[derive(Clone, Copy)]
pub(super) struct Steps<'a> {
    pub(super) backend: &'a NcclBackend,
    pub(super) request: &'a Request<'a>,
    /// The request's call, or what stands for it.
    pub(super) call: &'a Call,
    pub(super) stream: &'a Arc<CudaStream>,
}

impl Steps<'_> {
    fn rank_count(&self) -> usize {
        self.backend.origins.len()
    }

    fn deadline(&self) -> Instant {
        self.request.deadline
    }

    fn writes(&self) -> bool {
        self.call.writes_output(self.backend.rank)
    }

    /// Enqueues the call. `scratch` gives memory of a length in bytes, which nothing else uses
    /// until the call is done.
    ///
    /// # Safety
    ///
    /// As [`Steps`].
    pub(super) unsafe fn issue(
        &self,
        scratch: impl FnOnce(usize) -> Result<*mut u8>,
        sides: [*mut u8; 2],
    ) -> Result<()> {
        let route = Route::of(self.call, self.rank_count(), &self.backend.features);
        self.prepare(route)?;
        let scratch = scratch(route.scratch_bytes(self.call, self.rank_count()))?;
        self.backend.note(self.request);
        // SAFETY: the caller's promise; scratch is as long as the route asked for.
        unsafe { self.take(route, sides, scratch) }
    }

    /// Takes a route, whose kernels are there.
    ///
    /// # Safety
    ///
    /// As [`Steps`]; the scratch memory is as long as the route asks for.
    unsafe fn take(&self, route: Route, sides: [*mut u8; 2], scratch: *mut u8) -> Result<()> {
        let Steps { backend, call, stream, .. } = *self;
        if call.block_elements == 0 {
            return Ok(());
        }
        let n = self.rank_count();
        let [input, output] = sides.map(|side| backend.or_stand_in(side));
        let input_elements = || call.input_bytes(n) / call.data_type.byte_len();
        let output_elements = || call.output_bytes(n) / call.data_type.byte_len();
        // SAFETY: the caller's promise; a side that is not used is the stand-in.
        unsafe {
            match route {
                Route::Copy => stream.copy(input, output, call.block_bytes()),
                Route::Direct => self.call(&call.collective, Elements::of(call), [input, output]),
                Route::Average if call.data_type == DataType::Float32 => {
                    let sum = with_reduction(&call.collective, ReduceOperation::Sum);
                    self.call(&sum, Elements::of(call), [input, output])?;
                    if self.writes() {
                        stream.divide(output, n as f32, DataType::Float32, output, output_elements())?;
                    }
                    Ok(())
                }
                Route::Average => {
                    let sum = with_reduction(&call.collective, ReduceOperation::Sum);
                    let wide = Elements::new(DataType::Float32, call.block_elements);
                    // In place as NCCL has it: output = input + rank · block.
                    let at = match call.collective {
                        Collective::ReduceScatter { .. } => backend.rank.index() * call.block_elements * wide.byte_len,
                        _ => 0,
                    };
                    let result = scratch.wrapping_add(at);
                    stream.cast(call.data_type, input, DataType::Float32, scratch, input_elements())?;
                    self.call(&sum, wide, [scratch, result])?;
                    if self.writes() {
                        stream.divide(result, n as f32, call.data_type, output, output_elements())?;
                    }
                    Ok(())
                }
                Route::Bool => {
                    let reduce_op = match call.collective.reduce_op() {
                        Some(ReduceOperation::Prod | ReduceOperation::Min) => ReduceOperation::Min,
                        _ => ReduceOperation::Max,
                    };
                    stream.normalize_bool(input, scratch, input_elements())?;
                    self.call(&with_reduction(&call.collective, reduce_op), Elements::of(call), [scratch, output])
                }
                Route::Exchange => self.exchange([input, output], scratch),
                Route::Shares => self.share([input, output], scratch),
                Route::Narrow => self.carry(&call.collective, call.block_elements, [input, output], scratch),
            }
        }
    }

    /// Reduces by a kernel: brings all contributions to each rank that writes, and reduces them.
    ///
    /// # Safety
    ///
    /// As [`Steps`]; the scratch memory has room for a block of each rank.
    unsafe fn exchange(&self, [input, output]: [*mut u8; 2], scratch: *mut u8) -> Result<()> {
        let (call, n) = (self.call, self.rank_count());
        let rest = scratch.wrapping_add(whole_packets(n * call.block_bytes()));
        // SAFETY: the caller's promise.
        unsafe {
            self.carry(&contributions(&call.collective), call.block_elements, [input, scratch], rest)?;
            match call.collective.reduce_op() {
                Some(reduce_op) if self.writes() => {
                    self.stream.reduce((call.data_type, reduce_op), scratch, output, call.block_elements, n)
                }
                _ => Ok(()),
            }
        }
    }

    /// Reduces by a kernel: brings the contributions to a share to the rank whose share it is,
    /// reduces them there, and brings the shares of the result to each rank that writes.
    ///
    /// # Safety
    ///
    /// As [`Steps`]; the scratch memory is as long as [`Route::Shares`] asks for.
    unsafe fn share(&self, [input, output]: [*mut u8; 2], scratch: *mut u8) -> Result<()> {
        let (call, n) = (self.call, self.rank_count());
        let Some(reduce_op) = call.collective.reduce_op() else { return Ok(()) };
        let Shares { share, rest } = Shares::of(call, n);
        let share_bytes = share * call.data_type.byte_len();
        // In the output, so that the exchange of results is in place. A rank without an output
        // reduces in place in the scratch memory.
        let own = match self.writes() {
            true => output.wrapping_add(self.backend.rank.index() * share_bytes),
            false => scratch,
        };
        // SAFETY: the caller's promise; the shares and the rest are within the buffers. The stream
        // does one after the other, so the scratch memory of the shares is free for the rest.
        unsafe {
            let spare = scratch.wrapping_add(n * share_bytes);
            self.carry(&Collective::AllToAll, share, [input, scratch], spare)?;
            self.stream.reduce((call.data_type, reduce_op), scratch, own, share, n)?;
            self.call(&results(&call.collective), Elements::bytes(share_bytes), [own, output])?;
            if rest == 0 {
                return Ok(());
            }
            let sides = [input, output].map(|side| side.wrapping_add(n * share_bytes));
            Steps { call: &Call { block_elements: rest, ..*call }, ..*self }.exchange(sides, scratch)
        }
    }

    /// Makes a call of NCCL's that only moves blocks of the call's elements. With a transport type
    /// the elements are cast to it before and back after, in the scratch memory.
    ///
    /// # Safety
    ///
    /// As [`Steps`], for these blocks; with a transport type the scratch memory has room for this
    /// rank's input and output in that type, and is no part of them.
    unsafe fn carry(
        &self,
        collective: &Collective,
        block: usize,
        [input, output]: [*mut u8; 2],
        scratch: *mut u8,
    ) -> Result<()> {
        let (wide, n, operation) = (self.call.data_type, self.rank_count(), collective.operation());
        let Some(wire) = self.call.wire_type.map(WireType::data_type) else {
            // SAFETY: the caller's promise.
            return unsafe { self.call(collective, Elements::bytes(block * wide.byte_len()), [input, output]) };
        };
        let (given, taken) = (operation.input_blocks(n) * block, operation.output_blocks(n) * block);
        let sides = [scratch, scratch.wrapping_add(whole_packets(given * wire.byte_len()))];
        // SAFETY: the caller's promise.
        unsafe {
            if collective.reads_input(self.backend.rank) {
                self.stream.cast(wide, input, wire, sides[0], given)?;
            }
            self.call(collective, Elements::bytes(block * wire.byte_len()), sides)?;
            if collective.writes_output(self.backend.rank) {
                self.stream.cast(wire, sides[1], wide, output, taken)?;
            }
        }
        Ok(())
    }

    /// Compiles the kernels of a route that are not compiled yet.
    fn prepare(&self, route: Route) -> Result<()> {
        if route == Route::Direct {
            return Ok(());
        }
        let device = self.backend.device();
        let kernels = route.kernels(self.call).into_iter().flatten();
        if kernels.clone().all(|kernel| device.has(kernel)) {
            return Ok(());
        }
        if self.stream.is_capturing()? {
            bail!(
                NotReady,
                "the first call of this kind compiles a kernel, which a capture does not allow; run it once before"
            );
        }
        device.prepare(kernels)
    }

    /// Makes NCCL's call of a collective.
    ///
    /// # Safety
    ///
    /// As [`Steps`], for these elements; both addresses are valid on every rank.
    unsafe fn call(&self, collective: &Collective, elements: Elements, sides: [*mut u8; 2]) -> Result<()> {
        let backend = self.backend;
        backend.handle.call(name_of(collective), self.deadline(), &|| backend.domain.check(), |raw| {
            // SAFETY: the caller's promise.
            unsafe { self.call_raw(collective, elements, sides, raw) }
        })
    }

    /// Makes NCCL's call if the route is [`Route::Direct`], inside a group. The thread holds the
    /// communicator.
    ///
    /// # Safety
    ///
    /// As [`Steps`].
    pub(super) unsafe fn call_in_group(&self, sides: [*mut u8; 2]) -> Result<ncclResult_t> {
        self.backend.note(self.request);
        let sides = sides.map(|side| self.backend.or_stand_in(side));
        let raw = self.backend.handle.raw();
        // SAFETY: the caller's promise.
        unsafe { self.call_raw(&self.call.collective, Elements::of(self.call), sides, raw) }
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
    ) -> Result<ncclResult_t> {
        let Elements { data_type, block, .. } = elements;
        self.backend.handle.windows.pool.note_call([input.addr(), output.addr()]);
        let (input, output, stream) = (input.cast_const().cast(), output.cast(), self.stream.as_ptr().cast());
        let root = collective.root().map_or(0, |root| root.0 as i32);
        let averaged = AVERAGED.iter().position(|&averaged| averaged == data_type);
        let op = match (collective.reduce_op(), averaged) {
            (Some(ReduceOperation::Avg), Some(number)) => self.backend.average(number, raw)?,
            (reduce_op, _) => reduce_op.map_or(ncclSum, nccl_op),
        };
        // SAFETY: the caller's promise.
        Ok(unsafe {
            match collective {
                Collective::AllReduce { .. } => ncclAllReduce(input, output, block, data_type, op, raw, stream),
                Collective::AllGather => ncclAllGather(input, output, block, data_type, raw, stream),
                Collective::Broadcast { .. } => ncclBroadcast(input, output, block, data_type, root, raw, stream),
                Collective::Reduce { .. } => ncclReduce(input, output, block, data_type, op, root, raw, stream),
                Collective::ReduceScatter { .. } => ncclReduceScatter(input, output, block, data_type, op, raw, stream),
                _ if !self.backend.features.has_all_to_all => {
                    return self.send_and_receive(collective, elements, [input, output.cast_const()], &[], raw);
                }
                Collective::AllToAll => ncclAlltoAll(input, output, block, data_type, raw, stream),
                Collective::Gather { .. } => ncclGather(input, output, block, data_type, root, raw, stream),
                Collective::Scatter { .. } => ncclScatter(input, output, block, data_type, root, raw, stream),
            }
        })
    }

    /// Enqueues scatter, gather or all_gather on a list of blocks: sends and receives in one group.
    ///
    /// # Safety
    ///
    /// As [`Steps`], for each block.
    pub(super) unsafe fn issue_list(&self, sides: [*mut u8; 2], blocks: &[*mut u8]) -> Result<()> {
        let Steps { backend, call, stream, .. } = *self;
        backend.note(self.request);
        if call.block_elements == 0 {
            return Ok(());
        }
        let [input, output] = sides;
        // SAFETY: the caller's promise. Among one rank, the list's only block is its side's
        // address.
        unsafe {
            if self.rank_count() == 1 {
                return stream.copy(input, output, call.block_bytes());
            }
            let sides = [input, output].map(|side| side.cast_const().cast());
            backend.handle.call("ncclGroupEnd", self.deadline(), &|| backend.domain.check(), |raw| {
                self.send_and_receive(&call.collective, Elements::of(call), sides, blocks, raw)
            })
        }
    }

    /// Sends and receives in one group: all_to_all, gather and scatter before NCCL 2.28.3, and
    /// list forms, where the side with a block for each rank has each at an address of its own.
    ///
    /// # Safety
    ///
    /// As [`call`](Self::call).
    unsafe fn send_and_receive(
        &self,
        collective: &Collective,
        elements: Elements,
        [input, output]: [*const std::ffi::c_void; 2],
        blocks: &[*mut u8],
        raw: ncclComm_t,
    ) -> Result<ncclResult_t> {
        let Elements { data_type, byte_len, block } = elements;
        let this = self.backend.rank;
        // What goes to a rank and comes from it: a block of the input, and one of the output.
        let geometry = collective.operation().geometry();
        let uses = |from, to| collective.reads_input(from) && collective.writes_output(to);
        let block_of = |side: *const std::ffi::c_void, is_per_rank: bool, peer: usize| match blocks.get(peer) {
            Some(at) if is_per_rank => at.cast_const().cast(),
            _ if is_per_rank => side.wrapping_byte_add(peer * block * byte_len),
            _ => side,
        };
        let pair = |peer: usize| {
            let rank = GroupRank(peer as u32);
            let given = uses(this, rank).then(|| (block_of(input, geometry.input.is_per_rank, peer), block));
            let taken = uses(rank, this).then(|| (block_of(output, geometry.output.is_per_rank, peer), block));
            [given, taken]
        };
        // SAFETY: the caller's promise; blocks are within the buffers.
        unsafe { self.exchange_blocks(data_type, raw, pair) }
    }

    /// Sends and receives in one group: to each rank and from it what `pair` gives, as addresses
    /// and lengths.
    ///
    /// # Safety
    ///
    /// As [`call`](Self::call), for each of these blocks.
    unsafe fn exchange_blocks(
        &self,
        data_type: ncclDataType_t,
        raw: ncclComm_t,
        pair: impl Fn(usize) -> [Option<(*const std::ffi::c_void, usize)>; 2],
    ) -> Result<ncclResult_t> {
        let stream = self.stream.as_ptr().cast();
        // SAFETY: the caller's promise.
        unsafe {
            in_group(0..self.rank_count(), |peer| {
                let (number, [given, taken]) = (peer as i32, pair(peer));
                let named = given.into_iter().chain(taken).map(|(block, _)| block.addr());
                self.backend.handle.windows.pool.note_call(named);
                let mut result = ncclSuccess;
                if let Some((from, len)) = given {
                    result = ncclSend(from, len, data_type, number, raw, stream);
                }
                if let Some((to, len)) = taken.filter(|_| is_well(result)) {
                    result = ncclRecv(to.cast_mut(), len, data_type, number, raw, stream);
                }
                Ok(result)
            })
        }
    }

    /// Enqueues a call on blocks of different lengths: sends and receives in one group, or for
    /// reduce_scatter a reduce of each rank's block.
    ///
    /// # Safety
    ///
    /// As [`Steps`], for each block.
    pub(super) unsafe fn issue_uneven(
        &self,
        mut scratch: impl FnMut(usize) -> Result<*mut u8>,
        uneven: &Uneven<'_>,
    ) -> Result<()> {
        let Steps { backend, call, stream, .. } = *self;
        let this = backend.rank;
        let block = |list: &[Address], peer: usize| list[if list.len() > 1 { peer } else { 0 }].pointer;
        // SAFETY: the caller's promise.
        unsafe {
            if let Collective::ReduceScatter { reduce_op } = call.collective {
                self.prepare(Route::of(call, self.rank_count(), &backend.features))?;
                backend.note(self.request);
                for peer in (0..self.rank_count()).map(|peer| GroupRank(peer as u32)) {
                    let collective = Collective::Reduce { reduce_op, root: peer };
                    let call = Call { collective, block_elements: uneven.counts.len(this, peer), ..*call };
                    let output = if peer == this { block(uneven.output, 0) } else { std::ptr::null_mut() };
                    let sides = [block(uneven.input, peer.index()), output];
                    let route = Route::of(&call, self.rank_count(), &backend.features);
                    let scratch = scratch(route.scratch_bytes(&call, self.rank_count()))?;
                    Steps { call: &call, ..*self }.take(route, sides, scratch)?;
                }
                return Ok(());
            }
            backend.note(self.request);
            let elements = Elements::of(call);
            let pair = |peer: usize| {
                let rank = GroupRank(peer as u32);
                let [given, taken] = [uneven.counts.len(this, rank), uneven.counts.len(rank, this)];
                let part = |list: &[Address], len: usize| {
                    (len > 0).then(|| (block(list, peer).cast_const().cast::<std::ffi::c_void>(), len))
                };
                [part(uneven.input, given), part(uneven.output, taken)]
            };
            if self.rank_count() == 1 {
                let [Some((from, len)), Some((to, _))] = pair(0) else { return Ok(()) };
                return stream.copy(from.cast(), to.cast_mut().cast(), len * elements.byte_len);
            }
            backend.handle.call("ncclGroupEnd", self.deadline(), &|| backend.domain.check(), |raw| {
                self.exchange_blocks(elements.data_type, raw, pair)
            })
        }
    }
}

impl NcclBackend {
    /// The address that NCCL gets: it wants one even for a side that the rank does not use.
    fn or_stand_in(&self, side: *mut u8) -> *mut u8 {
        if side.is_null() { self.stand_in.address() } else { side }
    }

    /// The average of the floats of [`AVERAGED`]: the sum of elements that NCCL multiplies by 1/n,
    /// which is exact in the type. It is made for the first call. Not `ncclAvg`: for buffers in
    /// windows NCCL takes that for an average of its symmetric kernels (`symkRedOp` in
    /// `scheduler/symmetric_sched.cc`), which would change the numbers, and of which there is none
    /// for all_reduce.
    fn average(&self, number: usize, raw: ncclComm_t) -> Result<ncclRedOp_t> {
        if let Some(op) = self.averages[number].get() {
            return Ok(*op);
        }
        let scale = 1.0 / self.origins.len() as f32;
        // An element is at the beginning of its bits, whose first byte is the lowest.
        let mut bits: u64 = [
            scale.to_bits().into(),
            f16::from_f32(scale).to_bits().into(),
            bf16::from_f32(scale).to_bits().into(),
            f64::from(scale).to_bits(),
        ][number];
        let (scalar, mut op) = ((&raw mut bits).cast(), ncclSum);
        // SAFETY: NCCL reads the element before the call returns, and writes one number. The
        // reduction is freed with the communicator.
        let result =
            unsafe { ncclRedOpCreatePreMulSum(&mut op, scalar, AVERAGED[number], ncclScalarHostImmediate, raw) };
        self.handle.library.check("ncclRedOpCreatePreMulSum", result)?;
        Ok(*self.averages[number].get_or_init(|| op))
    }
}
