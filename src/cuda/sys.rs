//! The part of CUDA's driver API that `src/cuda` calls, with the names and types of `cuda.h`.
//! Drivers for CUDA 12 and newer have all of it.
#![expect(
    non_camel_case_types,
    non_snake_case,
    clippy::too_many_arguments,
    reason = "the names and parameters are CUDA's"
)]

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_void};

use super::library::{Unloaded, functions, handles};

pub(super) type CUdevice = c_int;
pub(super) type CUdeviceptr = c_ulonglong;

handles! {
    CUcontext = CUctx_st;
    CUevent = CUevent_st;
    CUfunction = CUfunc_st;
    CUgraph = CUgraph_st;
    CUgraphExec = CUgraphExec_st;
    CUmodule = CUmod_st;
    CUstream = CUstream_st;
    CUuserObject = CUuserObject_st;
}

/// The result of a call: any number, since drivers have more results than are named here.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct CUresult(c_int);

impl CUresult {
    pub(super) const CUDA_SUCCESS: Self = CUresult(0);
    pub(super) const CUDA_ERROR_OUT_OF_MEMORY: Self = CUresult(2);
    pub(super) const CUDA_ERROR_NOT_INITIALIZED: Self = CUresult(3);
    pub(super) const CUDA_ERROR_STUB_LIBRARY: Self = CUresult(34);
    pub(super) const CUDA_ERROR_NO_DEVICE: Self = CUresult(100);
    pub(super) const CUDA_ERROR_NOT_READY: Self = CUresult(600);
    pub(super) const CUDA_ERROR_STREAM_CAPTURE_IMPLICIT: Self = CUresult(906);
}

impl Unloaded for CUresult {
    const UNLOADED: Self = CUresult::CUDA_ERROR_NOT_INITIALIZED;
}

#[derive(Clone, Copy)]
#[repr(C)]
pub(super) enum CUdevice_attribute {
    CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
    CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
}

pub(super) const CU_EVENT_DEFAULT: c_uint = 0;
pub(super) const CU_EVENT_DISABLE_TIMING: c_uint = 2;
pub(super) const CU_STREAM_NON_BLOCKING: c_uint = 1;
pub(super) const CU_USER_OBJECT_NO_DESTRUCTOR_SYNC: c_uint = 1;
pub(super) const CU_GRAPH_USER_OBJECT_MOVE: c_uint = 1;
pub(super) const CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE: c_int = 10;

/// `cuThreadExchangeStreamCaptureMode` writes one, so any number is allowed.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(super) struct CUstreamCaptureMode(c_int);

impl CUstreamCaptureMode {
    pub(super) const CU_STREAM_CAPTURE_MODE_THREAD_LOCAL: Self = CUstreamCaptureMode(1);
    pub(super) const CU_STREAM_CAPTURE_MODE_RELAXED: Self = CUstreamCaptureMode(2);
}

/// `cuStreamIsCapturing` writes one, so any number is allowed.
#[derive(Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct CUstreamCaptureStatus(c_int);

impl CUstreamCaptureStatus {
    pub(super) const CU_STREAM_CAPTURE_STATUS_NONE: Self = CUstreamCaptureStatus(0);
    pub(super) const CU_STREAM_CAPTURE_STATUS_ACTIVE: Self = CUstreamCaptureStatus(1);
    pub(super) const CU_STREAM_CAPTURE_STATUS_INVALIDATED: Self = CUstreamCaptureStatus(2);
}

functions! {
    fn cuInit(flags: c_uint) -> CUresult;
    fn cuDriverGetVersion(version: *mut c_int) -> CUresult;
    fn cuGetErrorName(error: CUresult, text: *mut *const c_char) -> CUresult;
    fn cuGetErrorString(error: CUresult, text: *mut *const c_char) -> CUresult;

    fn cuDeviceGetCount(count: *mut c_int) -> CUresult;
    fn cuDeviceGet(device: *mut CUdevice, ordinal: c_int) -> CUresult;
    fn cuDeviceGetName(name: *mut c_char, len: c_int, device: CUdevice) -> CUresult;
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: CUdevice_attribute, device: CUdevice) -> CUresult;
    fn cuDeviceTotalMem_v2(byte_len: *mut usize, device: CUdevice) -> CUresult;
    fn cuDeviceGetPCIBusId(id: *mut c_char, len: c_int, device: CUdevice) -> CUresult;

    fn cuDevicePrimaryCtxRetain(context: *mut CUcontext, device: CUdevice) -> CUresult;
    fn cuCtxGetCurrent(context: *mut CUcontext) -> CUresult;
    fn cuCtxSetCurrent(context: CUcontext) -> CUresult;

    fn cuMemAlloc_v2(address: *mut CUdeviceptr, byte_len: usize) -> CUresult;
    fn cuMemFree_v2(address: CUdeviceptr) -> CUresult;
    fn cuMemHostAlloc(address: *mut *mut c_void, byte_len: usize, flags: c_uint) -> CUresult;
    fn cuMemFreeHost(address: *mut c_void) -> CUresult;
    fn cuMemcpyHtoDAsync_v2(to: CUdeviceptr, from: *const c_void, byte_len: usize, stream: CUstream) -> CUresult;
    fn cuMemcpyDtoHAsync_v2(to: *mut c_void, from: CUdeviceptr, byte_len: usize, stream: CUstream) -> CUresult;
    fn cuMemcpyDtoDAsync_v2(to: CUdeviceptr, from: CUdeviceptr, byte_len: usize, stream: CUstream) -> CUresult;
    fn cuPointerGetAttribute(value: *mut c_void, attribute: c_int, address: CUdeviceptr) -> CUresult;
    fn cuMemsetD8Async(to: CUdeviceptr, value: c_uchar, byte_len: usize, stream: CUstream) -> CUresult;

    fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) -> CUresult;
    fn cuStreamDestroy_v2(stream: CUstream) -> CUresult;
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> CUresult;
    fn cuStreamGetCtx(stream: CUstream, context: *mut CUcontext) -> CUresult;
    fn cuStreamIsCapturing(stream: CUstream, status: *mut CUstreamCaptureStatus) -> CUresult;
    fn cuStreamGetCaptureInfo_v2(
        stream: CUstream,
        status: *mut CUstreamCaptureStatus,
        id: *mut c_ulonglong,
        graph: *mut CUgraph,
        dependencies: *mut *const c_void,
        dependency_count: *mut usize
    ) -> CUresult;
    fn cuStreamBeginCapture_v2(stream: CUstream, mode: CUstreamCaptureMode) -> CUresult;
    fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> CUresult;
    fn cuThreadExchangeStreamCaptureMode(mode: *mut CUstreamCaptureMode) -> CUresult;

    fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> CUresult;
    fn cuEventDestroy_v2(event: CUevent) -> CUresult;
    fn cuEventRecord(event: CUevent, stream: CUstream) -> CUresult;
    fn cuEventQuery(event: CUevent) -> CUresult;
    fn cuEventElapsedTime(milliseconds: *mut f32, begin: CUevent, end: CUevent) -> CUresult;

    fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> CUresult;
    fn cuModuleGetFunction(function: *mut CUfunction, module: CUmodule, name: *const c_char) -> CUresult;
    fn cuLaunchKernel(
        function: CUfunction,
        grid_x: c_uint,
        grid_y: c_uint,
        grid_z: c_uint,
        block_x: c_uint,
        block_y: c_uint,
        block_z: c_uint,
        shared_bytes: c_uint,
        stream: CUstream,
        parameters: *mut *mut c_void,
        extra: *mut *mut c_void
    ) -> CUresult;

    fn cuGraphInstantiateWithFlags(executable: *mut CUgraphExec, graph: CUgraph, flags: c_ulonglong) -> CUresult;
    fn cuGraphLaunch(executable: CUgraphExec, stream: CUstream) -> CUresult;
    fn cuGraphExecDestroy(executable: CUgraphExec) -> CUresult;
    fn cuGraphDestroy(graph: CUgraph) -> CUresult;
    fn cuUserObjectCreate(
        object: *mut CUuserObject,
        value: *mut c_void,
        destroy: unsafe extern "C" fn(*mut c_void),
        reference_count: c_uint,
        flags: c_uint
    ) -> CUresult;
    fn cuGraphRetainUserObject(graph: CUgraph, object: CUuserObject, count: c_uint, flags: c_uint) -> CUresult;
}
