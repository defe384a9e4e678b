/* Copies and fills. Where host memory is pageable, the caller waits for the stream and copies
 * himself, as with the driver's staging; pinned memory is read and written by the stream's
 * thread. */
#include "internal.h"

enum direction { TO_DEVICE, TO_HOST, BETWEEN_DEVICES };

/* Whether the addresses are what the direction wants: whole ranges of device memory, and host
 * memory that is no device memory. */
static CUresult check(const void *to, const void *from, size_t size, enum direction direction) {
    if (direction != TO_HOST && !is_device_memory(to, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (direction != TO_DEVICE && !is_device_memory(from, size))
        return CUDA_ERROR_INVALID_VALUE;
    if (direction == BETWEEN_DEVICES)
        return CUDA_SUCCESS;
    const void *host = direction == TO_DEVICE ? from : to;
    return host == NULL || is_device_memory(host, 1) ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS;
}

static CUresult copy(
    void *to, const void *from, size_t size, enum direction direction, struct stream *stream, bool waits) {
    if (stream->capture != NULL && waits)
        return capture_refuse(stream);
    TRY(check(to, from, size, direction));
    struct operation operation = {.kind = OPERATION_COPY, .copy = {.to = to, .from = from, .size = size}};
    if (!waits)
        return stream_submit(stream, &operation);
    stream_drain(stream);
    memmove(to, from, size);
    return CUDA_SUCCESS;
}

static CUresult copy_now(void *to, const void *from, size_t size, enum direction direction) {
    TRY(refuse_unsafe_call());
    if (size == 0)
        return CUDA_SUCCESS;
    struct stream *stream;
    TRY(stream_get(NULL, &stream));
    return copy(to, from, size, direction, stream, true);
}

static CUresult copy_on(CUstream handle, void *to, const void *from, size_t size, enum direction direction) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    if (size == 0)
        return CUDA_SUCCESS;
    bool pageable = direction != BETWEEN_DEVICES && !is_pinned_memory(direction == TO_DEVICE ? from : to, size);
    return copy(to, from, size, direction, stream, pageable);
}

static void *pointer(CUdeviceptr address) {
    return (void *)(uintptr_t)address;
}

EXPORT CUresult cuMemcpyHtoD_v2(CUdeviceptr to, const void *from, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(copy_now(pointer(to), from, size, TO_DEVICE));
}

EXPORT CUresult cuMemcpyDtoH_v2(void *to, CUdeviceptr from, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(copy_now(to, pointer(from), size, TO_HOST));
}

EXPORT CUresult cuMemcpyDtoD_v2(CUdeviceptr to, CUdeviceptr from, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(copy_now(pointer(to), pointer(from), size, BETWEEN_DEVICES));
}

EXPORT CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void *from, size_t size, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(copy_on(stream, pointer(to), from, size, TO_DEVICE));
}

EXPORT CUresult cuMemcpyDtoHAsync_v2(void *to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(copy_on(stream, to, pointer(from), size, TO_HOST));
}

EXPORT CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, size_t size, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(copy_on(stream, pointer(to), pointer(from), size, BETWEEN_DEVICES));
}

static CUresult set_now(void *at, unsigned char value, size_t size) {
    TRY(refuse_unsafe_call());
    struct stream *stream;
    TRY(stream_get(NULL, &stream));
    if (size == 0)
        return CUDA_SUCCESS;
    if (!is_device_memory(at, size))
        return CUDA_ERROR_INVALID_VALUE;
    stream_drain(stream);
    memset(at, value, size);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemsetD8_v2(CUdeviceptr at, unsigned char value, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(set_now(pointer(at), value, size));
}

static CUresult set_on(CUstream handle, void *at, unsigned char value, size_t size) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    if (size == 0)
        return CUDA_SUCCESS;
    if (!is_device_memory(at, size))
        return CUDA_ERROR_INVALID_VALUE;
    struct operation operation = {.kind = OPERATION_SET, .set = {.at = at, .value = value, .size = size}};
    return stream_submit(stream, &operation);
}

EXPORT CUresult cuMemsetD8Async(CUdeviceptr at, unsigned char value, size_t size, CUstream stream) {
    ENTER(CONTEXT);
    return LOCKED(set_on(stream, pointer(at), value, size));
}
