/* Device memory and pinned host memory. */
#include "internal.h"

#define FRESH 0xcd
#define FREED 0xdd
/* Device addresses are multiples of this, and of no more. */
#define ALIGNMENT 256
/* How much freed memory is kept to see late writes. */
#define QUARANTINE ((size_t)64 << 20)

static struct allocation *allocations, *quarantine, **quarantine_end = &quarantine;
static size_t quarantined;
static size_t live[2];
static size_t used[MOST_DEVICES];

struct allocation *allocation_find(const void *address, size_t size) {
    uintptr_t begin = (uintptr_t)address;
    for (struct allocation *allocation = allocations; allocation != NULL; allocation = allocation->next) {
        uintptr_t offset = begin - (uintptr_t)allocation->address;
        if (offset < allocation->size && size <= allocation->size - offset)
            return allocation;
    }
    return NULL;
}

bool is_device_memory(const void *address, size_t size) {
    struct allocation *allocation = allocation_find(address, size);
    return allocation != NULL && !allocation->pinned;
}

bool is_pinned_memory(const void *address, size_t size) {
    struct allocation *allocation = allocation_find(address, size);
    return allocation != NULL && allocation->pinned;
}

size_t allocation_live(bool pinned) {
    return live[pinned];
}

static size_t total(void) {
    return (size_t)environment_number("FAKE_CUDA_MEMORY", 1L << 30);
}

static CUresult add(void **address, size_t size, bool pinned) {
    TRY(refuse_unsafe_call());
    struct context *context = current_context();
    if (!pinned && size > total() - used[context->device])
        return CUDA_ERROR_OUT_OF_MEMORY;
    void *block = malloc(size + 3 * ALIGNMENT);
    if (block == NULL)
        return CUDA_ERROR_OUT_OF_MEMORY;
    struct allocation *allocation = allocate(sizeof *allocation);
    uintptr_t rounded = ((uintptr_t)block + 2 * ALIGNMENT - 1) / (2 * ALIGNMENT) * (2 * ALIGNMENT);
    *allocation = (struct allocation){
        .next = allocations,
        .address = (unsigned char *)rounded + ALIGNMENT,
        .size = size,
        .context = context,
        .pinned = pinned,
        .block = block,
    };
    memset(allocation->address, FRESH, size);
    allocations = allocation;
    live[pinned]++;
    if (!pinned)
        used[context->device] += size;
    *address = allocation->address;
    return CUDA_SUCCESS;
}

void allocation_add_mapped(void *address, size_t size, struct context *context, bool pinned, struct memory *memory) {
    struct allocation *allocation = allocate(sizeof *allocation);
    *allocation = (struct allocation){.next = allocations,
        .address = address,
        .size = size,
        .context = context,
        .pinned = pinned,
        .memory = memory};
    allocations = allocation;
}

struct memory *allocation_remove_mapped(const void *address, size_t most, size_t *size) {
    struct allocation **place = &allocations;
    while (*place != NULL && ((*place)->address != address || (*place)->memory == NULL || (*place)->size > most))
        place = &(*place)->next;
    struct allocation *allocation = *place;
    if (allocation == NULL)
        return NULL;
    if (streams_use(allocation->address, allocation->size))
        fatal("memory at %p is unmapped while a queued operation names it", (void *)allocation->address);
    struct memory *memory = allocation->memory;
    *size = allocation->size;
    *place = allocation->next;
    free(allocation);
    return memory;
}

/* Checks whether the program wrote to memory after it was freed. */
static void check(const struct allocation *allocation) {
    for (size_t i = 0; i < allocation->size; i++) {
        if (allocation->address[i] != FREED)
            fatal("byte %zu of %zu at %p was written to after the memory was freed", i, allocation->size,
                (void *)allocation->address);
    }
}

/* Whether the release waits for the work of the context, as cuMemFree and cuMemFreeHost do. */
enum release { WAITS, DOES_NOT_WAIT };

static CUresult drop(const void *address, bool pinned, enum release release) {
    TRY(refuse_unsafe_call());
    struct allocation **place = &allocations;
    while (*place != NULL && ((*place)->address != address || (*place)->pinned != pinned || (*place)->memory != NULL))
        place = &(*place)->next;
    struct allocation *allocation = *place;
    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (streams_use(allocation->address, allocation->size))
        fatal("memory at %p is freed while a queued operation names it", (void *)allocation->address);
    /* Others do not see it any more while this waits. */
    *place = allocation->next;
    if (release == WAITS)
        context_drain_held(allocation->context);
    live[pinned]--;
    if (!pinned)
        used[allocation->context->device] -= allocation->size;
    memset(allocation->address, FREED, allocation->size);
    allocation->next = NULL;
    *quarantine_end = allocation;
    quarantine_end = &allocation->next;
    quarantined += allocation->size;
    while (quarantined > QUARANTINE && quarantine->next != NULL) {
        struct allocation *oldest = quarantine;
        check(oldest);
        quarantine = oldest->next;
        quarantined -= oldest->size;
        free(oldest->block);
        free(oldest);
    }
    return CUDA_SUCCESS;
}

/* Threads may still free memory while the process ends. */
__attribute__((destructor)) static void check_at_exit(void) {
    pthread_mutex_lock(&lock);
    for (struct allocation *allocation = quarantine; allocation != NULL; allocation = allocation->next)
        check(allocation);
    pthread_mutex_unlock(&lock);
}

EXPORT CUresult cuMemAlloc_v2(CUdeviceptr *address, size_t size) {
    ENTER(CONTEXT);
    if (address == NULL || size == 0)
        return CUDA_ERROR_INVALID_VALUE;
    void *memory = NULL;
    TRY(LOCKED(add(&memory, size, false)));
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemFree_v2(CUdeviceptr address) {
    ENTER(CONTEXT);
    return address == 0 ? CUDA_SUCCESS : LOCKED(drop((void *)(uintptr_t)address, false, WAITS));
}

EXPORT CUresult cuMemHostAlloc(void **address, size_t size, unsigned flags) {
    ENTER(CONTEXT);
    if (address == NULL || size == 0 || flags > 7)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(add(address, size, true));
}

EXPORT CUresult cuMemAllocHost_v2(void **address, size_t size) {
    ENTER(CONTEXT);
    return address == NULL || size == 0 ? CUDA_ERROR_INVALID_VALUE : LOCKED(add(address, size, true));
}

EXPORT CUresult cuMemFreeHost(void *address) {
    ENTER(CONTEXT);
    return LOCKED(drop(address, true, WAITS));
}

static CUresult wait_as_free(void) {
    context_drain_held(current_context());
    return CUDA_SUCCESS;
}

EXPORT CUresult fake_cuda_wait_as_free(void) {
    ENTER(CONTEXT);
    return LOCKED(wait_as_free());
}

static CUresult add_mapped(void **address, size_t size) {
    TRY(add(address, size, false));
    allocation_find(*address, size)->mapped = true;
    return CUDA_SUCCESS;
}

EXPORT CUresult fake_cuda_map(CUdeviceptr *address, size_t size) {
    ENTER(CONTEXT);
    void *memory = NULL;
    TRY(LOCKED(add_mapped(&memory, size)));
    *address = (CUdeviceptr)(uintptr_t)memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult fake_cuda_unmap(CUdeviceptr address) {
    ENTER(CONTEXT);
    return LOCKED(drop((void *)(uintptr_t)address, false, DOES_NOT_WAIT));
}

/* From a pool: the memory is there at once, and cudaMalloc has not made it. */
EXPORT CUresult cuMemAllocAsync(CUdeviceptr *address, size_t size, CUstream stream) {
    (void)stream;
    return address == NULL || size == 0 ? CUDA_ERROR_INVALID_VALUE : fake_cuda_map(address, size);
}

static void free_in_turn(void *address) {
    if (LOCKED(drop(address, false, DOES_NOT_WAIT)) != CUDA_SUCCESS)
        fatal("cuMemFreeAsync: there is no memory at %p", address);
}

static CUresult free_on(CUstream handle, CUdeviceptr address) {
    struct stream *stream;
    TRY(stream_for_work(handle, &stream));
    struct operation operation = {
        .kind = OPERATION_HOST, .host = {.function = free_in_turn, .data = (void *)(uintptr_t)address}};
    return stream_submit(stream, &operation);
}

EXPORT CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    ENTER(CONTEXT);
    return address == 0 ? CUDA_SUCCESS : LOCKED(free_on(stream, address));
}

static CUresult get_info(size_t *free_bytes, size_t *total_bytes) {
    *total_bytes = total();
    *free_bytes = *total_bytes - used[current_context()->device];
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes) {
    ENTER(CONTEXT);
    if (free_bytes == NULL || total_bytes == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(get_info(free_bytes, total_bytes));
}

static CUresult get_attribute(void *data, int attribute, const void *address) {
    struct allocation *allocation = allocation_find(address, 1);
    if (allocation == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    switch (attribute) {
    case CU_POINTER_ATTRIBUTE_CONTEXT:
        *(CUcontext *)data = allocation->context->handle;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        *(unsigned *)data = allocation->pinned ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
        *(CUdeviceptr *)data = (CUdeviceptr)(uintptr_t)address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_HOST_POINTER:
        *(const void **)data = address;
        return allocation->pinned ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
        *(int *)data = allocation->context->device;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
        *(CUdeviceptr *)data = (CUdeviceptr)(uintptr_t)allocation->address;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
        *(size_t *)data = allocation->size;
        return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        *(int *)data = allocation->memory == NULL && !allocation->mapped;
        return CUDA_SUCCESS;
    default:
        return CUDA_ERROR_NOT_SUPPORTED;
    }
}

EXPORT CUresult cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address) {
    ENTER(CONTEXT);
    return data == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_attribute(data, attribute, (void *)(uintptr_t)address));
}
