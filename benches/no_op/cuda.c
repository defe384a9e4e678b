/* A libcuda without a GPU whose calls do next to nothing, so that a benchmark on it measures what
 * the callers do. Memory of the GPU is memory of the host, and work is done when it is enqueued. */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SUCCESS 0
#define NOTHING(name, ...)                                                                         \
    int name(__VA_ARGS__) {                                                                        \
        return SUCCESS;                                                                            \
    }

struct stream {
    bool captured;
};

static char context, handle;
static _Thread_local void *current;

NOTHING(cuInit, unsigned flags)
NOTHING(cuDeviceGet, int *device, int ordinal)
NOTHING(cuStreamWaitEvent, void *stream, void *event, unsigned flags)
NOTHING(cuStreamSynchronize, void *stream)
NOTHING(cuStreamDestroy_v2, void *stream)
NOTHING(cuEventDestroy_v2, void *event)
NOTHING(cuEventRecord, void *event, void *stream)
NOTHING(cuEventQuery, void *event)
NOTHING(cuEventSynchronize, void *event)
NOTHING(cuEventElapsedTime, float *milliseconds, void *start, void *end)
NOTHING(cuLaunchKernel, void *function, unsigned x)
NOTHING(cuGraphLaunch, void *graph, void *stream)
NOTHING(cuGraphExecDestroy, void *graph)
NOTHING(cuGraphDestroy, void *graph)
NOTHING(cuGraphRetainUserObject, void *graph, void *object, unsigned count, unsigned flags)
NOTHING(cuThreadExchangeStreamCaptureMode, int *mode)

static int give(void **to, void *value) {
    *to = value;
    return SUCCESS;
}

static int text(const char **to) {
    *to = "no text";
    return SUCCESS;
}

int cuGetErrorName(int error, const char **name) {
    return text(name);
}

int cuGetErrorString(int error, const char **description) {
    return text(description);
}

int cuDriverGetVersion(int *version) {
    *version = 13000;
    return SUCCESS;
}

int cuDeviceGetCount(int *count) {
    *count = 8;
    return SUCCESS;
}

int cuDeviceGetName(char *name, int size, int device) {
    snprintf(name, (size_t)size, "no-op");
    return SUCCESS;
}

int cuDeviceGetPCIBusId(char *id, int size, int device) {
    snprintf(id, (size_t)size, "0000:00:%02x.0", (unsigned)device);
    return SUCCESS;
}

/* Any answer does, but for the compute capability, which is 9.0. */
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 76 ? 0 : 9;
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = (size_t)1 << 30;
    return SUCCESS;
}

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    *available = *total = (size_t)1 << 30;
    return SUCCESS;
}

int cuDevicePrimaryCtxRetain(void **to, int device) {
    return give(to, &context);
}

int cuCtxGetCurrent(void **to) {
    return give(to, current);
}

int cuCtxSetCurrent(void *to) {
    current = to;
    return SUCCESS;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) {
    void *memory = aligned_alloc(512, (size + 511) / 512 * 512);
    *address = (uintptr_t)memory;
    return memory != NULL ? SUCCESS : 2;
}

int cuMemFree_v2(uint64_t address) {
    free((void *)(uintptr_t)address);
    return SUCCESS;
}

int cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    *address = malloc(size);
    return *address != NULL ? SUCCESS : 2;
}

int cuMemFreeHost(void *address) {
    free(address);
    return SUCCESS;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void *from, size_t size, void *stream) {
    memcpy((void *)(uintptr_t)to, from, size);
    return SUCCESS;
}

int cuMemcpyDtoHAsync_v2(void *to, uint64_t from, size_t size, void *stream) {
    memcpy(to, (void *)(uintptr_t)from, size);
    return SUCCESS;
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t size, void *stream) {
    memmove((void *)(uintptr_t)to, (void *)(uintptr_t)from, size);
    return SUCCESS;
}

int cuMemsetD8Async(uint64_t at, unsigned char value, size_t size, void *stream) {
    memset((void *)(uintptr_t)at, value, size);
    return SUCCESS;
}

/* All memory is of cuMemAlloc. */
int cuPointerGetAttribute(int *value, int attribute, uint64_t address) {
    *value = 1;
    return SUCCESS;
}

int cuStreamCreate(void **stream, unsigned flags) {
    return give(stream, calloc(1, sizeof(struct stream)));
}

int cuStreamGetCtx(void *stream, void **to) {
    return give(to, &context);
}

int cuStreamIsCapturing(void *stream, int *status) {
    *status = stream != NULL && ((struct stream *)stream)->captured;
    return SUCCESS;
}

int cuStreamGetCaptureInfo_v2(
    void *stream, int *status, unsigned long long *id, void **graph, const void **dependencies, size_t *count) {
    *id = 1;
    *graph = &handle;
    return cuStreamIsCapturing(stream, status);
}

int cuStreamBeginCapture_v2(void *stream, int mode) {
    ((struct stream *)stream)->captured = true;
    return SUCCESS;
}

int cuStreamEndCapture(void *stream, void **graph) {
    ((struct stream *)stream)->captured = false;
    return give(graph, &handle);
}

int cuEventCreate(void **event, unsigned flags) {
    return give(event, &handle);
}

int cuModuleLoadData(void **module, const void *image) {
    return give(module, &handle);
}

int cuModuleGetFunction(void **function, void *module, const char *name) {
    return give(function, &handle);
}

int cuGraphInstantiateWithFlags(void **executable, void *graph, unsigned long long flags) {
    return give(executable, &handle);
}

int cuUserObjectCreate(void **object, void *value, void (*destroy)(void *), unsigned count, unsigned flags) {
    destroy(value);
    return give(object, &handle);
}
