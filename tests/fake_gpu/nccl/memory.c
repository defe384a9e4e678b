/* Memory that may be registered: ncclMemAlloc. */
#include "internal.h"

#if FAKE_NCCL_VERSION >= 21900
struct block {
    struct block *next;
    char *address;
    size_t size;
    unsigned long long allocation;
};

static struct block *blocks;
static size_t block_count;

size_t memory_live(void) {
    return block_count;
}

const char *memory_start(const char *address, size_t size) {
    for (const struct block *block = blocks; block != NULL; block = block->next) {
        if (address >= block->address && address + size <= block->address + block->size)
            return block->address;
    }
    return NULL;
}

EXPORT ncclResult_t ncclMemAlloc(void **address, size_t size) {
    TRY(enter_without(__func__, -1, ""));
    if (address == NULL || size == 0)
        return failure(ncclInvalidArgument, "%s: %zu bytes", __func__, size);
    if (driver() == NULL)
        return failure(ncclSystemError, "libcuda.so.1 cannot be loaded");
    size_t rounded =
        (size + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT * NCCL_WIN_REQUIRED_ALIGNMENT;
    unsigned long long allocation;
    int error = driver()->memory_map(&allocation, rounded + NCCL_WIN_REQUIRED_ALIGNMENT);
    if (error != 0)
        return failure(ncclUnhandledCudaError, "%s: the driver's error %d", __func__, error);
    struct block *block = allocate(sizeof *block);
    block->address = (char *)(uintptr_t)((allocation + NCCL_WIN_REQUIRED_ALIGNMENT - 1) / NCCL_WIN_REQUIRED_ALIGNMENT
                                         * NCCL_WIN_REQUIRED_ALIGNMENT);
    block->size = rounded;
    block->allocation = allocation;
    *address = block->address;
    pthread_mutex_lock(&lock);
    block->next = blocks;
    blocks = block;
    block_count++;
    pthread_mutex_unlock(&lock);
    return ncclSuccess;
}

/* Takes the block out of the list, unless a window is in it. */
static ncclResult_t remove_block(const void *address, struct block **removed) {
    struct block **place = &blocks;
    while (*place != NULL && (*place)->address != address)
        place = &(*place)->next;
    struct block *block = *removed = *place;
    if (block == NULL)
        return ncclInvalidArgument;
    if (window_overlaps(NULL, block->address, block->size)) {
        note_violation("memory is freed in which a window is registered");
        return ncclInvalidUsage;
    }
    if (is_registered(block->address))
        note_violation("memory is freed that a communicator has registered in a capture");
    *place = block->next;
    block_count--;
    return ncclSuccess;
}

EXPORT ncclResult_t ncclMemFree(void *address) {
    TRY(enter_without(__func__, -1, ""));
    if (address == NULL)
        return ncclSuccess;
    struct block *block;
    pthread_mutex_lock(&lock);
    ncclResult_t result = remove_block(address, &block);
    pthread_mutex_unlock(&lock);
    if (result != ncclSuccess)
        return failure(result, "%s: this is no memory of ncclMemAlloc's, or a window is in it", __func__);
    int error = driver()->memory_unmap(block->allocation);
    free(block);
    return error == 0 ? ncclSuccess : failure(ncclUnhandledCudaError, "%s: the driver's error %d", __func__, error);
}
#else
size_t memory_live(void) {
    return 0;
}
#endif
