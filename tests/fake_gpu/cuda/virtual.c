/* Virtual memory: allocations are memory files, which processes share, and are mapped into reserved
 * ranges of addresses. */
#include <sys/mman.h>
#include <unistd.h>

#include "internal.h"

#define GRANULARITY ((size_t)2 << 20)
#define ALLOCATION_TYPE_PINNED 1
#define LOCATION_TYPE_DEVICE 1
#define HANDLE_TYPE_POSIX_FILE_DESCRIPTOR 1
#define ACCESS_READ_WRITE 3

/* What a handle stands for. It lives as long as a handle or a mapping refers to it. */
struct memory {
    int file, references;
    size_t size;
    CUmemAllocationProp properties;
    void *handle;
};

static struct memory *memory_new(int file, size_t size, const CUmemAllocationProp *properties) {
    struct memory *memory = allocate(sizeof *memory);
    *memory = (struct memory){.file = file, .references = 1, .size = size, .properties = *properties};
    memory->handle = handle_new(HANDLE_MEMORY, memory);
    return memory;
}

static void memory_release(struct memory *memory) {
    if (--memory->references > 0)
        return;
    handle_drop(HANDLE_MEMORY, memory->handle);
    close(memory->file);
    free(memory);
}

static struct memory *memory_get(CUmemGenericAllocationHandle handle) {
    return handle_get(HANDLE_MEMORY, (void *)(uintptr_t)handle);
}

/* Files begin with the properties, so that an importer has them too. */
static off_t contents(void) {
    return (off_t)GRANULARITY;
}

EXPORT CUresult cuMemGetAllocationGranularity(size_t *granularity, const CUmemAllocationProp *properties, int option) {
    ENTER(INITIALIZED);
    if (granularity == NULL || properties == NULL || option < 0 || option > 1)
        return CUDA_ERROR_INVALID_VALUE;
    *granularity = GRANULARITY;
    return CUDA_SUCCESS;
}

static CUresult create(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties) {
    if (properties->type != ALLOCATION_TYPE_PINNED
        || (properties->handle_types & ~HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) != 0)
        return CUDA_ERROR_NOT_SUPPORTED;
    int file = memfd_create("fake-gpu-memory", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, contents() + (off_t)size) != 0
        || pwrite(file, properties, sizeof *properties, 0) != sizeof *properties)
        fatal("no memory file");
    *handle = (uintptr_t)memory_new(file, size, properties)->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle *handle, size_t size, const CUmemAllocationProp *properties,
    unsigned long long flags) {
    ENTER(CONTEXT);
    if (handle == NULL || properties == NULL || size == 0 || size % GRANULARITY != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(create(handle, size, properties));
}

static CUresult release(CUmemGenericAllocationHandle handle) {
    struct memory *memory = memory_get(handle);
    if (memory == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    memory_release(memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    ENTER(CONTEXT);
    return LOCKED(release(handle));
}

static CUresult retain(CUmemGenericAllocationHandle *handle, const void *address) {
    const struct allocation *allocation = allocation_find(address, 1);
    if (allocation == NULL || allocation->memory == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    allocation->memory->references++;
    *handle = (uintptr_t)allocation->memory->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *handle, void *address) {
    ENTER(CONTEXT);
    return handle == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(retain(handle, address));
}

static CUresult get_properties(CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    const struct memory *memory = memory_get(handle);
    if (memory == NULL)
        return CUDA_ERROR_INVALID_VALUE;
    *properties = memory->properties;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemGetAllocationPropertiesFromHandle(
    CUmemAllocationProp *properties, CUmemGenericAllocationHandle handle) {
    ENTER(CONTEXT);
    return properties == NULL ? CUDA_ERROR_INVALID_VALUE : LOCKED(get_properties(properties, handle));
}

static CUresult export(int *file, CUmemGenericAllocationHandle handle) {
    const struct memory *memory = memory_get(handle);
    if (memory == NULL || memory->properties.handle_types != HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    *file = dup(memory->file);
    return *file < 0 ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORT CUresult cuMemExportToShareableHandle(
    void *shareable, CUmemGenericAllocationHandle handle, int type, unsigned long long flags) {
    ENTER(CONTEXT);
    if (shareable == NULL || type != HANDLE_TYPE_POSIX_FILE_DESCRIPTOR || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(export(shareable, handle));
}

static CUresult import(CUmemGenericAllocationHandle *handle, int exported) {
    CUmemAllocationProp properties;
    int file = dup(exported);
    off_t size = lseek(file, 0, SEEK_END) - contents();
    if (file < 0 || size <= 0 || pread(file, &properties, sizeof properties, 0) != sizeof properties) {
        close(file);
        return CUDA_ERROR_INVALID_VALUE;
    }
    *handle = (uintptr_t)memory_new(file, (size_t)size, &properties)->handle;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *handle, void *shareable, int type) {
    ENTER(CONTEXT);
    if (handle == NULL || type != HANDLE_TYPE_POSIX_FILE_DESCRIPTOR)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(import(handle, (int)(intptr_t)shareable));
}

EXPORT CUresult cuMemAddressReserve(
    CUdeviceptr *address, size_t size, size_t alignment, CUdeviceptr wanted, unsigned long long flags) {
    ENTER(CONTEXT);
    if (address == NULL || size == 0 || size % GRANULARITY != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    (void)wanted;
    alignment = alignment < GRANULARITY ? GRANULARITY : alignment;
    char *range = mmap(NULL, size + alignment, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (range == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    size_t before = (alignment - (uintptr_t)range % alignment) % alignment;
    if (before > 0)
        munmap(range, before);
    if (before < alignment)
        munmap(range + before + size, alignment - before);
    *address = (uintptr_t)(range + before);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t size) {
    ENTER(CONTEXT);
    return munmap((void *)(uintptr_t)address, size) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* No access before cuMemSetAccess. */
static CUresult map(void *address, size_t size, size_t offset, CUmemGenericAllocationHandle handle) {
    struct memory *memory = memory_get(handle);
    if (memory == NULL || size == 0 || offset > memory->size || size > memory->size - offset
        || allocation_find(address, 1) != NULL)
        return CUDA_ERROR_INVALID_VALUE;
    if (mmap(address, size, PROT_NONE, MAP_SHARED | MAP_FIXED, memory->file, contents() + (off_t)offset) == MAP_FAILED)
        return CUDA_ERROR_OUT_OF_MEMORY;
    memory->references++;
    bool is_device = memory->properties.location_type == LOCATION_TYPE_DEVICE;
    int device = is_device ? memory->properties.location_id : current_context()->device;
    allocation_add_mapped(address, size, device_context(device), !is_device, memory);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(
    CUdeviceptr address, size_t size, size_t offset, CUmemGenericAllocationHandle handle, unsigned long long flags) {
    ENTER(CONTEXT);
    if (address % GRANULARITY != 0 || size % GRANULARITY != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return LOCKED(map((void *)(uintptr_t)address, size, offset, handle));
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t size, const CUmemAccessDesc *access, size_t count) {
    ENTER(CONTEXT);
    if (access == NULL || count == 0)
        return CUDA_ERROR_INVALID_VALUE;
    int protection = access->flags == ACCESS_READ_WRITE ? PROT_READ | PROT_WRITE : PROT_READ;
    return mprotect((void *)(uintptr_t)address, size, protection) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

/* The range stays reserved. Who still touches it crashes, as a GPU would fault. */
static CUresult unmap(char *address, size_t size) {
    while (size > 0) {
        size_t length = 0;
        struct memory *memory = allocation_remove_mapped(address, size, &length);
        if (memory == NULL)
            return CUDA_ERROR_INVALID_VALUE;
        mmap(address, length, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
        memory_release(memory);
        address += length;
        size -= length;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t size) {
    ENTER(CONTEXT);
    return LOCKED(unmap((char *)(uintptr_t)address, size));
}
