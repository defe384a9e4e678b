// CUDA's runtime on the fake driver: what NCCL 2.30 calls, and PyTorch for memory, streams and
// events. A call that has no meaning for memory of the host does nothing.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <string>

#include "fake_gpu.h"

static thread_local cudaError_t last = cudaSuccess;

// Errors have the driver's numbers.
static cudaError_t answer(CUresult result) {
    if (result != CUDA_SUCCESS)
        last = cudaError_t(result);
    return cudaError_t(result);
}

static cudaError_t refuse(cudaError_t error) {
    return last = error;
}

// Makes device 0 current if no device is.
static cudaError_t ensure_context() {
    CUcontext context = nullptr;
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS)
        result = cuCtxGetCurrent(&context);
    return result != CUDA_SUCCESS ? answer(result)
           : context == nullptr   ? cudaSetDevice(0)
                                  : cudaSuccess;
}

#define RUNTIME(call) (ensure_context() != cudaSuccess ? last : answer(call))

static bool is_device_memory(const void *address) {
    unsigned type = 0;
    return cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CUdeviceptr(address))
               == CUDA_SUCCESS
           && type == CU_MEMORYTYPE_DEVICE;
}

extern "C" {

// Errors and versions.

cudaError_t cudaGetLastError() {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

cudaError_t cudaPeekAtLastError() {
    return last;
}

const char *cudaGetErrorName(cudaError_t error) {
    const char *name = nullptr;
    return cuGetErrorName(CUresult(error), &name) == CUDA_SUCCESS ? name : "an unknown error";
}

const char *cudaGetErrorString(cudaError_t error) {
    const char *text = nullptr;
    return cuGetErrorString(CUresult(error), &text) == CUDA_SUCCESS ? text : "an unknown error";
}

cudaError_t cudaDriverGetVersion(int *version) {
    return answer(cuDriverGetVersion(version));
}

cudaError_t cudaRuntimeGetVersion(int *version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// Devices.

cudaError_t cudaGetDeviceCount(int *count) {
    CUresult result = cuInit(0);
    return answer(result == CUDA_SUCCESS ? cuDeviceGetCount(count) : result);
}

// The runtime holds the context of a device from its first use on.
cudaError_t cudaSetDevice(int device) {
    static std::mutex lock;
    // Threads may come here while the process ends.
    static auto &contexts = *new std::map<int, CUcontext>;
    std::lock_guard<std::mutex> guard(lock);
    CUresult result = cuInit(0);
    if (result == CUDA_SUCCESS && contexts.count(device) == 0)
        result = cuDevicePrimaryCtxRetain(&contexts[device], device);
    return answer(result == CUDA_SUCCESS ? cuCtxSetCurrent(contexts[device]) : result);
}

cudaError_t cudaGetDevice(int *device) {
    return RUNTIME(cuCtxGetDevice(device));
}

cudaError_t cudaDeviceGetAttribute(int *value, cudaDeviceAttr attribute, int device) {
    if (attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin) {
        *value = 232448;
        return cudaSuccess;
    }
    return answer(cuDeviceGetAttribute(value, CUdevice_attribute(attribute), device));
}

cudaError_t cudaGetDeviceProperties(cudaDeviceProp *properties, int device) {
    memset(properties, 0, sizeof *properties);
    cuDeviceGetName(properties->name, sizeof properties->name, device);
    cudaDeviceGetAttribute(&properties->major, cudaDevAttrComputeCapabilityMajor, device);
    cudaDeviceGetAttribute(&properties->minor, cudaDevAttrComputeCapabilityMinor, device);
    return answer(cuDeviceTotalMem(&properties->totalGlobalMem, device));
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device) {
    return answer(cuDeviceGetPCIBusId(id, size, device));
}

cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    *can = 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    *least = *greatest = 0;
    return cudaSuccess;
}

cudaError_t cudaDeviceSetLimit(cudaLimit, size_t) {
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize() {
    return RUNTIME(cuCtxSynchronize());
}

// Memory.

cudaError_t cudaMalloc(void **address, size_t size) {
    return RUNTIME(cuMemAlloc(reinterpret_cast<CUdeviceptr *>(address), size));
}

cudaError_t cudaFree(void *address) {
    return address == nullptr ? ensure_context() : RUNTIME(cuMemFree(CUdeviceptr(address)));
}

cudaError_t cudaHostAlloc(void **address, size_t size, unsigned flags) {
    return RUNTIME(cuMemHostAlloc(address, size, flags));
}

cudaError_t cudaFreeHost(void *address) {
    return RUNTIME(cuMemFreeHost(address));
}

cudaError_t cudaHostRegister(void *, size_t, unsigned) {
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *) {
    return cudaSuccess;
}

cudaError_t cudaHostGetDevicePointer(void **device, void *host, unsigned) {
    *device = host;
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(cudaPointerAttributes *attributes, const void *address) {
    memset(attributes, 0, sizeof *attributes);
    unsigned type = 0;
    CUdeviceptr at = CUdeviceptr(address);
    if (ensure_context() != cudaSuccess)
        return last;
    attributes->type = cudaMemoryTypeUnregistered;
    attributes->device = -2;
    if (cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, at) != CUDA_SUCCESS)
        return cudaSuccess;
    bool is_device = type == CU_MEMORYTYPE_DEVICE;
    attributes->type = is_device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
    attributes->devicePointer = const_cast<void *>(address);
    attributes->hostPointer = is_device ? nullptr : const_cast<void *>(address);
    return answer(
        cuPointerGetAttribute(&attributes->device, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL, at));
}

cudaError_t cudaMemcpyAsync(
    void *to, const void *from, size_t size, cudaMemcpyKind, cudaStream_t stream) {
    if (ensure_context() != cudaSuccess || size == 0)
        return last;
    bool to_device = is_device_memory(to), from_device = is_device_memory(from);
    if (to_device && from_device)
        return answer(cuMemcpyDtoDAsync(CUdeviceptr(to), CUdeviceptr(from), size, stream));
    if (to_device)
        return answer(cuMemcpyHtoDAsync(CUdeviceptr(to), from, size, stream));
    return from_device ? answer(cuMemcpyDtoHAsync(to, CUdeviceptr(from), size, stream))
                       : refuse(cudaErrorNotSupported);
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t size, cudaMemcpyKind kind) {
    cudaError_t error = cudaMemcpyAsync(to, from, size, kind, nullptr);
    return error == cudaSuccess ? answer(cuStreamSynchronize(nullptr)) : error;
}

cudaError_t cudaMemcpyBatchAsync(void *const *to, const void *const *from, const size_t *sizes,
    size_t count, cudaMemcpyAttributes *, size_t *, size_t, cudaStream_t stream) {
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < count && error == cudaSuccess; i++)
        error = cudaMemcpyAsync(to[i], from[i], sizes[i], cudaMemcpyDefault, stream);
    return error;
}

cudaError_t cudaMemsetAsync(void *at, int value, size_t size, cudaStream_t stream) {
    return RUNTIME(
        cuMemsetD8Async(CUdeviceptr(at), static_cast<unsigned char>(value), size, stream));
}

cudaError_t cudaMemset(void *at, int value, size_t size) {
    return RUNTIME(cuMemsetD8(CUdeviceptr(at), static_cast<unsigned char>(value), size));
}

cudaError_t cudaMemPoolCreate(cudaMemPool_t *pool, const cudaMemPoolProps *) {
    *pool = cudaMemPool_t(1);
    return cudaSuccess;
}

cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t, cudaMemPoolAttr, void *) {
    return cudaSuccess;
}

cudaError_t cudaMemPoolDestroy(cudaMemPool_t) {
    return cudaSuccess;
}

// Memory of a pool is there at once.
cudaError_t cudaMallocFromPoolAsync(void **address, size_t size, cudaMemPool_t, cudaStream_t) {
    return RUNTIME(fake_cuda_map(reinterpret_cast<CUdeviceptr *>(address), size));
}

// NCCL frees on a stream of its own, whose work never waits for a peer.
cudaError_t cudaFreeAsync(void *address, cudaStream_t stream) {
    cudaError_t error = RUNTIME(cuStreamSynchronize(stream));
    return error == cudaSuccess ? answer(fake_cuda_unmap(CUdeviceptr(address))) : error;
}

// Processes do not share memory here.
cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t *, void *) {
    return refuse(cudaErrorNotSupported);
}

cudaError_t cudaIpcOpenMemHandle(void **, cudaIpcMemHandle_t, unsigned) {
    return refuse(cudaErrorNotSupported);
}

cudaError_t cudaIpcCloseMemHandle(void *) {
    return refuse(cudaErrorNotSupported);
}

// Streams and events.

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *stream, unsigned flags) {
    return RUNTIME(cuStreamCreate(stream, flags));
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return RUNTIME(cuStreamDestroy(stream));
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    return RUNTIME(cuStreamSynchronize(stream));
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned flags) {
    return RUNTIME(cuStreamWaitEvent(stream, event, flags));
}

cudaError_t cudaStreamGetId(cudaStream_t stream, unsigned long long *id) {
    *id = uintptr_t(stream);
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *event, unsigned flags) {
    return RUNTIME(cuEventCreate(event, flags));
}

cudaError_t cudaEventCreate(cudaEvent_t *event) {
    return cudaEventCreateWithFlags(event, 0);
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return RUNTIME(cuEventDestroy(event));
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return RUNTIME(cuEventRecord(event, stream));
}

cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    return cudaEventRecord(event, stream);
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    return RUNTIME(cuEventQuery(event));
}

cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return RUNTIME(cuEventSynchronize(event));
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void *data) {
    return RUNTIME(cuLaunchHostFunc(stream, function, data));
}

// Captures. A graph of the fake driver has its operations in the order of recording, so what only
// says what comes after what is done already.

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode *mode) {
    return RUNTIME(
        cuThreadExchangeStreamCaptureMode(reinterpret_cast<CUstreamCaptureMode *>(mode)));
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus *status) {
    return RUNTIME(cuStreamIsCapturing(stream, reinterpret_cast<CUstreamCaptureStatus *>(status)));
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus *status,
    unsigned long long *id, cudaGraph_t *graph, const cudaGraphNode_t **nodes,
    const cudaGraphEdgeData **edges, size_t *count) {
    unsigned long long ignored_id;
    CUgraph ignored_graph;
    if (edges != nullptr)
        *edges = nullptr;
    return RUNTIME(
        cuStreamGetCaptureInfo_v2(stream, reinterpret_cast<CUstreamCaptureStatus *>(status),
            reinterpret_cast<cuuint64_t *>(id != nullptr ? id : &ignored_id),
            graph != nullptr ? graph : &ignored_graph, nodes, count));
}

cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t stream, cudaGraphNode_t *nodes,
    const cudaGraphEdgeData *edges, size_t count, unsigned flags) {
    return RUNTIME(cuStreamUpdateCaptureDependencies(
        stream, nodes, reinterpret_cast<const CUgraphEdgeData *>(edges), count, flags));
}

cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t *node, cudaGraph_t graph,
    const cudaGraphNode_t *before, size_t count, cudaEvent_t event) {
    return RUNTIME(cuGraphAddEventRecordNode(node, graph, before, count, event));
}

cudaError_t cudaGraphAddDependencies(cudaGraph_t, const cudaGraphNode_t *, const cudaGraphNode_t *,
    const cudaGraphEdgeData *, size_t) {
    return cudaSuccess;
}

cudaError_t cudaUserObjectCreate(cudaUserObject_t *object, void *value, cudaHostFn_t destroy,
    unsigned references, unsigned flags) {
    return RUNTIME(cuUserObjectCreate(object, value, destroy, references, flags));
}

cudaError_t cudaGraphRetainUserObject(
    cudaGraph_t graph, cudaUserObject_t object, unsigned count, unsigned flags) {
    return RUNTIME(cuGraphRetainUserObject(graph, object, count, flags));
}

// Kernels.

cudaError_t cudaFuncGetAttributes(cudaFuncAttributes *attributes, const void *) {
    memset(attributes, 0, sizeof *attributes);
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) {
    return cudaSuccess;
}

// The handle of a kernel is its symbol.
cudaError_t cudaGetFuncBySymbol(cudaFunction_t *function, const void *symbol) {
    *function = cudaFunction_t(const_cast<void *>(symbol));
    return cudaSuccess;
}

static CUresult launch(
    const CUlaunchConfig *config, CUfunction kernel, void **parameters, void **extra) {
    if (launch_nccl_kernel == nullptr || parameters != nullptr || extra == nullptr
        || extra[0] != CU_LAUNCH_PARAM_BUFFER_POINTER || extra[2] != CU_LAUNCH_PARAM_BUFFER_SIZE)
        return CUDA_ERROR_NOT_SUPPORTED;
    return launch_nccl_kernel(
        kernel, extra[1], *static_cast<size_t *>(extra[3]), config->gridDimX, config->hStream);
}

static CUresult address_range(CUdeviceptr *base, size_t *size, CUdeviceptr at) {
    CUdeviceptr start;
    size_t length;
    CUresult result = cuPointerGetAttribute(&start, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR, at);
    if (result == CUDA_SUCCESS)
        result = cuPointerGetAttribute(&length, CU_POINTER_ATTRIBUTE_RANGE_SIZE, at);
    if (result == CUDA_SUCCESS && base != nullptr)
        *base = start;
    if (result == CUDA_SUCCESS && size != nullptr)
        *size = length;
    return result;
}

// The driver's functions by name. NCCL does without those that the fake driver lacks. Kernels other
// than NCCL's have none.
cudaError_t cudaGetDriverEntryPointByVersion(const char *name, void **function, unsigned,
    unsigned long long, cudaDriverEntryPointQueryResult *status) {
    static const auto &own = *new std::map<std::string, void *>{
        {"cuLaunchKernelEx", reinterpret_cast<void *>(launch)},
        {"cuMemGetAddressRange", reinterpret_cast<void *>(address_range)},
        {"cuLaunchKernel", nullptr},
    };
    auto found = own.find(name);
    void *symbol = found != own.end() ? found->second : nullptr;
    for (const char *version : {"", "_v2"}) {
        if (found == own.end() && symbol == nullptr)
            symbol = dlsym(RTLD_DEFAULT, (std::string(name) + version).c_str());
    }
    *function = symbol;
    *status = symbol != nullptr ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
}
