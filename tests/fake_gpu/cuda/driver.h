/*
 * The interface of the fake driver: the part of CUDA 13's driver interface that this library,
 * NCCL and cudarc call, with its names and numbers, and a few functions of its own.
 *
 * The model:
 *   - A device address is a host address.
 *   - A stream is a first-in first-out queue with a thread of its own.
 *   - A graph is the list of the recorded operations, in the order of recording.
 *   - NULL, CU_STREAM_LEGACY and CU_STREAM_PER_THREAD all mean the default stream of the current
 *     context, which waits for no other stream.
 *   - cuMemFree, cuMemFreeHost and cuModuleLoadData wait for all streams of the context, and hold
 *     back what any thread enqueues on the context meanwhile, as an H100's driver (580) does.
 *     Allocations, streams, events and graphs wait for nothing.
 *   - Fresh device memory is filled with 0xcd, freed memory with 0xdd.
 *   - The library ends the process with a message if the program has written to freed memory, or
 *     frees memory that a queued copy or memset uses. No error code would show where the mistake
 *     is.
 *
 * The environment, read once:
 *   FAKE_CUDA_DEVICES   the number of devices (8)
 *   FAKE_CUDA_SM        their compute capability (90)
 *   FAKE_CUDA_VERSION   what cuDriverGetVersion says
 *   FAKE_CUDA_MEMORY    the memory of each in bytes (1 GiB)
 *   FAKE_CUDA_POOLS     whether they say that they have pools, for cuMemAllocAsync (0)
 *   FAKE_CUDA_EXIT_MS   how long the exit handler takes that cuInit has registered (0); a call
 *                       after its beginning ends the process with an error
 *   FAKE_CUDA_FAULTS    function:nth:error, separated by commas: the nth call (from 1, of all
 *                       threads; * is every call) returns that error and does nothing else
 *
 * Kernels come from the project's sources. A program that links them, compiled for the host, has:
 *   dcl_host_kernel(name)            the kernel, a function of its parameter, grid and block
 *   dcl_host_kernel_arguments(name)  the size of that parameter, a struct
 * The library has one kernel of its own, fake_fill, for the tests of the library itself.
 */
#ifndef FAKE_CUDA_DRIVER_H
#define FAKE_CUDA_DRIVER_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef void *CUcontext;
typedef void *CUstream;
typedef void *CUevent;
typedef void *CUmodule;
typedef void *CUfunction;
typedef void *CUgraph;
typedef void *CUgraphExec;
typedef void *CUgraphNode;
typedef void *CUuserObject;
typedef void (*CUhostFn)(void *data);

typedef enum {
    CUDA_SUCCESS = 0,
    CUDA_ERROR_INVALID_VALUE = 1,
    CUDA_ERROR_OUT_OF_MEMORY = 2,
    CUDA_ERROR_NOT_INITIALIZED = 3,
    CUDA_ERROR_NO_DEVICE = 100,
    CUDA_ERROR_INVALID_DEVICE = 101,
    CUDA_ERROR_INVALID_IMAGE = 200,
    CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
    CUDA_ERROR_INVALID_CONTEXT = 201,
    CUDA_ERROR_INVALID_HANDLE = 400,
    CUDA_ERROR_ILLEGAL_STATE = 401,
    CUDA_ERROR_NOT_FOUND = 500,
    CUDA_ERROR_NOT_READY = 600,
    CUDA_ERROR_NOT_PERMITTED = 800,
    CUDA_ERROR_NOT_SUPPORTED = 801,
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
    CUDA_ERROR_STREAM_CAPTURE_MERGE = 902,
    CUDA_ERROR_STREAM_CAPTURE_UNMATCHED = 903,
    CUDA_ERROR_STREAM_CAPTURE_UNJOINED = 904,
    CUDA_ERROR_STREAM_CAPTURE_ISOLATION = 905,
    CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
    CUDA_ERROR_CAPTURED_EVENT = 907,
    CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
} CUresult;

enum {
    CU_STREAM_NON_BLOCKING = 1,
    CU_EVENT_DISABLE_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,
    CU_EVENT_WAIT_EXTERNAL = 1,
    CU_MEMORYTYPE_HOST = 1,
    CU_MEMORYTYPE_DEVICE = 2,
    CU_POINTER_ATTRIBUTE_CONTEXT = 1,
    CU_POINTER_ATTRIBUTE_MEMORY_TYPE = 2,
    CU_POINTER_ATTRIBUTE_DEVICE_POINTER = 3,
    CU_POINTER_ATTRIBUTE_HOST_POINTER = 4,
    CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL = 9,
    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE = 10,
    CU_POINTER_ATTRIBUTE_RANGE_START_ADDR = 11,
    CU_POINTER_ATTRIBUTE_RANGE_SIZE = 12,
    CU_STREAM_CAPTURE_MODE_GLOBAL = 0,
    CU_STREAM_CAPTURE_MODE_THREAD_LOCAL = 1,
    CU_STREAM_CAPTURE_MODE_RELAXED = 2,
    CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1,
    CU_STREAM_CAPTURE_STATUS_NONE = 0,
    CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
    CU_STREAM_CAPTURE_STATUS_INVALIDATED = 2,
    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC = 1,
    CU_GRAPH_USER_OBJECT_MOVE = 1,
};

typedef unsigned long long CUmemGenericAllocationHandle;

/* What memory is; its location is a device or the host. */
typedef struct {
    int type, handle_types, location_type, location_id;
    void *win32;
    unsigned char flags[8];
} CUmemAllocationProp;

typedef struct {
    int location_type, location_id, flags;
} CUmemAccessDesc;

#define CU_STREAM_LEGACY ((CUstream)1)
#define CU_STREAM_PER_THREAD ((CUstream)2)

/* How many there are now of a kind: "device memory", "pinned memory", "context", "stream",
 * "event", "module", "graph", "graph exec". */
EXPORT size_t fake_cuda_live(const char *kind);

/* Memory as cuMemCreate and cuMemMap give it, the release of which waits for nothing. */
EXPORT CUresult fake_cuda_map(CUdeviceptr *address, size_t size);
EXPORT CUresult fake_cuda_unmap(CUdeviceptr address);

/* Waits as cuMemFree does, and frees nothing. */
EXPORT CUresult fake_cuda_wait_as_free(void);

/* Has a stream call a function with a copy of its arguments, as it runs a kernel. */
typedef void (*fake_kernel)(const void *arguments, unsigned grid, unsigned block);
EXPORT CUresult fake_cuda_launch(CUstream stream, fake_kernel function, const void *arguments, size_t size);

/* How often the function has been called. */
EXPORT uint64_t fake_cuda_calls(const char *function);

#endif
