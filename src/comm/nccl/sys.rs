//! The part of NCCL's interface that this folder calls, with the names and types of `nccl.h`. A
//! library may lack any of the functions. `tests/c_header` compares all of this with the header.
#![expect(
    non_camel_case_types,
    non_snake_case,
    non_upper_case_globals,
    clippy::too_many_arguments,
    reason = "the names and parameters are NCCL's"
)]

use std::ffi::{c_char, c_int, c_uint, c_void};

use crate::cuda::library::{Unloaded, functions, handles};

handles! {
    cudaStream_t = CUstream_st;
    ncclComm_t = ncclComm;
    ncclWindow_t = ncclWindow_vidmem;
}

pub(super) const NCCL_SPLIT_NOCOLOR: c_int = -1;
pub(super) const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
pub(super) const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;

/// The result of a call: any number, since an NCCL may have more results than are named here.
pub(super) type ncclResult_t = c_uint;
pub(super) const ncclSuccess: ncclResult_t = 0;
pub(super) const ncclInvalidArgument: ncclResult_t = 4;
pub(super) const ncclRemoteError: ncclResult_t = 6;
pub(super) const ncclInProgress: ncclResult_t = 7;
pub(super) const ncclTimeout: ncclResult_t = 8;

impl Unloaded for ncclResult_t {
    const UNLOADED: Self = ncclResult_t::MAX;
}

pub(super) type ncclRedOp_t = c_uint;
pub(super) const ncclSum: ncclRedOp_t = 0;
pub(super) const ncclProd: ncclRedOp_t = 1;
pub(super) const ncclMax: ncclRedOp_t = 2;
pub(super) const ncclMin: ncclRedOp_t = 3;
pub(super) const ncclAvg: ncclRedOp_t = 4;

pub(super) type ncclDataType_t = c_uint;
pub(super) const ncclInt8: ncclDataType_t = 0;
pub(super) const ncclUint8: ncclDataType_t = 1;
pub(super) const ncclInt32: ncclDataType_t = 2;
pub(super) const ncclUint32: ncclDataType_t = 3;
pub(super) const ncclInt64: ncclDataType_t = 4;
pub(super) const ncclUint64: ncclDataType_t = 5;
pub(super) const ncclFloat16: ncclDataType_t = 6;
pub(super) const ncclFloat32: ncclDataType_t = 7;
pub(super) const ncclFloat64: ncclDataType_t = 8;
pub(super) const ncclBfloat16: ncclDataType_t = 9;
pub(super) const ncclFloat8e4m3: ncclDataType_t = 10;
pub(super) const ncclFloat8e5m2: ncclDataType_t = 11;

pub(super) type ncclScalarResidence_t = c_uint;
pub(super) const ncclScalarHostImmediate: ncclScalarResidence_t = 1;

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct ncclUniqueId {
    pub(super) internal: [c_char; 128],
}

/// The beginning of the structure, which has grown with every version: NCCL reads as much as
/// `size` says.
#[repr(C)]
pub(super) struct ncclConfig_t {
    pub(super) size: usize,
    pub(super) magic: c_uint,
    pub(super) version: c_uint,
    pub(super) blocking: c_int,
    pub(super) cgaClusterSize: c_int,
    pub(super) minCTAs: c_int,
    pub(super) maxCTAs: c_int,
    pub(super) netName: *const c_char,
    pub(super) splitShare: c_int,
    /// Padding in the oldest version, where it belongs to the size.
    pub(super) trafficClass: c_int,
}

pub(super) const NCCL_API_MAGIC: c_uint = 0xcafe_beef;

functions! {
    fn ncclGetVersion(version: *mut c_int) -> ncclResult_t;
    fn ncclGetErrorString(result: ncclResult_t) -> *const c_char;
    fn ncclGetLastError(comm: ncclComm_t) -> *const c_char;
    fn ncclGetUniqueId(uniqueId: *mut ncclUniqueId) -> ncclResult_t;

    fn ncclCommInitRankConfig(
        comm: *mut ncclComm_t,
        nranks: c_int,
        commId: ncclUniqueId,
        rank: c_int,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    fn ncclCommSplit(
        comm: ncclComm_t,
        color: c_int,
        key: c_int,
        newcomm: *mut ncclComm_t,
        config: *mut ncclConfig_t,
    ) -> ncclResult_t;
    fn ncclCommGetAsyncError(comm: ncclComm_t, asyncError: *mut ncclResult_t) -> ncclResult_t;
    fn ncclCommCount(comm: ncclComm_t, count: *mut c_int) -> ncclResult_t;
    fn ncclCommCuDevice(comm: ncclComm_t, device: *mut c_int) -> ncclResult_t;
    fn ncclCommUserRank(comm: ncclComm_t, rank: *mut c_int) -> ncclResult_t;
    fn ncclCommFinalize(comm: ncclComm_t) -> ncclResult_t;
    fn ncclCommDestroy(comm: ncclComm_t) -> ncclResult_t;
    fn ncclCommAbort(comm: ncclComm_t) -> ncclResult_t;

    fn ncclMemAlloc(ptr: *mut *mut c_void, size: usize) -> ncclResult_t;
    fn ncclMemFree(ptr: *mut c_void) -> ncclResult_t;
    fn ncclCommWindowRegister(
        comm: ncclComm_t,
        buff: *mut c_void,
        size: usize,
        win: *mut ncclWindow_t,
        winFlags: c_int,
    ) -> ncclResult_t;
    fn ncclCommWindowDeregister(comm: ncclComm_t, win: ncclWindow_t) -> ncclResult_t;

    fn ncclGroupStart() -> ncclResult_t;
    fn ncclGroupEnd() -> ncclResult_t;
    fn ncclRedOpCreatePreMulSum(
        op: *mut ncclRedOp_t,
        scalar: *mut c_void,
        datatype: ncclDataType_t,
        residence: ncclScalarResidence_t,
        comm: ncclComm_t,
    ) -> ncclResult_t;
    fn ncclAllReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclAllGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        sendcount: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclBroadcast(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclReduce(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        root: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclReduceScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        recvcount: usize,
        datatype: ncclDataType_t,
        op: ncclRedOp_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclAlltoAll(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclGather(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclScatter(
        sendbuff: *const c_void,
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        root: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclSend(
        sendbuff: *const c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
    fn ncclRecv(
        recvbuff: *mut c_void,
        count: usize,
        datatype: ncclDataType_t,
        peer: c_int,
        comm: ncclComm_t,
        stream: cudaStream_t,
    ) -> ncclResult_t;
}
